"""The spectrum of the centred feature kernel: how strong, how useful and how good each direction is."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from richbook.measure.errors import DegenerateWarning
from richbook.measure.inputs import (
    as_samples,
    check_finite,
    check_same_length,
    exact_arithmetic,
    rank_tolerance,
    to_float64,
)
from richbook.measure.moments import Moments, is_constant
from richbook.measure.operators import EIGENVALUE_RESOLUTION
from richbook.measure.span import output_span


@dataclass(frozen=True)
class Decomposition:
    """The centred kernel c(T) = Σ_k ρ_k |e_k⟩⟨e_k|, seen by the outputs and by the targets.

    Attributes:
        eigenvalues: ρ, shape (p,), descending.
        relative_eigenvalues: ρ_k/ρ_1, shape (p,).
        utilization: Π̂(k), cumulative, shape (p,): the share of the learned functions that the first k
            eigenfunctions carry. It ends at 1 if the outputs are affine in the features.
        quality: Π*(k), the same for the targets, or None without targets. It ends at 1 if and only if the
            features can express the targets.
    """

    eigenvalues: Tensor
    relative_eigenvalues: Tensor
    utilization: Tensor
    quality: Tensor | None


def decompose(features: Tensor, outputs: Tensor, targets: Tensor | None = None) -> Decomposition:
    r"""Decompose the feature kernel along its eigenfunctions, and ask who uses each of them.

    .. math:: \hat\Pi(k) = \frac{\sum_{j\le k} \|P_{\hat H} e_j\|^2}{\mathrm{Tr}\,c(P_{\hat H})}, \qquad
              \Pi^*(k) = \frac{\sum_{j\le k} \|P_{H^*} e_j\|^2}{\mathrm{Tr}\,c(P_{H^*})}

    after Nam et al. 2026, eq. 5. The e_j are the eigenfunctions of the centred kernel; dividing by the
    trace of the centred projector, and not by dim Ĥ, is what makes both curves end at 1 whether or not
    the constant is among the learned functions. D_LR is the spectrum weighed by the utilisation:
    with u_k = ‖P_Ĥ e_k‖², D_LR = 1 − Σ_k ρ_k u_k / (‖ρ‖ ‖c(P_Ĥ)‖_F).

    Args:
        features: Φ, shape (n, p).
        outputs: f̂, shape (n, C).
        targets: f*, shape (n, C*), or None.

    Raises:
        RichbookError: shapes that do not fit, nan or infinity.

    Warns:
        DegenerateWarning: n ≤ p, where the eigenfunctions describe the sample and not the network; or
            constant features, outputs or targets, whose curves are nan.

    Example:
        >>> import torch
        >>> features = torch.tensor([[3.0, 1.0], [-3.0, 1.0], [3.0, -1.0], [-3.0, -1.0]])
        >>> decompose(features, outputs=features[:, 1]).utilization.tolist()      # only the weak direction is used
        [0.0, 1.0]
    """
    features = as_samples(features, "features")
    named = {"outputs": as_samples(outputs, "outputs", single_column=True)}
    if targets is not None:
        named["targets"] = as_samples(targets, "targets", single_column=True)
    check_same_length(features=features, **named)
    check_finite(features, "features")
    for name, values in named.items():
        check_finite(values, name)
    if features.shape[0] <= features.shape[1]:
        message = (
            f"{features.shape[0]} samples for {features.shape[1]} features: the eigenfunctions describe this sample, "
            f"not the network; take more than {features.shape[1]} samples"
        )
        warnings.warn(message, DegenerateWarning, stacklevel=2)
    curves, constant = {}, {}
    with exact_arithmetic(features.device):
        for name, values in named.items():
            moments = Moments.of(to_float64(features.detach()), values.detach().to(features.device))
            eigenvalues, curves[name] = utilization_from_moments(moments, rank_tolerance(values.dtype))
            if bool(is_constant(moments.feature_mean, moments.feature_covariance, features.dtype)):
                eigenvalues, curves[name] = torch.zeros_like(eigenvalues), torch.full_like(curves[name], torch.nan)
                constant["features"] = True
            elif bool(curves[name].isnan().any()):
                constant[name] = True
    for name in constant:
        message = f"{name}: constant over the samples, so the share of each direction is 0/0: returning nan"
        warnings.warn(message, DegenerateWarning, stacklevel=2)
    return Decomposition(eigenvalues, eigenvalues / eigenvalues[0], curves["outputs"], curves.get("targets"))


def utilization_from_moments(moments: Moments, tolerance: float) -> tuple[Tensor, Tensor]:
    """Eigenvalues of the centred kernel, and the cumulative share of the outputs' span: both (..., p)."""
    span = output_span(moments.output_mean, moments.output_covariance, tolerance)
    eigenvalues, directions = torch.linalg.eigh(moments.feature_covariance)
    eigenvalues, directions = eigenvalues.flip(-1).clamp_min(0), directions.flip(-1)
    defined = eigenvalues > EIGENVALUE_RESOLUTION * eigenvalues[..., :1]
    overlaps = directions.mT @ moments.cross_covariance @ span.whitening  # ⟨e_k|g⟩ √ρ_k, shape (..., p, C)
    inner = span.inner_inverse()
    used = (overlaps @ inner * overlaps).sum(-1) * defined / torch.where(defined, eigenvalues, 1.0)
    total = inner.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True)  # Tr c(P_Ĥ)
    share = used.cumsum(-1) / torch.where(total > 0, total, torch.nan)
    return eigenvalues, torch.where(eigenvalues[..., :1] > 0, share, torch.nan)
