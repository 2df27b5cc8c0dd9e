"""How the recipes with pictures tell their results: rows of the table, and parts of sentences."""

from __future__ import annotations

import json
from functools import partial

import xarray as xr

from richbook.experiments.comparing import at_equal_loss
from richbook.experiments.recipe import DerivedRow, Row

#: Test accuracy and D_LR where the paper has none.
UNKNOWN = (None, None)


def end_rows(setting: str, at: dict, paper: tuple) -> list[Row]:
    """Test accuracy and D_LR at the end, beside the paper's, for the reproduction table."""
    return [
        Row(f"{setting}: test accuracy", "test_accuracy", at, paper[0]),
        Row(f"{setting}: D_LR", "d_lr", at, paper[1]),
    ]


def equal_loss_row(setting: str, at: dict, among: dict | None = None) -> DerivedRow:
    """D_LR where networks have the same training loss, as a row of the reproduction table.

    Args:
        setting: what was trained, in words.
        at: where along the recipe's axis.
        among: a choice along that axis; the loss is the lowest that all of these reach.
    """
    compute = partial(_at_equal_loss, at=at, among=among or {})
    return DerivedRow(f"{setting}: D_LR at equal training loss", compute)


def before_training_row(setting: str, at: dict) -> DerivedRow:
    """D_LR at step 0, as a row of the reproduction table."""
    return DerivedRow(f"{setting}: D_LR before training", partial(_before_training, at=at))


def _at_equal_loss(result: xr.Dataset, at: dict, among: dict) -> xr.DataArray:
    return at_equal_loss(result.sel(among), "d_lr").sel(at)


def _before_training(result: xr.Dataset, at: dict) -> xr.DataArray:
    return result.d_lr.sel(at).isel(step=0)


def what_was_trained(result: xr.Dataset) -> str:
    """How a finding begins: the data, and what makes a stand-in smaller than the real thing."""
    config, variant = json.loads(result.attrs["config"]), result.attrs["variant"]
    if variant == "real":
        return f"On {config['data']}, "
    side, count = config["average"], config["train_images"]
    pictures = f"{count or 'all'} pictures of {config['data']}"
    averaged = f" averaged over {side} × {side} pixels" if side > 1 else ""
    return f"In the {variant} ({pictures}{averaged}, first layer of {config['width']} channels), "


def spread(values: xr.DataArray, form: str) -> str:
    """Mean ± standard deviation over the seeds, as text.

    Example:
        >>> spread(xr.DataArray([0.1, 0.2, 0.3], dims="seed"), ".1%")
        '20.0% ± 10.0%'
    """
    middle, seeds = f"{float(values.mean()):{form}}", values.size
    return middle if seeds < 2 else f"{middle} ± {float(values.std(ddof=1)):{form}}"
