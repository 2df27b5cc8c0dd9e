"""What the recipes with convolutional networks share: pictures, training, and what is recorded.

All pictures stay on the device, in channels-last order, and are not augmented. On a GPU the forward
pass of training runs in bfloat16; what is recorded is computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from richbook.experiments.measuring import (
    accuracy,
    class_measures,
    cosine_factors,
    forward,
    kernel_measures,
)
from richbook.experiments.recipe import Config
from richbook.experiments.trial import Batches, Trial
from richbook.measure import parameter_norm
from richbook.train.data import load_data
from richbook.train.recording import centred_targets
from richbook.train.settings import log_steps
from richbook.train.vision import as_pictures

#: Devices on which the forward pass of training runs in bfloat16.
BFLOAT16_DEVICES = ("cuda",)
#: The curves are kept up to this k.
LONGEST_CURVE = 64
#: Pictures from which batch norm takes its first running statistics.
FIRST_STATISTICS = 1000
#: Dimensions of what is recorded and not a scalar.
CURVES = {"relative_eigenvalue": ("k",), "utilization": ("k",), "quality": ("k",)}


@dataclass(frozen=True)
class PictureConfig(Config):
    """Cross-entropy, stochastic gradient descent with momentum, a rate that falls like a cosine.

    Attributes:
        train_images, test_images: so many of the first ones, or all.
        measured_images: so many of the first training pictures, or all, are what is measured.
        average: pictures are averaged over squares of so many pixels a side.
        width: channels of the first layer.
        batch_size, learning_rate, momentum, weight_decay: of the training.
    """

    data: str = "cifar100"
    records: int = 24
    train_images: int | None = None
    test_images: int | None = None
    measured_images: int | None = 10_000
    average: int = 1
    width: int = 64
    batch_size: int = 128
    learning_rate: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 5e-4

    def record_at(self) -> list[int]:
        """Half of the steps are spaced evenly on a log axis, the other half on a linear one."""
        half = max(self.records // 2, 2)
        linear = np.linspace(0, self.steps, half + 1).round().astype(int).tolist()
        return sorted({*log_steps(self.steps, half), *linear})


@dataclass(frozen=True)
class Pictures:
    """Pictures (n, channels, height, width) and labels (n,), on the device."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    classes: int

    @property
    def channels(self) -> int:
        """1 for grey pictures, 3 for colour."""
        return self.train.shape[1]


def load_pictures(config: PictureConfig, device: torch.device) -> Pictures:
    """The configuration's part of its data set."""
    data = load_data(config.data)

    def ready(inputs: Tensor, count: int | None) -> Tensor:
        pictures = as_pictures(inputs[:count], data.image_shape).to(device)
        if config.average > 1:
            pictures = functional.avg_pool2d(pictures, config.average)
        return pictures.contiguous(memory_format=torch.channels_last)

    return Pictures(
        ready(data.train_inputs, config.train_images),
        data.train_labels[: config.train_images].to(device),
        ready(data.test_inputs, config.test_images),
        data.test_labels[: config.test_images].to(device),
        data.classes,
    )


def picture_trial(
    config: PictureConfig,
    network: nn.Module,
    pictures: Pictures,
    seed: int,
    device: torch.device,
    learning_rate: float | None = None,
) -> Trial:
    """Train a network that has ``features`` and ``head``, and record all that the recipes compare.

    Args:
        config: how to train.
        network: see ``richbook.train.vision``.
        pictures: what to train and test with.
        seed: of the batches.
        device: where the pictures are and the network goes.
        learning_rate: in place of the configuration's.
    """
    network = network.to(device, memory_format=torch.channels_last)
    start_statistics(network, pictures.train[:FIRST_STATISTICS])
    optimizer = torch.optim.SGD(
        network.parameters(),
        lr=config.learning_rate if learning_rate is None else learning_rate,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
    )
    batches = Batches(len(pictures.train), config.batch_size, seed, device)

    def loss(step: int) -> Tensor:
        index = batches(step)
        half = device.type in BFLOAT16_DEVICES
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            outputs = network(pictures.train[index])
        return functional.cross_entropy(outputs.float(), pictures.train_labels[index])

    def factor(step: int) -> float:
        return 0.5 * (1 + math.cos(math.pi * (step - 1) / config.steps))

    return Trial(network, optimizer, loss, _recorder(config, network, pictures), factor)


def start_statistics(network: nn.Module, pictures: Tensor) -> None:
    """Let batch norm's running statistics start as those of these pictures, instead of 0 and 1.

    So the network that is measured at step 0 is the one that training sees.
    """
    layers = [
        each for each in network.modules() if isinstance(each, nn.modules.batchnorm._BatchNorm)
    ]
    usual = [layer.momentum for layer in layers]
    network.train()
    for layer in layers:
        layer.momentum = 1.0
    with torch.no_grad():
        network(pictures)
    for layer, momentum in zip(layers, usual, strict=True):
        layer.momentum = momentum


def _recorder(config: PictureConfig, network: nn.Module, pictures: Pictures) -> Callable[[], dict]:
    measured = pictures.train[: config.measured_images]
    labels = pictures.train_labels[: config.measured_images]
    targets = centred_targets(labels, pictures.classes)
    network.eval()
    with torch.no_grad():
        initial, _ = forward(network.features, network.head, measured)

    def measure() -> dict:
        features, outputs = forward(network.features, network.head, measured)
        _, test_outputs = forward(network.features, network.head, pictures.test)
        kernel = kernel_measures(features, outputs, targets)
        inside_share, inside_cosine = cosine_factors(features, outputs)
        for name in CURVES:
            kernel[name] = kernel[name][:LONGEST_CURVE]
        return {
            "train_loss": functional.cross_entropy(outputs, labels),
            "train_accuracy": accuracy(outputs, labels),
            "test_loss": functional.cross_entropy(test_outputs, pictures.test_labels),
            "test_accuracy": accuracy(test_outputs, pictures.test_labels),
            "parameter_norm": parameter_norm(network),
            "inside_share": inside_share,
            "inside_cosine": inside_cosine,
            **kernel,
            **class_measures(features, labels, initial),
        }

    return measure
