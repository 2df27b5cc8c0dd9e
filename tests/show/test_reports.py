"""Plots of a report show what the report says."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes

import richbook
from richbook.measure import RichbookError


def report(seed=0, layers=("0", "1"), targets=True, width=12):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(5, width), torch.nn.Tanh(), torch.nn.Linear(width, 3)
    )
    inputs = torch.randn(300, 5, generator=torch.Generator().manual_seed(0))
    batch = (inputs, torch.arange(300) % 3) if targets else inputs
    return richbook.measure(model, [batch], layers=list(layers) or None)


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


def test_report_shows_its_curves_and_numbers():
    shown = report()
    left, right = richbook.plot_report(shown)
    lines = [line.get_ydata() for line in right.get_lines() if len(line.get_ydata()) == 12]
    curves = shown.decomposition
    assert len(lines) == 2
    assert np.allclose(lines[0], curves.utilization) and np.allclose(lines[1], curves.quality)
    assert np.allclose(left.get_lines()[0].get_ydata(), curves.relative_eigenvalues)
    assert f"{shown.d_lr:.3f}" in left.get_title("left")
    assert f"{shown.isotropic_d_lr:.3f}" in right.get_title("left")


def test_report_without_targets_has_one_curve_and_takes_axes():
    axes = plt.subplots(1, 2)[1]
    found = richbook.plot_report(report(targets=False), ax=axes)
    assert found == list(axes)
    assert sum(len(line.get_ydata()) == 12 for line in found[1].get_lines()) == 1


def test_profile_of_one_network():
    shown = report()
    ax = richbook.plot_profile(shown)
    floor, values = (line.get_ydata() for line in ax.get_lines())
    assert np.allclose(values, [*(row.d_lr for row in shown.layers), shown.d_lr])
    assert np.allclose(floor, [shown.isotropic_d_lr] * 3)
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert labels == ["0", "1", "input of 2"]


def test_profile_of_seeds_is_a_mean_with_a_band():
    reports = [report(seed) for seed in range(3)]
    ax = richbook.plot_profile(reports, ax=plt.subplots()[1])
    means = np.mean([[*(row.d_lr for row in r.layers), r.d_lr] for r in reports], axis=0)
    assert np.allclose(ax.get_lines()[1].get_ydata(), means)
    assert len(ax.collections) == 1 and isinstance(ax, Axes)


def test_what_cannot_be_drawn():
    with pytest.raises(RichbookError, match="expected what measure returns, got dict"):
        richbook.plot_report({})
    with pytest.raises(RichbookError, match="expected reports of the same layers"):
        richbook.plot_profile(report(layers=()))
    with pytest.raises(RichbookError, match="expected reports of the same layers"):
        richbook.plot_profile([report(layers=["0"]), report(layers=["1"])])
