"""The recipes on digits and MNIST: what they feed and what they train, and their quick variants."""

import json

import numpy as np
import pytest
import torch

from richbook.cli import main
from richbook.experiments import RECIPES, Batches, load_result, reproduce
from richbook.experiments.recipes import feature_quality, label_in_pixels, perceptrons
from richbook.train import load_data

CPU = torch.device("cpu")


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_the_quick_variant_runs(name, tmp_path, mnist_folder):
    result = reproduce(name, tmp_path / "quick.nc", variant="quick", progress=False)
    assert np.isfinite(result.d_lr.isel(step=-1)).all()
    assert RECIPES[name].finding(result).same in ("yes", "partly", "no")
    for row in RECIPES[name].rows:
        assert row.per_seed(result).shape == (result.sizes["seed"],), row.setting
    assert load_result(tmp_path / "quick.nc").attrs["variant"] == "quick"


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_says_what_it_asks(name):
    recipe = RECIPES[name]
    assert recipe.name == name and recipe.question.endswith("?")
    assert "quick" in recipe.variants
    assert "full" in recipe.variants or {"stand-in", "real"} <= set(recipe.variants)
    for config in recipe.variants.values():
        json.dumps(config.replace().__dict__)


def test_batches_of_an_epoch_hold_every_sample_once():
    batches = Batches(count=10, size=3, seed=1)
    for epoch in range(2):
        seen = torch.cat([batches(1 + 3 * epoch + step) for step in range(3)])
        assert len(set(seen.tolist())) == 9
    assert not torch.equal(batches(1), batches(4)), "another epoch has another order"
    assert not torch.equal(batches(1), Batches(10, 3, 2)(1)), "another seed has another order"


def test_the_code_is_in_the_first_pixels_and_nowhere_else():
    images, codes = torch.rand(6, 20), torch.tensor([0, 3, 2, 4, 1, 3])
    coded = label_in_pixels.with_code(images, codes, 5)
    assert torch.equal(coded[:, :5], torch.eye(5)[codes])
    assert torch.equal(coded[:, 5:], images[:, 5:])
    empty = label_in_pixels.with_code(images, None, 5)
    assert empty[:, :5].eq(0).all() and torch.equal(empty[:, 5:], images[:, 5:])


def test_only_what_is_said_learns(mnist_folder):
    config = label_in_pixels.RECIPE.config("quick")
    for value, moves in (("last layer", False), ("all layers", True)):
        trial = label_in_pixels.build(config, value, 0, CPU)
        before = {name: each.clone() for name, each in trial.model.state_dict().items()}
        list(trial.advance(3))
        moved = {
            name: not torch.equal(each, before[name])
            for name, each in trial.model.state_dict().items()
        }
        assert moved["head.weight"] and moved["hidden.0.weight"] == moves, value


def test_weights_start_with_the_spread_of_pytorchs():
    config = label_in_pixels.LabelInPixels(width=400, depth=2)
    ours = label_in_pixels.network_like_pytorchs(300, 10, config, seed=0)
    theirs = [torch.nn.Linear(300, 400), torch.nn.Linear(400, 400), torch.nn.Linear(400, 10)]
    for own, other in zip([*ours.hidden, ours.head], theirs, strict=True):
        assert abs(own.weight.std() / other.weight.std() - 1) < 0.05


def test_a_recipe_on_digits_trains_like_a_plain_loop():
    config = perceptrons.Perceptrons(values=(1.0,), steps=40, width=16, weight_decay=0.01)
    trial = perceptrons.build(config, 0, CPU)
    plain = perceptrons.build(config, 0, CPU).model  # the same initial weights
    list(trial.advance(40))
    data, batches = load_data("digits"), Batches(1000, 100, 0)
    targets = torch.eye(10)[data.train_labels] - 0.1
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.01, momentum=0.9, weight_decay=0.01)
    for step in range(1, 41):
        index = batches(step)
        loss = ((plain(data.train_inputs[index]) - targets[index]) ** 2).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for own, other in zip(trial.model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(own, other)
    record = trial.record()
    outputs = plain(data.train_inputs)
    expected = ((outputs - targets) ** 2).sum() / (targets**2).sum()
    assert float(record["relative_loss"]) == pytest.approx(expected.item(), rel=1e-5)


def test_quality_of_groups_is_the_mean_share():
    draw = np.random.default_rng(0)
    each = draw.random(12)
    each *= 2 / each.sum()  # r = 2
    strength = np.sort(draw.random(12))[::-1].copy()
    found = feature_quality.strength_and_quality(
        torch.tensor(strength), torch.tensor(each.cumsum() / 2), rank=2
    )
    assert found["quality_strong"] == pytest.approx(each[:2].mean())
    assert found["quality_middle"] == pytest.approx(each[2:6].mean())
    assert found["quality_weak"] == pytest.approx(each[6:].mean())
    ranks = each.argsort().argsort()
    expected = np.corrcoef(ranks, np.arange(12)[::-1])[0, 1]
    assert found["strength_quality"] == pytest.approx(expected)


def test_the_command_lists_and_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "--list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in RECIPES)
    assert main(["reproduce"]) == 0
    assert capsys.readouterr().out == listed
    assert main(["reproduce", "target-scale", "--quick", "--seeds", "1", "--workers", "1"]) == 0
    printed = capsys.readouterr().out
    assert "rank correlation with D_LR" in printed and "target-scale.nc" in printed
    assert load_result("target-scale.nc").sizes["seed"] == 1


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nothing"], "recipe: expected one of label-in-pixels"),
        (["target-scale", "--seeds", "0", "--quick"], "seeds: expected a whole number"),
        (["target-scale", "--quick", "--data", "nothing"], "name: expected one of digits"),
        (["target-scale", "--quick", "--device", "nowhere"], "device: expected cpu"),
        (["target-scale", "--variant", "real"], "variant: target-scale has full, quick"),
        (["target-scale", "--quick", "--out", "no/folder.nc"], "out: the folder no does not exist"),
    ],
)
def test_the_command_says_what_is_wrong(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", *arguments, "--workers", "1"]) == 1
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
