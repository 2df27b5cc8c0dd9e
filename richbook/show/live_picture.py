"""The picture of a network in training: drawn again and again, so drawn on the same figure."""

import io
from collections.abc import Sequence

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from richbook.show.canvas import set_step_axis
from richbook.show.style import COLORS, LINE_STYLES

#: Earlier runs that stay in the picture as faint lines.
MOST_GHOSTS = 6


class LivePicture:
    """Three panels: D_LR and accuracies so far, and the utilization of the newest record.

    It keeps away from pyplot, from Matplotlib's global settings and from mathematical text (whose
    parser has a state), since it is drawn in a thread while the notebook may draw figures too.

    Args:
        steps: at which training ends.
        width: number of features, which is where the utilization curve ends.
        floor: the isotropic D_LR.

    Example:
        >>> LivePicture(steps=100, width=8, floor=0.6).draw([])[:4]
        b'\\x89PNG'
    """

    def __init__(self, steps: int, width: int, floor: float):
        self.steps, self.width, self.floor = steps, width, floor
        self.figure = Figure(figsize=(6.4, 4.0), dpi=120, facecolor="white", layout="none")
        self._canvas = FigureCanvasAgg(self.figure)
        grid = self.figure.add_gridspec(
            2,
            2,
            width_ratios=(1.25, 1),
            left=0.115,
            right=0.975,
            bottom=0.125,
            top=0.85,
            wspace=0.4,
            hspace=0.72,
        )
        self._d_lr = self.figure.add_subplot(grid[:, 0])
        self._accuracy = self.figure.add_subplot(grid[0, 1])
        self._utilization = self.figure.add_subplot(grid[1, 1])
        self._title = self.figure.text(0.02, 0.955, "", fontsize=12, color="#222222", va="center")
        self._dress()
        self._lines = {
            "d_lr": self._d_lr.plot([], [], color=COLORS["d_lr"], linewidth=2)[0],
            "utilization": self._utilization.plot([], [], color=COLORS["utilization"], linewidth=2)[
                0
            ],
        }
        for part in ("train", "test"):
            self._lines[f"{part}_accuracy"] = self._accuracy.plot(
                [], [], color=COLORS["accuracy"], linestyle=LINE_STYLES[part], label=part
            )[0]
        self._accuracy.legend(loc="lower right", frameon=False, fontsize=10.5, handlelength=1.8)
        self._value = self._d_lr.annotate(
            "",
            (0, 0),
            xytext=(6, 0),
            textcoords="offset points",
            fontsize=12.5,
            color=COLORS["d_lr"],
            weight="bold",
            va="center",
            annotation_clip=False,
        )
        self._ghosts = []

    def _dress(self) -> None:
        """Name the axes and set their limits."""
        for axes in (self._d_lr, self._accuracy, self._utilization):
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(labelsize=11)
        for axes in (self._d_lr, self._accuracy):
            set_step_axis(axes, [0, self.steps])
        self._d_lr.set_ylim(0, max(0.65, 1.1 * self.floor))
        self._d_lr.axhline(self.floor, color=COLORS["floor"], linewidth=0.8)
        self._d_lr.annotate(
            f"isotropic floor {self.floor:.3g}",
            (0.02, self.floor),
            fontsize=10,
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            color="#555555",
        )
        self._d_lr.set_ylabel("D_LR", fontsize=12)
        self._d_lr.set_xlabel("training step t (updates)", fontsize=11)
        self._accuracy.set_ylim(0, 1.04)
        self._accuracy.set_xlabel("step t (updates)", fontsize=11)
        self._accuracy.set_title("accuracy (fraction correct)", fontsize=11, loc="left")
        self._utilization.set_xlim(0, self.width + 1)
        self._utilization.set_ylim(0, 1.04)
        self._utilization.set_xlabel("eigenfunctions k", fontsize=11)
        self._utilization.set_title("cumulative utilisation", fontsize=11, loc="left")

    def set_ghosts(self, runs: Sequence[Sequence[dict]]) -> None:
        """Keep the last few earlier runs, each a list of records, as faint grey lines."""
        for line in self._ghosts:
            line.remove()
        self._ghosts = []
        for records in runs[-MOST_GHOSTS:]:
            steps = [record["step"] for record in records]
            for axes, name in ((self._d_lr, "d_lr"), (self._accuracy, "test_accuracy")):
                self._ghosts += axes.plot(
                    steps,
                    [record[name] for record in records],
                    color=COLORS["ghost"],
                    linewidth=1,
                    zorder=1,
                )
            curve = records[-1]["utilization"]
            self._ghosts += self._utilization.plot(
                np.arange(1, len(curve) + 1), curve, zorder=1, color=COLORS["ghost"], linewidth=1
            )

    def draw(self, records: Sequence[dict], title: str = "") -> bytes:
        """Return the picture of the records so far as a PNG."""
        steps = [record["step"] for record in records]
        for name in ("d_lr", "train_accuracy", "test_accuracy"):
            self._lines[name].set_data(steps, [record[name] for record in records])
        curve = records[-1]["utilization"] if records else []
        self._lines["utilization"].set_data(np.arange(1, len(curve) + 1), curve)
        known = [(r["step"], r["d_lr"]) for r in records if np.isfinite(r["d_lr"])]
        self._value.set_visible(bool(known))
        if known:
            self._value.xy = known[-1]
            self._value.set_text(f"{known[-1][1]:.3f}")
        highest = max([value for _, value in known], default=0.0)
        self._d_lr.set_ylim(0, max(0.65, 1.1 * self.floor, 1.1 * highest))
        self._title.set_text(title)
        stream = io.BytesIO()
        # Not savefig: it would ask Matplotlib's global settings for a layout, and move the panels.
        self._canvas.print_png(stream, pil_kwargs={"compress_level": 3})
        return stream.getvalue()
