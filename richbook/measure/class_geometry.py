"""From class means and a within-class scatter to NC1, NC2 and NC3: what streams and samples share.

``collapse.py`` has the definitions.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from richbook.measure.class_moments import class_means
from richbook.measure.errors import DegenerateWarning, RichbookError
from richbook.measure.inputs import as_samples, check_finite, to_float64

#: Between-class directions below this fraction of the largest singular value are rounding, and so
#: are centred means below its square times the size of the features.
RESOLUTION = 1e-6
INDISTINCT = "fewer than two distinct class means: {} undefined, returning nan"
SINGLE = "no class has two samples, so nothing can scatter within one: NC1 is 0/0, returning nan"
CENTRAL = "a class mean lies at the centre of all, without an angle: nc2_angle is nan"
ZERO_HEAD = "weight is zero: a head that decides nothing; nc3 and nc4 are nan"


@dataclass(frozen=True, eq=False)
class NeuralCollapse:
    """Five float64 scalars, all 0 at perfect collapse; nan where one is undefined or not asked.

    Attributes:
        nc1: spread within classes in units of the spread between their means, without upper bound.
        nc2_norm: coefficient of variation of the norms of the centred class means.
        nc2_angle: mean over pairs of |cos + 1/(C − 1)|, at most C/(C − 1).
        nc3: distance between the normalised head and the normalised centred class means, 0 to 2.
        nc4: share of samples on which nearest class mean and head disagree, 0 to 1.
    """

    nc1: Tensor
    nc2_norm: Tensor
    nc2_angle: Tensor
    nc3: Tensor
    nc4: Tensor

    def to_dict(self) -> dict[str, float]:
        """The five as Python floats, by name."""
        return {field.name: float(getattr(self, field.name).detach()) for field in fields(self)}


def within_over_between(features: Tensor, labels: Tensor) -> Tensor:
    """NC1 (...) for features (..., n, p) and labels 0 … C−1 that all occur; nan if undefined."""
    features = to_float64(features)
    labels = labels.to(features.device)
    means = class_means(features, labels, labels.bincount())  # (..., C, p)
    within = features - means[..., labels, :]
    centred = means - means.mean(-2, keepdim=True)
    inverse = _inverse(centred, features.detach().square().sum((-2, -1)) / len(labels))
    spread = (within @ inverse).square().sum((-2, -1))
    return _nc1(inverse, spread, len(labels))


def geometry(
    means: Tensor,
    present: Tensor,
    counts: Tensor,
    size: Tensor,
    spread: Callable[[Tensor], Tensor],
    weight: Tensor | None,
) -> NeuralCollapse:
    """NC1 to NC3, with ``nc4`` nan, and a warning for what is undefined or left out.

    Args:
        means: of the classes that occur, float64, shape (C', p).
        present: which classes these are, ascending, shape (C',).
        counts: how many samples each has, shape (C',).
        size: mean of ‖Φ‖² over samples, a scalar.
        spread: maps B (p, C') to the sum over samples of ‖Bᵀ(Φ − μ_c)‖².
        weight: W with a row a class, occurring or not, shape (C, p), or None.
    """
    undefined = means.new_full((), torch.nan)
    centred = means - means.mean(0)  # M, shape (C', p)
    inverse = _inverse(centred, size)
    if not bool(inverse.any()):
        _warn(INDISTINCT.format("neural collapse is"))
        return NeuralCollapse(*[undefined] * 5)
    if absent := _absent(present, weight):
        _warn(absent)
    nc1 = _nc1(inverse, spread(inverse), counts.sum())
    if int(counts.max()) == 1:
        _warn(SINGLE)
        nc1 = undefined
    norms = torch.linalg.vector_norm(centred, dim=1)
    # vector_norm has the gradient 0 where std has none: at norms that are all equal.
    deviation = torch.linalg.vector_norm(norms - norms.mean()) / len(norms) ** 0.5
    nc2_angle = undefined
    if bool(norms.min() > RESOLUTION**2 * size.sqrt()):
        first, second = torch.triu_indices(len(means), len(means), 1, device=means.device)
        directions = centred / norms[:, None]
        cosines = (directions @ directions.T)[first, second]
        nc2_angle = (cosines + 1 / (len(means) - 1)).abs().mean()
    else:
        _warn(CENTRAL)
    nc3 = undefined
    if weight is not None and bool(weight.any()):
        nc3 = torch.linalg.vector_norm(_unit(weight[present]) - _unit(centred))
    elif weight is not None:
        _warn(ZERO_HEAD)
    return NeuralCollapse(nc1, deviation / norms.mean(), nc2_angle, nc3, undefined)


def as_head(weight: object, bias: object, features: Tensor) -> tuple[Tensor | None, Tensor | float]:
    """W (C, p) and b (C,) or 0 in float64 beside the features, or say what is wrong with them."""
    if weight is None:
        if bias is not None:
            raise RichbookError("bias: expected only together with weight, got one without")
        return None, 0.0
    weight = as_samples(weight, "weight", minimum=1)
    check_finite(weight, "weight")
    classes, width = weight.shape
    if width != features.shape[1]:
        raise RichbookError(
            f"weight: expected shape (C, {features.shape[1]}), a row a class and a column a "
            f"feature, got {tuple(weight.shape)}"
        )
    weight = to_float64(weight).to(features.device)
    if bias is None:
        return weight, 0.0
    bias = torch.as_tensor(bias)
    if bias.shape != (classes,):
        raise RichbookError(
            f"bias: expected {classes} numbers, one for each row of weight, "
            f"got shape {tuple(bias.shape)}"
        )
    check_finite(bias[None], "bias")
    return weight, to_float64(bias).to(features.device)


def _inverse(centred: Tensor, size: Tensor) -> Tensor:
    """B (..., p, C) with Σ_B⁺ = C·B Bᵀ, from centred means (..., C, p): their pseudo-inverse.

    All zero if the means are one point. torch differentiates it without the gaps between singular
    values, which a simplex does not have.
    """
    classes = centred.shape[-2]
    return torch.linalg.pinv(
        centred,
        atol=RESOLUTION**2 * (classes * size).sqrt(),
        rtol=torch.full_like(size, RESOLUTION),
    )


def _nc1(inverse: Tensor, spread: Tensor, count: int | Tensor) -> Tensor:
    """Tr(Σ_W Σ_B⁺)/C: the C of Σ_B⁺ = C·B Bᵀ and the 1/C in front cancel."""
    return torch.where((inverse != 0).any(-1).any(-1), spread / count, torch.nan)


def _unit(matrix: Tensor) -> Tensor:
    return matrix / torch.linalg.vector_norm(matrix)


def _absent(present: Tensor, weight: Tensor | None) -> str:
    """A sentence on the classes that do not occur, empty if all do."""
    classes = int(present[-1]) + 1 if weight is None else len(weight)
    absent = classes - len(present)
    if not absent:
        return ""
    seen = torch.zeros(classes, dtype=torch.bool)
    seen[present.cpu()] = True
    names = ", ".join(str(int(c)) for c in (~seen).nonzero()[:5, 0])
    return (
        f"labels: {absent} of {classes} classes do not occur ({names}{', …' * (absent > 5)}): "
        "they are left out"
        + ("" if weight is None else ", and nc3 leaves out their rows of weight")
    )


def _warn(message: str) -> None:
    """Warn at the line that called the public function (frames: here, geometry, public, caller)."""
    warnings.warn(message, DegenerateWarning, stacklevel=4)
