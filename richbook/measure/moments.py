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
from richbook.measure.inputs import check_finite, exact_arithmetic, to_float64
from richbook.measure.products import centre_in, cross_product, safe_dtype, symmetric_product

#: Rows multiplied at a time: long enough for a fast product, short enough for float32 sums.
BLOCK_ROWS = 4096


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
        moments.update(features, outputs, exact_outputs=exact_outputs, keep_graph=True)
        return moments

    def update(
        self,
        features: Tensor,
        outputs: Tensor | None = None,
        *,
        exact_outputs: bool = True,
        keep_graph: bool = False,
    ) -> None:
        """Add samples: features (..., n, p) and outputs (..., n, C), cut into blocks of 4096 rows.

        Without outputs only the moments of the features are kept (C = 0), for ``d_lr_from_head``;
        they are multiplied in float64, because that reads ranks from them.
        With ``exact_outputs`` the products with the outputs are float64, which ill-conditioned
        outputs need; without, they use the features' working precision (safe for whitened outputs).
        Gradients flow only with ``keep_graph``: a stream that kept them would keep all its data.

        Raises:
            RichbookError: other shapes than before, or a nan, infinity or overflow; nothing is
                added then.
        """
        features = torch.as_tensor(features)
        if outputs is None:
            features = to_float64(features)
            outputs = features[..., :0]
        outputs = torch.as_tensor(outputs)
        if not keep_graph:
            features, outputs = features.detach(), outputs.detach()
        self._check_shapes(features, outputs)
        added = Moments()
        with exact_arithmetic(features.device):
            for start in range(0, features.shape[-2], BLOCK_ROWS):
                block = (..., slice(start, start + BLOCK_ROWS), slice(None))
                norms = (
                    check_finite(features[block], "features", self.count + start),
                    check_finite(outputs[block], "outputs", self.count + start),
                )
                found = _block_moments(features[block], outputs[block], exact_outputs, norms)
                added = added.merge(found)
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
            feature_scatter=_plus_outer(
                self.feature_scatter + other.feature_scatter, weight * feature_step, feature_step
            ),
            cross_scatter=_plus_outer(
                self.cross_scatter + other.cross_scatter, weight * feature_step, output_step
            ),
            output_scatter=_plus_outer(
                self.output_scatter + other.output_scatter, weight * output_step, output_step
            ),
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
            raise RichbookError(
                f"moments: expected at least 2 samples before reading {name}, got {self.count}"
            )
        return getattr(self, name)

    def _check_shapes(self, features: Tensor, outputs: Tensor) -> None:
        if min(features.ndim, outputs.ndim) < 2 or features.shape[:-1] != outputs.shape[:-1]:
            raise RichbookError(
                "expected the same samples in features (n, p) and outputs (n, C), "
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


def _plus_outer(matrix: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """matrix + left rightᵀ, with one pass over memory where there is but one matrix."""
    if matrix.ndim == 2:
        return torch.addr(matrix, left, right)
    return matrix + _outer(left, right)


def _outer(left: Tensor, right: Tensor) -> Tensor:
    return left[..., :, None] * right[..., None, :]


def _block_moments(
    features: Tensor, outputs: Tensor, exact_outputs: bool, norms: tuple[float | None, float | None]
) -> Moments:
    feature_dtype = safe_dtype(features, norms[0])
    output_dtype = torch.float64 if exact_outputs else safe_dtype(outputs, norms[1])
    centred_features, feature_mean, feature_rest = centre_in(features, feature_dtype)
    centred_outputs, output_mean, output_rest = centre_in(outputs, output_dtype)
    count = features.shape[-2]
    return Moments(
        count=count,
        feature_mean=feature_mean,
        output_mean=output_mean,
        feature_scatter=symmetric_product(centred_features)
        - count * _outer(feature_rest, feature_rest),
        cross_scatter=cross_product(centred_features, centred_outputs)
        - count * _outer(feature_rest, output_rest),
        output_scatter=symmetric_product(centred_outputs)
        - count * _outer(output_rest, output_rest),
    )
