"""The network of the book: a multilayer perceptron whose last layer can start at zero."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from richbook.train.settings import TrainingSettings

ACTIVATION_FUNCTIONS = {"relu": torch.relu, "tanh": torch.tanh, "linear": lambda values: values}


def layer_sizes(inputs: int, outputs: int, settings: TrainingSettings) -> list[tuple[int, int]]:
    """(fan in, fan out) of every layer, the head last."""
    widths = [inputs, *[settings.width] * settings.depth, outputs]
    return list(zip(widths[:-1], widths[1:], strict=True))


def initial_weights(inputs: int, outputs: int, settings: TrainingSettings) -> list[Tensor]:
    """Weights (fan out, fan in) of every layer, drawn from the settings' seed.

    Normal with variance 2/fan-in before a ReLU (He et al. 2015) and 1/fan-in otherwise; the head
    is zero if the settings say so. Biases start at zero everywhere.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    gain = 2.0 if settings.activation == "relu" else 1.0
    sizes = layer_sizes(inputs, outputs, settings)
    drawn = [
        torch.randn(fan_out, fan_in, generator=generator, dtype=torch.float32) / fan_in**0.5
        for fan_in, fan_out in sizes
    ]
    head = drawn.pop()
    hidden = [weight * gain**0.5 for weight in drawn]
    return [*hidden, torch.zeros_like(head) if settings.zero_head else head]


class MLP(nn.Module):
    """A multilayer perceptron: ``features(x)`` is Φ(x), the input of ``head``; the module is f̂.

    Example:
        >>> import torch
        >>> network = MLP(64, 10, TrainingSettings(width=32))
        >>> network.features(torch.zeros(5, 64)).shape, network(torch.zeros(5, 64)).shape
        (torch.Size([5, 32]), torch.Size([5, 10]))
    """

    def __init__(self, inputs: int, outputs: int, settings: TrainingSettings) -> None:
        super().__init__()
        sizes = layer_sizes(inputs, outputs, settings)
        # skip_init: the weights are drawn below, from their own generator, not the global one
        layers = [nn.utils.skip_init(nn.Linear, *size, dtype=torch.float32) for size in sizes]
        weights = initial_weights(inputs, outputs, settings)
        with torch.no_grad():
            for layer, weight in zip(layers, weights, strict=True):
                layer.weight.copy_(weight)
                layer.bias.zero_()
        self.hidden = nn.ModuleList(layers[:-1])
        self.head = layers[-1]
        self.activation = ACTIVATION_FUNCTIONS[settings.activation]

    def features(self, inputs: Tensor) -> Tensor:
        """Φ: (n, d) -> (n, width)."""
        for layer in self.hidden:
            inputs = self.activation(layer(inputs))
        return inputs

    def forward(self, inputs: Tensor) -> Tensor:
        """f̂: (n, d) -> (n, C)."""
        return self.head(self.features(inputs))
