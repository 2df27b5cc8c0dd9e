"""One description of a training run, for the single network, the sweep and the recorded results."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np

from richbook.measure import RichbookError
from richbook.train.data import PICTURE_NAMES

ACTIVATIONS = ("relu", "tanh", "linear")
COUNTS = ("steps", "batch_size", "width", "depth")
#: Generators of random numbers take 64 bits, of which offsets need some.
LARGEST_SEED = 2**62


@dataclass(frozen=True)
class TrainingSettings:
    """How one network is built and trained.

    The network is a multilayer perceptron with ``depth`` hidden layers of ``width`` units. It
    learns the targets ``target_scale`` · (one-hot − 1/C) by stochastic gradient descent with
    momentum on the squared error, summed over the C outputs and averaged over the batch. Weight
    decay adds ``weight_decay`` · θ to the gradient of every parameter, biases included (PyTorch's
    convention).

    Attributes:
        data: a name that ``load_data`` knows, of pictures: the inputs must be real numbers.
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
            self._check(name, is_number(getattr(self, name)), "a finite number", float)
        self._check("weight_decay", self.weight_decay >= 0, "at least 0")
        self._check("target_scale", self.target_scale > 0, "above 0")
        self._check("learning_rate", self.learning_rate > 0, "above 0")
        self._check("momentum", 0 <= self.momentum < 1, "in [0, 1)")
        for name, least, most in (*((name, 1, None) for name in COUNTS), ("seed", 0, LARGEST_SEED)):
            value = getattr(self, name)
            in_range = is_whole(value) and least <= value <= (most or value)
            between = f"from {least} to {most}" if most else f"of at least {least}"
            self._check(name, in_range, f"a whole number {between}", int)
        self._check("activation", self.activation in ACTIVATIONS, one_of(ACTIVATIONS))
        expected = f"pictures, {one_of(PICTURE_NAMES)}"
        self._check("data", self.data in PICTURE_NAMES, expected)
        self._check("zero_head", isinstance(self.zero_head, bool | np.bool_), "True or False", bool)

    def _check(self, name: str, holds: bool, expected: str, kind: type | None = None) -> None:
        """Raise unless ``holds``; store the value as a plain ``kind``, which JSON can write."""
        value = getattr(self, name)
        if not holds:
            raise RichbookError(f"{name}: expected {expected}, got {value!r}")
        if kind is not None:
            object.__setattr__(self, name, kind(value))

    def replace(self, **changes: object) -> TrainingSettings:
        """A copy with some values changed."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict:
        """Plain values, for provenance."""
        return dataclasses.asdict(self)


def settings_from(settings: TrainingSettings | None, changes: dict) -> TrainingSettings:
    """Settings with ``changes``, or an error that lists the names there are."""
    settings = TrainingSettings() if settings is None else settings
    if not isinstance(settings, TrainingSettings):
        got = type(settings).__name__
        raise RichbookError(f"settings: expected a TrainingSettings, got {got}")
    known = [field.name for field in dataclasses.fields(TrainingSettings)]
    unknown = sorted(set(changes) - set(known))
    if unknown:
        raise RichbookError(f"{unknown[0]}: no such setting; expected some of {', '.join(known)}")
    return settings.replace(**changes)


def log_steps(steps: int, count: int = 14) -> list[int]:
    """About ``count`` steps to record at: 0, and then evenly spaced on a log axis up to ``steps``.

    Example:
        >>> log_steps(1000, 4)
        [0, 1, 32, 1000]
    """
    spaced = np.round(np.logspace(0, np.log10(steps), max(count - 1, 2))).astype(int)
    return [0, *np.unique(np.clip(spaced, 1, steps)).tolist()]


def checked_steps(record_at: Sequence[int] | None, steps: int) -> list[int]:
    """Sorted distinct steps to record at, always with the last; the default is ``log_steps``."""
    if record_at is None:
        return log_steps(steps)
    expected = f"record_at: expected a list of whole numbers from 0 to {steps}"
    record_at = as_list(record_at)
    for step in record_at:
        if not (is_number(step) and int(step) == step and 0 <= step <= steps):
            raise RichbookError(f"{expected}, got {step!r}")
    return sorted({int(step) for step in record_at} | {steps})


def as_list(values: object) -> list:
    """What an array, a tensor or a sequence holds; one value makes a list of one."""
    values = np.asarray(values).tolist() if hasattr(values, "__array__") else values
    several = isinstance(values, Sequence) and not isinstance(values, str)
    return list(values) if several else [values]


def is_number(value: object) -> bool:
    """Whether this is one finite real number."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def is_whole(value: object) -> bool:
    """Whether this is one whole number; 1.0 and True are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def one_of(names: Sequence[str]) -> str:
    """What an error says that it expected."""
    return f"one of {', '.join(names)}"
