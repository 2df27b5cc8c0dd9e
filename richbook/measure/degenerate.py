"""When D_LR means less than it seems to, or nothing: the words that go with such a number."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from richbook.measure.distance import constant_features
from richbook.measure.errors import DegenerateWarning
from richbook.measure.moments import Moments
from richbook.measure.span import OutputSpan


def warn_if_degenerate(
    moments: Moments,
    span: OutputSpan,
    dtype: torch.dtype,
    stacklevel: int,
    width: int | None = None,
) -> None:
    """Give the ``DegenerateWarning`` that :func:`degeneracy` finds, if any."""
    if message := degeneracy(moments, span, dtype, width):
        warnings.warn(message, DegenerateWarning, stacklevel=stacklevel + 1)


def degeneracy(
    moments: Moments, span: OutputSpan, dtype: torch.dtype, width: int | None = None
) -> str | None:
    """What is wrong with D_LR of these moments, in words; None if nothing is.

    ``width`` is p where ``moments.feature_scatter`` is not p×p but the n×n product.
    """
    width = moments.feature_scatter.shape[-1] if width is None else width
    rank, count = int(span.centred_rank), moments.count
    if bool(constant_features(moments, dtype)):
        return "features are constant over the samples (dead units?): D_LR is 0/0, returning nan"
    if rank == 0:
        return (
            "outputs are constant over the samples, to within the rounding of their precision: "
            "D_LR is 0/0, returning nan"
        )
    if rank >= count - 1:
        return (
            f"outputs span every function on these {count} samples (rank {rank}): D_LR says "
            "nothing about low rank; measure more samples than outputs"
        )
    if count <= width:
        return (
            f"{count} samples for {width} features: D_LR comes out too low; "
            "take several times more samples than features"
        )
    if rank >= (alive := _varying_features(moments.feature_scatter, width)):
        return (
            f"outputs span all feature directions that vary ({alive}): D_LR only measures how "
            "isotropic the features are"
        )
    return None


def _varying_features(scatter: Tensor, width: int) -> int:
    """Features that vary over the samples (dead units do not) where Σ_ΦΦ tells, else all."""
    variances = scatter.diagonal(dim1=-2, dim2=-1)
    return int((variances > 0).sum()) if len(variances) == width else width
