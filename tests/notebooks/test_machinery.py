"""The making of notebooks, tried on a small chapter of the test's own."""

import base64
import io
import json

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from richbook.course import chapters
from richbook.course.book import execute_chapters
from richbook.course.chapters import drift, find_root, find_texts, notebook_of, read_text
from richbook.course.execution import execute, thin
from richbook.measure.errors import RichbookError

HEADER = """\
---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  name: python3
  display_name: Python 3
  language: python
---
"""
CHAPTER = (
    HEADER
    + """\
# A chapter

Some prose.

```{code-cell}
import ipywidgets
print("one")
print("two")
ipywidgets.IntSlider()
```

```{code-cell}
:tags: [hide-cell]

1 + 1
```
"""
)


@pytest.fixture
def text(tmp_path):
    folder = tmp_path / "notebooks" / "text"
    folder.mkdir(parents=True)
    path = folder / "00-sample.md"
    path.write_text(CHAPTER, encoding="utf-8")
    return path


def test_two_executions_give_the_same_bytes(text):
    execute_chapters([text])
    first = notebook_of(text).read_bytes()
    execute_chapters([text])
    assert notebook_of(text).read_bytes() == first
    assert drift(text, notebook_of(text)) == []


def test_widget_state_is_kept_for_the_page_without_kernel(text):
    execute_chapters([text])
    notebook = json.loads(notebook_of(text).read_text(encoding="utf-8"))
    state = notebook["metadata"]["widgets"]["application/vnd.jupyter.widget-state+json"]["state"]
    (view,) = [
        output["data"]["application/vnd.jupyter.widget-view+json"]
        for output in notebook["cells"][1]["outputs"]
        if "data" in output
    ]
    assert state[view["model_id"]]["model_name"] == "IntSliderModel"
    (layout,) = [key for key, value in state.items() if value["model_name"] == "LayoutModel"]
    assert state[view["model_id"]]["state"]["layout"] == f"IPY_MODEL_{layout}"


def test_identifiers_stay_when_a_cell_is_put_in(text):
    before = [cell.id for cell in read_text(text).cells]
    text.write_text(CHAPTER.replace("Some prose.", "```{code-cell}\n0\n```"), encoding="utf-8")
    assert before[1:] == [cell.id for cell in read_text(text).cells][-2:]


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("1 + 1", "1 + 2", "cell 3: its source"),
        ("[hide-cell]", "[hide-input]", "cell 3: its metadata"),
        ("Some prose.", "Other prose.", "cell 1: its source"),
        ("```{code-cell}\n:tags: [hide-cell]\n\n1 + 1\n```\n", "1 + 1\n", "cell 3: its type"),
    ],
)
def test_drift_is_found(text, old, new, where):
    execute_chapters([text])
    text.write_text(CHAPTER.replace(old, new), encoding="utf-8")
    assert any(where in line for line in drift(text, notebook_of(text)))


def test_drift_finds_a_missing_cell_and_a_missing_notebook(text):
    assert drift(text, notebook_of(text)) == ["00-sample.ipynb is missing"]
    execute_chapters([text])
    text.write_text(CHAPTER + "\n```{code-cell}\n3\n```\n", encoding="utf-8")
    assert drift(text, notebook_of(text)) == ["00-sample.md has 4 cells, 00-sample.ipynb 3"]


def test_failing_cell_is_named_and_the_old_notebook_stays(text):
    execute_chapters([text])
    kept = notebook_of(text).read_bytes()
    text.write_text(CHAPTER.replace("1 + 1", "x = 0\n1 / x"), encoding="utf-8")
    with pytest.raises(RichbookError) as caught:
        execute_chapters([text])
    message = str(caught.value)
    assert "00-sample.md, code cell 2 of 2 failed" in message
    assert "x = 0\n1 / x" in message
    assert "ZeroDivisionError" in message
    assert "\x1b" not in message
    assert notebook_of(text).read_bytes() == kept
    assert sorted(p.name for p in notebook_of(text).parent.iterdir()) == ["00-sample.ipynb", "text"]


def test_pictures_take_less_room_and_look_the_same():
    figure = Figure(dpi=100)
    axes = figure.subplots()
    axes.imshow(np.random.default_rng(0).random((20, 20)))
    axes.plot(range(20))
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    thinner = base64.b64decode(thin(base64.b64encode(drawn.getvalue()).decode()))
    assert len(thinner) < 0.6 * len(drawn.getvalue())
    before, after = (
        np.asarray(Image.open(io.BytesIO(raw)).convert("RGB"), dtype=int)
        for raw in (drawn.getvalue(), thinner)
    )
    assert np.abs(before - after).max() <= 8  # of 255
    assert (after[0, 0] == 255).all(), "white stays white"


def test_large_notebook_is_refused(text, monkeypatch):
    monkeypatch.setattr(chapters, "LARGEST_NOTEBOOK", 1000)
    with pytest.raises(RichbookError, match=r"00-sample\.ipynb would take \d+ bytes"):
        execute_chapters([text])
    assert not notebook_of(text).exists()


def test_text_without_code_is_refused(text):
    text.write_text("# Prose only\n\n```python\n1 + 1\n```\n", encoding="utf-8")
    with pytest.raises(RichbookError, match="has no code cell"):
        read_text(text)


def test_text_is_read_as_myst_whatever_its_header_says(text):
    text.write_text(CHAPTER.replace("    extension: .md\n", ""), encoding="utf-8")
    assert [cell.cell_type for cell in read_text(text).cells] == ["markdown", "code", "code"]


def test_chapters_are_found_and_chosen(text, tmp_path):
    assert find_root(text.parent) == tmp_path
    assert find_texts(tmp_path, only="00") == [text]
    with pytest.raises(RichbookError, match="no chapter starts with '07'; there are: 00-sample"):
        find_texts(tmp_path, only="07")


def test_kernel_is_this_python(text):
    import sys

    text.write_text("```{code-cell}\nimport sys; print(sys.prefix)\n```\n", encoding="utf-8")
    assert execute(text).cells[0].outputs[0].text.strip() == sys.prefix
