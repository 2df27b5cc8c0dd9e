"""Checks of chapter 0: a first D_LR."""

import numpy as np
import torch
import xarray as xr
from torch.nn.functional import one_hot

from richbook.course.checking import Wrong, as_tensor, exercise, require
from richbook.measure import d_lr


@exercise("0.1", "rich_features(labels)")
def rich_features(answer, generator):
    """Features of balanced classes must have D_LR = 0 with respect to the one-hot outputs."""
    for classes in (2, 4, 7):
        labels = torch.arange(20 * classes if classes != 2 else 40) % classes
        labels = labels[torch.randperm(len(labels), generator=generator)]
        features = as_tensor(answer(labels), "features")
        require(
            features.ndim == 2 and len(features) == len(labels),
            "expected features of shape (n, p), one row a sample; "
            f"yours have shape {tuple(features.shape)}",
        )
        require(
            features.std(0).max() > 0,
            "your features are the same for every sample: D_LR is 0/0 there",
        )
        value = float(d_lr(features, one_hot(labels).double()))
        require(
            value < 1e-9,
            f"with {classes} balanced classes your features have D_LR = {value:.3g}, not 0",
        )


@exercise("0.2", "richest(sweep)")
def richest(answer, generator):
    """The setting found must have the lowest seed mean of D_LR at the last step.

    A setting that lost a seed may count by the seeds left, or not at all.
    """
    for _ in range(3):
        grid = _random_sweep(generator)
        best = answer(grid)
        if not isinstance(best, dict):
            raise Wrong(f"expected a dict from hyperparameter to value, got {type(best).__name__}")
        axes = ("weight_decay", "target_scale", "learning_rate")
        missing = [axis for axis in axes if axis not in best]
        require(
            not missing, f"expected the keys {', '.join(axes)}; {', '.join(missing)} is missing"
        )
        mean = grid.d_lr.isel(step=-1).mean("seed")
        try:
            found = float(mean.sel({axis: float(best[axis]) for axis in axes}))
        except (KeyError, TypeError, ValueError):
            raise Wrong("expected values that lie on the axes of the sweep") from None
        lowest = float(mean.min())
        strict = float(grid.d_lr.isel(step=-1).mean("seed", skipna=False).min())
        require(
            found <= lowest + 1e-9 or abs(found - strict) <= 1e-9,
            f"your setting has a mean D_LR of {found:.3f} over seeds at the last step; "
            f"the lowest is {lowest:.3f}",
        )


def _random_sweep(generator: torch.Generator) -> xr.Dataset:
    axes = {
        "weight_decay": [0.0, 1e-3, 1e-2],
        "target_scale": [0.1, 1.0],
        "learning_rate": [1e-3, 1e-2],
        "seed": [0, 1, 2],
        "step": [1, 10, 100],
    }
    shape = tuple(len(values) for values in axes.values())
    values = torch.rand(shape, generator=generator, dtype=torch.float64).numpy()
    values[0, 0, 0, 0, :] = np.nan  # a run that diverged
    return xr.Dataset({"d_lr": (tuple(axes), values)}, coords=axes)
