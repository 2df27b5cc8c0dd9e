"""Every plot: axes are named, seeds are a band, an error lists what there is."""

import threading

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
import xarray as xr
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from richbook.measure.errors import RichbookError
from richbook.show import (
    COLORS,
    plot_comparison,
    plot_eigenfunctions,
    plot_history,
    plot_kernel,
    plot_spectrum,
    plot_sweep_lines,
    plot_sweep_map,
    plot_utilization,
)

CELL = {"weight_decay": 0.01, "learning_rate": 0.01}
LABELS = np.arange(20) % 4
VALUES = np.random.default_rng(0).normal(size=(20, 6))

#: Each plot with good arguments, and how many panels it has.
PLOTS = {
    "history": (lambda s, ax: plot_history(s, ax=ax, target_scale=1, **CELL), 2),
    "lines": (lambda s, ax: plot_sweep_lines(s, ax=ax, **CELL), 1),
    "map": (lambda s, ax: plot_sweep_map(s, ax=ax, learning_rate=0.01), 1),
    "utilization": (lambda s, ax: plot_utilization([[0.5, 1.0]], ax=ax), 1),
    "spectrum": (lambda s, ax: plot_spectrum([2.0, 1.0], ax=ax), 1),
    "eigenfunctions": (lambda s, ax: plot_eigenfunctions(VALUES, labels=LABELS, ax=ax), 1),
    "kernel": (lambda s, ax: plot_kernel(VALUES @ VALUES.T, LABELS, ax=ax), 1),
    "comparison": (
        lambda s, ax: plot_comparison(s, ax=ax, target_scale=1, **{"learning_rate": 0.01}),
        4,
    ),
}


def panels(result):
    return result if isinstance(result, list) else [result]


def bands(ax):
    return [c for c in ax.collections if isinstance(c, PolyCollection)]


@pytest.mark.parametrize("name", PLOTS)
def test_axes_are_named_and_draw(name, sweep):
    plot, count = PLOTS[name]
    made = panels(plot(sweep, None))
    assert len(made) == count and all(ax.get_ylabel() for ax in made)
    assert any(ax.get_xlabel() for ax in made)
    made[0].figure.canvas.draw()


@pytest.mark.parametrize("name", PLOTS)
def test_given_axes_are_drawn_on_without_pyplot_in_a_thread(name, sweep, monkeypatch):
    plot, count = PLOTS[name]
    axes = list(np.ravel(Figure().subplots(1, count)))
    result, failures = [], []
    for function in ("subplots", "figure", "gca", "sca", "gcf"):
        monkeypatch.setattr(plt, function, lambda *a, **k: failures.append("pyplot was used"))

    def work():
        try:
            result.extend(panels(plot(sweep, axes if count > 1 else axes[0])))
        except Exception as error:  # an exception in a thread would pass unseen
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failures and result == axes


@pytest.mark.parametrize("name", PLOTS)
def test_wrong_axes_are_refused(name, sweep):
    with pytest.raises(RichbookError, match="ax must be"):
        PLOTS[name][0](sweep, "not an axes")


def test_history_has_bands_the_floor_and_the_two_line_styles(sweep):
    left, right = plot_history(sweep, target_scale=1, **CELL)
    assert len(bands(left)) == 1 and len(bands(right)) == 2
    assert [0.5, 0.5] in [list(line.get_ydata()) for line in left.lines]
    train, test = right.lines
    assert train.get_linestyle() == "-" and test.get_linestyle() == "--"
    expected = sweep["train_accuracy"].sel(target_scale=1, **CELL).mean("seed")
    np.testing.assert_allclose(train.get_ydata(), expected, rtol=1e-6)


def test_history_of_one_network_has_no_band(sweep):
    run = sweep.isel(weight_decay=0, target_scale=0, learning_rate=0, seed=0)
    left, right = plot_history(run)
    assert not bands(left) and not bands(right)
    assert to_hex(left.lines[0].get_color()).upper() == COLORS["d_lr"]


def test_lines_are_the_mean_and_the_band_reaches_the_outermost_seeds(sweep):
    ax = plot_sweep_lines(sweep, **CELL)
    values = sweep["d_lr"].sel(**CELL).isel(step=-1).values  # (scale, seed)
    line = next(line for line in ax.lines if len(line.get_xdata()) == len(values))
    np.testing.assert_allclose(line.get_ydata(), values.mean(1), rtol=1e-6)
    edges = bands(ax)[0].get_paths()[0].vertices[:, 1]
    assert edges.min() == pytest.approx(values.min()) and edges.max() == pytest.approx(values.max())
    assert [t.get_text() for t in ax.get_xticklabels()] == ["0.1", "1"]


def test_hue_draws_and_names_one_line_a_value_and_leaves_out_what_diverged(sweep):
    ax = plot_sweep_lines(sweep, hue="weight_decay", learning_rate=0.01)
    texts = [text.get_text() for text in ax.texts]
    assert r"$\gamma$ = 0" in texts and r"$\gamma$ = 0.01" in texts
    drawn = [line for line in ax.lines if len(line.get_xdata()) == 2 and line.get_marker() == "o"]
    assert len(drawn) == 3 and np.isnan(drawn[0].get_ydata()[1])


def test_lines_over_steps_and_at_an_earlier_step(sweep):
    assert "training step" in plot_sweep_lines(sweep, x="step", target_scale=1, **CELL).get_xlabel()
    line = plot_sweep_lines(sweep, step=10, **CELL).lines[0]
    expected = sweep["d_lr"].sel(step=10, **CELL).mean("seed")
    np.testing.assert_allclose(line.get_ydata(), expected, rtol=1e-6)


def test_map_has_a_number_a_cell_hatches_what_diverged_and_dashes_what_has_no_value(sweep):
    ax = plot_sweep_map(sweep, learning_rate=0.01)
    texts = {tuple(text.get_position()): text.get_text() for text in ax.texts}
    mean = sweep["d_lr"].sel(learning_rate=0.01).isel(step=-1).mean("seed").values
    assert texts[(0, 2)] == f"{mean[2, 0]:.2f}"
    assert texts[(1, 0)] == "–"
    corners = [patch.get_xy() for patch in ax.patches if patch.get_hatch()]
    hatched = {(round(x + 0.5), round(y + 0.5)) for x, y in corners}
    assert hatched == {(1, 0), (1, 1)}


def test_map_can_be_turned_and_shows_other_variables(sweep):
    ax = plot_sweep_map(
        sweep, x="weight_decay", y="learning_rate", variable="test_accuracy", target_scale=0.1
    )
    assert ax.images[0].get_array().shape == (2, 3)


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda s: plot_sweep_lines(s, y="richness", **CELL),
            "y='richness' is not in the data.*d_lr",
        ),
        (lambda s: plot_sweep_lines(s, x="width", **CELL), "'width' is not an axis.*target_scale"),
        (
            lambda s: plot_sweep_lines(s, learning_rate=0.01),
            "weight_decay is neither.*0, 0.001, 0.01",
        ),
        (
            lambda s: plot_sweep_lines(s, weight_decay=0.5, learning_rate=0.01),
            "weight_decay=0.5 is not in the data; it has: 0, 0.001, 0.01",
        ),
        (lambda s: plot_sweep_lines(s, target_scale=1, **CELL), "target_scale is drawn"),
        (lambda s: plot_sweep_lines(s, step=7, **CELL), "step=7 is not in the data"),
        (lambda s: plot_sweep_lines(s, hue="target_scale", **CELL), "hue='target_scale'"),
        (lambda s: plot_sweep_map(s, x="weight_decay"), "x and y are both 'weight_decay'"),
        (lambda s: plot_sweep_map(s, variable="loss", learning_rate=0.01), "variable='loss'"),
        (lambda s: plot_history(s, **CELL), "target_scale is neither drawn nor fixed"),
        (lambda s: plot_history({"d_lr": [1]}), "data must be an xarray.Dataset, not dict"),
        (lambda s: plot_comparison(s.drop_vars("nc1"), **CELL), "the sweep lacks nc1"),
        (lambda s: plot_utilization([[0.5, 1.0]], labels=["a", "b"]), "labels must have 1"),
        (lambda s: plot_utilization("word"), "curves must be an array of numbers"),
        (lambda s: plot_spectrum([0.0, 1.0]), "must start with the largest"),
        (lambda s: plot_eigenfunctions(VALUES), "either labels or images"),
        (lambda s: plot_eigenfunctions(VALUES, labels=LABELS[:3]), "labels must have n = 20"),
        (lambda s: plot_eigenfunctions(VALUES[0], labels=LABELS), "values must have shape"),
        (lambda s: plot_kernel(VALUES, LABELS), r"matrix must have shape \(n, n\)"),
        (lambda s: plot_kernel(VALUES @ VALUES.T, LABELS[:2]), "labels must have n = 20"),
    ],
)
def test_wrong_input_is_an_error_that_says_what_there_is(call, message, sweep):
    with pytest.raises(RichbookError, match=message):
        call(sweep)


def test_utilization_takes_curves_dicts_tensors_and_seeds():
    one = plot_utilization(torch.tensor([0.5, 1.0]), rank=1)
    assert "rank 1" in [text.get_text() for text in one.texts] and not bands(one)
    many = plot_utilization({"a": [0.5, 1.0], "b": [[0.2, 0.9], [0.4, 1.0]]})
    assert len(bands(many)) == 1
    assert [text.get_text() for text in many.get_legend().get_texts()] == ["a", "b"]
    np.testing.assert_allclose(many.lines[1].get_ydata(), [0.3, 0.95])
    assert plot_utilization([0.5, 0.8, 1.0], log=True).get_xscale() == "log"


def test_utilization_takes_a_sweeps_curve(sweep):
    curve = sweep["utilization"].isel(weight_decay=2, target_scale=0, learning_rate=0, step=-1)
    assert isinstance(curve, xr.DataArray)
    ax = plot_utilization(curve)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), curve.mean("seed"), rtol=1e-6)


def test_spectrum_is_relative_and_drops_rounding_noise():
    drawn = plot_spectrum([8.0, 2.0, 1e-20]).lines[0].get_ydata()
    assert drawn[:2].tolist() == [1.0, 0.25] and np.isnan(drawn[2])


def test_kernel_is_sorted_by_class_and_thinned():
    matrix = np.equal.outer(LABELS, LABELS).astype(float)
    drawn = np.asarray(plot_kernel(matrix, LABELS).images[0].get_array())
    assert np.array_equal(drawn, np.kron(np.eye(4), np.ones((5, 5))))
    large = np.zeros((1000, 1000))
    assert plot_kernel(large, np.arange(1000) % 10).images[0].get_array().shape[0] <= 200


def test_eigenfunctions_show_class_means_and_the_share_between_classes():
    by_class = np.array([3.0, -1.0, -1.0, -1.0])[LABELS]
    within = np.tile([1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0], 3)[:20]
    within = within - np.array([within[LABELS == c].mean() for c in range(4)])[LABELS]
    ax = plot_eigenfunctions(np.stack([by_class, within], 1), labels=LABELS)
    drawn = np.asarray(ax.images[0].get_array())
    np.testing.assert_allclose(drawn[0], [3, -1, -1, -1])
    np.testing.assert_allclose(drawn[1], 0, atol=1e-12)
    texts = [text.get_text() for text in ax.texts]
    assert "1.00" in texts and "0.00" in texts


def test_eigenfunctions_show_the_images_at_their_extremes():
    images = np.arange(20.0)[:, None, None] * np.ones((1, 6, 6))
    values = np.linspace(-1, 2, 20)[:, None]
    drawn = np.asarray(plot_eigenfunctions(values, images=images).images[0].get_array())
    assert drawn[0, 0] == 0.0 and np.nanmax(drawn) == 19.0
    with pytest.raises(RichbookError, match="images must have shape"):
        plot_eigenfunctions(values, images=images[:, 0])


def test_comparison_uses_one_colour_a_measure_and_bands(sweep):
    made = plot_comparison(sweep, axis="weight_decay", target_scale=0.1, learning_rate=0.01)
    names = ("d_lr", "s_init", "parameter_norm", "nc1")
    for ax, name in zip(made, names, strict=True):
        assert to_hex(ax.lines[0].get_color()).upper() == COLORS[name]
        assert len(bands(ax)) == 1
