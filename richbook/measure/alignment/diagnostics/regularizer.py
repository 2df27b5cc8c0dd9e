"""A penalty that pulls a layer's second moments towards its weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from richbook.measure.errors import RichbookError
from richbook.measure.inputs import exact_arithmetic

SIDES = ("input", "output")


@dataclass(frozen=True)
class AlignmentRegularizer:
    r"""A term for the loss that falls as a layer's representation aligns with its weight (RWA).

    For a layer h_b = W h_a it takes one side. Given what the layer gives, it compares H_b with
    W Wᵀ; given what it takes, H_a with WᵀW. With the raw second moment H = E[h hᵀ] of the batch,

    .. math:: \mathrm{strength} \cdot \Big(1 - \frac{\mathrm{Tr}(H Z)}{\|H\|_F \|Z\|_F}\Big),
              \qquad Z = W W^{\mathsf T} \text{ or } W^{\mathsf T} W .

    The cosine of two matrices without negative eigenvalues lies in [0, 1], so the term is 0 where
    H ∝ Z and ``strength`` where they share no direction. It does not change if h or W is scaled,
    nor if samples are reordered, nor under a rotation of the side it looks at (h -> h Rᵀ, with
    W -> R W for the output side and W -> W Rᵀ for the input side) or of the other side of W. It can
    be lowered through h and through W; detach one of them to hold it. Of a layer with a bias, the
    identity H_b = W H_a Wᵀ wants h_b without the bias.

    Args:
        strength: a number not below 0, in units of the loss.
        side: "output", "input", or None: then the width of h decides, which a square W does not
            allow.

    Raises:
        RichbookError: a strength or a side that is none.

    Example:
        >>> import torch
        >>> weight = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        >>> aligned = torch.tensor([[2.0, 0.0], [0.0, 1.0]])  # H = diag(4, 1)/2, Z = diag(4, 1)
        >>> AlignmentRegularizer(0.1)(aligned, weight)
        tensor(0.)
        >>> across = torch.tensor([[0.0, 0.0, 1.0]])  # an input that W does not see
        >>> AlignmentRegularizer(0.1)(across, weight)
        tensor(0.1000)
    """

    strength: float
    side: str | None = None

    def __post_init__(self) -> None:
        number = isinstance(self.strength, (int, float)) and not isinstance(self.strength, bool)
        if not number or not 0 <= self.strength < math.inf:
            raise RichbookError(
                f"strength: expected a finite number not below 0, got {self.strength!r}"
            )
        if self.side is not None and self.side not in SIDES:
            raise RichbookError(f'side: expected "input", "output" or None, got {self.side!r}')

    def __call__(self, h: Tensor, weight: Tensor) -> Tensor:
        """The term, a scalar in the wider of float32 and the arguments' dtypes.

        Args:
            h: the batch on one side of the layer, shape (n, d); what lies between the first and the
                last axis, such as tokens, counts as more samples.
            weight: W, shape (out, in), as in ``torch.nn.Linear``. d is its number of rows (output
                side) or columns (input side).

        Raises:
            RichbookError: shapes that do not fit; a square W with no side chosen; no samples; an h
                or W that is zero and so has no direction (units that died, a layer that starts at
                zero), or that is not finite.
        """
        _check(h, "h", "(n, d)", h.ndim >= 2 if isinstance(h, Tensor) else False)
        _check(weight, "weight", "(out, in)", weight.ndim == 2 if _is(weight) else False)
        side = self._side(h.shape[-1], *weight.shape)
        dtype = torch.promote_types(torch.promote_types(h.dtype, weight.dtype), torch.float32)
        with exact_arithmetic(h.device):
            rows = _unit(h.to(dtype).flatten(0, -2), "h", "did the units before it die?")
            columns = _unit(weight.to(dtype), "weight", "a layer that starts at zero?")
            columns = columns if side == "output" else columns.mT  # (d, other)
            shared = (rows @ columns).square().sum()
            # rounding may lift a perfect cosine above 1, where the penalty would reward it
            sizes = (_square_size(rows) * _square_size(columns)).sqrt()
            return self.strength * (1 - shared / sizes).clamp_min(0)

    def _side(self, width: int, out: int, into: int) -> str:
        fits = {"input": into == width, "output": out == width}
        chosen = [name for name in SIDES if fits[name] and self.side in (None, name)]
        if len(chosen) == 1:
            return chosen[0]
        if chosen:
            raise RichbookError(
                f"side: a square weight ({out}, {into}) takes h of width {width} on either side; "
                'pass side="output" for what the layer gives, side="input" for what it takes'
            )
        wanted = {"output": out, "input": into}.get(self.side)
        raise RichbookError(
            f"h: expected width {out} (the layer's output) or {into} (its input), for a weight of "
            f"shape ({out}, {into}), got {width}"
            if wanted is None
            else f"h: expected width {wanted}, the layer's {self.side}, got {width}"
        )


def _is(value: object) -> bool:
    return isinstance(value, Tensor)


def _check(value: object, name: str, shape: str, fits: bool) -> None:
    if not fits or not value.is_floating_point():
        got = f"{tuple(value.shape)} of {value.dtype}" if _is(value) else type(value).__name__
        raise RichbookError(f"{name}: expected a tensor of real numbers, {shape}, got {got}")


def _unit(matrix: Tensor, name: str, why: str) -> Tensor:
    """The matrix over its largest entry, so that fourth powers stay within range."""
    largest = matrix.detach().abs().max() if matrix.numel() else matrix.new_zeros(())
    if not bool((largest > 0) & largest.isfinite()):
        found = "nan or infinity" if bool(~largest.isfinite()) else "zero everywhere"
        if matrix.numel() == 0:
            found = f"empty, shape {tuple(matrix.shape)}"
        raise RichbookError(
            f"{name}: it is {found}, so that its alignment is not defined"
            + (f" ({why})" if found.startswith("zero") else "")
        )
    return matrix / largest


def _square_size(factor: Tensor) -> Tensor:
    """‖factorᵀ factor‖_F², from whichever product is smaller."""
    tall = factor.shape[0] >= factor.shape[1]
    return (factor.mT @ factor if tall else factor @ factor.mT).square().sum()
