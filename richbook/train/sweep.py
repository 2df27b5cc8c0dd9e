"""Train a whole grid of networks at once and record the measures of each."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import numpy as np
import torch
import xarray as xr
from tqdm.auto import tqdm

from richbook.measure import RichbookError
from richbook.train.data import load_data
from richbook.train.ensemble import Ensemble
from richbook.train.provenance import attributes, how_made
from richbook.train.recording import SCALARS, Evaluation, centred_targets
from richbook.train.settings import TrainingSettings, checked_steps, settings_from
from richbook.train.single import batches, default_device

#: The axes of a sweep, in order; ``step`` follows them.
AXES = ("weight_decay", "target_scale", "learning_rate", "seed")


def sweep(
    weight_decay: float | Sequence[float] = 1e-2,
    target_scale: float | Sequence[float] = 1.0,
    learning_rate: float | Sequence[float] = 1e-2,
    seeds: int | Sequence[int] = 3,
    *,
    settings: TrainingSettings | None = None,
    record_at: list[int] | None = None,
    device: torch.device | str | None = None,
    progress: bool = True,
    **changes: object,
) -> xr.Dataset:
    """Train every combination of the values given, as one batched ensemble.

    Networks with the same seed start from the same weights and see the same batches, so that along the
    other axes only the setting differs. Each equals ``train`` with its settings, up to rounding.

    Args:
        weight_decay, target_scale, learning_rate: a value or several distinct ones.
        seeds: how many seeds (0, 1, …), or which.
        settings: everything else, as a ``TrainingSettings``.
        record_at: steps to record at, else 0 and about 13 log-spaced ones. The last step is always added.
        device: where to train, else a CUDA device if there is one, else the CPU.
        progress: show a progress bar.
        **changes: further settings to change, for example ``width=32``.

    Returns:
        An ``xarray.Dataset`` over (weight_decay, target_scale, learning_rate, seed, step) with ``d_lr``,
        ``train_loss``, ``train_accuracy``, ``test_accuracy``, ``nc1``, ``s_init`` and
        ``parameter_norm`` in float32, ``utilization`` with a last dimension ``k``, and ``diverged_at``:
        the step at which a network's loss became infinite, else -1. From then on that cell is nan; the
        other networks are not affected.

    Raises:
        RichbookError: an empty axis, a value given twice, a setting out of range or unknown.

    Example:
        >>> grid = sweep(target_scale=[0.1, 1], seeds=2, steps=20, record_at=[20], progress=False)
        >>> dict(grid.sizes)
        {'weight_decay': 1, 'target_scale': 2, 'learning_rate': 1, 'seed': 2, 'step': 1, 'k': 64}
    """
    fixed = _fixed_settings(settings, changes)
    seeds = range(seeds) if isinstance(seeds, int) else seeds
    grid = {
        name: _axis(name, values)
        for name, values in zip(AXES, (weight_decay, target_scale, learning_rate, seeds), strict=True)
    }
    cells = [
        fixed.replace(**dict(zip(AXES, values, strict=True))) for values in itertools.product(*grid.values())
    ]
    steps = checked_steps(record_at, fixed.steps)
    run = _GridRun(cells, torch.device(device) if device is not None else default_device())
    started = time.perf_counter()
    records = run.records(steps, progress)
    made = how_made(time.perf_counter() - started, run.device.type, torch.get_num_threads())
    return _to_dataset(grid, steps, records, run.diverged_at, attributes(fixed) | made)


def _fixed_settings(settings: TrainingSettings | None, changes: dict) -> TrainingSettings:
    clash = sorted(set(changes) & set(AXES))
    if clash:
        raise RichbookError(f"{clash[0]}: not a single setting here; pass the seeds as seeds=")
    return settings_from(settings, changes)


def _axis(name: str, values: float | Sequence[float]) -> list:
    kind = int if name == "seed" else float
    values = [values] if np.ndim(values) == 0 else list(values)
    if not values:
        raise RichbookError(f"{name}: expected at least one value, got none")
    if len(set(values)) < len(values):
        raise RichbookError(f"{name}: expected distinct values, got {values}")
    try:
        return [kind(value) for value in values]
    except (TypeError, ValueError) as error:
        raise RichbookError(f"{name}: expected numbers, got {values}") from error


class _GridRun:
    """An ensemble in training, and when each of its networks diverged (-1: it did not)."""

    def __init__(self, cells: list[TrainingSettings], device: torch.device) -> None:
        self.cells, self.device, self.data = cells, device, load_data(cells[0].data)
        self.train_inputs, self.test_inputs = self.data.train_inputs.to(device), self.data.test_inputs.to(device)
        self.targets = centred_targets(self.data.train_labels, self.data.classes).to(device)
        self.scale = torch.tensor([cell.target_scale for cell in cells], device=device)
        self.ensemble = Ensemble(cells, self.train_inputs.shape[1], self.data.classes, device)
        self.diverged_at = torch.full((len(cells),), -1, dtype=torch.int32, device=device)
        self.seeds = sorted({cell.seed for cell in cells})
        self.seed_row = torch.tensor([self.seeds.index(cell.seed) for cell in cells], device=device)
        self.initial_features = self._initial_features()

    @torch.no_grad()
    def records(self, steps: list[int], progress: bool) -> list[dict]:
        records, wanted = [], set(steps)
        if 0 in wanted:
            records.append(self._record())
        streams = [batches(self.cells[0].replace(seed=seed), len(self.train_inputs)) for seed in self.seeds]
        total = self.cells[0].steps
        for step in tqdm(range(1, total + 1), disable=not progress, desc=f"{len(self.cells)} networks", leave=False):
            index = torch.stack([next(stream) for stream in streams]).to(self.device)  # (seeds, B)
            targets = self.targets[index][self.seed_row] * self.scale[:, None, None]
            losses = self.ensemble.descend(self.train_inputs[index][self.seed_row], targets)
            newly = ~losses.isfinite() & (self.diverged_at < 0)
            self.diverged_at.masked_fill_(newly, step)
            if step in wanted:
                records.append(self._record())
        return records

    def _initial_features(self) -> torch.Tensor:
        """Φ_0 of one network a seed; networks of the same seed share it, so it is stored once."""
        first = [int((self.seed_row == row).nonzero()[0]) for row in range(len(self.seeds))]
        return self.ensemble.features(self.train_inputs)[first]

    def _record(self) -> dict:
        features = self.ensemble.features(self.train_inputs)
        outputs = self.ensemble.head(features)
        outputs[self.diverged_at >= 0] = torch.nan
        evaluation = Evaluation(
            train_features=features,
            train_outputs=outputs,
            test_outputs=self.ensemble.head(self.ensemble.features(self.test_inputs)),
            initial_features=self.initial_features[self.seed_row],
            target_scale=self.scale,
            parameter_norm=self.ensemble.parameter_norms(),
        )
        return evaluation.record(self.data)


def _to_dataset(grid: dict, steps: list[int], records: list[dict], diverged_at: torch.Tensor, attrs: dict) -> xr.Dataset:
    shape = tuple(len(values) for values in grid.values())
    variables = {}
    for name in (*SCALARS, "utilization"):
        values = np.stack([record[name].numpy() for record in records], axis=1).astype(np.float32)  # (K, steps, …)
        dims = (*AXES, "step", "k") if name == "utilization" else (*AXES, "step")
        variables[name] = (dims, values.reshape(*shape, *values.shape[1:]))
    variables["diverged_at"] = (AXES, diverged_at.cpu().numpy().reshape(shape))
    width = variables["utilization"][1].shape[-1]
    coordinates = grid | {"step": steps, "k": np.arange(1, width + 1)}
    return xr.Dataset(variables, coordinates, attrs=attrs)
