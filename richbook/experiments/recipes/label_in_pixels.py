"""Rich and useless: MNIST with the label written into ten pixels of every training image.

The first ten pixels are set to black, and the one whose number is the label to white. All layers of
one network learn; of another only the last; a third learns in all layers too, but targets whose
mean over the classes has been subtracted. Three things can happen to the ten pixels of a test
image: they hold the code of a class drawn at random; they stay empty; or, as a control, they hold
the right label.

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
    """The first ``train_images`` and ``test_images``, pixels from 0 to 1; Adam on the squared error
    of one-hot targets, summed over classes. ``width`` and ``depth`` are those of the hidden layers,
    which start as PyTorch's linear layers do, with biases of zero."""

    values: tuple = ("all layers", "last layer", "all layers, centred targets")
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
    coded[:, :classes] = 0.0
    if codes is not None:
        coded[torch.arange(len(coded), device=coded.device), codes] = 1.0
    return coded


def network_like_pytorchs(inputs: int, classes: int, config: LabelInPixels, seed: int) -> MLP:
    """A perceptron whose weights have the spread of ``torch.nn.Linear``'s, 1/√(3 · fan in)."""
    shape = TrainingSettings(
        width=config.width, depth=config.depth, seed=seed, zero_head=False, data=config.data
    )
    network = MLP(inputs, classes, shape)  # spread √(2/fan in) in hidden layers, √(1/fan in) above
    with torch.no_grad():
        for layer in network.hidden:
            layer.weight.mul_(6**-0.5)
        network.head.weight.mul_(3**-0.5)
    return network


def pictures(config: LabelInPixels, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and labels, test images and labels; pixels from 0, black, to 1, white."""
    data = load_data(config.data)
    black, white = data.train_inputs.min(), data.train_inputs.max()
    train, test = slice(config.train_images), slice(config.test_images)
    return (
        ((data.train_inputs[train] - black) / (white - black)).to(device),
        data.train_labels[train].to(device),
        ((data.test_inputs[test] - black) / (white - black)).to(device),
        data.test_labels[test].to(device),
    )


def coded_tests(images: Tensor, labels: Tensor, classes: int, seed: int) -> dict[str, Tensor]:
    """What a test image may hold in the ten pixels."""
    draw = torch.Generator().manual_seed(seed)
    random_codes = torch.randint(classes, (len(labels),), generator=draw).to(labels.device)
    return {
        "random_code": with_code(images, random_codes, classes),
        "no_code": with_code(images, None, classes),
        "right_code": with_code(images, labels, classes),
    }


def build(config: LabelInPixels, value: str, seed: int, device: torch.device) -> Trial:
    """A multilayer perceptron of which all layers learn, or the last."""
    images, labels, test_images, test_labels = pictures(config, device)
    classes = int(labels.max()) + 1
    train = with_code(images, labels, classes)
    tests = coded_tests(test_images, test_labels, classes, seed)
    targets = centred_targets(labels, classes)
    if not value.endswith("centred targets"):
        targets += 1 / classes
    network = network_like_pytorchs(images.shape[1], classes, config, seed).to(device)
    learned = network.head.parameters() if value == "last layer" else network.parameters()
    initial = network.features(train).detach()
    batches = Batches(len(train), config.batch_size, seed, device)

    def loss(step: int) -> Tensor:
        index = batches(step)
        return squared_error(network(train[index]), targets[index])

    def measure() -> dict:
        features, outputs = forward(network.features, network.head, train)
        tested = {
            f"test_accuracy_{name}": accuracy(network(test), test_labels)
            for name, test in tests.items()
        }
        return tested | {
            "train_loss": squared_error(outputs, targets),
            "train_accuracy": accuracy(outputs, labels),
            **kernel_measures(features, outputs, targets),
            **class_measures(features, labels, initial),
        }

    return Trial(network, torch.optim.Adam(learned, lr=config.learning_rate), loss, measure)


def finding(result: xr.Dataset) -> Finding:
    """Richer in every seed? Worse in every seed, with a random code and with none?"""
    end = result.isel(step=-1)
    rich, lazy = end.sel(trained="all layers"), end.sel(trained="last layer")
    coded, empty = "test_accuracy_random_code", "test_accuracy_no_code"
    claims = [
        bool((rich.d_lr < lazy.d_lr).all()),
        bool((rich[coded] < lazy[coded]).all()),
        bool((rich[empty] < lazy[empty]).all()),
    ]
    same = "yes" if all(claims[:2]) else "partly" if any(claims[:2]) else "no"
    return Finding(
        same,
        f"All layers trained give D_LR {float(rich.d_lr.mean()):.4f} and "
        f"{float(rich[coded].mean()):.0%} of the test images with a random code in them, the last "
        f"layer alone {float(lazy.d_lr.mean()):.2f} and {float(lazy[coded].mean()):.0%}. But with "
        f"the ten pixels empty it is {float(rich[empty].mean()):.0%} against "
        f"{float(lazy[empty].mean()):.0%}: the rich network "
        + ("did not learn the digits." if claims[2] else "knows the digits, and trusts the code."),
    )


def _rows() -> tuple[Row, ...]:
    rows = []
    papers = {
        "all layers": (0.0087, 0.100),
        "last layer": (0.63, 0.744),
        "all layers, centred targets": (None, None),
    }
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
