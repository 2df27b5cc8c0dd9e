"""Intervals for D_LR: equal to plain resampling, and they cover the truth as often as they say."""

import warnings

import numpy as np
import pytest
import torch

from richbook.measure import RichbookError, d_lr, d_lr_interval
from richbook.measure.interval import GROUPS, _Resampling
from tests.measure import reference
from tests.measure.reference import put


def resampled_by_hand(features, outputs, counts, rank):
    rows = np.repeat(np.arange(len(features)), counts)
    return reference.d_lr(features[rows], outputs[rows], rank=rank)


@pytest.mark.parametrize("kind", ["offset", "zero sum", "constant in the span"])
def test_weights_are_repetitions(device, kind):
    features, outputs = reference.problem(0, n=60, p=8, c=4, offset=4.0)
    rank = 4
    if kind != "offset":
        outputs = reference.zero_sum(outputs) + (kind == "constant in the span")
        rank = 4 if kind == "constant in the span" else 3
    rng = np.random.default_rng(1)
    counts = rng.multinomial(60, np.ones(60) / 60, size=5)
    resampling = _Resampling(put(device, features), put(device, outputs), 1e-12)
    values = resampling.weighted(put(device, counts / 60)).tolist()
    by_hand = [resampled_by_hand(features, outputs, row, rank) for row in counts]
    assert values == pytest.approx(by_hand, abs=1e-9)
    expected = reference.d_lr(features, outputs, rank)
    for way in (resampling.without_groups, resampling.with_replacement):
        assert way(torch.Generator())[0] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("p", [6, 130])
def test_jackknife_by_hand(p):
    features, outputs = reference.problem(1, n=107, p=p, c=3)
    found = d_lr_interval(features, outputs, level=0.9, seed=5)
    order = torch.randperm(107, generator=torch.Generator().manual_seed(5)).numpy()
    whole = reference.d_lr(features, outputs, rank=3)
    left_out = [
        reference.d_lr(features[order % GROUPS != g], outputs[order % GROUPS != g], rank=3)
        for g in range(GROUPS)
    ]
    pseudo = GROUPS * whole - (GROUPS - 1) * np.array(left_out)
    error = pseudo.std(ddof=1) / GROUPS**0.5
    t = 1.7291328115213678  # the 95 % quantile of Student's t with 19 degrees of freedom
    expected = [pseudo.mean() - t * error, pseudo.mean() + t * error]
    assert [found.low, found.high] == pytest.approx(expected, abs=1e-9)
    assert found.bias == pytest.approx(whole - pseudo.mean(), abs=1e-9)
    assert found.standard_error == pytest.approx(error, abs=1e-9)


def test_bootstrap_reflects_its_quantiles():
    features, outputs = reference.problem(2, n=80, p=6, c=3)
    found = d_lr_interval(features, outputs, method="bootstrap")
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(80, (400, 80), generator=generator).numpy()
    values = [reference.d_lr(features[rows], outputs[rows], rank=3) for rows in drawn]
    value = reference.d_lr(features, outputs, rank=3)
    low, high = 2 * value - np.quantile(values, [0.975, 0.025])
    assert [found.low, found.high] == pytest.approx([low, high], abs=1e-8)
    assert found.bias == pytest.approx(np.mean(values) - value, abs=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["jackknife", "bootstrap"])
@pytest.mark.parametrize("spectrum", ["isotropic", "rich"])
def test_covers_the_truth(method, spectrum):
    """100 samples of Gaussian features with a known D_LR; a 95 % interval may miss 5 of them, and
    at n = 10 p some more. A percentile interval would miss most."""
    p, r, n = 16, 4, 160
    sizes = torch.ones(p, dtype=torch.float64)
    if spectrum == "rich":
        sizes[r:] = 0.1
    truth = 1 - float(sizes[:r].square().sum() / (sizes.square().square().sum() * r) ** 0.5)
    generator, hits = torch.Generator().manual_seed(0), 0
    for _ in range(100):
        features = torch.randn(n, p, generator=generator, dtype=torch.float64) * sizes
        found = d_lr_interval(features, features[:, :r], method=method)
        hits += found.low <= truth <= found.high
    assert 85 <= hits <= 100


def test_more_samples_than_are_resampled():
    """The interval is centred on the value of all samples, and as wide as theirs."""
    features = torch.randn(40_000, 10, generator=torch.Generator().manual_seed(0))
    outputs = features[:, :3]
    found = d_lr_interval(features, outputs)
    value = float(d_lr(features, outputs))
    assert (found.low + found.high) / 2 == pytest.approx(value - found.bias, abs=1e-6)
    part = d_lr_interval(features[:2000], outputs[:2000])
    shrunk = part.standard_error * (2000 / 40_000) ** 0.5
    assert found.standard_error == pytest.approx(shrunk, rel=0.6)
    assert found.low < 1 - (3 / 10) ** 0.5 < found.high


def test_same_seed_same_interval_and_random_state_untouched():
    features, outputs = (torch.tensor(v) for v in reference.problem(3, n=70))
    state = torch.get_rng_state()
    first = d_lr_interval(features, outputs, seed=1)
    assert first == d_lr_interval(features, outputs, seed=1)
    assert first != d_lr_interval(features, outputs, seed=2)
    assert torch.equal(state, torch.get_rng_state())


def test_constant_outputs_give_nan():
    features, outputs = reference.problem(4, n=70)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = d_lr_interval(features, 0 * outputs)
    assert np.isnan([found.low, found.high, found.bias]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": torch.ones(39, 3)}, "features: expected at least 40 samples"),
        ({"level": 95}, "level: expected a share between 0 and 1, got 95"),
        ({"method": "percentile"}, "method: expected 'jackknife' or 'bootstrap', got 'percentile'"),
        ({"outputs": torch.ones(50, 3)}, "expected the same samples"),
    ],
)
def test_bad_input(change, message):
    features, outputs = (torch.tensor(v) for v in reference.problem(5))
    with pytest.raises(RichbookError, match=message):
        d_lr_interval(**{"features": features, "outputs": outputs} | change)
