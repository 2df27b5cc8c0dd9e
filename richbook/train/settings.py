"""One description of a training run, shared by the single network, the sweep and the recorded results."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from richbook.measure import RichbookError

ACTIVATIONS = ("relu", "tanh", "linear")


@dataclass(frozen=True)
class TrainingSettings:
    """How one network is built and trained.

    The network is a multilayer perceptron with ``depth`` hidden layers of ``width`` units. It learns
    the targets ``target_scale`` · (one-hot − 1/C) by stochastic gradient descent with momentum on the
    squared error, summed over the C outputs and averaged over the batch. Weight decay adds
    ``weight_decay`` · θ to the gradient of every parameter, biases included (PyTorch's convention).

    Attributes:
        data: a name that ``load_data`` knows.
        weight_decay: γ, at least 0.
        target_scale: s, above 0.
        learning_rate: η, above 0.
        seed: fixes the initial weights and the order of the batches.
        steps: number of updates.
        batch_size: samples an update, drawn with replacement.
        momentum: in [0, 1).
        width, depth: hidden units a layer, hidden layers.
        activation: "relu", "tanh" or "linear".
        zero_head: start the last layer at zero, so that the network starts as the zero function.

    Raises:
        RichbookError: a value out of range, named.

    Example:
        >>> TrainingSettings(target_scale=0.1).replace(seed=2).seed
        2
    """

    data: str = "digits"
    weight_decay: float = 1e-2
    target_scale: float = 1.0
    learning_rate: float = 1e-2
    seed: int = 0
    steps: int = 3000
    batch_size: int = 100
    momentum: float = 0.9
    width: int = 64
    depth: int = 2
    activation: str = "relu"
    zero_head: bool = True

    def __post_init__(self) -> None:
        for name in ("weight_decay", "target_scale", "learning_rate", "momentum"):
            _require(name, getattr(self, name), _is_number(getattr(self, name)), "a finite number")
        _require("weight_decay", self.weight_decay, self.weight_decay >= 0, "at least 0")
        _require("target_scale", self.target_scale, self.target_scale > 0, "above 0")
        _require("learning_rate", self.learning_rate, self.learning_rate > 0, "above 0")
        _require("momentum", self.momentum, 0 <= self.momentum < 1, "in [0, 1)")
        for name in ("steps", "batch_size", "width", "depth"):
            value = getattr(self, name)
            _require(name, value, isinstance(value, int | np.integer) and value >= 1, "a whole number of at least 1")
        _require("seed", self.seed, isinstance(self.seed, int | np.integer) and self.seed >= 0, "a whole number ≥ 0")
        _require("activation", self.activation, self.activation in ACTIVATIONS, f"one of {', '.join(ACTIVATIONS)}")

    def replace(self, **changes: object) -> TrainingSettings:
        """A copy with some values changed."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict:
        """Plain values, for provenance."""
        return dataclasses.asdict(self)


def settings_from(settings: TrainingSettings | None, changes: dict) -> TrainingSettings:
    """Settings with ``changes``, or an error that lists the names there are."""
    known = [field.name for field in dataclasses.fields(TrainingSettings)]
    unknown = sorted(set(changes) - set(known))
    if unknown:
        raise RichbookError(f"{unknown[0]}: no such setting; expected some of {', '.join(known)}")
    return dataclasses.replace(settings or TrainingSettings(), **changes)


def log_steps(steps: int, count: int = 14) -> list[int]:
    """About ``count`` steps to record at: 0, and then evenly spaced on a log axis up to ``steps``.

    Example:
        >>> log_steps(1000, 4)
        [0, 1, 32, 1000]
    """
    spaced = np.round(np.logspace(0, np.log10(steps), max(count - 1, 2))).astype(int)
    return [0, *np.unique(np.clip(spaced, 1, steps)).tolist()]


def checked_steps(record_at: list[int] | None, steps: int) -> list[int]:
    """Sorted distinct steps to record at, always with the last one; the default is ``log_steps``."""
    if record_at is None:
        return log_steps(steps)
    wrong = [step for step in record_at if int(step) != step or not 0 <= step <= steps]
    if wrong:
        raise RichbookError(f"record_at: expected whole numbers from 0 to {steps}, got {wrong[0]!r}")
    return sorted({int(step) for step in record_at} | {steps})


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number) and bool(np.isfinite(value))


def _require(name: str, value: object, holds: bool, expected: str) -> None:
    if not holds:
        raise RichbookError(f"{name}: expected {expected}, got {value!r}")
