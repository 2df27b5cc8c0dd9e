"""The span of the outputs, Ĥ = span{f̂_1 … f̂_C}, described by moments alone.

Write the centred outputs f_c = f − μ with covariance Σ. Whiten them: g = f_c W with Cov(g) = I_r, r
the numerical rank of Σ, and m = Wᵀμ. Two cases cover every projection onto Ĥ:

* Some combination of the outputs is a non-zero constant. Then 1 ∈ Ĥ and
  P_Ĥ = |1⟩⟨1| + Σ_k |g_k⟩⟨g_k|.
* None is. Then Ĥ is spanned by g + m, whose Gram matrix is I + mmᵀ, and
  P_Ĥ = Σ_jk |g_j + m_j⟩ (I − mmᵀ/(1+|m|²))_jk ⟨g_k + m_k|  (Sherman–Morrison).

Working from the covariance, not the raw second moment M = Σ + μμᵀ, keeps the small directions of Σ
visible when the outputs sit on a large offset. Leading dimensions are networks of an ensemble.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

#: Moments in float64 resolve squared singular values to about 1e-15 of the largest.
MOMENT_RESOLUTION = 1e-7


@dataclass(frozen=True)
class OutputSpan:
    """Ĥ through a whitening of the outputs; columns beyond the rank are zero.

    Attributes:
        mean: μ, shape (..., C).
        whitening: W, shape (..., C, C); the first r columns whiten, the others are zero.
        kept: which of the C columns are kept, shape (..., C), True r times.
        offset: m = Wᵀμ, shape (..., C); zero where 1 ∈ Ĥ, since then it plays no part.
        includes_constant: whether 1 ∈ Ĥ, shape (...).
    """

    mean: Tensor
    whitening: Tensor
    kept: Tensor
    offset: Tensor
    includes_constant: Tensor

    @property
    def centred_rank(self) -> Tensor:
        """r, the number of linearly independent centred outputs, shape (...)."""
        return self.kept.sum(-1)

    @property
    def rank(self) -> Tensor:
        """dim Ĥ: r, or r + 1 where the constant is one of the functions, shape (...)."""
        return self.centred_rank + self.includes_constant.to(torch.int64)

    def inner_inverse(self) -> Tensor:
        """K with c(P_Ĥ) = Σ_jk |g_j⟩ K_jk ⟨g_k|, shape (..., C, C), zero outside the rank."""
        shrink = 1 + self.offset.square().sum(-1)  # 1 + |m|²
        identity = torch.diag_embed(self.kept.to(self.offset.dtype))
        return (
            identity
            - self.offset[..., :, None] * self.offset[..., None, :] / shrink[..., None, None]
        )


def output_span(mean: Tensor, covariance: Tensor, tolerance: float) -> OutputSpan:
    """Find Ĥ from the outputs' mean (..., C) and covariance (..., C, C), in float64.

    A direction counts when its standard deviation exceeds ``tolerance`` times the root mean square
    of an output, both measured after each output has been scaled to a root mean square between 1
    and 2 (by a power of two, so exactly): scaling one output by 1e3 then changes nothing.
    """
    scale = power_of_two((covariance.diagonal(dim1=-2, dim2=-1) + mean.square()).sqrt())  # (..., C)
    scaled_mean = mean / scale
    scaled_covariance = covariance / (scale[..., :, None] * scale[..., None, :])
    squares = scaled_covariance.diagonal(dim1=-2, dim2=-1) + scaled_mean.square()
    span = span_of_scaled(scaled_mean, scaled_covariance, squares.amax(-1), tolerance)
    return replace(span, mean=mean, whitening=span.whitening / scale[..., :, None])


def span_of_scaled(mean: Tensor, covariance: Tensor, size: Tensor, tolerance: float) -> OutputSpan:
    """Ĥ of functions that are scaled already, or an orthogonal mixture of such functions.

    ``size`` (...) is the largest mean square of one of them, to which their rounding is relative.
    """
    variances, directions = torch.linalg.eigh(covariance)
    variances, directions = variances.flip(-1), directions.flip(-1)  # descending
    threshold = torch.maximum(
        tolerance**2 * size[..., None], MOMENT_RESOLUTION**2 * variances[..., :1]
    )
    kept = variances > threshold
    inverse_root = torch.where(kept, variances, 1.0).rsqrt() * kept
    # A dropped direction in which the mean is not zero is a constant function inside Ĥ, unless the
    # mean there is as small as the variance for which it was dropped.
    along = (directions.mT @ mean[..., None])[..., 0]  # (..., C)
    leak = _leak(along * inverse_root, inverse_root, variances, size, tolerance)
    constant = (along.square() * ~kept).sum(-1) > torch.maximum(leak, threshold[..., 0])
    offset = along * inverse_root * ~constant[..., None]
    return OutputSpan(mean, directions * inverse_root[..., None, :], kept, offset, constant)


def _leak(
    offset: Tensor, inverse_root: Tensor, variances: Tensor, size: Tensor, tolerance: float
) -> Tensor:
    """Square of the mean that rounding alone can put into dropped directions, shape (...).

    Beside the mean's own rounding, a dropped direction is tilted towards each kept one of variance
    λ: by about tolerance/√λ through the outputs' rounding, by RESOLUTION²/λ through the
    covariance's. It then sees that share of the mean along it. Zero-sum outputs on an offset need
    this margin.
    """
    by_outputs = tolerance**2 * size * (1 + offset.square().sum(-1))
    by_covariance = (MOMENT_RESOLUTION**2 * variances[..., 0]) ** 2 * (
        offset * inverse_root
    ).square().sum(-1)
    return by_outputs + by_covariance


def power_of_two(size: Tensor) -> Tensor:
    """The power of two next below each size, 1 where the size is 0 (dividing by it is exact)."""
    _, exponent = torch.frexp(size)
    return torch.where(size > 0, torch.ldexp(torch.ones_like(size), exponent - 1), 1.0)
