"""Streaming, mergeable, centred second moments: the only thing the measures need of the data.

A one-pass sum of products loses everything when the mean is large (features near 1e3 in float32).
Each block is therefore centred on its own mean before it is multiplied, and blocks are merged in
float64 (Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
variances", 1979): with means m_a, m_b and scatters S_a, S_b over n_a and n_b samples,

    S = S_a + S_b + (n_a n_b / n) (m_b − m_a)(m_b − m_a)ᵀ,   n = n_a + n_b.

Every array may carry leading dimensions, one set of moments for each network of an ensemble.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from richbook.measure.errors import RichbookError
from richbook.measure.inputs import check_finite, to_float64, working_dtype

#: Rows multiplied at a time: long enough for a fast product, short enough for float32 sums.
BLOCK_ROWS = 4096
#: Columns a panel of a symmetric product; only panels on or above the diagonal are computed.
PANEL_COLUMNS = 256
#: float32 squares are safe for magnitudes in this range; outside it a block is multiplied in float64.
FLOAT32_RANGE = (1e-15, 1e15)


@dataclass
class Moments:
    """Means and centred second moments of features and outputs over the samples seen so far.

    ``feature_scatter`` is Σ_i (Φ_i − mean)(Φ_i − mean)ᵀ, not divided by n; the ``*_covariance``
    properties divide. All are float64. An empty ``Moments()`` is the neutral element of ``merge``.

    Example:
        >>> import torch
        >>> stream = Moments()
        >>> for block in torch.arange(12.0).reshape(6, 2).split(4):
        ...     stream.update(block, block.sum(1, keepdim=True))
        >>> stream.count, stream.feature_mean.tolist()
        (6, [5.0, 6.0])
        >>> stream.feature_covariance.tolist()
        [[11.666666666666666, 11.666666666666666], [11.666666666666666, 11.666666666666666]]
    """

    count: int = 0
    feature_mean: Tensor | None = None  # (..., p)
    output_mean: Tensor | None = None  # (..., C)
    feature_scatter: Tensor | None = None  # (..., p, p)
    cross_scatter: Tensor | None = None  # (..., p, C)
    output_scatter: Tensor | None = None  # (..., C, C)

    @classmethod
    def of(cls, features: Tensor, outputs: Tensor, *, exact_outputs: bool = True) -> Moments:
        """Moments of one sample, shapes (..., n, p) and (..., n, C)."""
        moments = cls()
        moments.update(features, outputs, exact_outputs=exact_outputs)
        return moments

    def update(self, features: Tensor, outputs: Tensor, *, exact_outputs: bool = True) -> None:
        """Add samples: features (..., n, p) and outputs (..., n, C), cut into blocks of 4096 rows.

        With ``exact_outputs`` the products with the outputs are float64, which ill-conditioned
        outputs need; without, they use the features' working precision (safe for whitened outputs).

        Raises:
            RichbookError: other shapes than before, or a nan, infinity or overflow; nothing is added then.
        """
        self._check_shapes(features, outputs)
        added = Moments()
        for start in range(0, features.shape[-2], BLOCK_ROWS):
            block = slice(start, start + BLOCK_ROWS)
            first_row = self.count + start
            check_finite(features[..., block, :], "features", first_row)
            check_finite(outputs[..., block, :], "outputs", first_row)
            added = added.merge(_block_moments(features[..., block, :], outputs[..., block, :], exact_outputs))
        vars(self).update(vars(self.merge(added)))

    def merge(self, other: Moments) -> Moments:
        """Moments of both samples together; neither operand changes."""
        if self.count == 0 or other.count == 0:
            return Moments(**vars(other if self.count == 0 else self))
        self._check_widths(other.feature_mean.shape[-1], other.output_mean.shape[-1])
        total = self.count + other.count
        weight = self.count * other.count / total
        feature_step = other.feature_mean - self.feature_mean  # (..., p)
        output_step = other.output_mean - self.output_mean  # (..., C)
        return Moments(
            count=total,
            feature_mean=self.feature_mean + feature_step * (other.count / total),
            output_mean=self.output_mean + output_step * (other.count / total),
            feature_scatter=self.feature_scatter + other.feature_scatter + weight * _outer(feature_step, feature_step),
            cross_scatter=self.cross_scatter + other.cross_scatter + weight * _outer(feature_step, output_step),
            output_scatter=self.output_scatter + other.output_scatter + weight * _outer(output_step, output_step),
        )

    @property
    def feature_covariance(self) -> Tensor:
        """Σ_ΦΦ, shape (..., p, p)."""
        return self._filled("feature_scatter") / self.count

    @property
    def cross_covariance(self) -> Tensor:
        """Σ_Φf, shape (..., p, C)."""
        return self._filled("cross_scatter") / self.count

    @property
    def output_covariance(self) -> Tensor:
        """Σ_ff, shape (..., C, C)."""
        return self._filled("output_scatter") / self.count

    def _filled(self, name: str) -> Tensor:
        if self.count < 2:
            raise RichbookError(f"moments: expected at least 2 samples before reading {name}, got {self.count}")
        return getattr(self, name)

    def _check_shapes(self, features: Tensor, outputs: Tensor) -> None:
        if features.shape[:-1] != outputs.shape[:-1]:
            raise RichbookError(
                "expected the same samples in features and outputs, "
                f"got features {tuple(features.shape)} and outputs {tuple(outputs.shape)}"
            )
        if self.count:
            self._check_widths(features.shape[-1], outputs.shape[-1])

    def _check_widths(self, features: int, outputs: int) -> None:
        before = (self.feature_mean.shape[-1], self.output_mean.shape[-1])
        if before != (features, outputs):
            raise RichbookError(
                f"expected {before[0]} features and {before[1]} outputs as in the samples before, "
                f"got {features} features and {outputs} outputs"
            )


def _outer(left: Tensor, right: Tensor) -> Tensor:
    return left[..., :, None] * right[..., None, :]


def _block_moments(features: Tensor, outputs: Tensor, exact_outputs: bool) -> Moments:
    output_dtype = torch.float64 if exact_outputs else _safe_dtype(outputs)
    centred_features, feature_mean, feature_rest = _centre(features, _safe_dtype(features))
    centred_outputs, output_mean, output_rest = _centre(outputs, output_dtype)
    count = features.shape[-2]
    return Moments(
        count=count,
        feature_mean=feature_mean,
        output_mean=output_mean,
        feature_scatter=to_float64(symmetric_product(centred_features)) - count * _outer(feature_rest, feature_rest),
        cross_scatter=_product(centred_features, centred_outputs) - count * _outer(feature_rest, output_rest),
        output_scatter=to_float64(symmetric_product(centred_outputs)) - count * _outer(output_rest, output_rest),
    )


def _centre(values: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The values less their mean in ``dtype``, the mean in float64, and what its rounding left behind.

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


def _safe_dtype(values: Tensor) -> torch.dtype:
    """The working dtype, or float64 where squares would leave float32's range."""
    dtype = working_dtype(values)
    if dtype == torch.float32 and values.numel():
        low, high = torch.aminmax(values.detach())
        largest = max(abs(float(low)), abs(float(high)))
        if largest and not FLOAT32_RANGE[0] < largest < FLOAT32_RANGE[1]:
            return torch.float64
    return dtype


def symmetric_product(values: Tensor) -> Tensor:
    """valuesᵀ values, shape (..., p, p), computing only the panels on and above the diagonal.

    For p = 1024 and panels of 256 that is 10 of 16 panels. The gradient-carrying and the batched
    case take the plain product, which autograd and bmm know how to handle.
    """
    width = values.shape[-1]
    plain = values.ndim > 2 or width < 2 * PANEL_COLUMNS or (values.requires_grad and torch.is_grad_enabled())
    if plain:
        return values.mT @ values
    result = values.new_empty(width, width)
    for start in range(0, width, PANEL_COLUMNS):
        stop = min(start + PANEL_COLUMNS, width)
        panel = values[:, :stop].T @ values[:, start:stop]  # (stop, panel)
        result[:stop, start:stop] = panel
        result[start:stop, :start] = panel[:start].T
    return result


def _product(left: Tensor, right: Tensor) -> Tensor:
    """leftᵀ right in the wider of both dtypes, returned in float64."""
    dtype = torch.promote_types(left.dtype, right.dtype)
    if dtype == torch.float64:
        left, right = to_float64(left), to_float64(right)
    return to_float64(left.mT @ right)


def frobenius(matrix: Tensor) -> Tensor:
    """Frobenius norm over the last two dimensions, safe from overflow of the squares."""
    largest = matrix.detach().abs().amax(dim=(-2, -1), keepdim=True)
    largest = torch.where(largest > 0, largest, 1.0)
    return torch.linalg.vector_norm(matrix / largest, dim=(-2, -1)) * largest[..., 0, 0]


def is_constant(mean: Tensor, covariance: Tensor, dtype: torch.dtype) -> Tensor:
    """Whether the spread (root of the summed variances) is below the rounding of ``dtype``, shape (...).

    The covariance may be replaced by anything with the same trace.
    """
    eps = torch.finfo(dtype if dtype.is_floating_point else torch.float64).eps
    variance = covariance.diagonal(dim1=-2, dim2=-1).sum(-1)
    return variance <= (0.5 * eps) ** 2 * (variance + mean.square().sum(-1))
