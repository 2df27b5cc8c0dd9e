"""The recorded results of the convolutional recipes: whose they are, and what they say."""

import dataclasses
import json

import numpy as np
import pytest

from richbook.experiments.comparing import at_equal_loss
from richbook.experiments.digits_sweep import RECORDED
from richbook.experiments.recipes import batch_norm, learning_rate, shuffled_labels
from richbook.experiments.results import load_result

RECIPES = {
    module.RECIPE.name: module.RECIPE for module in (learning_rate, batch_norm, shuffled_labels)
}


@pytest.mark.parametrize("name", RECIPES)
def test_recorded_result_is_of_the_stand_in(name):
    result, recipe = load_result(name), RECIPES[name]
    config = dataclasses.asdict(recipe.config("stand-in"))
    assert json.loads(result.attrs["config"]) == json.loads(json.dumps(config))
    assert result.attrs["variant"] == "stand-in" and result.sizes["seed"] == 3
    assert result.step.values.tolist() == recipe.config("stand-in").record_at()
    assert (RECORDED / f"{name}.nc").stat().st_size < 400_000
    assert (result.diverged_at == -1).all() and np.isfinite(result.d_lr).all()
    assert recipe.finding(result).why.startswith("In the stand-in (")
    for row in recipe.rows:
        assert np.isfinite(row.per_seed(result)).all(), row.setting


def test_recorded_learning_rates():
    """Both ends of the range are lazier and worse, in every seed; the best is no clear case."""
    end = load_result("learning-rate").isel(step=-1)
    middle = end.sel(learning_rate=[0.02, 0.05])
    for rate in (0.001, 0.2):
        there = end.sel(learning_rate=rate)
        assert (there.d_lr > 1.8 * middle.d_lr.max()).all()
        assert there.test_accuracy.mean() < middle.test_accuracy.mean()
    assert learning_rate.finding(load_result("learning-rate")).same == "partly"


def test_recorded_shuffled_labels():
    end = load_result("shuffled-labels").isel(step=-1)
    assert (end.train_accuracy >= shuffled_labels.LEARNED).all()
    true, mixed = end.isel(shuffled_fraction=0), end.isel(shuffled_fraction=-1)
    assert (mixed.d_lr < true.d_lr).all() and (mixed.nc1 > true.nc1).all()
    accuracy = end.test_accuracy.mean("seed")
    assert (accuracy.diff("shuffled_fraction") < -0.1).all() and accuracy[-1] < 0.15
    assert shuffled_labels.finding(load_result("shuffled-labels")).same == "yes"


def test_recorded_batch_norm():
    result = load_result("batch-norm")
    end = result.isel(step=-1)
    assert (end.train_accuracy.sel(network="without") < 0.2).all()
    assert (end.train_accuracy.sel(network=["without, He", "with"]) > 0.9).all()
    there = at_equal_loss(result.sel(batch_norm.TRAINED), "d_lr")
    assert (there.sel(network="without, He") > 1.5 * there.sel(network="with")).all()
    moved = end.s_init.sel(network=["without, He", "with"])
    assert (moved > 0.7).all() and (end.s_init.sel(network="without") < 0.2).all()
    assert batch_norm.finding(result).same == "partly"
