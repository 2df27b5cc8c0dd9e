"""The chapters as they are kept: text and notebook agree, and each has the parts that it should."""

import re
from pathlib import Path

import nbformat
import pytest

from richbook.course.chapters import drift, notebook_of, read_text

ROOT = Path(__file__).resolve().parents[2]
TEXTS = sorted((ROOT / "notebooks" / "text").glob("*.md"))
each_chapter = pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.stem)

SKELETON = {
    "question": "question",
    "your prediction": "predict",
    "derivation": "deriv",
    "code": "code",
    "experiment": "experiment",
    "what would prove this wrong": "wrong",
    "summary": "summary",
    "exercises": "exercise",
    "references": "reference",
}


def prose(text: Path) -> str:
    return "\n".join(c.source for c in read_text(text).cells if c.cell_type == "markdown")


def test_the_first_chapters_are_there():
    assert [text.stem[:2] for text in TEXTS][:7] == [f"{number:02}" for number in range(7)]


def test_each_notebook_has_a_text():
    notebooks = {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert notebooks == {text.stem for text in TEXTS}


@each_chapter
def test_notebook_agrees_with_its_text(text):
    assert drift(text, notebook_of(text)) == [], "run `make book`, which executes the text again"


@each_chapter
def test_chapter_has_the_skeleton_in_order(text):
    headings = [line.lower() for line in re.findall(r"^#{1,4} +(.*)$", prose(text), re.MULTILINE)]
    assert re.match(r"# ", prose(text).lstrip()), "the chapter opens with its title"
    places = {
        part: next((i for i, heading in enumerate(headings) if word in heading), None)
        for part, word in SKELETON.items()
    }
    assert [part for part, place in places.items() if place is None] == []
    assert list(places.values()) == sorted(places.values()), f"out of order: {places}"


@each_chapter
def test_code_cells_are_short(text):
    """About 15 lines hold one idea. Collapsed cells (solutions, plumbing) may be longer."""
    long = [
        cell.source
        for cell in read_text(text).cells
        if cell.cell_type == "code"
        and len(cell.source.splitlines()) > 20
        and not any(tag.startswith("hide") for tag in cell.metadata.get("tags", []))
    ]
    assert long == []


@each_chapter
def test_notebook_was_executed_once_from_top_to_bottom(text):
    cells = [c for c in nbformat.read(notebook_of(text), 4).cells if c.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))


@each_chapter
def test_notebook_shows_no_error_and_no_warning(text):
    for number, cell in enumerate(nbformat.read(notebook_of(text), 4).cells, start=1):
        for output in cell.get("outputs", []):
            assert output.output_type != "error", f"cell {number}: {output.get('evalue')}"
            assert output.get("name") != "stderr", f"cell {number}: {output.text}"
            said = output.get("text", "") + output.get("data", {}).get("text/plain", "")
            assert " at 0x" not in said, f"cell {number} prints an address in memory: {said}"


@each_chapter
def test_each_plot_is_shown(text):
    """A cell that calls a plotting function leaves a picture, or a widget that holds pictures."""
    for cell in nbformat.read(notebook_of(text), 4).cells:
        if cell.cell_type == "code" and re.search(r"richbook\.plot_|plt\.subplots", cell.source):
            kinds = {kind for output in cell.outputs for kind in output.get("data", {})}
            shown = {"image/png", "application/vnd.jupyter.widget-view+json"} & kinds
            assert shown, f"no picture after:\n{cell.source}"


@each_chapter
def test_code_fits_the_page(text):
    """A line of more than 90 characters has to be scrolled on the page."""
    for cell in read_text(text).cells:
        if cell.cell_type == "code":
            assert [line for line in cell.source.splitlines() if len(line) > 90] == []
