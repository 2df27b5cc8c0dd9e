"""Recorded results: loading, bands, comparison at equal loss, and the table."""

import html

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from richbook.experiments import (
    RECIPES,
    at_equal_loss,
    load_result,
    rank_correlation,
    reproduction_table,
    results,
)
from richbook.experiments.results import ReproductionTable, band, compare
from richbook.measure import RichbookError
from tests.conftest import ROOT


def dataset(losses, values, axis="rate"):
    """Curves (axis, seed, step)."""
    dims = (axis, "seed", "step")
    return xr.Dataset(
        {"train_loss": (dims, losses), "d_lr": (dims, values)},
        {axis: np.arange(len(losses)), "step": np.arange(losses.shape[-1])},
        attrs={"axis": axis},
    )


@pytest.mark.parametrize("seeds", [3, 5])
def test_the_band_holds_a_new_seed_as_often_as_it_says(seeds):
    draw = np.random.default_rng(0)
    old, new = draw.normal(5, 2, (4000, seeds)), draw.normal(5, 2, 4000)
    inside = [low <= value <= high for (low, high), value in zip(map(band, old), new, strict=True)]
    assert abs(np.mean(inside) - 0.95) < 3 * np.sqrt(0.95 * 0.05 / 4000)


def test_equal_seeds_still_have_a_band():
    assert band(np.full(3, 0.5)) == (0.49, 0.51)
    assert band(np.array([0.5])) == (0.49, 0.51)


def test_equal_loss_is_found_between_records():
    steps = np.arange(6.0)
    rates = np.array([0.5, 1.0, 2.0])[:, None, None]
    losses = np.exp(-rates * steps)  # the logarithm is straight, so interpolation is exact
    data = dataset(losses, 10 * rates + np.broadcast_to(steps, losses.shape))
    found = at_equal_loss(data, "d_lr", level=np.exp(-2.2))
    np.testing.assert_allclose(found.values[:, 0], [5 + 4.4, 10 + 2.2, 20 + 1.1])
    tightest = at_equal_loss(data, "d_lr")  # all reach exp(−2.5), the slowest at its last step
    np.testing.assert_allclose(tightest.values[:, 0], [5 + 5, 10 + 2.5, 20 + 1.25])


def test_a_loss_that_is_never_reached_is_nan():
    data = dataset(np.array([[[3.0, 2.0]], [[3.0, 1.0]]]), np.ones((2, 1, 2)))
    assert at_equal_loss(data, "d_lr", level=1.5).isnull().values.tolist() == [[True], [False]]


def test_rank_correlation_is_spearmans():
    values = np.random.default_rng(0).normal(size=(6, 3, 1))
    values[2, 1] = np.nan
    found = rank_correlation(dataset(values, values), "d_lr").values
    expected = [
        stats.spearmanr(range(6), values[:, seed, 0], nan_policy="omit").statistic
        for seed in range(3)
    ]
    np.testing.assert_allclose(found, expected)


def test_what_cannot_be_loaded_is_named(tmp_path):
    with pytest.raises(RichbookError, match="expected one of label-in-pixels"):
        load_result("nothing")
    with pytest.raises(RichbookError, match="none.nc does not exist"):
        load_result(tmp_path / "none.nc")
    (tmp_path / "text.nc").write_text("not netCDF")
    with pytest.raises(RichbookError, match="text.nc cannot be read as netCDF"):
        load_result(tmp_path / "text.nc")
    xr.Dataset().to_netcdf(tmp_path / "other.nc", engine="h5netcdf")
    with pytest.raises(RichbookError, match="other.nc is not the result of a recipe"):
        load_result(tmp_path / "other.nc")


def test_a_rerun_is_judged_by_the_band():
    recorded = load_result("label-in-pixels")
    assert all(row.inside for row in compare(recorded, recorded))
    moved = recorded.assign(d_lr=recorded.d_lr + 0.5)
    wrong = [row.setting for row in compare(recorded, moved) if not row.inside]
    assert len(wrong) == 3 and all("D_LR" in setting for setting in wrong)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_a_recorded_result_of_three_seeds(name):
    result = load_result(name)
    assert result.attrs["recipe"] == name and result.attrs["variant"] != "quick"
    assert result.sizes["seed"] >= 3
    assert {"config", "versions", "device", "wall_seconds", "commit"} <= set(result.attrs)
    assert results.recorded_path(name).stat().st_size < 500_000


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_a_verdict(name):
    table = ReproductionTable({name: load_result(name)})
    finding = table.findings[name]
    assert finding.same in ("yes", "partly", "no") and len(finding.why) > 20
    assert "nan" not in finding.why
    for row in table.comparisons[name]:
        assert np.isfinite(row.ours).all(), row.setting
    assert html.escape(finding.why) in table._repr_html_()
    assert table.to_markdown().count("\n") == 1 + len(RECIPES[name].rows)


def test_the_readme_has_the_table_of_the_recorded_results():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert reproduction_table().to_markdown(brief=True) in readme
