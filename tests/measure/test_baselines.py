"""The baselines on unequal networks: features of different width, parameters of every kind."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from richbook.measure.baselines import kernel_distance, parameter_norm
from richbook.measure.errors import DegenerateWarning, RichbookError
from tests.measure import reference
from tests.measure.reference import put

WIDTHS = [(8, 3), (3, 8), (40, 3), (3, 40), (40, 50), (1, 60)]  # p_t, p_0


def unequal(seed, n, widths, offset=0.5):
    """Features of n samples in two networks that see the same three things and more."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(n, 3))
    return [
        common @ rng.normal(size=(3, p)) + 0.5 * rng.normal(size=(n, p)) + offset for p in widths
    ]


@pytest.mark.parametrize("n", [60, 20])  # more than any width, fewer than some
@pytest.mark.parametrize("widths", WIDTHS)
def test_networks_of_different_width(device, widths, n):
    features, initial = unequal(0, n, widths)
    value = kernel_distance(put(device, features), put(device, initial))
    assert value.dtype == torch.float64 and value.shape == ()
    assert float(value) == pytest.approx(1 - reference.cka(features, initial), abs=1e-12)
    back = kernel_distance(put(device, initial), put(device, features))
    assert float(back) == pytest.approx(float(value), abs=1e-12)


@pytest.mark.parametrize("n", [60, 5])
@pytest.mark.parametrize(("narrow", "wide"), [(4, 9), (4, 70)])
def test_the_same_kernel_in_more_dimensions(device, narrow, wide, n):
    """An isometry into a wider layer, a factor and a shift leave the centred kernel as it is."""
    features, _ = unequal(1, n, (narrow, 2))
    isometry = reference.orthogonal(np.random.default_rng(1), wide)[:narrow]  # (narrow, wide)
    moved = put(device, 3 * features @ isometry + 7)
    assert float(kernel_distance(moved, put(device, features))) == pytest.approx(0, abs=1e-12)
    padded = put(device, np.column_stack([features, np.full((n, wide - narrow), 2.0)]))
    assert float(kernel_distance(padded, put(device, features))) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("n", [60, 5])
@pytest.mark.parametrize("widths", [(8, 3), (3, 8)])
def test_one_of_two_unequal_networks_is_constant(device, widths, n):
    features, initial = (put(device, values) for values in unequal(2, n, widths))
    for pair in [(features, initial * 0 + 0.1), (features * 0 + 0.1, initial)]:
        with pytest.warns(DegenerateWarning, match="constant over the samples on one side"):
            assert math.isnan(float(kernel_distance(*pair)))


def test_networks_must_have_seen_the_same_samples():
    features, initial = unequal(3, 20, (8, 3))
    with pytest.raises(RichbookError, match=r"same samples .*\(20, 8\).*\(19, 3\)"):
        kernel_distance(features, initial[:19])


def squares(*values):
    return sum(float((reference.array(value) ** 2).sum()) for value in values)


def test_a_tied_parameter_counts_once(device):
    embedding, head = nn.Embedding(7, 4), nn.Linear(4, 7)
    head.weight = embedding.weight
    model = nn.Sequential(embedding, head).to(device)
    wanted = squares(embedding.weight, head.bias)
    assert float(parameter_norm(model)) == pytest.approx(wanted, rel=1e-12)
    assert float(parameter_norm(nn.ModuleList([model, model]))) == pytest.approx(wanted, rel=1e-12)


def test_frozen_parameters_count_and_buffers_do_not(device):
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).to(device)
    model[0].requires_grad_(False)
    model[1].running_var.fill_(100)
    wanted = squares(*model.parameters())
    norm = parameter_norm(model)
    assert float(norm) == pytest.approx(wanted, rel=1e-12)
    assert not norm.requires_grad and norm.device.type == "cpu"
    assert [one.requires_grad for one in model.parameters()] == [False, False, True, True]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_low_precision_is_summed_in_float64(device, dtype):
    """In bfloat16 a sum of ones stops at 256."""
    layer = nn.Linear(100, 100, bias=False).to(device, dtype)
    nn.init.ones_(layer.weight)
    assert float(parameter_norm(layer)) == 10_000
    nn.init.constant_(layer.weight, 3e4)  # its square leaves float16
    wanted = 10_000 * float(layer.weight[0, 0].detach()) ** 2
    assert float(parameter_norm(layer)) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(
    ("model", "got"), [(nn.Sequential(), "Sequential"), (nn.Flatten(), "Flatten"), ("mlp", "str")]
)
def test_without_parameters(model, got):
    with pytest.raises(RichbookError, match=f"^model: expected a module with .* got {got} with no"):
        parameter_norm(model)
