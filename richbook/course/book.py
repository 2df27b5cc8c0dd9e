"""The book: execute the chapters, write their notebooks, render them as HTML pages."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from io import StringIO
from pathlib import Path

from richbook.course import vendor
from richbook.course.chapters import find_root, find_texts, notebook_of, write_notebook
from richbook.measure.errors import RichbookError


def make_book(
    root: Path | None = None,
    out: Path | None = None,
    only: str | None = None,
    execute: bool = True,
) -> Path:
    """Execute the chapters, write their notebooks, and render the HTML book.

    Args:
        root: the checkout; found from the current folder by default.
        out: the folder of the HTML pages, `build/html` in the checkout by default. It is replaced.
        only: execute only the chapters whose file name starts so; the pages show all of them.
        execute: with False the notebooks are rendered as they are.

    Returns:
        The path of the book's first page.

    Raises:
        RichbookError: if a chapter fails. Its notebook stays as it was.

    Example:
        >>> make_book(only="00")  # doctest: +SKIP
        PosixPath('~/richbook/build/html/index.html')
    """
    root = Path(root or find_root())
    if execute:
        execute_chapters(find_texts(root, only))
    return render(root, Path(out or root / "build" / "html"))


def execute_chapters(texts: list[Path]) -> None:
    """Execute texts one after the other and write a notebook for each, saying how long it took."""
    from richbook.course.execution import execute

    for text in texts:
        begin = time.perf_counter()
        size = write_notebook(execute(text), notebook_of(text))
        seconds = time.perf_counter() - begin
        print(f"{text.stem:<28}{seconds:7.1f} s {size / 1000:7.0f} KB", flush=True)


def render(root: Path, out: Path) -> Path:
    """Render the notebooks as they are into HTML pages that open from disk.

    Args:
        root: the checkout.
        out: the folder of the pages. An earlier book in it is replaced, other content refused.

    Raises:
        RichbookError: if `out` holds other things, or Sphinx fails or warns.
    """
    from sphinx.application import Sphinx
    from sphinx.util.console import nocolor
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    out = Path(out).resolve()
    if out.is_dir() and any(out.iterdir()) and not (out / "searchindex.js").exists():
        raise RichbookError(f"out: {out} holds other things than a book; expected an empty folder")
    source = str(Path(root) / "notebooks")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as scratch:
        reason = vendor.vendor(Path(scratch, "static", "vendor"))
        settings = vendor.settings(local=reason is None)
        settings["html_static_path"] = ["_static", str(Path(scratch, "static"))]
        pages, doctrees = str(Path(scratch, "html")), str(Path(scratch, "doctrees"))
        warnings = StringIO()
        nocolor()
        with patch_docutils(source), docutils_namespace():
            app = Sphinx(
                source, source, pages, doctrees, "html", settings, status=None, warning=warnings
            )
            app.build()
        if app.statuscode or warnings.getvalue():
            raise RichbookError(f"root: Sphinx finds fault with the book\n{warnings.getvalue()}")
        shutil.rmtree(out, ignore_errors=True)
        shutil.move(pages, out)
    if reason is None:
        print("The pages hold all they need: they work from disk, without a network.")
    else:
        print(
            f"The pages load MathJax and the widget manager from {vendor.NETWORK} ({reason}).",
            file=sys.stderr,
        )
    return out / "index.html"
