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

from richbook.measure.alignment.layers.ring import (
    POSITIONS,
    WAITING_BYTES,
    Ring,
    displacements,
    toeplitz,
)
from richbook.measure.alignment.layers.windows import Axis, axes_of, windows_of
from richbook.measure.inputs import to_float64, working_dtype
from richbook.measure.products import FLOAT32_RANGE

#: Places that are summed up in float32 at a time, and the fewest channels for which torch's kernels
#: lose no digits over as many positions.
PLACES, FEWEST_CHANNELS = 4096, 16
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
    rows, columns = axes_of(layer, height, width)
    ring = rows.touching * columns.touching - rows.outputs * columns.outputs
    return ring < rows.outputs * columns.outputs


def patch_sums(layer: nn.Conv2d, height: int, width: int, share: int = 1) -> PatchSums:
    """Empty sums over the patches that a layer takes from maps of this size.

    They are one of so many (``share``) that hold maps back at the same time.
    """
    return PatchSums(layer, *axes_of(layer, height, width), share)


def place_sums(height: int, width: int) -> PatchSums:
    """Empty sums over the places of maps: each is a vector of its channels."""
    return PatchSums(None, *(Axis(size, 1, 1, (0, 0)) for size in (height, width)), 1)


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

    def __init__(self, layer: nn.Conv2d | None, rows: Axis, columns: Axis, share: int) -> None:
        self.layer, self.rows, self.columns = layer, rows, columns
        self.count, self.offset = 0, None
        self.ring = Ring(rows, columns, WAITING_BYTES // share)

    def update(self, maps: Tensor) -> bool:
        """Add maps (n, c, h, w); or return False, and add nothing, if sums would not be finite."""
        if self.layer is not None and self.layer.padding_mode != "zeros":
            layer = self.layer
            maps = pad(maps, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
        maps = maps.to(working_dtype(maps))
        if self.offset is None:
            mean = maps.mean((0, 2, 3))
            if not bool(mean.isfinite().all()):
                return False
            self._begin(maps, mean)
        added = self._add(maps)
        # squares that leave the range of float32 make it necessary to look again
        return added or (maps.dtype == torch.float32 and self._add(maps.double()))

    def _add(self, maps: Tensor) -> bool:
        """Add maps, or say that their squares are not safe in the precision they have."""
        if self.shifted:
            maps = maps - self.offset.to(maps.dtype)[:, None, None]
        if self.layer is not None:
            maps = maps.contiguous(memory_format=torch.channels_last)
        kernel = self._all_windows(maps)
        if not self._is_safe(kernel, maps):
            return False
        self.kernel += kernel
        # over rows of channels: a sum over channels-last maps would jump through memory
        summed = maps.movedim(1, -1).flatten(1).sum(0)
        self.summed += summed.reshape(*maps.shape[2:], -1).movedim(-1, 0)
        self.ring.add(maps)
        self.count += len(maps)
        return True

    def _is_safe(self, kernel: Tensor, maps: Tensor) -> bool:
        """Whether sums of products are finite and, in float32, far from what it can hold."""
        squares = kernel[..., 0, self.columns.places - 1].diagonal()  # Σ x_c(i)²
        if maps.dtype == torch.float64:
            return bool(kernel.isfinite().all())
        smallest, greatest = (bound**2 for bound in FLOAT32_RANGE)
        largest, positions = float(squares.max()), maps.numel() / maps.shape[1]
        return smallest * positions < largest < greatest and bool(kernel.isfinite().all())

    def _begin(self, maps: Tensor, mean: Tensor) -> None:
        rows, columns, channels = self.rows, self.columns, maps.shape[1]
        variance = maps.square().mean((0, 2, 3)) - mean.square()
        self.shifted = bool((mean.square() > SMALL_OFFSET * variance).any())
        # where there is nothing to lose, a copy of the maps is saved
        self.offset = mean if self.shifted else torch.zeros_like(mean)
        self.kernel = torch.zeros(channels, channels, rows.places, 2 * columns.places - 1).double()
        self.summed = torch.zeros(maps.shape[1:], dtype=torch.float64)

    def _all_windows(self, maps: Tensor) -> Tensor:
        if self.layer is not None:
            parts = maps.split(max(POSITIONS // (maps.shape[2] * maps.shape[3]), 1))
            return sum(displacements(part, self.rows, self.columns) for part in parts)
        places = maps.flatten(2).split(PLACES, dim=2)  # (n, c, places)
        products = sum(torch.bmm(part, part.mT).sum(0, dtype=torch.float64) for part in places)
        return products[:, :, None, None]

    def finish(self) -> tuple[int, Tensor, Tensor]:
        """Number, mean (c·kh·kw,) and centred scatter of all patches, float64."""
        rows, columns = self.rows, self.columns
        second = toeplitz(self.kernel, rows, columns)  # (c, kh, kw, c, kh, kw)
        self.ring.subtract_from(second)
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
