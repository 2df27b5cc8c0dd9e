"""The flip book: pages in order, linked in the browser, small."""

import io

import pytest
from matplotlib.figure import Figure
from PIL import Image

from richbook.measure import RichbookError
from richbook.show import flip_book


def figures(count):
    pages = [Figure(figsize=(2, 1)) for _ in range(count)]
    for number, page in enumerate(pages):
        page.subplots().plot([0, number])
    return pages


def test_pages_are_pictures_of_the_figures_in_order():
    book = flip_book(figures(3), ["a", "b", "c"], start=1)
    slider, stack = book.children
    assert [label for label, _ in slider.options] == ["a", "b", "c"]
    assert (slider.index, stack.selected_index) == (1, 1)
    pages = [Image.open(io.BytesIO(page.value)) for page in stack.children]
    assert len({page.tobytes() for page in pages}) == 3
    assert all(page.size == (192, 96) for page in pages)


def test_linked_in_the_browser_and_not_in_the_kernel():
    """A jslink moves the page where there is no kernel; Python alone does not move it."""
    book = flip_book(figures(2), [1, 2])
    slider, stack = book.children
    slider.index = 1
    assert stack.selected_index == 0


@pytest.mark.parametrize(
    "arguments, message",
    [
        (([], []), "labels: expected one for each figure"),
        ((figures(2), [1]), "got 1 for 2 figures"),
        ((figures(2), [1, 2], "page", 2), "start: expected a page from 0 to 1"),
    ],
)
def test_bad_input_names_the_argument(arguments, message):
    with pytest.raises(RichbookError, match=message):
        flip_book(*arguments)
