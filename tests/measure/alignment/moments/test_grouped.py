"""Moments of several groups at once, against numpy in float64, group by group."""

import numpy as np
import pytest
import torch

from richbook.measure.alignment.moments import grouped
from richbook.measure.alignment.moments.grouped import GroupedMoments, Sorting
from richbook.measure.errors import RichbookError

GROUPS = 4


def drawn(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def of_groups(count, number=GROUPS, seed=1):
    return torch.randint(number, (count,), generator=torch.Generator().manual_seed(seed))


def streamed(rows, groups, size, number=GROUPS):
    moments = GroupedMoments(rows.shape[1], number)
    parts = [None] * len(rows) if groups is None else groups.split(size)
    for some, chosen in zip(rows.split(size), parts, strict=False):
        moments.update(some, chosen, "rows")
    return moments.finish()


def check(parts, rows, groups, tolerance):
    """Counts, means, and covariances relative to their norm."""
    rows = rows.double().numpy()
    for group, part in enumerate(parts):
        chosen = rows if groups is None else rows[(groups == group).numpy()]
        assert part.count == len(chosen)
        if len(chosen):
            expected = np.cov(chosen.T, bias=True).reshape(part.covariance.shape)
            size = np.linalg.norm(expected)
            spread = np.sqrt(np.trace(expected))
            assert np.abs(part.mean.numpy() - chosen.mean(0)).max() <= tolerance * spread
            assert np.linalg.norm(part.covariance.numpy() - expected) <= tolerance * size


@pytest.mark.parametrize("width", [1, 7, 63, 64, 130, 300])
@pytest.mark.parametrize("size", [37, 5000])
def test_every_width_and_block(width, size):
    rows, groups = drawn(5000, width), of_groups(5000)
    check(streamed(rows, groups, size), rows, groups, 3e-6)
    check(streamed(rows, None, size, number=1), rows, None, 3e-6)


@pytest.mark.parametrize("width", [5, 300])
def test_float64_stays_float64(width):
    rows, groups = drawn(900, width, dtype=torch.float64), of_groups(900)
    check(streamed(rows, groups, 100), rows, groups, 1e-13)


@pytest.mark.parametrize("width", [5, 300])
def test_a_large_mean_costs_no_digits(width):
    rows, groups = drawn(3000, width) + 1000, of_groups(3000)
    check(streamed(rows, groups, 500), rows, groups, 1e-5)


@pytest.mark.parametrize("width", [5, 300])
def test_a_stream_may_drift_away_from_its_first_block(width):
    rows = drawn(4000, width)
    rows[1000:] += 1000
    rows[3000:] -= 5000
    groups = of_groups(4000)
    parts = streamed(rows, groups, 500)
    check(parts, rows, groups, 1e-5)
    # within the last stretch alone there is a spread of 1, which sums about 0 would have lost
    moments = GroupedMoments(width, GROUPS)
    for some in (rows[:500], rows[3000:]):
        moments.update(some, of_groups(len(some)), "rows")
    third = rows[3000:].double()
    pooled = grouped.SecondMoment.pooled(moments.finish(), width)
    within = torch.cov(third.T, correction=0) * 1000
    first = rows[:500].double()
    between = first.mean(0) - third.mean(0)
    expected = within + torch.cov(first.T, correction=0) * 500
    expected += torch.outer(between, between) * (1000 * 500 / 1500)
    rotated = torch.linalg.svd(between[None])[2][1:]  # without the direction of the drift
    left = rotated @ (pooled.scatter - expected) @ rotated.T
    assert left.norm() < 1e-4 * (rotated @ expected @ rotated.T).norm()


def test_unequal_groups():
    """One group has almost everything, one a single row, one nothing."""
    rows = drawn(6000, 70)
    groups = torch.zeros(6000, dtype=torch.long)
    groups[17], groups[100:130] = 1, 3
    parts = streamed(rows, groups, 2500)
    assert parts[1].scatter.norm() < 1e-6 * rows[17].square().sum() and parts[2].count == 0
    assert torch.allclose(parts[1].mean, rows[17].double())
    check([parts[0]], rows, groups, 3e-6)
    check([parts[3]], rows, torch.where(groups == 3, 0, 1), 3e-6)


def test_a_constant_column_has_no_variance():
    rows = drawn(1000, 3)
    rows[:, 1] = 0.1
    for part in streamed(rows, of_groups(1000), 250):
        assert part.covariance[1].abs().max() == 0
        assert part.mean[1] == float(np.float32(0.1))


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_squares_that_leave_float32(scale):
    rows, groups = drawn(2000, 80) * scale, of_groups(2000)
    rows[:500] = drawn(500, 80, seed=3)  # first a block that fits
    check(streamed(rows[500:], groups[500:], 250), rows[500:], groups[500:], 1e-6)
    parts = streamed(rows, groups, 500)
    check(parts, rows, groups, 3e-6)


def test_what_is_not_finite_is_named_with_its_row():
    rows = drawn(600, 4)
    rows[450, 2] = float("nan")
    with pytest.raises(RichbookError, match=r"h_a of 'fc': row 450 contains nan"):
        moments = GroupedMoments(4, GROUPS)
        for some in rows.split(100):
            moments.update(some, of_groups(100), "h_a of 'fc'")


def test_sorting_fills_up_short_groups_with_zeros():
    rows, groups = drawn(11, 2), torch.tensor([2, 0, 0, 2, 2, 0, 2, 2, 0, 0, 2])
    sorting = Sorting.of(groups, GROUPS)
    found = sorting.apply(rows)
    assert found.shape == (GROUPS, 6, 2) and sorting.counts.tolist() == [5, 0, 6, 0]
    for group in range(GROUPS):
        chosen = rows[groups == group]
        assert torch.equal(found[group, : len(chosen)], chosen)
        assert not found[group, len(chosen) :].any()
