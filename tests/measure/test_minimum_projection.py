"""The minimum projection T_MP against the n×n projector of its definition."""

import math

import numpy as np
import pytest
import torch

from richbook.measure import FeatureKernel, MinimumProjection, RichbookError, d_lr
from tests.measure import reference
from tests.measure.reference import array, put


def _zero_sum(seed, n=60, c=4, offset=0.0):
    outputs = reference.problem(seed, n=n, c=c)[1]
    return reference.zero_sum(outputs + offset * np.arange(c))


KINDS = {  # outputs and the dimension of their span
    "full": (lambda: reference.problem(0)[1], 4),
    "on an offset": (lambda: reference.problem(0)[1] + 1e3, 4),
    "zero-sum": (lambda: _zero_sum(1), 3),
    "zero-sum on an offset": (lambda: _zero_sum(2, offset=20.0), 3),
    "sum to one": (lambda: reference.softmax(reference.problem(3)[1]), 4),
    "with a bias": (lambda: np.column_stack([reference.problem(4)[1], np.full(60, 0.1)]), 5),
    "repeated": (lambda: reference.problem(5)[1][:, [0, 1, 0, 1]], 2),
    "constant": (lambda: np.full((60, 3), 0.1), 1),
    "zero": (lambda: np.zeros((60, 3)), 0),
    "as many as samples": (lambda: reference.problem(6, n=6, c=6)[1], 6),
    "more than samples": (lambda: reference.problem(6, n=6, c=9)[1], 6),
}


@pytest.fixture(params=KINDS)
def outputs_and_rank(request):
    make, rank = KINDS[request.param]
    return make(), rank


def _matrix(operator, device, n):
    """An operator as an n×n matrix: what it does to the functions that are 1 at one sample."""
    return array(operator(put(device, np.eye(n))))


def test_rank_and_projector(device, outputs_and_rank):
    outputs, rank = outputs_and_rank
    projection = MinimumProjection.from_outputs(put(device, outputs))
    assert projection.rank == rank
    projector = _matrix(projection.project, device, len(outputs))
    np.testing.assert_allclose(projector, reference.span_projector(outputs, rank), atol=1e-8)
    np.testing.assert_allclose(projector, projector.T, atol=1e-12)
    np.testing.assert_allclose(projector @ projector, projector, atol=1e-9)
    assert np.trace(projector) == pytest.approx(rank, abs=1e-9)
    # Functions in the span stay as they are.
    size = 1 + np.abs(outputs).max()
    np.testing.assert_allclose(
        array(projection.project(put(device, outputs))), outputs, atol=1e-9 * size
    )


def test_operator_with_weights(device, outputs_and_rank):
    outputs, rank = outputs_and_rank
    projection = MinimumProjection.from_outputs(put(device, outputs), a1=0.25, a2=3.0)
    wanted = reference.minimum_projection(outputs, rank, a1=0.25, a2=3.0)
    np.testing.assert_allclose(_matrix(projection.apply, device, len(outputs)), wanted, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["zero-sum", "sum to one"])
def test_rank_in_lower_precision(device, kind, dtype):
    make, rank = KINDS[kind]
    low = put(device, make(), dtype)
    assert MinimumProjection.from_outputs(low).rank == rank
    cast = MinimumProjection.from_outputs(low.float(), precision=dtype)
    assert cast.rank == rank
    projector = _matrix(cast.project, device, 60)
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    np.testing.assert_allclose(projector, reference.span_projector(make(), rank), atol=tolerance)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("n", "c", "offset"), [(30, 10, 30.0), (60, 6, 20.0), (1000, 10, 3.0)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rounding_on_an_offset_is_not_the_constant(device, dtype, n, c, offset, seed):
    """Outputs that sum to zero hold no constant, though rounding tilts their empty direction."""
    rng = np.random.default_rng(seed)
    outputs = reference.zero_sum(rng.normal(size=(n, c)) + offset * rng.normal(size=c))
    assert MinimumProjection.from_outputs(put(device, outputs, dtype)).rank == c - 1


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("condition", [1e3, 1e4])
@pytest.mark.parametrize(("offset", "constant"), [(0.3, 0), (3.0, 0), (0.3, 1), (3.0, 1)])
def test_rank_survives_an_ill_conditioned_mixing(device, offset, constant, condition, seed):
    """Zero-sum outputs have rank c − 1, and c once the constant is added to one of them."""
    rng = np.random.default_rng(seed)
    outputs = reference.zero_sum(rng.normal(size=(60, 6)) + offset * rng.normal(size=6))
    outputs[:, 0] += constant
    mixed = outputs @ reference.invertible(rng, 6, condition)
    assert MinimumProjection.from_outputs(put(device, mixed)).rank == 5 + constant


def test_one_function(device):
    outputs = reference.problem(7)[1]
    projection = MinimumProjection.from_outputs(put(device, outputs[:, 0]))
    assert projection.rank == 1
    function = outputs[:, 1]
    wanted = outputs[:, 0] * (outputs[:, 0] @ function) / (outputs[:, 0] @ outputs[:, 0])
    got = projection.project(put(device, function))
    assert got.shape == (60,)
    np.testing.assert_allclose(array(got), wanted, atol=1e-12)


def test_richness_is_one_minus_the_alignment_of_the_two_operators(device):
    """The public operators, made into n×n matrices, give the public D_LR."""
    features, outputs = (put(device, values) for values in reference.problem(8))
    kernel = _matrix(FeatureKernel.from_features(features).apply, device, 60)
    projection = _matrix(MinimumProjection.from_outputs(outputs, a1=2.0).apply, device, 60)
    expected = 1 - reference.operator_cka(kernel, projection)
    assert float(d_lr(features, outputs)) == pytest.approx(expected, abs=1e-10)


def test_outputs_are_neither_changed_nor_kept_in_a_graph(device):
    outputs = reference.problem(9)[1]
    leaf = put(device, outputs).requires_grad_()
    projection = MinimumProjection.from_outputs(leaf)
    assert not projection.project(put(device, outputs)).requires_grad
    np.testing.assert_array_equal(array(leaf), outputs)


@pytest.mark.parametrize("weight", [0.0, -1.0, math.nan])
@pytest.mark.parametrize("name", ["a1", "a2"])
def test_weights_must_be_positive(name, weight):
    with pytest.raises(RichbookError, match=f"^{name}: expected a positive weight"):
        MinimumProjection.from_outputs(torch.randn(9, 2), **{name: weight})


def test_what_cannot_be_projected_on():
    outputs = torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
    bad = outputs.clone()
    bad[4, 2] = math.inf
    for wrong, message in [
        (outputs[None], r"^outputs: expected shape \(n, d\)"),
        (outputs[:1], "^outputs: expected at least 2 samples"),
        (bad, "^outputs: row 4 contains an infinity"),
        (torch.arange(9), "^outputs: .*class labels"),
    ]:
        with pytest.raises(RichbookError, match=message):
            MinimumProjection.from_outputs(wrong)
    with pytest.raises(RichbookError, match="^precision: expected a floating-point"):
        MinimumProjection.from_outputs(outputs, precision=torch.int8)


def test_what_cannot_be_projected():
    outputs = torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
    projection = MinimumProjection.from_outputs(outputs)
    for call in (projection.project, projection.apply):
        with pytest.raises(RichbookError, match="same samples .*values"):
            call(outputs[:8])
        with pytest.raises(RichbookError, match="^values: row 0 contains nan"):
            call(outputs * math.nan)
