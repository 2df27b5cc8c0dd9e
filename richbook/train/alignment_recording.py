"""The six alignments of one layer in each of many networks at once.

The numbers of :func:`richbook.measure.alignment_of`, whose matrices these are, batched: the sums
over samples are one float32 product for all networks, and what follows is float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from richbook.measure.alignment.relations.relations import similarity
from richbook.measure.inputs import exact_arithmetic, to_float64

#: What is recorded of every layer, side and relation.
ALIGNMENTS = ("alignment", "normalized_alignment", "null_mean", "null_std")


def align(weight: Tensor, inputs: Tensor, gradients: Tensor) -> dict[str, Tensor]:
    r"""How well H, G and Z of one layer align in each of K networks, and what chance gives.

    H_a = E[h_a h_aᵀ] and G_b = E[g_b g_bᵀ]; the other side is H_b = W H_a Wᵀ and G_a = Wᵀ G_b W.
    The null has the same spectra and random eigenvectors (see ``random_cosine``):

    .. math::
        E \cos = \frac{\mathrm{Tr} A\, \mathrm{Tr} B}{d \|A\| \|B\|}.

    Args:
        weight: W, (K, out, in).
        inputs: h_a, (K, in, n).
        gradients: g_b, (K, out, n), of any scale.

    Returns:
        ``alignment``, the cosine of second moments; ``normalized_alignment``, the Pearson
        correlation with the covariances of h/|h| and g/|g| for H and G; ``null_mean`` and
        ``null_std`` of the cosine. Each (K, 2, 3) in float64: forward and backward, by RGA, RWA
        and GWA. A matrix that is 0 gives nan.

    Example:
        >>> eye = torch.eye(3)[None]
        >>> found = align(eye, eye, torch.tensor([[[1.0], [0.0], [0.0]]]))
        >>> torch.allclose(found["alignment"], found["null_mean"])  # a multiple of 1: all chance
        True
    """
    with exact_arithmetic(weight.device):
        weight, h_a, g_b = (_scaled(values) for values in (weight, inputs, gradients))
        directions = (h_a, weight @ h_a, weight.mT @ g_b, g_b)
        unit_h_a, unit_h_b, unit_g_a, unit_g_b = (_direction_scatter(v) for v in directions)
        h_a, g_b, w = _scatter(h_a), _scatter(g_b), to_float64(weight)
        z_a, z_b, h_b, g_a = w.mT @ w, w @ w.mT, w @ h_a @ w.mT, w.mT @ g_b @ w
        nulls = [_by_chance(*side) for side in ((h_b, g_b, z_b), (h_a, g_a, z_a))]
        found = {
            "alignment": _sides((h_b, g_b, z_b), (h_a, g_a, z_a), "cosine"),
            "normalized_alignment": _sides(
                (unit_h_b, unit_g_b, z_b), (unit_h_a, unit_g_a, z_a), "pearson"
            ),
            "null_mean": torch.stack([mean for mean, _ in nulls], dim=1),
            "null_std": torch.stack([spread for _, spread in nulls], dim=1),
        }
    return {name: values.cpu() for name, values in found.items()}


def _pairs(h: Tensor, g: Tensor, z: Tensor) -> tuple[tuple[Tensor, Tensor], ...]:
    return (h, g), (h, z), (g, z)


def _sides(forward: tuple, backward: tuple, kind: str) -> Tensor:
    """(K, 2, 3) from H, G and Z of either side."""
    rows = [
        torch.stack([similarity(a, b, kind) for a, b in _pairs(*side)], dim=1)
        for side in (forward, backward)
    ]
    return torch.stack(rows, dim=1)


def _by_chance(h: Tensor, g: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (K, 3) of the cosines with random eigenvectors."""
    d = h.shape[-1]
    pairs = [(_evenness(a), _evenness(b)) for a, b in _pairs(h, g, z)]
    mean = torch.stack([(a * b).sqrt() for a, b in pairs], dim=1)
    rest = torch.stack([(1 - a).clamp_min(0) * (1 - b).clamp_min(0) for a, b in pairs], dim=1)
    return mean, (2 * rest / max((d - 1) * (d + 2), 1)).sqrt()


def _evenness(matrix: Tensor) -> Tensor:
    """(Tr A)²/(d ‖A‖²), the squared cosine with the identity: (K, d, d) -> (K,)."""
    norm = matrix.square().sum((-2, -1))
    trace = matrix.diagonal(dim1=-2, dim2=-1).sum(-1)
    return trace.square() / (matrix.shape[-1] * torch.where(norm > 0, norm, torch.nan))


def _scaled(values: Tensor) -> Tensor:
    """Divided by the largest value of each network: squares of small gradients leave float32."""
    largest = values.abs().amax((-2, -1), keepdim=True)
    return values / torch.where(largest == 0, 1.0, largest)


def _scatter(values: Tensor) -> Tensor:
    """Σ v vᵀ over the samples: (K, d, n) -> (K, d, d) in float64."""
    return to_float64(torch.bmm(values, values.mT))


def _direction_scatter(values: Tensor) -> Tensor:
    """Σ (u − ū)(u − ū)ᵀ of the directions u = v/|v|; vectors that are 0 have none."""
    largest = values.abs().amax(1, keepdim=True)  # (K, 1, n)
    there = largest > 0
    unit = values / torch.where(there, largest, 1.0)  # first, lest the squares underflow
    unit = unit / torch.where(there, torch.linalg.vector_norm(unit, dim=1, keepdim=True), 1.0)
    mean = unit.sum(-1, keepdim=True) / there.sum(-1, keepdim=True).clamp_min(1)
    return _scatter((unit - mean) * there)
