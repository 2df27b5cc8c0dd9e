"""The convolutional recipes: what they build, on which data, and what they conclude."""

import json
import pickle

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn
from torch.nn import functional

from richbook.experiments.recipes import (
    batch_norm,
    learning_rate,
    pictures,
    shuffled_labels,
    telling,
)
from richbook.experiments.reproducing import reproduce
from richbook.experiments.trial import Batches
from richbook.train.data import load_data
from richbook.train.vision import ResNet
from tests.experiments import tiny_pictures
from tests.experiments.test_pictures import SCALARS

RECIPES = {
    module.RECIPE.name: module.RECIPE for module in (learning_rate, batch_norm, shuffled_labels)
}
CPU = torch.device("cpu")


@pytest.mark.parametrize("name", RECIPES)
def test_quick_variant(name, tmp_path):
    recipe = RECIPES[name]
    result = reproduce(recipe, tmp_path / "r.nc", variant="quick", progress=False, device="cpu")
    assert result.sizes[recipe.axis] == len(recipe.config("real").values)
    assert set(result.data_vars) == SCALARS | set(pictures.CURVES) | {"seconds", "diverged_at"}
    assert (result.diverged_at == -1).all()
    assert np.isfinite(result.train_loss).all() and np.isfinite(result.d_lr).all()
    for row in recipe.rows:
        assert row.per_seed(result).dims == ("seed",), row.setting
    finding = recipe.finding(result)
    assert finding.same in ("yes", "partly", "no")
    assert finding.why.startswith("In the quick (all pictures of digits")


@pytest.mark.parametrize(
    ("name", "data"),
    [("learning-rate", "cifar100"), ("batch-norm", "cifar100"), ("shuffled-labels", "cifar10")],
)
@pytest.mark.parametrize("other", [False, True])
def test_real_variant_on_tiny_files(name, data, other, tmp_path, monkeypatch, device):
    """The recipe's own data set, or another; few channels and steps, everything else as it is."""
    tiny_pictures.fashion(tmp_path) if other else tiny_pictures.cifar(tmp_path, data)
    monkeypatch.setenv("RICHBOOK_DATA", str(tmp_path))
    recipe = RECIPES[name]
    assert recipe.config("real").data == data and recipe.config("real").width == 64
    changes = {"data": "fashion-mnist"} if other else {}
    if name == "batch-norm":
        changes["hidden"] = (120, 120)
    width = 16 if data == "cifar100" and not other else 8  # p has to be above C
    values = recipe.config("real").values[:: len(recipe.config("real").values) - 1]
    result = reproduce(
        recipe, tmp_path / "r.nc", variant="real", progress=False, device=device,
        width=width, steps=2, records=2, batch_size=64, seeds=1, values=values, **changes,
    )  # fmt: skip
    assert result.attrs["data"] == (changes.get("data") or data)
    assert result.train_loss.shape == (2, 1, 3)
    assert np.isfinite(result.train_loss).all()
    assert result.sizes["k"] == pictures.LONGEST_CURVE
    assert recipe.variant_for(torch.device("cuda")) == "real"
    assert recipe.variant_for(CPU) == "stand-in"


@pytest.mark.parametrize(
    ("value", "norms", "gain"), [("without", 0, 1 / 3), ("without, He", 0, 2), ("with", 10, 1 / 3)]
)
def test_batch_norm_builds_what_it_says(value, norms, gain):
    chosen = batch_norm.BatchNorm(data="digits", width=8, hidden=(16,), blocks=(2, 2, 2, 3))
    trial = batch_norm.build(chosen, value, 0, CPU)
    kinds = [type(layer) for layer in trial.model.modules()]
    assert kinds.count(nn.BatchNorm2d) + kinds.count(nn.BatchNorm1d) == norms
    assert kinds.count(nn.Conv2d) == 9 and kinds.count(nn.Linear) == 2
    wide = [m for m in trial.model.modules() if isinstance(m, nn.Conv2d)][-1].weight.detach()
    assert float(wide.var()) * wide[0].numel() == pytest.approx(gain, rel=0.1)
    rate = chosen.he_learning_rate if value == "without, He" else chosen.learning_rate
    assert trial.optimizer.param_groups[0]["lr"] == rate


def test_learning_rate_is_the_axis():
    trial = learning_rate.build(learning_rate.LearningRate(data="digits", width=2), 0.2, 0, CPU)
    assert trial.optimizer.param_groups[0]["lr"] == 0.2
    assert isinstance(trial.model, ResNet)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_shuffling_permutes_a_share(share):
    places = torch.arange(2000)  # every label once: shows where each one went
    mixed = shuffled_labels.shuffled(places, share, seed=1)
    assert torch.equal(mixed.sort().values, places)
    moved = set((mixed != places).nonzero()[:, 0].tolist())
    assert share * 2000 - 10 <= len(moved) <= share * 2000
    more = shuffled_labels.shuffled(places, min(1.0, share + 0.3), seed=1)
    kept = set((more != places).nonzero()[:, 0].tolist())
    assert len(moved - kept) < 10  # a few stay where they are by chance
    assert torch.equal(mixed, shuffled_labels.shuffled(places, share, seed=1))
    if share:
        assert not torch.equal(mixed, shuffled_labels.shuffled(places, share, seed=2))


def test_the_network_is_told_the_shuffled_labels():
    chosen = shuffled_labels.ShuffledLabels(data="digits", width=2, train_images=200)
    trial = shuffled_labels.build(chosen, 1.0, 3, CPU)
    data = load_data("digits")
    mixed = shuffled_labels.shuffled(data.train_labels[:200], 1.0, 3)
    images = data.train_inputs[:200].reshape(-1, 1, 8, 8)
    index = Batches(200, 128, 3)(1)
    expected = functional.cross_entropy(trial.model.train()(images[index]), mixed[index])
    assert float(trial.loss(1).detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    trial.model.eval()
    right = (trial.model(images).argmax(1) == mixed).double().mean()
    assert float(trial.record()["train_accuracy"]) == pytest.approx(float(right))


def result_of(axis, values, **variables):
    """A result of three seeds and two steps; variables are (value, step), the same in all seeds."""
    ready = {}
    for name, table in variables.items():
        ready[name] = ((axis, "seed", "step"), np.repeat(np.array(table, float)[:, None], 3, 1))
    settings = {"data": "cifar10", "average": 1, "train_images": None, "width": 64}
    attributes = {"axis": axis, "variant": "real", "config": json.dumps(settings)}
    coordinates = {axis: list(values), "seed": range(3), "step": [0, 10]}
    return xr.Dataset(ready, coordinates, attrs=attributes)


def test_learning_rate_finding():
    def judged(accuracy, d_lr):
        ends = [[0.1, value] for value in accuracy], [[0.7, value] for value in d_lr]
        losses = [[2.0, 0.1]] * 3
        result = result_of(
            "learning_rate", (0.1, 0.2, 0.3), test_accuracy=ends[0], d_lr=ends[1], train_loss=losses
        )
        return result, learning_rate.finding(result)

    assert judged([0.8, 0.9, 0.7], [0.2, 0.1, 0.3])[1].same == "yes"
    result, other = judged([0.8, 0.9, 0.7], [0.1, 0.2, 0.3])
    assert other.same == "no"
    assert "best rate is 0.2 (test 90.0% ± 0.0%, D_LR 0.200" in other.why
    assert "richest is 0.1 (test 80.0%" in other.why and "same in 0 of 3 seeds" in other.why
    result.test_accuracy[0, 1, 1] = 0.95  # in one seed the richest is better after all
    assert learning_rate.finding(result).same == "partly"


def test_batch_norm_finding():
    def judged(without, he, norm, moved=0.2):
        d_lr = [[0.5, without], [0.8, he], [0.6, norm]]
        losses, told = [[2.3, 2.3], [2.4, 0.1], [2.4, 0.01]], [[0.1, 0.1], [0.1, 1], [0.1, 1]]
        return batch_norm.finding(
            result_of(
                "network",
                batch_norm.BatchNorm.values,
                d_lr=d_lr,
                train_loss=losses,
                train_accuracy=told,
                s_init=[[moved] * 2, [moved] * 2, [0.9] * 2],
                inside_cosine=[[0.8, 0.8]] * 3,
            )  # fmt: skip
        )

    assert judged(0.5, 0.7, 0.1).same == "yes"
    assert judged(0.5, 0.7, 0.1, moved=0.8).same == "partly"
    assert judged(0.5, 0.1, 0.1).same == "partly"
    assert judged(np.nan, 0.7, 0.1).same == "yes"  # 0/0 is not rich
    assert judged(0.05, 0.1, 0.1).same == "no"
    why = judged(0.5, 0.7, 0.1).why
    assert "have the training loss 0.1, D_LR is 0.700 ± 0.000 without" in why
    assert "S_init, is 0.200 ± 0.000 without and 0.900 ± 0.000 with" in why


def test_shuffled_labels_finding():
    def judged(mixed_d_lr, mixed_test, told=1.0):
        result = result_of(
            "shuffled_fraction", (0.0, 1.0), d_lr=[[0.7, 0.05], [0.7, mixed_d_lr]],
            train_loss=[[2.3, 0.01]] * 2, train_accuracy=[[0.1, told]] * 2,
            test_accuracy=[[0.1, 0.9], [0.1, mixed_test]], nc1=[[5, 0.1]] * 2,
            inside_share=[[0.3, 0.9]] * 2, inside_cosine=[[0.5, 0.8]] * 2,
        )  # fmt: skip
        return shuffled_labels.finding(result)

    assert judged(0.05, 0.1).same == "yes"
    assert judged(0.5, 0.1).same == "partly"
    assert judged(0.05, 0.1, told=0.5).same == "partly"
    assert judged(0.05, 0.8).same == "no"


def test_equal_loss_row_takes_its_own_networks():
    """log loss falls by log 10 from step 0 to 10; the common loss of the last two is 0.1^0.5."""
    losses = [[1.0, 0.9], [1.0, 0.1**0.5], [1.0, 0.1]]
    result = result_of("network", "abc", d_lr=[[0.5, 0.4]] * 3, train_loss=losses)
    row = telling.equal_loss_row("c", {"network": "c"}, among={"network": ["b", "c"]})
    np.testing.assert_allclose(row.per_seed(result), 0.45, rtol=1e-6)
    row = telling.before_training_row("c", {"network": "c"})
    np.testing.assert_allclose(row.per_seed(result), 0.5)


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_can_be_sent_to_other_processes(name):
    assert pickle.loads(pickle.dumps(RECIPES[name])).rows[0] == RECIPES[name].rows[0]
