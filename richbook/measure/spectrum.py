"""The spectrum of the centred feature kernel: how strong, useful and good each direction is."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from richbook.measure.errors import DegenerateWarning, RichbookError
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
from richbook.measure.span import OutputSpan, output_span

#: Added to the variance of functions whose variance is about 1, where some may depend on others.
ALMOST_ZERO = 1e-10


@dataclass(frozen=True, eq=False)
class Decomposition:
    """The centred kernel c(T) = Σ_k ρ_k |e_k⟩⟨e_k|, seen by the outputs and by the targets.

    Attributes:
        eigenvalues: ρ, shape (p,), descending.
        relative_eigenvalues: ρ_k/ρ_1, shape (p,).
        utilization: Π̂(k), cumulative, shape (p,): the share of the learned functions that the
            first k eigenfunctions carry. It ends at 1 if the outputs are affine in the features.
        quality: Π*(k), the same for the targets, or None without targets. It ends at 1 if and only
            if the features can express the targets.
        directions: U, shape (p, p): e_k(x) = u_k·(Φ(x) − E[Φ]) / √ρ_k.
    """

    eigenvalues: Tensor
    relative_eigenvalues: Tensor
    utilization: Tensor
    quality: Tensor | None
    directions: Tensor

    def on(
        self,
        features: Tensor,
        outputs: Tensor,
        targets: Tensor | None = None,
        precision: torch.dtype | None = None,
    ) -> Decomposition:
        """The same eigenfunctions at other samples, evaluated there by the Nyström formula.

        Utilisation and quality are those on the new samples: the share of the functions that lies
        in the span of e_1 … e_k there. Held-out samples show whether a direction that looks useful
        is so beyond the sample that it was found on. The eigenvalues, and the order, are the old
        ones. The e_k are not orthonormal on other samples, and are made so in their order.

        Arguments, errors and warnings are those of :func:`decompose`.

        Example:
            >>> import torch
            >>> draw = torch.Generator().manual_seed(0)
            >>> old, new = torch.randn(2, 1000, 3, generator=draw)
            >>> held_out = decompose(old, old[:, 0]).on(new, new[:, 0])
            >>> round(float(held_out.utilization[-1]), 1)
            1.0
        """
        features, spans = _checked(features, outputs, targets, precision)
        if features.shape[1] != len(self.eigenvalues):
            raise RichbookError(
                f"features: expected {len(self.eigenvalues)} columns as in the decomposition, "
                f"got {tuple(features.shape)}"
            )
        warn_if_few_samples(features, stacklevel=2)
        curves = {}
        with exact_arithmetic(features.device):
            for name, (values, dtype) in spans.items():
                moments = _moments(features, values)
                span = _span(moments, rank_tolerance(dtype))
                directions, sizes = self._orthonormal(moments.feature_covariance)
                curves[name] = share_of_span(moments, span, sizes, directions)
        _warn_of_constant(curves)
        return replace(self, utilization=curves["outputs"], quality=curves.get("targets"))

    def _orthonormal(self, covariance: Tensor) -> tuple[Tensor, Tensor]:
        """Directions whose first k span what those of e_1 … e_k do, orthonormal under another
        covariance; and 1 for each that is defined, else 0."""
        defined = self.eigenvalues > EIGENVALUE_RESOLUTION * self.eigenvalues[0]
        scale = torch.where(defined, self.eigenvalues, 1.0).rsqrt() * defined
        functions = self.directions.to(covariance) * scale  # e_k in terms of features, (p, p)
        gram = functions.T @ covariance @ functions
        # Fewer samples than functions make some of these depend on others: they become tiny.
        lower = torch.linalg.cholesky(gram + torch.diag(torch.where(defined, ALMOST_ZERO, 1.0)))
        mixed = torch.linalg.solve_triangular(lower, functions.T, upper=False).T
        return mixed, defined.to(covariance.dtype)


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
    features, spans = _checked(features, outputs, targets, precision)
    warn_if_few_samples(features, stacklevel=2)
    curves = {}
    with exact_arithmetic(features.device):
        for name, (values, dtype) in spans.items():
            moments = _moments(features, values)
            eigenvalues, directions = kernel_eigenpairs(moments.feature_covariance)
            constant = is_constant(moments.feature_mean, moments.feature_covariance, features.dtype)
            eigenvalues = torch.where(constant, 0.0, eigenvalues)
            span = _span(moments, rank_tolerance(dtype))
            curves[name] = share_of_span(moments, span, eigenvalues, directions)
    _warn_of_constant(curves if bool(eigenvalues[0]) else {"features": eigenvalues / 0})
    relative = eigenvalues / eigenvalues[0]
    return Decomposition(
        eigenvalues, relative, curves["outputs"], curves.get("targets"), directions
    )


def _checked(features, outputs, targets, precision) -> tuple[Tensor, dict]:
    """The features, and each set of functions with the dtype that it was computed in."""
    features = as_samples(features, "features")
    outputs = as_samples(outputs, "outputs", single_column=True)
    spans = {"outputs": (outputs, checked_precision(precision, outputs.dtype))}
    if targets is not None:
        targets = as_samples(targets, "targets", single_column=True)
        spans["targets"] = (targets, targets.dtype)
    check_same_length(features=features, **{name: values for name, (values, _) in spans.items()})
    check_finite(features, "features")
    for name, (values, _) in spans.items():
        check_finite(values, name)
    return features, spans


def _moments(features: Tensor, values: Tensor) -> Moments:
    return Moments.of(to_float64(features.detach()), values.detach().to(features.device))


def _span(moments: Moments, tolerance: float) -> OutputSpan:
    return output_span(moments.output_mean, moments.output_covariance, tolerance)


def _warn_of_constant(curves: dict[str, Tensor]) -> None:
    for name, curve in curves.items():
        if bool(curve.isnan().any()):
            message = (
                f"{name}: constant over the samples, each direction's share is 0/0: returning nan"
            )
            warnings.warn(message, DegenerateWarning, stacklevel=3)


def kernel_eigenpairs(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """ρ (..., p), descending, and U (..., p, p), a column an eigenvector."""
    eigenvalues, directions = torch.linalg.eigh(covariance)
    return eigenvalues.flip(-1).clamp_min(0), directions.flip(-1)


def utilization_from_moments(moments: Moments, tolerance: float) -> tuple[Tensor, Tensor]:
    """Eigenvalues of the centred kernel, and the cumulative share of the span: both (..., p)."""
    eigenvalues, directions = kernel_eigenpairs(moments.feature_covariance)
    span = _span(moments, tolerance)
    return eigenvalues, share_of_span(moments, span, eigenvalues, directions)


def share_of_span(
    moments: Moments, span: OutputSpan, eigenvalues: Tensor, directions: Tensor
) -> Tensor:
    """Σ_{j≤k} ‖P e_j‖² / Tr c(P) for P the projection on ``span``, shape (..., p)."""
    defined = eigenvalues > EIGENVALUE_RESOLUTION * eigenvalues[..., :1]
    # ⟨e_k|g⟩ √ρ_k, shape (..., p, C)
    overlaps = directions.mT @ moments.cross_covariance @ span.whitening
    inner = span.inner_inverse()
    used = (overlaps @ inner * overlaps).sum(-1) * defined / torch.where(defined, eigenvalues, 1.0)
    total = inner.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True)  # Tr c(P)
    share = used.cumsum(-1) / torch.where(total > 0, total, torch.nan)
    return torch.where(eigenvalues[..., :1] > 0, share, torch.nan)
