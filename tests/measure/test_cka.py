"""Linear CKA, and the movement of the kernel that is measured with it, against the HSIC formula."""

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from richbook.measure import DegenerateWarning, RichbookError, cka, kernel_distance, parameter_norm
from tests.measure import reference
from tests.measure.reference import put

SHAPES = [(60, 8, 4), (60, 4, 8), (9, 9, 3), (9, 8, 20), (9, 20, 30), (2, 3, 1)]  # n, p_a, p_b


def _pair(seed, n=60, p_a=8, p_b=4, offset=0.5):
    """Two sets of features that share some of what they say."""
    return reference.problem(seed, n=n, p=p_a, c=p_b, offset=offset)


@pytest.mark.parametrize(("n", "p_a", "p_b"), SHAPES)
def test_equals_hsic(device, n, p_a, p_b):
    a, b = _pair(0, n, p_a, p_b)
    value = cka(put(device, a), put(device, b))
    assert value.dtype == torch.float64 and value.shape == ()
    assert value.device.type == torch.device(device).type
    assert float(value) == pytest.approx(reference.cka(a, b), abs=1e-12)
    assert float(cka(put(device, b), put(device, a))) == pytest.approx(float(value), abs=1e-12)


@pytest.mark.parametrize("n", [10, 11, 12, 13])
def test_both_ways_of_computing_agree_where_they_meet(device, n):
    """With 12 features the n×n products take over below n = 12; nothing may jump there."""
    a, b = _pair(1, 13, 12, 3)
    assert float(cka(put(device, a[:n]), put(device, b[:n]))) == pytest.approx(
        reference.cka(a[:n], b[:n]), abs=1e-12
    )


@pytest.mark.parametrize(("n", "p"), [(200_000, 4), (4, 200_000)])
def test_neither_long_nor_wide_data_needs_a_square_of_it(device, n, p):
    """200 000 × 200 000 numbers would be 320 GB."""
    a, b = (put(device, values) for values in _pair(9, n=4, p_a=4, p_b=2))
    repeated = a.repeat(n // 4, p // 4), b.repeat(n // 4, p // 4)  # CKA does not see repetition
    assert float(cka(*repeated)) == pytest.approx(reference.cka(a, b), abs=1e-9)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 30),
    p_a=st.integers(1, 12),
    p_b=st.integers(1, 12),
    power=st.integers(-6, 6),
)
def test_bounds_and_invariances(device, seed, n, p_a, p_b, power):
    a, b = _pair(seed, n, p_a, p_b)
    rng = np.random.default_rng(seed)
    value = float(cka(put(device, a), put(device, b)))
    assert 0 <= value <= 1
    turned = 10.0**power * (a @ reference.orthogonal(rng, p_a) + rng.normal(size=p_a))
    order = rng.permutation(n)
    assert float(cka(put(device, turned[order]), put(device, b[order]))) == pytest.approx(
        value, abs=1e-9
    )
    assert float(cka(put(device, turned), put(device, a))) == pytest.approx(1, abs=1e-9)


def test_not_blind_to_stretching(device):
    """Rotations leave CKA alone; a mixing that stretches does not, unlike D_LR of outputs."""
    a, _ = _pair(2)
    stretched = a @ np.diag([1, 1, 1, 1, 1, 1, 1, 50.0])
    assert float(cka(put(device, stretched), put(device, a))) < 0.9


def test_unrelated_features_have_none():
    rng = np.random.default_rng(3)
    orthonormal = np.linalg.qr(np.column_stack([np.ones(50), rng.normal(size=(50, 7))]))[0]
    assert float(cka(orthonormal[:, 1:4], orthonormal[:, 4:])) == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("n", [300, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_lower_precision(device, n, dtype):
    a, b = (put(device, values, dtype) for values in _pair(4, n))
    assert float(cka(a, b)) == pytest.approx(reference.cka(a, b), abs=1e-6)


@pytest.mark.parametrize("n", [300, 6])
@pytest.mark.parametrize("offset", [1e3, 1e6])
def test_large_offsets(device, n, offset):
    a, b = (put(device, values + offset, torch.float32) for values in _pair(5, n))
    seen = reference.array(a) - offset, reference.array(b) - offset
    assert float(cka(a, b)) == pytest.approx(reference.cka(*seen), abs=1e-6)


@pytest.mark.parametrize("scale", [1e30, 1e-30])
def test_magnitudes(device, scale):
    a, b = _pair(6)
    value = float(cka(put(device, scale * a, torch.float32), put(device, b / scale, torch.float32)))
    assert value == pytest.approx(reference.cka(a, b), abs=1e-6)


@pytest.mark.parametrize("n", [50, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("constant", [0.0, 0.1])
@pytest.mark.parametrize("measure", [cka, kernel_distance])
def test_constant_features(device, measure, constant, dtype, n):
    varying = torch.randn(n, 5, generator=torch.Generator().manual_seed(0)).to(device)
    flat = put(device, np.full((n, 4), constant), dtype)
    for pair in [(varying, flat), (flat, varying), (flat, flat)]:
        with pytest.warns(DegenerateWarning, match="constant over the samples"):
            assert math.isnan(float(measure(*pair)))


@pytest.mark.parametrize("n", [1000, 3])
def test_variation_within_one_rounding_step_is_constant(device, n):
    flat = torch.ones(n, 1000 // n)
    flat[0, 0] += torch.finfo(torch.float32).eps
    varying = torch.randn(n, 5, generator=torch.Generator().manual_seed(0)).to(device)
    for pair in [(varying, flat.to(device)), (flat.to(device), varying)]:
        with pytest.warns(DegenerateWarning, match="constant over the samples"):
            assert math.isnan(float(cka(*pair)))


def test_inside_autocast(device):
    a, b = (put(device, values, torch.float32) for values in _pair(7, 300))
    plain = cka(a, b), cka(a[:6], b[:6])
    with torch.autocast(device, dtype=torch.bfloat16):
        assert (cka(a, b), cka(a[:6], b[:6])) == plain


def test_what_cannot_be_compared():
    good = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    bad = good.clone()
    bad[5, 1] = math.nan
    for a, b, message in [
        (good, good[:7], r"same samples .*features_a \(8, 3\), features_b \(7, 3\)"),
        (good[0], good, r"^features_a: expected shape \(n, d\)"),
        (good, good[:, 0], r"^features_b: expected shape \(n, d\)"),
        (good[:1], good[:1], "^features_a: expected at least 2 samples"),
        (good, bad, "^features_b: row 5 contains nan"),
        (good.to(torch.complex64), good, "^features_a: expected a dense tensor of real numbers"),
    ]:
        with pytest.raises(RichbookError, match=message):
            cka(a, b)


@pytest.mark.parametrize("n", [60, 6])
def test_kernel_distance(device, n):
    features, initial = _pair(8, n)
    distance = kernel_distance(put(device, features), put(device, initial))
    assert float(distance) == pytest.approx(1 - reference.cka(features, initial), abs=1e-12)
    rotation = reference.orthogonal(np.random.default_rng(8), 8)
    still = kernel_distance(put(device, 3 * features @ rotation), put(device, features))
    assert float(still) == pytest.approx(0, abs=1e-12)
    assert 0 <= float(still)


def test_parameter_norm(device):
    if device == "mps":
        pytest.skip("mps has no float64")
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).to(device)
    wanted = sum((reference.array(parameter) ** 2).sum() for parameter in model.parameters())
    norm = parameter_norm(model)
    assert norm.dtype == torch.float64 and norm.shape == () and not norm.requires_grad
    assert float(norm) == pytest.approx(wanted, rel=1e-14)
    assert float(parameter_norm(model.bfloat16())) == pytest.approx(wanted, rel=1e-2)


def test_parameter_norm_needs_parameters():
    with pytest.raises(RichbookError, match="^model: expected a module with parameters, got ReLU"):
        parameter_norm(torch.nn.ReLU())
