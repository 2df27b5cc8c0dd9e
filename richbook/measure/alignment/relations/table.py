"""The six alignments of each layer, as an object, a dictionary and a table."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from richbook.measure.alignment.relations.relations import RELATIONS, SIDES
from richbook.measure.errors import RichbookError

MEANINGS = {"RGA": "H with G", "RWA": "H with Z", "GWA": "G with Z"}
KIND_NAMES = {"cosine": "cosine", "pearson": "correlation of the entries"}


@dataclass(frozen=True)
class Relation:
    """How well two matrices align, within [−1, 1].

    Attributes:
        value: the alignment.
        low, high: an interval for it over samples, at 95 %; nan without one.
        null_mean, null_std: the same spectra with random eigenvectors.

    Example:
        >>> Relation(0.9, low=0.85, high=0.95, null_mean=0.3, null_std=0.1).deviation
        6.000...
    """

    value: float
    low: float
    high: float
    null_mean: float
    null_std: float

    @property
    def deviation(self) -> float:
        """How many standard deviations of the null the value lies above its mean."""
        if not self.null_std > 0:
            return math.nan
        return (self.value - self.null_mean) / self.null_std

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True)
class Side:
    """The three relations on one side of a layer: H with G, H with Z, G with Z.

    Example:
        >>> three = [Relation(value, 0.0, 1.0, 0.3, 0.1) for value in (0.5, 0.6, 0.9)]
        >>> Side(*three).GWA.value
        0.9
    """

    RGA: Relation
    RWA: Relation
    GWA: Relation


@dataclass(frozen=True)
class LayerAlignment:
    """The six relations of one layer.

    Attributes:
        name: the layer's path, with "#2" for a second call in one forward pass.
        count: rows that H and G were averaged over.
        width: of h_a; of h_b it is ``outputs``.
        outputs: number of rows of W.
        forward: the relations of H_b, G_b and Z_b.
        backward: the relations of H_a, G_a and Z_a.

    Example:
        >>> side = Side(*[Relation(0.9, 0.85, 0.95, 0.3, 0.1)] * 3)
        >>> layer = LayerAlignment("fc", 1000, width=64, outputs=10, forward=side, backward=side)
        >>> layer.forward.RGA.value
        0.9
    """

    name: str
    count: int
    width: int
    outputs: int
    forward: Side
    backward: Side


@dataclass(frozen=True, repr=False)
class Alignment:
    """The six alignments of every layer; see :func:`alignment`.

    ``table["name"].forward.GWA.value`` is one of them; iteration goes over the layers.

    Attributes:
        layers: in the order of the forward pass.
        kind: "cosine" or "pearson".
        normalize: whether H and G are covariances of h/|h| and g/|g|.
        warnings: what limits the numbers, in words.

    Example:
        >>> relation = Relation(0.9, 0.85, 0.95, 0.3, 0.1)
        >>> side = Side(relation, relation, relation)
        >>> print(Alignment((LayerAlignment("fc", 100, 8, 8, side, side),), "cosine", False))
        cosine of second moments, 95 % interval, and with random eigenvectors
                        forward                                backward
               RGA         RWA         GWA         RGA         RWA         GWA
        fc    0.90        0.90        0.90        0.90        0.90        0.90
         0.85–0.95   0.85–0.95   0.85–0.95   0.85–0.95   0.85–0.95   0.85–0.95
         0.30±0.10   0.30±0.10   0.30±0.10   0.30±0.10   0.30±0.10   0.30±0.10
    """

    layers: tuple[LayerAlignment, ...]
    kind: str
    normalize: bool
    warnings: tuple[str, ...] = field(default=())

    def __getitem__(self, name: str | int) -> LayerAlignment:
        if isinstance(name, int):
            return self.layers[name]
        found = {layer.name: layer for layer in self.layers}
        if name not in found:
            raise RichbookError(f"layer: there is no {name!r}, there are {', '.join(found)}")
        return found[name]

    def __iter__(self) -> Iterator[LayerAlignment]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def array(self, what: str = "value") -> Tensor:
        """One number of each relation, float64, (layers, 2, 3): sides, then RGA, RWA and GWA.

        Args:
            what: "value", "low", "high", "null_mean", "null_std" or "deviation".
        """
        found = [
            [[getattr(getattr(getattr(layer, side), name), what) for name in RELATIONS]
             for side in SIDES]
            for layer in self.layers
        ]  # fmt: skip
        return torch.tensor(found, dtype=torch.float64)

    def to_dict(self) -> dict:
        """Plain numbers, strings and lists, ready for JSON; None for nan."""
        layers = []
        for layer in self.layers:
            row = {"name": layer.name, "count": layer.count}
            row |= {"width": layer.width, "outputs": layer.outputs}
            for side in SIDES:
                sides = vars(getattr(layer, side))
                row[side] = {name: _plain(vars(found)) for name, found in sides.items()}
            layers.append(row)
        return {
            "kind": self.kind,
            "normalize": self.normalize,
            "layers": layers,
            "warnings": list(self.warnings),
        }

    @property
    def title(self) -> str:
        """What the numbers are, in words."""
        of = "covariances of h/|h| and g/|g|" if self.normalize else "second moments"
        interval = ", 95 % interval" if self._has_interval else ""
        return f"{KIND_NAMES[self.kind]} of {of}{interval}, and with random eigenvectors"

    @property
    def _has_interval(self) -> bool:
        return bool(self.array("low").isfinite().any())

    def _cells(self, layer: LayerAlignment) -> list[list[str]]:
        """Lines of six cells: the values, their intervals if there are any, the null."""
        found = [getattr(getattr(layer, side), name) for side in SIDES for name in RELATIONS]
        lines = [[f"{relation.value:.2f}" for relation in found]]
        if self._has_interval:
            lines.append([f"{relation.low:.2f}–{relation.high:.2f}" for relation in found])
        return [*lines, [f"{r.null_mean:.2f}±{r.null_std:.2f}" for r in found]]

    def __str__(self) -> str:
        first = max((len(layer.name) for layer in self.layers), default=0)
        lines = [self.title]
        lines.append(" " * first + f"{'forward':^36}   {'backward':^36}".rstrip())
        lines.append(" " * first + "".join(f"{name:>12}" for name in RELATIONS * 2))
        for layer in self.layers:
            names = [layer.name, "", ""]
            for name, cells in zip(names, self._cells(layer), strict=False):
                lines.append(f"{name:{first}}" + "".join(f"{cell:>12}" for cell in cells))
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings)])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        sides = "".join(f'<th colspan="3">{side}</th>' for side in SIDES)
        names = "".join(f'<th title="{MEANINGS[name]}">{name}</th>' for name in RELATIONS * 2)
        body = ""
        for layer in self.layers:
            values, *others = self._cells(layer)
            small = ("<br>".join(f"<small>{cell}</small>" for cell in column)
                     for column in zip(*others, strict=True))  # fmt: skip
            cells = (f"<td>{v}<br>{s}</td>" for v, s in zip(values, small, strict=True))
            body += f"<tr><td>{html.escape(layer.name)}</td>{''.join(cells)}</tr>"
        notes = "".join(f"<p>Warning: {html.escape(text)}.</p>" for text in self.warnings)
        head = f"<tr><th></th>{sides}</tr><tr><th>layer</th>{names}</tr>"
        caption = f"<caption>{html.escape(self.title)}</caption>"
        return f"<table>{caption}<thead>{head}</thead><tbody>{body}</tbody></table>{notes}"


def _plain(found: dict) -> dict:
    return {name: None if math.isnan(value) else value for name, value in found.items()}
