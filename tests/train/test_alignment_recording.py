"""The batched alignments against those of one network, computed sample by sample in numpy."""

import numpy as np
import pytest
import torch

from richbook.measure.alignment.relations.relations import random_cosine
from richbook.train.alignment_recording import ALIGNMENTS, align

K, IN, OUT, SAMPLES = 3, 6, 4, 50


def layer(scale=1.0):
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    spread = torch.linspace(0.2, 2, OUT)[:, None]
    return draw(K, OUT, IN), draw(K, IN, SAMPLES) + 0.3, scale * spread * draw(K, OUT, SAMPLES)


def six(weight, h_a, g_b, normalized):
    """Forward and backward RGA, RWA, GWA of one network by their definitions, in float64."""
    weight, h_a, g_b = (values.numpy().astype(float) for values in (weight, h_a, g_b))
    rows = []
    for h, g, z in (
        (weight @ h_a, g_b, weight @ weight.T),
        (h_a, weight.T @ g_b, weight.T @ weight),
    ):
        if normalized:
            h, g = (v / np.linalg.norm(v, axis=0) for v in (h, g))
            h, g = (np.cov(v, bias=True) for v in (h, g))
            rows.append([np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in _pairs(h, g, z)])
        else:
            h, g = (sum(np.outer(column, column) for column in v.T) for v in (h, g))
            rows.append(
                [
                    np.trace(a @ b) / np.linalg.norm(a) / np.linalg.norm(b)
                    for a, b in _pairs(h, g, z)
                ]
            )
    return np.array(rows)


def _pairs(h, g, z):
    return (h, g), (h, z), (g, z)


@pytest.mark.parametrize("scale", [1.0, 1e-25])
@pytest.mark.parametrize("name", ["alignment", "normalized_alignment"])
def test_alignments(name, scale, device):
    found = align(*(values.to(device) for values in layer(scale)))
    assert set(found) == set(ALIGNMENTS)
    assert found[name].shape == (K, 2, 3) and found[name].dtype == torch.float64
    for member in range(K):
        one = [values[member] for values in layer()]
        expected = six(*one, normalized=name == "normalized_alignment")
        assert found[name][member].numpy() == pytest.approx(expected, abs=1e-5)


def test_null_is_that_of_random_eigenvectors():
    found = align(*layer())
    for member in range(K):
        weight, h_a, g_b = (values[member].double() for values in layer())
        h, g = weight @ h_a, weight.T @ g_b
        sides = [
            (h @ h.T, g_b @ g_b.T, weight @ weight.T),
            (h_a @ h_a.T, g @ g.T, weight.T @ weight),
        ]
        for side, matrices in enumerate(sides):
            for relation, pair in enumerate(_pairs(*matrices)):
                mean, spread = random_cosine(*pair)
                assert found["null_mean"][member, side, relation] == pytest.approx(mean, abs=1e-6)
                assert found["null_std"][member, side, relation] == pytest.approx(spread, abs=1e-6)


def test_a_sample_without_a_gradient_has_no_direction():
    weight, h_a, g_b = layer()
    g_b[:, :, :5] = 0
    rest = align(weight, h_a[:, :, 5:], g_b[:, :, 5:])["normalized_alignment"]
    found = align(weight, h_a, g_b)["normalized_alignment"]
    gwa = 2  # the relation without H
    assert torch.allclose(found[..., gwa], rest[..., gwa], atol=1e-6)


def test_a_matrix_that_is_zero_gives_nan_in_that_network_alone():
    weight, h_a, g_b = layer()
    g_b[1] = 0
    found = align(weight, h_a, g_b)
    for name in ALIGNMENTS:
        missing = found[name].isnan()
        assert missing[1].tolist() == [[True, False, True]] * 2, name
        assert not missing[[0, 2]].any()
