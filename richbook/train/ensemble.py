"""Many networks of one shape as one batch of matrices, trained together.

A small network leaves a processor idle between its many tiny products. Stacking K networks turns
each layer's K products into one batched product, and K updates into one. Samples are columns here,
(K, units, n), the layout in which narrow layers multiply fastest. The gradients are written out by
hand: for a layer h' = σ(W h + b) with δ' = ∂loss/∂(W h + b),

    ∂loss/∂W = δ' hᵀ,   ∂loss/∂b = Σ_samples δ',   δ = (Wᵀ δ') ⊙ σ'(h).
"""

from __future__ import annotations

import torch
from torch import Tensor

from richbook.measure.inputs import to_float64
from richbook.train.models import initial_weights
from richbook.train.settings import TrainingSettings

#: σ in place: each is applied to a product that nothing else holds.
ACTIVATE = {"relu": torch.relu_, "tanh": torch.tanh_, "linear": lambda values: values}
#: (δ, σ(z)) -> δ ⊙ σ'(z), by the kernels of autograd: a boolean mask takes ten times as long.
BACKWARD = {
    "relu": lambda delta, activated: torch.ops.aten.threshold_backward(delta, activated, 0),
    "tanh": torch.ops.aten.tanh_backward,
    "linear": lambda delta, activated: delta,
}

#: Bytes of the largest array of one step, per thread, that a processor's nearest caches take.
CACHED = 1024 * 1024
#: Bytes of the features of all networks on another device.
HELD = 2**30


def networks_at_once(settings: TrainingSettings, shape: torch.Size, device: torch.device) -> int:
    """How many networks to train as one ensemble on inputs of ``shape`` (n, d).

    A processor is fastest while what one step touches stays in its caches; any other device takes
    as many as its memory is sure to hold.
    """
    samples, inputs = shape
    if device.type != "cpu":
        return max(1, HELD // (4 * samples * settings.width))
    largest = 4 * max(inputs, settings.width) * max(settings.batch_size, settings.width)
    return max(1, CACHED * torch.get_num_threads() // largest)


class Ensemble:
    """K multilayer perceptrons that differ in weight decay, target scale, learning rate and seed.

    Args:
        settings: one per network; they agree in everything but those four.
        inputs, outputs: d and C.
        device: where to hold and train them.

    Attributes:
        weights: of each layer, the head last, (K, out, in).
        biases: of each layer, (K, out, 1).
    """

    def __init__(
        self, settings: list[TrainingSettings], inputs: int, outputs: int, device: torch.device
    ) -> None:
        self.shape = settings[0]
        drawn = {
            seed: initial_weights(inputs, outputs, self.shape.replace(seed=seed))
            for seed in {s.seed for s in settings}
        }
        layers = zip(*(drawn[s.seed] for s in settings), strict=True)
        self.weights = [torch.stack(layer).to(device) for layer in layers]
        self.biases = [torch.zeros_like(weight[..., :1]) for weight in self.weights]
        self.weight_velocities = [torch.zeros_like(weight) for weight in self.weights]
        self.bias_velocities = [torch.zeros_like(bias) for bias in self.biases]
        self.weight_decay = _one_each([s.weight_decay for s in settings], device)
        self.learning_rate = _one_each([s.learning_rate for s in settings], device)
        self.activate = ACTIVATE[self.shape.activation]
        self.backward = BACKWARD[self.shape.activation]

    def features(self, inputs: Tensor) -> Tensor:
        """Φ of every network: inputs (n, d) or (K, n, d) -> (K, n, width)."""
        return self._hidden(inputs)[-1].mT

    def head(self, features: Tensor) -> Tensor:
        """f̂ of every network from its features: (K, n, width) -> (K, n, C)."""
        return self._layer(-1, features.mT).mT

    def descend(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """One step on inputs (B, d) for all networks, or (K, B, d), with targets (K, B, C). Returns
        the losses before it, (K,).

        The velocity becomes momentum · velocity + gradient + decay · parameters, and the parameters
        lose learning rate · velocity, as in ``torch.optim.SGD``.
        """
        samples = inputs.shape[-2]
        hidden = self._hidden(inputs)
        residual = self._layer(-1, hidden[-1]) - targets.mT  # (K, C, B)
        losses = residual.square().sum((-2, -1)) / samples
        delta = residual * (2 / samples)
        for layer in reversed(range(len(self.weights))):
            below, delta_below = hidden[layer], None
            if layer:  # through the weights as they are before the update
                delta_below = self.backward(torch.bmm(self.weights[layer].mT, delta), below)
            self._update(layer, delta, below)
            delta = delta_below
        return losses

    def parameter_norms(self) -> Tensor:
        """‖θ‖² of every network in float64, shape (K,)."""
        return sum(to_float64(v).square().sum((1, 2)) for v in (*self.weights, *self.biases))

    def _hidden(self, inputs: Tensor) -> list[Tensor]:
        """The inputs, (d, n) or (K, d, n), and every hidden layer's activations (K, width, n)."""
        values = [inputs.mT]
        for layer in range(len(self.weights) - 1):
            values.append(self.activate(self._layer(layer, values[-1])))
        return values

    def _layer(self, layer: int, values: Tensor) -> Tensor:
        weight, bias = self.weights[layer], self.biases[layer]
        if values.ndim == 2:  # one batch for all networks: their layers are one tall matrix
            tall = torch.addmm(bias.flatten(0, 1), weight.flatten(0, 1), values)
            return tall.unflatten(0, weight.shape[:2])
        return torch.baddbmm(bias, weight, values)

    def _update(self, layer: int, delta: Tensor, below: Tensor) -> None:
        weight, velocity = self.weights[layer], self.weight_velocities[layer]
        if below.ndim == 2:
            velocity.flatten(0, 1).addmm_(delta.flatten(0, 1), below.mT, beta=self.shape.momentum)
        else:
            velocity.baddbmm_(delta, below.mT, beta=self.shape.momentum)
        velocity.addcmul_(weight, self.weight_decay)
        weight.addcmul_(velocity, self.learning_rate, value=-1)
        bias, velocity = self.biases[layer], self.bias_velocities[layer]
        velocity.mul_(self.shape.momentum).add_(delta.sum(-1, keepdim=True))
        velocity.addcmul_(bias, self.weight_decay)
        bias.addcmul_(velocity, self.learning_rate, value=-1)


def _one_each(values: list[float], device: torch.device) -> Tensor:
    """One number a network, shaped to multiply its parameters: (K, 1, 1)."""
    return torch.tensor(values, dtype=torch.float32, device=device)[:, None, None]
