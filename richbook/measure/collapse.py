"""Neural collapse: how tightly each class's features gather (NC1)."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from richbook.measure.errors import DegenerateWarning, RichbookError
from richbook.measure.inputs import as_samples, check_finite, to_float64

#: Between-class directions below this fraction of the largest are rounding.
SCATTER_RESOLUTION = 1e-12


def nc1(features: Tensor, labels: Tensor) -> Tensor:
    r"""Compute NC1, the within-class spread in units of the between-class spread: 0 is collapsed.

    .. math:: \mathrm{NC1} = \frac{1}{C} \mathrm{Tr}(\Sigma_W \Sigma_B^+)

    Σ_W averages (Φ − μ_c)(Φ − μ_c)ᵀ over samples; Σ_B averages (μ_c − μ)(μ_c − μ)ᵀ over classes, μ
    being the mean of the class means; Σ_B⁺ is the pseudo-inverse (Papyan, Han and Donoho, PNAS
    2020).

    Args:
        features: shape (n, p).
        labels: integers, shape (n,); classes that do not occur are ignored.

    Returns:
        A float64 scalar, at least 0 and without upper bound. nan, with a ``DegenerateWarning``, for
        one class or identical class means.

    Raises:
        RichbookError: labels that are not n integers, nan or infinity in the features.

    Example:
        >>> import torch
        >>> features = torch.tensor([[1.0], [3.0], [-1.0], [-3.0]])
        >>> round(float(nc1(features, torch.tensor([0, 0, 1, 1]))), 6)
        0.125
    """
    features = as_samples(features, "features")
    check_finite(features, "features")
    try:
        labels = torch.as_tensor(labels, device=features.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RichbookError(
            f"labels: expected {len(features)} integers, one a sample, got {type(labels).__name__}"
        ) from error
    if labels.shape != features.shape[:1] or labels.is_floating_point() or labels.is_complex():
        raise RichbookError(
            f"labels: expected {len(features)} integers, one a sample, "
            f"got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    _, labels = labels.unique(return_inverse=True)
    value = within_over_between(features, labels)
    if bool(value.isnan()):
        message = "fewer than two distinct class means: NC1 is undefined, returning nan"
        warnings.warn(message, DegenerateWarning, stacklevel=2)
    return value


def within_over_between(features: Tensor, labels: Tensor) -> Tensor:
    """NC1 (...) for features (..., n, p) and labels 0 … C−1 that all occur; nan if undefined."""
    features = to_float64(features)
    member = torch.nn.functional.one_hot(labels.to(features.device)).to(torch.float64)  # (n, C)
    classes, count = member.shape[1], features.shape[-2]
    means = (member / member.sum(0)).T @ features  # (..., C, p)
    within = features - means[..., labels.to(means.device), :]
    between = means - means.mean(-2, keepdim=True)
    # Σ_B has the eigenvalues of the C×C Gram matrix of the centred means, and no others but 0.
    variances, mixing = torch.linalg.eigh(between @ between.mT / classes)  # (..., C), (..., C, C)
    size = features.square().sum((-2, -1))[..., None] / count
    threshold = torch.maximum(variances[..., -1:], SCATTER_RESOLUTION * size)
    kept = variances > SCATTER_RESOLUTION * threshold
    inverse = kept / torch.where(kept, variances, 1.0)
    # The eigenvector of Σ_B is betweenᵀ v / √(Cλ), so that |within · eigenvector|² / λ needs 1/λ².
    along = (within @ (between.mT @ mixing)).square().sum(-2) / (count * classes)  # (..., C)
    value = (along * inverse.square()).sum(-1) / classes
    return torch.where(kept.any(-1), value, torch.nan)
