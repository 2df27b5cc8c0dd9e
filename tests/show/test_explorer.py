import json

import ipywidgets as widgets
import pytest
from ipywidgets.embed import dependency_state, embed_data

from richbook.measure.errors import RichbookError
from richbook.show import Explorer, explore
from richbook.show.selection import HYPERPARAMETERS


def test_the_root_has_the_class_and_three_sliders_in_order(sweep):
    box = explore(sweep)
    assert isinstance(box, Explorer) and "rb-explorer" in box._dom_classes
    sliders = [child for child in box.children if isinstance(child, widgets.SelectionSlider)]
    assert [s.description for s in sliders] == ["weight decay", "target scale", "learning rate"]
    assert [label for label, _ in sliders[0].options] == ["0", "1e-3", "0.01"]


def test_every_slider_is_linked_to_the_view_in_the_browser(sweep):
    box = explore(sweep)
    linked = {link.target[1]: link for link in box.links}
    assert set(linked) == set(HYPERPARAMETERS)
    for name, link in linked.items():
        assert link.get_state()["_model_name"] == "LinkModel"  # lives in the page, not in Python
        assert link.source == (box.sliders[name], "index") and link.target[0] is box.view


def test_the_saved_state_holds_all_the_page_needs(sweep):
    box = explore(sweep)
    state = dependency_state(box)
    assert {box.model_id, box.view.model_id} <= set(state)
    assert sum(s["model_name"] == "LinkModel" for s in state.values()) == 3
    buffers = state[box.view.model_id]["buffers"]
    assert [buffer["path"] for buffer in buffers] == [["packed"]]


def test_the_state_of_a_full_sweep_fits_in_a_page(full_sweep):
    box = explore(full_sweep)
    state = embed_data(views=[box], state=dependency_state(box, drop_defaults=False))
    assert len(json.dumps(state["manager_state"])) < 150_000


def test_start_is_where_it_says_or_near_the_standard(sweep):
    assert explore(sweep).settings == {
        "weight_decay": 0.01,
        "target_scale": 1.0,
        "learning_rate": 0.01,
    }
    box = explore(sweep, start={"target_scale": 0.1, "weight_decay": 0})
    assert box.settings == {"weight_decay": 0.0, "target_scale": 0.1, "learning_rate": 0.01}
    assert box.sliders["target_scale"].value == 0.1
    assert box.view.target_scale == box.sliders["target_scale"].index == 0


def test_the_cell_shown_is_available_as_data(sweep):
    box = explore(sweep, start={"weight_decay": 0.001})
    assert box.cell["d_lr"].dims == ("seed", "step")
    assert float(box.cell["weight_decay"]) == 0.001


@pytest.mark.parametrize(
    "start, message",
    [
        ({"decay": 1}, "start has no use for decay; it may have: weight_decay"),
        ({"target_scale": 7}, "target_scale=7 is not in the data; it has: 0.1, 1"),
    ],
)
def test_a_wrong_start_says_what_there_is(start, message, sweep):
    with pytest.raises(RichbookError, match=message):
        explore(sweep, start=start)


def test_an_axis_with_one_value_has_no_slider(sweep):
    box = explore(sweep.isel(learning_rate=[0]))
    assert len(box.links) == 2 and isinstance(box.sliders["learning_rate"], widgets.Label)
    assert box.settings["learning_rate"] == 0.001


def test_the_view_reads_every_name_that_python_sends(sweep):
    """The drawing is JavaScript: a name that only one side knows would show in a browser only."""
    view = explore(sweep).view
    for name in ("packed", "contents", "axes", "readouts", *HYPERPARAMETERS):
        assert view.has_trait(name) and f'"{name}"' in view._esm
    for name in ("fields", "steps", "k", "diverged", "seeds", "floor", "rank"):
        assert name in view.contents and f".{name}" in view._esm
    for name in ("rb-explorer-readout", 'aria-live="polite"', 'role="img"', "aria-label"):
        assert name in view._esm


def test_a_slider_moved_from_python_moves_settings_and_cell_but_sends_the_view_nothing(sweep):
    box = explore(sweep)
    sent = []
    box.view.observe(sent.append, names=list(HYPERPARAMETERS))
    box.sliders["target_scale"].value = 0.1
    assert box.settings == {"weight_decay": 0.01, "target_scale": 0.1, "learning_rate": 0.01}
    assert float(box.cell["target_scale"]) == 0.1
    assert not sent  # the link does that in the browser; an answer from here could come too late
