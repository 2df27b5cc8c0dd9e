"""Sliders and lists over the values of an axis, by position."""

from __future__ import annotations

from collections.abc import Sequence

import ipywidgets as widgets


def choice_slider(
    words: str, labels: Sequence[str], index: int, room: str = "7.5em"
) -> widgets.Widget:
    """Return a slider over the values of an axis, or a label if there is only one.

    Its words have `room` to the left of it.

    Example:
        >>> choice_slider("batch size", ["4", "16"], 1).index
        1
        >>> choice_slider("batch size", ["4"], 0).value
        'batch size 4'
    """
    return _choice(widgets.SelectionSlider, words, labels, index, room, {"width": "auto"})


def choice_list(words: str, labels: Sequence[str], index: int) -> widgets.Widget:
    """Return a list to choose from, or a label if there is only one.

    Example:
        >>> choice_list("activation", ["tanh", "relu"], 0).description
        'activation'
    """
    beside = {"width": "auto", "margin": "2px 12px 2px 0"}
    return _choice(widgets.Dropdown, words, labels, index, "initial", beside)


def _choice(
    kind: type, words: str, labels: Sequence[str], index: int, room: str, layout: dict
) -> widgets.Widget:
    if len(labels) == 1:
        return widgets.Label(f"{words} {labels[0]}")
    return kind(
        options=list(zip(labels, range(len(labels)), strict=True)),
        index=index,
        description=words,
        style={"description_width": room},
        layout=layout,
    )
