"""A slider over pictures, alive in JupyterLab and in a page without a kernel alike."""

from __future__ import annotations

import io
from collections.abc import Sequence

import ipywidgets as widgets
from matplotlib.figure import Figure
from PIL import Image

from richbook.measure import RichbookError

#: Dots per inch of a page, and the colours it is reduced to; a dozen pages fit into a notebook.
PAGE_DPI, PAGE_COLORS = 96, 256
#: Pixels an inch at which a page is shown, the usual meaning of an inch in a browser.
SCREEN_DPI = 96


def flip_book(
    figures: Sequence[Figure], labels: Sequence[object], description: str = "page", start: int = 0
) -> widgets.VBox:
    """Show one of several figures at a time, chosen by a slider.

    Args:
        figures: the pages, of one size. They are drawn once, here, and may be closed after.
        labels: what the slider says at each page.
        description: what the slider is called.
        start: the page to open at.

    Returns:
        A box with a ``SelectionSlider`` linked to a stack of images in the browser.

    Raises:
        RichbookError: no figures, another number of labels, or a page that does not exist.

    Example:
        >>> figures = [Figure(figsize=(1, 1)) for _ in range(3)]
        >>> book = flip_book(figures, [1, 10, 100], description="step", start=2)
        >>> book.children[0].value, book.children[1].selected_index
        (2, 2)
    """
    if not figures or len(figures) != len(labels):
        raise RichbookError(
            f"labels: expected one for each figure, got {len(labels)} for {len(figures)} figures"
        )
    if not 0 <= start < len(figures):
        raise RichbookError(f"start: expected a page from 0 to {len(figures) - 1}, got {start!r}")
    slider = widgets.SelectionSlider(
        options=[(str(label), page) for page, label in enumerate(labels)],
        value=start,
        description=description,
        style={"description_width": "initial"},
    )
    pages = [
        widgets.Image(
            value=_png(figure),
            format="png",
            layout={"width": f"{round(figure.get_figwidth() * SCREEN_DPI)}px", "max_width": "100%"},
        )
        for figure in figures
    ]
    stack = widgets.Stack(pages, selected_index=start)
    widgets.jslink((slider, "index"), (stack, "selected_index"))
    box = widgets.VBox([slider, stack])
    box.add_class("rb-flip-book")
    return box


def _png(figure: Figure) -> bytes:
    drawn, reduced = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=PAGE_DPI)
    Image.open(drawn).convert("RGB").quantize(PAGE_COLORS).save(reduced, "png", optimize=True)
    return reduced.getvalue()
