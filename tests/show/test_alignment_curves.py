"""Alignments along training: lines, seeds as a band, the null hatched, errors that say what is."""

import threading

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
import xarray as xr
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from richbook.measure import AlignmentHistory
from richbook.measure.errors import RichbookError
from richbook.show import plot_alignment_history

STEPS = [0, 1, 10, 100]
DIMS = ("step", "layer", "side", "relation")
COORDS = {"step": STEPS, "layer": ["0", "2"], "side": ["forward", "backward"],
          "relation": ["RGA", "RWA", "GWA"]}  # fmt: skip


def made(seed=0, interval=False, steps=STEPS):
    """A record as `AlignmentHistory.data` gives it."""
    rng = np.random.default_rng(seed)
    shape = (len(steps), 2, 2, 3)
    value = rng.uniform(0.4, 0.9, shape)
    data = {"alignment": value, "null_mean": rng.uniform(0.2, 0.3, shape),
            "null_std": rng.uniform(0.02, 0.05, shape)}  # fmt: skip
    if interval:
        data |= {"low": value - 0.1, "high": value + 0.05}
    variables = {name: (DIMS, values) for name, values in data.items()}
    attrs = {"kind": "cosine", "normalize": 0}
    return xr.Dataset(variables, COORDS | {"step": steps}, attrs)


def bands(ax, hatched):
    every = [part for part in ax.collections if isinstance(part, PolyCollection)]
    return [part for part in every if bool(part.get_hatch()) == hatched]


def edges(polygon):
    vertices = polygon.get_paths()[0].vertices
    return [(vertices[vertices[:, 0] == step, 1].min(), vertices[vertices[:, 0] == step, 1].max())
            for step in STEPS]  # fmt: skip


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_lines_are_the_alignments_of_the_layer():
    data = made()
    for ax, side in zip(plot_alignment_history(data, "2"), ("forward", "backward"), strict=True):
        drawn = {text.get_text(): line for text, line in zip(ax.texts[1:], ax.lines, strict=True)}
        assert len(ax.lines) == 3 and set(drawn) == {"RGA", "RWA", "GWA"}
        for line, name in zip(ax.lines, ("RGA", "RWA", "GWA"), strict=True):
            expected = data.alignment.sel(layer="2", side=side, relation=name)
            np.testing.assert_array_equal(line.get_ydata(), expected)
            np.testing.assert_array_equal(line.get_xdata(), STEPS)
        assert len({line.get_color() for line in ax.lines}) == 3
        assert len({line.get_marker() for line in ax.lines}) == 3  # also in grey
        assert ax.get_ylabel() == f"{side} alignment (cosine)"
        assert ax.get_xlabel().startswith("training step")
        assert not bands(ax, hatched=False)
        ax.figure.canvas.draw()


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_null_is_a_hatched_band_that_covers_all_three(seeds):
    parts = [made(seed) for seed in range(seeds)]
    for ax, side in zip(plot_alignment_history(parts, "0"), ("forward", "backward"), strict=True):
        (null,) = bands(ax, hatched=True)
        for k, (low, high) in enumerate(edges(null)):
            at = [part.sel(layer="0", side=side).isel(step=k) for part in parts]
            assert low == pytest.approx(
                min(float((p.null_mean - 2 * p.null_std).min()) for p in at)
            )
            assert high == pytest.approx(
                max(float((p.null_mean + 2 * p.null_std).max()) for p in at)
            )
        assert ax.texts[0].get_text() == "by chance"


@pytest.mark.parametrize("together", [False, True])
def test_seeds_are_a_mean_and_a_band(together):
    parts = [made(seed, interval=True) for seed in range(3)]
    given = xr.concat(parts, "seed") if together else parts
    left, _ = plot_alignment_history(given, "0")
    values = np.stack([part.alignment.values[:, 0, 0, 0] for part in parts])
    np.testing.assert_allclose(left.lines[0].get_ydata(), values.mean(0))
    found = edges(bands(left, hatched=False)[0])
    np.testing.assert_allclose(found, np.stack([values.min(0), values.max(0)], 1))


def test_the_interval_over_samples_is_the_band_of_a_single_run():
    data = made(interval=True)
    left, _ = plot_alignment_history(data, "0")
    found = edges(bands(left, hatched=False)[2])
    expected = data.sel(layer="0", side="forward", relation="GWA")
    np.testing.assert_allclose(found, np.stack([expected.low, expected.high], 1))


def test_a_recorded_history():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    loader = [(torch.randn(60, 4), torch.arange(60) % 2)]
    history = AlignmentHistory(
        model, loader, torch.nn.functional.cross_entropy, "0", kind="pearson", normalize=True
    )
    with pytest.raises(RichbookError, match="nothing is recorded yet"):
        plot_alignment_history(history)
    history.record(0)
    left, _ = plot_alignment_history(history)  # a single step can be seen
    assert left.patches[0].get_hatch() and left.lines[0].get_marker() == "o"
    for step in range(1, 11):
        history.record(step)
    left, right = plot_alignment_history(history)
    assert left.get_ylabel() == "forward alignment (Pearson)"
    assert list(left.lines[0].get_xdata()) == history.steps == [0, 1, 2, 3, 6, 10]
    drawn = [line.get_ydata() for ax in (left, right) for line in ax.lines]
    assert left.get_ylim()[0] <= min(map(min, drawn)) < max(map(max, drawn)) <= 1.03


def test_what_is_nan_is_left_out():
    data = made()
    data.alignment.values[0] = np.nan
    data.null_mean.values[0] = np.nan
    left, _ = plot_alignment_history(data, "0")
    assert np.isnan(left.lines[0].get_ydata()[0]) and len(left.texts) == 4
    data.alignment.values[:] = np.nan
    left, _ = plot_alignment_history(data, "0")
    left.figure.canvas.draw()


def test_given_axes_are_drawn_on_without_pyplot_in_a_thread(monkeypatch):
    axes, result = list(Figure().subplots(1, 2)), []
    for function in ("subplots", "figure", "gca", "sca", "gcf"):
        monkeypatch.setattr(plt, function, lambda *a, **k: result.append("pyplot was used"))
    thread = threading.Thread(
        target=lambda: result.extend(plot_alignment_history(made(), "0", axes))
    )
    thread.start()
    thread.join()
    assert result == axes


WRONG = {
    "no history": (3, {}, "history: expected an AlignmentHistory, its data, or a list .*got int"),
    "no layer": (made(), {}, "layer: expected one of 0, 2"),
    "other layer": (made(), {"layer": "4"}, "layer: there is no '4' in the history; it has: 0, 2"),
    "other data": (made().drop_vars("null_std"), {"layer": "0"}, "history='null_std' is not in"),
    "other steps": ([made(), made(steps=[0, 1, 10, 50])], {"layer": "0"}, "same steps and layers"),
    "one of the axes": (made(), {"layer": "0", "ax": "left"}, "ax must be 2"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_drawn(name):
    history, settings, message = WRONG[name]
    with pytest.raises(RichbookError, match=message):
        plot_alignment_history(history, **settings)
