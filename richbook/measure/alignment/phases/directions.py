"""H and G of a layer along the singular directions of its weight."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from richbook.measure.errors import RichbookError
from richbook.measure.inputs import as_samples, check_finite, exact_arithmetic, to_float64

#: H and G are sums of float32 products, which leave eigenvalues of either sign of a few 1e-8 of the
#: largest. Z is made of W in float64, whose entries are float32: singular values good to 1e-6.
RESOLUTION, RESOLUTION_OF_Z = 1e-7, 1e-12
#: Eigenvalues of Z closer than this, in relation to themselves, are one: float32 weights cannot
#: tell them apart, and the directions within them are arbitrary.
TIED = 1e-5


@dataclass(frozen=True)
class Directions:
    """What a layer's matrices have along the directions of W = Σ_k s_k u_k v_kᵀ that it uses.

    Attributes:
        eigenvalues: λ_k = s_k², descending, ties merged, shape (r,), on the CPU like all else.
        H: v_kᵀ H_a v_k, shape (r,).
        G: u_kᵀ G_b u_k, shape (r,).
        left_out: H and G without each of the groups of samples, if there are any.
        shares: by matrix, the share of its squared norm that lies on these diagonals.
        purity: for H and G the smallest share of a diagonal entry that is not explained by others.
        ranks: of Z, and of H and G in the directions of Z.
    """

    eigenvalues: Tensor
    H: Tensor
    G: Tensor
    left_out: tuple[tuple[Tensor, Tensor], ...]
    shares: dict[str, float]
    purity: dict[str, float]
    ranks: tuple[int, int, int]

    def diagonals(self) -> dict[str, Tensor]:
        """The diagonal entries of the four matrices."""
        return diagonals(self.eigenvalues, self.H, self.G)


def diagonals(eigenvalues: Tensor, h: Tensor, g: Tensor) -> dict[str, Tensor]:
    """The diagonals of the four matrices from those of H_a and G_b: W multiplies by s_k.

    Example:
        >>> import torch
        >>> four = diagonals(torch.tensor([4.0]), torch.tensor([3.0]), torch.tensor([0.5]))
        >>> {name: values.item() for name, values in four.items()}
        {'H_b': 12.0, 'G_b': 0.5, 'H_a': 3.0, 'G_a': 2.0}
    """
    return {"H_b": eigenvalues * h, "G_b": g, "H_a": h, "G_a": eigenvalues * g}


def directions_of(
    moments: object, top: int | None = None, resolution: float = RESOLUTION
) -> Directions:
    """Take the largest directions of W, as many as Z, H and G all have above rounding, or ``top``.

    Args:
        moments: anything with ``weight`` (out, in), ``H_a`` (in, in) and ``G_b`` (out, out), and
            perhaps ``groups`` of the same, with a ``count``.
        top: take so many, or as many as Z has.
        resolution: eigenvalues and entries of H and G below this share of the largest are rounding.

    Raises:
        RichbookError: it has none of these, or of shapes that do not fit; nan or infinity.

    Example:
        >>> from types import SimpleNamespace
        >>> import torch
        >>> weight = torch.diag(torch.tensor([2.0, 1.0, 0.0]))
        >>> found = directions_of(SimpleNamespace(weight=weight, H_a=torch.eye(3), G_b=weight))
        >>> found.eigenvalues.tolist(), found.H.tolist(), found.G.tolist()
        ([4.0, 1.0], [1.0, 1.0], [2.0, 1.0])
    """
    weight, h_a, g_b = _checked(moments)
    with exact_arithmetic(weight.device), torch.no_grad():
        left, sizes, right = torch.linalg.svd(weight, full_matrices=False)
        values = sizes.square().cpu()
        h, g = (right @ h_a @ right.T).cpu(), (left.T @ g_b @ left).cpu()
        rank = _count(values, RESOLUTION_OF_Z)
        spectra = [torch.linalg.eigvalsh(part[:rank, :rank]) for part in (h, g)]
        ranks = (rank, *(_count(spectrum, resolution) for spectrum in spectra))
        used = min(ranks) if top is None else min(top, rank)
        kept = _resolved(h, used, resolution) & _resolved(g, used, resolution)
        values, h, g = values[:used][kept], *(part[:used, :used][kept][:, kept] for part in (h, g))
        merge = _merging(values)  # (distinct, used), rows that average ties
        merged = [merge @ part for part in (values, h.diagonal(), g.diagonal())]
        whole = {"H_b": weight @ h_a @ weight.T, "G_b": g_b, "H_a": h_a}
        whole["G_a"] = weight.T @ g_b @ weight
        times = (merge > 0).sum(1)
        shares = {name: _share(times, d, whole[name]) for name, d in diagonals(*merged).items()}
        left_out = _without_groups(moments, left[:, :used][:, kept], right[:used][kept], merge)
    return Directions(*merged, left_out, shares, {"H": _purity(h), "G": _purity(g)}, ranks)


def _checked(moments: object) -> tuple[Tensor, Tensor, Tensor]:
    """W, H_a and G_b in float64, of shapes that fit."""
    found = []
    for name in ("weight", "H_a", "G_b"):
        value = getattr(moments, name, None)
        if value is None:
            raise RichbookError(
                "moments: expected LayerMoments, or an object with weight, H_a and G_b, "
                f"got {type(moments).__name__} without {name}"
            )
        value = as_samples(value, f"moments.{name}", minimum=1)
        check_finite(value, f"moments.{name}")
        found.append(to_float64(value.detach()))
    weight, h_a, g_b = found
    out, width = weight.shape
    for name, matrix, size in (("H_a", h_a, width), ("G_b", g_b, out)):
        if matrix.shape != (size, size):
            raise RichbookError(
                f"moments.{name}: expected shape {(size, size)} for a weight of shape "
                f"{(out, width)}, got {tuple(matrix.shape)}"
            )
    return weight, h_a.to(weight.device), g_b.to(weight.device)


def _count(values: Tensor, resolution: float) -> int:
    """How many of these eigenvalues are above rounding."""
    return int((values > resolution * values.max()).sum()) if len(values) else 0


def _resolved(matrix: Tensor, used: int, resolution: float) -> Tensor:
    """Which of the first diagonal entries are above rounding: not those of dead inputs."""
    diagonal = matrix.diagonal()[:used]
    return diagonal > resolution * matrix.diagonal().max() if used else diagonal > 0


def _merging(values: Tensor) -> Tensor:
    """A matrix (distinct, r) that averages over eigenvalues which are equal, in runs."""
    new = torch.ones(len(values), dtype=torch.bool)
    new[1:] = values[1:] < (1 - TIED) * values[:-1]
    run = new.cumsum(0) - 1
    merge = torch.zeros(int(new.sum()), len(values), dtype=torch.float64)
    merge[run, torch.arange(len(values))] = 1.0
    return merge / merge.sum(1, keepdim=True)


def _share(times: Tensor, diagonal: Tensor, matrix: Tensor) -> float:
    """How much of ‖matrix‖² these diagonal entries are, each counted so many times."""
    size = float(matrix.square().sum())
    return float((times * diagonal.square()).sum()) / size if size else math.nan


def _purity(matrix: Tensor) -> float:
    """The smallest of 1/(B_kk (B⁻¹)_kk): the share of the variance along a direction that is left
    when it is predicted from the other directions. Scaling the directions does not change it."""
    if not len(matrix):
        return math.nan
    scale = matrix.diagonal().rsqrt()
    inverse, singular = torch.linalg.inv_ex(scale[:, None] * matrix * scale)
    largest = float(inverse.diagonal().max())
    return 0.0 if int(singular) or not largest > 0 else min(1 / largest, 1.0)


def _without_groups(
    moments: object, left: Tensor, right: Tensor, merge: Tensor
) -> tuple[tuple[Tensor, Tensor], ...]:
    """The diagonals of H_a and G_b over all samples but those of one group, for each group."""
    groups = [group for group in getattr(moments, "groups", ()) if group.count]
    if len(groups) < 2:
        return ()
    total = sum(group.count for group in groups)
    h = torch.stack([_along(group.H_a, right.T) for group in groups])  # (groups, r)
    g = torch.stack([_along(group.G_b, left) for group in groups])
    counts = torch.tensor([[group.count] for group in groups], dtype=torch.float64)
    rest = [
        ((counts * part).sum(0) - counts * part) / (total - counts) @ merge.T for part in (h, g)
    ]
    return tuple(zip(*rest, strict=True))


def _along(matrix: Tensor, directions: Tensor) -> Tensor:
    """d_kᵀ M d_k for the columns d_k."""
    matrix = to_float64(matrix).to(directions.device)
    return ((matrix @ directions) * directions).sum(0).cpu()
