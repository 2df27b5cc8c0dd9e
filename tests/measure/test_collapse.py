"""NC1 against loops over samples and classes, closed forms, and what it cannot measure."""

import math

import numpy as np
import pytest
import torch

from richbook.measure import DegenerateWarning, RichbookError, nc1
from richbook.measure.collapse import within_over_between
from tests.measure import reference
from tests.measure.reference import put


def _classes(seed, n=90, p=6, classes=4, spread=0.3, offset=0.0):
    """Labelled features around random class means; class sizes differ."""
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(classes), rng.integers(0, classes, n - classes)])
    means = rng.normal(size=(classes, p))
    return means[labels] + spread * rng.normal(size=(n, p)) + offset, labels


@pytest.mark.parametrize(("p", "classes"), [(6, 4), (2, 5), (1, 2), (1, 3), (12, 3), (4, 5)])
def test_equals_the_definition(device, p, classes):
    features, labels = _classes(0, p=p, classes=classes)
    value = nc1(put(device, features), put(device, labels, torch.int64))
    assert value.dtype == torch.float64 and value.shape == ()
    assert float(value) == pytest.approx(reference.nc1(features, labels), rel=1e-9)


@pytest.mark.parametrize("within", [0.0, 0.5, 3.0])
def test_two_classes_on_a_line(device, within):
    """Means ±2, so Σ_B = 4; samples at ±within around them, so Σ_W = within²; C = 2."""
    features = np.array([[2 + within], [2 - within], [-2 + within], [-2 - within]])
    value = nc1(put(device, features), put(device, [0, 0, 1, 1], torch.int64))
    assert float(value) == pytest.approx(within**2 / 4 / 2, abs=1e-15)


def test_simplex_with_isotropic_spread(device):
    """One-hot means: Σ_B is 1/C on C − 1 directions. Spread s² in each: NC1 = s² (C − 1)."""
    classes, spread = 5, 0.2
    steps = (
        spread
        * math.sqrt(classes)
        * np.concatenate([np.eye(classes), -np.eye(classes)])
        / math.sqrt(2)
    )
    features = np.concatenate([mean + math.sqrt(2) * steps for mean in np.eye(classes)])
    labels = np.repeat(np.arange(classes), len(steps))
    # Every class: the mean of x xᵀ over its ± steps is s² · I.
    value = nc1(put(device, features), put(device, labels, torch.int64))
    assert float(value) == pytest.approx(spread**2 * (classes - 1), rel=1e-12)


def test_spread_outside_the_class_means_does_not_count(device):
    features, labels = _classes(1, p=3)
    sideways = np.column_stack([features, np.zeros(90)])
    for label in range(4):
        inside = labels == label
        sideways[inside, 3] = np.linspace(-9, 9, inside.sum())  # mean 0 in every class
    wide = float(nc1(put(device, sideways), put(device, labels, torch.int64)))
    assert wide == pytest.approx(
        float(nc1(put(device, features), put(device, labels, torch.int64))), rel=1e-9
    )


@pytest.mark.parametrize("offset", [0.0, 0.1, 1e3])
def test_collapsed_features_give_zero(device, offset):
    features, labels = _classes(2, spread=0.0, offset=offset)
    value = float(nc1(put(device, features), put(device, labels, torch.int64)))
    assert 0 <= value < 1e-20


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e6, 1e30])
def test_scaling_rotating_and_shifting(device, scale):
    features, labels = _classes(3)
    rotation = reference.orthogonal(np.random.default_rng(3), 6)
    moved = scale * (features @ rotation + 7)
    value = float(nc1(put(device, moved), put(device, labels, torch.int64)))
    assert value == pytest.approx(reference.nc1(features, labels), rel=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_lower_precision_is_measured_as_it_is(device, dtype):
    features, labels = _classes(4)
    low = put(device, features, dtype)
    assert float(nc1(low, put(device, labels, torch.int64))) == pytest.approx(
        reference.nc1(low, labels), rel=1e-9
    )


def test_a_large_offset(device):
    features, labels = _classes(5)
    shifted = put(device, features + 1e3, torch.float32)
    wanted = reference.nc1(reference.array(shifted) - 1e3, labels)
    assert float(nc1(shifted, put(device, labels, torch.int64))) == pytest.approx(wanted, rel=1e-7)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_labels_are_names(device, dtype):
    """Which integers stand for the classes, and which are left out, does not matter."""
    features, labels = _classes(6)
    names = np.array([7, 250, 3, 90])
    value = float(nc1(put(device, features), put(device, names[labels], dtype)))
    assert value == pytest.approx(reference.nc1(features, labels), rel=1e-9)
    negative = float(nc1(put(device, features), put(device, labels - 2, torch.int64)))
    assert negative == pytest.approx(value, rel=1e-12)


def test_two_classes_named_by_truth_values(device):
    features, labels = _classes(7, classes=2)
    value = float(nc1(put(device, features), put(device, labels == 1, torch.bool)))
    assert value == pytest.approx(reference.nc1(features, labels), rel=1e-9)


def test_order_of_samples(device):
    features, labels = _classes(8)
    order = np.random.default_rng(8).permutation(90)
    value = float(nc1(put(device, features[order]), put(device, labels[order], torch.int64)))
    assert value == pytest.approx(reference.nc1(features, labels), rel=1e-9)


@pytest.mark.parametrize("constant", [0.0, 0.1, 1e6])
def test_identical_means_are_undefined(device, constant):
    flat = put(device, np.full((30, 4), constant))
    mirrored = put(device, constant + np.array([[1.0], [-1.0], [1.0], [-1.0]]))
    for features in (flat, mirrored):
        labels = torch.arange(len(features)).to(device) // 2 % 2
        with pytest.warns(DegenerateWarning, match="fewer than two distinct class means"):
            assert math.isnan(float(nc1(features, labels)))


def test_one_class_is_undefined(device):
    features, labels = _classes(9)
    with pytest.warns(DegenerateWarning, match="fewer than two distinct class means"):
        assert math.isnan(
            float(nc1(put(device, features), put(device, 0 * labels + 4, torch.int64)))
        )


def test_many_networks_at_once(device):
    cases = [_classes(seed, classes=3) for seed in (10, 11)]
    labels = cases[0][1]
    features = np.stack([cases[0][0], cases[1][0], np.full((90, 6), 0.1)])
    values = within_over_between(put(device, features), put(device, labels, torch.int64))
    assert values.shape == (3,)
    for k in range(2):
        assert float(values[k]) == pytest.approx(reference.nc1(features[k], labels), rel=1e-9)
    assert math.isnan(float(values[2]))


@pytest.mark.parametrize(
    ("labels", "got"),
    [
        (torch.arange(8.0), "torch.float32"),
        (torch.arange(7), r"shape \(7,\)"),
        (torch.eye(8, dtype=torch.int64), r"shape \(8, 8\)"),
        (torch.arange(8).to(torch.complex64), "torch.complex64"),
    ],
)
def test_labels_must_be_one_integer_a_sample(labels, got):
    with pytest.raises(RichbookError, match=f"^labels: expected 8 integers.*{got}"):
        nc1(torch.randn(8, 3), labels)


def test_features_must_be_samples_of_finite_numbers():
    features = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    features[6, 0] = math.inf
    with pytest.raises(RichbookError, match="^features: row 6 contains an infinity"):
        nc1(features, torch.arange(8) % 2)
    with pytest.raises(RichbookError, match=r"^features: expected shape \(n, d\)"):
        nc1(features[:, 0], torch.arange(8) % 2)
