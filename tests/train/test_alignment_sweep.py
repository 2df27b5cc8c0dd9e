"""The grid of alignments: its axes, its networks against single ones, and what it refuses."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from richbook.measure import RichbookError
from richbook.measure.alignment import alignment
from richbook.train import TrainingSettings, alignment_sweep, load_data
from richbook.train.alignment_recording import ALIGNMENTS
from richbook.train.alignment_sweep import ALIGNMENT_AXES, STANDARD
from richbook.train.models import initial_weights
from richbook.train.single import batches
from tests.train import plain

SMALL = {"width": 12, "depth": 2, "steps": 30, "progress": False}


def trained(settings):
    """One network without biases, trained by torch."""
    data = load_data()
    parts = []
    for weight in initial_weights(64, 10, settings):
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        linear.weight.data = weight
        parts += [linear, plain.ACTIVATIONS[settings.activation]()]
    model = nn.Sequential(*parts[:-1])
    optimiser = torch.optim.SGD(
        model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    stream = batches(settings, len(data.train_inputs))
    for index in (next(stream) for _ in range(settings.steps)):
        optimiser.zero_grad()
        nn.functional.cross_entropy(
            model(data.train_inputs[index]), data.train_labels[index]
        ).backward()
        optimiser.step()
    return model


def measured(model, **options):
    """What `richbook.alignment` says of it: (layer, side, relation)."""
    data = load_data()
    rows = torch.arange(len(data.train_inputs)).split(300)
    loader = [(data.train_inputs[part], data.train_labels[part]) for part in rows]
    found = alignment(model, loader, nn.functional.cross_entropy, interval=False, **options)
    return np.array(
        [
            [[getattr(side, name).value for name in ("RGA", "RWA", "GWA")] for side in sides]
            for sides in ((layer.forward, layer.backward) for layer in found.layers)
        ]
    )


@pytest.fixture(scope="module")
def grid():
    return alignment_sweep(
        [0, 0.03], [0.05, 0.1], [4, 16], ["tanh", "relu", "linear"], 2,
        record_at=[0, 5], **SMALL,
    )  # fmt: skip


def test_axes_and_variables(grid):
    assert list(grid.sizes.items()) == [
        ("activation", 3), ("weight_decay", 2), ("learning_rate", 2), ("batch_size", 2),
        ("seed", 2), ("step", 3), ("layer", 3), ("side", 2), ("relation", 3),
    ]  # fmt: skip
    assert grid.activation.values.tolist() == ["tanh", "relu", "linear"]
    assert grid.step.values.tolist() == [0, 5, 30]
    for name, values in grid.data_vars.items():
        more = ("layer", "side", "relation") if name in ALIGNMENTS else ()
        assert values.dims == (*ALIGNMENT_AXES, "step", *more) and values.dtype == np.float32
        assert not values.isnull().any(), name


@pytest.mark.parametrize("activation", ["tanh", "relu", "linear"])
@pytest.mark.parametrize("batch_size", [4, 16])
def test_cell_is_what_measuring_a_single_network_says(grid, activation, batch_size):
    where = {"weight_decay": 0.03, "learning_rate": 0.1, "seed": 1}
    where |= {"activation": activation, "batch_size": batch_size}
    model = trained(STANDARD.replace(width=12, depth=2, steps=30, **where))
    cell = grid.sel(where).isel(step=-1)
    assert cell.alignment.values == pytest.approx(measured(model), abs=2e-4)
    expected = measured(model, kind="pearson", normalize=True)
    assert cell.normalized_alignment.values == pytest.approx(expected, abs=5e-4)
    data = load_data()
    with torch.no_grad():
        train, test = model(data.train_inputs), model(data.test_inputs)
    loss = nn.functional.cross_entropy(train, data.train_labels)
    assert float(cell.train_loss) == pytest.approx(float(loss), rel=1e-4)
    right = (test.argmax(1) == data.test_labels).float().mean()
    assert float(cell.test_accuracy) == pytest.approx(float(right), abs=2e-3)
    right = (train.argmax(1) == data.train_labels).float().mean()
    assert float(cell.train_accuracy) == pytest.approx(float(right), abs=2e-3)


def test_start_depends_on_the_seed_and_the_activation_alone(grid):
    start = grid.isel(step=0)
    for axis in ("weight_decay", "learning_rate", "batch_size"):
        for name in grid.data_vars:
            assert np.allclose(start[name].diff(axis), 0, atol=1e-6), (axis, name)
    assert (abs(start.alignment.diff("seed")) > 1e-3).any()


def test_training_in_parts_gives_the_same(grid, monkeypatch):
    module = __import__("richbook.train.alignment_sweep", fromlist=["networks_at_once"])
    monkeypatch.setattr(module, "networks_at_once", lambda *_: 3)
    again = alignment_sweep(
        [0.03, 0], [0.05, 0.1], [4, 16], ["tanh", "relu", "linear"], 2,
        record_at=[0, 5], **SMALL,
    )  # fmt: skip
    for name in grid.data_vars:
        assert np.allclose(again[name], grid[name], atol=2e-3), name


def test_network_that_diverges_is_nan_and_alone(grid):
    found = alignment_sweep(0.03, [0.05, 1e20], 4, "relu", 2, record_at=[0, 5], **SMALL)
    lost, kept = found.sel(learning_rate=1e20), found.sel(learning_rate=0.05)
    for name in found.data_vars:
        assert lost[name].isel(step=slice(1, None)).isnull().all(), name
        same = grid.sel(activation="relu", weight_decay=0.03, learning_rate=0.05, batch_size=4)
        assert np.allclose(kept[name].squeeze(), same[name], atol=2e-3), name


def test_provenance(grid):
    settings = json.loads(grid.attrs["settings"])
    assert TrainingSettings(**settings).depth == 2 and settings["zero_head"] is False
    assert not {"weight_decay", "seed", "momentum", "target_scale"} & set(settings)
    assert grid.attrs["data"] == "digits" and grid.attrs["loss"] == "cross_entropy"
    assert {"made", "versions", "device", "threads", "wall_seconds"} <= set(grid.attrs)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"activation": "gelu"}, "^activation: expected one of relu, tanh, linear, got 'gelu'"),
        ({"activation": []}, "^activation: expected a name or a list of some"),
        ({"activation": ["tanh", "tanh"]}, "^activation: expected distinct values"),
        ({"batch_size": []}, "^batch_size: expected whole numbers of at least 1"),
        ({"batch_size": [4, 1.5]}, "^batch_size: expected whole numbers"),
        ({"batch_size": 0}, "^batch_size: expected a whole number of at least 1, got 0"),
        ({"weight_decay": ["a"]}, "^weight_decay: expected a number or a list"),
        ({"learning_rate": 0}, "^learning_rate: expected above 0"),
        ({"seeds": []}, "^seeds: expected how many"),
        ({"seed": 1}, "^seed: not a setting of these networks; pass the seeds as seeds="),
        ({"momentum": 0.9}, "^momentum: not a setting of these networks; it has no effect"),
        ({"record_at": [40]}, "^record_at: expected a list of whole numbers from 0 to 30"),
        ({"widht": 3}, "^widht: no such setting"),
    ],
)
def test_what_is_refused(arguments, message):
    with pytest.raises(RichbookError, match=message):
        alignment_sweep(**SMALL | arguments)
