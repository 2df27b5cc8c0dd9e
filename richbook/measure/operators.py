"""The feature kernel T and the minimum projection T_MP.

Both are operators on functions of the input, with inner product ⟨f|g⟩ = E_x[f(x) g(x)], estimated
by the mean over samples. A function is a column of its values at the samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from richbook.measure.errors import RichbookError
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
from richbook.measure.products import centre
from richbook.measure.span import OutputSpan, output_span

#: Eigenvalues below this fraction of the largest are rounding: their eigenfunctions are undefined.
EIGENVALUE_RESOLUTION = 1e-13


@dataclass(frozen=True)
class FeatureKernel:
    r"""The feature kernel T = Σ_k |Φ_k⟩⟨Φ_k|, that is (Tf)(x') = E_x[Φ(x')·Φ(x) f(x)].

    Its eigenpairs come from the p×p matrix M = E[ΦΦᵀ] = U diag(ρ) Uᵀ: T|e_k⟩ = ρ_k|e_k⟩ with
    e_k(x) = u_k·Φ(x)/√ρ_k, a formula that holds at samples and at new inputs alike (Nyström).

    Attributes:
        eigenvalues: ρ, shape (p,), descending, float64, in the units of Φ².
        directions: U, shape (p, p), a column an eigenvector; its largest entry is positive.
        mean: what is subtracted from features first, shape (p,): zero, or E[Φ] for the centred
            kernel.

    Example:
        >>> import torch
        >>> features = torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> kernel = FeatureKernel.from_features(features)
        >>> kernel.eigenvalues.tolist()
        [4.5, 0.5]
        >>> kernel.eigenfunctions(features)[:, 0].tolist()
        [1.4142135623730951, -1.4142135623730951, 0.0, 0.0]
    """

    eigenvalues: Tensor
    directions: Tensor
    mean: Tensor
    _sample: Tensor

    @classmethod
    def from_features(cls, features: Tensor, centred: bool = False) -> FeatureKernel:
        """Diagonalise the kernel of features (n, p); ``centred`` takes c(T), that of Φ − E[Φ].

        Raises:
            RichbookError: not (n, p), fewer than 2 samples, nan or infinity.

        Warns:
            DegenerateWarning: n ≤ p, where the eigenfunctions describe the sample and not the
                network.
        """
        features = as_samples(features, "features")
        check_finite(features, "features")
        warn_if_few_samples(features, stacklevel=2)
        features = to_float64(features.detach())
        sample, mean = centre(features) if centred else (features, torch.zeros_like(features[0]))
        with exact_arithmetic(features.device):
            eigenvalues, directions = torch.linalg.eigh(sample.T @ sample / len(sample))
        eigenvalues, directions = eigenvalues.flip(0).clamp_min(0), directions.flip(1)
        largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
        return cls(eigenvalues, directions * largest.sign(), mean, sample)

    @property
    def rank(self) -> int:
        """Number of eigenvalues that are not rounding."""
        return int((self.eigenvalues > EIGENVALUE_RESOLUTION * self.eigenvalues[0]).sum())

    def eigenfunctions(self, features: Tensor) -> Tensor:
        """Evaluate e_1 … e_p at any inputs, given their features (n, p): shape (n, p).

        Columns whose eigenvalue is zero to rounding are nan: those functions are not defined.
        """
        centred = self._centred(features)
        scale = torch.where(
            self.eigenvalues > EIGENVALUE_RESOLUTION * self.eigenvalues[0],
            self.eigenvalues,
            torch.nan,
        )
        return centred @ self.directions / scale.sqrt()

    def apply(self, values: Tensor, features: Tensor | None = None) -> Tensor:
        """Apply T to functions given by their values at the sample, shape (n,) or (n, m).

        Returns (Tf)(x') at the sample, or at the inputs whose ``features`` are given.
        """
        vector = torch.as_tensor(values).ndim == 1
        values = as_samples(values, "values", single_column=True)
        check_same_length(values=values, sample=self._sample)
        check_finite(values, "values")
        moment = self._sample.T @ to_float64(values) / len(self._sample)  # (p, m) = E[Φ f]
        result = (self._sample if features is None else self._centred(features)) @ moment
        return result[:, 0] if vector else result

    def _centred(self, features: Tensor) -> Tensor:
        features = as_samples(features, "features", minimum=1)
        check_finite(features, "features")
        if features.shape[1] != len(self.mean):
            raise RichbookError(
                f"features: expected {len(self.mean)} columns, got {tuple(features.shape)}"
            )
        return to_float64(features) - self.mean


@dataclass(frozen=True)
class MinimumProjection:
    r"""The minimum projection T_MP = a1 |1⟩⟨1| + a2 P_Ĥ onto the learned functions.

    Ĥ = span{f̂_1 … f̂_C}. A network whose kernel is T_MP has kept the functions it outputs, the
    constant, and nothing else (Nam et al. 2026, Definition 1).

    Attributes:
        rank: dim Ĥ, counting only directions above the rounding of the outputs' precision.
        a1, a2: the weights; D_LR does not depend on them.

    Example:
        >>> import torch
        >>> outputs = torch.tensor([[1.0, -1.0], [2.0, -2.0], [3.0, -3.0]])   # they sum to zero
        >>> projection = MinimumProjection.from_outputs(outputs)
        >>> projection.rank
        1
        >>> projection.project(torch.tensor([2.0, 4.0, 6.0])).round(decimals=6).tolist()
        [2.0, 4.0, 6.0]
    """

    rank: int
    a1: float
    a2: float
    _basis: Tensor  # (n, rank), orthonormal under E_x

    @classmethod
    def from_outputs(
        cls, outputs: Tensor, a1: float = 1.0, a2: float = 1.0, precision: torch.dtype | None = None
    ) -> MinimumProjection:
        """Find Ĥ from outputs (n, C); ``precision`` as in :func:`d_lr`.

        Raises:
            RichbookError: not (n, C), nan or infinity, or a1, a2 not positive.
        """
        outputs = as_samples(outputs, "outputs", single_column=True)
        check_finite(outputs, "outputs")
        for name, weight in (("a1", a1), ("a2", a2)):
            if not (isinstance(weight, int | float) and 0 < weight < float("inf")):
                raise RichbookError(f"{name}: expected a positive weight, got {weight!r}")
        tolerance = rank_tolerance(checked_precision(precision, outputs.dtype))
        centred, mean = centre(to_float64(outputs.detach()))
        span = output_span(mean, centred.T @ centred / len(centred), tolerance)
        basis = _orthonormal_basis(centred, span)
        return cls(int(span.rank), float(a1), float(a2), basis)

    def project(self, values: Tensor) -> Tensor:
        """P_Ĥ of functions given by their values at the same samples, shape (n,) or (n, m)."""
        return self._on_columns(
            values, lambda columns: self._basis @ (self._basis.T @ columns) / len(columns)
        )

    def apply(self, values: Tensor) -> Tensor:
        """T_MP of functions given by their values at the same samples, shape (n,) or (n, m)."""
        constant = self._on_columns(values, lambda columns: columns.mean(0).expand_as(columns))
        return self.a1 * constant + self.a2 * self.project(values)

    def _on_columns(self, values: Tensor, operator) -> Tensor:
        vector = torch.as_tensor(values).ndim == 1
        columns = as_samples(values, "values", single_column=True)
        check_same_length(values=columns, outputs=self._basis)
        check_finite(columns, "values")
        result = operator(to_float64(columns))
        return result[:, 0] if vector else result


def _orthonormal_basis(centred: Tensor, span: OutputSpan) -> Tensor:
    """Functions that are orthonormal under E_x and span Ĥ, as columns (n, rank)."""
    whitened = centred @ span.whitening[:, span.kept]
    if bool(span.includes_constant):
        return torch.cat([torch.ones_like(centred[:, :1]), whitened], dim=1)
    functions = whitened + span.offset[span.kept]  # their Gram matrix is I + mmᵀ
    left, _, right = torch.linalg.svd(functions, full_matrices=False)
    return left @ right * len(functions) ** 0.5
