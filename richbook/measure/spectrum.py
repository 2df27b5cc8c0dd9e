"""The spectrum of the centred feature kernel: how strong, useful and good each direction is."""

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
    checked_precision,
    exact_arithmetic,
    rank_tolerance,
    to_float64,
    warn_if_few_samples,
)
from richbook.measure.moments import Moments
from richbook.measure.operators import EIGENVALUE_RESOLUTION
from richbook.measure.products import is_constant
from richbook.measure.span import output_span


@dataclass(frozen=True)
class Decomposition:
    """The centred kernel c(T) = Σ_k ρ_k |e_k⟩⟨e_k|, seen by the outputs and by the targets.

    Attributes:
        eigenvalues: ρ, shape (p,), descending.
        relative_eigenvalues: ρ_k/ρ_1, shape (p,).
        utilization: Π̂(k), cumulative, shape (p,): the share of the learned functions that the
            first k eigenfunctions carry. It ends at 1 if the outputs are affine in the features.
        quality: Π*(k), the same for the targets, or None without targets. It ends at 1 if and only
            if the features can express the targets.
    """

    eigenvalues: Tensor
    relative_eigenvalues: Tensor
    utilization: Tensor
    quality: Tensor | None


def decompose(
    features: Tensor,
    outputs: Tensor,
    targets: Tensor | None = None,
    precision: torch.dtype | None = None,
) -> Decomposition:
    r"""Decompose the feature kernel along its eigenfunctions, and ask who uses each of them.

    .. math:: \hat\Pi(k) = \frac{\sum_{j\le k} \|P_{\hat H} e_j\|^2}{\mathrm{Tr}\,c(P_{\hat H})},
              \qquad \Pi^*(k) = \frac{\sum_{j\le k} \|P_{H^*} e_j\|^2}{\mathrm{Tr}\,c(P_{H^*})}

    after Nam et al. 2026, eq. 5. The e_j are the eigenfunctions of the centred kernel; dividing by
    the trace of the centred projector, and not by dim Ĥ, is what makes both curves end at 1 whether
    or not the constant is among the learned functions. D_LR is the spectrum weighed by the
    utilisation: with u_k = ‖P_Ĥ e_k‖², D_LR = 1 − Σ_k ρ_k u_k / (‖ρ‖ ‖c(P_Ĥ)‖_F).

    Args:
        features: Φ, shape (n, p).
        outputs: f̂, shape (n, C).
        targets: f*, shape (n, C*), or None.
        precision: the dtype the outputs were computed in, if they have been cast since.

    Raises:
        RichbookError: shapes that do not fit, nan or infinity.

    Warns:
        DegenerateWarning: n ≤ p, where the eigenfunctions describe the sample and not the network;
            or constant features, outputs or targets, whose curves are nan.

    Example:
        >>> import torch
        >>> features = torch.tensor([[3.0, 1.0], [-3.0, 1.0], [3.0, -1.0], [-3.0, -1.0]])
        >>> decompose(features, outputs=features[:, 1]).utilization.tolist()  # uses the weak one
        [0.0, 1.0]
    """
    features = as_samples(features, "features")
    outputs = as_samples(outputs, "outputs", single_column=True)
    spans = {"outputs": (outputs, checked_precision(precision, outputs.dtype))}
    if targets is not None:
        targets = as_samples(targets, "targets", single_column=True)
        spans["targets"] = (targets, targets.dtype)
    check_same_length(features=features, **{name: values for name, (values, _) in spans.items()})
    check_finite(features, "features")
    warn_if_few_samples(features, stacklevel=2)
    curves = {}
    with exact_arithmetic(features.device):
        for name, (values, dtype) in spans.items():
            check_finite(values, name)
            eigenvalues, curves[name] = _decompose(features, values, rank_tolerance(dtype))
    constant = [name for name in curves if bool(curves[name].isnan().any())]
    if not bool(eigenvalues[0]):
        constant = ["features"]
    for name in constant:
        message = f"{name}: constant over the samples, each direction's share is 0/0: returning nan"
        warnings.warn(message, DegenerateWarning, stacklevel=2)
    relative = eigenvalues / eigenvalues[0]
    return Decomposition(eigenvalues, relative, curves["outputs"], curves.get("targets"))


def _decompose(features: Tensor, values: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """Eigenvalues and cumulative share; zeros and nan if the features are constant."""
    moments = Moments.of(to_float64(features.detach()), values.detach().to(features.device))
    eigenvalues, share = utilization_from_moments(moments, tolerance)
    constant = is_constant(moments.feature_mean, moments.feature_covariance, features.dtype)
    return torch.where(constant, 0.0, eigenvalues), torch.where(constant, torch.nan, share)


def utilization_from_moments(moments: Moments, tolerance: float) -> tuple[Tensor, Tensor]:
    """Eigenvalues of the centred kernel, and the cumulative share of the span: both (..., p)."""
    span = output_span(moments.output_mean, moments.output_covariance, tolerance)
    eigenvalues, directions = torch.linalg.eigh(moments.feature_covariance)
    eigenvalues, directions = eigenvalues.flip(-1).clamp_min(0), directions.flip(-1)
    defined = eigenvalues > EIGENVALUE_RESOLUTION * eigenvalues[..., :1]
    overlaps = (
        directions.mT @ moments.cross_covariance @ span.whitening
    )  # ⟨e_k|g⟩ √ρ_k, shape (..., p, C)
    inner = span.inner_inverse()
    used = (overlaps @ inner * overlaps).sum(-1) * defined / torch.where(defined, eigenvalues, 1.0)
    total = inner.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True)  # Tr c(P_Ĥ)
    share = used.cumsum(-1) / torch.where(total > 0, total, torch.nan)
    return eigenvalues, torch.where(eigenvalues[..., :1] > 0, share, torch.nan)
