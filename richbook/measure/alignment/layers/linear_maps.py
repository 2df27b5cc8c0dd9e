"""The layers that multiply by a matrix, h_b = W h_a, and their samples as rows."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from richbook.measure.alignment.layers.patches import (
    PatchSums,
    has_displacements,
    is_exact_here,
    patch_sums,
    place_sums,
)

#: What counts as a linear layer.
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
KINDS = (nn.Linear, *CONVOLUTIONS)


class LinearMap(Protocol):
    """How one kind of layer becomes a matrix. A unit is what is never split: a row, or an image."""

    def weight(self) -> Tensor:
        """W (out, in), in the precision that the layer has it in."""

    def bias(self) -> Tensor | None:
        """b (out,), if there is one."""

    def takes(self, values: Tensor) -> bool:
        """Whether a call on these values can be measured."""

    def unit_shape(self, values: Tensor) -> torch.Size:
        """The axes of an input that count units."""

    def units(self, values: Tensor) -> Tensor:
        """What the layer takes or gives, with its units along the first axis."""

    def inputs(self, units: Tensor) -> Tensor:
        """h_a (rows, in) of some units of the input."""

    def copied(self, values: Tensor) -> Tensor:
        """A copy of an input, laid out in memory as the sums over it want it."""

    def input_sums(self, units: Tensor, share: int) -> PatchSums | None:
        """Empty sums for the moments of h_a, if for such units there is a way without its rows.

        They are one of so many (``share``) that hold maps back at the same time.
        """

    def output_sums(self, units: Tensor, share: int) -> PatchSums | None:
        """The same for h_b, or the gradient there."""

    def outputs(self, units: Tensor) -> Tensor:
        """h_b, or the gradient there, (rows, out) of some units of the output."""


def linear_map(layer: object) -> LinearMap:
    """The matrix that an ``nn.Linear``, a convolution, or ``F.linear`` multiplies by.

    Args:
        layer: the module; a parameter (out, in); or what has one and knows which of its rows are
            meant, ``parameter``, ``start`` and ``stop``.

    Example:
        >>> import torch
        >>> layer = torch.nn.Conv2d(3, 8, kernel_size=5, groups=1)
        >>> found = linear_map(layer)
        >>> found.weight().shape, found.inputs(torch.zeros(2, 3, 6, 7)).shape
        (torch.Size([8, 75]), torch.Size([12, 75]))
    """
    if isinstance(layer, nn.Module):
        return _Convolution(layer) if isinstance(layer, CONVOLUTIONS) else _Dense(layer)
    if isinstance(layer, Tensor):
        return _Matrix(layer, slice(None))
    return _Matrix(layer.parameter, slice(layer.start, layer.stop))


class _Dense:
    """``nn.Linear``: every axis but the last counts samples."""

    def __init__(self, layer: nn.Linear) -> None:
        self.layer = layer

    def weight(self) -> Tensor:
        return self.layer.weight.detach()

    def bias(self) -> Tensor | None:
        return None if self.layer.bias is None else self.layer.bias.detach()

    def takes(self, values: Tensor) -> bool:
        return values.ndim > 1

    def unit_shape(self, values: Tensor) -> torch.Size:
        return values.shape[:-1]

    def units(self, values: Tensor) -> Tensor:
        return values.reshape(-1, values.shape[-1])

    def inputs(self, units: Tensor) -> Tensor:
        return units

    def copied(self, values: Tensor) -> Tensor:
        return values.clone()

    def input_sums(self, units: Tensor, share: int) -> PatchSums | None:
        return None

    def output_sums(self, units: Tensor, share: int) -> PatchSums | None:
        return None

    def outputs(self, units: Tensor) -> Tensor:
        return units


class _Matrix(_Dense):
    """Some rows of a parameter. A bias is added after h_b, and not known here."""

    def __init__(self, parameter: Tensor, rows: slice) -> None:
        self.parameter, self.rows = parameter, rows

    def weight(self) -> Tensor:
        return self.parameter.detach()[self.rows]

    def bias(self) -> None:
        return None


class _Convolution:
    """A convolution: every position of the output is a sample, and h_a is the patch under it.

    A patch lists the channels, then the rows of the kernel, then its columns, as ``F.unfold`` does.
    With groups W is block diagonal, (out, in·kh·kw) like any other.
    """

    def __init__(self, layer: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> None:
        self.layer, self.axes = layer, len(layer.kernel_size)

    def weight(self) -> Tensor:
        weight = self.layer.weight.detach().flatten(1)
        if self.layer.groups == 1:
            return weight
        return torch.block_diag(*weight.chunk(self.layer.groups))

    def bias(self) -> Tensor | None:
        return None if self.layer.bias is None else self.layer.bias.detach()

    def takes(self, values: Tensor) -> bool:
        return values.ndim == self.axes + 2

    def unit_shape(self, values: Tensor) -> torch.Size:
        return values.shape[:1]

    def units(self, values: Tensor) -> Tensor:
        return values

    def inputs(self, units: Tensor) -> Tensor:
        layer = self.layer
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        windows = functional.pad(units, layer._reversed_padding_repeated_twice, mode=mode)
        kinds = list(zip(layer.kernel_size, layer.stride, layer.dilation, strict=True))
        for axis, (places, stride, gap) in enumerate(kinds, start=2):
            windows = windows.unfold(axis, gap * (places - 1) + 1, stride)
        # (n, c, h, w, reach, reach), of which every d-th line counts -> (n, c, h, w, kh, kw)
        windows = windows[(..., *(slice(None, None, gap) for *_, gap in kinds))]
        width = units.shape[1] * math.prod(layer.kernel_size)
        return windows.movedim(1, self.axes + 1).reshape(-1, width)

    def copied(self, values: Tensor) -> Tensor:
        if values.ndim == 4 and is_exact_here(values.device):
            return values.clone(memory_format=torch.channels_last)
        return values.clone()

    def input_sums(self, units: Tensor, share: int) -> PatchSums | None:
        if self.axes != 2 or not is_exact_here(units.device):
            return None
        shorter = has_displacements(self.layer, *units.shape[2:])
        return patch_sums(self.layer, *units.shape[2:], share) if shorter else None

    def output_sums(self, units: Tensor, share: int) -> PatchSums | None:
        if self.axes != 2 or not is_exact_here(units.device):
            return None
        return place_sums(*units.shape[2:])

    def outputs(self, units: Tensor) -> Tensor:
        return units.movedim(1, -1).reshape(-1, units.shape[1])
