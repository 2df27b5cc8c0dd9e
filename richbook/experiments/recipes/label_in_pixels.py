"""Rich and useless: MNIST with the label written into ten pixels of every training image.

The first ten pixels are set to the background, and the one whose number is the label to white. All
layers of one network learn; of the other only the last. Three things can happen to the ten pixels
of a test image: they keep a code, but that of a class drawn at random; they stay empty; or, as a
control, they hold the right label.

Nam et al., "Decoupling Dynamical Richness from Representation Learning", ICLR 2026.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import xarray as xr
from torch import Tensor

from richbook.experiments.measuring import accuracy, class_measures, forward, kernel_measures
from richbook.experiments.recipe import Config, Finding, Recipe, Row
from richbook.experiments.trial import Batches, Trial
from richbook.train.data import load_data
from richbook.train.models import MLP
from richbook.train.recording import centred_targets, squared_error
from richbook.train.settings import TrainingSettings


@dataclass(frozen=True)
class LabelInPixels(Config):
    """The first ``train_images`` and ``test_images``; Adam on the squared error of centred one-hot
    targets. ``width`` and ``depth`` are those of the hidden layers."""

    values: tuple = ("all layers", "last layer")
    steps: int = 1500
    data: str = "mnist"
    train_images: int = 10_000
    test_images: int = 5_000
    width: int = 512
    depth: int = 3
    batch_size: int = 128
    learning_rate: float = 1e-3


def with_code(images: Tensor, codes: Tensor | None, classes: int) -> Tensor:
    """Images (n, d) whose first pixels hold a one-hot code, or nothing where ``codes`` is None."""
    coded = images.clone()
    coded[:, :classes] = images.min()
    if codes is not None:
        coded[torch.arange(len(coded), device=coded.device), codes] = images.max()
    return coded


def build(config: LabelInPixels, value: str, seed: int, device: torch.device) -> Trial:
    """A multilayer perceptron of which all layers learn, or the last."""
    data = load_data(config.data)
    labels = data.train_labels[: config.train_images].to(device)
    images = data.train_inputs[: config.train_images].to(device)
    train = with_code(images, labels, data.classes)
    targets = centred_targets(labels, data.classes)
    test_labels = data.test_labels[: config.test_images].to(device)
    test_images = data.test_inputs[: config.test_images].to(device)
    draw = torch.Generator().manual_seed(seed)
    random_codes = torch.randint(data.classes, (len(test_labels),), generator=draw).to(device)
    tests = {
        "random_code": with_code(test_images, random_codes, data.classes),
        "no_code": with_code(test_images, None, data.classes),
        "right_code": with_code(test_images, test_labels, data.classes),
    }
    shape = TrainingSettings(
        width=config.width, depth=config.depth, seed=seed, zero_head=False, data=config.data
    )
    network = MLP(images.shape[1], data.classes, shape).to(device)
    initial = network.features(train).detach()
    learned = network.parameters() if value == "all layers" else network.head.parameters()
    batches = Batches(len(train), config.batch_size, seed, device)

    def loss(step: int) -> Tensor:
        index = batches(step)
        return squared_error(network(train[index]), targets[index])

    def measure() -> dict:
        features, outputs = forward(network.features, network.head, train)
        return {
            "train_loss": squared_error(outputs, targets),
            "train_accuracy": accuracy(outputs, labels),
            **kernel_measures(features, outputs, targets),
            **class_measures(features, labels, initial),
            **{
                f"test_accuracy_{name}": accuracy(network(test), test_labels)
                for name, test in tests.items()
            },
        }

    return Trial(network, torch.optim.Adam(learned, lr=config.learning_rate), loss, measure)


def finding(result: xr.Dataset) -> Finding:
    """Richer and worse, in every seed?"""
    end = result.isel(step=-1)
    rich, lazy = end.sel(trained="all layers"), end.sel(trained="last layer")
    richer = bool((rich.d_lr < lazy.d_lr).all())
    worse = all(
        bool((rich[name] < lazy[name]).all())
        for name in ("test_accuracy_random_code", "test_accuracy_no_code")
    )
    same = "yes" if richer and worse else "partly" if richer or worse else "no"
    return Finding(
        same,
        f"The network that learns in all layers is {float(lazy.d_lr.mean() / rich.d_lr.mean()):.0f} "
        "times closer to the minimum projection, and reads the code instead of the digit: with the "
        f"ten pixels empty it still names {float(rich.test_accuracy_no_code.mean()):.0%} of the "
        f"digits, against {float(lazy.test_accuracy_no_code.mean()):.0%} of the lazy one.",
    )


def _rows() -> tuple[Row, ...]:
    rows = []
    papers = {"all layers": (0.0087, 0.100), "last layer": (0.63, 0.744)}
    for trained, (paper_d_lr, paper_accuracy) in papers.items():
        at = {"trained": trained}
        name = f"MNIST, label in ten pixels, {trained} trained"
        rows.append(Row(f"{name}: D_LR", "d_lr", at, paper_d_lr))
        rows.append(
            Row(
                f"{name}: test accuracy, random code",
                "test_accuracy_random_code",
                at,
                paper_accuracy,
            )
        )
        rows.append(Row(f"{name}: test accuracy, no code", "test_accuracy_no_code", at))
    return tuple(rows)


RECIPE = Recipe(
    name="label-in-pixels",
    question="Is a richer network a better one, when the label is written into the image?",
    axis="trained",
    build=build,
    variants={
        "full": LabelInPixels(),
        "quick": LabelInPixels(
            seeds=1, steps=60, records=4, train_images=600, test_images=300, width=64, depth=2
        ),
    },
    rows=_rows(),
    finding=finding,
    curves={"relative_eigenvalue": ("k",), "utilization": ("k",), "quality": ("k",)},
)
