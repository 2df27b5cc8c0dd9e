"""The layers that multiply by a matrix, h_b = W h_a, and their samples as rows."""

from __future__ import annotations

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
KINDS = (nn.Linear, nn.Conv2d)


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

    def input_sums(self, units: Tensor) -> PatchSums | None:
        """Empty sums for the moments of h_a, if for such units there is a way without its rows."""

    def output_sums(self, units: Tensor) -> PatchSums | None:
        """The same for h_b, or the gradient there."""

    def outputs(self, units: Tensor) -> Tensor:
        """h_b, or the gradient there, (rows, out) of some units of the output."""


def linear_map(layer: nn.Module) -> LinearMap:
    """The matrix that an ``nn.Linear`` or ``nn.Conv2d`` multiplies by.

    Example:
        >>> import torch
        >>> layer = torch.nn.Conv2d(3, 8, kernel_size=5, groups=1)
        >>> found = linear_map(layer)
        >>> found.weight().shape, found.inputs(torch.zeros(2, 3, 6, 7)).shape
        (torch.Size([8, 75]), torch.Size([12, 75]))
    """
    return _Convolution(layer) if isinstance(layer, nn.Conv2d) else _Dense(layer)


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

    def input_sums(self, units: Tensor) -> PatchSums | None:
        return None

    def output_sums(self, units: Tensor) -> PatchSums | None:
        return None

    def outputs(self, units: Tensor) -> Tensor:
        return units


class _Convolution:
    """``nn.Conv2d``: every position of the output is a sample, and h_a is the patch under it.

    A patch lists the channels, then the rows of the kernel, then its columns, as ``F.unfold`` does.
    With groups W is block diagonal, (out, in·kh·kw) like any other.
    """

    def __init__(self, layer: nn.Conv2d) -> None:
        self.layer = layer

    def weight(self) -> Tensor:
        weight = self.layer.weight.detach().flatten(1)
        if self.layer.groups == 1:
            return weight
        return torch.block_diag(*weight.chunk(self.layer.groups))

    def bias(self) -> Tensor | None:
        return None if self.layer.bias is None else self.layer.bias.detach()

    def takes(self, values: Tensor) -> bool:
        return values.ndim == 4

    def unit_shape(self, values: Tensor) -> torch.Size:
        return values.shape[:1]

    def units(self, values: Tensor) -> Tensor:
        return values

    def inputs(self, units: Tensor) -> Tensor:
        layer = self.layer
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        padded = functional.pad(units, layer._reversed_padding_repeated_twice, mode=mode)
        (kh, kw), (sh, sw), (dh, dw) = layer.kernel_size, layer.stride, layer.dilation
        # windows of the kernel's reach, (n, c, h, w, reach, reach), of which every d-th line counts
        windows = padded.unfold(2, dh * (kh - 1) + 1, sh).unfold(3, dw * (kw - 1) + 1, sw)
        windows = windows[..., ::dh, ::dw]  # (n, c, h, w, kh, kw)
        return windows.permute(0, 2, 3, 1, 4, 5).reshape(-1, units.shape[1] * kh * kw)

    def input_sums(self, units: Tensor) -> PatchSums | None:
        shorter = is_exact_here(units.device) and has_displacements(self.layer, *units.shape[2:])
        return patch_sums(self.layer, *units.shape[2:]) if shorter else None

    def output_sums(self, units: Tensor) -> PatchSums | None:
        return place_sums(*units.shape[2:]) if is_exact_here(units.device) else None

    def outputs(self, units: Tensor) -> Tensor:
        return units.permute(0, 2, 3, 1).reshape(-1, units.shape[1])
