"""How often the intervals of exponents hold the truth, and how they react to leverage and noise."""

import numpy as np
import pytest
import torch
from scipy import stats

from richbook.measure.alignment.phases.directions import directions_of
from richbook.measure.alignment.phases.exponents import exponents
from richbook.measure.alignment.phases.power_law import (
    PowerLaw,
    fit_laws,
    fit_major_axis,
    major_axis,
    slope,
    with_samples,
)
from tests.measure.alignment.phases.laws import layer, layer_of_diagonals

REPEATS = 200
ERROR = (0.05 * 0.95 / REPEATS) ** 0.5  # of a coverage of 0.95


def positions(kind, n, rng):
    """Logarithms of eigenvalues."""
    if kind == "even":
        return np.linspace(0, 4, n)
    if kind == "random":
        return np.sort(rng.normal(size=n)) * 1.5
    few = max(1, n // 4)  # two clusters, with most eigenvalues in one
    return np.r_[rng.uniform(-0.6, 0, n - few), rng.uniform(-8.5, -7, few)]


def residuals(kind, logs, rng):
    n = len(logs)
    if kind == "normal":
        return 0.3 * rng.normal(size=n)
    if kind == "skewed":
        return 0.4 * np.log(rng.chisquare(3, n) / 3)
    return rng.normal(size=n) * (0.1 + 0.2 * np.abs(logs - logs.mean()))  # uneven


def coverage(n, place, noise, level=0.95):
    """The share of made layers whose interval holds the power that they were made with."""
    rng = np.random.default_rng(n)
    hits = 0
    for seed in range(REPEATS):
        logs = positions(place, n, rng)
        values = torch.tensor(np.exp(2 * logs + residuals(noise, logs, rng)))
        law = fit_laws(torch.tensor(np.exp(logs)), {"y": values}, level, seed)["y"]
        hits += law.low <= 2 <= law.high
    return hits / REPEATS


@pytest.mark.parametrize(
    "n, place, noise",
    [
        (6, "even", "normal"),
        (6, "clusters", "normal"),
        (9, "even", "skewed"),
        (9, "clusters", "skewed"),
        (9, "random", "normal"),
        (20, "random", "skewed"),
    ],
)
def test_intervals_cover(n, place, noise):
    """Not far below 0.95, in two clusters of eigenvalues as in one row."""
    assert coverage(n, place, noise) > 0.94 - 3 * ERROR


@pytest.mark.parametrize("n, place, noise", [(4, "even", "normal"), (12, "even", "uneven")])
def test_intervals_where_it_is_hard(n, place, noise):
    """Four points, or residuals that grow towards the ends."""
    assert coverage(n, place, noise) > 0.82


def test_intervals_at_another_level():
    assert 0.72 < coverage(16, "even", "normal", level=0.8) < 0.89


def test_intervals_are_those_of_student_where_these_hold():
    """Even positions and normal residuals: on average as wide as the textbook's interval."""
    rng = np.random.default_rng(0)
    ratios = []
    for seed in range(100):
        logs = np.linspace(0, 4, 12)
        noisy = 2 * logs + 0.3 * rng.normal(size=12)
        fit = stats.linregress(logs, noisy)
        x, y = (torch.tensor(np.exp(v)) for v in (logs, noisy))
        law = fit_laws(x, {"y": y}, 0.95, seed)["y"]
        assert law.exponent == pytest.approx(fit.slope) and law.r2 == pytest.approx(fit.rvalue**2)
        ratios.append((law.high - law.low) / (2 * stats.t.ppf(0.975, 10) * fit.stderr))
    assert 0.95 < np.mean(ratios) < 1.15


def test_one_point_far_away_makes_the_interval_wide():
    """Eight of nine eigenvalues are close together: the line hangs on the ninth alone. Two such
    points that agree are another matter."""
    rng, widths = np.random.default_rng(1), {}
    for ends in ((-6.0,), (-6.0, -6.5)):
        logs = np.r_[np.linspace(0, -0.5, 9 - len(ends)), ends]
        x, found = torch.tensor(np.exp(logs)), []
        for seed in range(30):
            noisy = torch.tensor(np.exp(logs + 0.3 * rng.normal(size=9)))
            law = fit_laws(x, {"y": noisy}, 0.95, seed)["y"]
            found.append(law.high - law.low)
        widths[len(ends)] = np.median(found)
    assert widths[1] > 4 * widths[2]


def test_seed_and_level():
    rng = np.random.default_rng(2)
    values = np.geomspace(1, 0.1, 8)
    moments = layer_of_diagonals(rng, values, np.exp(rng.normal(size=8)), values)
    one, again, other = (exponents(moments, seed=seed).H_a for seed in (0, 0, 1))
    assert one == again and one.exponent == other.exponent and one.low != other.low
    assert one.low == pytest.approx(other.low, abs=0.1 * (one.high - one.low))
    narrow = exponents(moments, level=0.5).H_a
    assert one.low < narrow.low < narrow.high < one.high


@pytest.mark.parametrize("truth", [2.0, 0.5, -1.0])
def test_the_major_axis_is_symmetric_and_not_attenuated(truth):
    """Both logs are noisy: a regression of one on the other gives too small a slope, each way."""
    rng = np.random.default_rng(3)
    axes, lines = [], []
    for _ in range(200):
        g = np.linspace(0, 2, 30)
        noise = 0.4 * rng.normal(size=(2, 30))
        x, y = torch.tensor(np.exp(g + noise[0])), torch.tensor(np.exp(truth * g + noise[1]))
        assert major_axis(x, y) == pytest.approx(1 / float(major_axis(y, x)))
        axes.append(float(major_axis(x, y)))
        lines.append(float(slope(x, y)))
    assert np.median(axes) == pytest.approx(truth, rel=0.05)
    assert abs(np.median(lines)) < 0.8 * abs(truth)


@pytest.mark.parametrize("n", [9])
def test_intervals_of_the_major_axis_cover(n):
    """H ∝ G², both noisy around their powers of Z."""
    rng, hits = np.random.default_rng(n), 0
    for seed in range(REPEATS):
        logs = positions("even", n, rng)
        g, h = (torch.tensor(np.exp(p * logs + 0.3 * rng.normal(size=n))) for p in (1, 2))
        law = fit_major_axis(g, h, torch.tensor(np.exp(logs)), 0.95, seed)
        hits += law.low <= 2 <= law.high
    assert hits / REPEATS > 0.94 - 3 * ERROR


def test_the_major_axis_follows_the_eigenvector_of_the_covariance():
    rng = np.random.default_rng(4)
    logs = rng.normal(size=(2, 20)) * [[1.0], [0.4]]
    logs = np.array([[0.8, -0.6], [0.6, 0.8]]) @ logs
    vector = np.linalg.eigh(np.cov(logs))[1][:, -1]
    x, y = torch.tensor(np.exp(logs))
    over = torch.tensor(np.geomspace(1, 2, 20))
    law = fit_major_axis(x, y, over, 0.95, 0)
    assert law.exponent == pytest.approx(vector[1] / vector[0])
    assert law.exponent == pytest.approx(float(major_axis(x, y)))
    assert law.r2 == pytest.approx(np.corrcoef(logs)[0, 1] ** 2)


def groups_of(samples_h, samples_g, w, count):
    """A layer measured on samples, with the same of each of ``count`` groups of them."""

    def measured(h, g):
        found = layer(w, h.T @ h / len(h), g.T @ g / len(g))
        found.count = len(h)
        return found

    whole = measured(samples_h, samples_g)
    parts = zip(np.array_split(samples_h, count), np.array_split(samples_g, count), strict=True)
    whole.groups = tuple(measured(h, g) for h, g in parts)
    return whole


def test_interval_over_samples_is_the_jackknife():
    """Against leaving the samples of each group out by hand."""
    rng = np.random.default_rng(5)
    w = np.diag(np.geomspace(1, 0.1, 6))
    h, g = rng.normal(size=(101, 6)) @ w, rng.normal(size=(101, 6)) @ w**2
    found = exponents(groups_of(h, g, w, 5))
    logs = np.log(np.diag(w) ** 2)

    def power(samples):
        return np.polyfit(logs, np.log((samples**2).mean(0)), 1)[0]

    for law, samples in ((found.H_a, h), (found.G_b, g)):
        whole = power(samples)
        assert law.exponent == pytest.approx(whole)
        rest = [power(np.delete(samples, part, 0)) for part in np.array_split(np.arange(101), 5)]
        pseudo = 5 * whole - 4 * np.array(rest)
        reach = stats.t.ppf(0.975, 4) * pseudo.std(ddof=1) / 5**0.5
        assert law.sample_low == pytest.approx(pseudo.mean() - reach)
        assert law.sample_high == pytest.approx(pseudo.mean() + reach)
        low, high = law.interval
        assert low == min(law.low, law.sample_low) and high == max(law.high, law.sample_high)
    assert found.HG_b.sample_low < found.HG_b.exponent < found.HG_b.sample_high


def test_interval_over_samples_covers():
    """A population with exact powers, 200 samples of it: the scatter is that of the samples."""
    rng, hits = np.random.default_rng(6), 0
    w = np.diag(np.geomspace(1, 0.1, 6))
    for _ in range(200):
        h = rng.normal(size=(200, 6)) @ w
        found = directions_of(groups_of(h, h, w, 20))
        rest = torch.stack([without for without, _ in found.left_out])
        whole = float(slope(found.eigenvalues, found.H))
        law = PowerLaw(whole, whole, whole, 1.0)
        law = with_samples(law, slope(found.eigenvalues, rest), 0.95)
        hits += law.sample_low <= 1 <= law.sample_high
    assert hits / 200 > 0.94 - 3 * ERROR


def test_few_groups_and_empty_ones():
    rng = np.random.default_rng(7)
    w = np.diag(np.geomspace(1, 0.1, 6))
    moments = groups_of(rng.normal(size=(50, 6)), rng.normal(size=(50, 6)), w, 5)
    whole = exponents(moments).H_a
    empty = layer(w, np.full((6, 6), np.nan), np.full((6, 6), np.nan))
    empty.count = 0
    moments.groups += (empty,)
    assert exponents(moments).H_a == whole
    moments.groups = moments.groups[:1]
    assert np.isnan(exponents(moments).H_a.sample_low)


def test_what_a_law_allows():
    law = PowerLaw(1.2, 0.9, 1.4, 0.99)
    assert law.allows(1) and not law.allows(1.5) and str(law) == "1.20 (0.90 to 1.40)"
    assert law.within(1, 0.5) and not law.within(1, 0.3) and not law.within(2, 0.9)
    wider = with_samples(law, torch.tensor([0.9, 1.1, 1.6, 1.2]), 0.95)
    assert wider.interval[0] < 0.9 and wider.interval[1] > 1.4 and not wider.within(1, 0.5)
    unknown = PowerLaw(*[float("nan")] * 4)
    assert not unknown.allows(1) and not unknown.within(1, 0.5) and unknown.law == "undecided"
