"""Plot of the six alignments of a layer along training."""

from collections.abc import Sequence

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from richbook.measure.alignment import AlignmentHistory
from richbook.measure.errors import RichbookError
from richbook.show.canvas import draw_band, get_axes, label_ends, set_step_axis
from richbook.show.selection import AXIS_LABELS, band, check_axis, fix, get_variable, listed
from richbook.show.style import COLORS

#: RWA has the colour of H and GWA that of G, which are what Z is compared with.
RELATION_LINES = {
    "RGA": {"color": COLORS["accuracy"], "marker": "o"},
    "RWA": {"color": COLORS["H"], "marker": "s"},
    "GWA": {"color": COLORS["G"], "marker": "^"},
}
#: The band of the null reaches so many standard deviations from its mean.
REACH = 2.0
KIND_NAMES = {"cosine": "cosine", "pearson": "Pearson"}


def plot_alignment_history(
    history: AlignmentHistory | xr.Dataset | Sequence[AlignmentHistory | xr.Dataset],
    layer: str | None = None,
    ax: Sequence[Axes] | None = None,
) -> list[Axes]:
    """Draw the six alignments of one layer during training, and what they would be by chance.

    The left panel has the forward relations, the right one the backward ones. The hatched band is
    the null: the same spectra with random eigenvectors, two standard deviations to either side. It
    covers the nulls of the three relations, so that what lies outside of it is outside of each.
    Of several seeds, lines are means and bands reach from the smallest to the largest; of a single
    one, the band is the interval over samples, if that was recorded.

    Args:
        history: an ``AlignmentHistory``, or its ``data``; several, one a seed, as a list, or as one
            dataset with an axis ``seed``.
        layer: its name; it may be left out if there is but one.
        ax: two Axes, or None for a new figure.

    Returns:
        The two Axes.

    Raises:
        RichbookError: nothing is recorded; no such layer, or several and none named; seeds with
            different steps or layers.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(4, 3)
        >>> loader = [(torch.eye(4).repeat(8, 1), torch.arange(32) % 3)]
        >>> history = AlignmentHistory(model, loader, torch.nn.functional.cross_entropy)
        >>> [history.record(step) for step in (0, 1, 10)]
        [True, True, True]
        >>> left, right = plot_alignment_history(history)
        >>> left.get_ylabel(), right.get_ylabel()
        ('forward alignment (cosine)', 'backward alignment (cosine)')
    """
    data = _layer_of(_as_dataset(history), layer)
    steps = check_axis(data, "step", "axis")
    panels = get_axes(ax, 1, 2)
    low = min(0.0, 1.05 * float(data["alignment"].min()), 1.05 * float(_null(data)[0].min()))
    kind = str(data.attrs.get("kind", "cosine"))
    for panel, side in zip(panels, ("forward", "backward"), strict=True):
        part = data.sel(side=side)
        _draw_null(panel, steps, part)
        ends = []
        for relation, line in RELATION_LINES.items():
            lines = _lines(part.sel(relation=relation))
            draw_band(panel, steps, lines, markersize=3, **line)
            last = np.flatnonzero(np.isfinite(lines[0]))
            if len(last):
                ends.append((steps[last[-1]], lines[0][last[-1]], relation, line["color"]))
        panel.set_ylim(low if np.isfinite(low) else 0.0, 1.03)
        set_step_axis(panel, steps)
        panel.set_xlabel(AXIS_LABELS["step"])
        panel.set_ylabel(f"{side} alignment ({KIND_NAMES.get(kind, kind)})")
        label_ends(panel, ends)
    return panels


def _as_dataset(history: object) -> xr.Dataset:
    """One dataset, with an axis `seed` if there are several histories."""
    if isinstance(history, AlignmentHistory):
        return history.data
    if isinstance(history, (list, tuple)) and history:
        parts = [_as_dataset(part) for part in history]
        try:
            return xr.concat(parts, "seed", join="exact", combine_attrs="drop_conflicts")
        except ValueError as error:
            raise RichbookError(
                "history: expected the same steps and layers of every seed, got steps "
                + " and ".join(sorted({f"({listed(part['step'].values)})" for part in parts}))
            ) from error
    if not isinstance(history, xr.Dataset):
        raise RichbookError(
            "history: expected an AlignmentHistory, its data, or a list of them, got "
            f"{type(history).__name__}"
        )
    for name in ("alignment", "null_mean", "null_std"):
        get_variable(history, name, "history")
    return history


def _layer_of(data: xr.Dataset, layer: str | None) -> xr.Dataset:
    names = [str(name) for name in np.atleast_1d(data["layer"].values)]
    if layer is None and len(names) > 1:
        raise RichbookError(f"layer: expected one of {listed(names)}, since only one is drawn")
    wanted = names[0] if layer is None else layer
    if wanted not in names:
        raise RichbookError(f"layer: there is no {layer!r} in the history; it has: {listed(names)}")
    return data.sel(layer=wanted) if "layer" in data.dims else data


def _lines(data: xr.Dataset) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A line, and the edges of its band: of the seeds, or of the interval over samples."""
    mean, low, high = band(fix(data["alignment"], ("step",), {}))
    if data.sizes.get("seed", 1) == 1 and "low" in data and "high" in data:
        low, _, _ = band(data["low"])
        high, _, _ = band(data["high"])
    return mean, low, high


def _null(data: xr.Dataset) -> tuple[xr.DataArray, xr.DataArray]:
    reach = REACH * data["null_std"]
    return data["null_mean"] - reach, data["null_mean"] + reach


def _draw_null(ax: Axes, steps: np.ndarray, data: xr.Dataset) -> None:
    """Hatch what random eigenvectors give, over the three relations of a side and all seeds."""
    low, high = _null(data)
    over = [axis for axis in low.dims if axis != "step"]
    edges = low.min(over).values, high.max(over).values
    look = {"facecolor": "none", "edgecolor": COLORS["floor"], "hatch": "////", "linewidth": 0}
    if len(steps) == 1:
        ax.axhspan(edges[0][0], edges[1][0], zorder=0, **look)
    else:
        ax.fill_between(steps, *edges, zorder=0, **look)
    if np.isfinite([edges[0][-1], edges[1][-1]]).all():  # where lines seldom end
        at = (0.97, max(float(edges[0][-1]), 0.0))
        ax.annotate(
            "by chance",
            at,
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            fontsize=9,
            color="#555555",
            ha="right",
            va="bottom",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )
