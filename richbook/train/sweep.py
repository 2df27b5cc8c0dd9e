"""Train a whole grid of networks at once and record the measures of each."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
import xarray as xr
from tqdm.auto import tqdm

from richbook.measure import RichbookError
from richbook.train.data import load_data
from richbook.train.ensemble import Ensemble, networks_at_once
from richbook.train.provenance import attributes, how_made
from richbook.train.recording import SCALARS, Evaluation, centred_targets
from richbook.train.settings import (
    TrainingSettings,
    as_list,
    checked_steps,
    is_number,
    is_whole,
    settings_from,
)
from richbook.train.single import batches, checked_device

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

    Networks with the same seed start from the same weights and see the same batches, so that along
    the other axes only the setting differs. Each equals ``train`` with its settings up to rounding.

    Args:
        weight_decay, target_scale, learning_rate: a value or several distinct ones. Axes are
            sorted.
        seeds: how many seeds (0, 1, …), or which.
        settings: everything else, as a ``TrainingSettings``.
        record_at: steps to record at, else 0 and about 13 log-spaced ones. The last step is always
            added.
        device: where to train, else a CUDA device if there is one, else the CPU.
        progress: show a progress bar.
        **changes: further settings to change, for example ``width=32``.

    Returns:
        An ``xarray.Dataset`` over (weight_decay, target_scale, learning_rate, seed, step) with
        ``d_lr``, ``train_loss``, ``train_accuracy``, ``test_accuracy``, ``nc1``, ``s_init`` and
        ``parameter_norm`` in float32, ``utilization`` with a last dimension ``k``, and
        ``diverged_at``: the step at which a network's loss was first seen to be infinite, else -1.
        From then on that cell is nan; the other networks are not affected.

    Raises:
        RichbookError: an empty axis, a value given twice, a setting out of range or unknown.

    Example:
        >>> grid = sweep(target_scale=[0.1, 1], seeds=2, steps=20, record_at=[20], progress=False)
        >>> dict(grid.sizes)
        {'weight_decay': 1, 'target_scale': 2, 'learning_rate': 1, 'seed': 2, 'step': 1, 'k': 64}
    """
    fixed = _fixed_settings(settings, changes)
    grid = {
        "weight_decay": number_axis("weight_decay", weight_decay),
        "target_scale": number_axis("target_scale", target_scale),
        "learning_rate": number_axis("learning_rate", learning_rate),
        "seed": seed_axis(seeds),
    }
    cells = [
        fixed.replace(**dict(zip(AXES, values, strict=True)))
        for values in itertools.product(*grid.values())
    ]
    steps = checked_steps(record_at, fixed.steps)
    device = checked_device(device)
    started = time.perf_counter()
    records, diverged_at = _train_all(cells, steps, device, progress)
    made = how_made(time.perf_counter() - started, device.type, torch.get_num_threads())
    return _to_dataset(grid, steps, records, diverged_at, attributes(fixed, varied=AXES) | made)


def _fixed_settings(settings: TrainingSettings | None, changes: dict) -> TrainingSettings:
    clash = sorted(set(changes) & set(AXES))
    if clash:
        raise RichbookError(f"{clash[0]}: not a single setting here; pass the seeds as seeds=")
    return settings_from(settings, changes)


def number_axis(name: str, values: float | Sequence[float]) -> list[float]:
    """The values of an axis as sorted distinct floats, or an error that names it."""
    values = as_list(values)
    if not values or not all(is_number(value) for value in values):
        raise RichbookError(f"{name}: expected a number or a list of some, got {values}")
    return distinct(name, [float(value) for value in values])


def seed_axis(seeds: int | Sequence[int]) -> list[int]:
    """The seeds as a sorted list: so many, or those given."""
    values = as_list(range(seeds) if is_whole(seeds) else seeds)
    if not values or not all(is_whole(value) for value in values):
        raise RichbookError(f"seeds: expected how many, or a list of whole numbers, got {seeds!r}")
    return distinct("seeds", [int(value) for value in values])


def distinct(name: str, values: list) -> list:
    """The values sorted, or an error if one is there twice."""
    if len(set(values)) < len(values):
        raise RichbookError(f"{name}: expected distinct values, got {values}")
    return sorted(values)


def _train_all(
    cells: list[TrainingSettings], steps: list[int], device: torch.device, progress: bool
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Records (K, steps, …) and the steps of divergence (K,) of all cells, a group at a time."""
    size = networks_at_once(cells[0], load_data(cells[0].data).train_inputs.shape, device)
    groups = _groups(cells, size)
    records, diverged_at = [], []
    total = len(groups) * cells[0].steps
    with tqdm(total=total, disable=not progress, desc=f"{len(cells)} networks", leave=False) as bar:
        for group in groups:
            run = _GroupRun([cells[place] for place in group], device)
            records.append(run.records(steps, bar.update))
            diverged_at.append(run.diverged_at.cpu().numpy())
    back = np.argsort(np.concatenate(groups))
    joined = {name: np.concatenate([part[name] for part in records])[back] for name in records[0]}
    return joined, np.concatenate(diverged_at)[back]


def _groups(cells: list[TrainingSettings], size: int) -> list[np.ndarray]:
    """Places in ``cells``, about ``size`` together, of one seed each: they share every batch."""
    seeds = np.array([cell.seed for cell in cells])
    groups = []
    for seed in np.unique(seeds):
        places = np.flatnonzero(seeds == seed)
        groups += np.array_split(places, -(-len(places) // size))
    return groups


class _GroupRun:
    """An ensemble of one seed in training, and when each network diverged (-1: it did not)."""

    def __init__(self, cells: list[TrainingSettings], device: torch.device) -> None:
        self.cells, self.device, self.data = cells, device, load_data(cells[0].data)
        self.train_inputs = self.data.train_inputs.to(device)
        self.test_inputs = self.data.test_inputs.to(device)
        self.targets = centred_targets(self.data.train_labels, self.data.classes).to(device)
        scale = torch.tensor([cell.target_scale for cell in cells], dtype=torch.float32)
        self.scale = scale.to(device)
        self.ensemble = Ensemble(cells, self.train_inputs.shape[1], self.data.classes, device)
        self.diverged_at = torch.full((len(cells),), -1, dtype=torch.int32, device=device)
        self.initial_features = self.ensemble.features(self.train_inputs)[0]  # the same for all

    @torch.no_grad()
    def records(self, steps: list[int], advance: Callable[[int], object]) -> dict[str, np.ndarray]:
        """Train to the end; ``advance`` hears of every step. Arrays (K, steps, …)."""
        records, wanted = [], set(steps)
        if 0 in wanted:
            records.append(self._record(0))
        samples, total = len(self.train_inputs), self.cells[0].steps
        indices = itertools.islice(batches(self.cells[0], samples), total)
        for step, index in enumerate(indices, start=1):
            self._descend(step, index.to(self.device))
            if step in wanted:
                records.append(self._record(step))
            advance(1)
        return {
            name: np.stack([record[name].numpy() for record in records], axis=1).astype(np.float32)
            for name in records[0]
        }

    def _descend(self, step: int, index: torch.Tensor) -> None:
        """One step of every network on the batch ``index`` (B,)."""
        targets = self.targets[index] * self.scale[:, None, None]  # (K, B, C)
        losses = self.ensemble.descend(self.train_inputs[index], targets)
        self._note(~losses.isfinite(), step)

    def _note(self, diverged: torch.Tensor, step: int) -> None:
        self.diverged_at.masked_fill_(diverged & (self.diverged_at < 0), step)

    def _record(self, step: int) -> dict[str, torch.Tensor]:
        features = self.ensemble.features(self.train_inputs)
        outputs = self.ensemble.head(features)
        evaluation = Evaluation(
            train_features=features,
            train_outputs=outputs.masked_fill((self.diverged_at >= 0)[:, None, None], torch.nan),
            test_outputs=self.ensemble.head(self.ensemble.features(self.test_inputs)),
            initial_features=self.initial_features,
            target_scale=self.scale,
            parameter_norm=self.ensemble.parameter_norms(),
        )
        values = evaluation.record(self.data)
        self._note(values["train_loss"].isnan().to(self.device), step)
        return values


def _to_dataset(
    grid: dict, steps: list[int], records: dict, diverged_at: np.ndarray, attrs: dict
) -> xr.Dataset:
    shape = tuple(len(values) for values in grid.values())
    variables = {}
    for name in (*SCALARS, "utilization"):
        dims = (*AXES, "step", "k") if name == "utilization" else (*AXES, "step")
        variables[name] = (dims, records[name].reshape(*shape, *records[name].shape[1:]))
    variables["diverged_at"] = (AXES, diverged_at.reshape(shape))
    width = variables["utilization"][1].shape[-1]
    coordinates = grid | {"step": steps, "k": np.arange(1, width + 1)}
    return xr.Dataset(variables, coordinates, attrs=attrs)
