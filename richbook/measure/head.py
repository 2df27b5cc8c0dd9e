"""D_LR from the features and the head's weight, without a matrix of the outputs' size squared.

With f̂ = WΦ + b, every learned function is a combination of the p features and the constant, so Ĥ
has at most p + 1 dimensions however many outputs there are. Write the outputs, each scaled to a
root mean square of about 1, as Ã (Φ − E[Φ], 1)ᵀ with Ã of shape (C, p + 1), and let Ã = QR. The
p + 1 functions R (Φ − E[Φ], 1)ᵀ are the outputs up to a rotation: they have the same span, and the
eigenvalues of their covariance are those of the outputs'. R is found in blocks of rows, so C×p
numbers are read and (p + 1)² are kept, where the outputs' own moments would take C².
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from richbook.measure.degenerate import warn_if_degenerate
from richbook.measure.distance import distance_to_span
from richbook.measure.errors import RichbookError
from richbook.measure.inputs import (
    as_samples,
    check_finite,
    checked_precision,
    exact_arithmetic,
    rank_tolerance,
    to_float64,
)
from richbook.measure.moments import Moments
from richbook.measure.span import OutputSpan, power_of_two, span_of_scaled

#: Rows of the weight that are taken at a time.
BLOCK_OUTPUTS = 8192


def d_lr_from_head(
    features: Tensor | Moments,
    weight: Tensor,
    bias: Tensor | None = None,
    precision: torch.dtype | None = None,
) -> Tensor:
    r"""Compute D_LR of f̂ = WΦ + b from the features and the head, for any number of outputs.

    The same number as :func:`d_lr` gives for the outputs, but the cost is O(n p² + C p²) and the
    memory O(p²) beside the weight itself: for a language model with a vocabulary of 50 257 the
    outputs' covariance alone would take 20 GB. With C ≥ p the outputs usually span all feature
    directions; D_LR then measures how isotropic the features are, and a warning says so.

    Args:
        features: Φ, shape (n, p), or the ``Moments`` of a stream of features (its outputs, if it
            has any, are not used).
        weight: W, shape (C, p), as in ``torch.nn.Linear``.
        bias: b, shape (C,), or None.
        precision: the dtype that the weight had when it was trained, if it has been cast since. It
            decides which combinations of outputs are rounding and do not count.

    Returns:
        A float64 scalar, without gradient; nan, with a ``DegenerateWarning``, for constant features
        or outputs.

    Raises:
        RichbookError: shapes that do not fit, fewer than 2 samples, nan or infinity.

    Example:
        >>> import torch
        >>> from richbook.measure import d_lr
        >>> draw = torch.Generator().manual_seed(0)
        >>> features = torch.randn(500, 16, generator=draw)
        >>> head = torch.nn.Linear(16, 4)
        >>> direct = d_lr(features, head(features))
        >>> bool((d_lr_from_head(features, head.weight, head.bias) - direct).abs() < 1e-6)
        True
    """
    if isinstance(features, Moments):
        moments, dtype = features, checked_precision(precision, torch.float32)
        moments.feature_covariance  # noqa: B018 - raises unless there are samples
    else:
        features = as_samples(features, "features").detach()
        moments, dtype = Moments(), features.dtype
        moments.update(features)
    weight, bias = checked_head(weight, bias, moments.feature_mean.shape[-1])
    tolerance = rank_tolerance(checked_precision(precision, weight.dtype))
    with exact_arithmetic(moments.feature_mean.device):
        functions = head_functions(moments, weight, bias, tolerance)
        moments = functions.moments(features_twice(moments))
        warn_if_degenerate(moments, functions.span, dtype, stacklevel=2)
        return distance_to_span(moments, functions.span, dtype)


@dataclass(frozen=True)
class HeadFunctions:
    """At most p + 1 functions R (Φ − E[Φ], 1)ᵀ that stand for the outputs, and their span Ĥ.

    Attributes:
        centre: E[Φ], shape (p,).
        mixing: the columns of R for the features, shape (≤ p + 1, p).
        offset: the column of R for the constant, and so the functions' mean, shape (≤ p + 1,).
        span: Ĥ, in terms of these functions.
    """

    centre: Tensor
    mixing: Tensor
    offset: Tensor
    span: OutputSpan

    def of(self, features: Tensor) -> Tensor:
        """The functions' values, float64, shape (n, ≤ p + 1)."""
        return (to_float64(features) - self.centre) @ self.mixing.T + self.offset

    def moments(self, moments: Moments) -> Moments:
        """Moments whose outputs were Φ, with these functions as the outputs instead."""
        scatter = self.mixing @ moments.output_scatter @ self.mixing.T
        return replace(
            moments,
            output_mean=self.offset,
            cross_scatter=moments.cross_scatter @ self.mixing.T,
            output_scatter=scatter,
        )


def head_functions(
    moments: Moments, weight: Tensor, bias: Tensor, tolerance: float
) -> HeadFunctions:
    """Find the functions for a head (see :func:`checked_head`) and the moments of its features."""
    mean, covariance = moments.feature_mean, moments.feature_covariance
    triangle, size = _triangle(mean, covariance, weight, bias)  # (≤ p + 1, p + 1)
    mixing, offset = triangle[:, :-1], triangle[:, -1]
    span = span_of_scaled(offset, mixing @ covariance @ mixing.T, size, tolerance)
    return HeadFunctions(mean, mixing, offset, span)


def features_twice(moments: Moments) -> Moments:
    """Moments of the features with themselves as the outputs."""
    return replace(
        moments,
        output_mean=moments.feature_mean,
        cross_scatter=moments.feature_scatter,
        output_scatter=moments.feature_scatter,
    )


def _triangle(
    mean: Tensor, covariance: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """R of the scaled outputs' coefficients, and the largest mean square of a scaled output.

    The constant's column comes last: a Householder QR is accurate column by column, so that a large
    offset of the outputs does not spoil the other columns.
    """
    triangle, size = mean.new_zeros(0, len(mean) + 1), mean.new_zeros(())
    for start in range(0, len(weight), BLOCK_OUTPUTS):
        rows = weight[start : start + BLOCK_OUTPUTS].to(mean)  # float64, on the moments' device
        offset = rows @ mean + bias[start : start + BLOCK_OUTPUTS].to(mean)
        squares = (rows @ covariance * rows).sum(1).clamp_min(0) + offset.square()
        scale = power_of_two(squares.sqrt())
        size = torch.maximum(size, (squares / scale.square()).amax())
        block = torch.cat([rows, offset[:, None]], dim=1) / scale[:, None]
        triangle = torch.linalg.qr(torch.cat([triangle, block]), mode="r").R
    return triangle, size


def checked_head(weight: Tensor, bias: Tensor | None, width: int) -> tuple[Tensor, Tensor]:
    """The weight (C, p) and the bias (C,), zeros for None, or an error that says what is wrong."""
    weight = as_samples(weight, "weight", minimum=1).detach()
    if weight.shape[1] != width:
        raise RichbookError(
            f"weight: expected shape (C, {width}), a column a feature, got {tuple(weight.shape)}"
        )
    check_finite(weight, "weight")
    if bias is None:
        return weight, weight.new_zeros(len(weight))
    bias = torch.as_tensor(bias).detach()
    if bias.shape != weight.shape[:1]:
        raise RichbookError(
            f"bias: expected shape ({len(weight)},), one number an output, got {tuple(bias.shape)}"
        )
    check_finite(bias[:, None], "bias")
    return weight, to_float64(bias)
