"""A sweep as a dataset: its axes, its coordinates, what it refuses, and where it is from."""

import datetime
import importlib
import json

import numpy as np
import pytest
import torch
import xarray as xr

from richbook.measure import RichbookError, isotropic_d_lr
from richbook.train import TrainingSettings, sweep
from richbook.train.recording import SCALARS

AXES = ("weight_decay", "target_scale", "learning_rate", "seed")
TINY = {"steps": 4, "width": 8, "batch_size": 10, "progress": False}


@pytest.fixture(scope="module")
def grid():
    return sweep([0.1, 0.0], [3, 0.5, 1], [1e-2, 1e-3], seeds=[5, 2], record_at=[0, 2], **TINY)


def test_dimensions_and_their_order(grid):
    sizes = {"weight_decay": 2, "target_scale": 3, "learning_rate": 2, "seed": 2, "step": 3, "k": 8}
    assert isinstance(grid, xr.Dataset) and dict(grid.sizes) == sizes
    for name in SCALARS:
        assert grid[name].dims == (*AXES, "step"), name
    assert grid.utilization.dims == (*AXES, "step", "k")
    assert grid.diverged_at.dims == AXES
    assert set(grid.data_vars) == {*SCALARS, "utilization", "diverged_at"}


def test_coordinates_are_the_values_given_in_ascending_order(grid):
    given = {
        "weight_decay": [0.0, 0.1],
        "target_scale": [0.5, 1, 3],
        "learning_rate": [1e-3, 1e-2],
        "seed": [2, 5],
        "step": [0, 2, 4],
        "k": [1, 2, 3, 4, 5, 6, 7, 8],
    }
    for name, values in given.items():
        assert grid[name].values.tolist() == values, name


def test_types(grid):
    assert all(grid[name].dtype == np.float32 for name in (*SCALARS, "utilization"))
    assert grid.diverged_at.dtype == np.int32 and (grid.diverged_at == -1).all()
    assert all(grid[name].dtype.kind == "f" for name in AXES[:3])
    assert all(grid[name].dtype.kind == "i" for name in ("seed", "step", "k"))


def test_values_lie_where_their_coordinates_say(grid):
    """The first loss is s²(1 − 1/C); the norm at the start depends on the seed alone."""
    start = grid.sel(step=0)
    expected = (grid.target_scale**2 * 0.9).broadcast_like(start.train_loss)
    assert np.allclose(start.train_loss, expected.transpose(*AXES))
    norms = start.parameter_norm
    assert (norms.std(("weight_decay", "target_scale", "learning_rate")) == 0).all()
    assert len(np.unique(norms)) == 2
    kept, decayed = grid.parameter_norm.isel(step=-1).transpose("weight_decay", ...).values
    assert (decayed < kept).all()
    slower = grid.s_init.isel(step=-1).sel(learning_rate=1e-3)
    assert (slower < grid.s_init.isel(step=-1).sel(learning_rate=1e-2)).all()


@pytest.mark.parametrize(
    ("seeds", "expected"),
    [
        (2, [0, 1]),
        (1, [0]),
        (np.int64(2), [0, 1]),
        ([4], [4]),
        ((3, 0), [0, 3]),
        (range(2), [0, 1]),
    ],
)
def test_seeds(seeds, expected):
    assert sweep(seeds=seeds, record_at=[], **TINY).seed.values.tolist() == expected


def test_axes_may_be_arrays():
    made = sweep(
        np.array([0.5, 0.25], dtype=np.float32),
        torch.tensor([1.0, 2.0]),
        xr.DataArray([0.125]),
        seeds=np.array([1]),
        record_at=[],
        **TINY,
    )
    assert made.weight_decay.values.tolist() == [0.25, 0.5]
    assert made.target_scale.values.tolist() == [1.0, 2.0]
    assert made.learning_rate.values.tolist() == [0.125] and made.seed.values.tolist() == [1]


NONSENSE = [[], (), "0.1", ["0.1"], None, [None], [[1.0], [2.0]], [[1.0], [2.0, 3.0]], {}, [True]]
OUT_OF_RANGE = [float("nan"), [1.0, float("inf")], -1, [0.1, -0.1]]


@pytest.mark.parametrize("name", AXES[:3])
@pytest.mark.parametrize("values", [*NONSENSE, *OUT_OF_RANGE], ids=repr)
def test_wrong_axis_is_named(name, values):
    with pytest.raises(RichbookError, match=rf"^{name}: expected "):
        sweep(**{name: values}, **TINY)


@pytest.mark.parametrize(
    "seeds", [*NONSENSE, 0, -1, 1.5, [0.5], [-1], "12", True, float("nan")], ids=repr
)
def test_wrong_seeds_are_named(seeds):
    with pytest.raises(RichbookError, match=r"^seeds?: expected "):
        sweep(seeds=seeds, **TINY)


@pytest.mark.parametrize("name", [*AXES[:3], "seeds"])
@pytest.mark.parametrize("values", [[1, 1], [1, 2, 1]])
def test_duplicates_are_refused(name, values):
    with pytest.raises(RichbookError, match=rf"^{name}: expected distinct values, got "):
        sweep(**{name: values}, **TINY)


def test_a_number_given_twice_in_two_ways():
    with pytest.raises(RichbookError, match="^target_scale: expected distinct values"):
        sweep(target_scale=[1, 1.0], **TINY)


def test_one_seed_is_not_a_setting():
    with pytest.raises(RichbookError, match="^seed: .*seeds="):
        sweep(seed=3, **TINY)


def test_settings_give_what_is_not_an_axis():
    settings = TrainingSettings(steps=4, width=8, batch_size=10, activation="tanh")
    same = sweep(settings=settings, seeds=1, progress=False)
    changed = sweep(seeds=1, activation="tanh", **TINY)
    assert same.drop_attrs().identical(changed.drop_attrs())
    assert not np.allclose(same.nc1, sweep(seeds=1, **TINY).nc1)


def test_provenance():
    made = sweep(seeds=1, activation="tanh", **TINY)
    settings = json.loads(made.attrs["settings"])
    given = {"steps": 4, "width": 8, "batch_size": 10, "activation": "tanh", "data": "digits"}
    assert given.items() <= settings.items()
    TrainingSettings(**settings)  # it can be made again from what is written down
    versions = json.loads(made.attrs["versions"])
    assert versions["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert versions["numpy"] == np.__version__ and {"scikit-learn", "python"} <= set(versions)
    age = datetime.date.today() - datetime.date.fromisoformat(made.attrs["made"])
    assert 0 <= age.days <= 1
    assert made.attrs["data"] == "digits" and made.attrs["threads"] == torch.get_num_threads()
    assert made.attrs["device"] in ("cpu", "cuda") and made.attrs["wall_seconds"] >= 0
    assert made.attrs["isotropic_d_lr"] == isotropic_d_lr(8, 9)


@pytest.mark.parametrize(("zero_head", "rank"), [(True, 9), (False, 10)])
def test_isotropic_baseline_knows_the_rank_of_the_outputs(zero_head, rank):
    small = TINY | {"width": 30}
    made = sweep(seeds=1, zero_head=zero_head, record_at=[], **small)
    assert made.attrs["isotropic_d_lr"] == pytest.approx(1 - (rank / 30) ** 0.5)


def test_progress_bar_counts_to_the_end(capfd, monkeypatch):
    monkeypatch.setattr(importlib.import_module("richbook.train.ensemble"), "CACHED", 1)
    sweep([0.1, 0.2], seeds=2, **TINY)
    assert capfd.readouterr().err == ""
    sweep([0.1, 0.2], seeds=2, **TINY | {"progress": True})
    assert "4 networks" in capfd.readouterr().err


def test_global_state_is_untouched():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    sweep(seeds=1, **TINY)
    assert torch.equal(torch.get_rng_state(), before) and torch.is_grad_enabled()
