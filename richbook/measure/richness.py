"""D_LR: how far the feature kernel is from the minimum projection onto the learned functions.

Nam et al., "Decoupling Dynamical Richness from Representation Learning: Towards Practical
Measurement", ICLR 2026 (arXiv 2410.04264). With centring c(A) = (I − |1⟩⟨1|) A (I − |1⟩⟨1|),

    D_LR = 1 − CKA(T, T_MP) = 1 − Tr(c(T) c(T_MP)) / (‖c(T)‖_F ‖c(T_MP)‖_F).
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import torch
from torch import Tensor

from richbook.measure.degenerate import warn_if_degenerate
from richbook.measure.distance import finish, low_rank_distance
from richbook.measure.errors import DegenerateWarning, RichbookError
from richbook.measure.inputs import (
    as_samples,
    check_finite,
    check_same_length,
    checked_precision,
    exact_arithmetic,
    rank_tolerance,
    to_float64,
    working_dtype,
)
from richbook.measure.moments import Moments
from richbook.measure.products import centre
from richbook.measure.span import OutputSpan, output_span


def d_lr(features: Tensor, outputs: Tensor, precision: torch.dtype | None = None) -> Tensor:
    r"""Compute the low-rank measure of richness, D_LR: 0 is rich, towards 1 is lazy.

    .. math:: D_{LR} = 1 - \mathrm{CKA}(T, T_{MP}), \qquad
              T = \sum_k |\Phi_k\rangle\langle\Phi_k|, \quad
              T_{MP} = a_1 |1\rangle\langle 1| + a_2 P_{\hat H}

    The cost is that of the product ΦᵀΦ, O(n p min(n, p)), and not of an n×n kernel. Features in
    float32 or half precision are multiplied in float32, in centred blocks that are summed in
    float64.

    Args:
        features: Φ, shape (n, p): the input of the last linear layer, one row a sample.
        outputs: f̂, shape (n, C): what that layer returned for the same samples. A vector of n real
            numbers is one output.
        precision: the dtype the outputs were computed in, if they have been cast since. It decides
            which directions of the outputs are rounding and do not count.

    Returns:
        A float64 scalar on the features' device (on the CPU for MPS, which has no float64),
        differentiable in both arguments. nan, with a ``DegenerateWarning``, where the measure is
        0/0: constant features or constant outputs.

    Raises:
        RichbookError: shapes that do not fit, fewer than 2 samples, nan or infinity (with the row).

    Example:
        >>> import torch
        >>> from torch.nn.functional import one_hot
        >>> labels = torch.arange(200) % 4
        >>> collapsed = one_hot(labels).double()  # each class is one point: as rich as can be
        >>> round(float(d_lr(collapsed, collapsed)), 12)
        0.0
        >>> lazy = torch.randn(4000, 64, generator=torch.Generator().manual_seed(0)).double()
        >>> head = torch.randn(64, 4, generator=torch.Generator().manual_seed(1)).double()
        >>> round(float(d_lr(lazy, lazy @ head)), 2)
        0.75
    """
    features = as_samples(features, "features")
    outputs = as_samples(outputs, "outputs", single_column=True)
    check_same_length(features=features, outputs=outputs)
    check_finite(features, "features")
    check_finite(outputs, "outputs")
    tolerance = rank_tolerance(checked_precision(precision, outputs.dtype))
    with exact_arithmetic(features.device):
        whitened, span = _whiten(outputs.to(features.device), tolerance)
        moments = _moments(features, whitened)
        warn_if_degenerate(moments, span, features.dtype, stacklevel=2, width=features.shape[1])
        return finish(moments, span, features.dtype)


def isotropic_d_lr(dim: int, rank: int) -> float:
    """Return D_LR of features without any low-rank structure: 1 − √(rank/dim).

    If T weighs ``dim`` directions equally and Ĥ lies within them, the cosine between the identity
    on ``dim`` dimensions and a projector of rank ``rank`` is √(rank/dim). A D_LR near this value
    says that the features are isotropic, whatever else it may look like.

    Args:
        dim: number of feature directions, usually p.
        rank: dimension of the learned functions, usually C or C − 1.

    Raises:
        RichbookError: unless 1 ≤ rank and 1 ≤ dim. A rank above dim counts as dim (the value is 0).

    Example:
        >>> round(isotropic_d_lr(128, 97), 2)
        0.13
    """
    for name, value in (("dim", dim), ("rank", rank)):
        whole = isinstance(value, int | float | np.number) and value % 1 == 0
        if not whole or value < 1:
            raise RichbookError(f"{name}: expected a whole number of at least 1, got {value!r}")
    return 1 - math.sqrt(min(rank, dim) / dim)


def d_lr_from_moments(moments: Moments, precision: torch.dtype = torch.float32) -> Tensor:
    """Compute D_LR from the moments of a stream of features and outputs, as :func:`d_lr` would.

    Args:
        moments: what ``Moments.update`` has accumulated, block by block.
        precision: the dtype that features and outputs were computed in.

    Returns:
        A float64 scalar; nan, with a ``DegenerateWarning``, for constant features or outputs.

    Raises:
        RichbookError: fewer than 2 samples so far, or ``precision`` is no floating dtype.

    Example:
        >>> import torch
        >>> draw = torch.Generator().manual_seed(0)
        >>> stream = Moments()
        >>> for _ in range(10):
        ...     block = torch.randn(500, 16, generator=draw)
        ...     stream.update(features=block, outputs=block[:, :4])
        >>> round(float(d_lr_from_moments(stream)), 1), isotropic_d_lr(16, 4)
        (0.5, 0.5)
    """
    tolerance = rank_tolerance(checked_precision(precision, torch.float32))
    value = low_rank_distance(moments, tolerance, precision)
    if bool(value.isnan().any()):
        message = "features or outputs are constant over the samples: D_LR is 0/0, returning nan"
        warnings.warn(message, DegenerateWarning, stacklevel=2)
    return value


def _whiten(outputs: Tensor, tolerance: float) -> tuple[Tensor, OutputSpan]:
    """Whitened outputs g in float64 (n, C), and Ĥ.

    The span carries no gradient: its whitening is one of many invertible mixings, to which D_LR is
    blind, so it may be held fixed.
    """
    outputs = to_float64(outputs)
    with torch.no_grad():
        centred, mean = centre(outputs)
        span = output_span(mean, centred.T @ centred / len(outputs), tolerance)
    return (outputs - mean) @ span.whitening, span


def _moments(features: Tensor, whitened: Tensor) -> Moments:
    """Moments of features and whitened outputs. With n < p only the n×n product is formed: Σ_ΦΦ is
    replaced by the Gram matrix of the centred features, which has the same norm and trace."""
    if features.shape[0] >= features.shape[1]:
        return Moments.of(
            features, whitened.to(features.device, working_dtype(features)), exact_outputs=False
        )
    centred, feature_mean = centre(to_float64(features))
    outputs, output_mean = centre(whitened)
    return Moments(
        count=len(features),
        feature_mean=feature_mean,
        output_mean=output_mean,
        feature_scatter=centred @ centred.T,
        cross_scatter=centred.T @ outputs,
        output_scatter=outputs.T @ outputs,
    )
