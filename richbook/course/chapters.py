"""Chapters: find them, read their MyST text, keep the executed notebook beside it.

`notebooks/text/NN-name.md` is what people edit and review, `notebooks/NN-name.ipynb` is what
readers open. `execution.execute` makes the one from the other; `drift` says where they disagree.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import jupytext
import nbformat

from richbook.measure.errors import RichbookError

LARGEST_NOTEBOOK = 500_000  # bytes
LANGUAGE = {
    "name": "python",
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "pygments_lexer": "ipython3",
}
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
# Written by execution, or by the tools that open a notebook; the text cannot know them.
NOT_IN_TEXT = {"widgets", "language_info", "kernelspec", "jupytext"}


def find_root(start: Path | None = None) -> Path:
    """The checkout of the book: the folder that holds `notebooks/text`.

    Looks upward from `start` (the current folder by default), then from where the package lies.

    Raises:
        RichbookError: if neither lies in a checkout.

    Example:
        >>> find_root(Path("/"))  # doctest: +SKIP
        PosixPath('~/richbook')
    """
    start = Path(start or Path.cwd()).resolve()
    package = Path(__file__).resolve()
    for folder in (start, *start.parents, *package.parents):
        if (folder / "notebooks" / "text").is_dir():
            return folder
    raise RichbookError(
        f"start: neither {start} nor a folder above it holds notebooks/text; "
        "expected a checkout of the book"
    )


def find_texts(root: Path, only: str | None = None) -> list[Path]:
    """The chapters' texts in order; `only` keeps those whose file name starts with it.

    Raises:
        RichbookError: if no chapter is left.

    Example:
        >>> [text.stem for text in find_texts(find_root(), only="00")]  # doctest: +SKIP
        ['00-start-here']
    """
    folder = Path(root) / "notebooks" / "text"
    texts = sorted(folder.glob(f"{only or ''}*.md"))
    if not texts:
        there = ", ".join(text.stem for text in sorted(folder.glob("*.md"))) or "none"
        raise RichbookError(f"only: no chapter starts with {only!r}; there are: {there}")
    return texts


def notebook_of(text: Path) -> Path:
    """Where the executed notebook of a text lies.

    Example:
        >>> notebook_of(Path("notebooks/text/00-start-here.md")).as_posix()
        'notebooks/00-start-here.ipynb'
    """
    return text.parent.parent / f"{text.stem}.ipynb"


def read_text(text: Path) -> nbformat.NotebookNode:
    """Read a chapter's text as a notebook without outputs.

    Raises:
        RichbookError: if the text has no code cell, as when the blocks are not `{code-cell}`.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "00-sample.md"
        >>> _ = path.write_text("# Title\\n\\n```{code-cell}\\n1 + 1\\n```\\n")
        >>> [cell.cell_type for cell in read_text(path).cells]
        ['markdown', 'code']
    """
    # The format is named: a header without `extension: .md` would make all of it prose.
    notebook = jupytext.read(text, fmt="md:myst")
    if not any(cell.cell_type == "code" for cell in notebook.cells):
        raise RichbookError(f"text: {text.name} has no code cell; expected ```{{code-cell}} blocks")
    kept = {key: value for key, value in notebook.metadata.items() if key not in NOT_IN_TEXT}
    kept |= {"kernelspec": KERNEL, "language_info": LANGUAGE}
    notebook.metadata = nbformat.from_dict(kept)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    seen: dict[str, int] = {}
    for cell in notebook.cells:
        # An identifier that follows from the content stays put when other cells come and go.
        digest = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:12]
        seen[digest] = seen.get(digest, 0) + 1
        cell.id = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
    return notebook


def write_notebook(notebook: nbformat.NotebookNode, path: Path) -> int:
    """Write a notebook, whole or not at all, and return its size in bytes.

    Raises:
        RichbookError: if it is larger than `LARGEST_NOTEBOOK` bytes.

    Example:
        >>> import tempfile
        >>> write_notebook(nbformat.v4.new_notebook(), Path(tempfile.mkdtemp()) / "a.ipynb")
        72
    """
    nbformat.validate(notebook)
    body = nbformat.writes(notebook).rstrip("\n").encode() + b"\n"
    if len(body) >= LARGEST_NOTEBOOK:
        raise RichbookError(
            f"notebook: {path.name} would take {len(body)} bytes; "
            f"expected fewer than {LARGEST_NOTEBOOK} (smaller or fewer figures, less widget state)"
        )
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(body)
    os.replace(draft, path)
    return len(body)


def drift(text: Path, notebook: Path) -> list[str]:
    """Where an executed notebook disagrees with its text, cell by cell; empty if nowhere.

    Outputs, execution counts and identifiers are not compared: the text has none.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "00-sample.md"
        >>> _ = path.write_text("# Title\\n\\n```{code-cell}\\n1 + 1\\n```\\n")
        >>> _ = write_notebook(read_text(path), path.with_suffix(".ipynb"))
        >>> drift(path, path.with_suffix(".ipynb"))
        []
    """
    if not notebook.exists():
        return [f"{notebook.name} is missing"]
    ours, theirs = read_text(text), nbformat.read(notebook, as_version=4)
    found = []
    if len(ours.cells) != len(theirs.cells):
        counts = f"{text.name} has {len(ours.cells)} cells, {notebook.name} {len(theirs.cells)}"
        found.append(counts)
    for number, (a, b) in enumerate(zip(ours.cells, theirs.cells, strict=False), start=1):
        for part, left, right in zip(
            ("type", "source", "metadata"), _comparable(a), _comparable(b), strict=True
        ):
            if left != right:
                found.append(f"{notebook.name}, cell {number}: its {part} is not the text's")
    kept = [{k: v for k, v in n.metadata.items() if k not in NOT_IN_TEXT} for n in (ours, theirs)]
    if kept[0] != kept[1]:
        found.append(f"{notebook.name}: its metadata is not the text's")
    return found


def _comparable(cell: nbformat.NotebookNode) -> tuple[str, str, dict[str, Any]]:
    return cell.cell_type, cell.source.rstrip(), dict(cell.metadata)
