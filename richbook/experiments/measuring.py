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


def class_measures(features: Tensor, labels: Tensor, initial_features: Tensor) -> dict[str, Tensor]:
    """The rivals that look at features: NC1 of classes, and S_init, how far the kernel moved."""
    return {"nc1": nc1(features, labels), "s_init": kernel_distance(features, initial_features)}


def accuracy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Share of the samples whose largest output is that of their label."""
    return (outputs.argmax(-1) == labels.to(outputs.device)).double().mean()
