"""A network small enough to be differentiated by hand, for the checks of chapter 9."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

#: Batches of different sizes, so that a mean over batches is not a mean over samples.
SIZES = (12, 5, 9)


class Itself:
    """Stands for a network that an answer is to get itself, where other arguments are copied.

    What happens to its gradients is seen, and an answer may still work on a copy of its own.

    Example:
        >>> import copy
        >>> network = nn.Linear(2, 2)
        >>> copy.deepcopy([Itself(network)])[0] is network
        True
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network

    def __deepcopy__(self, memo: dict) -> nn.Module:
        return self.network


def small_network(draw: Callable) -> nn.Sequential:
    """A network of two linear layers without biases, in float64; ``draw(*shape)`` draws.

    Example:
        >>> small_network(torch.randn)(torch.zeros(4, 6, dtype=torch.float64)).shape
        torch.Size([4, 3])
    """
    layers = (nn.Linear(6, 7, bias=False), nn.Tanh(), nn.Linear(7, 3, bias=False))
    network = nn.Sequential(*layers).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(draw(*parameter.shape) / 2)
    return network


def small_batches(draw: Callable, generator: torch.Generator) -> list[tuple[Tensor, Tensor]]:
    """Inputs and labels for it, in batches of unequal sizes.

    Example:
        >>> [len(labels) for _, labels in small_batches(torch.randn, torch.Generator())]
        [12, 5, 9]
    """
    return [(draw(n, 6), torch.randint(3, (n,), generator=generator)) for n in SIZES]


def by_sample(network: nn.Module, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """h_b and ∂ℓ/∂h_b of each sample, from the chain rule by hand, both (n, 7).

    Example:
        >>> network = small_network(torch.ones)
        >>> h, gradients = by_sample(network, torch.zeros(1, 6).double(), torch.tensor([0]))
        >>> h.shape, round(abs(float(gradients.sum())), 6)  # all classes get the same output
        (torch.Size([1, 7]), 0.0)
    """
    first, last = network[0].weight.detach(), network[2].weight.detach()
    h = inputs @ first.T
    outputs = h.tanh() @ last.T
    error = outputs.softmax(1) - nn.functional.one_hot(labels, outputs.shape[1])
    return h, error @ last * (1 - h.tanh().square())


def stepped(weights: list[Tensor], batch: tuple, rate: float, decay: float) -> list[Tensor]:
    """One step of SGD with decay, without an optimiser: the new weights.

    Example:
        >>> weights = [torch.zeros(7, 6), torch.zeros(3, 7)]
        >>> first, last = stepped(weights, (torch.ones(2, 6), torch.tensor([0, 1])), 0.1, 0.0)
        >>> bool(first.any()), bool(last.any())  # at zero no gradient passes either of them
        (False, False)
    """
    weights = [w.clone().requires_grad_() for w in weights]
    inputs, labels = batch
    loss = cross_entropy((inputs @ weights[0].T).tanh() @ weights[1].T, labels)
    gradients = torch.autograd.grad(loss, weights)
    pairs = zip(weights, gradients, strict=True)
    return [(w - rate * (g + decay * w)).detach() for w, g in pairs]
