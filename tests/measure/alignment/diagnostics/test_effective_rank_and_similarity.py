"""Effective rank against closed forms; similarity of layers against CKA and plain cosines."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from richbook.measure import DegenerateWarning, RichbookError
from richbook.measure.alignment.diagnostics.effective_rank import effective_rank
from richbook.measure.alignment.diagnostics.layer_similarity import layer_similarity
from tests.measure import reference
from tests.measure.capture.networks import ResNet, drawn, mlp, seeded
from tests.measure.capture.test_as_found import snapshot
from tests.measure.reference import array, orthogonal, put

KINDS = ("entropy", "participation")


def moment_with(eigenvalues, seed=0):
    directions = orthogonal(np.random.default_rng(seed), len(eigenvalues))
    return directions * np.asarray(eigenvalues, dtype=float) @ directions.T


def by_definition(eigenvalues, kind):
    shares = [value / sum(eigenvalues) for value in eigenvalues if value > 0]
    if kind == "entropy":
        return math.exp(-sum(share * math.log(share) for share in shares))
    return 1 / sum(share**2 for share in shares)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "eigenvalues", [[3, 2, 1], [5], [1, 1, 1, 1], [2, 2, 0, 0], [1, 1e-3, 1e-6], [7, 1, 1, 0]]
)
def test_equals_the_definition(device, eigenvalues, kind):
    value = effective_rank(put(device, moment_with(eigenvalues)), kind)
    assert value.dtype == torch.float64 and value.shape == ()
    assert float(value) == pytest.approx(by_definition(eigenvalues, kind), rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_bounds_and_invariances(kind):
    rng = np.random.default_rng(1)
    for seed in range(20):
        eigenvalues = rng.exponential(size=6) ** 3
        moment = torch.from_numpy(moment_with(eigenvalues, seed))
        value = float(effective_rank(moment, kind))
        assert 1 <= value <= 6
        for scale in (1e-200, 1e60):
            assert float(effective_rank(scale * moment, kind)) == pytest.approx(value)
        assert value <= float(effective_rank(moment)) or kind == "entropy"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_features_in_lower_precision(dtype):
    features = drawn(200, 8)[:, :3] @ drawn(3, 8, seed=1)
    moment = (features.T @ features / 200).to(dtype)
    exact = array(moment)
    wanted = by_definition([v for v in np.linalg.eigvalsh(exact) if v > 1e-9], "participation")
    assert float(effective_rank(moment, "participation")) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind):
    factor = drawn(6, 4).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda f: effective_rank(f.T @ f, kind), (factor,))
    thin = drawn(2, 4).double().requires_grad_()  # two directions are zero
    (slope,) = torch.autograd.grad(effective_rank(thin.T @ thin, kind), thin)
    assert bool(slope.isfinite().all())


def test_zero_is_undefined():
    for kind in KINDS:
        with pytest.warns(DegenerateWarning, match="moment is zero"):
            assert math.isnan(float(effective_rank(torch.zeros(3, 3), kind)))


@pytest.mark.parametrize(
    ("moment", "kind", "message"),
    [
        (torch.eye(3), "stable", 'kind: expected "entropy" or "participation", got \'stable\''),
        (drawn(9, 3), "entropy", r"moment: .* \(d, d\), got \(9, 3\); for features .* / n"),
        (torch.zeros(0, 0), "entropy", r"moment: .* got \(0, 0\)"),
        ([[1.0]], "entropy", "moment: .* got list"),
        (drawn(3, 3), "entropy", "moment: expected a symmetric matrix, .* differs"),
        (torch.diag(torch.tensor([1.0, -0.1])), "entropy", "no negative eigenvalues.*-1.0e-01"),
        (torch.diag(torch.tensor([1.0, -0.1])), "participation", "no negative eigenvalues"),
        (torch.eye(3) * torch.nan, "entropy", "moment: row 0 contains nan"),
    ],
)
def test_errors(moment, kind, message):
    with pytest.raises(RichbookError, match=message):
        effective_rank(moment, kind)


@pytest.mark.parametrize("blocks", [1, 4])
def test_similarity_equals_definitions(device, blocks):
    model, x = seeded(mlp, device), drawn(60, 3).to(device)
    found = layer_similarity(model, list(x.split(60 // blocks)))
    assert found.names == ("0", "1", "2", "3")
    inside, values = [], x
    for part in model[:4]:
        values = part(values.clone())
        inside.append(array(values))
    for k, one in enumerate(inside):
        for m, other in enumerate(inside):
            wanted = reference.cka(torch.from_numpy(one), torch.from_numpy(other))
            assert float(found.cka[k, m]) == pytest.approx(wanted, abs=1e-6)
            a, b = one.T @ one, other.T @ other
            cosine = (a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b)
            assert float(found.moments[k, m]) == pytest.approx(cosine, abs=1e-6)
    assert torch.equal(found.neighbours(), found.cka.diagonal(1))
    assert torch.equal(found.neighbours("moments"), found.moments.diagonal(1))


def test_renumbering_units_changes_the_moments_and_not_cka():
    """A layer that only permutes and turns its input holds the same features."""
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    permute = nn.Linear(8, 8, bias=False)
    permute.weight.data = torch.eye(8)[order] * torch.tensor([3.0] + [1.0] * 7)[order, None]
    plain = nn.Linear(8, 8, bias=False)
    plain.weight.data = torch.diag(torch.tensor([3.0] + [1.0] * 7))
    model = nn.Sequential(plain, nn.Linear(8, 8, bias=False), nn.Linear(8, 2))
    model[1].weight.data = torch.eye(8)[order]
    found = layer_similarity(model, [drawn(500, 8)], ["0", "1"])
    assert float(found.cka[0, 1]) == pytest.approx(1, abs=1e-6)
    assert float(found.moments[0, 1]) < 0.5


def test_blocks_of_a_residual_network_share_a_basis():
    model = seeded(ResNet)
    found = layer_similarity(model, [drawn(20, 3, 6, 6)], ["stem", "blocks.0", "blocks.1"])
    assert found.cka.shape == (3, 3) and bool((found.moments > 0).all())
    wide = layer_similarity(seeded(mlp), [drawn(20, 3)], ["0", "4"])
    assert math.isnan(float(wide.moments[0, 1])) and not math.isnan(float(wide.cka[0, 1]))


def test_a_layer_that_does_not_vary():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    model[1].weight.data.zero_()
    found = layer_similarity(model, [drawn(20, 3)])
    assert math.isnan(float(found.cka[0, 1])) and float(found.cka[0, 0]) == pytest.approx(1)


def test_similarity_leaves_the_model_as_it_was():
    model = seeded(ResNet).train()
    before = snapshot(model)
    layer_similarity(model, [drawn(20, 3, 6, 6)])
    assert snapshot(model) == before


def test_similarity_errors():
    with pytest.raises(RichbookError, match="at least two to compare, got '0'"):
        layer_similarity(mlp(), [drawn(20, 3)], ["0"])
    wide = nn.Sequential(nn.Linear(3, 5000), nn.Linear(5000, 4000), nn.Linear(4000, 2))
    with pytest.raises(RichbookError, match="9000 features in all .* at most 8192"):
        layer_similarity(wide, [drawn(20, 3)])
    with pytest.raises(RichbookError, match='kind: expected "cka" or "moments"'):
        layer_similarity(mlp(), [drawn(20, 3)]).neighbours("cosine")
