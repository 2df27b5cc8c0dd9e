"""The HTML book opens from disk, needs no network, and its sliders live without a kernel."""

from pathlib import Path

import pytest

from tests.browser.harness import HANDLE, LIVE_WIDGETS, STATIC_WIDGETS, press_each_slider

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
WITH_SLIDERS = {"00", "01", "04"}
WITH_TRAINING = [
    name
    for name in CHAPTERS
    if "train_live(" in (ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8")
]
MATHEMATICS = "() => document.querySelectorAll('.math').length"
TYPESET = "() => [...document.querySelectorAll('.math')].every(e => e.querySelector('mjx-math'))"

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def open_page(page, html: Path, name: str) -> None:
    page.goto((html / f"{name}.html").as_uri())


@pytest.mark.parametrize("name", ["index", *CHAPTERS])
def test_page_opens_from_disk(page, html, name):
    open_page(page, html, name)
    assert page.locator("article h1").first.is_visible()
    if page.evaluate(MATHEMATICS):
        page.wait_for_function(TYPESET, timeout=20_000)
        assert page.locator("mjx-merror").count() == 0
    page.wait_for_timeout(500)  # late requests and complaints are seen too


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out_in_both_themes(page, html, theme):
    page.emulate_media(color_scheme=theme)
    open_page(page, html, "index")
    assert page.evaluate("() => document.documentElement.dataset.theme") == theme
    shades = page.evaluate(
        """() => ['color', 'backgroundColor'].map(part => {
            const of = part === 'color' ? document.querySelector('article h1') : document.body;
            const [r, g, b] = getComputedStyle(of)[part].match(/\\d+/g);
            return +r + +g + +b;
        })"""
    )
    assert abs(shades[0] - shades[1]) > 300


def test_index_lists_the_chapters(page, html):
    open_page(page, html, "index")
    links = page.locator("article .toctree-wrapper a").evaluate_all(
        "links => links.map(a => a.getAttribute('href'))"
    )
    assert [link.split("#")[0] for link in links] == [f"{name}.html" for name in CHAPTERS]


@pytest.mark.parametrize("name", CHAPTERS)
def test_each_slider_changes_the_picture(page, html, name):
    open_page(page, html, name)
    if name[:2] in WITH_SLIDERS:
        page.locator(".rb-explorer svg").first.wait_for(timeout=20_000)
    page.wait_for_timeout(1500)
    handles, tried = page.locator(HANDLE).count(), page.locator(f"{LIVE_WIDGETS} {HANDLE}").count()
    if handles == 0:
        pytest.skip(f"{name} has no sliders")
    widgets = page.locator(STATIC_WIDGETS)
    for number in range(widgets.count()):
        pairs = press_each_slider(page, widgets.nth(number))
        still = [index for index, (before, after) in enumerate(pairs) if before == after]
        assert still == [], f"widget {number}: sliders {still} change nothing"
        tried += len(pairs)
    assert tried == handles, "a slider belongs to no widget that is known to work without a kernel"


@pytest.mark.parametrize("name", WITH_TRAINING)
def test_live_widget_shows_the_run_that_was_made_with_the_page(page, html, name):
    open_page(page, html, name)
    page.locator(".rb-live-status").first.wait_for(timeout=20_000)
    assert page.locator(".rb-live-status").first.inner_text().startswith("finished: ")
    assert page.locator(".rb-live img").first.is_visible()
    assert "no kernel to train with" in page.locator("article").inner_text()


def test_solutions_are_folded_away(page, html):
    """At least one cell of the book is folded, and a click unfolds it."""
    for name in CHAPTERS:
        open_page(page, html, name)
        folded = page.locator("details.hide")
        if folded.count():
            code = folded.first.locator(".cell_input, pre").first
            assert not code.is_visible()
            folded.first.locator("summary").click()
            assert code.is_visible()
            return
    pytest.fail("no chapter has a folded cell")
