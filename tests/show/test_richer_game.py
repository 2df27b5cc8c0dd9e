"""The game in Python: what the page carries, what is told of the networks, and the score."""

import json
import math

import numpy as np
import pytest
from ipywidgets.embed import dependency_state, embed_data

from richbook.experiments import load_sweep
from richbook.measure.errors import RichbookError
from richbook.show import RicherGame, richer_game
from richbook.show.richer_game import describe_network, pack_pairs

AXES = ("weight_decay", "target_scale", "learning_rate", "seed")


@pytest.fixture(scope="module")
def recorded():
    return load_sweep()


@pytest.fixture(scope="module")
def game(recorded):
    return richer_game(recorded, seed=3, pairs=4)


def test_without_a_sweep_it_plays_the_recorded_one(recorded):
    assert richer_game(seed=3, pairs=4).rounds == richer_game(recorded, 3, 4).rounds


def test_the_root_has_both_classes(game):
    assert isinstance(game, RicherGame)
    assert {"rb-explorer", "rb-richer-game"} <= set(game._dom_classes)


def test_every_curve_is_packed_within_the_stated_error(recorded, game):
    contents, data = game.contents, game.packed
    networks = [network for pair in game.pairs for network in pair]
    for name, field in contents["fields"].items():
        for number, network in enumerate(networks):
            at = dict(zip(AXES, network.at, strict=True))
            values = recorded[name].isel(at).values
            values = values[-1] if name == "utilization" else values
            assert field["bits"] == 8 and field["length"] == len(values)
            start = field["offset"] + number * field["length"]
            codes = data[start : start + field["length"]]
            got = [math.nan if code == 255 else code / 254 for code in codes]
            assert got == pytest.approx(np.clip(values, 0, 1).tolist(), abs=0.002)
    assert contents["steps"] == recorded["step"].values.tolist()
    assert contents["k"] == list(range(1, 65)) and contents["rank"] == 9
    assert contents["floor"] == 0.625


def test_a_wide_sweep_keeps_64_points_of_each_curve(recorded, game):
    wide = recorded.isel(k=np.repeat(np.arange(64), 8)).assign_coords(k=range(1, 513))
    data, contents = pack_pairs(wide, game.pairs)
    assert contents["fields"]["utilization"]["length"] == len(contents["k"]) == 64
    assert contents["k"][0] == 1 and contents["k"][-1] == 512
    assert len(data) == len(game.pairs) * 2 * (64 + 2 * 14)


def test_what_is_told_of_a_network_is_what_the_sweep_holds(recorded, game):
    for pair, told in zip(game.pairs, game.rounds, strict=True):
        for network, words in zip(pair, told, strict=True):
            at = dict(zip(AXES, network.at, strict=True))
            run = recorded.isel(at, drop=False).isel(step=-1)
            assert words["d_lr"] == float(run["d_lr"])
            assert words["test_accuracy"] == float(run["test_accuracy"])
            curve = run["utilization"].values
            needed = words["needed"]
            assert curve[needed - 1] >= 0.95 and (needed == 1 or curve[needed - 2] < 0.95)
            names, values = zip(*words["settings"], strict=True)
            assert names == ("weight decay", "target scale", "learning rate")
            assert [float(value) for value in values] == [
                pytest.approx(float(run[name])) for name in AXES[:3]
            ]


def test_a_curve_that_never_gets_there_needs_all_eigenfunctions(recorded, game):
    low = recorded.assign(utilization=recorded["utilization"] * 0.5)
    assert describe_network(low, game.pairs[0][0])["needed"] == 64


def test_the_solution_is_the_smaller_d_lr_and_the_score_counts_it(recorded):
    game = richer_game(recorded, seed=1, pairs=5)
    assert game.score == (0, 0)
    for answer, pair in zip(game.solution, game.pairs, strict=True):
        assert pair[answer].d_lr < pair[1 - answer].d_lr
    wrong = [1 - answer for answer in game.solution]
    game.answers = [*game.solution[:2], wrong[2]]
    assert game.score == (2, 3)
    game.answers = wrong
    assert game.score == (0, 5)


def test_the_saved_state_holds_the_whole_game_and_is_small(game):
    state = dependency_state(game)
    assert [b["path"] for b in state[game.model_id]["buffers"]] == [["packed"]]
    assert {"contents", "rounds"} <= set(state[game.model_id]["state"])
    whole = embed_data(views=[game], state=dependency_state(game, drop_defaults=False))
    assert len(json.dumps(whole["manager_state"])) < 40_000


def test_the_view_reads_every_name_that_python_sends(game):
    """The drawing is JavaScript: a name that only one side knows would show in a browser only."""
    for name in ("packed", "contents", "rounds", "answers", "round"):
        assert game.has_trait(name) and f'"{name}"' in game._esm
    for name in game.contents["fields"]:
        assert f"s.{name}" in game._esm
    for name in ("steps", "k", "floor", "rank"):
        assert name in game.contents and f"s.{name}" in game._esm
    for name in game.rounds[0][0]:
        assert f".{name}" in game._esm or f"{{ {name} }}" in game._esm


def test_wrong_arguments_say_what_is_expected(recorded):
    with pytest.raises(RichbookError, match="pairs: expected a whole number of at least 1, got -2"):
        richer_game(recorded, pairs=-2)
    with pytest.raises(RichbookError, match="data must be an xarray.Dataset, not int"):
        richer_game(3)
