"""Pack the result of a recipe into the few bytes that a page carries.

Scalars, of which there is one a network and step, keep their float32. Curves over the
eigenfunctions are most of the data: they keep at most 40 points, spaced evenly on a log axis, and
one byte a number.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from richbook.measure.errors import RichbookError
from richbook.show.packing import pack
from richbook.show.result_choice import Shown, result_axis
from richbook.show.result_words import (
    describe_ends,
    describe_gaps,
    describe_moment,
    is_numeric,
    value_labels,
    words_of,
)
from richbook.show.selection import band

#: The spectrum is drawn over this many decades; smaller eigenvalues are left out.
DECADES = 6
SPECTRUM = "relative_eigenvalue"
#: Points of a curve that are kept: more are not seen in a picture of this size.
MOST_POINTS = 40


def spaced_points(count: int, most: int = MOST_POINTS) -> np.ndarray:
    """At most `most` positions out of `count`, first and last among them, even on a log axis.

    Example:
        >>> spaced_points(100, 7).tolist()
        [0, 1, 4, 9, 21, 45, 99]
    """
    if count <= most:
        return np.arange(count)
    return np.unique(np.rint(np.geomspace(1, count, most)).astype(int)) - 1


def pack_result(result: xr.Dataset, shown: Shown) -> tuple[bytes, dict]:
    """Pack what the panels show: mean, smallest and largest seed of each number.

    Args:
        result: what `load_result` or `reproduce` returned.
        shown: from `choose`.

    Returns:
        The bytes, and how to read them. ``scalars`` gives the offset of float32 triples for each
        setting and step; ``fields`` gives offset, bits and length of triples for each setting,
        step and kept eigenfunction. Curves have 8 bits, errors below 0.002; so has the spectrum,
        as 1 + log10(ρ_k/ρ_1)/6, nan below 1e-6, so that its errors are below 3 %.

    Raises:
        RichbookError: a curve leaves the range from 0 to 1.
    """
    axis = result_axis(result)
    names = dict.fromkeys((shown.measure, *shown.accuracies, *shown.numbers))
    floor = "isotropic_d_lr" if _draws_floor(result, shown, axis) else None
    scalars = {name: _triples(result[name], axis) for name in [*names, *([floor] if floor else [])]}
    data, offsets, fields = b"", {}, {}
    for name, triples in scalars.items():
        offsets[name] = len(data)
        data += triples.astype("<f4").tobytes()
    points = spaced_points(result.sizes["k"]) if "k" in result.sizes else np.arange(0)
    spectrum = [SPECTRUM] if SPECTRUM in result and "k" in result[SPECTRUM].dims else []
    for name in [*spectrum, *shown.curves]:
        triples = _triples(result[name].isel(k=points), axis)
        fields[name] = {"offset": len(data), "bits": 8, "length": len(points)}
        data += pack(_decades(triples) if name == SPECTRUM else _fraction(triples, name), 8)
    return data, {
        "scalars": offsets,
        "fields": fields,
        "k": [int(point) + 1 for point in points],
        "width": result.sizes.get("k", 0),
        "ranks": _ranks(result, axis),
        "steps": [int(step) for step in result["step"].values],
        "seeds": result.sizes["seed"],
        "axis": {
            "words": words_of(axis),
            "labels": value_labels(result[axis].values),
            "ordered": is_numeric(result[axis].values),
        },
        "measure": _entry(shown.measure),
        "log": _is_log(scalars[shown.measure], shown.measure),
        "floor": floor,
        "accuracies": [_entry(name) for name in shown.accuracies],
        "curves": [_entry(name) for name in shown.curves],
        "numbers": [_entry(name) for name in shown.numbers],
        "tested": shown.tested,
        **_sentences(result, shown, axis, floor),
    }


def _draws_floor(result: xr.Dataset, shown: Shown, axis: str) -> bool:
    """Whether the isotropic floor belongs under the measure."""
    return (
        shown.measure.startswith("d_lr")
        and "isotropic_d_lr" in result
        and (set(result["isotropic_d_lr"].dims) == {axis, "seed", "step"})
    )


def _ranks(result: xr.Dataset, axis: str) -> list[int] | None:
    """The outputs' rank r for every setting and step, 0 where unknown, from the floor 1 − √(r/p).

    Without p there is none: it is the number of eigenfunctions only if these are all there are,
    which is so if the outputs are used up at the last one.
    """
    if not {"utilization", "isotropic_d_lr"} <= set(result) or "k" not in result.sizes:
        return None
    last = result["utilization"].isel(k=-1).values
    if not np.isfinite(last).any() or np.nanmin(last) < 1 - 1e-4:
        return None
    floors = band(result["isotropic_d_lr"].transpose(axis, "step", "seed"))[0].ravel()
    return np.rint(np.nan_to_num(result.sizes["k"] * (1 - floors) ** 2)).astype(int).tolist()


def _entry(name: str) -> dict:
    return {"name": name, "words": words_of(name)}


def _is_log(triples: np.ndarray, measure: str) -> bool:
    """Whether a measure other than D_LR spans so much that only a log axis shows it."""
    known = triples[np.isfinite(triples)]
    if measure.startswith("d_lr") or not len(known) or known.min() <= 0:
        return False
    return bool(known.max() > 50 * known.min())


def _sentences(result: xr.Dataset, shown: Shown, axis: str, floor: str | None) -> dict:
    """What the view says in words: for every setting and step, and once for all."""
    values = result[shown.measure].transpose(axis, "seed", "step")
    lost = np.full(values.shape[:2], -1)
    if "diverged_at" in result:
        lost = result["diverged_at"].transpose(axis, "seed").values
    shortest = [n for n in ("train_accuracy", shown.tested) if n in shown.accuracies]
    means = {name: band(result[name].transpose(axis, "step", "seed"))[0] for name in shortest}
    floors = band(result[floor].transpose(axis, "step", "seed"))[0] if floor else None
    readouts = [
        describe_moment(
            shown.measure,
            values.values[i, :, t],
            {name: mean[i, t] for name, mean in means.items()},
            int(((lost[i] >= 0) & (lost[i] <= step)).sum()),
            float("nan") if floors is None else floors[i, t],
        )
        for i in range(values.shape[0])
        for t, step in enumerate(values["step"].values)
    ]
    ends = ""
    if shown.tested and shown.measure.startswith("d_lr"):
        last = result.isel(step=-1)
        ends = describe_ends(
            value_labels(result[axis].values),
            last[shown.measure].transpose(axis, "seed"),
            last[shown.tested].transpose(axis, "seed"),
        )
    gaps = describe_gaps(shown.measure, values, int((lost >= 0).sum()))
    return {"readouts": readouts, "ends": ends, "gaps": gaps}


def _triples(data: xr.DataArray, axis: str) -> np.ndarray:
    """Mean, smallest and largest over seeds as the last dimension, after setting, step[, k]."""
    more = ("k",) if "k" in data.dims else ()
    return np.stack(band(data.transpose(axis, "step", *more, "seed")), axis=-1)


def _decades(triples: np.ndarray) -> np.ndarray:
    """Place relative eigenvalues on a log axis from 0 (1e-6) to 1; below it the mean is nan."""
    least = 10.0**-DECADES
    placed = 1 + np.log10(np.clip(triples, least, 1)) / DECADES
    return np.where((triples[..., :1] >= least) & np.isfinite(triples), placed, np.nan)


def _fraction(triples: np.ndarray, name: str) -> np.ndarray:
    known = triples[np.isfinite(triples)]
    if len(known) and not (known.min() > -1e-3 and known.max() < 1 + 1e-3):
        raise RichbookError(
            f"curves={name!r} must lie between 0 and 1; it goes from "
            f"{known.min():.3g} to {known.max():.3g}"
        )
    return triples
