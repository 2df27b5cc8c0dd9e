"""Power laws through a few positive numbers, with intervals that are honest about how few they are.

A layer has as many eigenvalues as it has directions in use, often ten. The interval here is a wild
bootstrap: the line stays where it is and each residual, enlarged by 1/(1 − leverage), is multiplied
by a random number of mean 0 and variance 1. Taking the quantiles a little further out, as far as
Student's t lies outside the normal (Hesterberg 2015), makes up for the few points. In simulations
with normal or skewed residuals an interval at 95 % held the truth in 89 to 99 of 100 cases, with
four points as with thirty; with residuals that grow towards the line's ends, in 80 to 97.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from scipy.special import ndtr, stdtrit
from torch import Tensor

#: Draws of the bootstrap.
REPLICATES = 2000
#: The factors of Webb (2014): six values with mean 0 and variance 1.
FACTORS = (-math.sqrt(1.5), -1.0, -math.sqrt(0.5), math.sqrt(0.5), 1.0, math.sqrt(1.5))
#: Residuals of a log below this are rounding.
EXACT = 1e-10
#: A difference of Akaike's criterion that counts.
DECISIVE = 2.0


@dataclass(frozen=True)
class PowerLaw:
    """y ∝ x^exponent, fitted to logarithms; nan where it could not be fitted.

    Attributes:
        exponent: the slope of log y on log x.
        low, high: its interval by the bootstrap over eigenvalues.
        r2: R² of the line, the share of the variance of log y that it explains. A flat law,
            exponent 0, explains nothing and has a low R² although it may hold.
        exponential_r2: R² of log y on x itself, that is of y ∝ exp(c x).
        aic_difference: Akaike's criterion of the exponential law minus that of the power law. Both
            have two parameters, so it is n log(residuals / residuals); positive is for the power.
        sample_low, sample_high: its interval over samples by the jackknife, if there are groups.

    Example:
        >>> found = PowerLaw(2.05, low=1.9, high=2.2, r2=0.99, aic_difference=8.0)
        >>> found.law, found.allows(2.0), found.within(2.0, 0.1)
        ('power', True, False)
    """

    exponent: float
    low: float
    high: float
    r2: float
    exponential_r2: float = math.nan
    aic_difference: float = math.nan
    sample_low: float = math.nan
    sample_high: float = math.nan

    @property
    def law(self) -> str:
        """The law that fits better: "power", "exponential", or "undecided" within an AIC of 2."""
        if self.aic_difference > DECISIVE:
            return "power"
        return "exponential" if self.aic_difference < -DECISIVE else "undecided"

    @property
    def interval(self) -> tuple[float, float]:
        """From the lower to the upper end of the two intervals, or of the one that there is."""
        lows = [end for end in (self.low, self.sample_low) if not math.isnan(end)]
        highs = [end for end in (self.high, self.sample_high) if not math.isnan(end)]
        return min(lows, default=math.nan), max(highs, default=math.nan)

    def within(self, value: float, tolerance: float) -> bool:
        """Whether the whole interval lies less than ``tolerance`` from ``value``."""
        low, high = self.interval
        return value - tolerance < low and high < value + tolerance

    def allows(self, value: float) -> bool:
        """Whether the interval contains ``value``, to within rounding."""
        low, high = self.interval
        return low - EXACT <= value <= high + EXACT

    def __str__(self) -> str:
        return f"{self.exponent:.2f} ({self.low:.2f} to {self.high:.2f})"


#: What stands where nothing could be fitted.
UNKNOWN = PowerLaw(math.nan, math.nan, math.nan, math.nan)


def fit_laws(x: Tensor, values: Mapping[str, Tensor], level: float, seed: int) -> dict:
    """Fit y ∝ x^p to each y of ``values``, all with the same random factors.

    Args:
        x, values: positive numbers, shape (n,), n > 3, with an x that varies.
        level: of the intervals.
        seed: of the factors.

    Returns:
        A ``PowerLaw`` for each.

    Example:
        >>> x = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0]).double()
        >>> fit_laws(x, {"square": 3 * x**2}, 0.95, seed=0)["square"].exponent
        2.0
    """
    logs = torch.stack([y.log() for y in values.values()])  # (m, n)
    slopes, residuals, replicates = _wild(x.log(), logs, seed)
    _, exponential, _ = _line(x, logs)
    floor = len(x) * EXACT**2
    squares, others = (r.square().sum(1).clamp_min(floor) for r in (residuals, exponential))
    total = (logs - logs.mean(1, keepdim=True)).square().sum(1)
    total = torch.where(total > floor, total, math.nan)
    ends = _quantiles(replicates, len(x), level)
    explained = (1 - squares / total, 1 - others / total)
    columns = (slopes, *ends, *explained, len(x) * (others / squares).log())
    return {name: PowerLaw(*map(float, row)) for name, *row in zip(values, *columns, strict=True)}


def fit_major_axis(x: Tensor, y: Tensor, over: Tensor, level: float, seed: int) -> PowerLaw:
    """Fit y ∝ x^p where both are noisy: the axis along which the logarithms scatter most.

    It treats both alike: exchanging x and y gives 1/p, while a regression gives too small a slope
    either way. The bootstrap perturbs both around their own laws in ``over``, together.

    Args:
        x, y, over: positive numbers, shape (n,), n > 3.
        level, seed: as in :func:`fit_laws`.

    Returns:
        A ``PowerLaw``, infinite for an x that is flat, nan if both are; its interval reaches from
        −∞ to ∞ if the axis may be upright.

    Example:
        >>> x = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0]).double()
        >>> round(fit_major_axis(x**2, x, x, 0.95, seed=0).exponent, 6)
        0.5
    """
    logs = torch.stack([x.log(), y.log()])
    centred = logs - logs.mean(1, keepdim=True)
    spread = centred.square().sum(1)
    if float(spread.max()) <= len(x) * EXACT**2:
        return UNKNOWN
    _, residuals, _ = _line(over.log(), logs)
    line = logs - residuals
    noisy = line + _perturbed(over.log(), residuals, seed)  # (B, 2, n)
    angle = _angle(centred)
    turned = (_angle(noisy - noisy.mean(-1, keepdim=True)) - angle + math.pi / 2) % math.pi
    low, high = _quantiles(turned[:, None] - math.pi / 2 + angle, len(x), level)
    upright = float(high) >= math.pi / 2 or float(low) <= -math.pi / 2
    ends = (-math.inf, math.inf) if upright else (math.tan(float(low)), math.tan(float(high)))
    slope = math.inf if spread[0] <= len(x) * EXACT**2 else math.tan(float(angle))
    shared = (centred[0] @ centred[1]).square() / (spread[0] * spread[1])
    return PowerLaw(slope, *ends, float(shared))


def with_samples(law: PowerLaw, left_out: Tensor, level: float) -> PowerLaw:
    """The same law with an interval over samples: the delete-a-group jackknife.

    ``left_out`` (groups,) are exponents without one group of the samples each. With pseudo-values
    v = G·p − (G − 1)·p_without the interval is mean(v) ± t·std(v)/√G, as for D_LR.

    Example:
        >>> law = PowerLaw(1.0, 0.9, 1.1, 0.99)
        >>> found = with_samples(law, torch.tensor([1.01, 0.99, 1.0, 1.0]), 0.95)
        >>> round(found.sample_low, 2), round(found.sample_high, 2)
        (0.96, 1.04)
    """
    count = len(left_out)
    pseudo = count * law.exponent - (count - 1) * left_out
    reach = float(stdtrit(count - 1, (1 + level) / 2) * pseudo.std()) / math.sqrt(count)
    centre = float(pseudo.mean())
    return replace(law, sample_low=centre - reach, sample_high=centre + reach)


def slope(x: Tensor, y: Tensor) -> Tensor:
    """The exponent alone of y ∝ x^p, for positive x (..., n) and y (..., n).

    Example:
        >>> x = torch.tensor([1.0, 2.0, 4.0])
        >>> slope(x, 5 * x**3).item()
        3.0
    """
    run = x.log() - x.log().mean(-1, keepdim=True)
    return (run * y.log()).sum(-1) / run.square().sum(-1)


def major_axis(x: Tensor, y: Tensor) -> Tensor:
    """The exponent alone of :func:`fit_major_axis`, for positive x (..., n) and y (..., n).

    Example:
        >>> x = torch.tensor([1.0, 2.0, 4.0])
        >>> round(major_axis(x, x**3).item(), 5)
        3.0
    """
    logs = torch.stack([x.log(), y.log()], -2)
    return _angle(logs - logs.mean(-1, keepdim=True)).tan()


def _line(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Slopes (...), residuals (..., n) of lines through y (..., n) at x (n,), and the leverages."""
    run = x - x.mean()
    rise = y - y.mean(-1, keepdim=True)
    slopes = rise @ run / run.square().sum()
    leverage = 1 / len(x) + run.square() / run.square().sum()
    return slopes, rise - slopes[..., None] * run, leverage


def _wild(x: Tensor, y: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Slopes (m,), residuals (m, n), and slopes under the bootstrap (B, m)."""
    slopes, residuals, _ = _line(x, y)
    return slopes, residuals, slopes + _line(x, _perturbed(x, residuals, seed))[0]


def _perturbed(x: Tensor, residuals: Tensor, seed: int) -> Tensor:
    """Residuals (m, n), enlarged where one point pulls the line to itself, times factors that all
    m share: (B, m, n)."""
    leverage = _line(x, residuals)[2]
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(FACTORS), (REPLICATES, 1, len(x)), generator=generator)
    factors = torch.tensor(FACTORS, dtype=torch.float64)[drawn]
    return residuals / (1 - leverage).clamp_min(1e-9) * factors


def _quantiles(replicates: Tensor, count: int, level: float) -> Tensor:
    """The interval's ends (2, m) from replicates (B, m) of a fit to ``count`` points."""
    student = float(stdtrit(count - 2, (1 + level) / 2)) * math.sqrt(count / (count - 2))
    tail = float(ndtr(-student))
    return replicates.quantile(torch.tensor([tail, 1 - tail], dtype=replicates.dtype), dim=0)


def _angle(centred: Tensor) -> Tensor:
    """The direction, within ±π/2, of the major axis of centred points (..., 2, n)."""
    x, y = centred.unbind(-2)
    xx, yy, xy = ((a * b).sum(-1) for a, b in ((x, x), (y, y), (x, y)))
    return torch.atan2(2 * xy, xx - yy) / 2
