"""The sliders over a result: linked in the browser, and carrying what was measured."""

import json
import math

import ipywidgets as widgets
import numpy as np
import pytest
import xarray as xr
from ipywidgets.embed import dependency_state, embed_data

from richbook.experiments import RECIPES, load_result
from richbook.experiments.results import recorded_path
from richbook.measure.errors import RichbookError
from richbook.show import ResultExplorer, explore_result
from richbook.show.result_choice import choose
from richbook.show.result_words import describe_ends, describe_gaps, describe_moment, words_of
from tests.show.results import STEPS, make_result

RECORDED = [name for name in RECIPES if recorded_path(name).is_file()]


@pytest.fixture
def result():
    return make_result()


def test_the_root_has_both_classes_and_two_sliders_in_order(result):
    box = explore_result(result)
    assert isinstance(box, ResultExplorer)
    assert {"rb-explorer", "rb-result-explorer"} <= set(box._dom_classes)
    sliders = [child for child in box.children if isinstance(child, widgets.SelectionSlider)]
    assert [s.description for s in sliders] == ["target scale", "training step"]
    assert [label for label, _ in sliders[0].options] == ["0.1", "1", "10"]
    assert [label for label, _ in sliders[1].options] == ["0", "1", "10", "100"]


def test_every_slider_is_linked_to_the_view_in_the_browser(result):
    box = explore_result(result)
    linked = {link.target[1]: link for link in box.links}
    assert set(linked) == {"setting", "step"}
    for trait, name in (("setting", "target_scale"), ("step", "step")):
        assert linked[trait].get_state()["_model_name"] == "LinkModel"  # lives in the page
        assert linked[trait].source == (box.sliders[name], "index")
        assert linked[trait].target[0] is box.view


def test_the_saved_state_holds_all_the_page_needs(result):
    box = explore_result(result)
    state = dependency_state(box)
    assert {box.model_id, box.view.model_id} <= set(state)
    assert sum(s["model_name"] == "LinkModel" for s in state.values()) == 2
    assert [b["path"] for b in state[box.view.model_id]["buffers"]] == [["packed"]]


@pytest.mark.parametrize("name", RECORDED)
def test_every_recorded_result_fits_in_a_page(name):
    """Two of them and the rest of a chapter stay below what a notebook may weigh, 500 kB."""
    box = explore_result(load_result(name))
    state = embed_data(views=[box], state=dependency_state(box, drop_defaults=False))
    assert len(json.dumps(state["manager_state"])) < 110_000


def test_it_starts_at_the_first_setting_and_the_last_step(result):
    box = explore_result(result)
    assert box.settings == {"target_scale": 0.1, "step": 100}
    assert (box.view.setting, box.view.step) == (0, 3)


def test_start_is_where_it_says_and_a_step_the_nearest_there_is(result):
    box = explore_result(result, {"target_scale": 10, "step": 7})
    assert box.settings == {"target_scale": 10.0, "step": 10}
    assert (box.view.setting, box.view.step) == (2, 2)
    assert box.cell["d_lr"].dims == ("seed",) and box.cell["quality"].dims == ("seed", "k")
    assert np.array_equal(box.cell["d_lr"].values, result["d_lr"].values[2, :, 2])
    named = make_result(values=["with", "without"], axis="network")
    box = explore_result(named, {"network": "without"})
    assert box.settings == {"network": "without", "step": 100} and box.axis == "network"


@pytest.mark.parametrize(
    "start, message",
    [
        ({"decay": 1}, "start has no use for decay; it may have: target_scale, step"),
        ({"target_scale": 7}, "target_scale=7 is not in the data; it has: 0.1, 1, 10"),
        ({"step": 101}, "step=101 is not in the data; its steps go from 0 to 100"),
        ({"step": "last"}, "step='last' is not in the data; its steps go from 0 to 100"),
        ([1], r"start must be a dict from axis to value, not \[1\]"),
    ],
)
def test_a_wrong_start_says_what_there_is(start, message, result):
    with pytest.raises(RichbookError, match=message):
        explore_result(result, start)


def test_a_setting_that_is_a_name_must_be_one_of_them():
    named = make_result(values=["with", "without"], axis="network")
    with pytest.raises(RichbookError, match="network='no' is not in the data; it has: with, wi"):
        explore_result(named, {"network": "no"})


def test_what_is_no_result_says_what_is_missing(result):
    with pytest.raises(RichbookError, match="result must be an xarray.Dataset, not dict"):
        explore_result({})
    with pytest.raises(RichbookError, match="result has no attribute 'axis'"):
        explore_result(xr.Dataset())
    with pytest.raises(RichbookError, match="result lacks the axes target_scale"):
        explore_result(result.isel(target_scale=0))


@pytest.mark.parametrize(
    "shown, message",
    [
        ({"measure": "richness"}, "measure='richness' is not in the data; it has: d_lr, diverg"),
        ({"measure": "quality"}, "measure='quality' has the axes target_scale, seed, step, k; exp"),
        ({"accuracies": ["diverged_at"]}, "accuracies='diverged_at' has the axes target_scale, "),
        ({"curves": ["d_lr"]}, "curves='d_lr' has the axes .* one of: utilization, quality, rel"),
        ({"numbers": "loss"}, "numbers='loss' is not in the data"),
    ],
)
def test_a_wrong_variable_says_which_there_are(shown, message, result):
    with pytest.raises(RichbookError, match=message):
        explore_result(result, **shown)


def test_variables_can_be_chosen(result):
    view = explore_result(
        result,
        measure="nc1",
        accuracies="test_accuracy",
        curves=["quality"],
        numbers=["train_loss"],
    ).view
    names = {
        key: [each["name"] for each in view.contents[key]]
        for key in ("accuracies", "curves", "numbers")
    }
    assert names == {
        "accuracies": ["test_accuracy"],
        "curves": ["quality"],
        "numbers": ["train_loss"],
    }
    assert set(view.contents["scalars"]) == {"nc1", "test_accuracy", "train_loss"}
    assert view.contents["floor"] is None
    empty = explore_result(result, accuracies=[], curves=[], numbers=[]).view.contents
    assert set(empty["scalars"]) == {"d_lr", "isotropic_d_lr"}


def test_all_test_accuracies_are_shown_and_the_first_is_compared():
    shown = choose(load_result("label-in-pixels"))
    variants = [f"test_accuracy_{name}" for name in ("random_code", "no_code", "right_code")]
    assert shown.accuracies == ("train_accuracy", *variants) and shown.tested == variants[0]
    assert words_of(variants[1]) == "test accuracy, no code"


def test_an_axis_with_one_value_has_no_slider(result):
    box = explore_result(result.isel(target_scale=[1], step=[3]))
    assert box.links == [] and all(isinstance(s, widgets.Label) for s in box.sliders.values())
    assert box.settings == {"target_scale": 1.0, "step": 100}


def test_a_slider_moved_from_python_moves_settings_but_sends_the_view_nothing(result):
    box = explore_result(result)
    sent = []
    box.view.observe(sent.append, names=["setting", "step"])
    box.sliders["step"].index = 0
    assert box.settings == {"target_scale": 0.1, "step": STEPS[0]} and not sent


def test_the_view_reads_every_name_that_python_sends(result):
    """The drawing is JavaScript: a name that only one side knows would show in a browser only."""
    view = explore_result(result).view
    for name in ("packed", "contents", "setting", "step"):
        assert view.has_trait(name) and f'"{name}"' in view._esm
    for name in view.contents:
        assert f"s.{name}" in view._esm or f"contents.{name}" in view._esm, name
    assert "s.data.relative_eigenvalue" in view._esm


NAN = math.nan


@pytest.mark.parametrize(
    "moment, words",
    [
        (
            ("d_lr", [0.06, 0.08], {"train_accuracy": 1.0, "test_accuracy": 0.2}, 0, 0.7),
            "D_LR 0.070 (0.060–0.080) · train accuracy 1.00 · test accuracy 0.20 · rich",
        ),
        (("d_lr", [0.3], {}, 0, 0.13), "D_LR 0.300 · lazier than a kernel without structure"),
        (("d_lr", [NAN, NAN], {"test_accuracy": 0.1}, 0, NAN), "D_LR undefined · test accuracy 0"),
        (("d_lr", [NAN, 0.5], {}, 1, NAN), "D_LR 0.500 · 1 of 2 seeds diverged"),
        (("nc1", [0.3, 0.5], {}, 0, 0.6), "NC1 0.400 (0.300–0.500)"),
        (("d_lr", [NAN] * 3, {}, 3, 0.6), "all 3 seeds diverged"),
        (("d_lr", [NAN], {}, 1, 0.6), "the only seed has diverged"),
    ],
)
def test_a_moment_in_words(moment, words):
    assert describe_moment(*moment).startswith(words)
    assert len(describe_moment(*moment)) <= len(words) + 3


def table(rows):
    return xr.DataArray(np.array(rows), dims=("rate", "seed"))


@pytest.mark.parametrize(
    "d_lr, tested, words",
    [
        ([[0.2], [0.1]], [[0.8], [0.9]], "Best on test samples and richest: b."),
        ([[0.2], [0.1]], [[1.0], [0.9998]], "All do equally well on test samples. Richest: b."),
        ([[0.2], [0.1]], [[0.9], [0.8]], "Best on test samples: a. Richest: b. The two ranges of "
         "accuracy do not overlap."),
        ([[NAN], [0.1]], [[NAN], [0.8]], "Best on test samples and richest: b."),
        ([[NAN], [NAN]], [[0.9], [0.8]], ""),
    ],
)  # fmt: skip
def test_how_settings_ended_in_words(d_lr, tested, words):
    assert describe_ends(["a", "b"], table(d_lr), table(tested)) == words


def test_gaps_are_explained():
    steps = {"step": [0, 1, 10]}
    values = xr.DataArray([[NAN, NAN, 0.2]], dims=("seed", "step"), coords=steps)
    assert describe_gaps("d_lr", values, 1) == (
        "D_LR is undefined at step 0 and others, where features or outputs are constant. "
        "1 network diverged: its line ends."
    )
    assert describe_gaps("nc1", values, 0) == "NC1 is undefined at step 0."
    assert describe_gaps("d_lr", values.fillna(0.1), 0) == ""
