"""Which windows a convolution moves over one axis of a map, and which parts of the map they see."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import pad


class Axis:
    """One axis of a map: its size, the kernel's places, and which windows touch it.

    Windows are counted from 0, the first output. ``ring`` lists those that touch the map and are no
    outputs.

    Example:
        >>> axis = Axis(size=5, places=3, dilation=1, padding=(1, 1))
        >>> axis.outputs, axis.ring
        (5, [-1, 5])
        >>> axis.visible(-1)  # its last place lies on the first line
        (slice(2, 3, None), slice(0, 1, 1))
    """

    def __init__(self, size: int, places: int, dilation: int, padding: tuple[int, int]) -> None:
        self.size, self.places, self.dilation = size, places, dilation
        self.low, self.high = padding
        self.reach = dilation * (places - 1)
        self.outputs = size + self.low + self.high - self.reach
        self.touching = size + self.reach
        first, last = self.low - self.reach, self.low + size - 1  # windows that touch the map
        ring = [i for i in range(first, last + 1) if not 0 <= i < self.outputs]
        self.ring = [i for i in ring if self._seen(i)]  # with gaps, some see nothing

    def _seen(self, window: int) -> list[tuple[int, int]]:
        lines = [(u, window + u * self.dilation - self.low) for u in range(self.places)]
        return [(u, line) for u, line in lines if 0 <= line < self.size]

    def visible(self, window: int) -> tuple[slice, slice]:
        """The places of a window that lie on the map, and the lines of the map under them."""
        (first, top), (last, bottom) = (seen := self._seen(window))[0], seen[-1]
        return slice(first, last + 1), slice(top, bottom + 1, self.dilation)


def axes_of(layer: nn.Conv2d, height: int, width: int) -> tuple[Axis, Axis]:
    """The rows and columns of a map of this size under a convolution."""
    left, right, top, bottom = layer._reversed_padding_repeated_twice
    if layer.padding_mode != "zeros":  # such a border is filled in beforehand
        height, width = height + top + bottom, width + left + right
        left = right = top = bottom = 0
    (kh, kw), (dh, dw) = layer.kernel_size, layer.dilation
    return Axis(height, kh, dh, (top, bottom)), Axis(width, kw, dw, (left, right))


def windows_of(maps: Tensor, rows: Axis, columns: Axis) -> Tensor:
    """The patches under the outputs, (n, positions, c·kh·kw), zeros included."""
    padded = pad(maps, (columns.low, columns.high, rows.low, rows.high))
    windows = padded.unfold(2, rows.reach + 1, 1).unfold(3, columns.reach + 1, 1)
    windows = windows[..., :: rows.dilation, :: columns.dilation]  # (n, c, h, w, kh, kw)
    return windows.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
