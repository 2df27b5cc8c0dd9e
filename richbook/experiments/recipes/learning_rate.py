"""Learning rate and richness: is the rate that generalises best the one that trains richest?

A ResNet-18 for small pictures, with one learning rate after another. D_LR falls for as long as the
head is being fitted, so the networks are also compared where they have the same training loss.

Nam et al., "Decoupling Dynamical Richness from Representation Learning", ICLR 2026.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import xarray as xr

from richbook.experiments.recipe import Finding, Recipe, Row
from richbook.experiments.recipes.pictures import (
    CURVES,
    EqualLossRow,
    PictureConfig,
    load_pictures,
    picture_trial,
)
from richbook.experiments.trial import Trial
from richbook.train.vision import ResNet

#: Test accuracy and D_LR of the paper, ResNet-18 on CIFAR-100.
PAPER = {0.005: (0.663, 0.053), 0.05: (0.783, 0.025), 0.2: (0.745, 0.039)}


@dataclass(frozen=True)
class LearningRate(PictureConfig):
    """ResNet-18; ``stride`` is that of its first convolution."""

    values: tuple = (0.005, 0.02, 0.05, 0.2, 0.8)
    steps: int = 390 * 60


def build(config: LearningRate, value: float, seed: int, device: torch.device) -> Trial:
    """A ResNet-18 that learns with this rate."""
    pictures = load_pictures(config, device)
    network = ResNet(pictures.channels, pictures.classes, width=config.width, seed=seed)
    return picture_trial(config, network, pictures, seed, device, learning_rate=value)


