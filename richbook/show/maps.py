"""Plots of one quantity over two axes: a sweep's two hyperparameters, or pairs of samples."""

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from richbook.measure.errors import RichbookError
from richbook.show.canvas import get_axes, signed_image, text_color, to_array
from richbook.show.selection import (
    axis_label,
    band,
    check_axis,
    check_drawn,
    fix,
    get_variable,
    short_value,
)
from richbook.show.style import rich_lazy_colormap

#: A kernel matrix of more samples than this is thinned before it is drawn: no figure of this size
#: has more pixels to show.
MOST_SAMPLES = 160


def plot_sweep_map(
    sweep: xr.Dataset,
    x: str = "target_scale",
    y: str = "weight_decay",
    variable: str = "d_lr",
    ax: Axes | None = None,
    **fixed: float,
) -> Axes:
    """Draw one variable of a sweep over two hyperparameters, as a map with numbers in its cells.

    A cell is the mean over the seeds that have a value. It is hatched if a seed has diverged by
    the step drawn, and has a dash if no seed has a value: all diverged, or D_LR is undefined
    because features or outputs are constant. Dark is small: for D_LR, dark is rich, and the other
    end is the isotropic floor, or the largest value if there is no floor above 0.

    Args:
        sweep: what `sweep` returned.
        x: the hyperparameter from left to right, or ``"step"``.
        y: that from bottom to top.
        variable: what the colours and numbers are.
        ax: an Axes, or None for a new figure.
        **fixed: the value of each other hyperparameter, and of ``step`` unless it is the last.

    Returns:
        The Axes.

    Raises:
        RichbookError: if the variable, an axis or a value is not in the sweep, or a
            hyperparameter is neither drawn nor fixed.

    Example:
        >>> sweep = xr.Dataset(
        ...     {"d_lr": (("weight_decay", "target_scale"), [[0.5, 0.2], [0.3, 0.1]])},
        ...     coords={"weight_decay": [0.0, 0.01], "target_scale": [0.1, 1.0]})
        >>> plot_sweep_map(sweep).get_ylabel()
        'weight decay $\\\\gamma$'
    """
    if x == y:
        raise RichbookError(f"x and y are both {x!r}; choose two axes")
    check_drawn(x, "x")
    check_drawn(y, "y")
    data = fix(get_variable(sweep, variable), (y, x), fixed)
    data = data.transpose(y, x, "seed") if "seed" in data.dims else data.transpose(y, x)
    mean = band(data)[0]
    ax = get_axes(ax)
    top = _top(sweep, variable, mean)
    image = ax.imshow(
        mean, origin="lower", aspect="auto", cmap=rich_lazy_colormap(), vmin=0, vmax=top
    )
    for (row, column), value in np.ndenumerate(mean):
        lost = _has_diverged(sweep, data, {y: row, x: column})
        if lost:
            ax.add_patch(
                Rectangle(
                    (column - 0.5, row - 0.5),
                    1,
                    1,
                    fill=False,
                    hatch="////",
                    edgecolor="#888888",
                    linewidth=0,
                )
            )
        known = np.isfinite(value)
        ax.text(
            column,
            row,
            _short(value) if known else "–",
            ha="center",
            va="center",
            fontsize=10,
            color=text_color(image.to_rgba(value)) if known else "black",
        )
    for axis, name in ((ax.xaxis, x), (ax.yaxis, y)):
        values = check_axis(sweep, name, "axis")
        axis.set_ticks(range(len(values)), [short_value(v) for v in values])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_xlabel(axis_label(x))
    ax.set_ylabel(axis_label(y))
    bar = ax.figure.colorbar(image, ax=ax, pad=0.02)
    bar.outline.set_visible(False)
    bar.set_label(axis_label(variable) + (" (dark: rich)" if variable == "d_lr" else ""))
    return ax


def _top(sweep: xr.Dataset, variable: str, mean: np.ndarray) -> float:
    """Return the value at the light end of the colours: if it can be, the same in every map."""
    if variable.endswith("accuracy"):
        return 1.0
    # The floor is 0 where the features are no more than the outputs: then it is no scale.
    if variable == "d_lr" and sweep.attrs.get("isotropic_d_lr", 0) > 0:
        return float(sweep.attrs["isotropic_d_lr"])
    return float(np.nanmax(mean, initial=1e-12))


def _has_diverged(sweep: xr.Dataset, data: xr.DataArray, cell: dict[str, int]) -> bool:
    """Say whether any seed of a cell diverged by then, as recorded or, without a record, as nan."""
    if "diverged_at" in sweep.data_vars:
        data = data.isel({axis: at for axis, at in cell.items() if axis == "step"})
        step = data.coords["step"].item() if "step" in data.coords else np.inf
        record = sweep["diverged_at"]
        record = record.isel({axis: at for axis, at in cell.items() if axis in record.dims})
        fixed = {d: data.coords[d].item() for d in record.dims if d != "seed" and d in data.coords}
        record = record.sel(fixed, method="nearest")
        return bool(((record >= 0) & (record <= step)).any())
    return bool(np.isnan(data.isel(cell).values).any())


def _short(value: float) -> str:
    """Write a value in at most about four characters: a cell has no room for more."""
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.3g}"


def plot_kernel(matrix, labels, ax: Axes | None = None) -> Axes:
    """Draw an n x n kernel matrix with its samples sorted by class.

    A rich kernel is ten blocks on a diagonal and flat inside each; a lazy one has texture inside
    the blocks.

    Args:
        matrix: kernel values of all pairs of samples, shape (n, n). Above 160 samples, evenly
            spaced ones of the sorted samples are drawn. Greys if no value is negative, else purple
            for negative and orange for positive.
        labels: the class of each sample, shape (n,).
        ax: an Axes, or None for a new figure.

    Returns:
        The Axes.

    Raises:
        RichbookError: if the shapes do not agree.

    Example:
        >>> plot_kernel(np.eye(4), [0, 1, 0, 1]).get_xlabel()
        "sample $x'$, sorted by class"
    """
    matrix = to_array(matrix, "matrix")
    labels = np.asarray(labels).ravel()
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise RichbookError(f"matrix must have shape (n, n), not {matrix.shape}")
    if len(labels) != len(matrix):
        raise RichbookError(f"labels must have n = {len(matrix)} entries, not {len(labels)}")
    order = np.argsort(labels, kind="stable")
    if len(order) > MOST_SAMPLES:
        order = order[np.linspace(0, len(order) - 1, MOST_SAMPLES).astype(int)]
    classes, starts, counts = np.unique(labels[order], return_index=True, return_counts=True)
    ax = get_axes(ax)
    image = signed_image(ax, matrix[np.ix_(order, order)])
    for start in starts[1:]:
        ax.axhline(start - 0.5, color="#777777", linewidth=0.4)
        ax.axvline(start - 0.5, color="#777777", linewidth=0.4)
    middles = starts + (counts - 1) / 2
    ax.set_xticks(middles, [str(c) for c in classes])
    ax.set_yticks(middles, [str(c) for c in classes])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_xlabel("sample $x'$, sorted by class")
    ax.set_ylabel("sample $x$, sorted by class")
    bar = ax.figure.colorbar(image, ax=ax, pad=0.02)
    bar.outline.set_visible(False)
    bar.set_label(r"kernel $K(x, x')$")
    return ax
