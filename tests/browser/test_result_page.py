"""The sliders over a result and the game, in a page without a kernel and in JupyterLab."""

import pytest

from tests.browser.harness import Nb, jupyter_lab, press_each_slider, small_book

CHAPTER = """---
kernelspec:
  name: python3
  display_name: Python 3
---
# Results

```{code-cell}
import richbook

richbook.explore_result(richbook.load_result("label-in-pixels"), {"step": 100})
```

```{code-cell}
richbook.richer_game(pairs=2)
```
"""
PICTURES = "root => [...root.querySelectorAll('svg')].map(svg => svg.outerHTML).join('')"
EXPLORER, GAME = ".rb-result-explorer", ".rb-richer-game"

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def book(root, scripts, tmp_path_factory):
    checkout = tmp_path_factory.mktemp("results")
    small_book(root, checkout, "00-results", CHAPTER)
    return checkout


@pytest.fixture
def opened(book, page):
    page.goto((book / "build" / "html" / "00-results.html").as_uri())
    page.locator(f"{EXPLORER} svg").first.wait_for(timeout=20_000)
    page.locator(f"{GAME} svg").first.wait_for(timeout=20_000)
    return page


def play_a_round(page):
    """Answer by keyboard, and go to the next pair; the pictures before, between and after."""
    game = page.locator(GAME).first
    game.scroll_into_view_if_needed()
    seen = [game.evaluate(PICTURES)]
    game.locator(".rb-game-choice").first.focus()
    for key in ("Enter", " "):
        page.keyboard.press(key)
        page.wait_for_timeout(300)
        seen.append(game.evaluate(PICTURES))
    return seen


def play_the_steps(page):
    """Press Play by key and see every later step come by."""
    explorer = page.locator(EXPLORER).first
    handle = explorer.locator(".noUi-handle").nth(1)
    handle.focus()
    page.keyboard.press("Home")
    page.wait_for_timeout(200)
    assert handle.get_attribute("aria-valuetext") == "0"
    explorer.locator(".rb-play").focus()
    page.keyboard.press("Enter")
    last = (
        "([e]) => e.querySelectorAll('.noUi-handle')[1].getAttribute('aria-valuetext') === '1500'"
    )
    page.wait_for_function(last, arg=[explorer.element_handle()], timeout=20_000)
    assert ", step 1500: " in explorer.locator(".rb-explorer-readout").inner_text()


def test_sliders_in_a_page_by_keyboard(opened):
    pairs = press_each_slider(opened, opened.locator(EXPLORER))
    assert len(pairs) == 2 and all(before != after for before, after in pairs)
    said = opened.locator(".rb-explorer-readout").inner_text()
    assert said.startswith("trained last layer, step ")
    handles = opened.locator(f"{EXPLORER} .noUi-handle")
    assert [handles.nth(i).get_attribute("aria-label") for i in (0, 1)] == [
        "trained",
        "training step",
    ]
    play_the_steps(opened)


def test_the_game_in_a_page_by_keyboard(opened):
    seen = play_a_round(opened)
    assert len(set(seen)) == 3
    assert opened.locator(".rb-game-sum").inner_text().startswith("Pair 2 of 2 · ")


@pytest.mark.parametrize("width", [1280, 420])
def test_neither_is_wider_than_the_page(opened, width):
    opened.set_viewport_size({"width": width, "height": 900})
    opened.wait_for_timeout(400)
    for kind in (EXPLORER, GAME):
        box = opened.locator(kind).first.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width


def test_both_stand_out_in_the_dark_theme(book, page):
    page.emulate_media(color_scheme="dark")
    page.goto((book / "build" / "html" / "00-results.html").as_uri())
    page.locator(f"{GAME} svg").first.wait_for(timeout=20_000)
    for part in (".rb-explorer-readout", ".rb-numbers td", ".rb-game-words", ".rb-game-choice"):
        ink = page.locator(part).first.evaluate(
            "part => getComputedStyle(part).color.match(/\\d+/g).slice(0, 3).map(Number)"
        )
        assert sum(ink) > 450, part  # light on dark


def test_both_are_alive_in_jupyterlab(book, lab_page, tmp_path):
    with jupyter_lab(book / "notebooks", tmp_path) as address:
        notebook = Nb(lab_page, address, "00-results.ipynb")
        notebook.clear()
        assert notebook.run_all() == []
        notebook.scroll_to(notebook.cell_with("explore_result"))
        lab_page.locator(f"{EXPLORER} svg").first.wait_for(timeout=20_000)
        pairs = press_each_slider(lab_page, lab_page.locator(EXPLORER).first)
        assert len(pairs) == 2 and all(before != after for before, after in pairs)
        play_the_steps(lab_page)
        notebook.scroll_to(notebook.cell_with("richer_game"))
        lab_page.locator(f"{GAME} svg").first.wait_for(timeout=20_000)
        assert len(set(play_a_round(lab_page))) == 3
        assert notebook.errors() == []
        notebook.close()
