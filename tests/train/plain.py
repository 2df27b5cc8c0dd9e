"""Training written out with torch's modules and optimiser, to compare the package with."""

import torch
from torch import nn

from richbook.train import MLP, load_data
from richbook.train.single import batches

SMALL = {"width": 24, "batch_size": 32}
ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "linear": nn.Identity}


def initial_network(settings, device="cpu"):
    """An nn.Sequential that starts from the package's initial weights."""
    data = load_data(settings.data)
    source = MLP(data.train_inputs.shape[1], data.classes, settings)
    parts = []
    for linear in source.hidden:
        parts += [_copy(linear), ACTIVATIONS[settings.activation]()]
    return nn.Sequential(*parts, _copy(source.head)).to(device)


def _copy(linear):
    out, into = linear.weight.shape
    copied = nn.Linear(into, out)
    copied.load_state_dict(linear.state_dict())
    return copied


def targets(settings):
    """s·(one-hot − 1/C), shape (n, C)."""
    data = load_data(settings.data)
    codes = torch.zeros(len(data.train_labels), data.classes)
    codes[torch.arange(len(codes)), data.train_labels] = 1.0
    return settings.target_scale * (codes - 1 / data.classes)


def loop(settings, device="cpu"):
    """Train step by step: yields the loss of each batch and the network after the step."""
    inputs = load_data(settings.data).train_inputs.to(device)
    wanted = targets(settings).to(device)
    network = initial_network(settings, device)
    optimiser = torch.optim.SGD(
        network.parameters(),
        lr=settings.learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )
    for _, index in zip(range(settings.steps), batches(settings, len(inputs)), strict=False):
        index = index.to(device)
        optimiser.zero_grad()
        loss = ((network(inputs[index]) - wanted[index]) ** 2).sum(1).mean()
        loss.backward()
        optimiser.step()
        yield float(loss.detach()), network


def train_loss(network, settings):
    """Squared error summed over outputs, averaged over all training samples."""
    inputs = load_data(settings.data).train_inputs
    with torch.no_grad():
        return float(((network.cpu()(inputs) - targets(settings)) ** 2).sum(1).mean())
