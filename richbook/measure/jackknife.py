"""D_LR from unbiased moments, with each of some random groups of samples left out in turn.

A sample makes both parts of D_LR = 1 − N/(‖Σ_ΦΦ‖ ‖c(P)‖), N = Tr(c(T) c(P)), too large: the first
by (Tr Σ)²/n, the second by the r/n of the features' noise that r functions catch. Both can be
estimated without bias. With samples x_i centred, S = Σ x_i x_iᵀ, k_i = |x_i|²:

    ‖Σ‖² ≈ [‖S‖² − Σk² + (Σk)²/((n−1)(n−2)) − 2Σk²/(n−2)] / (n(n−3)),

the U-statistic of HSIC with itself (Song et al., "Feature selection via dependence maximization",
JMLR 2012), and, with whitened outputs g_i, Gram inverse K, leverages h_i = g_iᵀKg_i/n and residuals
e_i of the regression of x on g,

    N ≈ (n/(n−1)) [N̂ − (1/n) Σ h_i|e_i|²/(1−h_i)],

in which E[h_i|e_i|²] is what the i-th sample's noise adds to N̂. What bias is left, from taking a
root and a ratio, is of a higher order, and the jackknife takes most of that.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from richbook.measure.distance import overlap_and_size
from richbook.measure.products import frobenius
from richbook.measure.span import OutputSpan

#: Whitened outputs have variance 1. Below this the samples left have lost one of their functions.
LOST_VARIANCE = 1e-6


@dataclass(frozen=True)
class Sums:
    """Sums over some samples, all about the mean of all samples.

    Attributes:
        count: of samples.
        features, outputs: Σx (p,) and Σg (r,).
        squares, cross, gram: Σxxᵀ (p, p), Σxgᵀ (p, r) and Σggᵀ (r, r).
        norms, norms_squared: Σk and Σk², k = |x|².
        caught: Σ h|e|²/(1−h).
    """

    count: Tensor
    features: Tensor
    outputs: Tensor
    squares: Tensor
    cross: Tensor
    gram: Tensor
    norms: Tensor
    norms_squared: Tensor
    caught: Tensor

    def __add__(self, other: Sums) -> Sums:
        return Sums(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: Sums) -> Sums:
        return Sums(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))


def leave_groups_out(
    features: Tensor, outputs: Tensor, span: OutputSpan, groups: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """D_LR as it is (), from unbiased moments (), and so without each group (len(groups),).

    Args:
        features: x, centred, float64, shape (n, p).
        outputs: g, centred and whitened, float64, shape (n, r).
        span: Ĥ in terms of these outputs.
        groups: row numbers of each group.

    A value is nan where the samples left have lost one of the functions that all of them have.
    """
    norms, caught = features.square().sum(1), _caught(features, outputs, span)

    def sums_of(rows: Tensor) -> Sums:
        x, g, k = features[rows], outputs[rows], norms[rows]
        count = x.new_tensor(len(x))
        return Sums(
            count,
            x.sum(0),
            g.sum(0),
            x.T @ x,
            x.T @ g,
            g.T @ g,
            k.sum(),
            k.square().sum(),
            caught[rows].sum(),
        )

    every = sums_of(slice(None))
    # One group's p×p sums at a time, and not all of them.
    without = [_values(every - sums_of(rows), every.count, span)[1] for rows in groups]
    return *_values(every, every.count, span), torch.stack(without)


def _caught(features: Tensor, outputs: Tensor, span: OutputSpan) -> Tensor:
    """h_i|e_i|²/(1−h_i) of each sample: the noise that the outputs catch by chance, (n,)."""
    count = len(features)
    leverage = (outputs @ span.inner_inverse() * outputs).sum(1) / count
    noise = features - outputs @ (outputs.T @ features / count)
    return leverage * noise.square().sum(1) / (1 - leverage).clamp_min(1 / count)


def _values(sums: Sums, every: Tensor, span: OutputSpan) -> tuple[Tensor, Tensor]:
    """D_LR of these samples, plain and from unbiased moments; ``every`` is the count of all."""
    n, mean, output_mean = sums.count, sums.features / sums.count, sums.outputs / sums.count
    scatter = sums.squares - n * torch.outer(mean, mean)
    covariance = sums.gram / n - torch.outer(output_mean, output_mean)
    cross = sums.cross / n - torch.outer(mean, output_mean)
    if len(covariance) == 0 or torch.linalg.eigvalsh(covariance)[0] < LOST_VARIANCE:
        return torch.full_like(n, torch.nan), torch.full_like(n, torch.nan)
    overlap, size = overlap_and_size(cross, covariance, output_mean, span)
    plain = 1 - overlap / (frobenius(scatter) / n * size)
    overlap = (overlap - sums.caught / n * every / n) * n / (n - 1)
    trace, diagonal = sums.norms, sums.norms_squared
    square = frobenius(scatter).square() - diagonal * (1 + 2 / (n - 2))
    square = (square + trace.square() / ((n - 1) * (n - 2))) / (n * (n - 3))
    return plain, 1 - overlap / (torch.where(square > 0, square, torch.nan).sqrt() * size)
