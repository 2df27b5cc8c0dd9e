"""Sliders over a recipe's result: one over its settings, one over the recorded steps.

Built like `richbook.show.explorer`: sliders linked in the browser to a view that carries the
result, alive in JupyterLab and in a page without a kernel. The view has a button that plays the
steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files

import anywidget
import ipywidgets as widgets
import numpy as np
import traitlets
import xarray as xr

from richbook.measure.errors import RichbookError
from richbook.show.controls import choice_slider
from richbook.show.explorer import script
from richbook.show.result_choice import choose, result_axis
from richbook.show.result_packing import pack_result
from richbook.show.result_words import is_numeric, value_labels
from richbook.show.selection import index_of, listed

#: Room for the words of a slider, the longest of which is a shuffled fraction.
ROOM = "8.5em"

_HERE = files("richbook.show")


def styles(*names: str) -> str:
    """The style sheet that all drawings share, and those named."""
    return "".join((_HERE / n).read_text(encoding="utf-8") for n in ("explorer.css", *names))


class ResultView(anywidget.AnyWidget):
    """The drawing: it holds the packed result and draws the setting and step that are chosen."""

    _esm = script("result_explorer.js")
    _css = styles("result_explorer.css")
    packed = traitlets.Bytes().tag(sync=True)
    contents = traitlets.Dict().tag(sync=True)
    setting = traitlets.Int(0).tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)


class ResultExplorer(widgets.VBox):
    """Sliders over a recipe's result; `explore_result` makes one.

    Attributes:
        result: the data it draws.
        sliders: over the settings and over ``step``, by the names of these axes.
        view: the drawing.

    Example:
        >>> from richbook.experiments import load_result
        >>> ResultExplorer(load_result("learning-rate")).cell["d_lr"].dims
        ('seed',)
    """

    def __init__(
        self,
        result: xr.Dataset,
        start: Mapping[str, float | str] | None = None,
        **shown: str | Sequence[str] | None,
    ):
        self.axis = result_axis(result)
        self.result = result
        packed, contents = pack_result(result, choose(result, **shown))
        at = start_of(result, start)
        self.view = ResultView(
            packed=packed, contents=contents, setting=at[self.axis], step=at["step"]
        )
        steps = [f"{step}" for step in contents["steps"]]
        self.sliders = {
            self.axis: choice_slider(
                contents["axis"]["words"], contents["axis"]["labels"], at[self.axis], ROOM
            ),
            "step": choice_slider("training step", steps, at["step"], ROOM),
        }
        self.links = [
            widgets.jslink((slider, "index"), (self.view, trait))
            for slider, trait in zip(self.sliders.values(), ("setting", "step"), strict=True)
            if isinstance(slider, widgets.SelectionSlider)
        ]
        super().__init__([*self.sliders.values(), self.view])
        self.add_class("rb-explorer").add_class("rb-result-explorer")

    @property
    def settings(self) -> dict[str, float | int | str]:
        """Where the sliders stand: the setting's value, and the step."""
        return {name: self.result[name].values[at].item() for name, at in self._indices().items()}

    @property
    def cell(self) -> xr.Dataset:
        """The part of the result that the sliders stand at, over seeds."""
        return self.result.isel(self._indices())

    def _indices(self) -> dict[str, int]:
        """Return the position of each slider; an axis with one value has a label instead."""
        return {name: getattr(slider, "index", 0) for name, slider in self.sliders.items()}


def explore_result(
    result: xr.Dataset,
    start: Mapping[str, float | str] | None = None,
    measure: str = "d_lr",
    accuracies: Sequence[str] | None = None,
    curves: Sequence[str] | None = None,
    numbers: Sequence[str] | None = None,
) -> ResultExplorer:
    """Show the result of a recipe under two sliders: its settings, and the steps of training.

    For the setting and the step that are chosen it shows D_LR and the accuracies during training
    with the step marked, the spectrum of the feature kernel, its cumulative curves, a table of
    numbers, and for all settings D_LR against test accuracy at the end. Lines are means over seeds,
    bands reach from the smallest to the largest seed. What a result lacks is left out.

    Args:
        result: what `load_result` or `reproduce` returned.
        start: where the sliders stand at first, such as ``{"learning_rate": 0.05, "step": 0}``;
            a step is rounded to the nearest recorded one. Otherwise the first setting, last step.
        measure: the variable drawn against steps, and at the end against test accuracy.
        accuracies: variables drawn together against steps, those of test samples dashed; the first
            of these is in the last panel. Otherwise all that there are.
        curves: variables over the eigenfunctions, each between 0 and 1; otherwise utilisation and
            quality.
        numbers: variables in the table; otherwise the measure and up to ten more.

    Returns:
        A widget. Its `settings` are where the sliders stand, its `cell` the data shown.

    Raises:
        RichbookError: the data is no recipe's result; a variable is missing or has other axes; or
            `start` names an axis or a value that there is not.

    Example:
        >>> from richbook.experiments import load_result
        >>> box = explore_result(load_result("learning-rate"), {"learning_rate": 0.05, "step": 100})
        >>> box.settings
        {'learning_rate': 0.05, 'step': 98}
    """
    return ResultExplorer(
        result, start, measure=measure, accuracies=accuracies, curves=curves, numbers=numbers
    )


def start_of(result: xr.Dataset, start: Mapping[str, float | str] | None) -> dict[str, int]:
    """Return the position of either slider: where `start` says, else first setting and last step.

    Raises:
        RichbookError: `start` is not a dict, or names an axis or value that the result lacks.

    Example:
        >>> from richbook.experiments import load_result
        >>> start_of(load_result("batch-norm"), {"network": "with"})
        {'network': 2, 'step': 14}
    """
    axis, steps = result_axis(result), result["step"].values
    if start is not None and not isinstance(start, Mapping):
        raise RichbookError(f"start must be a dict from axis to value, not {start!r}")
    at = {axis: 0, "step": len(steps) - 1}
    for name, value in dict(start or {}).items():
        if name not in at:
            raise RichbookError(f"start has no use for {name}; it may have: {listed(at)}")
        at[name] = _nearest(steps, value) if name == "step" else _position(result, axis, value)
    return at


def _nearest(steps: np.ndarray, value: float | str) -> int:
    if not isinstance(value, (int, float, np.number)) or not steps[0] <= value <= steps[-1]:
        raise RichbookError(
            f"step={value!r} is not in the data; its steps go from {steps[0]} to {steps[-1]}"
        )
    return int(np.argmin(np.abs(steps - value)))


def _position(result: xr.Dataset, axis: str, value: float | str) -> int:
    values = result[axis].values
    if is_numeric(values):
        return index_of(result, axis, value)
    labels = value_labels(values)
    if value not in labels:
        raise RichbookError(f"{axis}={value!r} is not in the data; it has: {listed(labels)}")
    return labels.index(value)
