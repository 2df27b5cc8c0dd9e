"""What is known of one linear layer: W, and the second moments on either side of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class UnitMoments:
    """Covariances of the directions h/|h| and g/|g|, float64; vectors that are 0 have none.

    Attributes:
        H_a, G_a: shape (in, in).
        H_b, G_b: shape (out, out).
        means: of the directions, in the order H_a, H_b, G_a, G_b, shapes (in,) and (out,).
        counts: how many rows had a direction, in that order.

    Example:
        >>> one, zero = torch.ones(1, 1), torch.zeros(1)
        >>> UnitMoments(one, one, one, one, means=(zero,) * 4, counts=(10, 10, 9, 9)).counts
        (10, 10, 9, 9)
    """

    H_a: Tensor
    H_b: Tensor
    G_a: Tensor
    G_b: Tensor
    means: tuple[Tensor, Tensor, Tensor, Tensor]
    counts: tuple[int, int, int, int]

    def without(self, part: UnitMoments) -> UnitMoments:
        """Those of the rows that are not in a part of them."""
        rest = [
            _without(*whole, *left)
            for whole, left in zip(self._triples(), part._triples(), strict=True)
        ]
        counts, means, covariances = zip(*rest, strict=True)
        return UnitMoments(*covariances, means=means, counts=counts)

    def _triples(self) -> list[tuple[int, Tensor, Tensor]]:
        sides = (self.H_a, self.H_b, self.G_a, self.G_b)
        return list(zip(self.counts, self.means, sides, strict=True))


@dataclass(frozen=True, repr=False)
class LayerMoments:
    r"""Second moments on both sides of a linear layer h_b = W h_a, all float64.

    .. math::
        H = E[h h^\top], \quad G = E[g g^\top], \quad g = -\partial\ell/\partial h, \quad
        Z_a = W^\top W, \quad Z_b = W W^\top

    What is kept is W and the moments of h_a and g_b. The other side follows exactly: H_b = W H_a Wᵀ
    and G_a = Wᵀ G_b W. So h_b is W h_a without the bias, if there is one, and g_a = Wᵀ g_b is the
    part of −∂ℓ/∂h_a that comes back through this layer.

    Attributes:
        name: the layer's path in ``named_modules()``, with "#2" for a second call in one forward.
        count: number of rows: samples, times tokens or positions where the layer has some.
        weight: W, shape (out, in); of a convolution (out, in·kh·kw), block diagonal with groups.
        covariance_h_a, mean_h_a: of h_a, shapes (in, in) and (in,).
        covariance_g_b, mean_g_b: of g_b, shapes (out, out) and (out,).
        unit: covariances of h/|h| and g/|g|, if they were asked for.
        groups: the same of each of 20 random groups of samples, if they were asked for.

    Example:
        >>> import torch
        >>> weight = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
        >>> eye, zero = torch.eye(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
        >>> layer = LayerMoments("fc", 10, weight, eye, zero, eye[:1, :1], zero[:1])
        >>> layer.H_b.item(), layer.G_a.tolist()
        (5.0, [[1.0, 2.0], [2.0, 4.0]])
    """

    name: str
    count: int
    weight: Tensor
    covariance_h_a: Tensor
    mean_h_a: Tensor
    covariance_g_b: Tensor
    mean_g_b: Tensor
    unit: UnitMoments | None = None
    groups: tuple[LayerMoments, ...] = ()

    @cached_property
    def H_a(self) -> Tensor:
        """E[h_a h_aᵀ], shape (in, in)."""
        return torch.addr(self.covariance_h_a, self.mean_h_a, self.mean_h_a)

    @cached_property
    def G_b(self) -> Tensor:
        """E[g_b g_bᵀ], shape (out, out)."""
        return torch.addr(self.covariance_g_b, self.mean_g_b, self.mean_g_b)

    @cached_property
    def H_b(self) -> Tensor:
        """E[h_b h_bᵀ] = W H_a Wᵀ, shape (out, out)."""
        return self.weight @ self.H_a @ self.weight.T

    @cached_property
    def G_a(self) -> Tensor:
        """E[g_a g_aᵀ] = Wᵀ G_b W, shape (in, in)."""
        return self.weight.T @ self.G_b @ self.weight

    @cached_property
    def Z_a(self) -> Tensor:
        """WᵀW, shape (in, in)."""
        return self.weight.T @ self.weight

    @cached_property
    def Z_b(self) -> Tensor:
        """WWᵀ, shape (out, out)."""
        return self.weight @ self.weight.T

    @property
    def mean_h_b(self) -> Tensor:
        """E[h_b], shape (out,)."""
        return self.weight @ self.mean_h_a

    @property
    def mean_g_a(self) -> Tensor:
        """E[g_a], shape (in,)."""
        return self.weight.T @ self.mean_g_b

    def centred(self) -> LayerMoments:
        """The same with the means taken off: covariances in place of second moments."""
        return replace(
            self,
            mean_h_a=torch.zeros_like(self.mean_h_a),
            mean_g_b=torch.zeros_like(self.mean_g_b),
            groups=tuple(group.centred() for group in self.groups),
        )

    def without(self, part: LayerMoments) -> LayerMoments:
        """The moments of the rows that are not in a part of them, such as one of the groups."""
        count, mean_h_a, covariance_h_a = _without(
            self.count, self.mean_h_a, self.covariance_h_a,
            part.count, part.mean_h_a, part.covariance_h_a,
        )  # fmt: skip
        _, mean_g_b, covariance_g_b = _without(
            self.count, self.mean_g_b, self.covariance_g_b,
            part.count, part.mean_g_b, part.covariance_g_b,
        )  # fmt: skip
        return LayerMoments(
            name=self.name,
            count=count,
            weight=self.weight,
            covariance_h_a=covariance_h_a,
            mean_h_a=mean_h_a,
            covariance_g_b=covariance_g_b,
            mean_g_b=mean_g_b,
            unit=None if self.unit is None else self.unit.without(part.unit),
        )

    def __repr__(self) -> str:
        out, width = self.weight.shape
        return f"LayerMoments({self.name!r}, {width} -> {out}, {self.count} rows)"


def _without(
    count: int, mean: Tensor, covariance: Tensor, left: int, left_mean: Tensor, left_cov: Tensor
) -> tuple[int, Tensor, Tensor]:
    """Count, mean and covariance of the rest: the merging of two parts, solved for one of them.

    n C = l C_l + r C_r + (l r/n)(m_l − m_r)(m_l − m_r)ᵀ, so nothing large is subtracted.
    """
    rest = count - left
    step = (mean - left_mean) * (count / rest)  # from the mean of the part to that of the rest
    scatter = torch.sub(count / rest * covariance, left_cov, alpha=left / rest)
    return rest, left_mean + step, scatter.addr_(step, step, alpha=-left / count)
