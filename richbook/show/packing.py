"""Pack a sweep into few bytes for a page, and say its cells in words.

A page holds the whole sweep, since it has no kernel to ask. Numbers that a reader sees to two or
three digits need no more than one or two bytes each: `pack` rounds them to whole steps between a
lowest and a highest value, and keeps one code for nan.
"""

from collections.abc import Sequence

import numpy as np
import xarray as xr

from richbook.measure.errors import RichbookError
from richbook.show.selection import HYPERPARAMETERS, band, get_variable, listed

#: Points of a utilization curve that are kept: more are not seen in a picture of this size.
MOST_POINTS = 64


def pack(values: np.ndarray, bits: int) -> bytes:
    """Round numbers in [0, 1] to `bits` bits; the largest code stands for nan.

    Args:
        values: any shape, each in [0, 1] (clipped to it) or nan.
        bits: 8 or 16.

    Returns:
        The codes, row by row, little endian. Reading one back is wrong by at most `pack_error`.

    Raises:
        RichbookError: if `bits` is neither 8 nor 16.

    Example:
        >>> unpack(pack(np.array([0.0, 0.5, np.nan]), 8), 8).tolist()
        [0.0, 0.5, nan]
    """
    kind, missing = _codes(bits)
    values = np.asarray(values, dtype=float)
    codes = np.rint(np.clip(np.nan_to_num(values), 0, 1) * (missing - 1))
    return np.where(np.isnan(values), missing, codes).astype(kind).tobytes()


def unpack(data: bytes, bits: int) -> np.ndarray:
    """Read back what `pack` wrote, as one flat array."""
    kind, missing = _codes(bits)
    codes = np.frombuffer(data, dtype=kind)
    return np.where(codes == missing, np.nan, codes / (missing - 1))


def pack_error(bits: int) -> float:
    """Return the largest error of a number that was packed: half a step.

    Example:
        >>> round(pack_error(8), 4)
        0.002
    """
    return 0.5 / (_codes(bits)[1] - 1)


def _codes(bits: int) -> tuple[str, int]:
    if bits not in (8, 16):
        raise RichbookError(f"bits must be 8 or 16, not {bits!r}")
    return ("<u1", 255) if bits == 8 else ("<u2", 65535)


def check_sweep(sweep: xr.Dataset) -> None:
    """Raise a RichbookError unless `sweep` has the axes and variables that the sliders show."""
    for name in ("d_lr", "train_accuracy", "test_accuracy", "utilization", "diverged_at"):
        get_variable(sweep, name, "sweep variable")
    missing = [d for d in (*HYPERPARAMETERS, "seed", "step") if d not in sweep["d_lr"].dims]
    if missing:
        raise RichbookError(
            f"sweep lacks the axes {listed(missing)}; it has: {listed(sweep['d_lr'].dims)}"
        )


def pack_sweep(sweep: xr.Dataset) -> tuple[bytes, dict]:
    """Pack the curves of every cell of a sweep: mean, smallest and largest seed of each.

    Args:
        sweep: what `sweep` returned.

    Returns:
        The bytes, and a layout that says how to read them: for each field its offset, its bits,
        and how many triples (mean, smallest, largest) a cell has. Cells are in the order weight
        decay, target scale, learning rate. D_LR has 16 bits (error below 1e-5), accuracies and
        utilization have 8 (error below 0.002).
    """
    check_sweep(sweep)
    points = thinned(sweep.sizes["k"])
    last = sweep["utilization"].isel(step=-1, k=points)
    fields = {
        "d_lr": (16, _triples(sweep["d_lr"], "step")),
        "train_accuracy": (8, _triples(sweep["train_accuracy"], "step")),
        "test_accuracy": (8, _triples(sweep["test_accuracy"], "step")),
        "utilization": (8, _triples(last, "k")),
    }
    data, layout = b"", {}
    for name, (bits, triples) in fields.items():
        layout[name] = {"offset": len(data), "bits": bits, "length": triples.shape[-2]}
        data += pack(triples, bits)
    return data, {
        "fields": layout,
        "steps": [int(step) for step in sweep["step"].values],
        "k": [int(point) + 1 for point in points],
        "diverged": (sweep["diverged_at"] >= 0)
        .sum("seed")
        .transpose(*HYPERPARAMETERS)
        .values.ravel()
        .tolist(),
        "seeds": sweep.sizes["seed"],
        "floor": sweep.attrs.get("isotropic_d_lr"),
        "rank": output_rank(sweep),
    }


def thinned(count: int, most: int = MOST_POINTS) -> np.ndarray:
    """Return at most `most` evenly spaced positions out of `count`, first and last among them."""
    return np.unique(np.rint(np.linspace(0, count - 1, min(count, most))).astype(int))


def _triples(data: xr.DataArray, along: str) -> np.ndarray:
    """Return mean, smallest and largest over seeds as shape (cells..., length of `along`, 3)."""
    ordered = data.transpose(*HYPERPARAMETERS, along, "seed")
    return np.stack(band(ordered), axis=-1)


def output_rank(sweep: xr.Dataset) -> int | None:
    """Return the rank of the outputs that the isotropic floor was computed for, or None.

    The floor is 1 - sqrt(rank / p), and p is the number of eigenfunctions.

    Example:
        >>> output_rank(xr.Dataset(coords={"k": range(64)}, attrs={"isotropic_d_lr": 0.6046875}))
        10
    """
    floor = sweep.attrs.get("isotropic_d_lr")
    if floor is None or not np.isfinite(floor) or "k" not in sweep.sizes:
        return None
    return round(sweep.sizes["k"] * (1 - float(floor)) ** 2)


def richness_word(d_lr: float, floor: float | None) -> str:
    """Name a D_LR by how far it lies below the floor, the value of a kernel without structure.

    The borders, a quarter and six tenths of the floor, are a convention of this book. A floor of
    0, which features have that are no more than the outputs, separates nothing: no word then.

    Example:
        >>> [richness_word(d, 0.6) for d in (0.06, 0.25, 0.45, 0.7)]
        ['rich', 'between rich and lazy', 'lazy', 'lazier than a kernel without structure']
    """
    if not floor or not np.isfinite(floor) or not np.isfinite(d_lr):
        return ""
    if d_lr < 0.25 * floor:
        return "rich"
    if d_lr < 0.6 * floor:
        return "between rich and lazy"
    return "lazy" if d_lr < floor else "lazier than a kernel without structure"


def verdict(d_lr: float, test_accuracy: float, floor: float | None) -> str:
    """Name a network rich or lazy, or say that it has hardly learned anything that could be either.

    Example:
        >>> verdict(0.0, test_accuracy=0.1, floor=0.6)
        'hardly trained'
    """
    return "hardly trained" if test_accuracy < 0.3 else richness_word(d_lr, floor)


def describe(
    d_lr: Sequence[float],
    test_accuracy: Sequence[float],
    diverged_at: Sequence[int],
    floor: float | None = None,
) -> str:
    """Say in one line how the networks of one cell ended.

    Args:
        d_lr: at the end of training, one for each seed, nan if the seed diverged.
        test_accuracy: likewise.
        diverged_at: the step at which each seed diverged, -1 if it did not.
        floor: the isotropic D_LR, without which no word says whether that is rich.

    Returns:
        D_LR and its range, test accuracy, a word for it, and how many seeds diverged and when.

    Example:
        >>> describe([0.058, 0.066, 0.062], [0.97, 0.97, 0.96], [-1, -1, -1], floor=0.6)
        'D_LR 0.062 (0.058–0.066 over 3 seeds) · test accuracy 0.97 · rich'
        >>> describe([float("nan")] * 2, [float("nan")] * 2, [120, 150])
        'all 2 seeds diverged, the first at step 120'
    """
    d_lr, accuracy = np.asarray(d_lr, dtype=float), np.asarray(test_accuracy, dtype=float)
    lost = [int(step) for step in diverged_at if step >= 0]
    seeds, kept = len(diverged_at), len(diverged_at) - len(lost)
    if not kept:
        return f"{_all_seeds(seeds)} diverged, {_when(lost)}"
    defined = d_lr[np.isfinite(d_lr)]
    parts = [_measured(defined, kept), f"test accuracy {np.nanmean(accuracy):.2f}"]
    if len(defined):
        parts.append(verdict(defined.mean(), np.nanmean(accuracy), floor))
    if lost:
        parts.append(f"{len(lost)} of {seeds} seeds diverged, {_when(lost)}")
    return " · ".join(part for part in parts if part)


def _measured(defined: np.ndarray, kept: int) -> str:
    """Write D_LR with its range over the seeds that have one."""
    if not len(defined):
        return "D_LR undefined (features or outputs are constant)"
    note = "" if len(defined) == kept else f", undefined in {kept - len(defined)}"
    if len(defined) == 1:
        return f"D_LR {defined[0]:.3f} (one seed{note})"
    return (
        f"D_LR {defined.mean():.3f} ({defined.min():.3f}–{defined.max():.3f} over "
        f"{len(defined)} seeds{note})"
    )


def _all_seeds(seeds: int) -> str:
    return "the only seed" if seeds == 1 else f"all {seeds} seeds"


def _when(steps: list[int]) -> str:
    return f"at step {steps[0]}" if len(set(steps)) == 1 else f"the first at step {min(steps)}"


def describe_sweep(sweep: xr.Dataset) -> list[str]:
    """Describe every cell of a sweep, in the order weight decay, target scale, learning rate."""
    check_sweep(sweep)
    last = sweep.isel(step=-1)
    rows = [
        last[name].transpose(*HYPERPARAMETERS, "seed").values.reshape(-1, sweep.sizes["seed"])
        for name in ("d_lr", "test_accuracy", "diverged_at")
    ]
    floor = sweep.attrs.get("isotropic_d_lr")
    return [describe(*cell, floor=floor) for cell in zip(*rows, strict=True)]
