"""What every plot needs: an Axes to draw on, logarithmic axes that have a place for 0, labels."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator

from richbook.measure.errors import RichbookError
from richbook.show.selection import listed, short_value
from richbook.show.style import COLORS, book_style


def get_axes(ax, rows: int = 1, columns: int = 1, size: tuple[float, float] | None = None):
    """Return the Axes to draw on: the caller's own, or those of a new figure of the book's look.

    Args:
        ax: an Axes, or as many of them as the plot has panels, or None for a new figure. Only a
            new figure goes through pyplot, which is what makes Jupyter show it.
        rows: of panels.
        columns: of panels.
        size: of the new figure in inches, if not the style's.

    Returns:
        One Axes, or a list of them if there are several panels.

    Raises:
        RichbookError: if `ax` is neither None nor that many Axes.
    """
    count = rows * columns
    if ax is None:
        import matplotlib.pyplot as plt  # only here: the other path must be safe in any thread

        with book_style():
            _, made = plt.subplots(rows, columns, figsize=size, squeeze=False)
        panels = list(made.flat)
        return panels[0] if count == 1 else panels
    panels = list(ax.flat if isinstance(ax, np.ndarray) else ax) if np.iterable(ax) else [ax]
    if len(panels) != count or not all(isinstance(panel, Axes) for panel in panels):
        raise RichbookError(f"ax must be {count} matplotlib Axes or None, not {ax!r}")
    return panels[0] if count == 1 else panels


def log_positions(values: Sequence[float]) -> np.ndarray:
    """Return where to draw the values on a logarithmic axis that has a place for 0.

    Args:
        values: of one hyperparameter, ascending, none negative.

    Returns:
        log10 of each value; a 0 sits as far below the smallest positive value as the values are
        apart on average.

    Raises:
        RichbookError: if a value is negative or not finite, or they do not ascend.

    Example:
        >>> log_positions([0.0, 0.001, 0.01, 0.1])
        array([-4., -3., -2., -1.])
    """
    values = np.asarray(values, dtype=float)
    if not len(values) or not np.isfinite(values).all() or (values < 0).any():
        raise RichbookError(f"values must be finite and not negative, not {values}")
    if (np.diff(values) <= 0).any():
        raise RichbookError(
            f"values must be ascending, not {listed(values)}; xarray's sortby puts them in order"
        )
    positive = values[values > 0]
    if not len(positive):
        return np.zeros(len(values))
    logs = np.log10(positive)
    gap = (logs[-1] - logs[0]) / (len(logs) - 1) if len(logs) > 1 else 1.0
    return np.concatenate([np.full(len(values) - len(positive), logs[0] - gap), logs])


def set_hyperparameter_ticks(axis, values: Sequence[float], positions: Sequence[float]) -> None:
    """Put a tick at each value of the sweep, labelled with the value itself."""
    axis.set_ticks(list(positions), [short_value(v) for v in values])


def set_step_axis(ax: Axes, steps: Sequence[float]) -> None:
    """Make the x axis a logarithmic axis of training steps that has a place for step 0."""
    steps = np.asarray(steps, dtype=float)
    if steps.min() < 1:
        ax.set_xscale("symlog", linthresh=1, linscale=0.4)
    else:
        ax.set_xscale("log")
    decades = [10.0**i for i in range(7) if steps.min() <= 10.0**i <= steps.max()]
    ticks = ([0.0] if steps.min() < 1 else []) + decades
    ticks = ticks or sorted({steps.min(), steps.max()})
    ax.set_xticks(ticks, [f"{int(t)}" for t in ticks])
    ax.minorticks_off()
    # A single recorded step would leave no range at all.
    first = 0.0 if steps.min() < 1 else min(steps.min(), steps.max() / 1.1)
    ax.set_xlim(first, max(steps.max(), 1.0) * 1.02)


def set_log_values(ax: Axes, low: float, high: float) -> None:
    """Make the y axis logarithmic with plain numbers, and at least two of them, on it."""
    ax.set_yscale("log")
    subs = (1.0,) if high / low > 50 else (1.0, 2.0, 5.0)
    ax.yaxis.set_major_locator(LogLocator(subs=subs, numticks=7))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.minorticks_off()
    ax.set_ylim(low / 1.3, high * 1.3)


def draw_band(ax: Axes, x, mean_low_high, color: str, **line) -> None:
    """Draw the mean over seeds as a line and smallest to largest as a band behind it."""
    mean, low, high = mean_low_high
    if len(mean) == 1:  # a line through one point, and a band at it, cannot be seen
        line = {"marker": "o"} | line
        ax.vlines(x, low, high, color=color, alpha=0.22, linewidth=6)
    if np.nanmax(np.nan_to_num(high - low), initial=0.0) > 0:
        ax.fill_between(x, low, high, color=color, alpha=0.22, linewidth=0)
    ax.plot(x, mean, color=color, **line)


def draw_floor(ax: Axes, floor: float | None, label: str = "isotropic floor") -> None:
    """Draw the D_LR of an isotropic kernel as a thin line with its value written on it."""
    if floor is None or not np.isfinite(floor):
        return
    ax.axhline(floor, color=COLORS["floor"], linewidth=0.8, zorder=1)
    ax.annotate(
        f"{label} {floor:.3g}",
        (0, floor),
        xycoords=("axes fraction", "data"),
        xytext=(4, 3),
        textcoords="offset points",
        fontsize=9,
        color="#555555",
        va="bottom",
    )


def label_ends(ax: Axes, ends: list[tuple[float, float, str, object]], size: float = 10) -> None:
    """Write the name of each line at its right end, pushed apart where they would overlap.

    Args:
        ax: whose limits are final.
        ends: for each line its last x and y, its name and its colour. Lines that end in nan get no
            label.
        size: of the text, in points.
    """
    ends = sorted((e for e in ends if np.isfinite(e[1])), key=lambda e: e[1])
    if not ends:
        return
    points = 72 / ax.figure.dpi
    heights = [ax.transData.transform((x, y))[1] * points for x, y, _, _ in ends]
    bottom, top = (edge * points for edge in ax.get_window_extent().intervaly)
    placed = spread(heights, 1.15 * size, bottom + size / 2, top)
    for (x, y, text, color), height, place in zip(ends, heights, placed, strict=True):
        ax.annotate(
            text,
            (x, y),
            xytext=(6, place - height),
            textcoords="offset points",
            va="center",
            fontsize=size,
            color=color,
            annotation_clip=False,
        )


def spread(heights: Sequence[float], gap: float, bottom: float, top: float) -> list[float]:
    """Move sorted heights as little as it takes to be `gap` apart and, if they fit, in bounds.

    Example:
        >>> spread([0.0, 1.0, 9.0], gap=2.0, bottom=0.0, top=10.0)
        [0.0, 2.0, 9.0]
    """
    placed = []
    for height in heights:
        placed.append(max(height, placed[-1] + gap if placed else bottom))
    limit = top
    for i in reversed(range(len(placed))):
        placed[i] = min(placed[i], limit)
        limit = placed[i] - gap
    return placed


def to_array(values, argument: str) -> np.ndarray:
    """Return tensors, arrays and lists alike as a float64 array.

    Raises:
        RichbookError: if it is not made of numbers.
    """
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise RichbookError(f"{argument} must be an array of numbers: {error}") from error


def signed_image(ax: Axes, values: np.ndarray, aspect: str = "equal"):
    """Show an array as greys if none of it is negative, else with white at 0 and a hue a sign."""
    if np.nanmin(values) >= 0:
        return ax.imshow(values, cmap="Greys", aspect=aspect, interpolation="nearest", vmin=0)
    most = np.nanmax(np.abs(values))
    return ax.imshow(
        values, cmap="PuOr_r", aspect=aspect, interpolation="nearest", vmin=-most, vmax=most
    )


def text_color(background) -> str:
    """Return black or white, whichever is easier to read on an RGBA colour.

    Example:
        >>> text_color((1.0, 1.0, 0.0, 1.0))
        'black'
    """
    red, green, blue = background[:3]
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
