"""Batch norm and richness: is a VGG without it lazy, or has it only not been trained?

The same layers three times: without batch norm and with PyTorch's default initial weights, as in
the paper; without it, but with He's initial weights, from which it trains; and with it. Networks
that train are also compared where they have the same training loss.

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
    before_training_row,
    end_rows,
    equal_loss_row,
    spread,
    what_was_trained,
)
from richbook.experiments.trial import Trial
from richbook.train.vision import VGG

WITHOUT, WITHOUT_HE, WITH = "without", "without, He", "with"
#: Test accuracy and D_LR of the paper, VGG-16 on CIFAR-100.
PAPER = {WITHOUT: (0.217, 0.66), WITH: (0.720, 0.073)}
#: Those of which one can expect that they train.
TRAINED = {"network": [WITHOUT_HE, WITH]}
AT_EQUAL_LOSS = ("d_lr", "s_init", "inside_cosine")
#: A kernel counts as lazy if S_init is below this share of what it is with batch norm.
STAYED = 0.5


@dataclass(frozen=True)
class BatchNorm(PictureConfig):
    """VGG-16, or with other ``blocks`` of convolutions and ``hidden`` linear layers.

    Without batch norm, He's weights need a lower rate than what trains with it.
    """

    values: tuple = (WITHOUT, WITHOUT_HE, WITH)
    steps: int = 390 * 60
    blocks: tuple = (2, 2, 3, 3, 3)
    hidden: tuple = (512, 512)
    he_learning_rate: float = 0.02


def build(config: BatchNorm, value: str, seed: int, device: torch.device) -> Trial:
    """A VGG-16 with or without batch norm."""
    pictures = load_pictures(config, device)
    network = VGG(
        pictures.channels,
        pictures.classes,
        width=config.width,
        blocks=config.blocks,
        hidden=config.hidden,
        batch_norm=value == WITH,
        initialization="he" if value == WITHOUT_HE else "default",
        seed=seed,
    )
    rate = config.he_learning_rate if value == WITHOUT_HE else config.learning_rate
    return picture_trial(config, network, pictures, seed, device, learning_rate=rate)


def finding(result: xr.Dataset) -> Finding:
    """Lazier without batch norm at the end, and also where both networks have the same loss?

    "yes" if so by D_LR, in every seed, and if the kernel of the network from He's weights has also
    moved much less, as that of a lazy network would; "partly" if only some of this holds. A D_LR
    that is 0/0, because the outputs do not depend on the picture, does not count as rich.
    """
    end = result.isel(step=-1)
    without, he, norm = (end.sel(network=name) for name in BatchNorm.values)
    chosen = result.sel(TRAINED)
    there = xr.Dataset({name: at_equal_loss(chosen, name) for name in AT_EQUAL_LOSS})
    he_there, norm_there = (there.sel(network=name) for name in (WITHOUT_HE, WITH))
    at_end = not bool((without.d_lr <= norm.d_lr).any())
    at_loss = bool((he_there.d_lr > norm_there.d_lr).all())
    stayed = bool((he_there.s_init < STAYED * norm_there.s_init).all())
    before = result.isel(step=0).d_lr.sel(network=WITHOUT)
    same = "yes" if at_end and at_loss and stayed else "partly" if at_end or at_loss else "no"
    return Finding(
        same,
        f"{what_was_trained(result)}D_LR ends at {spread(without.d_lr, '.3f')} without batch norm "
        f"and at {spread(norm.d_lr, '.3f')} with it. But the first network names "
        f"{spread(without.train_accuracy, '.0%')} of its training pictures, and before training "
        f"its D_LR was {spread(before, '.3f')}. From He's weights it trains without batch norm "
        f"({spread(he.train_accuracy, '.0%')}). Where both have the training loss "
        f"{common_loss(chosen):.2g}, {_compared(he_there, norm_there, 'd_lr', 'D_LR')}; "
        f"{_compared(he_there, norm_there, 's_init', 'how far the kernel has moved, S_init,')}; "
        f"{_compared(he_there, norm_there, 'inside_cosine', 'the evenness of its used part')}.",
    )


def _compared(without: xr.Dataset, norm: xr.Dataset, variable: str, words: str) -> str:
    shown = spread(without[variable], ".3f"), spread(norm[variable], ".3f")
    return f"{words} is {shown[0]} without and {shown[1]} with batch norm"


def _rows() -> tuple[Row | DerivedRow, ...]:
    rows = []
    for network in BatchNorm.values:
        at, name = {"network": network}, f"VGG, {network} batch norm"
        if network == WITHOUT_HE:
            name = "VGG, without batch norm, He's initial weights"
        rows += [*end_rows(name, at, PAPER.get(network, UNKNOWN)), before_training_row(name, at)]
        if network != WITHOUT:
            rows.append(equal_loss_row(name, at, among=TRAINED))
    return tuple(rows)


RECIPE = Recipe(
    name="batch-norm",
    question="Is a network without batch norm lazy, or has it only not been trained?",
    axis="network",
    build=build,
    variants={
        "real": BatchNorm(),
        "stand-in": BatchNorm(
            data="fashion-mnist",
            train_images=2500,
            test_images=2000,
            average=2,
            width=16,
            blocks=(2, 2, 3, 3),
            hidden=(128,),
            records=16,
            steps=600,
        ),
        "quick": BatchNorm(
            data="digits",
            seeds=1,
            steps=30,
            records=4,
            width=8,
            blocks=(1, 2),
            hidden=(32,),
            batch_size=32,
        ),
    },
    rows=_rows(),
    finding=finding,
    curves=CURVES,
)
