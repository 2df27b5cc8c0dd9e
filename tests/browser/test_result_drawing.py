"""What the script of the result explorer draws, in a browser but without a book around it."""

import re

import pytest

from richbook.experiments import load_result
from richbook.show import explore_result
from tests.browser.harness import STICKS_OUT, show_view
from tests.show.results import lose_seed, make_result

pytestmark = pytest.mark.browser

WIDTHS = [860, 360]


def final(result, name, setting):
    return result[name].values[setting, :, -1]


@pytest.fixture
def result():
    made = make_result()
    made["d_lr"].values[:, :, -1] = [[0.1, 0.12, 0.14], [0.2, 0.22, 0.24], [0.4, 0.41, 0.42]]
    return made


@pytest.fixture(params=WIDTHS)
def drawn(request, page, result):
    show_view(page, explore_result(result, {"target_scale": 1}).view, request.param)
    return page


def choose(page, **traits):
    page.evaluate("change => model.set(change)", traits)


def test_the_readout_says_setting_step_and_numbers(drawn, result):
    d_lr, test = (final(result, name, 1) for name in ("d_lr", "test_accuracy"))
    said = drawn.locator(".rb-explorer-readout").inner_text().replace("\n", "")
    assert said.startswith("target scale 1, step 100: DLR 0.220 (0.200–0.240) · train accuracy ")
    assert f"test accuracy {test.mean():.2f}" in said and d_lr.mean() == pytest.approx(0.22)


def test_the_table_holds_means_and_ranges_at_the_chosen_step(drawn, result):
    choose(drawn, setting=2, step=1)
    rows = drawn.locator(".rb-numbers tbody tr")
    cells = {row.locator("th").inner_text(): row.locator("td").all_inner_texts()
             for row in rows.all()}  # fmt: skip
    loss = result["train_loss"].values[2, :, 1]
    mean, span = cells["training loss"]
    assert float(mean) == pytest.approx(loss.mean(), rel=6e-3)
    assert [float(part) for part in span.split(" – ")] == pytest.approx(
        [loss.min(), loss.max()], rel=6e-3
    )
    assert drawn.locator(".rb-numbers thead th").first.inner_text() == "at step 1"
    choose(drawn, step=0)
    assert drawn.locator(".rb-numbers tbody tr").first.inner_text().split("\t")[1:] == [
        "undefined",
        "undefined",
    ]


def test_the_slider_of_steps_moves_cursor_spectrum_and_table(drawn):
    svg = [drawn.locator("#view svg").nth(number).inner_html() for number in range(5)]
    cursor = drawn.locator(".rb-cursor").first.get_attribute("x1")
    choose(drawn, step=1)
    after = [drawn.locator("#view svg").nth(number).inner_html() for number in range(5)]
    assert [old != new for old, new in zip(svg, after, strict=True)] == [True] * 4 + [False]
    assert float(drawn.locator(".rb-cursor").first.get_attribute("x1")) < float(cursor)


def test_the_slider_of_settings_changes_every_panel(drawn):
    svg = [drawn.locator("#view svg").nth(number).inner_html() for number in range(5)]
    choose(drawn, setting=0)
    for number, before in enumerate(svg):
        assert drawn.locator("#view svg").nth(number).inner_html() != before, number


def test_a_dot_of_the_last_panel_chooses_its_setting(drawn):
    titles = drawn.locator(".rb-cell title").all_text_contents()
    assert sorted(titles) == ["0.1", "1", "10"]
    drawn.locator('.rb-cell[data-i="2"] circle').last.click()
    assert drawn.evaluate("[model.get('setting'), model.get('step')]") == [2, 3]
    assert drawn.evaluate("window.saved")


def test_a_click_beside_a_curve_goes_to_the_nearest_step(drawn):
    panel = drawn.locator("svg.rb-steps").first
    box = panel.bounding_box()
    panel.click(position={"x": 36, "y": 80})
    assert drawn.evaluate("model.get('step')") == 0
    panel.click(position={"x": box["width"] - 30, "y": 80})
    assert drawn.evaluate("model.get('step')") == 3


def test_play_goes_through_the_steps_from_the_start_and_stops(drawn):
    drawn.evaluate("window.seen = []; model.on('change:step', () => seen.push(model.get('step')))")
    play = drawn.locator(".rb-play")
    play.focus()
    drawn.keyboard.press("Enter")
    assert play.inner_text() == "Pause"
    drawn.wait_for_function("seen.at(-1) === 3", timeout=5000)
    assert drawn.evaluate("seen") == [0, 1, 2, 3] and play.inner_text() == "Play"


def test_pause_keeps_the_step(drawn):
    play = drawn.locator(".rb-play")
    play.click()
    drawn.wait_for_function("model.get('step') === 1", timeout=5000)
    drawn.keyboard.press(" ")
    assert play.inner_text() == "Play"
    drawn.wait_for_timeout(700)
    assert drawn.evaluate("model.get('step')") == 1


def test_panels_are_named(drawn):
    names = [svg.get_attribute("aria-label") for svg in drawn.locator("#view svg").all()]
    assert [name.split(".")[0] for name in names] == [
        "D_LR during training",
        "Accuracies during training",
        "Spectrum of the feature kernel",
        "Cumulative curves over eigenfunctions",
        "How every target scale ended",
    ]


def test_what_diverged_ends_and_is_said(page, result):
    lose_seed(result, 0, 1, 10)
    for seed in range(3):
        lose_seed(result, 2, seed, 1)
    show_view(page, explore_result(result).view, 860)
    assert page.locator(".rb-cell").count() == 2  # the third setting has no end
    assert "4 networks diverged: their lines end." in page.locator("#view").inner_text()
    assert page.locator(".rb-explorer-readout").inner_text().endswith("1 of 3 seeds diverged")
    choose(page, setting=2)
    assert page.locator(".rb-explorer-readout").inner_text().endswith("all 3 seeds diverged")
    assert "NaN" not in page.locator("#view").inner_html()


def test_panels_that_have_nothing_are_left_out(page, result):
    bare = result[["d_lr", "relative_eigenvalue"]].assign_attrs(axis="target_scale")
    show_view(page, explore_result(bare).view, 860)
    names = [svg.get_attribute("aria-label").split(".")[0] for svg in page.locator("svg").all()]
    assert names == ["D_LR during training", "Spectrum of the feature kernel"]


def test_one_setting_one_step_one_seed(page):
    small = make_result(values=[1.0], seeds=1, steps=[5])
    small["d_lr"].values[:] = 0.3
    show_view(page, explore_result(small).view, 360)
    said = page.locator(".rb-explorer-readout").inner_text()
    assert said.replace("\n", "").startswith("target scale 1, step 5: DLR 0.300 · train accuracy ")
    assert not page.locator(".rb-play").is_visible()
    assert "NaN" not in page.locator("#view").inner_html()


def test_words_with_marks_of_the_page_are_only_words(page):
    named = make_result(values=["<b>a</b>", "b & c"], axis="network")
    show_view(page, explore_result(named).view, 860)
    assert page.locator("#view b").count() == 0
    assert "network <b>a</b>, step" in page.locator(".rb-explorer-readout").inner_text()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["learning-rate", "label-in-pixels", "batch-norm", "weight-decay"])
def test_nothing_sticks_out_of_recorded_results(page, name, width):
    result = load_result(name)
    show_view(page, explore_result(result).view, width)
    for setting in range(result.sizes[result.attrs["axis"]]):
        for step in {0, result.sizes["step"] // 2, result.sizes["step"] - 1}:
            choose(page, setting=setting, step=step)
            assert page.evaluate(STICKS_OUT) == [], (setting, step)
            assert "NaN" not in page.locator("#view").inner_html()


def test_the_height_does_not_jump_from_step_to_step(page):
    """A reader who plays the steps looks at one place."""
    result = load_result("learning-rate")
    show_view(page, explore_result(result).view, 860)
    heights = set()
    for step in range(result.sizes["step"]):
        choose(page, step=step)
        heights.add(round(page.locator("#view").bounding_box()["height"]))
    assert len(heights) == 1


def test_the_drawn_curve_is_the_measured_one(page, result):
    """D_LR read back from the pixels of its line, against the axis beside it."""
    show_view(page, explore_result(result).view, 860)
    svg = page.locator("#view svg").first
    ticks = svg.evaluate(
        """svg => [...svg.querySelectorAll('text[text-anchor=end]')]
            .filter(t => /^[0-9.]+$/.test(t.textContent))
            .map(t => [+t.textContent, +t.getAttribute('y') - 4])"""
    )
    (low, at_low), (high, at_high) = ticks[0], ticks[-1]
    line = svg.locator("path.rb-line").get_attribute("d")
    pixels = [float(y) for y in re.findall(r"[ML][\d.]+,([\d.]+)", line)]
    got = [low + (y - at_low) / (at_high - at_low) * (high - low) for y in pixels]
    wanted = result["d_lr"].values[0, :, 1:].mean(0)  # it is undefined at step 0
    assert got == pytest.approx(wanted.tolist(), abs=0.01)
