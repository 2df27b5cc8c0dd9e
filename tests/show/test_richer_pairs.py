"""The pairs of the game keep their promises, checked here by hand on the sweep itself."""

import itertools

import numpy as np
import pytest

from richbook.experiments import load_sweep
from richbook.measure.errors import RichbookError
from richbook.show.richer_pairs import choose_pairs, trained_networks
from tests.show.conftest import make_sweep

AXES = ("weight_decay", "target_scale", "learning_rate", "seed")


@pytest.fixture(scope="module")
def recorded():
    return load_sweep()


def final(sweep, name, network):
    return float(sweep[name].isel(step=-1, **dict(zip(AXES, network.at, strict=True))))


def equally_good(d_lr, seeds=1):
    """A sweep of one network a setting with the given D_LR, all of the same accuracy."""
    made = make_sweep([0.0], [1.0], [10.0**-k for k in range(len(d_lr), 0, -1)], seeds, [0, 9], 4)
    made["test_accuracy"].values[:] = made["train_accuracy"].values[:] = 0.95
    made["d_lr"].values[..., -1] = np.array(d_lr, "float32")[:, None]
    return made


@pytest.mark.parametrize("seed", range(12))
def test_pairs_test_alike_and_are_not_equally_rich(recorded, seed):
    for pair in choose_pairs(recorded, pairs=8, seed=seed):
        tested = [final(recorded, "test_accuracy", network) for network in pair]
        d_lr = [final(recorded, "d_lr", network) for network in pair]
        assert tested == [network.test_accuracy for network in pair]
        assert d_lr == [network.d_lr for network in pair]
        assert abs(tested[0] - tested[1]) <= 0.005 and min(tested) >= 0.9
        assert max(d_lr) >= 2 * min(d_lr) > 0


@pytest.mark.parametrize("seed", range(12))
def test_no_setting_occurs_twice(recorded, seed):
    pairs = choose_pairs(recorded, pairs=16, seed=seed)
    settings = [network.at[:3] for pair in pairs for network in pair]
    assert len(settings) == 32 and len(set(settings)) == 32


def test_a_seed_always_gives_the_same_pairs_and_another_gives_others(recorded):
    assert choose_pairs(recorded, 8, 3) == choose_pairs(recorded, 8, 3)
    assert choose_pairs(recorded, 8, 3) != choose_pairs(recorded, 8, 4)


@pytest.mark.parametrize("pairs", [7, 8])
def test_the_first_is_the_richer_one_in_half_of_the_pairs(recorded, pairs):
    counts = [
        sum(first.d_lr < second.d_lr for first, second in choose_pairs(recorded, pairs, seed))
        for seed in range(8)
    ]
    assert set(counts) <= {pairs // 2, -(-pairs // 2)}


def test_the_clearest_pair_comes_first(recorded):
    values = [[network.d_lr for network in pair] for pair in choose_pairs(recorded, 8)]
    ratios = [max(v) / min(v) for v in values]
    assert ratios == sorted(ratios, reverse=True)


def test_a_network_knows_its_part_of_the_sweep(recorded):
    network = choose_pairs(recorded, 1)[0][1]
    run = network.of(recorded)
    assert run["utilization"].dims == ("step", "k") and run["d_lr"].dims == ("step",)
    assert float(run["d_lr"][-1]) == network.d_lr


def test_the_order_of_a_sweeps_dimensions_does_not_matter(recorded):
    turned = recorded.transpose("step", "seed", "learning_rate", "k", "weight_decay", ...)
    assert choose_pairs(turned, 5, 1) == choose_pairs(recorded, 5, 1)


def test_networks_that_diverged_did_not_learn_or_have_no_d_lr_are_left_out():
    sweep = equally_good([0.1, np.nan, 0.0, 0.2, 0.4])
    sweep["test_accuracy"].values[0, 0, 3] = 0.5
    sweep["test_accuracy"].values[0, 0, 4, 0, -1] = np.nan
    assert [network.at for network in trained_networks(sweep)] == [(0, 0, 0, 0)]


def test_a_factor_of_exactly_two_is_enough_and_less_is_not():
    ((first, second),) = choose_pairs(equally_good([0.125, 0.25]), 1)
    assert {first.d_lr, second.d_lr} == {0.125, 0.25}
    with pytest.raises(RichbookError, match="pairs=1: the sweep has only 0 that test alike"):
        choose_pairs(equally_good([0.125, 0.24]), 1)


def test_seeds_of_one_setting_are_no_pair():
    sweep = equally_good([0.3], seeds=2)
    sweep["d_lr"].values[0, 0, 0, :, -1] = 0.1, 0.3
    with pytest.raises(RichbookError, match="pairs=1: the sweep has only 0"):
        choose_pairs(sweep, 1)


def test_the_answer_cannot_be_learned_from_the_order():
    """Over many seeds either network is the richer one equally often, in the first pair too."""
    sweep = equally_good(list(np.geomspace(0.02, 0.5, 8)))
    first = [pair[0].d_lr < pair[1].d_lr for (pair, *_) in
             (choose_pairs(sweep, 3, seed) for seed in range(60))]  # fmt: skip
    assert 15 < sum(first) < 45


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"pairs": 0}, "pairs: expected a whole number of at least 1, got 0"),
        ({"pairs": 2.0}, "pairs: expected a whole number of at least 1, got 2.0"),
        ({"seed": -1}, "seed: expected a whole number of at least 0, got -1"),
        ({"seed": "a"}, "seed: expected a whole number of at least 0, got 'a'"),
        ({"pairs": 500}, r"pairs=500: the sweep has only \d+ that test alike"),
    ],
)
def test_wrong_arguments_say_what_is_expected(recorded, arguments, message):
    with pytest.raises(RichbookError, match=message):
        choose_pairs(recorded, **arguments)


def test_a_sweep_that_lacks_something_says_what(recorded):
    with pytest.raises(RichbookError, match="'utilization' is not in the data"):
        choose_pairs(recorded.drop_vars("utilization"))


def test_brute_force_finds_no_pair_that_was_overlooked():
    """All pairs that fit are candidates: with one pair asked for, each of them comes up."""
    sweep = equally_good([0.1, 0.15, 0.2, 0.31, 0.7])
    values = sweep["d_lr"].values[0, 0, :, 0, -1].astype(float)
    fits = {(i, j) for i, j in itertools.permutations(range(5), 2) if values[j] >= 2 * values[i]}
    seen = {
        tuple(sorted((a.at[2], b.at[2]), key=lambda i: values[i]))
        for (a, b) in (choose_pairs(sweep, 1, seed)[0] for seed in range(200))
    }
    assert seen == fits
