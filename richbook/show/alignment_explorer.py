"""Sliders over a recorded sweep of alignments: what decay, rate and batch size do to a layer.

Built like `richbook.show.explorer`: sliders linked in the browser to a view that carries the sweep,
alive in JupyterLab and in a page without a kernel.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files

import anywidget
import ipywidgets as widgets
import traitlets
import xarray as xr

from richbook.show.alignment_packing import (
    CHOICES,
    LISTS,
    SLIDERS,
    check_alignment_sweep,
    pack_alignment_sweep,
    start_of,
)
from richbook.show.controls import choice_list, choice_slider
from richbook.show.explorer import script
from richbook.show.selection import short_value

#: What the map can show of a layer.
SHOWN = (
    "mean of the six", "lowest of the six", "forward RGA", "forward RWA", "forward GWA",
    "backward RGA", "backward RWA", "backward GWA",
)  # fmt: skip

_HERE = files("richbook.show")


class AlignmentView(anywidget.AnyWidget):
    """The drawing: it holds the packed sweep and draws the layer that the five indices name."""

    _esm = script("alignment_explorer.js")
    _css = (_HERE / "explorer.css").read_text(encoding="utf-8")
    packed = traitlets.Bytes().tag(sync=True)
    contents = traitlets.Dict().tag(sync=True)
    axes = traitlets.List().tag(sync=True)
    weight_decay = traitlets.Int(0).tag(sync=True)
    learning_rate = traitlets.Int(0).tag(sync=True)
    batch_size = traitlets.Int(0).tag(sync=True)
    activation = traitlets.Int(0).tag(sync=True)
    layer = traitlets.Int(0).tag(sync=True)
    shown = traitlets.Int(0).tag(sync=True)


class AlignmentExplorer(widgets.VBox):
    """Sliders over a sweep of alignments; `explore_alignment` makes one.

    Attributes:
        sweep: the data it draws.
        controls: a slider or a list for each choice, by name; ``shown`` is what the map shows.
        view: the drawing.

    Example:
        >>> from richbook.experiments import load_alignment_sweep
        >>> AlignmentExplorer(load_alignment_sweep()).cell["alignment"].dims
        ('seed', 'step', 'side', 'relation')
    """

    def __init__(self, sweep: xr.Dataset, start: Mapping[str, float | str] | None = None):
        check_alignment_sweep(sweep)
        self.sweep = sweep
        at = start_of(sweep, start)
        packed, layout = pack_alignment_sweep(sweep)
        labels = {name: _labels(sweep, name) for name in CHOICES}
        axes = [{"words": _words(name), "labels": labels[name]} for name in CHOICES]
        self.view = AlignmentView(packed=packed, contents=layout, axes=axes, **at)
        self.controls = {
            name: (choice_slider if name in SLIDERS else choice_list)(
                _words(name), labels[name], at[name]
            )
            for name in CHOICES
        }
        self.controls["shown"] = choice_list("map", SHOWN, 0)
        self.links = [
            widgets.jslink((control, "index"), (self.view, name))
            for name, control in self.controls.items()
            if not isinstance(control, widgets.Label)
        ]
        lists = widgets.HBox([self.controls[name] for name in (*LISTS, "shown")])
        lists.layout = widgets.Layout(flex_flow="row wrap", overflow="visible")
        super().__init__([*(self.controls[name] for name in SLIDERS), lists, self.view])
        self.add_class("rb-explorer").add_class("rb-alignment-explorer")

    @property
    def settings(self) -> dict[str, float | int | str]:
        """The choices that make a network, ready for `alignment_sweep`; without the layer."""
        at = self._indices()
        return {name: self.sweep[name].values[at[name]].item() for name in CHOICES[:-1]}

    @property
    def cell(self) -> xr.Dataset:
        """The part of the sweep that is shown: one layer, over seed and step."""
        return self.sweep.isel(self._indices())

    def _indices(self) -> dict[str, int]:
        """Return the position of each choice; one without alternatives has a label instead."""
        return {name: getattr(self.controls[name], "index", 0) for name in CHOICES}


def explore_alignment(
    sweep: xr.Dataset, start: Mapping[str, float | str] | None = None
) -> AlignmentExplorer:
    """Show a sweep of alignments under sliders for weight decay, learning rate and batch size.

    For one layer of the network that is chosen it shows the six alignments during training, forward
    and backward, beside what chance gives; the accuracies; and a map over weight decay and learning
    rate of an alignment at the end, whose cells move the sliders. Lines are means over seeds, bands
    reach from the smallest to the largest seed.

    Args:
        sweep: what `alignment_sweep` or `load_alignment_sweep` returned. Select from it to make the
            page smaller: ``sweep.sel(activation=["tanh"])``.
        start: where the sliders stand at first, such as ``{"weight_decay": 0, "layer": 2}``;
            otherwise as near as there is to decay 0.03, rate 0.05, batch size 16, tanh, layer 3.

    Returns:
        A widget. Its `settings` are what is chosen, its `cell` the data shown.

    Raises:
        RichbookError: the sweep lacks a variable or an axis, or `start` names a choice or a value
            that it does not have.

    Example:
        >>> from richbook.experiments import load_alignment_sweep
        >>> box = explore_alignment(load_alignment_sweep(), start={"activation": "relu"})
        >>> box.settings["activation"], box.settings["batch_size"]
        ('relu', 16)
    """
    return AlignmentExplorer(sweep, start)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _labels(sweep: xr.Dataset, name: str) -> list[str]:
    """What the values of an axis are called."""
    values = sweep[name].values
    if name == "activation":
        return [str(value) for value in values]
    if name != "layer":
        return [short_value(float(value)) for value in values]
    last = json.loads(sweep.attrs.get("settings", "{}")).get("depth", -2) + 1
    return [f"{value} (head)" if value == last else str(value) for value in values.tolist()]
