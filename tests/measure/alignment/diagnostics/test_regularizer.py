"""The regulariser against its definition, its invariances, its gradients and its errors."""

import math

import numpy as np
import pytest
import torch

from richbook.measure import RichbookError
from richbook.measure.alignment.diagnostics.regularizer import AlignmentRegularizer
from tests.measure.capture.networks import drawn
from tests.measure.reference import array, orthogonal, put

SHAPES = [(20, 3, 5), (20, 5, 3), (4, 6, 3), (50, 1, 4), (50, 4, 1), (1, 3, 4)]


def by_definition(h, weight, side, strength=1.0):
    h, weight = array(h), array(weight)
    moment = h.T @ h / len(h)
    gram = weight @ weight.T if side == "output" else weight.T @ weight
    sizes = np.linalg.norm(moment) * np.linalg.norm(gram)
    return strength * (1 - np.trace(moment @ gram) / sizes)


@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize(("n", "out", "into"), SHAPES)
def test_equals_the_definition(device, n, out, into, side):
    weight = put(device, drawn(out, into).double())
    h = put(device, drawn(n, out if side == "output" else into, seed=1).double())
    wanted = by_definition(h, weight, side, 0.3)
    for asked in (None, side):
        value = AlignmentRegularizer(0.3, asked)(h, weight)
        assert value.shape == () and value.dtype == torch.float64
        assert float(value) == pytest.approx(wanted, abs=1e-14)


@pytest.mark.parametrize("side", ["input", "output"])
def test_a_square_weight_needs_a_side(side):
    weight, h = drawn(4, 4).double(), drawn(9, 4, seed=1).double()
    found = float(AlignmentRegularizer(1, side)(h, weight))
    assert found == pytest.approx(by_definition(h, weight, side), abs=1e-14)
    with pytest.raises(RichbookError, match=r'side: a square weight \(4, 4\).*side="output"'):
        AlignmentRegularizer(1)(h, weight)


@pytest.mark.parametrize("side", ["input", "output"])
def test_gradients(side):
    weight = drawn(3, 5).double().requires_grad_()
    h = drawn(7, 3 if side == "output" else 5, seed=1).double().requires_grad_()
    penalty = AlignmentRegularizer(0.7, side)
    assert torch.autograd.gradcheck(penalty, (h, weight))
    assert torch.autograd.gradgradcheck(penalty, (h, weight))


def test_the_gradient_leads_to_alignment():
    weight, h = drawn(3, 6).double(), drawn(10, 3, seed=1).double().requires_grad_()
    penalty, values = AlignmentRegularizer(1.0), []
    for _ in range(300):
        value = penalty(h, weight)
        (slope,) = torch.autograd.grad(value, h)
        with torch.no_grad():
            h -= slope
        values.append(float(value.detach()))
    assert values[0] > 0.1 and values[-1] < 1e-3


def test_zero_where_aligned_and_strength_where_nothing_is_shared():
    weight = drawn(4, 6).double()
    root = torch.linalg.cholesky(weight @ weight.T)  # rows of rootᵀ have the moment W Wᵀ / 4
    assert float(AlignmentRegularizer(2.0)(5 * root.T, weight)) == pytest.approx(0, abs=1e-14)
    for seed in range(20):  # rounding never makes it negative
        weight = drawn(5, 5, seed=seed)
        assert float(AlignmentRegularizer(2.0, "input")(weight, weight)) >= 0
    apart = torch.zeros(2, 3), torch.zeros(4, 3)
    apart[0][:, 0], apart[1][:, 1:] = 1, 1
    assert float(AlignmentRegularizer(2.0)(*apart)) == 2


@pytest.mark.parametrize("side", ["input", "output"])
def test_invariances(side):
    rng = np.random.default_rng(0)
    weight, h = drawn(3, 5).double(), drawn(9, 3 if side == "output" else 5, seed=1).double()
    left, right = (torch.from_numpy(orthogonal(rng, size)) for size in (3, 5))
    own = left if side == "output" else right
    penalty = AlignmentRegularizer(1, side)
    value = float(penalty(h, weight))
    for moved in (
        penalty(1e8 * h, weight),
        penalty(h, -1e-9 * weight),
        penalty(h[torch.randperm(9)], weight),
        penalty(torch.cat([h, h]), weight),
        penalty(h @ own.T, left @ weight @ right.T),
        penalty(h, weight @ right if side == "output" else left @ weight),
    ):
        assert float(moved) == pytest.approx(value, abs=1e-12)
    assert abs(float(penalty(h @ own.T, weight)) - value) > 0.01


def test_tokens_are_samples():
    weight, h = drawn(3, 5), drawn(4, 6, 5)
    flat = AlignmentRegularizer(1)(h.reshape(24, 5), weight)
    assert float(AlignmentRegularizer(1)(h, weight)) == pytest.approx(float(flat), abs=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision(device, dtype):
    """Computed in float32 whatever autocast says; large values do not overflow."""
    weight, h = put(device, drawn(3, 5), dtype), put(device, 1e3 * drawn(9, 5), dtype)
    with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
        value = AlignmentRegularizer(1)(h, weight)
    assert value.dtype == torch.float32
    assert float(value) == pytest.approx(by_definition(h, weight, "input"), abs=1e-5)
    huge = AlignmentRegularizer(1)(h.float() * 1e12, weight.float() * 1e-12)
    assert float(huge) == pytest.approx(float(value), abs=1e-5)


def test_trains_beside_a_loss():
    """In a training step, with the representation of the layer in the graph."""
    layer = torch.nn.Linear(5, 3)
    outputs = layer(drawn(9, 5))
    (outputs.square().mean() + AlignmentRegularizer(0.1)(outputs, layer.weight)).backward()
    assert bool(layer.weight.grad.isfinite().all()) and float(layer.weight.grad.norm()) > 0


@pytest.mark.parametrize(
    ("strength", "side", "message"),
    [
        (-1, None, "strength: expected a finite number not below 0, got -1"),
        (math.nan, None, "strength: .* got nan"),
        (math.inf, None, "strength: .* got inf"),
        ("strong", None, "strength: .* got 'strong'"),
        (True, None, "strength: .* got True"),
        (1, "left", 'side: expected "input", "output" or None, got \'left\''),
    ],
)
def test_settings(strength, side, message):
    with pytest.raises(RichbookError, match=message):
        AlignmentRegularizer(strength, side)


@pytest.mark.parametrize(
    ("h", "weight", "side", "message"),
    [
        (drawn(9, 4), drawn(3, 5), None, r"h: expected width 3 .* or 5 .* shape \(3, 5\), got 4"),
        (drawn(9, 3), drawn(3, 5), "input", "h: expected width 5, the layer's input, got 3"),
        (drawn(9, 5), drawn(3, 5), "output", "h: expected width 3, the layer's output, got 5"),
        (drawn(5), drawn(3, 5), None, r"h: expected a tensor .*\(n, d\), got \(5,\)"),
        (drawn(9, 5), drawn(3), None, r"weight: expected .*\(out, in\), got \(3,\)"),
        (drawn(9, 5), drawn(3, 5, 1, 1), None, r"weight: .* got \(3, 5, 1, 1\)"),
        (drawn(9, 5).long(), drawn(3, 5), None, "h: .* got .* of torch.int64"),
        ([[1.0, 2.0]], drawn(3, 2), None, "h: .* got list"),
        (drawn(0, 5), drawn(3, 5), None, r"h: it is empty, shape \(0, 5\)"),
        (torch.zeros(9, 5), drawn(3, 5), None, "h: it is zero everywhere, .* units before it die"),
        (drawn(9, 5), torch.zeros(3, 5), None, "weight: it is zero everywhere, .*starts at zero"),
        (drawn(9, 5) * torch.nan, drawn(3, 5), None, "h: it is nan or infinity"),
        (drawn(9, 5), drawn(3, 5) / 0, None, "weight: it is nan or infinity"),
    ],
)
def test_arguments(h, weight, side, message):
    with pytest.raises(RichbookError, match=message):
        AlignmentRegularizer(1, side)(h, weight)
