"""Moments: streaming, merging, networks side by side, and accuracy on hostile numbers."""

from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from richbook.measure import Moments, RichbookError
from richbook.measure import moments as moments_module
from richbook.measure.distance import low_rank_distance
from richbook.measure.richness import d_lr_from_moments
from tests.measure import reference
from tests.measure.reference import array, put

ARRAYS = ["feature_mean", "output_mean", "feature_scatter", "cross_scatter", "output_scatter"]


def expected_arrays(features, outputs):
    """The definitions, in numpy float64."""
    phi, f = features - features.mean(0), outputs - outputs.mean(0)
    return dict(
        zip(
            ARRAYS,
            [features.mean(0), outputs.mean(0), phi.T @ phi, phi.T @ f, f.T @ f],
            strict=True,
        )
    )


def assert_moments(moments, features, outputs, rtol=1e-9):
    assert moments.count == len(features)
    for name, wanted in expected_arrays(features, outputs).items():
        got = getattr(moments, name)
        assert got.dtype == torch.float64
        np.testing.assert_allclose(
            array(got), wanted, rtol=rtol, atol=rtol * np.abs(wanted).max(), err_msg=name
        )


def contents(moments):
    return {
        key: value.clone() if torch.is_tensor(value) else value
        for key, value in vars(moments).items()
    }


def assert_same(left, right):
    assert left.keys() == right.keys()
    for key in left:
        assert torch.equal(torch.as_tensor(left[key]), torch.as_tensor(right[key])), key


def test_of_one_sample_and_its_covariances(device):
    features, outputs = reference.problem(0)
    moments = Moments.of(put(device, features), put(device, outputs))
    assert_moments(moments, features, outputs)
    joint = np.cov(np.column_stack([features, outputs]).T, bias=True)
    np.testing.assert_allclose(
        array(moments.feature_covariance), joint[:8, :8], rtol=1e-10, atol=1e-12
    )
    np.testing.assert_allclose(
        array(moments.cross_covariance), joint[:8, 8:], rtol=1e-10, atol=1e-12
    )
    np.testing.assert_allclose(
        array(moments.output_covariance), joint[8:, 8:], rtol=1e-10, atol=1e-12
    )


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(5, 60),
    cuts=st.lists(st.integers(1, 59), max_size=6),
    rows=st.integers(1, 30),
)
def test_any_cut_and_any_order_of_merging(device, seed, n, cuts, rows):
    """Pieces of a stream, in blocks of any size, merged in any order: the moments of the whole."""
    rng = np.random.default_rng(seed)
    features, outputs = reference.problem(seed, n=n, p=3, c=2)
    edges = sorted({0, n, *(cut for cut in cuts if cut < n)})
    parts = []
    with mock.patch.object(moments_module, "BLOCK_ROWS", rows):
        for start, stop in zip(edges, edges[1:], strict=False):
            piece = Moments()
            piece.update(put(device, features[start:stop]), put(device, outputs[start:stop]))
            parts.append(piece)
    while len(parts) > 1:
        first, second, *others = (parts[k] for k in rng.permutation(len(parts)))
        parts = [first.merge(second), *others]
    assert_moments(parts[0], features, outputs)
    richness = d_lr_from_moments(parts[0], torch.float64)
    assert float(richness) == pytest.approx(reference.d_lr(features, outputs, rank=2), abs=1e-9)


def test_merge_is_associative_and_leaves_its_operands_alone(device):
    features, outputs = reference.problem(1, offset=1e3)
    a, b, c = (
        Moments.of(put(device, features[at]), put(device, outputs[at]))
        for at in (slice(0, 7), slice(7, 8), slice(8, 60))
    )
    before = contents(a), contents(b), contents(c)
    for merged in (a.merge(b).merge(c), a.merge(b.merge(c)), c.merge(a).merge(b)):
        assert_moments(merged, features, outputs, rtol=1e-8)
    for operand, was in zip((a, b, c), before, strict=True):
        assert_same(contents(operand), was)


def test_empty_moments_are_neutral(device):
    features, outputs = (put(device, values) for values in reference.problem(2))
    moments = Moments.of(features, outputs)
    assert_same(contents(Moments().merge(moments)), contents(moments))
    assert_same(contents(moments.merge(Moments())), contents(moments))
    assert Moments().merge(Moments()).count == 0
    moments.update(features[:0], outputs[:0])
    assert moments.count == 60
    copy = moments.merge(Moments())
    copy.update(features, outputs)
    assert moments.count == 60 and copy.count == 120


@pytest.mark.parametrize("name", ["features", "outputs"])
def test_an_update_that_fails_adds_nothing(device, name):
    features, outputs = reference.problem(3)
    stream = Moments.of(put(device, features), put(device, outputs))
    before = contents(stream)
    bad = {"features": features.copy(), "outputs": outputs.copy()}
    bad[name][40, 1] = np.nan  # the second block of 32 rows, after a good one
    with mock.patch.object(moments_module, "BLOCK_ROWS", 32):
        with pytest.raises(RichbookError, match=f"^{name}: row 100 contains nan"):
            stream.update(put(device, bad["features"]), put(device, bad["outputs"]))
    assert_same(contents(stream), before)
    stream.update(put(device, features), put(device, outputs))
    assert_moments(stream, np.tile(features, (2, 1)), np.tile(outputs, (2, 1)))


def test_wrong_widths_and_lengths():
    stream = Moments.of(torch.randn(5, 3), torch.randn(5, 2))
    for features, outputs in [((5, 4), (5, 2)), ((5, 3), (5, 1))]:
        with pytest.raises(RichbookError, match="expected 3 features and 2 outputs"):
            stream.update(torch.zeros(features), torch.zeros(outputs))
        with pytest.raises(RichbookError, match="expected 3 features and 2 outputs"):
            stream.merge(Moments.of(torch.zeros(features), torch.zeros(outputs)))
    with pytest.raises(RichbookError, match=r"same samples .*\(5, 3\).*\(4, 2\)"):
        stream.update(torch.zeros(5, 3), torch.zeros(4, 2))
    assert stream.count == 5


@pytest.mark.parametrize("name", ["feature_covariance", "cross_covariance", "output_covariance"])
def test_covariances_need_two_samples(name):
    for moments in (Moments(), Moments.of(torch.ones(1, 3), torch.ones(1, 2))):
        with pytest.raises(RichbookError, match="expected at least 2 samples"):
            getattr(moments, name)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_leading_dimensions_are_networks_side_by_side(device, dtype):
    problems = [reference.problem(seed, offset=seed) for seed in range(6)]
    features = put(device, [phi for phi, _ in problems], dtype).reshape(2, 3, 60, 8)
    outputs = put(device, [f for _, f in problems], dtype).reshape(2, 3, 60, 4)
    together = Moments()
    for block in (slice(0, 13), slice(13, 60)):
        together.update(features[..., block, :], outputs[..., block, :])
    values = low_rank_distance(together, tolerance=1e-6, dtype=dtype)
    assert values.shape == (2, 3)
    for k, index in enumerate(np.ndindex(2, 3)):
        of_one = {
            key: value if key == "count" else value[index] for key, value in vars(together).items()
        }
        tolerance = 1e-9 if dtype == torch.float64 else 1e-6
        assert_moments(Moments(**of_one), *problems[k], rtol=tolerance)
        assert float(values[index]) == pytest.approx(
            reference.d_lr(*problems[k], rank=4), abs=tolerance
        )


def test_a_degenerate_network_does_not_touch_its_neighbours(device):
    problems = [reference.problem(seed) for seed in range(3)]
    problems[1] = (np.full((60, 8), 0.1), problems[1][1])
    moments = Moments.of(*(put(device, [pair[k] for pair in problems]) for k in range(2)))
    values = low_rank_distance(moments, tolerance=1e-12, dtype=torch.float64)
    assert values.isnan().tolist() == [False, True, False]
    for k in (0, 2):
        assert float(values[k]) == pytest.approx(reference.d_lr(*problems[k], rank=4), abs=1e-12)


@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_float32_products_stay_accurate(device, offset):
    """Five blocks of 4096 rows and less: every entry is within 1e-6 of the largest."""
    rng = np.random.default_rng(4)
    features = rng.normal(size=(20_000, 40)) @ rng.normal(size=(40, 40)) + offset
    outputs = features[:, :3] - offset
    low = put(device, features, torch.float32), put(device, outputs, torch.float32)
    moments = Moments.of(*low, exact_outputs=False)
    assert_moments(moments, array(low[0]), array(low[1]), rtol=1e-6)


def test_exact_outputs_are_multiplied_in_float64(device):
    """Two outputs that differ by 1e-6: only float64 sees what is between them."""
    rng = np.random.default_rng(5)
    difference = 1e-6 * rng.normal(size=5000)
    first = rng.normal(size=5000)
    outputs = np.column_stack([first, first + difference])
    moments = Moments.of(
        put(device, rng.normal(size=(5000, 2)), torch.float32), put(device, outputs)
    )
    contrast = torch.tensor(
        [1.0, -1.0], dtype=torch.float64, device=moments.output_covariance.device
    )
    variance = float(contrast @ moments.output_covariance @ contrast)
    assert variance == pytest.approx(difference.var(), rel=1e-3)
