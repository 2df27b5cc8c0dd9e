"""The chapters run, from their text, in a folder that holds nothing, and give what is kept."""

import nbformat
import pytest

from richbook.course.chapters import notebook_of
from richbook.course.execution import execute
from tests.notebooks.test_texts import each_chapter


def shape(notebook) -> list[list[str]]:
    """What kinds of output each cell has: numbers may differ between machines, these may not."""
    return [
        [" ".join([output.output_type, *sorted(output.get("data", {}))]) for output in cell.outputs]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


@pytest.mark.slow
@each_chapter
def test_chapter_runs(text, tmp_path):
    fresh = execute(text, folder=tmp_path)
    assert all(o.output_type != "error" for c in fresh.cells for o in c.get("outputs", []))
    assert shape(fresh) == shape(nbformat.read(notebook_of(text), as_version=4))
