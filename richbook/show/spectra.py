"""Plots of a kernel's spectrum: eigenvalues, what the outputs use of them, the eigenfunctions."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from richbook.measure.errors import RichbookError
from richbook.show.canvas import draw_band, get_axes, label_ends, signed_image, text_color, to_array
from richbook.show.selection import AXIS_LABELS
from richbook.show.style import COLORS, sequence_colors

#: Relative eigenvalues below this are rounding noise of float64 and are not drawn.
SMALLEST = 1e-13


def plot_utilization(
    curves,
    labels: Sequence[str] | None = None,
    rank: int | None = None,
    log: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """Draw cumulative utilization: how much of the outputs the first k eigenfunctions carry.

    A rich kernel reaches 1 at the rank of its outputs, which `rank` marks; a lazy one gets there
    late.

    Args:
        curves: one curve of shape (p,), or several: a list of them, or a dict from label to curve.
            A curve of shape (seeds, p) becomes a mean with the band of its seeds.
        labels: one for each curve.
        rank: of the outputs, drawn as a thin vertical line.
        log: whether k has a logarithmic axis.
        ax: an Axes, or None for a new figure.

    Returns:
        The Axes.

    Raises:
        RichbookError: if a curve has another shape, or there are not as many labels as curves.

    Example:
        >>> plot_utilization({"rich": [0.5, 1, 1], "lazy": [0.1, 0.3, 1]}, rank=2).get_ylabel()
        'cumulative utilization $\\\\hat\\\\Pi(k)$'
    """
    curves, labels = _as_curves(curves, labels, "curves")
    ax = get_axes(ax)
    colors = sequence_colors(len(curves)) if len(curves) > 1 else [COLORS["utilization"]]
    for curve, label, color in zip(curves, labels, colors, strict=True):
        lines = curve.mean(0), curve.min(0), curve.max(0)
        draw_band(ax, np.arange(1, curve.shape[1] + 1), lines, color, label=label)
    _count_axis(ax, max(curve.shape[1] for curve in curves), log)
    ax.set_ylim(0, 1.03)
    _mark_rank(ax, rank)
    ax.set_ylabel(AXIS_LABELS["utilization"])
    if any(labels):
        # All curves end at 1, so names at the ends would pile up; the corner below is free.
        ax.legend(loc="lower right", labelcolor="linecolor", frameon=False)
    return ax


def plot_spectrum(
    eigenvalues,
    labels: Sequence[str] | None = None,
    rank: int | None = None,
    log: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """Draw relative eigenvalues rho_k / rho_1 on a logarithmic axis.

    Args:
        eigenvalues: one spectrum of shape (p,), largest first, or several: a list, or a dict from
            label to spectrum.
        labels: one for each spectrum, written at its end.
        rank: of the outputs, drawn as a thin vertical line.
        log: whether k has a logarithmic axis.
        ax: an Axes, or None for a new figure.

    Returns:
        The Axes. Eigenvalues below 1e-13 of the first are rounding and are left out.

    Raises:
        RichbookError: if a spectrum has another shape or a first eigenvalue that is not positive,
            or there are not as many labels as spectra.

    Example:
        >>> plot_spectrum([4.0, 2.0, 1.0]).get_yscale()
        'log'
    """
    spectra, labels = _as_curves(eigenvalues, labels, "eigenvalues")
    ax = get_axes(ax)
    ends = []
    colors = sequence_colors(len(spectra)) if len(spectra) > 1 else [COLORS["utilization"]]
    for spectrum, label, color in zip(spectra, labels, colors, strict=True):
        if not (spectrum[:, 0] > 0).all():
            raise RichbookError("eigenvalues must start with the largest, which must be positive")
        relative = spectrum / spectrum[:, :1]
        relative = np.where(relative > SMALLEST, relative, np.nan)
        lines = relative.mean(0), relative.min(0), relative.max(0)
        draw_band(ax, np.arange(1, spectrum.shape[1] + 1), lines, color, marker="o", markersize=2.5)
        last = int(np.flatnonzero(np.isfinite(lines[0]))[-1])
        ends.append((last + 1, lines[0][last], label, color))
    ax.set_yscale("log")
    _count_axis(ax, max(spectrum.shape[1] for spectrum in spectra), log)
    _mark_rank(ax, rank)
    ax.set_ylabel(r"relative eigenvalue $\rho_k / \rho_1$")
    label_ends(ax, [end for end in ends if end[2]])
    return ax


def plot_eigenfunctions(
    values,
    labels=None,
    images=None,
    count: int = 5,
    ax: Axes | None = None,
) -> Axes:
    """Draw the first few eigenfunctions so that one sees what they respond to.

    With `images`, a row for each eigenfunction: the four images on which it is most negative, and
    the four on which it is most positive. With `labels`, a row for each eigenfunction and a column
    for each class: its mean there, and at the end of the row the share of its variance that lies
    between the classes (1 if it is the same on all samples of a class).

    The sign of an eigenfunction means nothing; it is chosen so that the largest part is positive.

    Args:
        values: of the eigenfunctions at the samples, shape (n, p), as
            `FeatureKernel.eigenfunctions` returns them.
        labels: the class of each sample, shape (n,).
        images: one for each sample, shape (n, height, width).
        count: how many eigenfunctions to draw.
        ax: an Axes, or None for a new figure.

    Returns:
        The Axes.

    Raises:
        RichbookError: if neither or both of `labels` and `images` are given, or shapes disagree.

    Example:
        >>> axes = plot_eigenfunctions([[1.0, 1.0], [1.0, -1.0]], labels=[0, 1])
        >>> axes.get_xlabel()
        'class'
    """
    values = to_array(values, "values")
    if values.ndim != 2:
        raise RichbookError(f"values must have shape (n, p), not {values.shape}")
    if (labels is None) == (images is None):
        raise RichbookError("give either labels or images, to say what a column is")
    count = min(count, values.shape[1])
    values = values[:, :count]
    values = values * np.where(values.max(0) >= -values.min(0), 1.0, -1.0)
    other = np.asarray(labels).ravel() if images is None else to_array(images, "images")
    name = "labels" if images is None else "images"
    if len(other) != len(values):
        raise RichbookError(f"{name} must have n = {len(values)} entries, not {len(other)}")
    if images is not None and other.ndim != 3:
        raise RichbookError(f"images must have shape (n, height, width), not {other.shape}")
    ax = get_axes(ax)
    draw = _draw_class_means if images is None else _draw_extreme_images
    draw(ax, values, other)
    ax.set_yticks(ax.get_yticks(), [f"$e_{{{k + 1}}}$" for k in range(count)])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_ylabel("eigenfunction")
    return ax


def _draw_class_means(ax: Axes, values: np.ndarray, labels: np.ndarray) -> None:
    """Draw the class means of each eigenfunction, with the share of variance they explain."""
    classes, index, counts = np.unique(labels, return_inverse=True, return_counts=True)
    means = np.stack([values[index == c].mean(0) for c in range(len(classes))])  # (C, count)
    between = (counts[:, None] * (means - values.mean(0)) ** 2).sum(0) / len(values)
    image = signed_image(ax, means.T, aspect="auto")
    for (k, column), value in np.ndenumerate(means.T):
        ax.text(column, k, f"{round(value, 1) + 0.0:.1f}", ha="center", va="center", fontsize=10,
                color=text_color(image.to_rgba(value)))
    for k, share in enumerate(between / np.maximum(values.var(0), 1e-300)):
        text = f"{share:.2f}" if values[:, k].std() > 1e-6 else "constant"
        ax.annotate(text, (1, k), xycoords=("axes fraction", "data"), xytext=(8, 0),
                    textcoords="offset points", va="center", fontsize=10)
    ax.annotate("share between\nclasses", (1, 1), xycoords="axes fraction", xytext=(8, 4),
                textcoords="offset points", va="bottom", fontsize=9)
    ax.set_xticks(range(len(classes)), [str(c) for c in classes])
    ax.set_yticks(range(values.shape[1]))
    ax.set_xlabel("class")
    ax.set_title("mean of $e_k$ on each class", fontsize=10.5)


def _draw_extreme_images(ax: Axes, values: np.ndarray, images: np.ndarray, each: int = 4) -> None:
    """Draw, for each eigenfunction, the images at which it is smallest and largest."""
    height, width = images.shape[1:]
    each = min(each, max(1, len(images) // 2))
    gap = max(1, width // 6)
    low, high = images.min(), images.max()
    rows, columns = values.shape[1], 2 * each
    canvas = np.full((rows * (height + gap), columns * (width + gap) + 3 * gap), np.nan)
    lefts = [c * (width + gap) + (3 * gap if c >= each else 0) for c in range(columns)]
    for k in range(rows):
        order = np.argsort(values[:, k], kind="stable")
        chosen = np.concatenate([order[:each], order[-each:]])
        for left, sample in zip(lefts, chosen, strict=True):
            top = k * (height + gap)
            canvas[top:top + height, left:left + width] = images[sample]
    ax.imshow(canvas, cmap="Greys", vmin=low, vmax=high)
    ax.set_yticks([k * (height + gap) + (height - 1) / 2 for k in range(rows)])
    half = (each * (width + gap) - gap - 1) / 2
    ax.set_xticks([half, lefts[each] + half], ["most negative", "most positive"])


def _as_curves(curves, labels, argument: str) -> tuple[list[np.ndarray], list[str]]:
    """Return the curves as arrays of shape (seeds, p) with one label each, maybe empty."""
    if isinstance(curves, Mapping):
        labels = list(curves) if labels is None else labels
        curves = list(curves.values())
    elif not (isinstance(curves, (list, tuple)) and len(curves) and np.ndim(curves[0]) > 0):
        curves = [curves]
    arrays = [np.atleast_2d(to_array(curve, argument)) for curve in curves]
    for array in arrays:
        if array.ndim != 2 or array.size == 0:
            raise RichbookError(
                f"{argument} must have shape (p,) or (seeds, p) each, not {array.shape}"
            )
    labels = [labels] if isinstance(labels, str) else labels
    labels = [""] * len(arrays) if labels is None else [str(label) for label in labels]
    if len(labels) != len(arrays):
        raise RichbookError(f"labels must have {len(arrays)} entries, one a curve, "
                            f"not {len(labels)}")
    return arrays, labels


def _count_axis(ax: Axes, most: int, log: bool) -> None:
    """Make the x axis count eigenfunctions from 1."""
    ax.set_xlabel(AXIS_LABELS["k"])
    if log:
        ax.set_xscale("log")
        ticks = [t for t in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if t <= most]
        ax.set_xticks(ticks, [str(t) for t in ticks])
        ax.minorticks_off()
    else:
        ax.set_xlim(0, most + 0.5)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _mark_rank(ax: Axes, rank: int | None) -> None:
    """Mark the rank of the outputs with a thin vertical line."""
    if rank is None:
        return
    ax.axvline(rank, color=COLORS["floor"], linewidth=0.8, zorder=1)
    ax.annotate(f"rank {rank}", (rank, 0), xycoords=("data", "axes fraction"), xytext=(4, 4),
                textcoords="offset points", fontsize=9, color="#555555", va="bottom")
