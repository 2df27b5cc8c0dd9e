"""The grokking recipe: the two factors of D_LR, the split, and which step counts as before."""

import numpy as np
import pytest
import torch
import xarray as xr

from richbook.experiments.measuring import cosine_factors
from richbook.experiments.recipes import grokking
from richbook.experiments.trial import Batches
from richbook.measure import d_lr
from richbook.train.data import modular_data


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("constant", ["inside", "orthogonal"])
def test_the_factors_are_those_of_the_definition(constant):
    count, features = 200, draw(200, 12) @ draw(12, 12, seed=1) + 3
    outputs = features @ draw(12, 4, seed=2)
    if constant == "inside":
        outputs = torch.cat([outputs, 1 - outputs.sum(1, keepdim=True)], dim=1)
    else:
        outputs = outputs - outputs.mean(0)
    centring = torch.eye(count, dtype=torch.float64) - 1 / count
    kernel = centring @ features @ features.T @ centring
    left, sizes, _ = torch.linalg.svd(centring @ outputs, full_matrices=False)
    left = left[:, sizes > 1e-9 * sizes[0]]
    inside = left @ left.T @ kernel @ left @ left.T
    share, cosine = cosine_factors(features, outputs)
    assert float(share) == pytest.approx(float(inside.norm() / kernel.norm()))
    assert float(cosine) == pytest.approx(float(inside.trace() / inside.norm() / 2))
    assert float(share * cosine) == pytest.approx(1 - float(d_lr(features, outputs)))


def test_unused_and_uneven_directions_are_told_apart():
    basis = torch.linalg.qr(draw(300, 7) - draw(300, 7).mean(0))[0]
    basis = torch.linalg.qr(basis - basis.mean(0))[0]
    even, uneven = torch.ones(3).double(), torch.tensor([5.0, 1.0, 1.0]).double()
    share, cosine = cosine_factors(basis, basis[:, :3])  # seven directions, three used
    assert float(share) == pytest.approx((3 / 7) ** 0.5) and float(cosine) == pytest.approx(1)
    share, cosine = cosine_factors(basis[:, :3] * uneven, basis[:, :3] * even)
    squares = uneven**2
    assert float(share) == pytest.approx(1)
    assert float(cosine) == pytest.approx(float(squares.sum() / squares.norm() / 3**0.5))


def test_the_parts_are_measured_apart():
    config = grokking.RECIPE.config("quick")
    trial = grokking.build(config, "with", 0, torch.device("cpu"))
    list(trial.advance(60))
    record = trial.record()
    trained = round(config.train_share * config.modulus**2)
    network = trial.model
    a, b = torch.meshgrid(torch.arange(13), torch.arange(13), indexing="ij")
    tokens = torch.stack([a.flatten(), b.flatten(), torch.full((169,), 13)], 1)
    right = (network(tokens).argmax(1) == (tokens[:, 0] + tokens[:, 1]) % 13).double()
    both = trained * record["train_accuracy"] + (169 - trained) * record["test_accuracy"]
    assert float(both) == pytest.approx(float(right.sum()))
    features = network.features(tokens)
    assert float(record["d_lr"]) == pytest.approx(float(d_lr(features, network(tokens))), abs=1e-5)


def test_before_is_the_first_step_at_which_training_is_fitted():
    dims = ("final_norm", "seed", "step")
    train = np.array([[[0.1, 0.5, 0.995, 1.0], [0.1, 0.99, 1.0, 1.0]]] * 2)
    marks = np.broadcast_to(np.arange(4.0), train.shape)
    result = xr.Dataset(
        {"train_accuracy": (dims, train), "mark": (dims, marks)},
        {"final_norm": ["with", "without"], "step": [0, 10, 20, 30]},
    )
    assert grokking.before(result, "mark").values.tolist() == [2, 1]
    assert grokking.after(result, "mark").values.tolist() == [3, 3]
    never = result.assign(train_accuracy=0.5 * result.train_accuracy)
    assert np.isnan(grokking.before(never, "mark")).all()


def test_the_loss_sees_scaled_outputs_and_the_measures_do_not():
    config = grokking.RECIPE.config("quick")
    trial = grokking.build(config, "with", 0, torch.device("cpu"))
    bare = grokking.build(config.replace(logit_scale=1.0), "with", 0, torch.device("cpu"))
    for name in ("d_lr", "inside_share", "test_accuracy"):
        assert float(trial.record()[name]) == pytest.approx(float(bare.record()[name]), abs=1e-6)
    data, batches = modular_data(13, config.train_share), Batches(68, config.batch_size, 0)
    tokens, labels = data.train_inputs[batches(1)], data.train_labels[batches(1)]
    logits = config.logit_scale * trial.model(tokens)
    expected = (logits.logsumexp(1) - logits[torch.arange(len(labels)), labels]).mean()
    assert trial.loss(1).item() == pytest.approx(expected.item(), rel=1e-5)
    assert trial.loss(1).item() != pytest.approx(bare.loss(1).item(), rel=1e-3)


def test_the_learning_rate_rises_and_falls_to_zero():
    trial = grokking.build(grokking.RECIPE.config("quick"), "with", 0, torch.device("cpu"))
    factors = [trial.schedule(step) for step in range(1, 61)]
    assert factors[0] == pytest.approx(0.1) and max(factors) == factors[9]
    assert factors[-1] < 0.01 and all(np.diff(factors[9:]) < 0)
