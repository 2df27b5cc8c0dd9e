"""Compare networks fairly: by rank, and where they have fitted their training data equally well."""

from __future__ import annotations

import numpy as np
import xarray as xr
from scipy import stats


def rank_correlation(result: xr.Dataset, variable: str) -> xr.DataArray:
    """Spearman's correlation of a variable at the last step with the recipe's axis: (seed,).

    Values along the axis count in their order; those at which a seed has none are left out.

    Example:
        >>> from richbook.experiments import load_result
        >>> rank_correlation(load_result("weight-decay"), "d_lr").values.round(2).tolist()
        [-1.0, -1.0, -1.0]
    """
    axis = result.attrs["axis"]
    ends = result[variable].isel(step=-1).transpose("seed", axis).values
    found = []
    for row in ends:
        known = np.isfinite(row)
        found.append(float(stats.spearmanr(np.flatnonzero(known), row[known]).statistic))
    return xr.DataArray(found, dims="seed", name=variable)


def common_loss(result: xr.Dataset, loss: str = "train_loss") -> float:
    """The smallest training loss that every network reached at some recorded step."""
    return float(result[loss].min("step").max())


def at_equal_loss(
    result: xr.Dataset, variable: str, loss: str = "train_loss", level: float | None = None
) -> xr.DataArray:
    """A variable where each network's training loss first falls to a common level: (axis, seed).

    D_LR falls while a head is being fitted even if no feature moves, so networks that have fitted
    their data to a different degree should not be compared at the same step. Between two recorded
    steps the variable is interpolated in the logarithm of the loss.

    Args:
        result: of a recipe.
        variable: a recorded scalar.
        loss: the recorded training loss.
        level: the loss to compare at, else the smallest that all of them reached.

    Returns:
        nan for a network that never reached the level.

    Example:
        >>> from richbook.experiments import load_result
        >>> result = load_result("target-scale")
        >>> at_equal_loss(result, "d_lr", "relative_loss").mean("seed").values.round(2).tolist()
        [0.4, 0.4, 0.38, 0.33, 0.18]
    """
    level = common_loss(result, loss) if level is None else level
    order = (result.attrs["axis"], "seed", "step")
    losses = result[loss].transpose(*order).values
    values = result[variable].transpose(*order).values
    found = np.full(losses.shape[:2], np.nan)
    for place in np.ndindex(found.shape):
        found[place] = _first_crossing(losses[place], values[place], level)
    return xr.DataArray(found, dims=order[:2], coords={order[0]: result[order[0]]}, name=variable)


def _first_crossing(losses: np.ndarray, values: np.ndarray, level: float) -> float:
    reached = np.flatnonzero(losses <= level)
    if not len(reached):
        return np.nan
    after = int(reached[0])
    if after == 0 or not np.isfinite(values[after - 1]):
        return float(values[after])
    above, below = np.log(losses[after - 1]), np.log(max(losses[after], np.finfo(float).tiny))
    share = (above - np.log(level)) / (above - below)
    return float(values[after - 1] + share * (values[after] - values[after - 1]))
