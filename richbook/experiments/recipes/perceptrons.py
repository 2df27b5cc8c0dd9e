"""The multilayer perceptron on digits that three recipes share, with every rival measure."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass

import torch
import xarray as xr
from torch import Tensor

from richbook.experiments.comparing import at_equal_loss, rank_correlation
from richbook.experiments.measuring import accuracy, class_measures, forward, kernel_measures
from richbook.experiments.recipe import Config, DerivedRow, Finding, Recipe
from richbook.experiments.trial import Batches, Trial
from richbook.measure import decompose, ntk_distance, parameter_norm
from richbook.train.data import load_data
from richbook.train.models import MLP
from richbook.train.recording import centred_targets, squared_error
from richbook.train.settings import TrainingSettings

#: What could tell rich from lazy, with the sign that a richer network should give it.
MEASURES = {"d_lr": -1, "s_init": 1, "parameter_norm": 1, "nc1": -1, "ntk_movement": 1}
SYMBOLS = {
    "d_lr": "D_LR",
    "s_init": "S_init",
    "parameter_norm": "‖θ‖²",
    "nc1": "NC1",
    "ntk_movement": "movement of the tangent kernel",
}
#: Rank correlation from which a measure is said to follow.
FOLLOWS = 0.8
CURVES = {"relative_eigenvalue": ("k",), "utilization": ("k",), "quality": ("k",)}


@dataclass(frozen=True)
class Perceptrons(Config):
    """Hidden layers of ``width`` ReLU units, ``depth`` of them, under a head that starts at zero;
    targets ``target_scale`` · (one-hot − 1/C), squared error, SGD with momentum. ``train_images``
    are the first of the training set; ``ntk_images`` the few on which tangent kernels are compared
    (0: they are not)."""

    values: tuple = ()
    steps: int = 3000
    data: str = "digits"
    train_images: int = 1000
    ntk_images: int = 60
    width: int = 64
    depth: int = 2
    batch_size: int = 100
    learning_rate: float = 1e-2
    momentum: float = 0.9
    weight_decay: float = 1e-2
    target_scale: float = 1.0


def build(config: Perceptrons, seed: int, device: torch.device) -> Trial:
    """The trial of one network; the loss is recorded in units of the targets' mean square."""
    data = load_data(config.data)
    inputs = data.train_inputs[: config.train_images].to(device)
    labels = data.train_labels[: config.train_images].to(device)
    targets = config.target_scale * centred_targets(labels, data.classes)
    test_inputs = data.test_inputs.to(device)
    shape = TrainingSettings(width=config.width, depth=config.depth, seed=seed)
    network = MLP(inputs.shape[1], data.classes, shape).to(device)
    start = copy.deepcopy(network)
    initial = start.features(inputs).detach()
    batches = Batches(len(inputs), config.batch_size, seed, device)
    optimizer = torch.optim.SGD(
        network.parameters(),
        lr=config.learning_rate,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
    )

    def loss(step: int) -> Tensor:
        index = batches(step)
        return squared_error(network(inputs[index]), targets[index])

    def measure() -> dict:
        features, outputs = forward(network.features, network.head, inputs)
        measured = {
            "relative_loss": squared_error(outputs, targets) / targets.square().sum(1).mean(),
            "train_accuracy": accuracy(outputs, labels),
            "test_accuracy": accuracy(network(test_inputs), data.test_labels),
            "parameter_norm": parameter_norm(network),
            **class_measures(features, labels, initial),
        }
        if bool(network.head.weight.any()):
            measured |= kernel_measures(features, outputs, targets)
        else:  # a head that is still zero has learned no functions: only the features' own curves
            parts = decompose(features, targets)
            measured["relative_eigenvalue"] = parts.relative_eigenvalues
            measured["quality"] = parts.utilization
        if config.ntk_images:
            few = inputs[: config.ntk_images]
            measured["ntk_movement"] = ntk_distance(network, start, few)
        return measured

    return Trial(network, optimizer, loss, measure)


def knob_recipe(
    name: str, axis: str, question: str, values: tuple, quick: tuple, paper: dict, misled: tuple
) -> Recipe:
    """A recipe that turns one setting of ``Perceptrons`` and asks every measure about it.

    Args:
        name, question: of the recipe.
        axis: the setting, which is also the recipe's axis.
        values, quick: of the setting, in full and for the quick variant.
        paper: what the paper says of each measure.
        misled: the measures that do not follow, according to the paper.
    """
    words = axis.replace("_", " ")
    return Recipe(
        name=name,
        question=question,
        axis=axis,
        build=functools.partial(_build_at, axis),
        variants={
            "full": Perceptrons(values=values),
            "quick": Perceptrons(
                values=quick, seeds=2, steps=120, records=5, width=16, ntk_images=20
            ),
        },
        rows=rows(words, paper),
        finding=functools.partial(knob_finding, words, misled),
        curves=CURVES,
    )


def _build_at(
    axis: str, config: Perceptrons, value: float, seed: int, device: torch.device
) -> Trial:
    return build(config.replace(**{axis: float(value)}), seed, device)


def knob_finding(words: str, misled: tuple, result: xr.Dataset) -> Finding:
    """Does D_LR follow, and do those that the paper calls misled not?"""
    following = follows(result)
    same = "partly" if any(following[name] for name in misled) else "yes"
    return Finding(same if following["d_lr"] else "no", sentence(words, result))


def follows(result: xr.Dataset) -> dict[str, bool]:
    """Whether each measure calls the networks richer along the axis in every seed.

    A measure follows if its rank correlation with the axis is at least ``FOLLOWS`` with the sign
    that richer training should give it.
    """
    return {
        name: bool((sign * rank_correlation(result, name) >= FOLLOWS).all())
        for name, sign in MEASURES.items()
    }


def rows(axis: str, paper: dict[str, str]) -> tuple[DerivedRow, ...]:
    """A rank correlation with the axis for every measure."""
    return tuple(
        DerivedRow(
            f"digits, {axis} raised: rank correlation with {SYMBOLS[name]}",
            functools.partial(rank_correlation, variable=name),
            paper.get(name),
        )
        for name in MEASURES
    )


def sentence(axis: str, result: xr.Dataset) -> str:
    """What the measures make of the axis, in words and numbers."""
    following = follows(result)
    yes = [SYMBOLS[name] for name, found in following.items() if found]
    no = [
        f"{SYMBOLS[name]} (rank correlation {float(rank_correlation(result, name).mean()):+.2f})"
        for name, found in following.items()
        if not found
    ]
    end = result.d_lr.isel(step=-1).mean("seed").values
    equal = at_equal_loss(result, "d_lr", "relative_loss").mean("seed").values
    return (
        f"Along {axis} D_LR goes from {end[0]:.3f} to {end[-1]:.3f}, and from {equal[0]:.3f} to "
        f"{equal[-1]:.3f} at equal training loss. Networks are called richer by "
        f"{', '.join(yes) or 'none'}; not by {', '.join(no) or 'none'}."
    )
