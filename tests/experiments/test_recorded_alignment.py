"""The sweep of alignments that ships with the package: whole, sane, and made again."""

import datetime
import importlib
import json
import os

import numpy as np
import pytest

from richbook.experiments import load_alignment_sweep, record_alignment_sweep
from richbook.measure import RichbookError
from richbook.train import TrainingSettings, alignment_sweep
from richbook.train.alignment_recording import ALIGNMENTS
from richbook.train.alignment_sweep import ALIGNMENT_AXES, PROGRESS

recipe = importlib.import_module("richbook.experiments.alignment_sweep")
AXES = ALIGNMENT_AXES[:4]


@pytest.fixture(scope="module")
def recorded():
    return load_alignment_sweep()


@pytest.fixture(scope="module")
def final(recorded):
    """At the end of training, means over seeds of networks that stayed finite."""
    return recorded.isel(step=-1).mean("seed")


def test_recipe_is_the_grid_that_was_recorded(recorded):
    for axis in AXES:
        assert recorded[axis].values.tolist() == recipe.ALIGNMENT_GRID[axis], axis
    assert recorded.seed.values.tolist() == list(range(recipe.ALIGNMENT_GRID["seeds"]))
    assert recorded.step.values.tolist() == recipe.ALIGNMENT_GRID["record_at"]
    assert recorded.layer.values.tolist() == [1, 2, 3, 4, 5]


def test_variables(recorded):
    assert set(recorded.data_vars) == {*ALIGNMENTS, *PROGRESS}
    for name, values in recorded.data_vars.items():
        more = ("layer", "side", "relation") if name in ALIGNMENTS else ()
        assert values.dims == (*ALIGNMENT_AXES, "step", *more) and values.dtype == np.float32
    assert recorded.alignment.min() >= 0 and recorded.alignment.max() <= 1
    assert abs(recorded.normalized_alignment).max() <= 1
    assert recorded.null_std.max() < 0.15


def test_what_is_missing_is_missing_everywhere_and_rare(recorded):
    lost = recorded.train_loss.isnull()
    assert float(lost.mean()) < 0.03
    assert set(recorded.activation.values[lost.any(AXES[1:] + ("seed", "step"))]) <= {"linear"}
    for name in recorded.data_vars:
        assert (recorded[name].isnull() == lost).all(), name


def test_start_is_shared_along_all_but_activation_and_seed(recorded):
    start = recorded.isel(step=0)
    for axis in AXES[1:]:
        assert np.allclose(start.alignment.diff(axis), 0, atol=3e-4), axis


def test_provenance(recorded):
    settings = TrainingSettings(**json.loads(recorded.attrs["settings"]))
    assert (settings.steps, settings.width, settings.depth) == (8000, 64, 4)
    assert {"torch", "numpy", "python"} <= set(json.loads(recorded.attrs["versions"]))
    assert datetime.date.fromisoformat(recorded.attrs["made"]) >= datetime.date(2025, 1, 1)
    assert recorded.attrs["data"] == "digits" and recorded.attrs["device"] in ("cpu", "cuda")
    assert recorded.attrs["threads"] >= 1 and recorded.attrs["wall_seconds"] > 1


def test_the_shipped_file_is_small():
    assert 100_000 < (recipe.RECORDED / recipe.FILE).stat().st_size < 2_000_000


def hidden(final, **where):
    return final.sel(where).sel(layer=[2, 3, 4])


@pytest.mark.parametrize("activation", ["tanh", "relu", "linear"])
def test_forward_gwa_rises_with_decay_far_above_chance(final, activation):
    """From 0 to 0.01, in the hidden layers, at the middle rate and batch size."""
    where = {"activation": activation, "learning_rate": 0.05, "batch_size": 16}
    cell = hidden(final, **where, side="forward", relation="GWA")
    gwa = cell.alignment.mean("layer")
    assert (gwa.sel(weight_decay=[0, 1e-3, 3e-3, 1e-2]).diff("weight_decay") > 0).all()
    assert float(gwa.sel(weight_decay=1e-2) - gwa.sel(weight_decay=0)) > 0.15
    far = cell.null_mean + 4 * cell.null_std
    assert (cell.alignment > far).sel(weight_decay=1e-2).all()


def test_tanh_shows_all_six_and_relu_does_not(final):
    where = {"weight_decay": 0.03, "learning_rate": 0.05, "batch_size": 4, "layer": 3}
    six = final.alignment.sel(where)
    assert float(six.sel(activation="tanh").min()) > 0.82
    assert float(six.sel(activation="relu", relation="RGA").min()) < 0.6


CHECKED = {
    "tanh": {"weight_decay": 0.03, "learning_rate": 0.05, "batch_size": 16},
    "relu": {"weight_decay": 0.01, "learning_rate": 0.02, "batch_size": 16},
    "linear": {"weight_decay": 0.01, "learning_rate": 0.02, "batch_size": 4},
}


@pytest.mark.parametrize("activation", CHECKED)
def test_cell_trained_again(recorded, activation):
    """Other processors round otherwise, and 8 000 steps magnify that."""
    where = {"activation": activation} | CHECKED[activation]
    again = alignment_sweep(**where, seeds=3, record_at=[10], progress=False).squeeze(AXES)
    cell = recorded.sel(where)
    early = dict(step=10)
    assert np.allclose(again.alignment.sel(early), cell.alignment.sel(early), atol=1e-3)
    assert np.allclose(again.null_mean.sel(early), cell.null_mean.sel(early), atol=1e-3)
    again, cell = again.isel(step=-1), cell.isel(step=-1)
    assert np.allclose(again.alignment, cell.alignment, atol=0.06)
    assert np.allclose(again.normalized_alignment, cell.normalized_alignment, atol=0.06)
    assert np.allclose(again.test_accuracy, cell.test_accuracy, atol=0.02)


@pytest.fixture
def quick(monkeypatch):
    """The recipe on networks that train in a second, one of which diverges."""
    small = dict(width=8, depth=1, steps=10, record_at=[0, 10], seeds=2, progress=False)

    def made(progress=False, device=None, **grid):
        rates = [0.05, 1e20]
        return alignment_sweep([0, 0.01], rates, [4, 8], ["tanh", "relu"], device=device, **small)

    monkeypatch.setattr(recipe, "alignment_sweep", made)


def test_record_and_load(quick, tmp_path, monkeypatch):
    monkeypatch.setattr(recipe, "RECORDED", tmp_path)
    returned = record_alignment_sweep(str(tmp_path / recipe.FILE), progress=False)
    assert os.listdir(tmp_path) == [recipe.FILE]
    loaded = load_alignment_sweep()
    assert loaded.attrs == returned.attrs
    assert loaded.drop_vars(loaded.data_vars).equals(returned.drop_vars(returned.data_vars))
    assert returned.alignment.isnull().any()
    for name, values in returned.data_vars.items():
        exact = {"atol": 0.51e-4} if name in ALIGNMENTS else {"rtol": 2**-12, "atol": 0}
        assert np.allclose(loaded[name], values, **exact, equal_nan=True), name


def test_interrupted_recording_leaves_nothing(tmp_path, monkeypatch):
    def stopped(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(recipe, "alignment_sweep", stopped)
    with pytest.raises(KeyboardInterrupt):
        record_alignment_sweep(tmp_path / "alignment.nc")
    assert os.listdir(tmp_path) == []


def test_missing_folder_is_found_out_before_the_training(tmp_path):
    folder = tmp_path / "nowhere"
    with pytest.raises(RichbookError, match=rf"^path: the folder {folder} does not exist"):
        record_alignment_sweep(folder / "alignment.nc")
