"""The sweep that ships with the package: that it is whole, sane, and shows what the book says."""

import datetime
import json

import numpy as np
import pytest
import xarray as xr

from richbook.experiments import load_sweep
from richbook.train import TrainingSettings, load_data
from richbook.train.recording import SCALARS

AXES = ("weight_decay", "target_scale", "learning_rate", "seed")


@pytest.fixture(scope="module")
def recorded():
    return load_sweep("digits")


@pytest.fixture(scope="module")
def cells(recorded):
    """Every network at every step after the first, along one dimension `cell`."""
    return recorded.sel(step=slice(1, None)).stack(cell=(*AXES, "step"))


@pytest.fixture(scope="module")
def final(recorded):
    """D_LR at the end of training, means over seeds."""
    return recorded.d_lr.isel(step=-1).mean("seed", skipna=False)


def test_size(recorded):
    sizes = [recorded.sizes[axis] for axis in AXES]
    assert all(size >= least for size, least in zip(sizes, (6, 5, 5, 3), strict=True)), sizes
    steps = recorded.step.values
    assert steps[0] == 0 and steps[-1] == 3000 and 12 <= len(steps) <= 20
    assert (np.diff(steps) > 0).all()
    assert recorded.k.values.tolist() == list(range(1, 65))


def test_variables(recorded):
    assert set(recorded.data_vars) == {*SCALARS, "utilization", "diverged_at"}
    for name in SCALARS:
        assert recorded[name].dims == (*AXES, "step") and recorded[name].dtype == np.float32, name
    assert recorded.utilization.dims == (*AXES, "step", "k")
    assert recorded.utilization.dtype == np.float32
    assert recorded.diverged_at.dims == AXES and recorded.diverged_at.dtype == np.int32


def test_axes_ascend_and_reach_what_the_chapters_show(recorded):
    for axis in AXES:
        assert (np.diff(recorded[axis]) > 0).all(), axis
    assert recorded.weight_decay[0] == 0 and recorded.weight_decay[-1] >= 1e-2
    assert {0.1, 0.3, 1.0, 3.0} <= set(recorded.target_scale.values.tolist())
    assert recorded.learning_rate[0] <= 1e-3 and recorded.learning_rate[-1] >= 1e-2


def test_provenance(recorded):
    assert recorded.attrs["data"] == "digits"
    settings = json.loads(recorded.attrs["settings"])
    assert TrainingSettings(**settings).steps == 3000
    defaults = TrainingSettings().to_dict()
    assert {k: v for k, v in settings.items() if k not in AXES} == {
        k: v for k, v in defaults.items() if k not in AXES
    }
    versions = json.loads(recorded.attrs["versions"])
    assert {"torch", "numpy", "scikit-learn", "python"} <= set(versions)
    assert all(version[0].isdigit() for version in versions.values())
    assert datetime.date.fromisoformat(recorded.attrs["made"]) >= datetime.date(2025, 1, 1)
    assert recorded.attrs["device"] in ("cpu", "cuda") and recorded.attrs["threads"] >= 1
    assert recorded.attrs["wall_seconds"] > 1
    assert recorded.attrs["isotropic_d_lr"] == pytest.approx(1 - (9 / 64) ** 0.5)


def guesses_one_class(cells):
    """Whether both accuracies are the shares of one and the same class in the two parts."""
    data = load_data("digits")
    train, test = (
        np.bincount(labels, minlength=10) / len(labels)
        for labels in (data.train_labels, data.test_labels)
    )
    off_train = np.abs(cells.train_accuracy.values[:, None] - train)
    off_test = np.abs(cells.test_accuracy.values[:, None] - test)
    return xr.zeros_like(cells.step, dtype=bool) | ((off_train + off_test).min(1) < 1e-4)


def test_every_missing_d_lr_is_explained(cells):
    """Either the run diverged, or its outputs are constant: it then guesses one class for all."""
    diverged = (cells.diverged_at >= 0) & (cells.step >= cells.diverged_at)
    constant = guesses_one_class(cells)
    missing = cells.d_lr.isnull()
    assert (diverged | constant)[missing].all()
    assert missing[diverged].all()
    assert float(missing.mean()) < 0.03


def test_every_other_missing_number_is_explained(cells):
    diverged = (cells.diverged_at >= 0) & (cells.step >= cells.diverged_at)
    for name in ("train_loss", "train_accuracy", "test_accuracy", "parameter_norm"):
        assert np.array_equal(cells[name].isnull(), diverged), name
    for name in ("nc1", "s_init"):  # constant features have neither, and no D_LR
        assert cells.d_lr.isnull()[cells[name].isnull()].all(), name
    curves = cells.utilization.isnull()
    assert np.array_equal(curves.all("k"), cells.d_lr.isnull())
    assert np.array_equal(curves.all("k"), curves.any("k"))


def test_step_zero_is_known_beforehand(recorded):
    start = recorded.sel(step=0)
    assert start.d_lr.isnull().all() and start.utilization.isnull().all()
    assert np.allclose(start.s_init, 0, atol=1e-5)
    loss = (0.9 * recorded.target_scale**2).broadcast_like(start.train_loss)
    assert np.allclose(start.train_loss, loss.transpose(*AXES), rtol=2e-4)
    assert (start.nc1.std(AXES[:3]) == 0).all()  # the same start along all axes but the seed


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("d_lr", 0, 1),
        ("s_init", 0, 1),
        ("train_accuracy", 0, 1),
        ("test_accuracy", 0, 1),
        ("utilization", 0, 1.001),
        ("nc1", 0, np.inf),
        ("train_loss", 0, np.inf),
        ("parameter_norm", 0, np.inf),
    ],
)
def test_ranges(recorded, name, low, high):
    values = recorded[name].values
    values = values[~np.isnan(values)]
    assert values.min() >= low and values.max() <= high and np.isfinite(values).all()


def test_utilization_never_falls_and_ends_at_one(cells):
    curves = cells.utilization.dropna("cell", how="all").transpose("cell", "k").values
    assert (np.diff(curves) >= 0).all()
    assert np.abs(curves[:, -1] - 1).max() < 2e-3  # the worst are networks that all but blew up
    assert np.quantile(np.abs(curves[:, -1] - 1), 0.99) < 1e-4


def test_rich_networks_use_few_directions(recorded):
    """Of 64 directions, the first nine carry nearly all of Ĥ (dimension 9) where D_LR is small."""
    last = recorded.isel(step=-1)
    used = last.utilization.sel(k=9).values[last.d_lr.values < 0.1]
    assert len(used) > 50 and used.min() > 0.9
    lazy = last.utilization.sel(k=9).values[last.d_lr.values > 0.4]
    assert len(lazy) > 50 and lazy.max() < used.min()


def test_falls_with_target_scale_by_a_factor_of_four(final):
    curve = final.sel(learning_rate=0.01, weight_decay=0.01, target_scale=slice(0.1, 3)).values
    assert len(curve) >= 4 and (np.diff(curve) < 0).all()
    assert curve[0] / curve[-1] >= 4


def test_falls_with_weight_decay(final):
    """Monotonically at target scales 1 and 3; from end to end wherever the rate is moderate."""
    moderate = final.sel(learning_rate=slice(0, 1e-2))
    steps = moderate.sel(target_scale=[1, 3]).diff("weight_decay")
    assert steps.size >= 40 and (steps < 0).all()
    assert (moderate.isel(weight_decay=-1) < moderate.isel(weight_decay=0)).all()


def test_falls_with_learning_rate(final):
    """At decay 0.01 up to a rate of 0.01, for every target scale but the smallest."""
    rates = final.sel(
        weight_decay=1e-2, learning_rate=slice(0, 1e-2), target_scale=slice(0.1, None)
    )
    assert rates.size >= 20 and (rates.diff("learning_rate") < 0).all()


def test_spread_over_seeds_is_small_beside_the_effect(recorded):
    curve = recorded.d_lr.isel(step=-1).sel(learning_rate=0.01, weight_decay=0.01)
    assert float(curve.sel(target_scale=0.1).min()) > 2 * float(curve.sel(target_scale=1).max())
