"""What a page carries is what was measured: decoded here byte by byte, without our own reader."""

import math
import statistics
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from richbook.measure.errors import RichbookError
from richbook.show.packing import (
    describe,
    describe_sweep,
    pack,
    pack_error,
    pack_sweep,
    thinned,
    unpack,
    verdict,
)


def read(data, field, cell, position):
    """Decode the triple (mean, smallest, largest) of a cell by hand."""
    size, most = (1, 255) if field["bits"] == 8 else (2, 65535)
    at = field["offset"] + (cell * field["length"] + position) * 3 * size
    codes = struct.unpack_from("<3B" if size == 1 else "<3H", data, at)
    return [math.nan if code == most else code / (most - 1) for code in codes]


@given(
    st.lists(st.one_of(st.floats(0, 1), st.just(math.nan)), max_size=50), st.sampled_from([8, 16])
)
def test_round_trip_stays_within_the_stated_error(values, bits):
    back = unpack(pack(np.array(values), bits), bits)
    assert np.array_equal(np.isnan(back), np.isnan(values))
    known = ~np.isnan(back)
    assert np.all(np.abs(back[known] - np.array(values)[known]) <= pack_error(bits) + 1e-12)


def test_bits_are_checked():
    with pytest.raises(RichbookError, match="bits must be 8 or 16, not 12"):
        pack(np.zeros(1), 12)


@pytest.mark.parametrize("name", ["d_lr", "train_accuracy", "test_accuracy", "utilization"])
def test_every_cell_of_a_sweep_is_packed_within_the_stated_error(name, sweep):
    data, contents = pack_sweep(sweep)
    field = contents["fields"][name]
    stated = {"d_lr": 1e-5}.get(name, 0.002)
    cell = 0
    for i in range(3):
        for j in range(2):
            for k in range(2):
                for position in range(field["length"]):
                    values = sweep[name].values[i, j, k]  # (seed, step[, k])
                    at = (-1, position) if name == "utilization" else (position,)
                    values = values[(slice(None), *at)]
                    known = [float(v) for v in values if not math.isnan(v)]
                    got = read(data, field, cell, position)
                    if not known:
                        assert all(math.isnan(v) for v in got)
                        continue
                    expected = statistics.fmean(known), min(known), max(known)
                    assert got == pytest.approx(expected, abs=stated)
                cell += 1
    assert contents["diverged"] == [0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0]


def test_the_order_of_a_sweeps_dimensions_does_not_matter(sweep):
    turned = sweep.transpose("step", "k", "seed", "learning_rate", "weight_decay", "target_scale")
    assert pack_sweep(turned) == pack_sweep(sweep)
    assert describe_sweep(turned) == describe_sweep(sweep)


def test_a_wide_network_keeps_the_ends_of_its_curve(sweep):
    positions = thinned(1000)
    assert len(positions) == 64 and positions[0] == 0 and positions[-1] == 999
    assert thinned(5).tolist() == [0, 1, 2, 3, 4]


def test_rank_comes_from_the_floor(sweep):
    assert pack_sweep(sweep)[1]["rank"] == 3  # 12 features: 1 - sqrt(3 / 12) = 0.5
    sweep.attrs.clear()
    contents = pack_sweep(sweep)[1]
    assert contents["rank"] is None and contents["floor"] is None


NAN = math.nan


@pytest.mark.parametrize(
    "cell, words",
    [
        (
            ([0.058, 0.066, 0.062], [0.97] * 3, [-1] * 3),
            "D_LR 0.062 (0.058–0.066 over 3 seeds) · test accuracy 0.97 · rich",
        ),
        (
            ([NAN, 0.2, NAN], [NAN, 0.9, NAN], [120, -1, 300]),
            "D_LR 0.200 (one seed) · test accuracy 0.90 · between rich and lazy · "
            "2 of 3 seeds diverged, the first at step 120",
        ),
        (
            ([NAN, 0.5], [NAN, 0.9], [12, -1]),
            "D_LR 0.500 (one seed) · test accuracy 0.90 · lazy · 1 of 2 seeds diverged, at step 12",
        ),
        (([NAN] * 3, [NAN] * 3, [7, 7, 7]), "all 3 seeds diverged, at step 7"),
        (([NAN], [NAN], [7]), "the only seed diverged, at step 7"),
        (
            ([NAN] * 2, [0.1] * 2, [-1, -1]),
            "D_LR undefined (features or outputs are constant) · test accuracy 0.10",
        ),
        (
            ([NAN, 0.1, 0.3], [0.9] * 3, [-1] * 3),
            "D_LR 0.200 (0.100–0.300 over 2 seeds, undefined in 1) · test accuracy 0.90 · "
            "between rich and lazy",
        ),
        (
            ([0.1, NAN, NAN], [0.9, 0.9, NAN], [-1, -1, 9]),
            "D_LR 0.100 (one seed, undefined in 1) · test accuracy 0.90 · rich · "
            "1 of 3 seeds diverged, at step 9",
        ),
        (
            ([0.0, 0.0], [0.1, 0.12], [-1, -1]),
            "D_LR 0.000 (0.000–0.000 over 2 seeds) · test accuracy 0.11 · hardly trained",
        ),
    ],
)
def test_a_cell_in_words(cell, words):
    assert describe(*cell, floor=0.6) == words


def test_without_a_floor_nothing_is_called_rich_or_lazy():
    assert describe([0.1], [0.9], [-1]) == "D_LR 0.100 (one seed) · test accuracy 0.90"


def test_richness_is_judged_against_the_floor():
    assert verdict(0.2, 0.9, floor=0.9) == "rich"
    assert verdict(0.2, 0.9, floor=0.13) == "lazier than a kernel without structure"


def test_a_sweep_that_lacks_something_says_what(sweep):
    with pytest.raises(RichbookError, match="'diverged_at' is not in the data"):
        pack_sweep(sweep.drop_vars("diverged_at"))
    with pytest.raises(RichbookError, match="lacks the axes seed"):
        pack_sweep(sweep.isel(seed=0))
