"""What a page carries of a result is what was measured: decoded here byte by byte."""

import math
import statistics
import struct

import numpy as np
import pytest

from richbook.measure.errors import RichbookError
from richbook.show.result_choice import choose
from richbook.show.result_packing import pack_result, spaced_points
from tests.show.results import STEPS, VALUES, WIDTH, lose_seed, make_result


@pytest.fixture
def result():
    """Three settings; one seed of the second diverged at step 10, all of the third at step 1."""
    made = make_result()
    lose_seed(made, 1, 2, 10)
    for seed in range(3):
        lose_seed(made, 2, seed, 1)
    return made


def expected(values):
    """Mean, smallest and largest of the seeds that are known."""
    known = [float(v) for v in values if not math.isnan(v)]
    return (statistics.fmean(known), min(known), max(known)) if known else (math.nan,) * 3


def same(got, wanted, **tolerance):
    pairs = zip(got, wanted, strict=True)
    return all(
        math.isnan(g) and math.isnan(w) or g == pytest.approx(w, **tolerance) for g, w in pairs
    )


def test_scalars_are_kept_as_they_are(result):
    data, contents = pack_result(result, choose(result))
    assert {"d_lr", "isotropic_d_lr", "train_loss", "nc1"} <= set(contents["scalars"])
    for name, offset in contents["scalars"].items():
        for place, (i, t) in enumerate(np.ndindex(len(VALUES), len(STEPS))):
            got = struct.unpack_from("<3f", data, offset + 12 * place)
            wanted = expected(result[name].values[i, :, t])
            assert same(got, wanted, rel=1e-6), (name, i, t)


@pytest.mark.parametrize("name", ["utilization", "quality"])
def test_curves_are_packed_within_the_stated_error(name, result):
    data, contents = pack_result(result, choose(result))
    field = contents["fields"][name]
    assert field["bits"] == 8 and field["length"] == WIDTH
    for place, (i, t, k) in enumerate(np.ndindex(len(VALUES), len(STEPS), WIDTH)):
        codes = struct.unpack_from("<3B", data, field["offset"] + 3 * place)
        got = [math.nan if code == 255 else code / 254 for code in codes]
        assert same(got, expected(result[name].values[i, :, t, k]), abs=0.002)


def test_eigenvalues_are_packed_within_three_percent_and_end_below_a_millionth(result):
    data, contents = pack_result(result, choose(result))
    field, hidden = contents["fields"]["relative_eigenvalue"], 0
    for place, (i, t, k) in enumerate(np.ndindex(len(VALUES), len(STEPS), WIDTH)):
        codes = struct.unpack_from("<3B", data, field["offset"] + 3 * place)
        mean, low, high = expected(result["relative_eigenvalue"].values[i, :, t, k])
        if math.isnan(mean) or mean < 1e-6:
            assert codes == (255, 255, 255)
            hidden += 1
            continue
        got = [10 ** (6 * (code / 254 - 1)) for code in codes]
        assert got == pytest.approx([mean, max(low, 1e-6), high], rel=0.03)
    assert hidden > 3 * WIDTH  # those of the third setting, and some small ones


def test_an_eigenvalue_of_zero_is_a_gap_and_nothing_warns(result, recwarn):
    result["relative_eigenvalue"].values[0, :, :, -1] = 0
    data, contents = pack_result(result, choose(result))
    field = contents["fields"]["relative_eigenvalue"]
    assert data[field["offset"] + 3 * (WIDTH - 1) :][:3] == bytes([255] * 3)
    assert [str(w.message) for w in recwarn] == []


def test_the_order_of_dimensions_does_not_matter(result):
    turned = result.transpose("k", "step", "seed", ...)
    assert pack_result(turned, choose(turned)) == pack_result(result, choose(result))


def test_wide_kernels_keep_40_points_even_on_a_log_axis():
    points = spaced_points(512)
    assert points[0] == 0 and points[-1] == 511 and len(points) <= 40
    assert points[:5].tolist() == [0, 1, 2, 3, 4] and np.all(np.diff(points) > 0)
    assert spaced_points(7).tolist() == list(range(7))
    wide = make_result(width=512)
    contents = pack_result(wide, choose(wide))[1]
    assert contents["k"] == [int(p) + 1 for p in points] and contents["width"] == 512


def test_contents_name_axis_steps_and_variables(result):
    contents = pack_result(result, choose(result))[1]
    assert contents["axis"] == {
        "words": "target scale",
        "labels": ["0.1", "1", "10"],
        "ordered": True,
    }
    assert contents["steps"] == STEPS and contents["seeds"] == 3
    assert contents["floor"] == "isotropic_d_lr" and contents["tested"] == "test_accuracy"
    assert contents["measure"] == {"name": "d_lr", "words": "D_LR"} and not contents["log"]


def test_settings_that_are_names_have_no_order():
    result = make_result(values=["with", "without", "without, He"], axis="network")
    axis = pack_result(result, choose(result))[1]["axis"]
    assert axis == {
        "words": "network",
        "labels": ["with", "without", "without, He"],
        "ordered": False,
    }


def test_the_rank_comes_from_the_floor_only_where_the_curves_are_whole(result):
    """1 − √(3/12) = 0.5; where not all eigenfunctions were recorded, p is not known."""
    contents = pack_result(result, choose(result))[1]
    assert contents["ranks"] == [3] * 9 + [0] * 3  # all seeds of the third setting diverged
    part = result.isel(k=slice(None, 6))
    assert pack_result(part, choose(part))[1]["ranks"] is None


def test_what_a_result_lacks_is_left_out(result):
    bare = result[["d_lr"]].assign_attrs(axis="target_scale")
    data, contents = pack_result(bare, choose(bare))
    assert contents["fields"] == {} and contents["accuracies"] == [] and contents["tested"] is None
    assert contents["floor"] is None and contents["ranks"] is None and contents["ends"] == ""
    assert len(data) == 12 * len(VALUES) * len(STEPS)


def test_only_other_measures_that_span_much_get_a_log_axis(result):
    result["nc1"].values[0, 0, 0] = 100.0
    assert pack_result(result, choose(result, measure="nc1"))[1]["log"]
    assert not pack_result(result, choose(result, measure="train_loss"))[1]["log"]
    result["d_lr"].values[0, 0, 1] = 1e-4
    assert not pack_result(result, choose(result))[1]["log"]


def test_a_curve_outside_its_range_is_an_error(result):
    result["quality"].values[0] *= 3
    with pytest.raises(RichbookError, match="curves='quality' must lie between 0 and 1; it goes"):
        pack_result(result, choose(result))


def test_there_is_a_line_of_words_for_every_setting_and_step(result):
    contents = pack_result(result, choose(result))[1]
    lines = contents["readouts"]
    assert len(lines) == len(VALUES) * len(STEPS)
    assert lines[0].startswith("D_LR undefined · train accuracy ")
    mean, low, high = expected(result["d_lr"].values[0, :, 2])
    assert lines[2].startswith(f"D_LR {mean:.3f} ({low:.3f}–{high:.3f}) · train accuracy ")
    assert lines[5].count("diverged") == 0 and lines[6].endswith("1 of 3 seeds diverged")
    assert lines[-1] == "all 3 seeds diverged"
    assert contents["gaps"] == (
        "D_LR is undefined at step 0, where features or outputs are constant. "
        "4 networks diverged: their lines end."
    )
