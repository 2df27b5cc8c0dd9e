"""D_LR from the features and the head's weight, against the n×n definition on the outputs."""

import warnings

import numpy as np
import pytest
import torch

from richbook.measure import DegenerateWarning, Moments, RichbookError, d_lr, d_lr_from_head, head
from tests.measure import reference
from tests.measure.reference import put


def affine(seed, n=80, p=10, c=4, offset=0.5):
    """Features (n, p), and a weight and a bias that are not centred on anything."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, p)) * np.geomspace(1, 0.1, p) @ rng.normal(size=(p, p)) + offset
    return features, rng.normal(size=(c, p)), rng.normal(size=c)


def head_form(device, features, weight, bias, **options):
    return float(d_lr_from_head(*(put(device, v) for v in (features, weight, bias)), **options))


@pytest.mark.parametrize("c", [1, 4, 9])
@pytest.mark.parametrize("offset", [0.5, 1e3])
def test_equals_the_definition(device, c, offset):
    features, weight, bias = affine(c, c=c, offset=offset)
    expected = reference.d_lr(features - offset, features @ weight.T + bias, rank=c)
    assert head_form(device, features, weight, bias) == pytest.approx(expected, abs=1e-9)


def test_outputs_that_sum_to_zero_have_one_direction_less(device):
    features, weight, bias = affine(1, c=5)
    weight, bias = weight - weight.mean(0), bias - bias.mean()
    expected = reference.d_lr(features, features @ weight.T + bias, rank=4)
    assert head_form(device, features, weight, bias) == pytest.approx(expected, abs=1e-9)
    rounded = [torch.tensor(v, dtype=torch.float32, device=device) for v in (weight, bias)]
    value = d_lr_from_head(torch.tensor(features, dtype=torch.float32, device=device), *rounded)
    assert float(value) == pytest.approx(expected, abs=1e-6)


def test_a_bias_can_put_the_constant_into_the_span(device):
    """Weights that sum to zero with biases that do not: one combination of outputs is constant."""
    features, weight, bias = affine(2, c=4)
    weight = weight - weight.mean(0)
    outputs = features @ weight.T + bias
    expected = reference.d_lr(features, outputs, rank=4)
    assert head_form(device, features, weight, bias) == pytest.approx(expected, abs=1e-9)


def test_scaling_one_output_changes_nothing(device):
    features, weight, bias = affine(3)
    scale = np.array([1e3, 1, 1e-3, 1])
    value = head_form(device, features, scale[:, None] * weight, scale * bias)
    assert value == pytest.approx(head_form(device, features, weight, bias), abs=1e-9)


@pytest.mark.parametrize("c", [10, 11, 40])
def test_as_many_outputs_as_features(device, c):
    """Ĥ is then all of span{Φ_k, 1}: D_LR measures isotropy, and a warning says so."""
    features, weight, bias = affine(4, c=c)
    eigenvalues = np.linalg.eigvalsh(np.cov(features.T, bias=True))
    rng = np.random.default_rng(0)
    bias = rng.normal(size=c)  # with c > p the constant is in the span
    with pytest.warns(DegenerateWarning, match="isotropic"):
        value = head_form(device, features, weight, bias)
    expected = reference.d_lr(features, features @ weight.T + bias, rank=min(c, 11))
    assert value == pytest.approx(expected, abs=1e-8)
    if c > 10:
        isotropy = eigenvalues.sum() / (np.linalg.norm(eigenvalues) * 10**0.5)
        assert value == pytest.approx(1 - isotropy, abs=1e-8)


def test_blocks_of_outputs_do_not_matter(monkeypatch):
    features, weight, bias = affine(5, c=37)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateWarning)
        whole = head_form("cpu", features, weight, bias)
        monkeypatch.setattr(head, "BLOCK_OUTPUTS", 5)
        assert head_form("cpu", features, weight, bias) == pytest.approx(whole, abs=1e-12)


def test_right_where_rounded_outputs_are_not():
    """float32 outputs that are small differences of large terms carry noise that looks like more
    functions; the head's weight does not."""
    features, weight, _ = (torch.tensor(v).float() for v in affine(6, n=200, p=5, c=12, offset=3e3))
    bias = -(weight.double() @ features.double().mean(0)).float()
    exact = features.double() @ weight.double().T + bias.double()
    expected = reference.d_lr(features - 3e3, exact, rank=6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateWarning)
        assert float(d_lr_from_head(features, weight, bias)) == pytest.approx(expected, abs=1e-5)
        direct = float(d_lr(features, features @ weight.T + bias))
    assert abs(direct - expected) > 1e-3


def test_a_stream_of_features(device):
    features, weight, bias = affine(7, n=90)
    moments = Moments()
    for block in put(device, features).split(17):
        moments.update(block)
    value = d_lr_from_head(moments, put(device, weight), put(device, bias), torch.float64)
    expected = reference.d_lr(features, features @ weight.T + bias, rank=4)
    assert float(value) == pytest.approx(expected, abs=1e-9)


def test_without_a_bias(device):
    features, weight, _ = affine(8)
    expected = reference.d_lr(features, features @ weight.T, rank=4)
    value = d_lr_from_head(put(device, features), put(device, weight))
    assert float(value) == pytest.approx(expected, abs=1e-9)


def test_constant_features_and_a_zero_head_are_nan(device):
    features, weight, bias = (put(device, v) for v in affine(9))
    with pytest.warns(DegenerateWarning, match="features are constant"):
        assert d_lr_from_head(torch.ones_like(features), weight, bias).isnan()
    with pytest.warns(DegenerateWarning, match="outputs are constant"):
        assert d_lr_from_head(features, 0 * weight, bias).isnan()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": torch.ones(4, 9)}, r"weight: expected shape \(C, 10\), .* got \(4, 9\)"),
        ({"bias": torch.ones(3)}, r"bias: expected shape \(4,\), .* got \(3,\)"),
        ({"weight": torch.full((4, 10), torch.nan)}, "weight: row 0 contains nan"),
        ({"features": torch.ones(10)}, r"features: expected shape \(n, d\)"),
        ({"features": Moments()}, "moments: expected at least 2 samples"),
        ({"precision": torch.int64}, "precision: expected a floating-point"),
    ],
)
def test_bad_input(change, message):
    features, weight, bias = (torch.tensor(v) for v in affine(10))
    with pytest.raises(RichbookError, match=message):
        d_lr_from_head(**{"features": features, "weight": weight, "bias": bias} | change)


def test_features_that_depend_on_each_other():
    """Layer norm's features sum to zero up to rounding. Products in float32 would turn that into a
    variance of 1e-7, and into one more function."""
    rng = np.random.default_rng(11)
    plain = rng.normal(size=(105, 7))
    features = torch.tensor((plain - plain.mean(1, keepdims=True)) / plain.std(1, keepdims=True))
    weight, bias = torch.tensor(rng.normal(size=(9, 7))), torch.tensor(rng.normal(size=9))
    expected = reference.d_lr(features, features @ weight.T + bias, rank=7)  # 6 and the constant
    moments = Moments()
    for block in features.float().split(35):
        moments.update(block)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateWarning)
        for source in (features.float(), moments):
            value = float(d_lr_from_head(source, weight.float(), bias.float()))
            assert value == pytest.approx(expected, abs=1e-6)
