"""Class moments against numpy, in any cut, order and precision, and what they refuse."""

import math

import numpy as np
import pytest
import torch

from richbook.measure import RichbookError
from richbook.measure.class_moments import ClassMoments
from tests.measure import reference
from tests.measure.collapse_reference import labelled, means_of
from tests.measure.reference import put


def within_scatter(features, labels):
    features, labels = reference.array(features), np.asarray(labels)
    rest = features - np.array([means_of(features, labels)[c] for c in labels.tolist()])
    return rest.T @ rest


def stream_of(features, labels, cut, num_classes=None):
    stream = ClassMoments(num_classes)
    for rows, names in zip(features.split(cut), labels.split(cut), strict=True):
        stream.update(rows, names)
    return stream


def agree(stream, features, labels, size, rel=1e-12):
    """Equal to numpy, relative to the largest entry."""
    means, scatter = means_of(features, labels), within_scatter(features, labels)
    counts = np.bincount(np.asarray(labels), minlength=size)
    assert stream.counts.tolist() == counts.tolist() and stream.count == len(labels)
    assert stream.means.shape == (size, scatter.shape[0]) and stream.means.dtype == torch.float64
    for c in range(size):
        row = reference.array(stream.means[c])
        if c in means:
            assert np.abs(row - means[c]).max() <= rel * max(1, np.abs(means[c]).max())
        else:
            assert np.isnan(row).all()
    assert stream.within_scatter.dtype == torch.float64
    found = reference.array(stream.within_scatter)
    assert np.abs(found - scatter).max() <= rel * np.abs(scatter).max()


@pytest.mark.parametrize("cut", [1, 7, 90])
@pytest.mark.parametrize("num_classes", [None, 9])
def test_equals_numpy_in_any_cut(device, cut, num_classes):
    features, labels = labelled(0, classes=5)
    labels = labels + (labels > 2)  # class 3 never occurs
    stream = stream_of(put(device, features), put(device, labels, torch.int64), cut, num_classes)
    agree(stream, features, labels, num_classes or 6)


def test_more_rows_than_a_block(device):
    features, labels = labelled(1, n=9000, classes=3)
    stream = stream_of(put(device, features), put(device, labels, torch.int64), 9000)
    agree(stream, features, labels, 3)


def test_grows_with_the_largest_label(device):
    features, labels = labelled(2, classes=6)
    order = np.argsort(labels, kind="stable")
    stream = stream_of(put(device, features[order]), put(device, labels[order], torch.int64), cut=4)
    agree(stream, features[order], labels[order], 6)


def test_merging_in_any_order(device):
    features, labels = labelled(3, classes=4)
    parts = [
        stream_of(put(device, features[rows]), put(device, labels[rows], torch.int64), 90)
        for rows in (slice(0, 20), slice(20, 21), slice(21, 90))
    ]
    a, b, c = parts
    for merged in (
        a.merge(b).merge(c),
        c.merge(a.merge(b)),
        ClassMoments().merge(b.merge(c.merge(a))),
    ):
        agree(merged, features, labels, 4)
    assert (a.count, b.count, c.count) == (20, 1, 69)  # neither operand changes
    wide = ClassMoments(7).merge(a)
    assert wide.num_classes == 7 and wide.counts.tolist()[4:] == [0, 0, 0]
    assert ClassMoments(7).merge(ClassMoments()) == ClassMoments(7)


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-6)])
@pytest.mark.parametrize("offset", [0.0, 1e3, 1e6])
def test_low_precision_with_an_offset(device, dtype, error, offset):
    """Right for the numbers as they are stored: rounding them is the caller's affair."""
    features, labels = labelled(4, n=600, spread=1.0, offset=0.0)
    if dtype == torch.bfloat16:
        features = 100 * features  # so that rounding leaves something to measure at 1e3
    stored = put(device, features + offset, dtype)
    for cut in (50, 600):
        stream = stream_of(stored, put(device, labels, torch.int64), cut)
        agree(stream, stored, labels, 4, rel=error)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.1, 1e3 + 0.1, -1e8])
def test_a_class_that_is_one_point_does_not_scatter(device, dtype, value):
    labels = put(device, np.arange(50) % 3, torch.int64)
    features = put(device, np.array([value, 2 * value, 3 * value]), dtype)[labels][:, None]
    stream = stream_of(features, labels, 50)
    assert float(stream.within_scatter) == 0
    assert torch.equal(stream.means, features[:3].double().to(stream.means.device))


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_scales_whose_squares_leave_float32(device, scale):
    features, labels = labelled(5)
    stored = put(device, scale * features, torch.float32)
    stream = stream_of(stored, put(device, labels, torch.int64), 30)
    agree(stream, stored, labels, 4)


def test_more_classes_than_a_block_has_rows(device):
    rng = np.random.default_rng(6)
    features, labels = rng.normal(size=(400, 3)), rng.integers(0, 150, 400)
    stream = stream_of(put(device, features), put(device, labels, torch.int64), 40, 150)
    agree(stream, features, labels, 150)


def test_integers_and_no_rows(device):
    labels = torch.tensor([0, 1, 1, 0], device=device)
    stream = ClassMoments()
    stream.update(torch.tensor([[1], [5], [7], [3]], device=device), labels)
    assert stream.means.tolist() == [[2.0], [6.0]] and float(stream.within_scatter) == 4
    stream.update(torch.ones(0, 1, device=device), labels[:0])
    assert stream.count == 4


def test_keeps_no_graph(device):
    features = torch.ones(4, 2, device=device, requires_grad=True)
    stream = ClassMoments()
    stream.update(features * 2, torch.tensor([0, 1, 0, 1], device=device))
    assert not stream.means.requires_grad and not stream.within_scatter.requires_grad


def test_autocast_changes_nothing(device):
    features, labels = labelled(7)
    stored, names = put(device, features, torch.float32), put(device, labels, torch.int64)
    plain = stream_of(stored, names, 30).within_scatter
    with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
        assert torch.equal(stream_of(stored, names, 30).within_scatter, plain)


BAD = torch.ones(4, 3)
BAD[2, 1] = math.nan
WRONG = {
    "nan": (BAD, torch.zeros(4).long(), "^features: row 12 contains nan"),
    "narrower": (torch.ones(4, 2), torch.zeros(4).long(), "^features: expected 3 columns as in"),
    "not rows": (torch.ones(3), torch.zeros(3).long(), r"^features: expected shape \(n, d\)"),
    "too few labels": (torch.ones(4, 3), torch.zeros(3).long(), "^labels: expected 4 integers"),
    "real labels": (torch.ones(4, 3), torch.zeros(4), "^labels: expected 4 integers"),
    "negative": (torch.ones(4, 3), -torch.ones(4).long(), "^labels: expected classes numbered"),
    "beyond": (torch.ones(4, 3), torch.full((4,), 5), "^labels: expected classes from 0 to 4, got"),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors_name_the_argument_and_add_nothing(case):
    features, labels, message = WRONG[case]
    stream = ClassMoments(5)
    stream.update(torch.arange(30.0).reshape(10, 3), torch.arange(10) % 2)
    before = {name: getattr(stream, name).clone() for name in ("counts", "means", "within_scatter")}
    with pytest.raises(RichbookError, match=message):
        stream.update(features, labels)
    for name, value in before.items():
        assert torch.equal(getattr(stream, name).nan_to_num(-1), value.nan_to_num(-1))


def test_a_nan_in_the_second_block_adds_nothing_of_the_first():
    features = torch.ones(5000, 2)
    features[4500, 0] = math.nan
    stream = ClassMoments()
    with pytest.raises(RichbookError, match="^features: row 4500 contains nan"):
        stream.update(features, torch.zeros(5000).long())
    assert stream.count == 0 and stream.means is None


def test_merging_what_does_not_fit():
    a, b = ClassMoments(3), ClassMoments(4)
    with pytest.raises(RichbookError, match="^num_classes: expected the same in both, got 3 and 4"):
        a.merge(b)
    a.update(torch.ones(2, 3), torch.tensor([0, 1]))
    c = ClassMoments()
    c.update(torch.ones(2, 2), torch.tensor([0, 1]))
    with pytest.raises(RichbookError, match="^features: expected 3 columns as in the samples"):
        a.merge(c)
    d = ClassMoments()
    d.update(torch.ones(1, 3), torch.tensor([7]))
    with pytest.raises(RichbookError, match="^labels: expected classes from 0 to 2, got 7"):
        a.merge(d)
