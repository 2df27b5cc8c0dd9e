"""Rich without a rule: a network that learns shuffled labels by heart.

A share of the training pictures swap labels among themselves. Every network is trained until it
names nearly all its training pictures, and then asked how rich it is and what it knows of new ones.

Nam et al., "Decoupling Dynamical Richness from Representation Learning", ICLR 2026.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
import xarray as xr
from torch import Tensor

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

#: Test accuracy and D_LR of the paper, on CIFAR-10.
PAPER = {0.0: (0.950, 0.031), 1.0: (0.095, 0.034)}
#: Apart from the seeds of initial weights and of batches.
SHUFFLE_SEED = 3_000_017
#: Training accuracy from which a network counts as having learned its labels.
LEARNED = 0.99
#: A network counts as rich once D_LR is below this share of what it was before training.
RICH = 0.25


@dataclass(frozen=True)
class ShuffledLabels(PictureConfig):
    """ResNet-18 on the first ``train_images``, of which a share have shuffled labels."""

    values: tuple = (0.0, 0.25, 0.5, 0.75, 1.0)
    steps: int = 390 * 100
    data: str = "cifar10"


def shuffled(labels: Tensor, share: float, seed: int) -> Tensor:
    """Labels (n,), of which ⌊share · n⌉ have been permuted among themselves.

    Each class keeps its number of samples. About one in C of the permuted labels is right by
    chance. Of one seed, the samples that a smaller share permutes are among those of a larger one.

    Example:
        >>> labels = torch.arange(10).repeat(100)
        >>> mixed = shuffled(labels, 0.5, seed=0)
        >>> 0.4 < float((mixed != labels).float().mean()) < 0.5, mixed.bincount().tolist()[:3]
        (True, [100, 100, 100])
    """
    generator = torch.Generator().manual_seed(SHUFFLE_SEED + seed)
    chosen = torch.randperm(len(labels), generator=generator)[: round(share * len(labels))]
    order = torch.randperm(len(chosen), generator=generator)
    chosen, order = chosen.to(labels.device), order.to(labels.device)
    mixed = labels.clone()
    mixed[chosen] = labels[chosen[order]]
    return mixed


def build(config: ShuffledLabels, value: float, seed: int, device: torch.device) -> Trial:
    """A ResNet-18 that learns labels of which this share are shuffled."""
    pictures = load_pictures(config, device)
    labels = shuffled(pictures.train_labels, value, seed)
    pictures = dataclasses.replace(pictures, train_labels=labels)
    network = ResNet(pictures.channels, pictures.classes, width=config.width, seed=seed)
    return picture_trial(config, network, pictures, seed, device)


def finding(result: xr.Dataset) -> Finding:
    """All labels learned, rich with shuffled ones as with true ones, and useful only once?

    "partly" if only the last of the three holds.
    """
    first, end = result.isel(step=0), result.isel(step=-1)
    before = first.d_lr.sel(shuffled_fraction=0.0)
    least = float(end.train_accuracy.min())
    true, mixed = (end.sel(shuffled_fraction=share) for share in (0.0, 1.0))
    rich = bool((end.d_lr < RICH * first.d_lr).sel(shuffled_fraction=[0.0, 1.0]).all())
    useful_once = bool(((true.test_accuracy > 0.5) & (mixed.test_accuracy < 0.2)).all())
    learned = least >= LEARNED
    there = at_equal_loss(result, "d_lr")
    return Finding(
        "yes" if learned and rich and useful_once else "partly" if useful_once else "no",
        f"{what_was_trained(result)}every network names at least {least:.1%} of its training "
        f"pictures as it was told. D_LR, {spread(before, '.2f')} before training, ends at "
        f"{spread(true.d_lr, '.3f')} with true labels and at {spread(mixed.d_lr, '.3f')} with "
        f"shuffled ones (at the training loss {common_loss(result):.2g}: "
        f"{spread(there.sel(shuffled_fraction=0.0), '.3f')} and "
        f"{spread(there.sel(shuffled_fraction=1.0), '.3f')}); the used share of the kernel is "
        f"{spread(true.inside_share, '.3f')} and {spread(mixed.inside_share, '.3f')}, the evenness "
        f"of the used part {spread(true.inside_cosine, '.3f')} and "
        f"{spread(mixed.inside_cosine, '.3f')}, NC1 {spread(true.nc1, '.3f')} and "
        f"{spread(mixed.nc1, '.3f')}. Test accuracy is "
        f"{spread(true.test_accuracy, '.1%')} and {spread(mixed.test_accuracy, '.1%')}.",
    )


def _rows() -> tuple[Row | DerivedRow, ...]:
    rows = []
    for share in ShuffledLabels.values:
        name, at = f"{share:.0%} of the labels shuffled", {"shuffled_fraction": share}
        rows += [*end_rows(name, at, PAPER.get(share, UNKNOWN)), equal_loss_row(name, at)]
    return tuple(rows)


RECIPE = Recipe(
    name="shuffled-labels",
    question="Is a network that learns shuffled labels by heart as rich as with true ones?",
    axis="shuffled_fraction",
    build=build,
    variants={
        "real": ShuffledLabels(),
        "stand-in": ShuffledLabels(
            data="fashion-mnist",
            train_images=2000,
            test_images=2000,
            average=2,
            width=16,
            learning_rate=0.02,
            records=16,
            steps=390,
        ),
        "quick": ShuffledLabels(
            data="digits", seeds=1, steps=12, records=4, width=4, batch_size=32
        ),
    },
    rows=_rows(),
    finding=finding,
    curves=CURVES,
)
