"""The six relations between H, G and Z: how well two matrices align, by chance and from samples."""

from __future__ import annotations

import math

import torch
from scipy.special import stdtrit
from torch import Tensor

from richbook.measure.alignment.moments.layer import LayerMoments
from richbook.measure.errors import RichbookError
from richbook.measure.interval import GROUPS
from richbook.measure.products import frobenius

SIDES, RELATIONS, KINDS = ("forward", "backward"), ("RGA", "RWA", "GWA"), ("cosine", "pearson")
#: Draws of random eigenvectors, of so many entries in all: fewer for wide matrices, but some.
DRAWS, FEWEST_DRAWS, ENTRIES, AT_ONCE = 100, 16, 2**22, 2**18
#: Entries that vary less than this, relatively, are equal up to rounding.
FLAT = 1e-13


def matrices(moments: LayerMoments, side: str, normalize: bool) -> tuple[Tensor, Tensor, Tensor]:
    """H, G and Z of one side: "forward" is the output's, "backward" the input's.

    With ``normalize`` H and G are the covariances of h/|h| and g/|g|.
    """
    if normalize and moments.unit is None:
        raise RichbookError(
            f"moments: those of {moments.name!r} hold no directions; measure them with "
            "layer_moments(..., unit=True)"
        )
    found, end = (moments.unit if normalize else moments), {"forward": "b", "backward": "a"}[side]
    return getattr(found, f"H_{end}"), getattr(found, f"G_{end}"), getattr(moments, f"Z_{end}")


def similarity(first: Tensor, second: Tensor, kind: str) -> Tensor:
    r"""How well two symmetric matrices align, over the last two dimensions.

    .. math::
        \cos(A, B) = \frac{\mathrm{Tr}(AB)}{\|A\|_F \|B\|_F}

    "pearson" is the same with the mean of its entries subtracted from each matrix: the correlation
    of the entries. A matrix that is 0, or for "pearson" the same in all entries, gives nan.

    Example:
        >>> import torch
        >>> first = torch.diag(torch.tensor([1.0, 2.0], dtype=torch.float64))
        >>> second = torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64))
        >>> round(float(similarity(first, second, "cosine")), 6)
        0.8
        >>> round(float(similarity(first, second, "pearson")), 6)
        0.636364
    """
    first, second = _standard(first, kind), _standard(second, kind)
    return (first * second).sum((-2, -1)).clamp(-1, 1)


def _standard(matrix: Tensor, kind: str) -> Tensor:
    """Divided by its norm, after its mean entry has been subtracted for "pearson"."""
    size = frobenius(matrix)[..., None, None]
    matrix = matrix / torch.where(size > 0, size, torch.nan)
    if kind == "cosine":
        return matrix
    matrix = matrix - matrix.mean((-2, -1), keepdim=True)
    size = frobenius(matrix)[..., None, None]
    return matrix / torch.where(size > FLAT, size, torch.nan)


def six_alignments(moments: LayerMoments, kind: str, normalize: bool) -> Tensor:
    """(2, 3): forward and backward, by RGA (H with G), RWA (H with Z) and GWA (G with Z)."""
    rows = []
    for side in SIDES:
        h, g, z = matrices(moments, side, normalize)
        pairs = ((h, g), (h, z), (g, z))
        rows.append(torch.stack([similarity(a, b, kind) for a, b in pairs]))
    return torch.stack(rows).cpu()


def six_by_chance(
    moments: LayerMoments, kind: str, normalize: bool, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (2, 3) of the same with random eigenvectors."""
    found = []
    for side in SIDES:
        h, g, z = matrices(moments, side, normalize)
        if kind == "cosine":
            found.append([random_cosine(a, b) for a, b in ((h, g), (h, z), (g, z))])
        else:
            drawn = random_alignments(h, g, z, kind, generator)
            found.append([(float(d.mean()), float(d.std())) for d in drawn.T])
    table = torch.tensor(found, dtype=torch.float64)  # (2, 3, 2)
    return table[..., 0], table[..., 1]


def random_cosine(first: Tensor, second: Tensor) -> tuple[float, float]:
    r"""Mean and standard deviation of the cosine if the eigenvectors of one matrix are random.

    With Q uniform over the rotations, Q A Qᵀ has the spectrum of A, and

    .. math::
        E \mathrm{Tr}(Q A Q^\top B) = \frac{\mathrm{Tr} A\, \mathrm{Tr} B}{d}, \qquad
        \mathrm{Var} = \frac{2 \|A_0\|^2 \|B_0\|^2}{(d - 1)(d + 2)},

    A₀ = A − (Tr A/d) I: matrices without trace are an irreducible representation of the rotations,
    of dimension (d − 1)(d + 2)/2, so that all directions in it are alike.

    Example:
        >>> import torch
        >>> line = torch.diag(torch.tensor([1.0, 0.0], dtype=torch.float64))  # cos² of an angle
        >>> mean, spread = random_cosine(line, line)
        >>> round(mean, 4), round(spread, 4)
        (0.5, 0.3536)
    """
    first, second = _standard(first, "cosine"), _standard(second, "cosine")
    d = first.shape[-1]
    traces = float(first.diagonal().sum()), float(second.diagonal().sum())
    rest = [max(1 - trace**2 / d, 0.0) if trace == trace else math.nan for trace in traces]
    spread = math.sqrt(2 * rest[0] * rest[1] / ((d - 1) * (d + 2))) if d > 1 else 0.0
    return traces[0] * traces[1] / d, spread


def random_alignments(
    h: Tensor, g: Tensor, z: Tensor, kind: str, generator: torch.Generator
) -> Tensor:
    """RGA, RWA and GWA (draws, 3) with random eigenvectors of H, and of G where H is not in it."""
    d = h.shape[-1]
    left, found = min(max(ENTRIES // d**2, FEWEST_DRAWS), DRAWS), []
    while left > 0:
        some = min(left, max(AT_ONCE // d**2, 1))
        left -= some
        turn = random_rotations(some, d, generator).to(h.device)
        turned_h, turned_g = (turn @ matrix @ turn.mT for matrix in (h, g))  # (some, d, d)
        pairs = ((turned_h, g), (turned_h, z), (turned_g, z))
        found.append(torch.stack([similarity(a, b, kind) for a, b in pairs], dim=1))
    return torch.cat(found).cpu()


def random_rotations(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Orthogonal matrices (count, size, size), all being as likely (Haar), float64.

    Example:
        >>> import torch
        >>> (turn,) = random_rotations(1, 3, torch.Generator().manual_seed(0))
        >>> torch.allclose(turn @ turn.T, torch.eye(3, dtype=torch.float64))
        True
    """
    normal = torch.randn(count, size, size, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(normal)
    return q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None, :]  # QR's own signs are not uniform


def six_intervals(
    moments: LayerMoments, kind: str, normalize: bool, level: float = 0.95
) -> tuple[Tensor, Tensor] | None:
    """Ends (2, 3) of intervals over samples, by the delete-a-group jackknife; None without groups.

    As in :func:`d_lr_interval`: with pseudo-values v_g = 20 A − 19 A_(−g), the interval is
    mean(v) ± t · std(v)/√20, cut to [−1, 1]. Groups are of whole samples of the loader, so that the
    tokens or positions of one need not be independent.
    """
    if not moments.groups:
        return None
    value = six_alignments(moments, kind, normalize)
    z_squares = {"forward": _product(moments.Z_b, moments.Z_b, kind)}
    z_squares["backward"] = _product(moments.Z_a, moments.Z_a, kind)
    rest = [
        _six_quickly(moments.without(part), kind, normalize, z_squares) for part in moments.groups
    ]
    rest = torch.tensor(rest, dtype=torch.float64)
    pseudo = GROUPS * value - (GROUPS - 1) * rest  # (20, 2, 3)
    reach = float(stdtrit(GROUPS - 1, (1 + level) / 2)) * pseudo.std(0) / GROUPS**0.5
    return (pseudo.mean(0) - reach).clamp(-1, 1), (pseudo.mean(0) + reach).clamp(-1, 1)


def _six_quickly(
    moments: LayerMoments, kind: str, normalize: bool, z_squares: dict[str, float]
) -> list[list[float]]:
    """The six alignments in fewer passes over memory; entries are not scaled before squaring."""
    found = []
    for side in SIDES:
        h, g, z = matrices(moments, side, normalize)
        sizes = [_product(h, h, kind), _product(g, g, kind), z_squares[side]]
        pairs = ((h, g, 0, 1), (h, z, 0, 2), (g, z, 1, 2))
        found.append(
            [_product(a, b, kind) / math.sqrt(sizes[i] * sizes[j]) if sizes[i] * sizes[j] > 0
             else math.nan for a, b, i, j in pairs]
        )  # fmt: skip
    return found


def _product(first: Tensor, second: Tensor, kind: str) -> float:
    """Σ A_ij B_ij, about the means for "pearson"."""
    product = float(torch.dot(first.reshape(-1), second.reshape(-1)))
    if kind == "cosine":
        return product
    return product - float(first.mean()) * float(second.mean()) * first.numel()
