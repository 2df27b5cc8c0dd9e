"""Decompositions carried to held-out samples by the Nyström formula."""

import numpy as np
import pytest
import torch

from richbook.measure import DegenerateWarning, RichbookError, decompose
from tests.measure import reference
from tests.measure.reference import put


def by_hand(old, new, values, rank):
    """The shares from n×n matrices: e_k(x') = E_x[Φ(x')·Φ(x) e_k(x)] / ρ_k at the new samples, made
    orthonormal in their order there."""
    centre = old.mean(0)
    count = old.shape[1]
    sizes, functions = reference.eigenpairs(reference.centred(reference.kernel(old)), count)
    there = (new - centre) @ (old - centre).T @ functions / len(old) / sizes
    projector = reference.centred(reference.span_projector(values, rank))
    basis = np.linalg.qr(there - there.mean(0))[0]
    used = np.einsum("nk,nm,mk->k", basis, projector, basis)
    return used.cumsum() / np.trace(projector)


def test_equals_the_nystrom_formula(device):
    old, old_outputs = reference.problem(0, n=70, p=6, c=3)
    new, new_outputs = reference.problem(1, n=50, p=6, c=3)
    targets = np.random.default_rng(2).normal(size=(50, 2)) + 1
    found = decompose(put(device, old), put(device, old_outputs)).on(
        put(device, new), put(device, new_outputs), put(device, targets)
    )
    expected = by_hand(old, new, new_outputs, 3)
    assert found.utilization.tolist() == pytest.approx(expected, abs=1e-8)
    assert found.quality.tolist() == pytest.approx(by_hand(old, new, targets, 2), abs=1e-8)


def test_on_its_own_samples_nothing_changes():
    features, outputs = (torch.tensor(v) for v in reference.problem(2))
    found = decompose(features, outputs, outputs[:, :2])
    again = found.on(features, outputs, outputs[:, :2])
    for name in ("utilization", "quality", "eigenvalues"):
        assert torch.allclose(getattr(found, name), getattr(again, name), atol=1e-9)


def test_error_of_the_eigenfunctions_falls_with_the_sample():
    """Distance of Nyström's e_k from the population's, which for Gaussian features with a diagonal
    covariance are the features themselves: it falls like 1/√n, so by 10 from n to 100 n."""
    spectrum = torch.tensor([1.0, 0.6, 0.35, 0.2, 0.1], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)

    def draw(count):
        return torch.randn(count, 5, generator=generator, dtype=torch.float64)

    held_out = draw(20_000)

    def error(count):
        squares = []
        for _ in range(20):
            sample = draw(count) * spectrum
            found = decompose(sample, sample[:, :2])
            centred = held_out * spectrum - sample.mean(0)
            functions = centred @ found.directions / found.eigenvalues.sqrt()
            sizes = functions.square().mean(0) * held_out.square().mean(0)
            squares.append(1 - (functions * held_out).mean(0).square() / sizes)  # 1 − cos²
        return float(torch.stack(squares).mean().sqrt())

    few, many = error(60), error(6000)
    assert few / many == pytest.approx(10, rel=0.35)


def test_a_direction_that_is_good_on_its_sample_only():
    """With as many features as half the samples, random targets look learnable; held out, not."""
    draw = torch.Generator().manual_seed(0)
    old = torch.randn(200, 100, generator=draw)
    found = decompose(old, old[:, :1], torch.randint(2, (200, 1), generator=draw).float())
    assert float(found.quality[-1]) == pytest.approx(0.5, abs=0.1)
    fresh = torch.randn(20_000, 100, generator=draw)
    fresh_targets = torch.randint(2, (20_000, 1), generator=draw).float()
    there = found.on(fresh, fresh[:, :1], fresh_targets)
    assert float(there.quality[-1]) < 0.03


def test_utilisation_ends_at_one_wherever_outputs_are_affine(device):
    """Also on samples from elsewhere, and where only the old or only the new ones are few."""
    old, _ = reference.problem(4, n=70, p=6)
    head = np.random.default_rng(0).normal(size=(6, 3))
    found = decompose(put(device, old), put(device, old @ head))
    new = 3 * reference.problem(5, n=40, p=6)[0] + 7
    curve = found.on(put(device, new), put(device, new @ head + 1)).utilization
    assert float(curve[-1]) == pytest.approx(1, abs=1e-8) and bool((curve.diff() >= -1e-12).all())
    with pytest.warns(DegenerateWarning, match="5 samples for 6 features"):
        few = found.on(put(device, new[:5]), put(device, new[:5] @ head)).utilization
    assert float(few[-1]) == pytest.approx(1, abs=1e-6)


def test_dead_units_are_left_out(device):
    old, outputs = reference.problem(6, n=70, p=6, c=3)
    padded = np.concatenate([old, np.zeros((70, 2))], axis=1)
    found = decompose(put(device, padded), put(device, outputs))
    plain = decompose(put(device, old), put(device, outputs))
    there, expected = found.on(put(device, padded), put(device, outputs)), plain.utilization
    assert torch.allclose(there.utilization[:6], expected, atol=1e-8)


def test_bad_input_and_degenerate_input():
    features, outputs = (torch.tensor(v) for v in reference.problem(3))
    found = decompose(features, outputs)
    with pytest.raises(RichbookError, match="features: expected 8 columns as in the decomposition"):
        found.on(features[:, :3], outputs)
    with pytest.warns(DegenerateWarning, match="targets: constant over the samples"):
        assert found.on(features, outputs, torch.ones(60, 1)).quality.isnan().all()
