"""Second moments of the patches of a convolution, without writing the patches down.

A patch of k×k places on c channels holds c·k² numbers, and the product of all patches takes nine
times the work of a 3×3 convolution to as many channels. But without borders its entries depend only
on the displacement between two places,

    Σ_i x_c(i + u) x_c'(i + u') = R_cc'(u' − u),

and R is what a convolution computes for the gradient of its kernel. Here i runs over all windows
that touch the map; those that are no outputs of the layer, a ring around it, are subtracted. Along
a side of the ring the same is true of displacements along that side.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from richbook.measure.alignment.layers.windows import Axis, axes_of, windows_of
from richbook.measure.inputs import to_float64
from richbook.measure.products import cross_product, safe_dtype

#: Positions that are summed up in float32 at a time, of patches and of places, and the fewest
#: channels for which torch's kernels lose no digits over so many.
POSITIONS, PLACES, FEWEST_CHANNELS = 16384, 4096, 16
#: A mean whose square is below this many variances costs no digits to speak of.
SMALL_OFFSET = 4.0
#: An axis with nothing on it.
ONE = Axis(1, 1, 1, (0, 0))


def is_exact_here(device: torch.device) -> bool:
    """Whether convolutions in float32 are that: accelerators may round them to ten bits.

    They are fast at products of patches, too.
    """
    return device.type == "cpu" and torch.backends.mkldnn.conv.fp32_precision in ("none", "ieee")


def has_displacements(layer: nn.Conv2d, height: int, width: int) -> bool:
    """Whether the way around is the shorter one: a stride of 1, and a ring smaller than the output.

    With few channels patches are short, and the way around is less exact.

    Example:
        >>> import torch
        >>> layer = torch.nn.Conv2d(16, 8, kernel_size=3, padding=1)
        >>> has_displacements(layer, 28, 28), has_displacements(layer, 2, 2)
        (True, False)
    """
    if tuple(layer.stride) != (1, 1) or layer.in_channels < FEWEST_CHANNELS:
        return False
    rows, columns = axes_of(layer, height, width)
    ring = rows.touching * columns.touching - rows.outputs * columns.outputs
    return ring < rows.outputs * columns.outputs


def patch_sums(layer: nn.Conv2d, height: int, width: int) -> PatchSums:
    """Empty sums over the patches that a layer takes from maps of this size."""
    return PatchSums(layer, *axes_of(layer, height, width))


def place_sums(height: int, width: int) -> PatchSums:
    """Empty sums over the places of maps: each is a vector of its channels."""
    return PatchSums(None, *(Axis(size, 1, 1, (0, 0)) for size in (height, width)))


class PatchSums:
    """Sums over patches of maps of one size, from which :meth:`finish` makes second moments.

    Where it is large, the mean of each channel in the first block is subtracted from the maps,
    though not from the zeros around them, so that patches are p + b with b = mean · (is the place
    on the map?), the same for all maps.

    Example:
        >>> import torch
        >>> sums = patch_sums(torch.nn.Conv2d(1, 1, kernel_size=3, padding=1), 4, 4)
        >>> sums.update(torch.ones(2, 1, 4, 4))
        True
        >>> count, mean, scatter = sums.finish()
        >>> count, mean.reshape(3, 3)[0].tolist()
        (32, [0.5625, 0.75, 0.5625])
    """

    def __init__(self, layer: nn.Conv2d | None, rows: Axis, columns: Axis) -> None:
        self.layer, self.rows, self.columns = layer, rows, columns
        self.count, self.offset = 0, None

    def update(self, maps: Tensor) -> bool:
        """Add maps (n, c, h, w); or return False, and add nothing, if sums would not be finite."""
        if self.layer is not None and self.layer.padding_mode != "zeros":
            layer = self.layer
            maps = pad(maps, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
        n, _, height, width = maps.shape
        maps = maps.to(safe_dtype(maps))
        if self.offset is None:
            mean = maps.mean((0, 2, 3))
            if not bool(mean.isfinite().all()):
                return False
            self._begin(maps, mean)
        if self.shifted:
            maps = maps - self.offset.to(maps.dtype)[:, None, None]
        summed = maps.sum(0)
        if self.layer is not None:
            maps = maps.contiguous(memory_format=torch.channels_last)
        kernel = self._all_windows(maps)
        if not bool(kernel.isfinite().all()):
            return False
        self.kernel += kernel
        self.summed += summed
        if self.ring:
            for part in maps.split(max(POSITIONS // max(height, width), 1)):
                self._add_ring(part)
        self.count += n
        return True

    def _begin(self, maps: Tensor, mean: Tensor) -> None:
        rows, columns, channels = self.rows, self.columns, maps.shape[1]
        variance = maps.square().mean((0, 2, 3)) - mean.square()
        self.shifted = bool((mean.square() > SMALL_OFFSET * variance).any())
        # where there is nothing to lose, a copy of the maps is saved
        self.offset = mean if self.shifted else torch.zeros_like(mean)
        self.kernel = torch.zeros(channels, channels, rows.places, 2 * columns.places - 1).double()
        self.summed = torch.zeros(maps.shape[1:], dtype=torch.float64)
        self.ring: dict[tuple, Tensor | float] = dict.fromkeys(self._ring(), 0.0)

    def _ring(self) -> list[tuple]:
        """Its parts: rows with every column, columns with every row, and, minus, where they meet.

        A part is a pair of windows, of which None stands for every window.
        """
        rows, columns = self.rows.ring, self.columns.ring
        corners = [(i, j) for i in rows for j in columns]
        return [(i, None) for i in rows] + [(None, j) for j in columns] + corners

    def _all_windows(self, maps: Tensor) -> Tensor:
        if self.layer is not None:
            parts = maps.split(max(POSITIONS // (maps.shape[2] * maps.shape[3]), 1))
            return sum(_displacements(part, self.rows, self.columns) for part in parts)
        places = maps.flatten(2).split(PLACES, dim=2)  # (n, c, places)
        products = sum(torch.bmm(part, part.mT).sum(0, dtype=torch.float64) for part in places)
        return products[:, :, None, None]

    def _add_ring(self, maps: Tensor) -> None:
        for (row, column), found in self.ring.items():
            seen = maps
            if row is not None:
                seen = seen[:, :, self.rows.visible(row)[1]]
            if column is not None:
                seen = seen[..., self.columns.visible(column)[1]]
            if row is None:  # (n, c, height, V) -> (n, c V, 1, height)
                seen = seen.transpose(2, 3).flatten(1, 2)[:, :, None]
                sums = _displacements(seen, ONE, self.rows)
            elif column is None:  # (n, c, U, width) -> (n, c U, 1, width)
                sums = _displacements(seen.flatten(1, 2)[:, :, None], ONE, self.columns)
            else:
                sums = cross_product(seen.flatten(1), seen.flatten(1))
            self.ring[row, column] = found + sums

    def finish(self) -> tuple[int, Tensor, Tensor]:
        """Number, mean (c·kh·kw,) and centred scatter of all patches, float64."""
        rows, columns = self.rows, self.columns
        second = _toeplitz(self.kernel, rows, columns)  # (c, kh, kw, c, kh, kw)
        for (row, column), sums in self.ring.items():
            u = slice(None) if row is None else rows.visible(row)[0]
            v = slice(None) if column is None else columns.visible(column)[0]
            part = second[:, u, v, :, u, v]
            if row is None:  # (c, V, kh, c, V, kh)
                form = [part.shape[k] for k in (0, 2, 1, 3, 5, 4)]
                part -= _toeplitz(sums, ONE, rows).reshape(form).permute(0, 2, 1, 3, 5, 4)
            elif column is None:
                part -= _toeplitz(sums, ONE, columns).reshape(part.shape)
            else:
                part += sums.reshape(part.shape)
        size = len(second) * rows.places * columns.places
        return self._with_offset(second.reshape(size, size))

    def _with_offset(self, second: Tensor) -> tuple[int, Tensor, Tensor]:
        """From Σ p pᵀ and Σ p to p + b."""
        rows, columns = self.rows, self.columns
        summed = windows_of(self.summed[None], rows, columns)[0]  # Σ_n p, (positions, ckk)
        count, total = self.count * len(summed), summed.sum(0)
        if not self.shifted:
            return count, total / count, second.addr_(total, total, alpha=-1 / count)
        inside = torch.ones(1, 1, rows.size, columns.size, dtype=torch.float64)
        inside, offset = windows_of(inside, rows, columns)[0], to_float64(self.offset)
        cross = torch.kron(offset, summed.T @ inside)  # Σ p bᵀ
        second += cross
        second += cross.T
        second += self.count * torch.kron(torch.outer(offset, offset), inside.T @ inside)
        total = total + self.count * torch.kron(offset, inside.sum(0))
        return count, total / count, second.addr_(total, total, alpha=-1 / count)


def _displacements(maps: Tensor, rows: Axis, columns: Axis) -> Tensor:
    """R (c, c', kh, 2·kw − 1): Σ x_c(i) x_c'(i + a) for a downwards, or to either side."""
    around = pad(maps, (columns.reach, columns.reach, 0, rows.reach))
    shape = (maps.shape[1], maps.shape[1], rows.places, 2 * columns.places - 1)
    dilation = [rows.dilation, columns.dilation]
    _, kernel, _ = torch.ops.aten.convolution_backward(
        maps, around, maps.new_empty(shape), None,
        [1, 1], [0, 0], dilation, False, [0, 0], 1, [False, True, False],
    )  # fmt: skip
    return to_float64(kernel)


def _toeplitz(kernel: Tensor, rows: Axis, columns: Axis) -> Tensor:
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
