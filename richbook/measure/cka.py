"""Linear centred kernel alignment, the cosine between two centred kernels."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from richbook.measure.errors import DegenerateWarning
from richbook.measure.inputs import (
    as_samples,
    check_finite,
    check_same_length,
    exact_arithmetic,
    to_float64,
)
from richbook.measure.moments import Moments
from richbook.measure.products import centre, frobenius, is_constant


def cka(features_a: Tensor, features_b: Tensor) -> Tensor:
    r"""Compute linear CKA of two sets of features of the same samples: 1 if alike up to rotation.

    .. math:: \mathrm{CKA} = \frac{\|\Sigma_{ab}\|_F^2}{\|\Sigma_{aa}\|_F \|\Sigma_{bb}\|_F}

    Kornblith et al., "Similarity of Neural Network Representations Revisited", ICML 2019, in a form
    that builds no n×n kernel, unless n is smaller than a width.

    Args:
        features_a: shape (n, p_a).
        features_b: shape (n, p_b); the widths may differ.

    Returns:
        A float64 scalar in [0, 1], differentiable; nan with a ``DegenerateWarning`` if one is
        constant.

    Raises:
        RichbookError: shapes that do not fit, fewer than 2 samples, nan or infinity.

    Example:
        >>> import torch
        >>> a = torch.randn(100, 8, generator=torch.Generator().manual_seed(0))
        >>> rotation, _ = torch.linalg.qr(a[:8])
        >>> round(float(cka(a, 3 * a @ rotation + 5)), 6)
        1.0
    """
    features_a, features_b = (
        as_samples(features_a, "features_a"),
        as_samples(features_b, "features_b"),
    )
    check_same_length(features_a=features_a, features_b=features_b)
    check_finite(features_a, "features_a")
    check_finite(features_b, "features_b")
    features_b = features_b.to(features_a.device)
    with exact_arithmetic(features_a.device):
        if len(features_a) < max(features_a.shape[1], features_b.shape[1]):
            value = _cka_of_grams(features_a, features_b)
        else:
            moments = Moments.of(features_a, features_b, exact_outputs=False)
            value = cka_from_moments(moments, features_a.dtype, features_b.dtype)
    if bool(value.isnan()):
        message = "features are constant over the samples on one side: CKA is 0/0, returning nan"
        warnings.warn(message, DegenerateWarning, stacklevel=2)
    return value


def cka_from_moments(moments: Moments, dtype_a: torch.dtype, dtype_b: torch.dtype) -> Tensor:
    """CKA of the two variables of ``moments``, shape (...); nan where one of them is constant."""
    a, b = moments.feature_covariance, moments.output_covariance
    value = frobenius(moments.cross_covariance) ** 2 / (frobenius(a) * frobenius(b))
    constant = is_constant(moments.feature_mean, a, dtype_a) | is_constant(
        moments.output_mean, b, dtype_b
    )
    return torch.where(constant, torch.nan, value.clamp(0, 1))


def _cka_of_grams(features_a: Tensor, features_b: Tensor) -> Tensor:
    (gram_a, constant_a), (gram_b, constant_b) = _gram(features_a), _gram(features_b)
    value = (gram_a * gram_b).sum() / (frobenius(gram_a) * frobenius(gram_b))
    return torch.where(constant_a | constant_b, torch.nan, value.clamp(0, 1))


def _gram(features: Tensor) -> tuple[Tensor, Tensor]:
    """Centred n×n kernel over n, and whether it is zero to rounding; its trace is the variance."""
    centred, mean = centre(to_float64(features))
    gram = centred @ centred.T / len(centred)
    return gram, is_constant(mean, gram, features.dtype)
