"""Intervals for D_LR: equal to plain resampling, and they cover the truth as often as they say."""

import warnings

import numpy as np
import pytest
import torch

from richbook.measure import DegenerateWarning, RichbookError, d_lr, d_lr_interval
from richbook.measure.interval import GROUPS, SEED_OFFSET, _Resampling
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


def unbiased_by_hand(features, outputs, rank):
    """D_LR with both parts estimated without bias, from n×n matrices: the U-centred kernel for
    ‖Σ‖², and the hat matrix of the regression on the outputs for N."""
    n = len(features)
    kernel = features @ features.T
    np.fill_diagonal(kernel, 0)
    rows = kernel.sum(1) / (n - 2)  # Székely and Rizzo's U-centring
    kernel = kernel - rows[:, None] - rows + kernel.sum() / ((n - 1) * (n - 2))
    np.fill_diagonal(kernel, 0)
    square = (kernel**2).sum() / (n * (n - 3))
    projector = reference.centred(reference.span_projector(outputs, rank))
    centred, shifted = features - features.mean(0), outputs - outputs.mean(0)
    noise = centred - shifted @ np.linalg.lstsq(shifted, centred, rcond=1e-10)[0]
    leverage = np.diag(projector)
    caught = (leverage * (noise**2).sum(1) / (1 - leverage)).sum() / n
    overlap = (np.trace(centred.T @ projector @ centred) / n - caught) * n / (n - 1)
    return 1 - overlap / (square**0.5 * np.linalg.norm(projector))


def jackknife_parts(device, features, outputs, seed=0):
    resampling = _Resampling(put(device, features), put(device, outputs), 1e-12)
    return resampling.without_groups(torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("p", [6, 130])
@pytest.mark.parametrize("kind", ["offset", "zero sum"])
def test_unbiased_moments_by_hand(device, p, kind):
    features, outputs = reference.problem(1, n=107, p=p, c=3, offset=2.0)
    rank = 3
    if kind == "zero sum":
        outputs, rank = reference.zero_sum(outputs), 2
    plain, unbiased, rest = jackknife_parts(device, features, outputs)
    assert plain == pytest.approx(reference.d_lr(features, outputs, rank), abs=1e-9)
    assert unbiased == pytest.approx(unbiased_by_hand(features, outputs, rank), abs=1e-8)
    # Leaving a group out keeps what is of order 1/n from the whole sample.
    order = torch.rand(107, generator=torch.Generator().manual_seed(0)).argsort().numpy()
    kept = [order % GROUPS != group for group in range(GROUPS)]
    by_hand = [unbiased_by_hand(features[rows], outputs[rows], rank) for rows in kept]
    assert rest.tolist() == pytest.approx(by_hand, abs=0.01)


def test_jackknife_is_made_of_pseudo_values():
    features, outputs = reference.problem(1, n=107, p=6, c=3)
    found = d_lr_interval(features, outputs, level=0.9, seed=5)
    plain, unbiased, rest = jackknife_parts("cpu", features, outputs, seed=5 + SEED_OFFSET)
    pseudo = GROUPS * unbiased - (GROUPS - 1) * rest.numpy()
    error = pseudo.std(ddof=1) / GROUPS**0.5
    t = 1.7291328115213678  # the 95 % quantile of Student's t with 19 degrees of freedom
    expected = [pseudo.mean() - t * error, pseudo.mean() + t * error]
    assert [found.low, found.high] == pytest.approx(expected, abs=1e-9)
    assert found.bias == pytest.approx(plain - pseudo.mean(), abs=1e-9)
    assert found.standard_error == pytest.approx(error, abs=1e-9)


def test_bootstrap_reflects_its_quantiles():
    features, outputs = reference.problem(2, n=80, p=6, c=3)
    found = d_lr_interval(features, outputs, method="bootstrap")
    generator = torch.Generator().manual_seed(SEED_OFFSET)
    drawn = torch.randint(80, (400, 80), generator=generator).numpy()
    values = [reference.d_lr(features[rows], outputs[rows], rank=3) for rows in drawn]
    value = reference.d_lr(features, outputs, rank=3)
    low, high = 2 * value - np.quantile(values, [0.975, 0.025])
    assert [found.low, found.high] == pytest.approx([low, high], abs=1e-8)
    assert found.bias == pytest.approx(np.mean(values) - value, abs=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "p", "n"),
    [("jackknife", 64, 48), ("jackknife", 64, 128), ("jackknife", 16, 160), ("bootstrap", 16, 160)],
)
@pytest.mark.parametrize("spectrum", ["isotropic", "rich"])
def test_covers_the_truth(method, p, n, spectrum):
    """60 samples of Gaussian features with a known D_LR; a 95 % interval may miss 3 of them. The
    jackknife does so below n = p too; a percentile interval would miss all of them there."""
    r = 4
    sizes = torch.ones(p, dtype=torch.float64)
    if spectrum == "rich":
        sizes[r:] = 0.1
    truth = 1 - float(sizes[:r].square().sum() / (sizes.square().square().sum() * r) ** 0.5)
    generator, hits = torch.Generator().manual_seed(0), 0
    for _ in range(60):
        features = torch.randn(n, p, generator=generator, dtype=torch.float64) * sizes
        found = d_lr_interval(features, features[:, :r], method=method)
        hits += found.low <= truth <= found.high
    assert 51 <= hits <= 60


def test_a_class_with_one_sample_has_no_interval():
    """Leaving that sample out loses one of the learned functions, and D_LR jumps."""
    labels = torch.tensor([0] * 50 + [1] * 50 + [2])
    collapsed = torch.nn.functional.one_hot(labels).double()
    for method in ("jackknife", "bootstrap"):
        found = d_lr_interval(collapsed, collapsed, method=method)
        assert np.isnan([found.low, found.high]).all()


@pytest.mark.parametrize("seed", range(3))
def test_a_user_who_shuffled_with_the_same_seed_gets_random_groups(seed):
    torch.manual_seed(seed)
    order = torch.randperm(2000)
    labels = (torch.arange(2000) % 10)[order.argsort()]
    draw = torch.Generator().manual_seed(9)
    features = torch.randn(10, 30, generator=draw)[labels] + torch.randn(2000, 30, generator=draw)
    outputs = torch.nn.functional.one_hot(labels).double() @ torch.randn(10, 4).double()
    assert d_lr_interval(features, outputs, seed=seed).standard_error < 0.01


def test_bootstrap_of_few_samples_warns():
    features, outputs = reference.problem(7, n=70, p=20)
    with pytest.warns(DegenerateWarning, match="70 samples for 20 features"):
        d_lr_interval(features, outputs, method="bootstrap")


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
