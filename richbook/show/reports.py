"""Plots of what ``richbook.measure`` reports: one network's curves, and its profile in depth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from richbook.measure import Report, RichbookError
from richbook.show.canvas import draw_band, get_axes, label_ends
from richbook.show.selection import AXIS_LABELS
from richbook.show.spectra import plot_spectrum, plot_utilization
from richbook.show.style import COLORS


def plot_report(report: Report, ax: Sequence[Axes] | None = None) -> list[Axes]:
    """Draw a report: the spectrum on the left, what outputs and targets use of it on the right.

    The title says D_LR, its interval and the value for features without structure.

    Args:
        report: of ``richbook.measure``.
        ax: two Axes, or None for a new figure.

    Returns:
        The two Axes.

    Raises:
        RichbookError: something that is no report, or whose features are constant.

    Example:
        >>> import torch
        >>> from richbook.measure import measure
        >>> layers = torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)
        >>> model = torch.nn.Sequential(*layers)
        >>> report = measure(model, [torch.randn(200, 4)])
        >>> [axes.get_xlabel() for axes in plot_report(report)]
        ['eigenfunction $k$', 'number of eigenfunctions $k$']
    """
    _check(report)
    curves = report.decomposition
    if not float(curves.eigenvalues[0]) > 0:
        raise RichbookError("report: its features are constant, so that there is no spectrum")
    left, right = get_axes(ax, 1, 2, size=(8.4, 3.4))
    log = report.width > 100
    plot_spectrum(curves.eigenvalues, rank=report.rank, log=log, ax=left)
    plot_utilization(curves.utilization, rank=report.rank, log=log, ax=right)
    if curves.quality is not None:
        places = np.arange(1, report.width + 1)
        color, dashes = COLORS["quality"], (0, (4, 2))
        right.plot(places, curves.quality.cpu(), color=color, linestyle=dashes, label="quality")
        right.get_lines()[0].set_label("utilisation")
        right.legend(loc="lower right", labelcolor="linecolor", frameon=False)
        right.set_ylabel(r"cumulative $\hat\Pi(k)$ and $\Pi^*(k)$")
    title = f"$D_{{\\mathrm{{LR}}}}$ {report.d_lr:.3f}"
    if report.interval:
        title += f"   95 %: {report.interval.low:.3f} to {report.interval.high:.3f}"
    left.set_title(title, loc="left", fontsize=10)
    right.set_title(f"without structure {report.isotropic_d_lr:.3f}", loc="left", fontsize=10)
    return [left, right]


def plot_profile(reports: Report | Sequence[Report], ax: Axes | None = None) -> Axes:
    """Draw D_LR from layer to layer, with what features without structure would have there.

    Args:
        reports: a report with layers, or several of the same layers (seeds), which become a mean
            with a band from the smallest to the largest.
        ax: an Axes, or None for a new figure.

    Returns:
        The Axes. The last place is the input of the head, which is the network's own D_LR.

    Raises:
        RichbookError: reports without layers, or with different ones.

    Example:
        >>> import torch
        >>> from richbook.measure import measure
        >>> layers = torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)
        >>> model = torch.nn.Sequential(*layers)
        >>> report = measure(model, [torch.randn(200, 4)], layers=["0", "1"])
        >>> [label.get_text() for label in plot_profile(report).get_xticklabels()]
        ['0', '1', 'input of 2']
    """
    reports = [reports] if isinstance(reports, Report) else list(reports)
    for report in reports:
        _check(report)
    names = {tuple(layer.name for layer in report.layers) for report in reports}
    if len(names) != 1 or names == {()}:
        raise RichbookError(
            "reports: expected reports of the same layers, as from measure(..., layers=[...])"
        )
    ax = get_axes(ax)
    places, ends = np.arange(1, len(reports[0].layers) + 2), []
    for attribute, style in (("isotropic_d_lr", {"linewidth": 0.9}), ("d_lr", {"marker": "o"})):
        values = np.array([_along(report, attribute) for report in reports])
        color = COLORS["d_lr"] if attribute == "d_lr" else COLORS["floor"]
        draw_band(ax, places, (values.mean(0), values.min(0), values.max(0)), color, **style)
        name = AXIS_LABELS["d_lr"] if attribute == "d_lr" else "isotropic"
        ends.append((places[-1], values.mean(0)[-1], name, color))
    ticks = [*(layer.name for layer in reports[0].layers), f"input of {reports[0].head}"]
    crowded = sum(map(len, ticks)) > 60
    ax.set_xticks(places, ticks, rotation=30 if crowded else 0, ha="right" if crowded else "center")
    ax.set_xlabel("layer, in the order of the forward pass")
    ax.set_ylabel(AXIS_LABELS["d_lr"])
    ax.set_ylim(bottom=0)
    label_ends(ax, ends)
    return ax


def _along(report: Report, attribute: str) -> list[float]:
    return [*(getattr(layer, attribute) for layer in report.layers), getattr(report, attribute)]


def _check(report: object) -> None:
    if not isinstance(report, Report):
        raise RichbookError(f"report: expected what measure returns, got {type(report).__name__}")
