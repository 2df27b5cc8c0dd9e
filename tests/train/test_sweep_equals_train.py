"""Every cell of a sweep is the run that `train` would have made; its neighbours do not matter."""

import importlib
import itertools

import numpy as np
import pytest
import torch

from richbook.train import TrainingSettings, load_data, sweep, train
from richbook.train.ensemble import Ensemble
from richbook.train.recording import SCALARS
from richbook.train.single import batches
from tests.train import plain

GRID = {
    "weight_decay": [0.0, 1e-2],
    "target_scale": [0.3, 3.0],
    "learning_rate": [1e-3, 1e-2],
    "seeds": [4, 1],
}
COMBINATIONS = list(itertools.product(["relu", "tanh", "linear"], [1, 2, 3], [True, False]))


def cells(grid):
    """(coordinates, settings to change) of each cell."""
    names = ("weight_decay", "target_scale", "learning_rate", "seed")
    for values in itertools.product(*grid.values()):
        yield dict(zip(names, values, strict=True))


def compare(cell, run, scale):
    """Within the tolerances that the book promises for the first twenty steps."""
    losses = np.abs(cell.train_loss - run.train_loss) / scale**2
    assert losses.max() < 1e-4
    assert np.allclose(cell.parameter_norm, run.parameter_norm, rtol=1e-4)
    for name in ("d_lr", "s_init"):
        assert np.allclose(cell[name], run[name], atol=1e-3, equal_nan=True), name
    # eigenfunctions of neighbouring eigenvalues mix easily, and share out what they carry
    assert np.allclose(cell.utilization, run.utilization, atol=5e-3, equal_nan=True)
    assert np.allclose(cell.nc1, run.nc1, rtol=5e-3)
    for name, samples in (("train_accuracy", 1000), ("test_accuracy", 797)):
        assert np.abs(cell[name] - run[name]).max() < 2.5 / samples, name  # ties may turn


@pytest.mark.parametrize(("activation", "depth", "zero_head"), COMBINATIONS)
def test_cell_by_cell(device, activation, depth, zero_head):
    common = {"activation": activation, "depth": depth, "zero_head": zero_head, "steps": 20}
    common |= plain.SMALL | {"record_at": [0, 1, 5, 20], "device": device, "progress": False}
    grid = sweep(**GRID, **common)
    for coordinates in cells(GRID):
        run = train(**coordinates, **common).data
        compare(grid.sel(coordinates), run, coordinates["target_scale"])


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_other_momentum_and_batches_of_one(momentum):
    common = {"momentum": momentum, "batch_size": 1, "width": 8, "steps": 20, "progress": False}
    grid = sweep(target_scale=[0.5, 1.0], learning_rate=1e-3, seeds=2, **common)
    for scale, seed in itertools.product([0.5, 1.0], [0, 1]):
        run = train(target_scale=scale, learning_rate=1e-3, seed=seed, **common).data
        compare(grid.sel(target_scale=scale, seed=seed).squeeze(drop=True), run, scale)


def test_parameters_equal_a_plain_loop(device):
    """All of them, after twenty steps from the same weights on the same batches."""
    made = [TrainingSettings(steps=20, **plain.SMALL, **cell) for cell in cells(GRID)]
    data = load_data("digits")
    inputs = data.train_inputs.to(device)
    targets = torch.stack([plain.targets(settings) for settings in made]).to(device)
    ensemble = Ensemble(made, 64, 10, torch.device(device))
    streams = [batches(settings, len(inputs)) for settings in made]
    for _ in range(20):
        index = torch.stack([next(stream) for stream in streams]).to(device)
        wanted = targets.gather(1, index[:, :, None].expand(-1, -1, 10))
        losses = ensemble.descend(inputs[index], wanted)
    for member, settings in enumerate(made):
        *_, (loss, network) = plain.loop(settings, device)
        assert float(losses[member]) == pytest.approx(loss, rel=1e-4)
        for layer, linear in enumerate(network[::2]):
            weight, bias = ensemble.weights[layer][member], ensemble.biases[layer][member, :, 0]
            assert torch.allclose(weight, linear.weight.detach(), atol=1e-4)
            assert torch.allclose(bias, linear.bias.detach(), atol=1e-4)


def test_longer_runs_agree_closely():
    """Rounding grows with the steps, but a reader must not see it in a figure."""
    common = {"steps": 400, "record_at": [100], "progress": False} | plain.SMALL
    grid = sweep(target_scale=[0.3, 3.0], seeds=1, **common).squeeze(drop=True)
    for scale in (0.3, 3.0):
        run = train(target_scale=scale, **common).data
        assert np.allclose(grid.sel(target_scale=scale).d_lr, run.d_lr, atol=3e-3)
        assert np.allclose(grid.sel(target_scale=scale).test_accuracy, run.test_accuracy, atol=0.01)


def test_same_seed_same_start_along_all_other_axes():
    start = sweep(**GRID, steps=1, record_at=[0], width=8, progress=False).sel(step=0)
    first = start.isel(weight_decay=0, target_scale=0, learning_rate=0)
    for name in ("nc1", "parameter_norm"):
        assert np.allclose(start[name], first[name], rtol=1e-6)


def test_repeats_exactly():
    common = {"steps": 10, "progress": False} | plain.SMALL
    first, second = (sweep(**GRID, **common).drop_attrs() for _ in range(2))
    assert first.identical(second)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_groups_do_not_change_the_results(monkeypatch, size):
    """However many networks share an ensemble, even if it begins in the middle of the seeds."""
    common = {"steps": 20, "progress": False} | plain.SMALL
    whole = sweep(**GRID, **common)
    sweeping = importlib.import_module("richbook.train.sweep")
    monkeypatch.setattr(sweeping, "networks_at_once", lambda *_: size)
    cut = sweep(**GRID, **common)
    for name in (*SCALARS, "utilization"):
        assert np.allclose(whole[name], cut[name], rtol=1e-4, atol=1e-5, equal_nan=True), name


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_on_larger_data(mnist_folder, name):
    if not (mnist_folder / name).is_dir():
        pytest.skip(f"no {name} in {mnist_folder}")
    common = {"data": name, "steps": 10, "record_at": [], "progress": False} | plain.SMALL
    grid = sweep(learning_rate=1e-3, target_scale=[0.3, 3.0], seeds=1, **common).squeeze(drop=True)
    for scale in (0.3, 3.0):
        run = train(learning_rate=1e-3, target_scale=scale, **common).data.squeeze(drop=True)
        cell = grid.sel(target_scale=scale)
        assert float(cell.train_loss) == pytest.approx(float(run.train_loss), rel=1e-4)
        assert float(cell.d_lr) == pytest.approx(float(run.d_lr), abs=1e-3)
        assert grid.attrs["data"] == name
