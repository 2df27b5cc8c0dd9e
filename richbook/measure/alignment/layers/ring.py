"""The windows around a map that are no outputs of a convolution: what they would have summed up."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from richbook.measure.alignment.layers.windows import Axis
from richbook.measure.inputs import to_float64
from richbook.measure.products import cross_product

#: Positions that are summed up in float32 at a time.
POSITIONS = 16384
#: Borders wait until they have as many positions, or take so many bytes.
WAITING_BYTES = 2**22
#: An axis with nothing on it.
ONE = Axis(1, 1, 1, (0, 0))


class Ring:
    """Sums over the windows of a ring around maps, from the borders that they see.

    Its parts are rows with every column, columns with every row, and, minus, where they meet: pairs
    of windows, of which None stands for every window. Borders are small beside the maps: they are
    kept, and multiplied when there are many.

    Args:
        rows, columns: the axes of the maps.
        waiting: how many bytes of borders may be kept.

    Example:
        >>> axis = Axis(size=4, places=3, dilation=1, padding=(1, 1))
        >>> ring = Ring(axis, axis, waiting=0)
        >>> list(ring.sums)[:3]
        [(-1, None), (4, None), (None, -1)]
        >>> ring.add(torch.ones(2, 1, 4, 4))
        >>> second = torch.zeros(1, 3, 3, 1, 3, 3, dtype=torch.float64)
        >>> ring.subtract_from(second)
        >>> second[0, 2, 1, 0, 2, 1].item()  # 2 · 4 on the line above, as many on the side, less 2
        -8.0
    """

    def __init__(self, rows: Axis, columns: Axis, waiting: int = WAITING_BYTES) -> None:
        self.rows, self.columns, self.waiting = rows, columns, waiting
        corners = [(i, j) for i in rows.ring for j in columns.ring]
        parts = [(i, None) for i in rows.ring] + [(None, j) for j in columns.ring] + corners
        self.sums: dict[tuple, Tensor | float] = dict.fromkeys(parts, 0.0)
        self.borders: dict[tuple, list[Tensor]] = {part: [] for part in parts}
        self.images = self.bytes = 0

    def add(self, maps: Tensor) -> None:
        """Add the borders of maps (n, c, h, w)."""
        if not self.sums:
            return
        for (row, column), kept in self.borders.items():
            seen = maps
            if row is not None:
                seen = seen[:, :, self.rows.visible(row)[1]]
            if column is not None:
                seen = seen[..., self.columns.visible(column)[1]]
            kept.append(seen.clone())
            self.bytes += kept[-1].nbytes
        self.images += len(maps)
        if self.images * max(maps.shape[2:]) >= POSITIONS or self.bytes >= self.waiting:
            self._multiply()

    def _multiply(self) -> None:
        most = max(POSITIONS // max(self.rows.size, self.columns.size), 1)
        for part, kept in self.borders.items():
            if kept:
                for seen in torch.cat(kept).split(most):
                    self.sums[part] = self.sums[part] + self._product(*part, seen)
                kept.clear()
        self.images = self.bytes = 0

    def _product(self, row: int | None, column: int | None, seen: Tensor) -> Tensor:
        if row is None:  # (n, c, height, V) -> (n, c V, 1, height)
            return displacements(seen.transpose(2, 3).flatten(1, 2)[:, :, None], ONE, self.rows)
        if column is None:  # (n, c, U, width) -> (n, c U, 1, width)
            return displacements(seen.flatten(1, 2)[:, :, None], ONE, self.columns)
        return cross_product(seen.flatten(1), seen.flatten(1))

    def subtract_from(self, second: Tensor) -> None:
        """Take the ring off second moments (c, kh, kw, c, kh, kw) of all windows, in place."""
        self._multiply()
        rows, columns = self.rows, self.columns
        for (row, column), sums in self.sums.items():
            u = slice(None) if row is None else rows.visible(row)[0]
            v = slice(None) if column is None else columns.visible(column)[0]
            part = second[:, u, v, :, u, v]
            if row is None:  # (c, V, kh, c, V, kh)
                form = [part.shape[k] for k in (0, 2, 1, 3, 5, 4)]
                part -= toeplitz(sums, ONE, rows).reshape(form).permute(0, 2, 1, 3, 5, 4)
            elif column is None:
                part -= toeplitz(sums, ONE, columns).reshape(part.shape)
            else:
                part += sums.reshape(part.shape)


def displacements(maps: Tensor, rows: Axis, columns: Axis) -> Tensor:
    """R (c, c', kh, 2·kw − 1): Σ x_c(i) x_c'(i + a) for a downwards, or to either side."""
    around = pad(maps, (columns.reach, columns.reach, 0, rows.reach))
    shape = (maps.shape[1], maps.shape[1], rows.places, 2 * columns.places - 1)
    dilation = [rows.dilation, columns.dilation]
    _, kernel, _ = torch.ops.aten.convolution_backward(
        maps, around, maps.new_empty(shape), None,
        [1, 1], [0, 0], dilation, False, [0, 0], 1, [False, True, False],
    )  # fmt: skip
    return to_float64(kernel)


def toeplitz(kernel: Tensor, rows: Axis, columns: Axis) -> Tensor:
    """(c, kh, kw, c', kh, kw) from R: the entry at places u and u' is R at u' − u."""
    back = kernel.transpose(0, 1).flip(2, 3)  # R_cc'(−a) = R_c'c(a)
    every = torch.cat([back[:, :, :-1], kernel], dim=2)  # (c, c', 2·kh − 1, 2·kw − 1)
    first, second, down, along = every.stride()
    channels, kh, kw = len(kernel), rows.places, columns.places
    # counted from the last place back, u' − u is the sum of two places: a view, without copies
    from_the_last = every.as_strided(
        (channels, kh, kw, channels, kh, kw), (first, down, along, second, down, along)
    )
    return from_the_last.flip(1, 2)
