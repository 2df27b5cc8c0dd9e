"""Sweeps at their edges: few recorded steps, all seeds lost, axes that cannot be drawn."""

import warnings

import numpy as np
import pytest

from richbook.measure.errors import RichbookError
from richbook.show import (
    explore,
    plot_comparison,
    plot_eigenfunctions,
    plot_history,
    plot_sweep_lines,
    plot_sweep_map,
    plot_utilization,
)
from richbook.show.canvas import log_positions, spread
from richbook.show.packing import describe, output_rank, richness_word
from tests.show.conftest import lose, make_sweep

CELL = {"weight_decay": 0.01, "learning_rate": 0.01, "target_scale": 1}


def recorded_at(steps, **changes):
    shape = {
        "decays": [0.0, 0.01],
        "scales": [0.1, 1.0],
        "rates": [0.001, 0.01],
        "seeds": 2,
        "width": 12,
    } | changes
    return make_sweep(steps=steps, **shape)


@pytest.mark.parametrize(
    "steps, ticks",
    [
        ([20, 50], [20, 50]),
        ([60], [60]),
        ([50, 120, 200], [100]),
        ([0], [0]),
        ([0, 5], [0, 1]),
        ([1, 3000], [1, 10, 100, 1000]),
        ([1], [1]),
    ],
)
def test_any_recorded_steps_have_an_axis_with_ticks_that_hides_none(steps, ticks):
    sweep = recorded_at(steps)
    drawn = [*plot_history(sweep, **CELL), plot_sweep_lines(sweep, x="step", **CELL)]
    for ax in drawn:
        assert ax.get_xticks().tolist() == ticks
        assert [label.get_text() for label in ax.get_xticklabels()] == [str(t) for t in ticks]
        low, high = ax.get_xlim()
        assert low <= steps[0] <= steps[-1] <= high and low < high
        ax.figure.canvas.draw()


def test_one_recorded_step_is_a_marker_with_its_range():
    ax = plot_sweep_lines(recorded_at([60]), x="step", **CELL)
    assert ax.lines[0].get_marker() == "o"
    assert ax.collections  # the range of the seeds


@pytest.mark.parametrize("values", [[1.0, 0.1], [0.01, 0.0], [0.1, 0.1]])
def test_a_logarithmic_axis_must_ascend(values):
    with pytest.raises(RichbookError, match="values must be ascending"):
        log_positions(values)


def test_a_descending_sweep_is_refused_not_drawn_wrongly(sweep):
    with pytest.raises(RichbookError, match="must be ascending, not 1, 0.1"):
        plot_sweep_lines(sweep.isel(target_scale=[1, 0]), weight_decay=0, learning_rate=0.001)


def test_utilization_leaves_out_a_seed_that_diverged():
    nan = [np.nan, np.nan]
    ax = plot_utilization(np.array([[0.2, 1.0], nan, [0.4, 1.0]]))
    np.testing.assert_allclose(ax.lines[0].get_ydata(), [0.3, 1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(plot_utilization([nan, nan]).lines[0].get_ydata()).all()


def test_a_map_over_steps_is_hatched_from_where_a_seed_diverged(sweep):
    ax = plot_sweep_map(sweep, x="step", target_scale=1, learning_rate=0.01)
    hatched = {tuple(np.add(p.get_xy(), 0.5)) for p in ax.patches if p.get_hatch()}
    # Of steps 0, 1, 10, 100, 1000: decay 0 diverged at 10, decay 0.001 in one seed at 100.
    assert hatched == {(2, 0), (3, 0), (4, 0), (3, 1), (4, 1)}
    turned = plot_sweep_map(sweep, x="weight_decay", y="step", target_scale=1, learning_rate=0.01)
    assert len([p for p in turned.patches if p.get_hatch()]) == len(hatched)


def test_a_map_at_an_earlier_step_is_not_hatched_by_what_came_later(sweep):
    ax = plot_sweep_map(sweep, step=10, learning_rate=0.01)
    assert {tuple(np.add(p.get_xy(), 0.5)) for p in ax.patches if p.get_hatch()} == {(1, 0)}


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda s: plot_sweep_lines(s, x="seed", **CELL), "x='seed' cannot be an axis"),
        (lambda s: plot_sweep_lines(s, hue="seed", x="step", **CELL), "hue='seed' cannot"),
        (lambda s: plot_sweep_map(s, x="seed", **CELL), "x='seed' cannot"),
        (lambda s: plot_sweep_map(s, y="seed", **CELL), "y='seed' cannot"),
        (lambda s: plot_comparison(s, axis="seed", **CELL), "axis='seed' cannot"),
        (lambda s: plot_eigenfunctions(np.eye(3), [0, 1, 2], count=0), "count must be .* not 0"),
        (
            lambda s: plot_eigenfunctions(np.eye(3), [0, 1, 2], count=1.5),
            "count must be .* not 1.5",
        ),
        (lambda s: explore(s, start=[0.1]), r"start must be a dict .* not \[0.1\]"),
        (lambda s: explore(s, start=[]), r"start must be a dict .* not \[\]"),
    ],
)
def test_what_cannot_be_drawn_is_refused_by_name(call, message, sweep):
    with pytest.raises(RichbookError, match=message):
        call(sweep)


def test_a_floor_of_zero_gives_no_word_and_no_scale():
    assert richness_word(0.3, 0.0) == ""
    assert describe([0.3], [0.9], [-1], floor=0.0) == "D_LR 0.300 (one seed) · test accuracy 0.90"
    sweep = recorded_at([1, 10], width=5)
    sweep.attrs["isotropic_d_lr"] = 0.0
    assert output_rank(sweep) == 5
    image = plot_sweep_map(sweep, learning_rate=0.01).images[0]
    mean = sweep["d_lr"].sel(learning_rate=0.01).isel(step=-1).mean("seed")
    assert image.get_clim() == pytest.approx((0, float(mean.max())))


def test_a_sweep_that_diverged_throughout_is_drawn_without_a_warning():
    sweep = recorded_at([1, 10])
    for cell in np.ndindex(2, 2, 2):
        lose(sweep, cell, (0, 1), 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plot_history(sweep, **CELL)
        plot_sweep_map(sweep, learning_rate=0.01)
        plot_sweep_lines(sweep, weight_decay=0.01, learning_rate=0.01)
        panels = plot_comparison(sweep, target_scale=1, learning_rate=0.01)
        panels[0].figure.canvas.draw()
    assert len(panels) == 4


def test_zero_has_a_place_on_a_logarithmic_axis():
    np.testing.assert_allclose(log_positions([0.0, 0.01, 1.0]), [-4, -2, 0])
    np.testing.assert_allclose(log_positions([0.0]), [0])
    with pytest.raises(RichbookError, match="not negative"):
        log_positions([-1.0, 1.0])


def test_labels_are_spread_in_bounds_and_in_order():
    placed = spread([0.0, 0.1, 0.2, 9.9], gap=1.0, bottom=0.0, top=10.0)
    assert np.diff(placed).min() >= 1 and placed[0] >= 0 and placed[-1] <= 10
