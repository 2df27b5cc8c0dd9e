"""Which functions count as learned: rank of Ĥ, the constant in it, projection before centring."""

import warnings

import numpy as np
import pytest
import torch

from richbook.measure import DegenerateWarning, d_lr, isotropic_d_lr
from tests.measure import reference
from tests.measure.reference import put

HALF = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize("c", [1, 2, 5])
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_definition(device, seed, c):
    features, outputs = reference.problem(seed, c=c)
    value = d_lr(put(device, features), put(device, outputs))
    assert value.dtype == torch.float64 and value.shape == ()
    assert value.device.type == torch.device(device).type
    assert float(value) == pytest.approx(reference.d_lr(features, outputs, c), abs=1e-12)


def test_the_weights_of_the_minimum_projection_drop_out(device):
    features, outputs = reference.problem(0)
    value = float(d_lr(put(device, features), put(device, outputs)))
    for a1, a2 in [(1.0, 1.0), (7.0, 0.1), (1e-3, 20.0)]:
        assert value == pytest.approx(reference.d_lr(features, outputs, 4, a1, a2), abs=1e-12)


@pytest.mark.parametrize("offset", [0.0, 0.3, 3.0, 100.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_zero_sum_logits_have_one_dimension_less(device, dtype, offset):
    features, outputs = reference.problem(1, n=200, c=6)
    shifts = offset * np.random.default_rng(1).normal(size=6)
    logits = put(device, reference.zero_sum(outputs + shifts), dtype)
    expected = reference.d_lr(features, reference.zero_sum(outputs + shifts), rank=5)
    noise_counted = reference.d_lr(features, logits, rank=6)
    assert abs(noise_counted - expected) > 1e-3  # the trap: the rounding direction at full weight
    assert float(d_lr(put(device, features), logits)) == pytest.approx(
        expected, abs=2e-5 if offset > 9 else 1e-6
    )


@pytest.mark.parametrize("cast", [False, True], ids=["as is", "cast to float32"])
@pytest.mark.parametrize("dtype", HALF)
def test_zero_sum_logits_in_half_precision(device, dtype, cast):
    features, outputs = reference.problem(2, n=400, c=6)
    logits = put(device, reference.zero_sum(outputs), dtype)
    expected = reference.d_lr(features, logits, rank=5)
    noise_counted = reference.d_lr(features, logits, rank=6)
    given = (
        d_lr(put(device, features), logits.float(), precision=dtype)
        if cast
        else d_lr(put(device, features), logits)
    )
    assert abs(noise_counted - expected) > 5e-3
    assert float(given) == pytest.approx(expected, abs=5e-4)
    assert float(given) == pytest.approx(
        reference.d_lr(features, reference.zero_sum(outputs), rank=5), abs=2e-3
    )


def test_a_cast_hides_the_precision_unless_it_is_declared(device):
    features, outputs = reference.problem(2, n=400, c=6)
    logits = put(device, reference.zero_sum(outputs), torch.bfloat16).float()
    undeclared = float(d_lr(put(device, features), logits))
    assert undeclared == pytest.approx(reference.d_lr(features, logits, rank=6), abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALF])
@pytest.mark.parametrize("sharpness", [0.1, 1.0])
def test_probabilities_contain_the_constant(device, dtype, sharpness):
    features, outputs = reference.problem(3, n=300, c=5)
    probabilities = reference.softmax(sharpness * outputs)
    expected = reference.d_lr(features, probabilities, rank=5)
    # The constant is in the span, so centring first happens to give the same.
    assert expected == pytest.approx(
        reference.d_lr_of_centred_outputs(features, probabilities, rank=4), abs=1e-12
    )
    value = float(d_lr(put(device, features), put(device, probabilities, dtype)))
    assert value == pytest.approx(expected, abs=3e-3 if dtype in HALF else 1e-6)


def test_a_bias_that_never_varies_is_the_constant(device):
    features, outputs = reference.problem(4, c=3)
    outputs = np.column_stack([outputs, np.full(len(outputs), 1e-3)])
    value = float(d_lr(put(device, features), put(device, outputs)))
    assert value == pytest.approx(reference.d_lr(features, outputs, rank=4), abs=1e-12)


def test_projects_before_centring(device):
    features, outputs = reference.problem(5, c=3, offset=1.5)
    expected = reference.d_lr(features, outputs, rank=3)
    other = reference.d_lr_of_centred_outputs(features, outputs, rank=3)
    assert abs(expected - other) > 0.005
    assert float(d_lr(put(device, features), put(device, outputs))) == pytest.approx(
        expected, abs=1e-12
    )


@pytest.mark.parametrize("power", [3, 6])
def test_one_large_output_does_not_hide_the_others(device, power):
    features, outputs = reference.problem(6)
    expected = reference.d_lr(features, outputs, rank=4)
    outputs[:, 1] *= 10.0**power
    assert float(d_lr(put(device, features), put(device, outputs, torch.float32))) == pytest.approx(
        expected, abs=1e-6
    )


def test_repeated_and_empty_outputs_count_once_or_not(device):
    features, outputs = reference.problem(7, c=3)
    wide = np.column_stack(
        [outputs, outputs[:, 0], 0 * outputs[:, 0], 5 * outputs[:, 1] - outputs[:, 2]]
    )
    value = float(d_lr(put(device, features), put(device, wide)))
    assert value == pytest.approx(reference.d_lr(features, outputs, rank=3), abs=1e-12)


def test_outputs_that_fill_the_feature_space_only_measure_isotropy(device):
    features, _ = reference.problem(8, p=5, offset=0.0)
    features -= features.mean(0)
    outputs = features @ np.random.default_rng(8).normal(size=(5, 9))
    with pytest.warns(DegenerateWarning, match=r"span all feature directions that vary \(5\)"):
        value = float(d_lr(put(device, features), put(device, outputs)))
    spectrum = np.linalg.eigvalsh(features.T @ features)
    assert value == pytest.approx(
        1 - spectrum.sum() / (np.linalg.norm(spectrum) * 5**0.5), abs=1e-12
    )
    assert value == pytest.approx(reference.d_lr(features, outputs, rank=5), abs=1e-12)


@pytest.mark.parametrize(("p", "r"), [(1, 1), (8, 1), (8, 5), (128, 97)])
def test_isotropic_features_give_the_isotropic_value(device, p, r):
    rng = np.random.default_rng(9)
    orthonormal, _ = np.linalg.qr(
        np.column_stack([np.ones(2 * p + 9), rng.normal(size=(2 * p + 9, p))])
    )
    features = orthonormal[:, 1:]  # orthogonal to the constant, all variances equal
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateWarning)  # r = p spans everything
        value = float(d_lr(put(device, features), put(device, features[:, :r])))
    assert value == pytest.approx(1 - (r / p) ** 0.5, abs=1e-12)
    assert isotropic_d_lr(p, r) == pytest.approx(1 - (r / p) ** 0.5, abs=1e-15)


def test_isotropic_value_of_a_rank_above_the_dimension():
    assert isotropic_d_lr(5, 9) == 0.0
    for arguments in [(0, 1), (5, 0), (5, -1), (2.5, 1)]:
        with pytest.raises(ValueError, match="expected a whole number of at least 1"):
            isotropic_d_lr(*arguments)


def test_collapse_is_rich_only_for_balanced_classes(device):
    balanced = np.repeat(np.eye(10), 20, axis=0)
    assert float(d_lr(put(device, balanced), put(device, balanced))) == pytest.approx(0, abs=1e-12)
    imbalanced = np.repeat(np.eye(10), [182] + [2] * 9, axis=0)
    value = float(d_lr(put(device, imbalanced), put(device, imbalanced)))
    assert value == pytest.approx(0.40, abs=0.005)
    assert value == pytest.approx(reference.d_lr(imbalanced, imbalanced, rank=10), abs=1e-12)
