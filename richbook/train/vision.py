"""Convolutional networks for small pictures: like VGG-16 and ResNet-18, of any width.

VGG: Simonyan and Zisserman, ICLR 2015. ResNet: He et al., CVPR 2016, with the first layers that are
usual for pictures of 32 pixels: one 3×3 convolution and no pooling.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from richbook.measure import RichbookError

INITIALIZATIONS = ("default", "he")
#: A block has at most so many times the channels of the first one.
MOST_CHANNELS = 8


def as_pictures(inputs: Tensor, image_shape: Sequence[int] | None) -> Tensor:
    """Rows (n, d) as pictures (n, channels, height, width); a grey one has one channel.

    Args:
        inputs: (n, d), a row a picture.
        image_shape: (height, width) of grey pictures, or (channels, height, width); None, which
            ``Data`` has where there are no pictures, is an error.

    Raises:
        RichbookError: no pictures, or d is not the number of values of such a picture.

    Example:
        >>> as_pictures(torch.zeros(5, 64), (8, 8)).shape
        torch.Size([5, 1, 8, 8])
    """
    if image_shape is None:
        raise RichbookError("image_shape: expected the shape of a picture; these are no pictures")
    shape = (1, *image_shape) if len(image_shape) == 2 else tuple(image_shape)
    if inputs.ndim != 2 or len(shape) != 3 or inputs.shape[1] != torch.Size(shape).numel():
        raise RichbookError(
            f"inputs: expected rows of {torch.Size(shape).numel()} values for pictures of shape "
            f"{tuple(image_shape)}, got shape {tuple(inputs.shape)}"
        )
    return inputs.reshape(len(inputs), *shape)


def initialize(model: nn.Module, kind: str = "default", seed: int = 0) -> None:
    """Draw the weights of all convolutions and linear layers anew, from a seed.

    "default" is what PyTorch does: weights and biases uniform in ±1/√fan-in, so the variance of a
    weight is 1/(3 fan-in), and a ReLU layer shrinks what passes through it by √6. "he" is normal
    with variance 2/fan-in, which keeps the size (He et al. 2015), and zero biases.

    Args:
        model: changed in place.
        kind: "default" or "he".
        seed: of the generator; torch's global one is left alone.

    Raises:
        RichbookError: another ``kind``.

    Example:
        >>> layer = nn.Linear(100, 50)
        >>> initialize(layer, "he")
        >>> weight, bias = layer.weight.detach(), layer.bias.detach()
        >>> abs(float(weight.var()) * 100 - 2) < 0.2, float(bias.abs().max())
        (True, 0.0)
    """
    if kind not in INITIALIZATIONS:
        known = ", ".join(INITIALIZATIONS)
        raise RichbookError(f"initialization: expected one of {known}, got {kind!r}")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in model.modules():
            if not isinstance(layer, nn.Conv2d | nn.Linear):
                continue
            fan_in = layer.weight[0].numel()
            biases = [] if layer.bias is None else [layer.bias]
            for values in (layer.weight, *biases):
                if kind == "default":
                    drawn = torch.rand(values.shape, generator=generator) * 2 - 1
                    values.copy_(drawn / fan_in**0.5)
                elif values is layer.bias:
                    values.zero_()
                else:
                    drawn = torch.randn(values.shape, generator=generator)
                    values.copy_(drawn * (2 / fan_in) ** 0.5)


def _convolution(inputs: int, outputs: int, size: int = 3, stride: int = 1, bias: bool = False):
    # skip_init: ``initialize`` draws the weights, and torch's global generator stays untouched
    return nn.utils.skip_init(
        nn.Conv2d, inputs, outputs, size, stride=stride, padding=size // 2, bias=bias
    )


def _linear(inputs: int, outputs: int) -> nn.Module:
    return nn.utils.skip_init(nn.Linear, inputs, outputs)


class _Network(nn.Module):
    """A body that ends in a vector a picture, and a linear head."""

    body: nn.Module
    head: nn.Module

    def features(self, pictures: Tensor) -> Tensor:
        """Φ: (n, channels, height, width) -> (n, p), after the last nonlinearity."""
        return self.body(pictures)

    def forward(self, pictures: Tensor) -> Tensor:
        """f̂: (n, channels, height, width) -> (n, C)."""
        return self.head(self.features(pictures))


class VGG(_Network):
    """Blocks of 3×3 convolutions, each with a pooling after it, then linear layers.

    Without arguments it is VGG-16 with linear layers of 512 units and no dropout: 13 convolutions
    and 3 linear layers. The pooling rounds sizes up, so pictures may have any size; what is left of
    height and width at the end is averaged.

    Args:
        channels: of the pictures.
        classes: C.
        width: channels of the first block; each further block has twice as many, up to 8 times.
        blocks: convolutions of each block.
        hidden: units of the linear layers before the head; the last number is p.
        batch_norm: normalise before every ReLU.
        initialization: see ``initialize``.
        seed: of the initial weights.

    Example:
        >>> network = VGG(3, 10, width=4, blocks=(1, 2), hidden=(16,))
        >>> network.features(torch.zeros(5, 3, 32, 32)).shape
        torch.Size([5, 16])
    """

    def __init__(
        self,
        channels: int,
        classes: int,
        *,
        width: int = 64,
        blocks: Sequence[int] = (2, 2, 3, 3, 3),
        hidden: Sequence[int] = (512, 512),
        batch_norm: bool = True,
        initialization: str = "default",
        seed: int = 0,
    ) -> None:
        super().__init__()
        layers, size = [], channels
        for index, count in enumerate(blocks):
            wide = width * min(2**index, MOST_CHANNELS)
            for _ in range(count):
                layers.append(_convolution(size, wide, bias=not batch_norm))
                layers += [nn.BatchNorm2d(wide)] * batch_norm + [nn.ReLU()]
                size = wide
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        for units in hidden:
            layers += [_linear(size, units)] + [nn.BatchNorm1d(units)] * batch_norm + [nn.ReLU()]
            size = units
        self.body, self.head = nn.Sequential(*layers), _linear(size, classes)
        initialize(self, initialization, seed)


class ResidualBlock(nn.Module):
    """Two normalised 3×3 convolutions, added to what came in, and a ReLU.

    Where the shape changes, what came in passes through a 1×1 convolution first.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.change = nn.Sequential(
            _convolution(inputs, outputs, stride=stride),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            _convolution(outputs, outputs),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                _convolution(inputs, outputs, size=1, stride=stride), nn.BatchNorm2d(outputs)
            )

    def forward(self, values: Tensor) -> Tensor:
        """(n, inputs, height, width) -> (n, outputs, height/stride, width/stride)."""
        return torch.relu(self.shortcut(values) + self.change(values))


class ResNet(_Network):
    """One convolution, stages of residual blocks, an average over the picture, and a head.

    Without arguments it is ResNet-18 for pictures of 32 pixels: 17 convolutions of 3×3 and a linear
    layer, p = 512.

    Args:
        channels: of the pictures.
        classes: C.
        width: channels of the first stage; each further stage has twice as many, at half the
            height and width. The last stage's number is p.
        stages: residual blocks of each stage.
        stride: of the first convolution; 2 makes everything four times cheaper.
        initialization: see ``initialize``.
        seed: of the initial weights.

    Example:
        >>> network, pictures = ResNet(1, 10, width=4), torch.zeros(5, 1, 28, 28)
        >>> network.features(pictures).shape, network(pictures).shape
        (torch.Size([5, 32]), torch.Size([5, 10]))
    """

    def __init__(
        self,
        channels: int,
        classes: int,
        *,
        width: int = 64,
        stages: Sequence[int] = (2, 2, 2, 2),
        stride: int = 1,
        initialization: str = "default",
        seed: int = 0,
    ) -> None:
        super().__init__()
        layers = [_convolution(channels, width, stride=stride), nn.BatchNorm2d(width), nn.ReLU()]
        size = width
        for index, count in enumerate(stages):
            wide = width * 2**index
            for block in range(count):
                layers.append(ResidualBlock(size, wide, 2 if index and not block else 1))
                size = wide
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        self.body, self.head = nn.Sequential(*layers), _linear(size, classes)
        initialize(self, initialization, seed)
