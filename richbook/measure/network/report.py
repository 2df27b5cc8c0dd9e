"""What ``measure`` found, as an object, a dictionary and a table."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass, field

from richbook.measure.class_geometry import NeuralCollapse
from richbook.measure.interval import Interval
from richbook.measure.spectrum import Decomposition


@dataclass(frozen=True)
class LayerRichness:
    """D_LR of one layer's output, against the functions that the whole network outputs.

    Attributes:
        name: the layer's path in ``named_modules()``, with ``#2`` for a second call in one forward.
        width: number of its features.
        d_lr: D_LR of these features and the network's outputs.
        isotropic_d_lr: the same for features without structure, 1 − √(r/width).
        samples: how many samples it was computed from.
    """

    name: str
    width: int
    d_lr: float
    isotropic_d_lr: float
    samples: int


@dataclass(frozen=True, repr=False, eq=False)
class Report:
    """The richness of a network on the samples of one loader; see :func:`measure`.

    Attributes:
        d_lr: D_LR of the input of the last linear layer; 0 is rich.
        isotropic_d_lr: D_LR of features without structure, 1 − √(rank/width): compare with it.
        interval: for the D_LR of the population, at 95 %, by the jackknife; None below 40 samples
            or if D_LR is nan.
        rank: number of independent functions that the network outputs, the constant left out.
        feature_rank: number of feature directions that vary.
        effective_rank: (Σρ)²/Σρ² of the feature kernel: how many directions it has in effect.
        samples, width, outputs: n, p and C.
        precision: the dtype that decided which combinations of outputs are rounding.
        head: the name of the last layer.
        decomposition: relative eigenvalues, utilisation and, given targets, quality.
        collapse: NC1 to NC4, given integer labels of no more than p + 1 classes; else None.
        layers: a profile through depth, in the order of the calls, if layers were asked for.
        warnings: what limits the numbers above, in words.
    """

    d_lr: float
    isotropic_d_lr: float
    interval: Interval | None
    rank: int
    feature_rank: int
    effective_rank: float
    samples: int
    width: int
    outputs: int
    precision: str
    head: str
    decomposition: Decomposition
    collapse: NeuralCollapse | None = None
    layers: tuple[LayerRichness, ...] = ()
    warnings: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict:
        """Plain numbers, strings and lists, ready for JSON; None for what is missing or nan."""
        names = ("d_lr", "isotropic_d_lr", "rank", "feature_rank", "effective_rank", "samples")
        found = {name: getattr(self, name) for name in names}
        found |= {name: getattr(self, name) for name in ("width", "outputs", "precision", "head")}
        interval = self.interval or Interval(math.nan, math.nan, math.nan, math.nan)
        found |= {f"d_lr_{name}": value for name, value in vars(interval).items()}
        missing = dict.fromkeys(("nc1", "nc2_norm", "nc2_angle", "nc3", "nc4"))
        found |= self.collapse.to_dict() if self.collapse else missing
        curves = self.decomposition
        for name in ("relative_eigenvalues", "utilization", "quality"):
            curve = getattr(curves, name)
            found[name] = None if curve is None else curve.tolist()
        found["layers"] = [dict(vars(layer)) for layer in self.layers]
        found["warnings"] = list(self.warnings)
        return _without_nan(found)

    def rows(self) -> list[tuple[str, str, str]]:
        """The table: what was measured, its value, and what it means."""
        return [*self._richness_rows(), *self._collapse_rows(), *self._layer_rows()]

    def _richness_rows(self) -> list[tuple[str, str, str]]:
        inside = f"input of {self.head!r}, {self.width} features, {self.samples} samples"
        rows = [
            ("D_LR", f"{self.d_lr:.3f}", inside),
            ("isotropic D_LR", f"{self.isotropic_d_lr:.3f}", "features without structure"),
        ]
        if self.interval:
            low, high = self.interval.low, self.interval.high
            bias = f"bias {self.interval.bias:+.3f} taken off"
            rows.insert(1, ("95 % interval", f"{low:.3f} to {high:.3f}", bias))
        rank = f"of {self.outputs} outputs, above the rounding of {self.precision}"
        features = f"of {self.width}; in effect {self.effective_rank:.1f}"
        rows += [("rank", f"{self.rank}", rank), ("feature rank", f"{self.feature_rank}", features)]
        curves, k = self.decomposition, min(max(self.rank, 1), self.width)
        of = f"carried by the first {k} eigenfunctions"
        rows.append(("utilisation", f"{float(curves.utilization[k - 1]):.3f}", "of outputs, " + of))
        if curves.quality is not None:
            rows.append(("quality", f"{float(curves.quality[k - 1]):.3f}", "of targets, " + of))
        return rows

    def _collapse_rows(self) -> list[tuple[str, str, str]]:
        if self.collapse is None:
            return []
        meanings = {
            "nc1": "spread within classes over spread between",
            "nc2_norm": "unequal norms of class means",
            "nc2_angle": "their angles against a simplex",
            "nc3": "head against class means",
            "nc4": "share of samples where nearest mean and head disagree",
        }
        names = {"nc2_norm": "NC2 norm", "nc2_angle": "NC2 angle"}
        found = self.collapse.to_dict()
        return [
            (names.get(name, name.upper()), f"{found[name]:.3g}", meaning)
            for name, meaning in meanings.items()
        ]

    def _layer_rows(self) -> list[tuple[str, str, str]]:
        return [
            (
                f"D_LR of {layer.name}",
                f"{layer.d_lr:.3f}",
                f"{layer.width} features; isotropic {layer.isotropic_d_lr:.3f}"
                + ("" if layer.samples == self.samples else f"; {layer.samples} samples"),
            )
            for layer in self.layers
        ]

    def __str__(self) -> str:
        rows = self.rows()
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        lines = [f"{a:{widths[0]}}  {b:>{widths[1]}}  {c}" for a, b, c in rows]
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings)])

    def __repr__(self) -> str:
        return str(self)  # not the tensors

    def _repr_html_(self) -> str:
        cells = (
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self.rows()
        )
        notes = "".join(f"<p>Warning: {html.escape(text)}.</p>" for text in self.warnings)
        head = "<tr><th>measure</th><th>value</th><th></th></tr>"
        return f"<table><thead>{head}</thead><tbody>{''.join(cells)}</tbody></table>{notes}"


def _without_nan(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value
