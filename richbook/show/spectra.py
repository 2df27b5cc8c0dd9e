"""Plots of a kernel's spectrum: its eigenvalues, and what the outputs use of them."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from richbook.measure.errors import RichbookError
from richbook.show.canvas import draw_band, get_axes, label_ends, to_array
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
    """Draw cumulative utilisation: how much of the outputs the first k eigenfunctions carry.

    A rich kernel reaches 1 at the rank of its outputs, which `rank` marks; a lazy one gets there
    late.

    Args:
        curves: one curve of shape (p,), or several: a list of them, or a dict from label to curve.
            A curve of shape (seeds, p) becomes a mean with the band of its seeds; a seed that is
            nan throughout, as one that diverged, is left out.
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
        'cumulative utilisation $\\\\hat\\\\Pi(k)$'
    """
    curves, labels = _as_curves(curves, labels, "curves")
    ax = get_axes(ax)
    colors = sequence_colors(len(curves)) if len(curves) > 1 else [COLORS["utilization"]]
    for curve, label, color in zip(curves, labels, colors, strict=True):
        known = curve[~np.isnan(curve).all(1)]
        seeds = known if len(known) else curve[:1]
        lines = seeds.mean(0), seeds.min(0), seeds.max(0)
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
    ax.set_xlabel("eigenfunction $k$")
    _mark_rank(ax, rank)
    ax.set_ylabel(r"relative eigenvalue $\rho_k / \rho_1$")
    label_ends(ax, [end for end in ends if end[2]])
    return ax


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
        raise RichbookError(
            f"labels must have {len(arrays)} entries, one a curve, not {len(labels)}"
        )
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
    ax.annotate(
        f"rank {rank}",
        (rank, 0),
        xycoords=("data", "axes fraction"),
        xytext=(4, 4),
        textcoords="offset points",
        fontsize=9,
        color="#555555",
        va="bottom",
    )
