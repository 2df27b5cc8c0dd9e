"""The sliders over alignments: linked in the browser, and carrying what was measured."""

import json
import math
import statistics

import ipywidgets as widgets
import numpy as np
import pytest
import xarray as xr
from ipywidgets.embed import dependency_state, embed_data

from richbook.measure.errors import RichbookError
from richbook.show.alignment_explorer import SHOWN, AlignmentExplorer, explore_alignment
from richbook.show.alignment_packing import CHOICES, SLIDERS, pack_alignment_sweep

NETWORK = ("activation", "weight_decay", "learning_rate", "batch_size")
MORE = ("layer", "side", "relation")


def make_sweep(decays, rates, sizes, activations, seeds, steps, layers):
    """Numbers without meaning in the form that `alignment_sweep` returns."""
    rng = np.random.default_rng(0)
    coords = {
        "activation": activations, "weight_decay": decays, "learning_rate": rates,
        "batch_size": sizes, "seed": range(seeds), "step": steps, "layer": range(1, layers + 1),
        "side": ["forward", "backward"], "relation": ["RGA", "RWA", "GWA"],
    }  # fmt: skip
    dims = (*NETWORK, "seed", "step")
    draw = lambda names: (names, rng.uniform(0, 1, [len(coords[n]) for n in names]))  # noqa: E731
    data = {"alignment": draw((*dims, *MORE)), "null_mean": draw((*dims, *MORE))}
    data["null_std"] = (data["null_mean"][0], 0.1 * (1 - data["null_mean"][1]))
    data |= {"train_accuracy": draw(dims), "test_accuracy": draw(dims)}
    return xr.Dataset(data, coords, attrs={"settings": json.dumps({"depth": layers - 1})})


@pytest.fixture
def sweep():
    """2 × 3 × 2 × 2 networks of 3 layers, 3 seeds; one network diverged wholly, one in one seed."""
    rates, activations = [0.02, 0.05, 0.1], ["tanh", "linear"]
    made = make_sweep([0.0, 0.03], rates, [4, 16], activations, 3, [0, 10, 99], 3)
    for seed in (0, 1, 2):
        lose(made, (1, 0, 2, 0, seed))
    lose(made, (1, 1, 2, 0, 1))
    return made


def lose(sweep, at):
    for variable in sweep.data_vars.values():
        variable.values[at][1:] = np.nan


def read(data, field, cell, place):
    """The numbers of a place decoded by hand."""
    at = field["offset"] + (cell * field["length"] + place) * field["per"]
    return [math.nan if code == 255 else code / 254 for code in data[at : at + field["per"]]]


def test_the_root_has_both_classes_and_three_sliders_in_order(sweep):
    box = explore_alignment(sweep)
    assert isinstance(box, AlignmentExplorer)
    assert {"rb-explorer", "rb-alignment-explorer"} <= set(box._dom_classes)
    sliders = [child for child in box.children if isinstance(child, widgets.SelectionSlider)]
    assert [s.description for s in sliders] == ["weight decay", "learning rate", "batch size"]
    assert [label for label, _ in sliders[2].options] == ["4", "16"]
    lists = box.children[3].children
    assert [each.description for each in lists] == ["activation", "layer", "map"]
    assert [label for label, _ in lists[1].options] == ["1", "2", "3 (head)"]
    assert [label for label, _ in lists[2].options] == list(SHOWN)


def test_every_control_is_linked_to_the_view_in_the_browser(sweep):
    box = explore_alignment(sweep)
    linked = {link.target[1]: link for link in box.links}
    assert set(linked) == {*CHOICES, "shown"}
    for name, link in linked.items():
        assert link.get_state()["_model_name"] == "LinkModel"  # lives in the page, not in Python
        assert link.source == (box.controls[name], "index") and link.target[0] is box.view


def test_the_saved_state_holds_all_the_page_needs(sweep):
    box = explore_alignment(sweep)
    state = dependency_state(box)
    assert {box.model_id, box.view.model_id} <= set(state)
    assert sum(s["model_name"] == "LinkModel" for s in state.values()) == 6
    assert [b["path"] for b in state[box.view.model_id]["buffers"]] == [["packed"]]


def test_the_state_of_a_full_sweep_fits_in_a_page():
    full = make_sweep(
        [0, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1], [0.02, 0.05, 0.1], [4, 16, 64],
        ["tanh", "relu", "linear"], 3, range(9), 5,
    )  # fmt: skip
    box = explore_alignment(full)
    state = embed_data(views=[box], state=dependency_state(box, drop_defaults=False))
    assert len(json.dumps(state["manager_state"])) < 300_000


def test_every_number_is_packed_within_the_stated_error(sweep):
    data, contents = pack_alignment_sweep(sweep)
    fields, cell = contents["fields"], 0
    for at in np.ndindex(2, 2, 3, 2):
        for layer, side, relation in np.ndindex(3, 2, 3):
            for step in range(3):
                values = sweep["alignment"].values[at][:, step, layer, side, relation]
                null = sweep["null_mean"].values[at][:, step, layer, side, relation]
                known = [float(v) for v in values if not math.isnan(v)]
                triple, (mean,) = (
                    read(data, fields["alignment"], cell, step),
                    read(data, fields["null"], cell, step),
                )
                if not known:
                    assert all(math.isnan(v) for v in (*triple, mean))
                    continue
                expected = statistics.fmean(known), min(known), max(known)
                assert triple == pytest.approx(expected, abs=0.002)
                assert mean == pytest.approx(float(np.nanmean(null)), abs=0.002)
            cell += 1
    assert len(data) == (cell * 4 + 2 * (cell // 18) * 3) * 3
    assert contents["steps"] == [0, 10, 99] and contents["seeds"] == 3
    assert np.allclose(contents["chance"], 0.1) and np.shape(contents["chance"]) == (3, 2)


def test_the_order_of_dimensions_does_not_matter(sweep):
    turned = sweep.transpose("relation", "step", "side", "seed", "layer", ...)
    assert pack_alignment_sweep(turned) == pack_alignment_sweep(sweep)


def test_start_is_where_it_says_or_near_the_standard(sweep):
    box = explore_alignment(sweep)
    assert box.settings == {
        "weight_decay": 0.03, "learning_rate": 0.05, "batch_size": 16, "activation": "tanh",
    }  # fmt: skip
    box = explore_alignment(sweep, {"weight_decay": 0, "activation": "linear", "layer": 2})
    assert box.settings["weight_decay"] == 0 and box.settings["activation"] == "linear"
    assert (box.view.weight_decay, box.view.activation, box.view.layer) == (0, 1, 1)
    assert box.cell["alignment"].dims == ("seed", "step", "side", "relation")
    assert int(box.cell["layer"]) == 2


@pytest.mark.parametrize(
    "start, message",
    [
        ({"target_scale": 1}, "start has no use for target_scale; it may have: weight_decay, "),
        ({"activation": "relu"}, "activation='relu' is not in the data; it has: tanh, linear"),
        ({"layer": 7}, "layer=7 is not in the data; it has: 1, 2, 3"),
        ([1], r"start must be a dict from choice to value, not \[1\]"),
    ],
)
def test_a_wrong_start_says_what_there_is(start, message, sweep):
    with pytest.raises(RichbookError, match=message):
        explore_alignment(sweep, start)


def test_a_sweep_that_lacks_something_says_what(sweep):
    with pytest.raises(RichbookError, match="'null_mean' is not in the data"):
        explore_alignment(sweep.drop_vars("null_mean"))
    with pytest.raises(RichbookError, match="lacks the axes layer"):
        explore_alignment(sweep.isel(layer=0))
    with pytest.raises(RichbookError, match="expected both sides and all three relations, got fo"):
        explore_alignment(sweep.isel(relation=[0, 2]))


def test_a_choice_with_one_value_has_no_control(sweep):
    box = explore_alignment(sweep.sel(activation=["linear"], batch_size=[4]))
    assert len(box.links) == 4
    assert isinstance(box.controls["batch_size"], widgets.Label)
    assert isinstance(box.controls["activation"], widgets.Label)
    assert box.settings["activation"] == "linear" and box.settings["batch_size"] == 4


def test_a_slider_moved_from_python_sends_the_view_nothing(sweep):
    box = explore_alignment(sweep)
    sent = []
    box.view.observe(sent.append, names=list(CHOICES))
    box.controls["weight_decay"].index = 0
    assert box.settings["weight_decay"] == 0 and not sent


def test_the_view_reads_every_name_that_python_sends(sweep):
    """The drawing is JavaScript: a name that only one side knows would show in a browser only."""
    view = explore_alignment(sweep).view
    for name in ("packed", "contents", "axes", "shown", *SLIDERS, "activation", "layer"):
        assert view.has_trait(name) and f'"{name}"' in view._esm
    for name in view.contents:
        assert name in ("fields", "steps", "seeds", "chance") and name in view._esm
    for name in view.contents["fields"]:
        assert f"s.{name}" in view._esm
    for label in SHOWN[:2]:
        assert f'"{label}"' in view._esm
