"""Train a grid of networks on the cross-entropy and record how the layers of each align."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
import xarray as xr
from tqdm.auto import tqdm

from richbook.measure import RichbookError
from richbook.measure.alignment.relations.relations import RELATIONS, SIDES
from richbook.train.alignment_recording import ALIGNMENTS, align
from richbook.train.cross_entropy import CrossEntropyEnsemble
from richbook.train.data import load_data
from richbook.train.ensemble import networks_at_once
from richbook.train.provenance import how_made
from richbook.train.settings import (
    TrainingSettings,
    as_list,
    checked_steps,
    is_whole,
    settings_from,
)
from richbook.train.single import batches, checked_device, one_thread
from richbook.train.sweep import distinct, number_axis, seed_axis

#: The axes of the grid, in order; step, and for alignments layer, side and relation follow them.
ALIGNMENT_AXES = ("activation", "weight_decay", "learning_rate", "batch_size", "seed")
#: Recorded beside the alignments.
PROGRESS = ("train_loss", "train_accuracy", "test_accuracy")
#: Of no effect on these networks, and so not among their recorded settings.
UNUSED = ("target_scale", "momentum")
STANDARD = TrainingSettings(
    depth=4, width=64, steps=8000, batch_size=16, activation="tanh",
    learning_rate=0.05, momentum=0.0, zero_head=False,
)  # fmt: skip


def alignment_sweep(
    weight_decay: float | Sequence[float] = 1e-2,
    learning_rate: float | Sequence[float] = 0.05,
    batch_size: int | Sequence[int] = 16,
    activation: str | Sequence[str] = "tanh",
    seeds: int | Sequence[int] = 3,
    *,
    settings: TrainingSettings | None = None,
    record_at: list[int] | None = None,
    device: torch.device | str | None = None,
    progress: bool = True,
    **changes: object,
) -> xr.Dataset:
    """Train every combination of the values given and record the six alignments of each layer.

    The networks have no biases and learn by stochastic gradient descent without momentum on the
    cross-entropy; digits, four hidden layers of width 64 and 8 000 steps unless told otherwise. All
    that share an activation and a batch size are trained as one batched ensemble. Those with the
    same seed start from the same draw and, at the same batch size, see the same batches.

    Args:
        weight_decay, learning_rate, batch_size: a value or several distinct ones. Sorted.
        activation: "relu", "tanh" or "linear", or several; they keep their order.
        seeds: how many seeds (0, 1, …), or which.
        settings: everything else, as a ``TrainingSettings``; its target scale and momentum have no
            effect here.
        record_at: steps to record at, else 0 and about 13 log-spaced ones. The last step is always
            added.
        device: where to train, else a CUDA device if there is one, else the CPU.
        progress: show a progress bar.
        **changes: further settings to change, for example ``width=32``.

    Returns:
        An ``xarray.Dataset`` over (activation, weight_decay, learning_rate, batch_size, seed, step)
        with ``train_loss`` (cross-entropy in nats), ``train_accuracy`` and ``test_accuracy``. Over
        (…, layer, side, relation) as well: ``alignment``, the cosine of raw second moments over the
        training data, ``null_mean`` and ``null_std`` of it by chance, and
        ``normalized_alignment``, the Pearson correlation after normalising. Layers count from 1;
        the last is the head. All float32. Where a network's loss is infinite all is nan.

    Raises:
        RichbookError: an empty axis, a value given twice, a setting out of range or unknown.

    Example:
        >>> grid = alignment_sweep([0, 0.01], seeds=1, steps=20, record_at=[20], progress=False)
        >>> grid.alignment.squeeze(drop=True).dims
        ('weight_decay', 'layer', 'side', 'relation')
    """
    fixed = _fixed_settings(settings, changes)
    grid = {
        "activation": _activation_axis(activation),
        "weight_decay": number_axis("weight_decay", weight_decay),
        "learning_rate": number_axis("learning_rate", learning_rate),
        "batch_size": _batch_axis(batch_size),
        "seed": seed_axis(seeds),
    }
    cells = [
        fixed.replace(**dict(zip(ALIGNMENT_AXES, values, strict=True)))
        for values in itertools.product(*grid.values())
    ]
    steps = checked_steps(record_at, fixed.steps)
    device = checked_device(device)
    started = time.perf_counter()
    with one_thread(device):
        records = _train_all(cells, steps, device, progress)
        made = how_made(time.perf_counter() - started, device.type, torch.get_num_threads())
    return _to_dataset(grid, steps, records, _attributes(fixed) | made)


def _fixed_settings(settings: TrainingSettings | None, changes: dict) -> TrainingSettings:
    clash = sorted(set(changes) & {"seed", *UNUSED})
    if clash:
        why = "pass the seeds as seeds=" if clash[0] == "seed" else "it has no effect here"
        raise RichbookError(f"{clash[0]}: not a setting of these networks; {why}")
    return settings_from(STANDARD if settings is None else settings, changes)


def _activation_axis(values: str | Sequence[str]) -> list[str]:
    values = as_list(values)
    if not values:
        raise RichbookError("activation: expected a name or a list of some, got []")
    distinct("activation", [str(value) for value in values])
    return values


def _batch_axis(values: int | Sequence[int]) -> list[int]:
    values = as_list(values)
    if not values or not all(is_whole(value) for value in values):
        raise RichbookError(f"batch_size: expected whole numbers of at least 1, got {values}")
    return distinct("batch_size", [int(value) for value in values])


def _attributes(settings: TrainingSettings) -> dict:
    """The data, and as JSON what all networks share: what ``alignment_sweep`` takes beside axes."""
    shared = settings.to_dict()
    for name in (*ALIGNMENT_AXES, *UNUSED):
        del shared[name]
    return {
        "data": settings.data,
        "settings": json.dumps(shared),
        "loss": "cross_entropy",
        "bias": 0,
    }


def _train_all(
    cells: list[TrainingSettings], steps: list[int], device: torch.device, progress: bool
) -> dict[str, np.ndarray]:
    """Records (K, steps, …) of all cells, a group at a time."""
    groups = _groups(cells, device)
    records = []
    total = len(groups) * cells[0].steps
    with tqdm(total=total, disable=not progress, desc=f"{len(cells)} networks", leave=False) as bar:
        for group in groups:
            run = _GroupRun([cells[place] for place in group], device)
            records.append(run.records(steps, bar.update))
    back = np.argsort(np.concatenate(groups))
    return {name: np.concatenate([part[name] for part in records])[back] for name in records[0]}


def _groups(cells: list[TrainingSettings], device: torch.device) -> list[np.ndarray]:
    """Places in ``cells``, as many as suit the device, of one activation and batch size each."""
    shape = load_data(cells[0].data).train_inputs.shape
    kinds = {}
    for place, cell in enumerate(cells):
        kinds.setdefault((cell.activation, cell.batch_size), []).append(place)
    groups = []
    for places in kinds.values():
        size = networks_at_once(cells[places[0]], shape, device)
        groups += np.array_split(np.array(places), -(-len(places) // size))
    return groups


class _GroupRun:
    """An ensemble of one activation and batch size in training."""

    def __init__(self, cells: list[TrainingSettings], device: torch.device) -> None:
        self.cells, self.device, self.data = cells, device, load_data(cells[0].data)
        self.inputs, self.labels = (
            values.to(device) for values in (self.data.train_inputs, self.data.train_labels)
        )
        self.networks = CrossEntropyEnsemble(cells, self.inputs.shape[1], self.data.classes, device)
        self.streams = {cell.seed: batches(cell, len(self.inputs)) for cell in cells}

    @torch.no_grad()
    def records(self, steps: list[int], advance: Callable[[int], object]) -> dict[str, np.ndarray]:
        """Train to the end; ``advance`` hears of every step. Arrays (K, steps, …)."""
        records, wanted = [], set(steps)
        if 0 in wanted:
            records.append(self._record())
        for step in range(1, self.cells[0].steps + 1):
            drawn = {seed: next(stream) for seed, stream in self.streams.items()}
            index = torch.stack([drawn[cell.seed] for cell in self.cells]).to(self.device)
            self.networks.descend(self.inputs[index], self.labels[index])
            if step in wanted:
                records.append(self._record())
            advance(1)
        return {
            name: np.stack([record[name].numpy() for record in records], axis=1).astype(np.float32)
            for name in records[0]
        }

    def _record(self) -> dict[str, torch.Tensor]:
        layers = [align(*layer) for layer in self.networks.layers(self.inputs, self.labels)]
        found = {
            name: torch.stack([layer[name] for layer in reversed(layers)], dim=1)
            for name in ALIGNMENTS
        }
        outputs = self.networks.outputs(self.inputs)  # (K, n, C)
        labels = self.labels.expand(len(outputs), -1)
        loss = torch.nn.functional.cross_entropy(outputs.mT, labels, reduction="none").mean(-1)
        tested = self.networks.outputs(self.data.test_inputs.to(self.device))
        found["train_loss"] = loss
        found["train_accuracy"] = _accuracy(outputs, self.labels)
        found["test_accuracy"] = _accuracy(tested, self.data.test_labels)
        known = loss.isfinite().cpu()
        return {name: _nan_unless(known, values.cpu()) for name, values in found.items()}


def _accuracy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (outputs.argmax(-1) == labels.to(outputs.device)).float().mean(-1)


def _nan_unless(known: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return torch.where(known.reshape(-1, *[1] * (values.ndim - 1)), values, torch.nan)


def _to_dataset(grid: dict, steps: list[int], records: dict, attrs: dict) -> xr.Dataset:
    shape = tuple(len(values) for values in grid.values())
    variables = {}
    for name, values in records.items():
        more = ("layer", "side", "relation") if name in ALIGNMENTS else ()
        values = values.reshape(*shape, *values.shape[1:])
        variables[name] = ((*ALIGNMENT_AXES, "step", *more), values)
    layers = variables["alignment"][1].shape[-3]
    coordinates = grid | {
        "step": steps, "layer": range(1, layers + 1), "side": list(SIDES),
        "relation": list(RELATIONS),
    }  # fmt: skip
    ordered = {name: variables[name] for name in (*ALIGNMENTS, *PROGRESS)}
    return xr.Dataset(ordered, coordinates, attrs=attrs)
