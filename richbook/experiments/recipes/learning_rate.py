"""Learning rate and richness: is the rate that generalises best the one that trains richest?

A ResNet-18 for small pictures, with one learning rate after another. D_LR falls for as long as the
head is being fitted, so the networks are also compared where they have the same training loss.

Nam et al., "Decoupling Dynamical Richness from Representation Learning", ICLR 2026.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import xarray as xr

from richbook.experiments.comparing import at_equal_loss, common_loss
from richbook.experiments.recipe import DerivedRow, Finding, Recipe, Row
from richbook.experiments.recipes.pictures import (
    CURVES,
    PictureConfig,
    load_pictures,
    picture_trial,
)
from richbook.experiments.recipes.telling import (
    UNKNOWN,
    end_rows,
    equal_loss_row,
    spread,
    what_was_trained,
)
from richbook.experiments.trial import Trial
from richbook.train.vision import ResNet

#: Test accuracy and D_LR of the paper, ResNet-18 on CIFAR-100.
PAPER = {0.005: (0.663, 0.053), 0.05: (0.783, 0.025), 0.2: (0.745, 0.039)}


@dataclass(frozen=True)
class LearningRate(PictureConfig):
    """ResNet-18 with each of these learning rates."""

    values: tuple = (0.001, 0.005, 0.02, 0.05, 0.2)
    steps: int = 390 * 60


def build(config: LearningRate, value: float, seed: int, device: torch.device) -> Trial:
    """A ResNet-18 that learns with this rate."""
    pictures = load_pictures(config, device)
    network = ResNet(pictures.channels, pictures.classes, width=config.width, seed=seed)
    return picture_trial(config, network, pictures, seed, device, learning_rate=value)


def finding(result: xr.Dataset) -> Finding:
    """Is the rate with the best mean test accuracy the one with the lowest mean D_LR?

    "partly" if it is not, but the richest is at least as good in some seed.
    """
    end = result.isel(step=-1)
    best = end.test_accuracy.mean("seed").idxmax().item()
    richest = end.d_lr.mean("seed").idxmin().item()
    at_best, at_richest = end.sel(learning_rate=best), end.sel(learning_rate=richest)
    near = bool((at_richest.test_accuracy >= at_best.test_accuracy).any())
    same = "yes" if best == richest else "partly" if near else "no"
    both = end.test_accuracy.idxmax("learning_rate") == end.d_lr.idxmin("learning_rate")
    there = at_equal_loss(result, "d_lr")
    lowest, highest = (there.isel(learning_rate=place) for place in (0, -1))
    richest_there = there.mean("seed").idxmin().item()
    return Finding(
        same,
        f"{what_was_trained(result)}the best rate is {best:g} ({_numbers(at_best)}) and the "
        f"richest is {richest:g} ({_numbers(at_richest)}); they are the same in "
        f"{int(both.sum())} of {both.size} seeds. Where all have the training loss "
        f"{common_loss(result):.2g}, D_LR is {spread(lowest, '.3f')} at the lowest rate, "
        f"{spread(highest, '.3f')} at the highest, and least at {richest_there:g} "
        f"({spread(there.sel(learning_rate=richest_there), '.3f')}).",
    )


def _numbers(networks: xr.Dataset) -> str:
    return f"test {spread(networks.test_accuracy, '.1%')}, D_LR {spread(networks.d_lr, '.3f')}"


def _rows() -> tuple[Row | DerivedRow, ...]:
    rows = []
    for rate in LearningRate.values:
        name, at = f"ResNet-18, learning rate {rate:g}", {"learning_rate": rate}
        rows += [*end_rows(name, at, PAPER.get(rate, UNKNOWN)), equal_loss_row(name, at)]
    return tuple(rows)


RECIPE = Recipe(
    name="learning-rate",
    question="Is the learning rate that generalises best the one that trains richest?",
    axis="learning_rate",
    build=build,
    variants={
        "real": LearningRate(),
        "stand-in": LearningRate(
            data="fashion-mnist",
            train_images=2500,
            test_images=2000,
            average=2,
            width=16,
            records=16,
            steps=390,
        ),
        "quick": LearningRate(data="digits", seeds=1, steps=12, records=4, width=4, batch_size=32),
    },
    rows=_rows(),
    finding=finding,
    curves=CURVES,
)
