"""Plots of one quantity along one axis: training steps, or one hyperparameter of a sweep."""

from collections.abc import Sequence

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from richbook.measure.errors import RichbookError
from richbook.show.canvas import (
    draw_band,
    draw_floor,
    get_axes,
    label_ends,
    log_positions,
    set_hyperparameter_ticks,
    set_log_values,
    set_step_axis,
)
from richbook.show.selection import (
    AXIS_LABELS,
    SYMBOLS,
    axis_label,
    band,
    check_axis,
    check_drawn,
    fix,
    get_variable,
    listed,
    short_value,
)
from richbook.show.style import COLORS, LINE_STYLES, sequence_colors

#: D_LR and the baselines it is compared with, in the order of the book's table.
COMPARED = ("d_lr", "s_init", "parameter_norm", "nc1")


def plot_history(data: xr.Dataset, ax: Sequence[Axes] | None = None, **fixed: float) -> list[Axes]:
    """Draw D_LR and the accuracies during training.

    The left panel has D_LR with the isotropic floor as a thin line, the right one the accuracy on
    training (solid) and test samples (dashed). With an axis `seed`, lines are means and bands
    reach from the smallest to the largest seed.

    Args:
        data: the history of one training, or a sweep.
        ax: two Axes, or None for a new figure.
        **fixed: for a sweep, the value of each hyperparameter, such as ``target_scale=1.0``.

    Returns:
        The two Axes.

    Raises:
        RichbookError: if a variable is missing, or a hyperparameter is left open or has no such
            value in the sweep.

    Example:
        >>> steps = [1, 10, 100]
        >>> run = xr.Dataset(
        ...     {name: ("step", [0.6, 0.3, 0.1])
        ...      for name in ("d_lr", "train_accuracy", "test_accuracy")},
        ...     coords={"step": steps}, attrs={"isotropic_d_lr": 0.6})
        >>> [axes.get_ylabel() for axes in plot_history(run)]
        ['$D_{\\\\mathrm{LR}}$', 'accuracy (fraction correct)']
    """
    series = {
        name: fix(get_variable(data, name), ("step",), fixed)
        for name in ("d_lr", "train_accuracy", "test_accuracy")
    }
    steps = check_axis(data, "step", "axis")
    left, right = get_axes(ax, 1, 2)
    draw_band(left, steps, band(series["d_lr"]), COLORS["d_lr"])
    draw_floor(left, data.attrs.get("isotropic_d_lr"))
    left.set_ylim(0, max(0.65, 1.08 * np.nanmax(band(series["d_lr"])[2], initial=0.0)))
    left.set_ylabel(AXIS_LABELS["d_lr"])
    ends = []
    for part in ("train", "test"):
        values = band(series[f"{part}_accuracy"])
        draw_band(right, steps, values, COLORS["accuracy"], linestyle=LINE_STYLES[part])
        ends.append((steps[-1], values[0][-1], part, COLORS["accuracy"]))
    right.set_ylim(0, 1.03)
    right.set_ylabel("accuracy (fraction correct)")
    for panel in (left, right):
        set_step_axis(panel, steps)
        panel.set_xlabel(AXIS_LABELS["step"])
    label_ends(right, ends)
    return [left, right]


def plot_sweep_lines(
    sweep: xr.Dataset,
    x: str = "target_scale",
    y: str = "d_lr",
    hue: str | None = None,
    ax: Axes | None = None,
    **fixed: float,
) -> Axes:
    """Draw one variable of a sweep against one hyperparameter, at fixed values of the others.

    The line is the mean over seeds, the band reaches from the smallest to the largest. Runs that
    diverged are left out.

    Args:
        sweep: what `sweep` returned.
        x: the hyperparameter on the x axis, or ``"step"``.
        y: the variable.
        hue: a second hyperparameter: one line for each of its values, named at its end.
        ax: an Axes, or None for a new figure.
        **fixed: the value of each other hyperparameter, such as ``learning_rate=0.01``, and of
            ``step`` unless it is the last.

    Returns:
        The Axes.

    Raises:
        RichbookError: if the variable, an axis or a value is not in the sweep, or a
            hyperparameter is neither drawn nor fixed.

    Example:
        >>> sweep = xr.Dataset(
        ...     {"d_lr": (("target_scale", "seed"), [[0.3, 0.4], [0.1, 0.1]])},
        ...     coords={"target_scale": [0.1, 1.0], "seed": [0, 1]})
        >>> plot_sweep_lines(sweep).get_xlabel()
        'target scale $s$'
    """
    if hue is not None and hue == x:
        raise RichbookError(f"hue={hue!r} is also the x axis; choose another")
    check_drawn(x, "x")
    check_drawn(hue, "hue")
    keep = (x,) if hue is None else (x, hue)
    values = fix(get_variable(sweep, y, "y"), keep, fixed)
    points = check_axis(sweep, x, "x")
    ax = get_axes(ax)
    positions = points if x == "step" else log_positions(points)
    ends = _draw_lines(
        ax,
        values,
        positions,
        hue,
        COLORS.get(y, COLORS["accuracy"]),
        {} if x == "step" else {"marker": "o"},
    )
    if x == "step":
        set_step_axis(ax, points)
    else:
        set_hyperparameter_ticks(ax.xaxis, points, positions)
    if y == "d_lr":
        draw_floor(ax, sweep.attrs.get("isotropic_d_lr"))
        ax.set_ylim(bottom=0)
    elif y.endswith("accuracy"):
        ax.set_ylim(0, 1.03)
    ax.set_xlabel(axis_label(x))
    ax.set_ylabel(axis_label(y))
    label_ends(ax, ends)
    return ax


def _draw_lines(ax, values, positions, hue, color, line) -> list:
    """Draw one line, or one for each value of `hue`; return the labels of their ends."""
    if hue is None:
        draw_band(ax, positions, band(values), color, **line)
        return []
    ends = []
    names = values[hue].values
    for name, shade in zip(names, sequence_colors(len(names)), strict=True):
        lines = band(values.sel({hue: name}))
        draw_band(ax, positions, lines, shade, **line)
        last = np.flatnonzero(np.isfinite(lines[0]))
        if len(last):
            text = f"${SYMBOLS.get(hue, hue)}$ = {short_value(name)}"
            ends.append((positions[last[-1]], lines[0][last[-1]], text, shade))
    return ends


def plot_comparison(
    sweep: xr.Dataset,
    axis: str = "weight_decay",
    ax: Sequence[Axes] | None = None,
    **fixed: float,
) -> list[Axes]:
    """Draw D_LR beside the measures it is compared with, against one hyperparameter.

    Four small panels: D_LR, S_init, the squared parameter norm and NC1, each with the band of its
    seeds. The last two have a logarithmic y axis, since they multiply.

    Args:
        sweep: what `sweep` returned.
        axis: the hyperparameter on the x axes.
        ax: four Axes, or None for a new figure.
        **fixed: the value of each other hyperparameter, and of ``step`` unless it is the last.

    Returns:
        The four Axes.

    Raises:
        RichbookError: if a measure, an axis or a value is not in the sweep, or a hyperparameter is
            neither drawn nor fixed.

    Example:
        >>> sweep = xr.Dataset(
        ...     {name: ("weight_decay", [0.3, 0.1]) for name in COMPARED},
        ...     coords={"weight_decay": [0.0, 0.01]})
        >>> len(plot_comparison(sweep))
        4
    """
    missing = [name for name in COMPARED if name not in sweep.data_vars]
    if missing:
        raise RichbookError(f"the sweep lacks {listed(missing)}; it has: {listed(sweep.data_vars)}")
    check_drawn(axis, "axis")
    values = {name: fix(sweep[name], (axis,), fixed) for name in COMPARED}
    points = check_axis(sweep, axis, "axis")
    positions = log_positions(points)
    panels = get_axes(ax, 2, 2, size=(6.4, 4.2))
    for panel, name in zip(panels, COMPARED, strict=True):
        draw_band(panel, positions, band(values[name]), COLORS[name], marker="o")
        set_hyperparameter_ticks(panel.xaxis, points, positions)
        panel.tick_params(labelsize=9)
        panel.set_ylabel(AXIS_LABELS[name])
        known = values[name].values[np.isfinite(values[name].values)]  # none if all diverged
        if name in ("parameter_norm", "nc1") and len(known) and known.min() > 0:
            set_log_values(panel, known.min(), known.max())
        else:
            panel.set_ylim(bottom=0)
    floor = sweep.attrs.get("isotropic_d_lr")
    if floor is not None:
        panels[0].set_ylim(top=1.15 * max(floor, panels[0].get_ylim()[1] / 1.15))
    draw_floor(panels[0], floor)
    for panel in panels[2:]:
        panel.set_xlabel(AXIS_LABELS.get(axis, axis))
    return panels
