"""Many networks of one shape as one batch of matrices, trained together.

A small network leaves a processor idle between its many tiny products. Stacking K networks turns
each layer's K products into one batched product, and all their parameters into rows of one (K, P) matrix
that one kernel updates. The gradients are written out by hand: for a layer h' = σ(h W + b) with
δ' = ∂loss/∂(h W + b),

    ∂loss/∂W = hᵀ δ',   ∂loss/∂b = Σ_samples δ',   δ = (δ' Wᵀ) ⊙ σ'(h).
"""

from __future__ import annotations

import torch
from torch import Tensor

from richbook.train.models import ACTIVATION_FUNCTIONS, initial_weights, layer_sizes
from richbook.train.settings import TrainingSettings


class Ensemble:
    """K multilayer perceptrons that differ in weight decay, target scale, learning rate and seed.

    Args:
        settings: one per network; they agree in everything but those four.
        inputs, outputs: d and C.
        device: where to hold and train them.
    """

    def __init__(self, settings: list[TrainingSettings], inputs: int, outputs: int, device: torch.device) -> None:
        self.shape = settings[0]
        self.sizes = layer_sizes(inputs, outputs, self.shape)
        drawn = {s.seed: initial_weights(inputs, outputs, s) for s in {s.seed: s for s in settings}.values()}
        rows = {seed: _flatten(weights) for seed, weights in drawn.items()}
        self.parameters = torch.stack([rows[s.seed] for s in settings]).to(device)  # (K, P)
        self.velocity = torch.zeros_like(self.parameters)
        self.weights, self.biases = _views(self.parameters, self.sizes)
        self.weight_velocities, self.bias_velocities = _views(self.velocity, self.sizes)
        self.weight_decay = torch.tensor([[s.weight_decay] for s in settings], device=device)  # (K, 1)
        self.step_size = torch.tensor([[s.learning_rate] for s in settings], device=device)
        self.activation = ACTIVATION_FUNCTIONS[self.shape.activation]

    def features(self, inputs: Tensor) -> Tensor:
        """Φ of every network: inputs (n, d) or (K, n, d) -> (K, n, width)."""
        return self._hidden(inputs)[-1]

    def head(self, features: Tensor) -> Tensor:
        """f̂ of every network from its features: (K, n, width) -> (K, n, C)."""
        return torch.baddbmm(self.biases[-1], features, self.weights[-1])

    def descend(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """One step on a batch for each network, (K, B, d) and (K, B, C). Returns the losses before it, (K,).

        The velocity becomes momentum · velocity + gradient + decay · parameters, and the parameters lose
        learning rate · velocity, as in ``torch.optim.SGD``.
        """
        hidden = self._hidden(inputs)
        residual = self.head(hidden[-1]) - targets  # (K, B, C)
        losses = residual.square().sum((-2, -1)) / residual.shape[1]
        delta = residual * (2 / residual.shape[1])
        self.velocity.mul_(self.shape.momentum).addcmul_(self.parameters, self.weight_decay)
        for layer in reversed(range(len(self.sizes))):
            below = hidden[layer]
            self.weight_velocities[layer].baddbmm_(below.mT, delta)
            self.bias_velocities[layer].add_(delta.sum(1, keepdim=True))
            if layer:
                delta = self._backward_activation(torch.bmm(delta, self.weights[layer].mT), below)
        self.parameters.addcmul_(self.velocity, self.step_size, value=-1)
        return losses

    def parameter_norms(self) -> Tensor:
        """‖θ‖² of every network, shape (K,)."""
        return self.parameters.square().sum(1)

    def _hidden(self, inputs: Tensor) -> list[Tensor]:
        """The inputs and every hidden layer's activations, each (K, n, ·)."""
        values = [inputs.expand(len(self.parameters), -1, -1)]
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            values.append(self.activation(torch.baddbmm(bias, values[-1], weight)))
        return values

    def _backward_activation(self, delta: Tensor, activated: Tensor) -> Tensor:
        """delta ⊙ σ'(·), written through the activated values; overwrites delta."""
        if self.shape.activation == "relu":
            return delta.mul_(activated > 0)
        if self.shape.activation == "tanh":
            return delta.addcmul_(delta, activated.square(), value=-1)
        return delta


def _flatten(weights: list[Tensor]) -> Tensor:
    """One network's parameters as a row: for each layer its weight (in, out), then its bias, zero."""
    parts = []
    for weight in weights:
        parts += [weight.T.reshape(-1), torch.zeros(len(weight))]
    return torch.cat(parts)


def _views(flat: Tensor, sizes: list[tuple[int, int]]) -> tuple[list[Tensor], list[Tensor]]:
    """Views of (K, P) as weights (K, in, out) and biases (K, 1, out)."""
    weights, biases, start = [], [], 0
    for fan_in, fan_out in sizes:
        middle, stop = start + fan_in * fan_out, start + fan_in * fan_out + fan_out
        weights.append(flat[:, start:middle].unflatten(1, (fan_in, fan_out)))
        biases.append(flat[:, None, middle:stop])
        start = stop
    return weights, biases
