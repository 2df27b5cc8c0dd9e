"""Centring and multiplying samples so that neither their mean nor their scale spoils the result."""

from __future__ import annotations

import torch
from torch import Tensor

from richbook.measure.inputs import to_float64, working_dtype

#: Columns a panel of a symmetric product; only panels on or above the diagonal are computed.
PANEL_COLUMNS = 256
#: Products with fewer columns on one side are summed in pieces of so many rows.
NARROW, PIECE_ROWS = 64, 128
#: float32 squares are safe for magnitudes in this range; outside it a block is multiplied in
#: float64.
FLOAT32_RANGE = (1e-15, 1e15)


def centre_in(values: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The values less their mean in ``dtype``, the float64 mean, and what its rounding left behind.

    Rounding the mean to float32 before subtracting it leaves a mean of its own in the centred
    values. It is known exactly, so the products can be corrected for it; at an offset of 1e6 times
    the spread it would be worth 0.4 % of the variance.
    """
    if dtype == torch.float64:
        centred, mean = centre(to_float64(values))
        return centred, mean, torch.zeros_like(mean)
    values = values.to(dtype)
    mean = _mean64(values)
    rounded = mean.to(values.device, dtype)
    return values - rounded[..., None, :], mean, mean - to_float64(rounded)


def centre(values: Tensor) -> tuple[Tensor, Tensor]:
    """float64 values (..., n, d) less their mean, and the mean (..., d).

    Counting from the first row keeps the mean of n copies of 0.1 at 0.1 exactly: a constant column
    then has no variance, where the rounding of a plain mean would pass for some.
    """
    first = values[..., :1, :]
    shifted = values - first
    rest = shifted.mean(-2, keepdim=True)
    return shifted - rest, (first + rest)[..., 0, :]


def _mean64(values: Tensor) -> Tensor:
    if values.device.type == "mps":  # no float64 there
        return to_float64(values).mean(dim=-2)
    return values.mean(dim=-2, dtype=torch.float64)


def safe_dtype(values: Tensor) -> torch.dtype:
    """The working dtype, or float64 where squares would leave float32's range."""
    dtype = working_dtype(values)
    if dtype == torch.float32 and values.numel():
        low, high = torch.aminmax(values.detach())
        largest = max(abs(float(low)), abs(float(high)))
        if largest and not FLOAT32_RANGE[0] < largest < FLOAT32_RANGE[1]:
            return torch.float64
    return dtype


def symmetric_product(values: Tensor) -> Tensor:
    """valuesᵀ values in float64, shape (..., p, p).

    Of wide values only the panels on and above the diagonal are computed: for p = 1024 and panels
    of 256 that is 10 of 16. The gradient-carrying and the batched
    case take the plain product, which autograd and bmm know how to handle.
    """
    width = values.shape[-1]
    plain = (
        values.ndim > 2
        or width < 2 * PANEL_COLUMNS
        or (values.requires_grad and torch.is_grad_enabled())
    )
    if plain:
        return _product(values, values)
    result = values.new_empty(width, width)
    for start in range(0, width, PANEL_COLUMNS):
        stop = min(start + PANEL_COLUMNS, width)
        panel = values[:, :stop].T @ values[:, start:stop]  # (stop, panel)
        result[:stop, start:stop] = panel
        result[start:stop, :start] = panel[:start].T
    return to_float64(result)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """leftᵀ right in float64. With few columns on one side, float32 products add up their rows one
    by one, at an error of up to 4e-5 over 4096 rows; of short pieces it is about 1e-6."""
    rows, narrow = left.shape[-2], min(left.shape[-1], right.shape[-1]) < NARROW
    if left.ndim > 2 or left.dtype == torch.float64 or rows <= PIECE_ROWS or not narrow:
        return to_float64(left.mT @ right)
    whole = rows - rows % PIECE_ROWS
    pieces = [part[:whole].unflatten(0, (-1, PIECE_ROWS)) for part in (left, right)]
    return to_float64(pieces[0].mT @ pieces[1]).sum(0) + to_float64(left[whole:].T @ right[whole:])


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
