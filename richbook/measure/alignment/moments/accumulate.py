"""Adds the calls of one layer, batch by batch, to its second moments, in groups of samples."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from richbook.measure.alignment.layers.linear_maps import LinearMap
from richbook.measure.alignment.layers.patches import PatchSums
from richbook.measure.alignment.moments.grouped import GROUP_ROWS, GroupedMoments
from richbook.measure.alignment.passes.gradients import LayerCall
from richbook.measure.inputs import exact_arithmetic
from richbook.measure.moments import BLOCK_ROWS

#: Whose directions may be kept.
UNIT_SIDES = ("H_a", "H_b", "G_a", "G_b")
#: Calls wait until they have as many rows as are multiplied at once, or take so many bytes.
WAITING_BYTES = 2**23


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
        self.groups = groups
        self.moments = {side: GroupedMoments(size, groups) for side, size in self.sides.items()}
        self.sums: dict[str, list[PatchSums] | None] = {}  # by side, one for each group
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
        enough = self.rows >= rows_at_once(self.groups) and (self.groups == 1 or inputs.ndim == 2)
        if enough or self.bytes >= WAITING_BYTES:
            self._multiply()

    def finish(self) -> None:
        """Bring the moments up to date with all that was added."""
        if self.waiting:
            self._multiply()
        for side, every in self.sums.items():
            for part, sums in zip(self.moments[side].parts, every or (), strict=False):
                if sums.count:
                    part.add(*sums.finish())
        self.sums = {}
        for moments in self.moments.values():
            moments.finish()

    def _multiply(self) -> None:
        inputs, gradient, groups = zip(*self.waiting, strict=True)
        self.waiting, self.rows, self.bytes = [], 0, 0
        inputs, gradient = _joined(inputs), _joined(gradient)
        groups = None if groups[0] is None else _joined(groups)
        rows = gradient.numel() // max(len(gradient) * self.weight.shape[0], 1)  # in a unit
        step = max(rows_at_once(self.groups) // max(rows, 1), 1)  # units
        layer = self.layer
        with torch.no_grad(), exact_arithmetic(inputs.device):
            if self.unit:
                self._add_every_side(inputs, gradient, groups, step)
                return
            if "h_a" not in self.sums:
                self.sums["h_a"] = self._sums(layer.input_sums, inputs)
                self.sums["g_b"] = self._sums(layer.output_sums, gradient)
            self._add("h_a", inputs, groups, layer.inputs, step)
            self._add("g_b", gradient, groups, layer.outputs, step)

    def _sums(self, new: Callable, units: Tensor) -> list[PatchSums] | None:
        made = [new(units, self.groups) for _ in range(self.groups)]
        return None if made[0] is None else made

    def _add(
        self, side: str, units: Tensor, groups: Tensor | None, rows: Callable, step: int
    ) -> None:
        if self.sums[side] is None:
            for part, chosen in zip(units.split(step), _split(groups, step), strict=False):
                self._add_rows(side, rows(part), chosen)
            return
        for group, sums in enumerate(self.sums[side]):
            some = units if groups is None else units[groups == group]
            if len(some) and not sums.update(some):
                for part in some.split(step):  # something is not finite: this says where
                    self._add_rows(side, rows(part), torch.full((len(part),), group))

    def _add_rows(self, side: str, rows: Tensor, groups: Tensor | None) -> None:
        """Add rows, as many of each unit, whose groups these are."""
        if groups is not None and len(groups) != len(rows):
            groups = groups.repeat_interleave(len(rows) // len(groups))
        self.moments[side].update(rows, groups, f"{side} of the layer {self.name!r}")

    def _add_every_side(
        self, inputs: Tensor, gradient: Tensor, groups: Tensor | None, step: int
    ) -> None:
        for units, other, chosen in zip(
            inputs.split(step), gradient.split(step), _split(groups, step), strict=False
        ):
            h_a, g_b = self.layer.inputs(units), self.layer.outputs(other)
            weight = self.weight.to(h_a.dtype)
            h_b, g_a = h_a @ weight.T, g_b.to(h_a.dtype) @ weight
            if chosen is not None:
                chosen = chosen.repeat_interleave(len(h_a) // len(chosen))
            self._add_rows("h_a", h_a, chosen)
            self._add_rows("g_b", g_b, chosen)
            for side, values in zip(UNIT_SIDES, (h_a, h_b, g_a, g_b), strict=True):
                found, present = directions(values)
                some = None if chosen is None else chosen[present]
                self._add_rows(of_directions(side), found, some)


def rows_at_once(groups: int) -> int:
    """How many rows are multiplied at a time."""
    return BLOCK_ROWS if groups == 1 else GROUP_ROWS * groups


def _split(groups: Tensor | None, step: int) -> Iterable[Tensor | None]:
    return itertools.repeat(None) if groups is None else groups.split(step)


def _joined(parts: tuple[Tensor, ...]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def of_directions(side: str) -> str:
    """What the directions of one side are called."""
    return f"the directions of {side}"


def directions(rows: Tensor) -> tuple[Tensor, Tensor]:
    """v/|v| of each row that is not 0, and which rows these are.

    Example:
        >>> import torch
        >>> directions(torch.tensor([[3e-30, 4e-30], [0.0, 0.0]]))
        (tensor([[0.6000, 0.8000]]), tensor([ True, False]))
    """
    largest = rows.abs().amax(1, keepdim=True)
    present = largest[:, 0] > 0
    rows = rows[present] / largest[present]  # first, lest the squares underflow
    return rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True), present
