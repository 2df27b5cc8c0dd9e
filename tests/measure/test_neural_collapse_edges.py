"""Neural collapse where it is undefined, and arguments that do not fit."""

import math
import warnings

import numpy as np
import pytest
import torch

from richbook.measure import DegenerateWarning, RichbookError
from richbook.measure.class_moments import ClassMoments
from richbook.measure.collapse import collapse_from_moments, disagreement, nc1, neural_collapse
from tests.measure import collapse_reference as definition
from tests.measure.collapse_reference import labelled, simplex
from tests.measure.reference import put

NAMES = ("nc1", "nc2_norm", "nc2_angle", "nc3", "nc4")


def streamed(features, labels, weight=None):
    stream = ClassMoments(None if weight is None else len(weight))
    for rows, names in zip(features.split(5), labels.split(5), strict=True):
        stream.update(rows, names)
    return collapse_from_moments(stream, weight)


FORMS = pytest.mark.parametrize("form", [neural_collapse, streamed])


def found_with_warnings(form, features, labels, weight=None):
    """The numbers, and what was said; every warning points at this file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = form(features, labels, weight).to_dict()
    assert {w.category for w in caught} <= {DegenerateWarning}
    assert {w.filename for w in caught} <= {__file__}
    return found, [str(w.message) for w in caught]


@FORMS
@pytest.mark.parametrize("head", [False, True])
def test_one_class(device, form, head):
    features = put(device, labelled(0)[0])
    weight = torch.ones(4, 6, dtype=torch.float64, device=device) if head else None
    labels = torch.full((90,), 2, device=device)
    found, said = found_with_warnings(form, features, labels, weight)
    assert all(math.isnan(found[name]) for name in NAMES)
    assert said == [
        "fewer than two distinct class means: neural collapse is undefined, returning nan"
    ]


@FORMS
@pytest.mark.parametrize("constant", [0.0, 0.1, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_constant_features_and_identical_means(device, form, constant, dtype):
    """A dead layer is not a collapsed one."""
    labels = torch.arange(24, device=device) // 2 % 3
    flat = put(device, np.full((24, 4), constant), dtype)
    mirrored = put(device, constant + np.tile([[1.0], [-1.0]], (12, 1)), dtype)
    for features in (flat, mirrored):
        weight = torch.ones(3, features.shape[1], dtype=dtype, device=device)
        found, said = found_with_warnings(form, features, labels, weight)
        assert all(math.isnan(found[name]) for name in NAMES) and len(said) == 1


@FORMS
def test_two_of_three_means_coincide(device, form):
    """Not collapsed, and not undefined either: the simplex is far away."""
    corners = simplex(3, 5, np.random.default_rng(1))[[0, 1, 1]]
    labels = np.arange(12) % 3
    found, said = found_with_warnings(
        form, put(device, corners[labels]), put(device, labels, torch.int64)
    )
    assert not said
    assert found["nc2_angle"] == pytest.approx(definition.nc2_angle(corners[labels], labels))
    assert found["nc2_angle"] > 0.5 and found["nc2_norm"] > 0.1


@FORMS
def test_a_mean_at_the_centre_has_no_angle(device, form):
    features = put(device, np.repeat([[-1.0], [0.0], [1.0]], 4, axis=0))
    labels = torch.arange(12, device=device) // 4
    found, said = found_with_warnings(form, features, labels)
    assert math.isnan(found["nc2_angle"]) and found["nc1"] == pytest.approx(0, abs=1e-20)
    assert found["nc2_norm"] == pytest.approx(math.sqrt(2 / 9) / (2 / 3))
    assert said == ["a class mean lies at the centre of all, without an angle: nc2_angle is nan"]


@FORMS
def test_one_sample_a_class_says_nothing_about_spread(device, form):
    corners = simplex(4, 6, np.random.default_rng(2))
    found, said = found_with_warnings(
        form, put(device, corners), torch.arange(4, device=device), put(device, corners)
    )
    assert math.isnan(found["nc1"]) and len(said) == 1 and "NC1 is 0/0" in said[0]
    assert found["nc2_angle"] == pytest.approx(0, abs=1e-12)
    assert found["nc3"] == pytest.approx(0, abs=1e-12)
    with pytest.warns(DegenerateWarning, match="no class has two samples"):
        assert math.isnan(float(nc1(put(device, corners), torch.arange(4, device=device))))


@FORMS
def test_an_empty_class_is_left_out(device, form):
    """Labels 0, 1, 3 of four. What is left of a simplex is a simplex, but around another centre:
    W, whose rows no longer sum to zero, is at cos θ = √((C' − 1) / (C' (1 − 1/C))) from M."""
    corners = simplex(4, 6, np.random.default_rng(3))
    labels = np.array([0, 1, 3])[np.arange(12) % 3]
    found, said = found_with_warnings(
        form, put(device, corners[labels]), put(device, labels, torch.int64), put(device, corners)
    )
    assert [found[name] for name in NAMES[:3]] == pytest.approx([0, 0, 0], abs=1e-12)
    cosine = math.sqrt((3 - 1) / (3 * (1 - 1 / 4)))
    assert found["nc3"] == pytest.approx(math.sqrt(2 - 2 * cosine))
    assert len(said) == 1 and said[0].startswith("labels: 1 of 4 classes do not occur (2)")


@FORMS
def test_gaps_are_named_with_and_without_a_head(device, form):
    features, labels = labelled(4, classes=3)
    names = np.array([0, 9, 12])[labels]
    found, said = found_with_warnings(form, put(device, features), put(device, names, torch.int64))
    assert said == ["labels: 10 of 13 classes do not occur (1, 2, 3, 4, 5, …): they are left out"]
    plain, said = found_with_warnings(form, put(device, features), put(device, labels, torch.int64))
    assert not said and plain == pytest.approx(found, rel=1e-12, nan_ok=True)


def test_the_nearest_centre_is_one_that_exists_and_the_head_may_choose_any(device):
    """Class 1 has no samples; the head still decides for it at one of three points."""
    features = put(device, [[0.0], [0.0], [4.0], [5.0]])
    labels = torch.tensor([0, 0, 2, 2], device=device)
    weight, bias = put(device, [[0.0], [1.0], [2.0]]), put(device, [1.0, -1.0, -8.9])
    with pytest.warns(DegenerateWarning, match="do not occur"):
        # outputs: (1, −1, −8.9) at 0, (1, 3, −0.9) at 4, (1, 4, 1.1) at 5
        assert float(neural_collapse(features, labels, weight, bias).nc4) == 0.5


@FORMS
def test_a_head_of_zeros_decides_nothing(device, form):
    features, labels = labelled(5)
    found, said = found_with_warnings(
        form,
        put(device, features),
        put(device, labels, torch.int64),
        torch.zeros(4, 6, device=device),
    )
    assert math.isnan(found["nc3"]) and math.isnan(found["nc4"]) and found["nc1"] > 0
    assert said == ["weight is zero: a head that decides nothing; nc3 and nc4 are nan"]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64, torch.bool])
def test_labels_of_any_integer_type(device, dtype):
    features, labels = labelled(6, classes=2)
    found = neural_collapse(put(device, features), put(device, labels, dtype)).to_dict()
    wanted = neural_collapse(put(device, features), put(device, labels, torch.int64)).to_dict()
    assert found == pytest.approx(wanted, nan_ok=True)


FEATURES, LABELS = (
    torch.randn(8, 3, generator=torch.Generator().manual_seed(0)),
    torch.arange(8) % 4,
)
WEIGHT, BIAS = torch.eye(4, 3), torch.zeros(4)
LATE = FEATURES.clone()
LATE[6, 0] = math.inf

WRONG = {
    "labels shorter": ((FEATURES, LABELS[:7]), r"^labels: expected 8 integers.*shape \(7,\)"),
    "labels real": ((FEATURES, LABELS.float()), "^labels: expected 8 integers.*torch.float32"),
    "labels one-hot": ((FEATURES, torch.eye(8).long()), r"^labels: expected 8 .*shape \(8, 8\)"),
    "labels text": ((FEATURES, list("abcdefgh")), "^labels: expected 8 integers.*got list"),
    "labels negative": (
        (FEATURES, LABELS - 1),
        "^labels: .* numbered from 0, got -1",
    ),
    "labels unbounded": ((FEATURES, LABELS * 10**9), "^labels: .* at most 1000000, got 3000000000"),
    "labels beyond the head": (
        (FEATURES, LABELS + 1, WEIGHT),
        "^labels: expected classes from 0 to 3, got 4",
    ),
    "weight too wide": (
        (FEATURES, LABELS, torch.ones(4, 5)),
        r"^weight: expected shape \(C, 3\), a row a class.*got \(4, 5\)",
    ),
    "weight a vector": ((FEATURES, LABELS, torch.ones(4)), r"^weight: expected shape"),
    "weight nan": ((FEATURES, LABELS, WEIGHT / 0), "^weight: row 0 contains"),
    "bias alone": ((FEATURES, LABELS, None, BIAS), "^bias: expected only together with weight"),
    "bias too long": (
        (FEATURES, LABELS, WEIGHT, torch.zeros(5)),
        r"^bias: expected 4 numbers, one for each row of weight, got shape \(5,\)",
    ),
    "bias nan": ((FEATURES, LABELS, WEIGHT, BIAS * math.nan), "^bias: row 0 contains nan"),
    "features infinite": ((LATE, LABELS), "^features: row 6 contains an infinity"),
    "features a vector": ((FEATURES[:, 0], LABELS), r"^features: expected shape \(n, d\)"),
    "one sample": ((FEATURES[:1], LABELS[:1]), "^features: expected at least 2 samples"),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors_name_the_argument(case):
    arguments, message = WRONG[case]
    with pytest.raises(RichbookError, match=message):
        neural_collapse(*arguments)


def test_errors_of_the_streamed_form():
    with pytest.raises(RichbookError, match="^class_moments: expected at least 2 samples"):
        collapse_from_moments(ClassMoments())
    stream = ClassMoments()
    stream.update(FEATURES, LABELS)
    with pytest.raises(RichbookError, match=r"^weight: expected shape \(C, 3\)"):
        collapse_from_moments(stream, torch.ones(4, 5))
    with pytest.raises(RichbookError, match="^weight: expected a row for each of 4 classes, got 3"):
        collapse_from_moments(stream, torch.ones(3, 3))


def test_errors_of_the_disagreement():
    means = torch.eye(4, 3)
    with pytest.raises(RichbookError, match="^predicted: expected 8 integers"):
        disagreement(FEATURES, means, FEATURES)
    with pytest.raises(RichbookError, match=r"^means: expected shape \(C, 3\)"):
        disagreement(FEATURES, torch.eye(4), LABELS)
    with pytest.raises(RichbookError, match="^means: .* at least one row without nan"):
        disagreement(FEATURES, means * math.nan, LABELS)
