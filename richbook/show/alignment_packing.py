"""Pack a sweep of alignments into the few bytes that a page carries."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xarray as xr

from richbook.measure.errors import RichbookError
from richbook.show.packing import pack
from richbook.show.selection import band, get_variable, index_of, listed

#: What a reader chooses with sliders, and what from lists.
SLIDERS, LISTS = ("weight_decay", "learning_rate", "batch_size"), ("activation", "layer")
CHOICES = (*SLIDERS, *LISTS)
NETWORK = ("activation", *SLIDERS)
#: The six relations of a layer, in this order.
SIX = ("side", "relation")
VARIABLES = ("alignment", "null_mean", "null_std", "train_accuracy", "test_accuracy")
#: Where the sliders start, or the nearest there is: a tanh layer in which all six relations show.
ALIGNED = {
    "weight_decay": 3e-2, "learning_rate": 0.05, "batch_size": 16, "activation": "tanh", "layer": 3,
}  # fmt: skip


def check_alignment_sweep(sweep: xr.Dataset) -> None:
    """Raise a RichbookError unless `sweep` has the axes and variables that the sliders show."""
    for name in VARIABLES:
        get_variable(sweep, name, "sweep variable")
    found = sweep["alignment"].dims
    missing = [d for d in (*NETWORK, "seed", "step", "layer", *SIX) if d not in found]
    if missing:
        raise RichbookError(f"sweep lacks the axes {listed(missing)}; it has: {listed(found)}")
    sides = [str(value) for axis in SIX for value in sweep[axis].values]
    if sides != ["forward", "backward", "RGA", "RWA", "GWA"]:
        raise RichbookError(
            f"sweep: expected both sides and all three relations, got {listed(sides)}"
        )


def pack_alignment_sweep(sweep: xr.Dataset) -> tuple[bytes, dict]:
    """Pack the curves of every layer of every network: mean, smallest and largest seed.

    Args:
        sweep: what `alignment_sweep` returned.

    Returns:
        The bytes, and a layout that says how to read them: for each field its offset, its bits, how
        many places a cell has, and how many numbers a place. Networks are in the order activation,
        weight decay, learning rate, batch size. Each has a cell for every layer, side and relation
        of ``alignment`` (triples over the steps) and ``null`` (one number, the mean over seeds),
        and one for either accuracy. All have 8 bits: errors are below 0.002.
    """
    check_alignment_sweep(sweep)
    fields = {
        "alignment": _triples(sweep["alignment"].clip(0, 1)),
        "null": band(_ordered(sweep["null_mean"]))[0][..., None],
        "train_accuracy": _triples(sweep["train_accuracy"]),
        "test_accuracy": _triples(sweep["test_accuracy"]),
    }
    data, layout = b"", {}
    for name, values in fields.items():
        places, numbers = values.shape[-2:]
        layout[name] = {"offset": len(data), "bits": 8, "length": places, "per": numbers}
        data += pack(values, 8)
    return data, {
        "fields": layout,
        "steps": [int(step) for step in sweep["step"].values],
        "seeds": sweep.sizes["seed"],
        "chance": chance_width(sweep).round(5).tolist(),
    }


def chance_width(sweep: xr.Dataset) -> np.ndarray:
    """How wide chance is at most: standard deviation = width · (1 − mean), by layer and side.

    With random eigenvectors the variance is 2 (1 − a)(1 − b)/((d − 1)(d + 2)) and the mean √(ab),
    and (1 − a)(1 − b) is at most (1 − √(ab))². So the width is at most √(2/((d − 1)(d + 2))); a
    page carries what the sweep has, one number for a layer's side.
    """
    ratio = sweep["null_std"] / (1 - sweep["null_mean"]).clip(min=1e-6)
    others = [d for d in ratio.dims if d not in ("layer", "side")]
    return ratio.max(others, skipna=True).transpose("layer", "side").fillna(0).values.astype(float)


def _ordered(data: xr.DataArray) -> xr.DataArray:
    more = ("layer", *SIX) if "layer" in data.dims else ()
    return data.transpose(*NETWORK, *more, "step", "seed")


def _triples(data: xr.DataArray) -> np.ndarray:
    """Mean, smallest and largest over seeds, with steps and these three as the last dimensions."""
    return np.stack(band(_ordered(data)), axis=-1)


def start_of(sweep: xr.Dataset, start: Mapping[str, float | str] | None) -> dict[str, int]:
    """Return each choice's position: exactly where `start` says, else near the standard."""
    if start is not None and not isinstance(start, Mapping):
        raise RichbookError(f"start must be a dict from choice to value, not {start!r}")
    start = dict(start or {})
    unknown = sorted(set(start) - set(CHOICES))
    if unknown:
        raise RichbookError(
            f"start has no use for {listed(unknown)}; it may have: {listed(CHOICES)}"
        )
    return {name: _position(sweep, name, start.get(name)) for name in CHOICES}


def _position(sweep: xr.Dataset, name: str, value: float | str | None) -> int:
    values = sweep[name].values.tolist()
    if name == "activation":
        wanted = ALIGNED[name] if value is None else value
        if wanted in values:
            return values.index(wanted)
        if value is None:
            return 0
        raise RichbookError(f"{name}={value!r} is not in the data; it has: {listed(values)}")
    if value is not None:
        return index_of(sweep, name, value)
    return int(np.argmin(np.abs(np.log10(np.array(values) + 1e-9) - np.log10(ALIGNED[name]))))
