"""Many networks without bias, trained together on the cross-entropy.

The companion of :mod:`richbook.train.ensemble` for the chapters on alignment, in the same layout:
samples are columns, (K, units, n). The networks are those of Ziyin et al. (2025, arXiv 2410.03006)
at their smallest: layers W h without a bias, plain stochastic gradient descent, and

    ℓ = −log softmax(f̂)_y,   −∂ℓ/∂f̂ = one-hot(y) − softmax(f̂).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from richbook.train.ensemble import ACTIVATE, BACKWARD
from richbook.train.models import initial_weights
from richbook.train.settings import TrainingSettings


class CrossEntropyEnsemble:
    """K perceptrons without bias that differ in weight decay, learning rate and seed.

    Args:
        settings: one per network; they agree in all but those three. Of no effect here: target
            scale and momentum.
        inputs, outputs: d and C.
        device: where to hold and train them.

    Attributes:
        weights: of each layer, the head last, (K, out, in).

    Example:
        >>> settings = TrainingSettings(width=8, depth=2, zero_head=False)
        >>> networks = CrossEntropyEnsemble([settings] * 3, 64, 10, torch.device("cpu"))
        >>> [tuple(weight.shape) for weight in networks.weights]
        [(3, 8, 64), (3, 8, 8), (3, 10, 8)]
    """

    def __init__(
        self, settings: list[TrainingSettings], inputs: int, outputs: int, device: torch.device
    ) -> None:
        drawn = {
            s.seed: initial_weights(inputs, outputs, settings[0].replace(seed=s.seed))
            for s in settings
        }
        layers = zip(*(drawn[s.seed] for s in settings), strict=True)
        self.weights = [torch.stack(layer).to(device) for layer in layers]
        decay = torch.tensor([s.weight_decay for s in settings], dtype=torch.float64)
        rate = torch.tensor([s.learning_rate for s in settings], dtype=torch.float64)
        self.kept = (1 - rate * decay)[:, None, None].float().to(device)  # of W after a step
        self.learning_rate = rate[:, None, None].float().to(device)
        self.activate = ACTIVATE[settings[0].activation]
        self.backward = BACKWARD[settings[0].activation]

    def outputs(self, inputs: Tensor) -> Tensor:
        """f̂ of every network: inputs (n, d) -> (K, n, C)."""
        return torch.bmm(self.weights[-1], self._hidden(inputs)[-1]).mT

    def descend(self, inputs: Tensor, labels: Tensor) -> None:
        """One step of every network on its own batch, inputs (K, B, d) and labels (K, B).

        W becomes (1 − learning rate · decay) W − learning rate · gradient, as in
        ``torch.optim.SGD`` without momentum.
        """
        hidden = self._hidden(inputs)
        step = self._toward(hidden[-1], labels) * (self.learning_rate / labels.shape[1])
        for layer in reversed(range(len(self.weights))):
            weight, below = self.weights[layer], hidden[layer]
            # through the weights as they are before the update; the rate goes through with them
            passed = self.backward(torch.bmm(weight.mT, step), below) if layer else None
            weight.mul_(self.kept).baddbmm_(step, below.mT)
            step = passed

    def layers(self, inputs: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """W (K, out, in), h_a (K, in, n) and g_b (K, out, n) of every layer, the head first.

        Of inputs (n, d) and labels (n,); g_b = −∂ℓ/∂(W h_a), ℓ the loss of one sample.
        """
        count = len(self.weights[0])
        hidden = self._hidden(inputs)
        gradient = self._toward(hidden[-1], labels.expand(count, -1))
        for layer in reversed(range(len(self.weights))):
            weight, below = self.weights[layer], hidden[layer].expand(count, -1, -1)
            yield weight, below, gradient
            if layer:
                gradient = self.backward(torch.bmm(weight.mT, gradient), below)

    def _hidden(self, inputs: Tensor) -> list[Tensor]:
        """The inputs (K, d, n) and every hidden layer's activations (K, width, n)."""
        values = [inputs.mT.expand(len(self.weights[0]), -1, -1)]
        for weight in self.weights[:-1]:
            values.append(self.activate(torch.bmm(weight, values[-1])))
        return values

    def _toward(self, features: Tensor, labels: Tensor) -> Tensor:
        """−∂ℓ/∂f̂ (K, C, n) from the features (K, p, n) and labels (K, n)."""
        wrong = torch.softmax(torch.bmm(self.weights[-1], features), dim=1).neg_()
        ones = torch.ones_like(wrong[:, :1])
        return wrong.scatter_add_(1, labels[:, None], ones)
