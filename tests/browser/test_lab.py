"""The book in a running JupyterLab: run all, move a slider, watch a network train."""

import re
from pathlib import Path

import pytest

from tests.browser.harness import DRAWING, HANDLE, Nb, Watch

ROOT = Path(__file__).resolve().parents[2]
CHAPTER = next((path for path in (ROOT / "notebooks").glob("01-*.ipynb")), None)
# What the status line of a live widget says of a run under way, at its end, and stopped.
UNDER_WAY, ENDED, STOPPED = r"step (\d+) of", "finished", "stopped"

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def notebook(browser, lab):
    """Chapter 1, opened and run from top to bottom without the outputs that came with it."""
    assert CHAPTER is not None, "there is no chapter 1"
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    page = context.new_page()
    watch = Watch(page)
    opened = Nb(page, lab, CHAPTER.name)
    opened.clear()
    assert opened.run_all() == []
    yield opened
    opened.close()
    context.close()
    assert watch.abroad == [], "JupyterLab asked for something from the network"


def find(notebook: Nb, call: str, kind: str):
    """The widget of a class that the first cell with `call` shows."""
    cell = notebook.cell_with(call)
    assert cell is not None, f"chapter 1 does not call {call}...)"
    notebook.scroll_to(cell)
    root = notebook.page.locator(kind).first
    root.wait_for(timeout=20_000)
    return root


def move(notebook: Nb, root, slider: int = 0) -> None:
    """Press an arrow key on a slider, away from the end that it stands at."""
    handle = root.locator(HANDLE).nth(slider)
    handle.focus()
    at_end = handle.get_attribute("aria-valuenow") == handle.get_attribute("aria-valuemax")
    notebook.page.keyboard.press("ArrowLeft" if at_end else "ArrowRight")


def wait_until(notebook: Nb, condition: str, root, *more, seconds: float = 30) -> None:
    """Wait for a condition in JavaScript on `(root, ...more)`."""
    notebook.page.wait_for_function(
        f"([root, ...more]) => ({condition})(root, ...more)",
        arg=[root.element_handle(), *more],
        timeout=seconds * 1000,
    )


def picture(root) -> str | None:
    return root.locator("img").get_attribute("src")


def listen(root) -> None:
    """Keep what the status line of a live widget says from now on, each text once."""
    root.evaluate(
        """root => {
            const now = () => root.querySelector('.rb-live-status').textContent;
            let last = now();
            root.rbSaid = [];
            root.rbListener?.disconnect();
            root.rbListener = new MutationObserver(() => {
                if (now() !== last) root.rbSaid.push(last = now());
            });
            root.rbListener.observe(root, { childList: true, characterData: true, subtree: true });
        }"""
    )


def wait_for_status(notebook: Nb, root, words: str, seconds: float = 30) -> list[str]:
    """Wait until the status line has said some words, however briefly; all that it said so far."""
    said = "(root, words) => root.rbSaid.some(text => new RegExp(words).test(text))"
    wait_until(notebook, said, root, words, seconds=seconds)
    return root.evaluate("root => root.rbSaid")


def test_slider_over_the_recorded_sweep_changes_the_picture(notebook):
    root = find(notebook, "explore(", ".rb-explorer")
    for slider in range(root.locator(HANDLE).count()):
        before = root.evaluate(DRAWING)
        move(notebook, root, slider)
        wait_until(notebook, f"(root, before) => ({DRAWING})(root) !== before", root, before)


def test_slider_trains_a_network_to_the_end(notebook):
    root = find(notebook, "train_live(", ".rb-live")
    listen(root)
    before = picture(root)
    move(notebook, root)
    wait_for_status(notebook, root, UNDER_WAY)
    wait_for_status(notebook, root, ENDED, seconds=120)
    assert picture(root) != before


def test_slider_moved_during_a_run_cancels_it(notebook):
    """The steps start again from the beginning, and only the later run comes to its end."""
    root = find(notebook, "train_live(", ".rb-live")
    listen(root)
    move(notebook, root)
    wait_for_status(notebook, root, UNDER_WAY)
    move(notebook, root, slider=1)
    wait_for_status(notebook, root, ENDED, seconds=120)
    notebook.page.wait_for_timeout(1500)  # an older run that goes on would say so
    said = root.evaluate("root => root.rbSaid")
    ended = [number for number, text in enumerate(said) if re.search(ENDED, text)]
    assert ended == [len(said) - 1], said
    steps = [int(found[1]) for text in said if (found := re.search(UNDER_WAY, text))]
    falls = [number for number in range(1, len(steps)) if steps[number] < steps[number - 1]]
    assert len(falls) == 1, steps


def test_stop_button_ends_a_run(notebook):
    root = find(notebook, "train_live(", ".rb-live")
    listen(root)
    move(notebook, root)
    wait_for_status(notebook, root, UNDER_WAY)
    root.locator(".rb-live-stop").click()
    wait_for_status(notebook, root, STOPPED)
    stopped = picture(root)
    notebook.page.wait_for_timeout(1500)
    assert picture(root) == stopped, "the network goes on training after Stop"
    assert re.search(STOPPED, root.evaluate("root => root.rbSaid.at(-1)"))
