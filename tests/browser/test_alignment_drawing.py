"""What the script of the alignment explorer draws, in a browser but without a book around it."""

import numpy as np
import pytest

from richbook.show import explore_alignment
from richbook.train import alignment_sweep
from tests.browser.harness import STICKS_OUT, show_view

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def sweep():
    """Two decays, two rates of which one diverges, one activation."""
    return alignment_sweep(
        [0, 0.1], [0.1, 1e20], [8, 16], "relu", 2,
        width=16, depth=2, steps=60, record_at=[0, 10, 60], progress=False,
    )  # fmt: skip


@pytest.fixture(params=[1000, 380])
def drawn(request, page, sweep):
    box = explore_alignment(sweep, {"weight_decay": 0.1, "learning_rate": 0.1, "layer": 2})
    show_view(page, box.view, request.param)
    return page


def final(sweep, **where):
    """The six alignments at the end, forward first, means over seeds."""
    return sweep.alignment.sel(where).isel(step=-1).squeeze().mean("seed").values.ravel()


def test_readout_and_map_say_what_was_measured(drawn, sweep):
    six = final(sweep, weight_decay=0.1, learning_rate=0.1, batch_size=16, layer=2)
    accuracy = sweep.test_accuracy.sel(weight_decay=0.1, learning_rate=0.1, batch_size=16)
    said = drawn.locator(".rb-explorer-readout").inner_text()
    assert said.startswith(f"mean alignment {six.mean():.2f} · lowest {six.min():.2f} ")
    side, relation = divmod(int(np.argmin(six)), 3)
    assert f"({('forward', 'backward')[side]} {('RGA', 'RWA', 'GWA')[relation]})" in said
    assert said.endswith(f"test accuracy {float(accuracy.isel(step=-1).mean()):.2f}")
    written = drawn.locator(".rb-cell text").all_text_contents()
    plain = final(sweep, weight_decay=0, learning_rate=0.1, batch_size=16, layer=2).mean()
    assert written == [f"{plain:.2f}", "–", f"{six.mean():.2f}", "–"]


def test_every_choice_changes_the_drawing(drawn):
    for name, value in {"layer": 0, "batch_size": 0, "shown": 4, "weight_decay": 0}.items():
        before = drawn.locator("#view").inner_html()
        drawn.evaluate("change => model.set(change)", {name: value})
        assert drawn.locator("#view").inner_html() != before, name
    assert "forward GWA at the end" in drawn.locator("svg").nth(3).text_content()


def test_a_cell_of_the_map_moves_the_sliders(drawn):
    drawn.locator(".rb-cell").nth(1).click()
    assert drawn.evaluate("[model.get('weight_decay'), model.get('learning_rate')]") == [0, 1]
    assert drawn.evaluate("window.saved")
    assert drawn.locator(".rb-explorer-readout").inner_text() == "diverged in every seed"


def test_nothing_sticks_out(drawn):
    """Texts stay inside the drawing's width and do not run into the panel beside them."""
    assert drawn.evaluate(STICKS_OUT) == []


def test_panels_are_named(drawn):
    names = [svg.get_attribute("aria-label") for svg in drawn.locator("svg").all()]
    assert [name.split(".")[0] for name in names] == [
        "RGA during training", "RWA during training", "GWA during training",
        "Map over learning rate and weight decay", "Train and test accuracy during training",
    ]  # fmt: skip
