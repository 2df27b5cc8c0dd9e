"""D_LR keeps its value whatever the numbers look like: offsets, magnitudes, dtypes, few samples."""

import warnings

import numpy as np
import pytest
import torch

from richbook.measure import DegenerateWarning, d_lr
from tests.measure import reference
from tests.measure.reference import put

EXACT = {torch.float64: 1e-9, torch.float32: 1e-6}


@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("offset", [1e3, -1e6])
@pytest.mark.parametrize("n", [300, 6])
def test_features_on_a_large_offset(device, n, offset, dtype):
    features, outputs = reference.problem(0, n=n, p=8, c=3)
    shifted = put(device, features + offset, dtype)
    seen = reference.array(shifted) - offset  # exact, and c(T) does not see a constant
    value = float(d_lr(shifted, put(device, outputs)))
    assert value == pytest.approx(reference.d_lr(seen, outputs, rank=3), abs=EXACT[dtype])


def test_each_feature_on_its_own_offset(device):
    features, outputs = reference.problem(1)
    offsets = 10.0 ** np.arange(-1, 7)
    shifted = put(device, features + offsets, torch.float32)
    seen = reference.array(shifted) - offsets
    value = float(d_lr(shifted, put(device, outputs)))
    assert value == pytest.approx(reference.d_lr(seen, outputs, rank=4), abs=1e-6)


@pytest.mark.parametrize(
    ("offset", "dtype", "tolerance"),
    [(1e3, torch.float64, 1e-9), (1e6, torch.float64, 1e-9), (1e3, torch.float32, 1e-4)],
)
def test_outputs_on_a_large_offset(device, offset, dtype, tolerance):
    features, outputs = reference.problem(2, c=3)
    shifted = put(device, outputs + offset, dtype)
    value = float(d_lr(put(device, features), shifted))
    assert value == pytest.approx(reference.d_lr(features, shifted, rank=3), abs=tolerance)


def test_outputs_whose_spread_drowns_in_rounding_are_not_measured(device):
    """At 1e6, float32 moves in steps of 1/16; a spread of 0.3 is below 8 eps · 1e6 = 0.95."""
    features, outputs = reference.problem(3, c=3)
    outputs = (outputs - outputs.mean(0)) / outputs.std(0)
    shifted = put(device, 0.3 * outputs + 1e6, torch.float32)
    with pytest.warns(DegenerateWarning, match="to within the rounding of their precision"):
        assert np.isnan(float(d_lr(put(device, features), shifted)))
    # A spread of 30 is measured, and so is a small one that the caller vouches for.
    spread = put(device, 30 * outputs + 1e6, torch.float32)
    value = float(d_lr(put(device, features), spread))
    assert value == pytest.approx(reference.d_lr(features, spread, rank=3), abs=1e-6)
    vouched = float(d_lr(put(device, features), shifted, precision=torch.float64))
    assert vouched == pytest.approx(reference.d_lr(features, shifted, rank=3), abs=1e-6)


@pytest.mark.parametrize("n", [1000, 5])
@pytest.mark.parametrize(
    ("scale", "dtype"),
    [
        (1e30, torch.float32),
        (1e-30, torch.float32),
        (1e30, torch.float64),
        (1e-30, torch.float64),
        (1e60, torch.float64),
        (1e-60, torch.float64),
    ],
)
def test_magnitudes(device, n, scale, dtype):
    features, outputs = reference.problem(4, n=n, p=8, c=2)
    expected = reference.d_lr(features, outputs, rank=2)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    scaled, plain = put(device, scale * features, dtype), put(device, features, dtype)
    assert float(d_lr(scaled, put(device, outputs))) == pytest.approx(expected, abs=tolerance)
    small = put(device, scale * outputs, dtype)
    assert float(d_lr(plain, small)) == pytest.approx(expected, abs=tolerance)


def test_features_of_very_different_magnitudes(device):
    features, outputs = reference.problem(5)
    features[:, ::2] *= 1e18
    features[:, 0] *= 1e-40
    expected = reference.d_lr(features, outputs, rank=4)
    value = float(d_lr(put(device, features, torch.float32), put(device, outputs)))
    assert value == pytest.approx(expected, abs=1e-6)


def test_half_precision_features_near_the_top_of_their_range(device):
    features, outputs = reference.problem(6, n=300)
    half = put(device, 4e4 + 2e3 * features / np.abs(features).max(), torch.float16)
    seen = reference.array(half) - 4e4
    value = float(d_lr(half, put(device, outputs)))
    assert value == pytest.approx(reference.d_lr(seen, outputs, rank=4), abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_lower_precision_features_are_measured_as_they_are(device, dtype):
    features, outputs = reference.problem(7, n=300)
    low = put(device, features, dtype)
    value = float(d_lr(low, put(device, outputs)))
    assert value == pytest.approx(reference.d_lr(low, outputs, rank=4), abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_whole_numbers(device, dtype):
    rng = np.random.default_rng(8)
    high = 2 if dtype == torch.bool else 200
    features, outputs = rng.integers(0, high, (80, 6)), rng.integers(0, high, (80, 3))
    value = float(d_lr(put(device, features, dtype), put(device, outputs, dtype)))
    assert value == pytest.approx(reference.d_lr(features, outputs, rank=3), abs=1e-12)


def test_large_whole_numbers_are_exact(device):
    features, outputs = reference.problem(9)
    whole = np.rint(1e3 * features).astype(np.int64)
    shifted = put(device, whole + 2**40, torch.int64)
    value = float(d_lr(shifted, put(device, outputs)))
    assert value == pytest.approx(reference.d_lr(whole, outputs, rank=4), abs=1e-9)


def test_numpy_arrays_and_lists():
    features, outputs = reference.problem(10, n=20, p=3, c=2)
    expected = reference.d_lr(features, outputs, rank=2)
    assert float(d_lr(features, outputs)) == pytest.approx(expected, abs=1e-12)
    lists = float(d_lr(features.tolist(), outputs.tolist()))  # read as float32
    assert lists == pytest.approx(expected, abs=1e-6)


def test_a_vector_is_one_output(device):
    features, outputs = reference.problem(11, c=1)
    value = d_lr(put(device, features), put(device, outputs[:, 0]))
    assert float(value) == pytest.approx(reference.d_lr(features, outputs, rank=1), abs=1e-12)


@pytest.mark.parametrize(
    ("n", "p", "c"), [(2, 3, 1), (5, 5, 2), (7, 8, 3), (12, 40, 3), (12, 40, 11)]
)
@pytest.mark.parametrize("dtype", EXACT)
def test_no_more_samples_than_features(device, n, p, c, dtype):
    features, outputs = reference.problem(12, n=n, p=p, c=c)
    low = put(device, features, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateWarning)  # c ≥ n − 1 warns, see below
        value = float(d_lr(low, put(device, outputs)))
    assert value == pytest.approx(reference.d_lr(low, outputs, rank=c), abs=EXACT[dtype])


@pytest.mark.parametrize("c", [11, 12, 30])
def test_outputs_that_span_every_function_on_the_sample(device, c):
    features, outputs = reference.problem(13, n=12, p=20, c=c)
    with pytest.warns(DegenerateWarning, match="span every function on these 12 samples"):
        value = float(d_lr(put(device, features), put(device, outputs)))
    assert value == pytest.approx(reference.d_lr(features, outputs, rank=min(c, 12)), abs=1e-9)


@pytest.mark.parametrize(("n", "p"), [(200_000, 4), (4, 200_000)])
def test_neither_long_nor_wide_data_needs_a_square_of_it(device, n, p):
    """200 000 × 200 000 numbers would be 320 GB."""
    features, outputs = (put(device, values) for values in reference.problem(15, n=4, p=4, c=1))
    repeated = features.repeat(n // 4, p // 4)  # neither repetition changes D_LR
    value = float(d_lr(repeated, outputs.repeat(n // 4, 1)))
    expected = reference.d_lr(features, outputs, rank=1)
    assert value == pytest.approx(expected, abs=1e-9)


def test_unused_features(device):
    features, outputs = reference.problem(14)
    wide = np.column_stack([features, np.zeros(60), np.full(60, 0.1)])
    value = float(d_lr(put(device, wide), put(device, outputs)))
    assert value == pytest.approx(reference.d_lr(features, outputs, rank=4), abs=1e-12)
