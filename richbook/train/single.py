"""Train one network, step by step, and record the measures on the way."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from tqdm.auto import tqdm

from richbook.measure import RichbookError, parameter_norm
from richbook.train.data import load_data
from richbook.train.models import MLP
from richbook.train.provenance import attributes
from richbook.train.recording import SCALARS, Evaluation, centred_targets, squared_error
from richbook.train.settings import TrainingSettings, checked_steps, settings_from

#: Batch indices are drawn for this many steps at a time.
DRAWN_AT_ONCE = 256
#: Set apart from the seeds of the initial weights, which are small numbers.
BATCH_SEED_OFFSET = 1_000_003


@dataclass
class History:
    """A trained network and what was recorded on the way.

    Attributes:
        data: an ``xarray.Dataset`` over ``step`` (and ``k`` for ``utilization``); attribute
            ``diverged_at`` is the step at which the loss was first seen to be infinite, or -1.
        model: the trained ``MLP``.
        initial_model: the same network before the first step.
        settings: the ``TrainingSettings``.
    """

    data: xr.Dataset
    model: MLP
    initial_model: MLP
    settings: TrainingSettings


def train(
    settings: TrainingSettings | None = None,
    *,
    record_at: list[int] | None = None,
    device: torch.device | str | None = None,
    progress: bool = True,
    **changes: object,
) -> History:
    """Train one network and record D_LR, losses, accuracies, NC1, S_init, ‖θ‖² and the utilisation.

    Args:
        settings: a ``TrainingSettings``; the default trains on digits for 3 000 steps.
        record_at: steps to record at, else 0 and about 13 log-spaced ones. The last step is always
            added.
        device: where to train, else a CUDA device if there is one, else the CPU.
        progress: show a progress bar.
        **changes: settings to change, for example ``target_scale=0.1``.

    Returns:
        A ``History``. Equal settings on equal hardware give equal numbers.

    Raises:
        RichbookError: a setting out of range or unknown, named.

    Example:
        >>> history = train(steps=50, target_scale=3.0, record_at=[10, 50], progress=False)
        >>> history.data.step.values.tolist(), bool(history.data.train_accuracy[-1] > 0.5)
        ([10, 50], True)
    """
    settings = settings_from(settings, changes)
    steps = checked_steps(record_at, settings.steps)
    run = _Run(settings, device)
    records = []
    with tqdm(total=settings.steps, disable=not progress, desc="training", leave=False) as bar:
        for record in run.records(steps):
            records.append(record)
            bar.update(record["step"] - bar.n)
    data = _to_dataset(records, steps, settings, run.diverged_at)
    return History(data, run.model.cpu(), run.initial.cpu(), settings)


def training(
    settings: TrainingSettings | None = None,
    record_at: list[int] | None = None,
    device: torch.device | str | None = None,
) -> Iterator[dict]:
    """Train one network lazily: a generator of one record a recorded step.

    Stop iterating to cancel. A record has ``step``, the scalars of ``train``, ``utilization`` (an
    array of length p) and ``diverged_at`` (-1 while the loss is finite). A run that diverges yields
    one record of nan and ends.

    Raises:
        RichbookError: at the call, a step to record at that is not in the run.

    Example:
        >>> [record["step"] for record in training(TrainingSettings(steps=4), record_at=[0, 2])]
        [0, 2, 4]
    """
    settings = settings_from(settings, {})
    steps = checked_steps(record_at, settings.steps)
    return _Run(settings, device).records(steps)


def default_device() -> torch.device:
    """The device that training uses unless told otherwise: CUDA if available, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def checked_device(device: torch.device | str | None) -> torch.device:
    """The device asked for, or the default one.

    Raises:
        RichbookError: no such device on this machine.
    """
    if device is None:
        return default_device()
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise RichbookError(
            f"device: expected cpu, or a device of this machine such as cuda, got {device!r}"
        ) from error
    return found


def batches(settings: TrainingSettings, samples: int) -> Iterator[Tensor]:
    """Indices of every batch, (batch_size,) on the CPU: an endless stream fixed by the seed."""
    generator = torch.Generator().manual_seed(settings.seed + BATCH_SEED_OFFSET)
    while True:
        yield from torch.randint(samples, (DRAWN_AT_ONCE, settings.batch_size), generator=generator)


@contextlib.contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """Products as small as these are faster on one thread, and ten times as fast on a busy machine,
    where threads wait for each other."""
    threads = torch.get_num_threads()
    try:
        if device.type == "cpu":
            torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(threads)


class _Run:
    """One network in training; ``model`` is its present state."""

    def __init__(self, settings: TrainingSettings, device: torch.device | str | None) -> None:
        self.settings, self.data = settings, load_data(settings.data)
        self.device = checked_device(device)
        width = self.data.train_inputs.shape[1]
        self.model = MLP(width, self.data.classes, settings).to(self.device)
        self.initial = MLP(width, self.data.classes, settings).to(self.device)
        self.train_inputs = self.data.train_inputs.to(self.device)
        self.test_inputs = self.data.test_inputs.to(self.device)
        targets = centred_targets(self.data.train_labels, self.data.classes)
        self.targets = (settings.target_scale * targets).to(self.device)
        self.scale = torch.tensor([settings.target_scale], dtype=torch.float32, device=self.device)
        self.optimiser = torch.optim.SGD(
            self.model.parameters(),
            lr=settings.learning_rate,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
        )
        self.diverged_at = -1

    def records(self, steps: list[int]) -> Iterator[dict]:
        """Train to each of ``steps`` in turn and yield its record; the last one if it diverges."""
        indices = enumerate(batches(self.settings, len(self.train_inputs)), start=1)
        step = 0
        for wanted in steps:
            with one_thread(self.device):
                while step < wanted and self.diverged_at < 0:
                    step, index = next(indices)
                    if not math.isfinite(self._update(index.to(self.device))):
                        self.diverged_at = step
            yield self._record(step)
            if self.diverged_at >= 0:
                return

    @torch.enable_grad()  # the caller may have switched gradients off
    def _update(self, index: Tensor) -> float:
        """One step of stochastic gradient descent on the samples ``index``; the loss before it."""
        loss = squared_error(self.model(self.train_inputs[index]), self.targets[index])
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        return float(loss.detach())

    @torch.no_grad()
    def _record(self, step: int) -> dict:
        values = _missing(self.settings) if self.diverged_at >= 0 else self._measures()
        if math.isnan(values["train_loss"]) and self.diverged_at < 0:
            self.diverged_at = step
        return {"step": step, "diverged_at": self.diverged_at} | values

    def _measures(self) -> dict:
        features = self.model.features(self.train_inputs)
        evaluation = Evaluation(
            train_features=features[None],
            train_outputs=self.model.head(features)[None],
            test_outputs=self.model(self.test_inputs)[None],
            initial_features=self.initial.features(self.train_inputs),
            target_scale=self.scale,
            parameter_norm=parameter_norm(self.model)[None],
        )
        values = {name: value[0].numpy() for name, value in evaluation.record(self.data).items()}
        return {name: value if value.ndim else float(value) for name, value in values.items()}


def _to_dataset(
    records: list[dict], steps: list[int], settings: TrainingSettings, diverged_at: int
) -> xr.Dataset:
    """A dataset over the steps asked for; those that a diverged run did not reach are nan."""
    by_step = {record["step"]: record for record in records}
    rows = [by_step.get(step, _missing(settings)) for step in steps]
    variables = {
        name: ("step", np.array([row[name] for row in rows], dtype=np.float32)) for name in SCALARS
    }
    curves = np.stack([row["utilization"] for row in rows]).astype(np.float32)
    variables["utilization"] = (("step", "k"), curves)
    coordinates = {"step": steps, "k": np.arange(1, settings.width + 1)}
    return xr.Dataset(
        variables, coordinates, attrs={"diverged_at": diverged_at, **attributes(settings)}
    )


def _missing(settings: TrainingSettings) -> dict:
    return {name: np.nan for name in SCALARS} | {"utilization": np.full(settings.width, np.nan)}
