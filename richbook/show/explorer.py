"""Sliders over a recorded sweep: three hyperparameters, and what each setting led to.

The sliders are ipywidgets; a small view written in JavaScript draws the sweep that it carries in
its own state. The two are linked in the browser, so that the same object works in JupyterLab and
in a page that has no kernel. Python reads the sliders, which a hand, the map and code all move; it
never moves the view after them, for its late answer could undo what a hand has done since.
"""

from collections.abc import Mapping
from importlib.resources import files

import anywidget
import ipywidgets as widgets
import numpy as np
import traitlets
import xarray as xr

from richbook.measure.errors import RichbookError
from richbook.show.packing import check_sweep, describe_sweep, pack_sweep
from richbook.show.selection import HYPERPARAMETERS, WORDS, index_of, listed, short_value

#: Where the sliders start, or the nearest there is: the book's standard digits network.
START = {"weight_decay": 1e-2, "target_scale": 1.0, "learning_rate": 1e-2}

_HERE = files("richbook.show")


def script(name: str) -> str:
    """The script of a view, after what all of them share."""
    return "".join((_HERE / part).read_text(encoding="utf-8") for part in ("drawing.js", name))


class SweepView(anywidget.AnyWidget):
    """The drawing: it holds the packed sweep and draws the cell that the three indices name."""

    _esm = script("explorer.js")
    _css = (_HERE / "explorer.css").read_text(encoding="utf-8")
    packed = traitlets.Bytes().tag(sync=True)
    contents = traitlets.Dict().tag(sync=True)
    axes = traitlets.List().tag(sync=True)
    readouts = traitlets.List().tag(sync=True)
    weight_decay = traitlets.Int(0).tag(sync=True)
    target_scale = traitlets.Int(0).tag(sync=True)
    learning_rate = traitlets.Int(0).tag(sync=True)


class Explorer(widgets.VBox):
    """Sliders over a recorded sweep; `explore` makes one.

    Attributes:
        sweep: the data it draws.
        sliders: one for each hyperparameter, by name.
        view: the drawing.

    Example:
        >>> from richbook.experiments import load_sweep
        >>> Explorer(load_sweep("digits")).cell["d_lr"].dims
        ('seed', 'step')
    """

    def __init__(self, sweep: xr.Dataset, start: Mapping[str, float] | None = None):
        check_sweep(sweep)
        self.sweep = sweep
        at = start_indices(sweep, start)
        packed, layout = pack_sweep(sweep)
        axes = [
            {"words": WORDS[name], "labels": [short_value(v) for v in sweep[name].values]}
            for name in HYPERPARAMETERS
        ]
        self.view = SweepView(
            packed=packed, contents=layout, axes=axes, readouts=describe_sweep(sweep), **at
        )
        self.sliders = {name: _slider(sweep, name, at[name]) for name in HYPERPARAMETERS}
        self.links = [
            widgets.jslink((slider, "index"), (self.view, name))
            for name, slider in self.sliders.items()
            if isinstance(slider, widgets.SelectionSlider)
        ]
        super().__init__([*self.sliders.values(), self.view])
        self.add_class("rb-explorer")

    @property
    def settings(self) -> dict[str, float]:
        """The three hyperparameters that the sliders stand at, ready for `TrainingSettings`."""
        return {name: float(self.sweep[name].values[at]) for name, at in self._indices().items()}

    @property
    def cell(self) -> xr.Dataset:
        """The part of the sweep that the sliders stand at, over seed and step."""
        return self.sweep.isel(self._indices())

    def _indices(self) -> dict[str, int]:
        """Return the position of each slider; an axis with one value has a label instead."""
        return {name: getattr(slider, "index", 0) for name, slider in self.sliders.items()}


def explore(sweep: xr.Dataset, start: Mapping[str, float] | None = None) -> Explorer:
    """Show a recorded sweep under three sliders: weight decay, target scale, learning rate.

    For the setting at which the sliders stand it shows D_LR and the accuracies during training,
    the cumulative utilisation at the end, and a map of the final D_LR, whose cells move the
    sliders. Lines are means over seeds and bands reach from the smallest to the largest seed.

    Args:
        sweep: what `sweep` or `load_sweep` returned.
        start: where the sliders stand at first, such as ``{"target_scale": 0.1}``; otherwise as
            near as there is to decay 0.01, scale 1 and rate 0.01.

    Returns:
        A widget. Its `settings` are where the sliders stand, its `cell` the data shown.

    Raises:
        RichbookError: if the sweep lacks a variable or an axis, or `start` names a hyperparameter
            or value that it does not have.

    Example:
        >>> from richbook.experiments import load_sweep
        >>> explore(load_sweep("digits"), start={"target_scale": 0.1}).settings["target_scale"]
        0.1
    """
    return Explorer(sweep, start)


def start_indices(sweep: xr.Dataset, start: Mapping[str, float] | None) -> dict[str, int]:
    """Return the position of each slider: exactly where `start` says, else near the standard."""
    if start is not None and not isinstance(start, Mapping):
        raise RichbookError(f"start must be a dict from hyperparameter to value, not {start!r}")
    start = dict(start or {})
    unknown = set(start) - set(HYPERPARAMETERS)
    if unknown:
        raise RichbookError(
            f"start has no use for {listed(sorted(unknown))}; it may have: "
            f"{listed(HYPERPARAMETERS)}"
        )
    return {
        name: index_of(sweep, name, start[name])
        if name in start
        else int(np.argmin(np.abs(np.log10(sweep[name].values + 1e-9) - np.log10(START[name]))))
        for name in HYPERPARAMETERS
    }


def _slider(sweep: xr.Dataset, name: str, index: int) -> widgets.Widget:
    """Return a slider over an axis, or the value in words if there is only one."""
    values = [float(value) for value in sweep[name].values]
    if len(values) == 1:
        return widgets.Label(f"{WORDS[name]} {short_value(values[0])}")
    return widgets.SelectionSlider(
        options=[(short_value(value), value) for value in values],
        index=index,
        description=WORDS[name],
        style={"description_width": "7.5em"},
        layout={"width": "auto"},
    )
