"""Recording and loading: whole or not at all, and no less precise than stated."""

import importlib
import os

import numpy as np
import pytest
import xarray as xr

from richbook.experiments import load_sweep, record_sweep
from richbook.measure import RichbookError
from richbook.train import sweep
from richbook.train.recording import SCALARS

recipe = importlib.import_module("richbook.experiments.digits_sweep")
AXES = ("weight_decay", "target_scale", "learning_rate", "seed")


def small_sweep(progress=False, device=None, **grid):
    """Like the recipe's, with a network that diverges, in a second."""
    return sweep(
        [0, 0.01], [0.3, 1], [1e-2, 1e4], 2, steps=30, width=10, device=device, progress=progress
    )


@pytest.fixture(scope="module")
def made():
    return small_sweep()


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(recipe, "sweep", small_sweep)


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    monkeypatch.setattr(recipe, "RECORDED", tmp_path)
    return tmp_path


def test_recipe_is_the_grid_that_was_recorded():
    recorded = load_sweep()
    for axis in AXES[:3]:
        assert recorded[axis].values.tolist() == recipe.GRID[axis]
    assert recorded.seed.values.tolist() == list(range(recipe.GRID["seeds"]))


def test_record_and_load(quick, shelf, made):
    returned = record_sweep(shelf / "digits_sweep.nc", progress=False)
    assert returned.drop_attrs().identical(made.drop_attrs())
    assert os.listdir(shelf) == ["digits_sweep.nc"]
    loaded = load_sweep("digits")
    assert loaded.attrs == returned.attrs
    assert loaded.drop_vars(loaded.data_vars).equals(returned.drop_vars(returned.data_vars))


def test_record_takes_a_plain_string(quick, tmp_path):
    record_sweep(str(tmp_path / "mine.nc"), progress=False)
    assert os.listdir(tmp_path) == ["mine.nc"]


def test_precision_of_what_is_stored(shelf, made):
    recipe.save(made, shelf / "digits_sweep.nc")
    loaded = load_sweep()
    for name in SCALARS:
        assert loaded[name].dtype == made[name].dtype and loaded[name].dims == made[name].dims
        assert np.allclose(loaded[name], made[name], rtol=2**-13, atol=0, equal_nan=True), name
    assert loaded.utilization.dtype == np.float32
    assert np.allclose(loaded.utilization, made.utilization, atol=0.51 / 65000, equal_nan=True)
    assert loaded.diverged_at.identical(made.diverged_at) and (loaded.diverged_at > 0).any()
    assert made.d_lr.isnull().any() and made.utilization.isnull().any()


def test_saving_does_not_touch_what_it_is_given(tmp_path, made):
    before = made.copy(deep=True)
    recipe.save(made, tmp_path / "x.nc")
    assert made.identical(before)


def test_what_was_rounded_once_stays(shelf, made):
    recipe.save(made, shelf / "digits_sweep.nc")
    once = load_sweep()
    recipe.save(once, shelf / "digits_sweep.nc")
    assert load_sweep().equals(once)


@pytest.mark.parametrize("power", [-30, -3, 0, 7, 100])
def test_rounding_of_scalars(power):
    values = np.random.default_rng(0).uniform(1, 2, 1000).astype(np.float32) * np.float32(
        2.0**power
    )
    values = np.concatenate([values, -values, [0.0, np.inf, np.nan]]).astype(np.float32)
    rounded = recipe._rounded(values)
    finite = np.isfinite(values)
    assert np.allclose(rounded[finite], values[finite], rtol=2**-13, atol=0)
    assert np.array_equal(rounded[~finite], values[~finite], equal_nan=True)
    assert len(np.unique(np.abs(rounded[finite]) / 2.0**power)) <= 2**recipe.SCALAR_BITS + 2


def test_the_shipped_file_is_small():
    size = (recipe.RECORDED / "digits_sweep.nc").stat().st_size
    assert 100_000 < size < 1_000_000


def fail(*args, **kwargs):
    raise KeyboardInterrupt("in the middle")


def test_interrupted_training_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(recipe, "sweep", fail)
    with pytest.raises(KeyboardInterrupt):
        record_sweep(tmp_path / "digits_sweep.nc", progress=False)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("existing", [None, b"what was there before"])
@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_interrupted_writing_leaves_nothing(quick, tmp_path, monkeypatch, moment, existing):
    """A reader finds the file of before, or none; never a part."""
    path = tmp_path / "digits_sweep.nc"
    if existing:
        path.write_bytes(existing)
    write = xr.Dataset.to_netcdf

    def write_half(self, target, **options):
        if moment == "during":
            write(self, target, **options)
            with open(target, "r+b") as partial:
                partial.truncate(100)
        fail()

    if moment == "after":
        monkeypatch.setattr(os, "replace", fail)
    else:
        monkeypatch.setattr(xr.Dataset, "to_netcdf", write_half)
    with pytest.raises(KeyboardInterrupt):
        record_sweep(path, progress=False)
    assert os.listdir(tmp_path) == (["digits_sweep.nc"] if existing else [])
    assert not existing or path.read_bytes() == existing


def test_missing_folder_is_found_out_before_the_training(tmp_path, monkeypatch):
    monkeypatch.setattr(recipe, "sweep", fail)
    folder = tmp_path / "nowhere"
    with pytest.raises(RichbookError, match=rf"^path: the folder {folder} does not exist"):
        record_sweep(folder / "digits_sweep.nc")


@pytest.mark.parametrize("name", ["mnist", "", "digits_sweep", None, 3])
def test_wrong_name_lists_what_there_is(shelf, made, name):
    for kept in ("digits", "digits-long"):
        recipe.save(made, shelf / f"{kept}_sweep.nc")
    with pytest.raises(RichbookError) as caught:
        load_sweep(name)
    assert str(caught.value) == f"name: expected one of digits, digits-long, got {name!r}"


def test_wrong_name_where_nothing_is_recorded(shelf):
    with pytest.raises(RichbookError, match=r"expected one of \(none recorded\), got 'digits'"):
        load_sweep()


def test_each_load_is_a_fresh_copy():
    first = load_sweep()
    first.d_lr[:] = 7
    assert float(load_sweep().d_lr.max()) <= 1
