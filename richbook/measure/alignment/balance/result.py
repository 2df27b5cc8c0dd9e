"""What :class:`Balance` found: both identities of a layer, and the assumptions beyond them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from richbook.measure.alignment.balance.terms import identity


@dataclass(frozen=True, repr=False)
class SideBalance:
    """One side of a layer: the three terms of its identity, averaged over steps, and what follows.

    On the output side the identity is that of W Wᵀ; on the input side it is that of WᵀW, and h
    and g change places: read H_a for G_b, G_a for H_b and ‖g_b‖ for ‖h_a‖ in the rest.

    Attributes:
        cross: (1 − ηγ) E[g_b h_bᵀ + h_b g_bᵀ], what the loss builds up.
        noise: η N_b, what the noise of the batches adds.
        decay: (2γ − ηγ²) W Wᵀ, what weight decay takes away. All three are symmetric and float64.
        sampling: how large ``residual`` would be by chance alone if the updates were independent;
            nearby steps are not, so that it is a lower bound.
        drift: the change of W Wᵀ from the first update to the last, per step and η, over the size
            of ``decay``; nan unless updates were given their step. Not stationary yet where this is
            not small beside the residual.
        norms: ‖E[‖h_a‖² g_b g_bᵀ] − E‖h_a‖² G_b‖ over the size of the first (assumption 4).
        mean_gradient: the share of the noise that comes from the mean gradient,
            ‖(1 − 1/B) ∇∇ᵀ‖/‖N_b‖ (assumption 5).
        own_steps: the sine between H_b and ``cross`` + η E‖h_a‖² G_b / B (assumption 6).
        cross_moment: the sine between E[g_b h_bᵀ] and G_b (assumption 7).

    Example:
        >>> eye = torch.eye(2, dtype=torch.float64)
        >>> side = SideBalance(0.6 * eye, 0.3 * eye, eye, 0.0, 0.0, 0.1, 0.2, 0.3, 0.4)
        >>> round(side.residual, 3), round(side.residual_without_noise, 3)
        (0.1, 0.4)
    """

    cross: Tensor
    noise: Tensor
    decay: Tensor
    sampling: float
    drift: float
    norms: float
    mean_gradient: float
    own_steps: float
    cross_moment: float

    @property
    def residual(self) -> float:
        """‖cross + noise − decay‖/‖decay‖: 0 if the identity holds."""
        return relative(self.cross + self.noise, self.decay)

    @property
    def residual_without_noise(self) -> float:
        """The same without the noise term, which says how much of the balance it carries."""
        return relative(self.cross, self.decay)

    @property
    def noise_share(self) -> float:
        """‖noise‖/‖decay‖."""
        return float(torch.linalg.matrix_norm(self.noise) / torch.linalg.matrix_norm(self.decay))

    def to_dict(self) -> dict[str, float]:
        """Every number by its name, for a table."""
        names = ("residual", "residual_without_noise", "noise_share", "sampling", "drift")
        names += ("norms", "mean_gradient", "own_steps", "cross_moment")
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        return f"SideBalance({', '.join(f'{k}={v:.3g}' for k, v in self.to_dict().items())})"


@dataclass(frozen=True, repr=False)
class LayerBalance:
    """Both identities of one layer; see :class:`Balance`.

    Attributes:
        name: the layer.
        updates: how many states of the network were averaged.
        output: the identity of W Wᵀ, side b.
        input: the identity of WᵀW, side a.
        mean_weight: ‖E[∇] − γ E[W]‖/‖γ E[W]‖, the balance of the weight itself: a stationary mean
            weight is one whose mean gradient cancels its decay, noise or no noise.

    Example:
        >>> eye = torch.eye(2, dtype=torch.float64)
        >>> side = SideBalance(0.6 * eye, 0.3 * eye, eye, 0.0, 0.0, 0.1, 0.2, 0.3, 0.4)
        >>> LayerBalance("fc", 20, output=side, input=side, mean_weight=0.1)
        LayerBalance('fc', 20 updates, output residual 0.100, input 0.100)
    """

    name: str
    updates: int
    output: SideBalance
    input: SideBalance
    mean_weight: float

    def to_dict(self) -> dict[str, float]:
        """Every number by its name, with "output_" and "input_" before those of a side."""
        found = {f"output_{key}": value for key, value in self.output.to_dict().items()}
        found |= {f"input_{key}": value for key, value in self.input.to_dict().items()}
        return found | {"mean_weight": self.mean_weight, "updates": self.updates}

    def __repr__(self) -> str:
        sides = f"output residual {self.output.residual:.3f}, input {self.input.residual:.3f}"
        return f"LayerBalance({self.name!r}, {self.updates} updates, {sides})"


def side_balance(
    average: dict[str, Tensor],
    side: str,
    rate: float,
    decay_rate: float,
    batch_size: int,
    updates: int,
    drift: float,
) -> SideBalance:
    """One side of a layer from averages of :func:`balance_terms` over so many updates.

    ``average`` also has ``rest_a`` and ``rest_b``, the squared size of cross + noise − decay in
    each state; ``drift`` is in units of the terms.
    """
    cross, noise, decay = identity(average, side, rate, decay_rate, batch_size)
    size = float(torch.linalg.matrix_norm(decay)) or math.nan
    spread = float(average[f"rest_{side}"] - (cross + noise - decay).square().sum())
    mean_square = rate * (1 - 1 / batch_size) * average[f"mean_square_{side}"]
    own_noise = rate / batch_size * average[f"norm_{side}"] * average[f"same_{side}"]
    chance = (max(spread, 0) / (updates - 1)) ** 0.5 if updates > 1 else math.nan
    return SideBalance(
        cross=cross,
        noise=noise,
        decay=decay,
        sampling=chance / size,
        drift=drift / size,
        norms=relative(average[f"factored_{side}"], average[f"square_{side}"]),
        mean_gradient=relative(noise - mean_square, noise),
        own_steps=sine(average[f"other_{side}"], cross + own_noise),
        cross_moment=sine(average[f"cross_{side}"], average[f"same_{side}"]),
    )


def relative(value: Tensor, expected: Tensor) -> float:
    """‖value − expected‖/‖expected‖, nan where the second is zero."""
    size = torch.linalg.matrix_norm(expected)
    return float(torch.linalg.matrix_norm(value - expected) / size) if size > 0 else float("nan")


def sine(value: Tensor, other: Tensor) -> float:
    """√(1 − cos²) between two matrices: what is left of one after the best multiple of the other.

    Example:
        >>> import torch
        >>> sine(torch.eye(2), 5 * torch.eye(2)), sine(torch.eye(2), torch.eye(2).flip(0))
        (0.0, 1.0)
    """
    sizes = torch.linalg.matrix_norm(value) * torch.linalg.matrix_norm(other)
    if not bool(sizes > 0):
        return float("nan")
    cosine = float((value * other).sum() / sizes)
    return max(1 - cosine**2, 0.0) ** 0.5
