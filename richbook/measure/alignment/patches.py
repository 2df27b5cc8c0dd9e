"""Second moments of the patches of a convolution, without writing the patches down.

A patch of k×k places on c channels holds c·k² numbers, and the product of all patches takes nine
times the work of a 3×3 convolution to as many channels. But without borders its entries depend only
on the displacement between two places,

    Σ_i x_c(i + u) x_c'(i + u') = R_cc'(u' − u),

and R is what a convolution computes for the gradient of its kernel. Here i runs over all windows
that touch the map; those that are no outputs of the layer, a ring around it, are subtracted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from richbook.measure.inputs import to_float64
from richbook.measure.products import safe_dtype, symmetric_product

#: Positions that are summed up in float32 at a time, of patches and of places, and the fewest
#: channels for which torch's kernels lose no digits over so many.
POSITIONS, PLACES, FEWEST_CHANNELS = 16384, 4096, 16
#: A mean whose square is below this many variances costs no digits to speak of.
SMALL_OFFSET = 4.0


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
    rows, columns = _axes(layer, height, width)
    ring = rows.touching * columns.touching - rows.outputs * columns.outputs
    return ring < rows.outputs * columns.outputs


class _Axis:
    """One axis of a map: its size, the kernel's places, and which windows touch it."""

    def __init__(self, size: int, places: int, dilation: int, padding: tuple[int, int]) -> None:
        self.size, self.places, self.dilation = size, places, dilation
        self.low, self.high = padding
        self.reach = dilation * (places - 1)
        self.outputs = size + self.low + self.high - self.reach
        self.touching = size + self.reach
        first, last = self.low - self.reach, self.low + size - 1  # windows that touch the map
        ring = [i for i in range(first, last + 1) if not 0 <= i < self.outputs]
        self.ring = [i for i in ring if self.visible(i)[0]]  # with gaps, some see nothing

    def visible(self, window: int) -> tuple[list[int], list[int]]:
        """The places of a window that lie on the map, and the lines of the map under them."""
        lines = [(u, window + u * self.dilation - self.low) for u in range(self.places)]
        inside = [(u, line) for u, line in lines if 0 <= line < self.size]
        return [u for u, _ in inside], [line for _, line in inside]


def _axes(layer: nn.Conv2d, height: int, width: int) -> tuple[_Axis, _Axis]:
    left, right, top, bottom = layer._reversed_padding_repeated_twice
    if layer.padding_mode != "zeros":  # such a border is filled in beforehand
        height, width = height + top + bottom, width + left + right
        left = right = top = bottom = 0
    (kh, kw), (dh, dw) = layer.kernel_size, layer.dilation
    return _Axis(height, kh, dh, (top, bottom)), _Axis(width, kw, dw, (left, right))


def patch_sums(layer: nn.Conv2d, height: int, width: int) -> PatchSums:
    """Empty sums over the patches that a layer takes from maps of this size."""
    return PatchSums(layer, *_axes(layer, height, width))


def place_sums(height: int, width: int) -> PatchSums:
    """Empty sums over the places of maps: each is a vector of its channels."""
    return PatchSums(None, *(_Axis(size, 1, 1, (0, 0)) for size in (height, width)))


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

    def __init__(self, layer: nn.Conv2d | None, rows: _Axis, columns: _Axis) -> None:
        self.layer, self.rows, self.columns = layer, rows, columns
        self.count, self.offset = 0, None

    def update(self, maps: Tensor) -> bool:
        """Add maps (n, c, h, w); or return False, and add nothing, if sums would not be finite."""
        if self.layer is not None and self.layer.padding_mode != "zeros":
            layer = self.layer
            maps = pad(maps, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
        n, channels, height, width = maps.shape
        maps = maps.to(safe_dtype(maps))
        if self.offset is None:
            mean = maps.mean((0, 2, 3))
            if not bool(mean.isfinite().all()):
                return False
            self._begin(maps, mean)
        if self.shifted:
            maps = maps - self.offset.to(maps.dtype)[:, None, None]
        if self.rows.places * self.columns.places > 1:
            maps = maps.contiguous(memory_format=torch.channels_last)
        kernel = torch.zeros_like(self.kernel)
        at_once = POSITIONS if self.layer is not None else PLACES
        for part in maps.split(max(at_once // (height * width), 1)):
            kernel += _displacements(part, self.rows, self.columns)
        if not bool(kernel.isfinite().all()):
            return False
        self.kernel += kernel
        for part in maps.split(max(POSITIONS // (height + width), 1)):
            self.summed += part.sum(0)
            for ring, windows in zip(self.rings, self._ring_windows(), strict=True):
                ring += symmetric_product(windows(part))
        self.count += n
        return True

    def _begin(self, maps: Tensor, mean: Tensor) -> None:
        rows, columns, channels = self.rows, self.columns, maps.shape[1]
        variance = maps.square().mean((0, 2, 3)) - mean.square()
        self.shifted = bool((mean.square() > SMALL_OFFSET * variance).any())
        # where there is nothing to lose, a copy of the maps is saved
        self.offset = mean if self.shifted else torch.zeros_like(mean)
        self.kernel = maps.new_zeros(
            (channels, channels, rows.places, 2 * columns.places - 1), dtype=torch.float64
        )
        self.summed = maps.new_zeros(maps.shape[1:], dtype=torch.float64)
        sizes = [len(rows.visible(window)[0]) * columns.places for window in rows.ring]
        sizes += [rows.places * len(columns.visible(window)[0]) for window in columns.ring]
        self.rings = [
            maps.new_zeros((channels * size, channels * size), dtype=torch.float64)
            for size in sizes
        ]

    def _ring_windows(self) -> list[Callable[[Tensor], Tensor]]:
        rows, columns = self.rows, self.columns
        above = [partial(_row_windows, rows, columns, window) for window in rows.ring]
        return above + [partial(_column_windows, rows, columns, window) for window in columns.ring]

    def finish(self) -> tuple[int, Tensor, Tensor]:
        """Number, mean (c·kh·kw,) and centred scatter of all patches, float64."""
        rows, columns = self.rows, self.columns
        second = _toeplitz(self.kernel, rows, columns)
        channels, rings = len(second), iter(self.rings)
        for window in rows.ring:
            u = slice(*_ends(rows.visible(window)[0]))
            part = second[:, u, :, :, u]
            part -= next(rings).reshape(part.shape)
        for window in columns.ring:
            v = slice(*_ends(columns.visible(window)[0]))
            part = second[:, :, v, :, :, v]
            part -= next(rings).reshape(part.shape)
        size = channels * rows.places * columns.places
        return self._with_offset(second.reshape(size, size))

    def _with_offset(self, second: Tensor) -> tuple[int, Tensor, Tensor]:
        """From Σ p pᵀ and Σ p to p + b."""
        rows, columns = self.rows, self.columns
        summed = _windows(self.summed[None], rows, columns)[0]  # Σ_n p, (positions, ckk)
        count, total = self.count * len(summed), summed.sum(0)
        if not self.shifted:
            return count, total / count, second.addr_(total, total, alpha=-1 / count)
        inside = torch.ones(1, 1, rows.size, columns.size, dtype=torch.float64)
        inside, offset = _windows(inside, rows, columns)[0], to_float64(self.offset)
        cross = torch.kron(offset, summed.T @ inside)  # Σ p bᵀ
        second += cross
        second += cross.T
        second += self.count * torch.kron(torch.outer(offset, offset), inside.T @ inside)
        total = total + self.count * torch.kron(offset, inside.sum(0))
        return count, total / count, second.addr_(total, total, alpha=-1 / count)


def _displacements(maps: Tensor, rows: _Axis, columns: _Axis) -> Tensor:
    """R (c, c', kh, 2·kw − 1): Σ x_c(i) x_c'(i + a) for a downwards, or to either side."""
    around = pad(maps, (columns.reach, columns.reach, 0, rows.reach))
    shape = (maps.shape[1], maps.shape[1], rows.places, 2 * columns.places - 1)
    dilation = [rows.dilation, columns.dilation]
    _, kernel, _ = torch.ops.aten.convolution_backward(
        maps, around, maps.new_empty(shape), None,
        [1, 1], [0, 0], dilation, False, [0, 0], 1, [False, True, False],
    )  # fmt: skip
    return to_float64(kernel)


def _toeplitz(kernel: Tensor, rows: _Axis, columns: _Axis) -> Tensor:
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


def _row_windows(rows: _Axis, columns: _Axis, window: int, maps: Tensor) -> Tensor:
    """What windows at a row of the ring see of maps, at every column that touches them."""
    _, lines = rows.visible(window)
    seen = pad(maps[:, :, slice(*_ends(lines, rows.dilation))], (columns.reach, columns.reach))
    seen = seen.unfold(3, columns.reach + 1, 1)[..., :: columns.dilation]
    return seen.permute(0, 3, 1, 2, 4).flatten(2).flatten(0, 1)  # from (n, c, places, columns, kw)


def _column_windows(rows: _Axis, columns: _Axis, window: int, maps: Tensor) -> Tensor:
    """What windows at a column of the ring see of maps, at the rows of the outputs."""
    _, lines = columns.visible(window)
    seen = pad(maps[..., slice(*_ends(lines, columns.dilation))], (0, 0, rows.low, rows.high))
    seen = seen.unfold(2, rows.reach + 1, 1)[..., :: rows.dilation]
    return seen.permute(0, 2, 1, 4, 3).flatten(2).flatten(0, 1)  # from (n, c, rows, places, kh)


def _ends(numbers: list[int], step: int = 1) -> tuple[int, int, int]:
    """The slice that holds equally spaced numbers."""
    return numbers[0], numbers[-1] + 1, step


def _windows(maps: Tensor, rows: _Axis, columns: _Axis) -> Tensor:
    """The patches of the layer's outputs, (n, positions, c·kh·kw), zeros included."""
    padded = pad(maps, (columns.low, columns.high, rows.low, rows.high))
    windows = padded.unfold(2, rows.reach + 1, 1).unfold(3, columns.reach + 1, 1)
    windows = windows[..., :: rows.dilation, :: columns.dilation]  # (n, c, h, w, kh, kw)
    return windows.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
