"""How many directions a second moment has in effect: dimension collapse as a number."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from richbook.measure.errors import DegenerateWarning, RichbookError
from richbook.measure.inputs import check_finite, exact_arithmetic, to_float64

KINDS = ("entropy", "participation")
#: Products of float32 features leave eigenvalues this far below zero, relative to the largest.
ROUNDING = 1e-6


def effective_rank(moment: Tensor, kind: str = "entropy") -> Tensor:
    r"""Compute the number of directions that a second moment has in effect.

    With the eigenvalues as shares s_k = ρ_k / Σ_j ρ_j, the two usual ways to count are

    .. math:: \text{entropy: } \exp\Big(-\sum_k s_k \log s_k\Big), \qquad
              \text{participation: } \frac{1}{\sum_k s_k^2} .

    Both are m for m equal eigenvalues, lie between 1 and the rank, and do not change if the matrix
    is scaled or its basis rotated. The entropy (Roy and Vetterli, "The effective rank", EUSIPCO
    2007) gives small eigenvalues more weight, and is never the smaller of the two.

    Args:
        moment: a symmetric matrix (d, d) without negative eigenvalues, such as ``H_b`` of
            ``layer_moments`` or ``features.T @ features / n``; a covariance if the mean shall not
            count as a direction.
        kind: "entropy" or "participation".

    Returns:
        A float64 scalar, differentiable (the entropy within the directions that are there); nan,
        with a ``DegenerateWarning``, for a matrix of zeros.

    Raises:
        RichbookError: a matrix that is not square and symmetric, or has an eigenvalue that is
            negative by more than rounding; nan or infinity; another kind.

    Example:
        >>> import torch
        >>> moment = torch.diag(torch.tensor([2.0, 2.0, 2.0, 0.0]))
        >>> [round(float(effective_rank(moment, kind)), 6) for kind in KINDS]
        [3.0, 3.0]
        >>> moment[3, 3] = 0.2
        >>> [round(float(effective_rank(moment, kind)), 2) for kind in KINDS]
        [3.34, 3.19]
    """
    if kind not in KINDS:
        raise RichbookError(f'kind: expected "entropy" or "participation", got {kind!r}')
    given = moment
    moment = _as_moment(moment)
    largest = moment.detach().abs().max()
    if not bool(largest > 0):
        warnings.warn(
            "moment is zero: its effective rank is 0/0, returning nan",
            DegenerateWarning, stacklevel=2,
        )  # fmt: skip
        return moment.sum() * torch.nan
    moment = moment / largest
    with exact_arithmetic(moment.device):
        if kind == "participation" and moment.requires_grad:
            _check_positive(torch.linalg.eigvalsh(moment.detach()), given.dtype)
            return moment.trace().square() / moment.square().sum()
        eigenvalues = torch.linalg.eigvalsh(moment)
        _check_positive(eigenvalues.detach(), given.dtype)
        shares = eigenvalues.clamp_min(0) / eigenvalues.clamp_min(0).sum()
        if kind == "participation":
            return 1 / shares.square().sum()
        kept = torch.where(shares > 0, shares, 1.0)  # 0 log 0 = 0, without its infinite slope
        return (-kept * kept.log()).sum().exp()


def _as_moment(moment: object) -> Tensor:
    """The matrix in float64, symmetric to the last bit."""
    shape = tuple(moment.shape) if isinstance(moment, Tensor) else type(moment).__name__
    square = isinstance(moment, Tensor) and moment.ndim == 2 and moment.shape[0] == moment.shape[1]
    if not square or moment.shape[0] == 0 or moment.is_complex():
        raise RichbookError(
            f"moment: expected a symmetric matrix (d, d), got {shape}; for features (n, d) pass "
            "features.T @ features / n"
        )
    check_finite(moment, "moment")
    dtype = moment.dtype if moment.is_floating_point() else torch.float64
    moment = to_float64(moment)
    gap = (moment - moment.mT).detach().abs().max()
    if bool(gap > 100 * torch.finfo(dtype).eps * moment.detach().abs().max()):
        raise RichbookError(
            f"moment: expected a symmetric matrix, got one of shape {shape} that differs from its "
            f"transpose by {float(gap):.1e}"
        )
    return (moment + moment.mT) / 2


def _check_positive(eigenvalues: Tensor, dtype: torch.dtype) -> None:
    eps = torch.finfo(dtype).eps if dtype.is_floating_point else 0.0
    allowed = max(ROUNDING, 100 * len(eigenvalues) * eps)
    if bool(eigenvalues[0] < -allowed * eigenvalues.abs().max()):
        share = float(eigenvalues[0] / eigenvalues.abs().max())
        raise RichbookError(
            "moment: expected no negative eigenvalues, as in E[h hᵀ], got one of "
            f"{share:.1e} times the largest"
        )
