"""Adds the calls of one layer, batch by batch, to its second moments, in groups of samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from richbook.measure.alignment.layers.linear_maps import LinearMap
from richbook.measure.alignment.layers.patches import PatchSums
from richbook.measure.alignment.moments.second_moments import SecondMoment
from richbook.measure.alignment.passes.gradients import LayerCall
from richbook.measure.inputs import exact_arithmetic
from richbook.measure.moments import BLOCK_ROWS

#: Whose directions may be kept.
UNIT_SIDES = ("H_a", "H_b", "G_a", "G_b")
#: Calls wait until together they have so many rows, or take so many bytes.
WAITING_ROWS, WAITING_BYTES = 4096, 2**24


class LayerStream:
    """The moments of h_a and g_b in each group, and of the directions on both sides if wanted.

    Args:
        name: of the layer, for messages.
        weight: W, (out, in).
        layer: how it makes rows.
        groups: their number.
        unit: whether to keep the moments of h/|h| and g/|g| too.
    """

    def __init__(
        self, name: str, weight: Tensor, layer: LinearMap, groups: int, unit: bool
    ) -> None:
        self.name, self.weight, self.layer, self.unit = name, weight, layer, unit
        out, width = weight.shape
        self.sides = {"h_a": width, "g_b": out}
        if unit:
            sizes = zip(UNIT_SIDES, (width, out, width, out), strict=True)
            self.sides |= {of_directions(side): size for side, size in sizes}
        self.moments = [
            {side: SecondMoment(size) for side, size in self.sides.items()} for _ in range(groups)
        ]
        self.sums: dict[tuple[int, str], PatchSums | None] = {}  # by group and side
        self.waiting: list[tuple[Tensor, Tensor, Tensor | None]] = []
        self.shape: torch.Size | None = None  # of a unit
        self.rows = self.bytes = 0

    def add(self, call: LayerCall, groups: Tensor | None) -> None:
        """Add a call's units, each in its group (units,), or all in the first."""
        inputs, gradient = call.inputs, call.gradient
        if inputs.shape[1:] != self.shape:
            self.finish()  # images of another size
            self.shape = inputs.shape[1:]
        self.waiting.append((inputs, gradient, groups))
        self.rows += gradient.numel() // self.weight.shape[0]
        self.bytes += inputs.nbytes + gradient.nbytes
        enough = self.rows >= WAITING_ROWS and len(self.moments) == 1
        if enough or self.bytes >= WAITING_BYTES:
            self._multiply()

    def finish(self) -> None:
        """Bring the moments up to date with all that was added."""
        if self.waiting:
            self._multiply()
        for (group, side), sums in self.sums.items():
            if sums is not None and sums.count:
                self.moments[group][side].add(*sums.finish())
        self.sums = {}

    def _multiply(self) -> None:
        inputs, gradient, groups = zip(*self.waiting, strict=True)
        self.waiting, self.rows, self.bytes = [], 0, 0
        inputs, gradient = _joined(inputs), _joined(gradient)
        groups = None if groups[0] is None else _joined(groups)
        rows = gradient.numel() // max(len(gradient) * self.weight.shape[0], 1)  # in a unit
        step = max(BLOCK_ROWS // max(rows, 1), 1)  # units whose patches stay in the cache, about
        with torch.no_grad(), exact_arithmetic(inputs.device):
            for group in range(len(self.moments)):
                units = slice(None) if groups is None else (groups == group).nonzero()[:, 0]
                if len(gradient[units]):
                    self._update(group, inputs[units], gradient[units], step)

    def _update(self, group: int, inputs: Tensor, gradient: Tensor, step: int) -> None:
        layer = self.layer
        if not self.unit:
            self._add(group, "h_a", inputs, layer.input_sums, layer.inputs, step)
            self._add(group, "g_b", gradient, layer.output_sums, layer.outputs, step)
            return
        for units, other in zip(inputs.split(step), gradient.split(step), strict=True):
            for side, rows in self._every_side(layer.inputs(units), layer.outputs(other)):
                self.moments[group][side].update(rows, self._label(side))

    def _add(
        self, group: int, side: str, units: Tensor, new: Callable, rows: Callable, step: int
    ) -> None:
        key = (group, side)
        if key not in self.sums:
            self.sums[key] = new(units, len(self.moments))
        sums = self.sums[key]
        if sums is not None and sums.update(units):
            return
        for part in units.split(step):  # or something is not finite: this says where
            self.moments[group][side].update(rows(part), self._label(side))

    def _every_side(self, h_a: Tensor, g_b: Tensor) -> Iterator[tuple[str, Tensor]]:
        yield from (("h_a", h_a), ("g_b", g_b))
        weight = self.weight.to(h_a.dtype)
        rows = (h_a, h_a @ weight.T, g_b.to(h_a.dtype) @ weight, g_b)
        for side, values in zip(UNIT_SIDES, rows, strict=True):
            yield of_directions(side), directions(values)

    def _label(self, side: str) -> str:
        return f"{side} of the layer {self.name!r}"


def _joined(parts: tuple[Tensor, ...]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def of_directions(side: str) -> str:
    """What the directions of one side are called."""
    return f"the directions of {side}"


def directions(rows: Tensor) -> Tensor:
    """v/|v| of each row that is not 0; the others are left out.

    Example:
        >>> import torch
        >>> directions(torch.tensor([[3e-30, 4e-30], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000]])
    """
    largest = rows.abs().amax(1, keepdim=True)
    present = largest[:, 0] > 0
    rows = rows[present] / largest[present]  # first, lest the squares underflow
    return rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True)
