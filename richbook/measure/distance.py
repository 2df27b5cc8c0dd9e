"""D_LR in terms of moments.

With whitened outputs g of rank r (see ``span``), A = Σ_Φg and c(P_Ĥ) = Σ_jk |g_j⟩ K_jk ⟨g_k|, this
is

    D_LR = 1 − Tr(A K Aᵀ) / (‖Σ_ΦΦ‖_F · ‖S K‖),   S = Cov(g) = I,   ‖S K‖² = Tr(S K S K).
"""

from __future__ import annotations

import torch
from torch import Tensor

from richbook.measure.moments import Moments
from richbook.measure.products import frobenius, is_constant
from richbook.measure.span import OutputSpan, output_span


def low_rank_distance(moments: Moments, tolerance: float, dtype: torch.dtype) -> Tensor:
    """D_LR (...) of moments whose leading dimensions are networks; nan where degenerate.

    ``tolerance`` is the outputs' ``rank_tolerance``, ``dtype`` what the features were computed in.
    """
    span = output_span(moments.output_mean, moments.output_covariance, tolerance)
    return distance_to_span(moments, span, dtype)


def distance_to_span(moments: Moments, span: OutputSpan, dtype: torch.dtype) -> Tensor:
    """D_LR (...) of moments whose outputs span ``span``."""
    whitening = span.whitening
    whitened = Moments(
        count=moments.count,
        feature_mean=moments.feature_mean,
        feature_scatter=moments.feature_scatter,
        cross_scatter=moments.cross_scatter @ whitening,
        output_mean=torch.zeros_like(span.offset),
        output_scatter=whitening.mT @ moments.output_scatter @ whitening,
    )
    return finish(whitened, span, dtype)


def finish(moments: Moments, span: OutputSpan, dtype: torch.dtype) -> Tensor:
    """D_LR (...) of moments whose outputs are the whitened ones of ``span``."""
    value = one_minus_cosine(
        frobenius(moments.feature_covariance),
        moments.cross_covariance,
        moments.output_covariance,
        moments.output_mean,
        span,
    )
    return torch.where(constant_features(moments, dtype), torch.nan, value)


def one_minus_cosine(
    kernel_size: Tensor, cross: Tensor, covariance: Tensor, mean: Tensor, span: OutputSpan
) -> Tensor:
    """1 − Tr(A K Aᵀ) / (‖Σ_ΦΦ‖ ‖S K‖), shape (...); ``kernel_size`` is ‖Σ_ΦΦ‖, shape (...), and the
    rest as in :func:`overlap_and_size`."""
    overlap, size = overlap_and_size(cross, covariance, mean, span)
    value = 1 - (overlap / (kernel_size * size)).clamp(0, 1)
    return torch.where(span.centred_rank > 0, value, torch.nan)


def overlap_and_size(
    cross: Tensor, covariance: Tensor, mean: Tensor, span: OutputSpan
) -> tuple[Tensor, Tensor]:
    """Tr(A K Aᵀ) and ‖S K‖, both (...), where K inverts the Gram matrix S + mmᵀ of g + m.

    S is the identity up to rounding and the mean of g is zero up to rounding; both stay in the
    formula because they carry the gradient with respect to the outputs, and the weights of a
    resampling. S is inverted alone, and m is put in by Sherman–Morrison: for outputs on an offset
    of 1e6, S would drown in mmᵀ.

    Args:
        cross: A = Σ_Φg, shape (..., p, C).
        covariance: S = Cov(g), shape (..., C, C), zero outside the kept columns.
        mean: E[g], shape (..., C).
        span: Ĥ, whose offset is m less E[g].
    """
    offset = (span.offset + mean) * ~span.includes_constant[..., None]
    inverse = torch.linalg.inv(covariance + torch.diag_embed((~span.kept).to(covariance.dtype)))
    tilt = (inverse @ offset[..., None])[..., 0]
    shrink = 1 + (offset * tilt).sum(-1)
    inner = inverse - tilt[..., :, None] * tilt[..., None, :] / shrink[..., None, None]  # K
    overlap = (cross @ inner * cross).sum((-2, -1))
    projector = inner @ covariance  # K S
    return overlap, (projector * projector.mT).sum((-2, -1)).sqrt()


def constant_features(moments: Moments, dtype: torch.dtype) -> Tensor:
    """Whether the features vary by no more than the rounding of ``dtype``, shape (...)."""
    return is_constant(moments.feature_mean, moments.feature_scatter / moments.count, dtype)
