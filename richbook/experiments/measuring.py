"""What recipes record of a network: the measures of the book on given samples."""

from __future__ import annotations

import torch
from torch import Tensor

from richbook.measure import (
    Moments,
    d_lr,
    decompose,
    effective_rank,
    isotropic_d_lr,
    kernel_distance,
    nc1,
)
from richbook.measure.inputs import rank_tolerance
from richbook.measure.span import output_span

#: Samples that go through a network at once.
AT_ONCE = 1000


def forward(body, head, inputs: Tensor, at_once: int = AT_ONCE) -> tuple[Tensor, Tensor]:
    """Features (n, p) and outputs (n, C), in float32, of inputs in pieces."""
    features, outputs = [], []
    for piece in inputs.split(at_once):
        features.append(body(piece))
        outputs.append(head(features[-1]).float())
        features[-1] = features[-1].float()
    return torch.cat(features), torch.cat(outputs)


def kernel_measures(
    features: Tensor, outputs: Tensor, targets: Tensor | None = None
) -> dict[str, Tensor]:
    """D_LR and what belongs beside it: the isotropic floor, ranks, and the three curves.

    The curves are over k = 1 … p: ``relative_eigenvalue``, ``utilization`` and, with targets,
    ``quality``.
    """
    moments = Moments.of(features, outputs)
    parts = decompose(features, outputs, targets)
    tolerance = rank_tolerance(outputs.dtype)
    rank = output_span(moments.output_mean, moments.output_covariance, tolerance).centred_rank
    measured = {
        "d_lr": d_lr(features, outputs),
        "isotropic_d_lr": isotropic_d_lr(features.shape[1], max(int(rank), 1)),
        "feature_rank": effective_rank(moments.feature_covariance),
        "output_rank": effective_rank(moments.output_covariance),
        "relative_eigenvalue": parts.relative_eigenvalues,
        "utilization": parts.utilization,
    }
    return measured | ({} if targets is None else {"quality": parts.quality})


def cosine_factors(features: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
    r"""The two factors of 1 − D_LR: how much of the kernel is used, and how even the used part is.

    With P the projection on the centred outputs, a projector of rank r,

    .. math:: 1 - D_{LR} = \frac{\mathrm{Tr}(P T)}{\|T\|_F \sqrt r}
              = \frac{\|P T P\|_F}{\|T\|_F} \cdot \frac{\mathrm{Tr}(P T P)}{\|P T P\|_F \sqrt r} .

    T is the centred kernel. The first factor is 1 if the kernel lies in the outputs' span, the
    second if it is isotropic there. This P is c(P_Ĥ) where the constant lies in Ĥ or is orthogonal
    to it; elsewhere the product differs from 1 − D_LR.
    """
    moments = Moments.of(features, outputs)
    span = output_span(
        moments.output_mean, moments.output_covariance, rank_tolerance(outputs.dtype)
    )
    whitening = span.whitening[:, span.kept]  # (C, r): orthonormal functions of the outputs
    centred = whitening.T @ moments.output_covariance @ whitening
    lower = torch.linalg.cholesky(centred)
    across = torch.linalg.solve_triangular(
        lower, (moments.cross_covariance @ whitening).T, upper=False
    )  # (r, p)
    inside = across @ across.T  # P T P in an orthonormal basis
    size = torch.linalg.vector_norm(inside)
    whole = torch.linalg.vector_norm(moments.feature_covariance)
    return size / whole, inside.trace() / (size * len(inside) ** 0.5)


def class_measures(features: Tensor, labels: Tensor, initial_features: Tensor) -> dict[str, Tensor]:
    """The rivals that look at features: NC1 of classes, and S_init, how far the kernel moved."""
    return {"nc1": nc1(features, labels), "s_init": kernel_distance(features, initial_features)}


def accuracy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Share of the samples whose largest output is that of their label."""
    return (outputs.argmax(-1) == labels.to(outputs.device)).double().mean()
