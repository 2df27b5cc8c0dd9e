"""Centring and multiplying samples so that neither their mean nor their scale spoils the result."""

from __future__ import annotations

import torch
from torch import Tensor

from richbook.measure.inputs import to_float64, working_dtype
from richbook.measure.panels import add_product, empty_panels, panel_columns, whole

#: Products with fewer columns on one side are summed in pieces of so many rows.
NARROW, PIECE_ROWS = 64, 128
#: So many rows tell about where a mean is.
FEW_ROWS = 128
#: float32 squares are safe for magnitudes in this range; outside it a block is multiplied in
#: float64.
FLOAT32_RANGE = (1e-15, 1e15)


def centre_in(values: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The values less about their mean, in ``dtype``; the float64 mean; what is left of it there.

    In float32 the mean of a few rows is subtracted, and that of what is left is a product, many
    times as fast as a sum in float64. It is small, so that rounding it costs no digits, but not
    zero: products of the centred values have to be corrected for it.
    """
    if dtype == torch.float64:
        centred, mean = centre(to_float64(values))
        return centred, mean, torch.zeros_like(mean)
    count = values.shape[-2]
    step = max(count // FEW_ROWS, 1)
    some = to_float64(values[..., ::step, :]).mean(-2)
    near = some.detach().to(values.device, dtype)
    centred = values.to(dtype) - near[..., None, :]
    rest = some - to_float64(near) if step == 1 else row_sums(centred) / count
    return centred, to_float64(near) + rest, rest


def row_sums(values: Tensor) -> Tensor:
    """Σ over the rows of (..., n, d), float64.

    Short pieces are summed as products in the precision of the values, many times as fast as a sum
    in float64; one long sum would lose digits where samples repeat.
    """
    batch, count = values.shape[:-2], values.shape[-2]
    total = to_float64(values.new_zeros(*batch, 1, values.shape[-1]))
    full = count - count % PIECE_ROWS
    if batch.numel() == 1 and full:
        pieces = values[..., :full, :].reshape(-1, PIECE_ROWS, values.shape[-1])
        total = total + to_float64(_ones(pieces) @ pieces).sum(0)
        values = values[..., full:, :]
    for piece in values.split(2 * PIECE_ROWS, dim=-2):
        total = total + to_float64(_ones(piece) @ piece)
    return total[..., 0, :]


def _ones(values: Tensor) -> Tensor:
    """(..., 1, n), for values (..., n, d): with fewer axes, matmul would copy the values."""
    return values.new_ones(()).expand(*values.shape[:-2], 1, values.shape[-2])


def centre(values: Tensor) -> tuple[Tensor, Tensor]:
    """float64 values (..., n, d) less their mean, and the mean (..., d).

    Counting from the first row keeps the mean of n copies of 0.1 at 0.1 exactly: a constant column
    then has no variance, where the rounding of a plain mean would pass for some.
    """
    first = values[..., :1, :]
    shifted = values - first
    rest = shifted.mean(-2, keepdim=True)
    return shifted - rest, (first + rest)[..., 0, :]


def safe_dtype(values: Tensor, norm: float | None = None) -> torch.dtype:
    """The working dtype, or float64 where squares would leave float32's range.

    The norm of all values together is asked for where it is known: they are looked through once
    less.
    """
    dtype, (smallest, greatest) = working_dtype(values), FLOAT32_RANGE
    if dtype == torch.float32 and values.numel():
        norm = float(torch.linalg.vector_norm(values.detach())) if norm is None else norm
        if smallest * values.numel() ** 0.5 < norm < greatest:
            return dtype  # so is the largest number
        low, high = torch.aminmax(values.detach())
        largest = max(abs(float(low)), abs(float(high)))
        if largest and not smallest < largest < greatest:
            return torch.float64
    return dtype


def symmetric_product(values: Tensor) -> Tensor:
    """valuesᵀ values in float64, shape (..., p, p).

    Of wide values only panels of columns on and above the diagonal are computed, for p = 1024 and
    panels of 256 that is 10 of 16. The gradient-carrying and the batched case take the plain
    product, which autograd and bmm know how to handle.
    """
    width = values.shape[-1]
    carries = values.requires_grad and torch.is_grad_enabled()
    if values.ndim > 2 or panel_columns(width) == width or carries:
        return _product(values, values)
    panels = empty_panels(1, width, like=values)
    add_product(values[None], panels)
    return to_float64(whole(panels, group=0))


def _product(left: Tensor, right: Tensor) -> Tensor:
    """leftᵀ right in float64. With few columns on one side, float32 products add up their rows one
    by one, at an error of up to 4e-5 over 4096 rows; of short pieces it is about 1e-6."""
    rows, narrow = left.shape[-2], min(left.shape[-1], right.shape[-1]) < NARROW
    if left.dtype == torch.float64 or rows <= PIECE_ROWS or not narrow:
        if right.shape[-1] < left.shape[-1]:
            return to_float64(right.mT @ left).mT  # faster this way round
        return to_float64(left.mT @ right)
    full = rows - rows % PIECE_ROWS
    pieces = [part[..., :full, :].unflatten(-2, (-1, PIECE_ROWS)) for part in (left, right)]
    rest = [part[..., full:, :] for part in (left, right)]
    return to_float64(pieces[0].mT @ pieces[1]).sum(-3) + to_float64(rest[0].mT @ rest[1])


def cross_product(left: Tensor, right: Tensor) -> Tensor:
    """leftᵀ right in the wider of both dtypes, returned in float64."""
    dtype = torch.promote_types(left.dtype, right.dtype)
    if dtype == torch.float64:
        left, right = to_float64(left), to_float64(right)
    return _product(left, right)


def frobenius(matrix: Tensor) -> Tensor:
    """Frobenius norm over the last two dimensions, safe from overflow of the squares."""
    largest = matrix.detach().abs().amax(dim=(-2, -1), keepdim=True)
    largest = torch.where(largest > 0, largest, 1.0)
    return torch.linalg.vector_norm(matrix / largest, dim=(-2, -1)) * largest[..., 0, 0]


def is_constant(mean: Tensor, covariance: Tensor, dtype: torch.dtype) -> Tensor:
    """Whether the spread, the root of the summed variances, is below the rounding of ``dtype``.

    The covariance may be replaced by anything with the same trace.
    """
    eps = torch.finfo(dtype if dtype.is_floating_point else torch.float64).eps
    variance = covariance.diagonal(dim1=-2, dim2=-1).sum(-1)
    return variance <= (0.5 * eps) ** 2 * (variance + mean.square().sum(-1))
