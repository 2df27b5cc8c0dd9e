"""How far D_LR of a sample may be from that of the population: resampling, with its bias taken off.

A small sample makes lazy features look richer and rich ones lazier, by more than the scatter from
sample to sample. An interval around the value itself therefore misses; both methods here estimate
the bias and subtract it. Chapter 5 derives the bias and measures how often each interval covers.

The bootstrap measures nothing anew for each resampling. With weights w_i that sum to 1, features
x_i centred on the mean of all samples, and m = Σ w_i x_i,

    ‖Σ_w‖² = Σ_ij w_i w_j (x_i·x_j)² − 2 Σ_i w_i (x_i·m)² + |m|⁴,

so that one n×n product serves all of them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from scipy.special import stdtrit
from torch import Tensor

from richbook.measure.distance import low_rank_distance, one_minus_cosine
from richbook.measure.errors import DegenerateWarning, RichbookError
from richbook.measure.inputs import (
    as_samples,
    check_finite,
    check_same_length,
    checked_precision,
    exact_arithmetic,
    rank_tolerance,
    to_float64,
)
from richbook.measure.jackknife import LOST_VARIANCE, leave_groups_out
from richbook.measure.moments import Moments
from richbook.measure.products import centre
from richbook.measure.span import OutputSpan, output_span

#: Groups of a jackknife, and resamplings of a bootstrap.
GROUPS, REPLICATES = 20, 400
#: Samples that are resampled; of more, so many are drawn.
MOST_SAMPLES = 2048
#: Sets the draws apart from those of a user who has shuffled the data with the same small seed.
SEED_OFFSET = 7_368_787


@dataclass(frozen=True)
class Interval:
    """An interval for D_LR of the population, at a nominal level.

    Attributes:
        low, high: the interval's ends, within [0, 1]. The measured D_LR may lie outside of it,
            since the interval is centred on the value less its bias.
        bias: estimated D_LR of such a sample minus that of the population.
        standard_error: estimated standard deviation of D_LR from sample to sample.
    """

    low: float
    high: float
    bias: float
    standard_error: float


def d_lr_interval(
    features: Tensor,
    outputs: Tensor,
    level: float = 0.95,
    method: str = "jackknife",
    seed: int = 0,
    precision: torch.dtype | None = None,
) -> Interval:
    """Estimate an interval for the D_LR that infinitely many samples of this kind would give.

    "jackknife" estimates D from unbiased moments (see ``jackknife.py``), with each of 20 random
    groups left out in turn: with pseudo-values v_g = 20 D − 19 D_(−g), the interval is
    mean(v) ± t · std(v)/√20, t the quantile of Student's distribution with 19 degrees of freedom.
    It covers down to fewer samples than features. "bootstrap" draws the samples again 400 times and
    reflects the quantiles q of the resampled values about D, [2D − q_high, 2D − q_low] (the basic
    bootstrap; the percentile interval would double the bias), which takes several times more
    samples than features. Both need independent samples: the tokens of one text are not.

    Args:
        features: Φ, shape (n, p). Of more than 2 048 samples that many are drawn, and the spread is
            scaled to n samples.
        outputs: f̂, shape (n, C).
        level: the share of samples whose interval should contain the truth.
        method: "jackknife" or "bootstrap".
        seed: of the groups and resamplings.
        precision: as in :func:`d_lr`.

    Returns:
        An ``Interval``; nan where D_LR is, or where leaving samples out loses one of the outputs'
        functions (a class with one sample).

    Warns:
        DegenerateWarning: "bootstrap" of fewer than 5 samples a feature, which covers too seldom.

    Raises:
        RichbookError: shapes that do not fit, fewer than 40 samples, a level outside (0, 1), an
            unknown method, nan or infinity.

    Example:
        >>> import torch
        >>> features = torch.randn(500, 20, generator=torch.Generator().manual_seed(0))
        >>> found = d_lr_interval(features, features[:, :5])
        >>> found.low < 0.5 < found.high  # the truth is 1 − √(5/20)
        True
    """
    features = as_samples(features, "features", minimum=2 * GROUPS).detach()
    outputs = as_samples(outputs, "outputs", minimum=2 * GROUPS, single_column=True).detach()
    check_same_length(features=features, outputs=outputs)
    check_finite(features, "features")
    check_finite(outputs, "outputs")
    if not (isinstance(level, int | float) and 0 < level < 1):
        raise RichbookError(f"level: expected a share between 0 and 1, got {level!r}")
    if method not in ("jackknife", "bootstrap"):
        raise RichbookError(f"method: expected 'jackknife' or 'bootstrap', got {method!r}")
    if method == "bootstrap" and len(features) < 5 * features.shape[1]:
        message = (
            f"{len(features)} samples for {features.shape[1]} features: the bootstrap's interval "
            "misses the truth more often than its level says; use method='jackknife'"
        )
        warnings.warn(message, DegenerateWarning, stacklevel=2)
    tolerance = rank_tolerance(checked_precision(precision, outputs.dtype))
    generator = torch.Generator().manual_seed(seed + SEED_OFFSET)
    count, value = len(features), None
    if count > MOST_SAMPLES:
        with exact_arithmetic(features.device):
            moments = Moments.of(features, outputs.to(features.device))
            value = float(low_rank_distance(moments, tolerance, features.dtype))
        drawn = torch.randperm(count, generator=generator)[:MOST_SAMPLES].to(features.device)
        features, outputs = features[drawn], outputs[drawn.to(outputs.device)]
    return interval_of_part(features, outputs, tolerance, count, level, method, generator, value)


def interval_of_part(
    features: Tensor,
    outputs: Tensor,
    tolerance: float,
    count: int,
    level: float,
    method: str,
    generator: torch.Generator,
    value: float | None = None,
) -> Interval:
    """The interval for D_LR ``value`` of ``count`` samples, of which these are a random part."""
    with exact_arithmetic(features.device), torch.no_grad():
        resampling = _Resampling(features, outputs, tolerance)
        if method == "jackknife":
            here, unbiased, left_out = resampling.without_groups(generator)
            pseudo = GROUPS * unbiased - (GROUPS - 1) * left_out
            bias, error = here - float(pseudo.mean()), float(pseudo.std()) / GROUPS**0.5
            reach = float(stdtrit(GROUPS - 1, (1 + level) / 2)) * error
            below = above = reach
        else:
            here, drawn = resampling.with_replacement(generator)
            bias, error = float(drawn.mean()) - here, float(drawn.std())
            quantiles = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=drawn.dtype)
            low, high = (drawn - drawn.mean()).cpu().quantile(quantiles).tolist()
            below, above = high, -low
    part = len(features) / count  # a bias falls with the samples, a spread with their root
    middle = (here if value is None else value) - bias * part
    ends = (middle - below * part**0.5, middle + above * part**0.5)
    low, high = (min(max(end, 0.0), 1.0) if end == end else end for end in ends)
    return Interval(low, high, bias * part, error * part**0.5)


class _Resampling:
    """D_LR of the same samples with some of them left out, or some of them repeated."""

    def __init__(self, features: Tensor, outputs: Tensor, tolerance: float) -> None:
        self.features, _ = centre(to_float64(features))
        self.count, self.device = len(self.features), self.features.device
        outputs, mean = centre(to_float64(outputs).to(self.device))
        covariance = outputs.T @ outputs / self.count
        span = output_span(mean, covariance, tolerance)
        kept = span.kept
        self.span = OutputSpan(
            mean, span.whitening[:, kept], kept[kept], span.offset[kept], span.includes_constant
        )
        self.outputs = outputs @ self.span.whitening  # g, (n, r)
        if self.features.shape[1] > self.count:  # n coordinates hold all there is of n samples
            self.features = torch.linalg.qr(self.features.T, mode="r").R.T.contiguous()

    def without_groups(self, generator: torch.Generator) -> tuple[float, float, Tensor]:
        """D_LR as it is, from unbiased moments, and so without each random group (GROUPS,)."""
        group = torch.rand(self.count, generator=generator).argsort() % GROUPS
        rows = [(group == number).nonzero()[:, 0].to(self.device) for number in range(GROUPS)]
        plain, unbiased, rest = leave_groups_out(self.features, self.outputs, self.span, rows)
        return float(plain), float(unbiased), rest

    def with_replacement(self, generator: torch.Generator) -> tuple[float, Tensor]:
        """D_LR of all samples, and of samples drawn from them, shape (REPLICATES,)."""
        drawn = torch.randint(self.count, (REPLICATES, self.count), generator=generator)
        counts = torch.ones(1 + REPLICATES, self.count, dtype=torch.float64)
        counts[1:] = 0
        counts[1:].scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float64))
        values = self.weighted(counts.to(self.device) / self.count)
        return float(values[0]), values[1:]

    def weighted(self, weights: Tensor) -> Tensor:
        """D_LR (B,) under weights (B, n) that sum to 1 in each row."""
        products = self.features @ self.features.T  # x_i·x_j, (n, n)
        along = weights @ products  # x_i·m_w, (B, n)
        size = (
            (weights @ products.square() * weights).sum(1)
            - 2 * (weights * along.square()).sum(1)
            + (weights * along).sum(1).square()
        )
        means = weights @ self.outputs  # (B, r)
        pairs = [self._covariances(row, mean) for row, mean in zip(weights, means, strict=True)]
        cross, covariance = (torch.stack(part) for part in zip(*pairs, strict=True))
        values = one_minus_cosine(size.clamp_min(0).sqrt(), cross, covariance, means, self.span)
        if len(self.span.kept) == 0:
            return values
        lost = torch.linalg.eigvalsh(covariance)[:, 0] < LOST_VARIANCE
        return torch.where(lost, torch.nan, values)

    def _covariances(self, weights: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
        """Cov_w(x, g) and Cov_w(g), shapes (p, r) and (r, r)."""
        centred = self.outputs - mean
        weighted = weights[:, None] * centred
        return self.features.T @ weighted, centred.T @ weighted
