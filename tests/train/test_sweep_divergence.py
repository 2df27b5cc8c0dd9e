"""A network that diverges becomes nan in its own cell, with the step noted, and disturbs nobody."""

import importlib

import numpy as np
import pytest

from richbook.train import sweep, train
from richbook.train.ensemble import Ensemble
from richbook.train.recording import SCALARS
from tests.train import plain

NAMES = (*SCALARS, "utilization")
COMMON = {"steps": 60, "progress": False} | plain.SMALL
RECORD_AT = [0, 1, 2, 3, 5, 10, 30]


@pytest.fixture(scope="module", params=["relu", "tanh", "linear"])
def activation(request):
    return request.param


@pytest.fixture(scope="module")
def with_wild(activation):
    rates = [1e-3, 1e4, 1e-2]
    return sweep(learning_rate=rates, seeds=2, record_at=RECORD_AT, activation=activation, **COMMON)


@pytest.fixture(scope="module")
def without(activation):
    rates = [1e-3, 1e-2]
    return sweep(learning_rate=rates, seeds=2, record_at=RECORD_AT, activation=activation, **COMMON)


def test_the_step_is_noted(with_wild):
    wild = with_wild.diverged_at.sel(learning_rate=1e4)
    assert (wild > 0).all() and (wild < 60).all()
    assert (with_wild.diverged_at.sel(learning_rate=[1e-3, 1e-2]) == -1).all()


def test_nan_from_then_on_and_not_before(with_wild):
    wild = with_wild.sel(learning_rate=1e4).squeeze()
    gone = wild.step >= wild.diverged_at
    for name in NAMES:
        values = wild[name].where(gone, drop=True)
        assert values.isnull().all() and values.size > 0, name
    for name in ("train_loss", "train_accuracy", "test_accuracy", "parameter_norm"):
        assert wild[name].where(~gone).notnull().equals(~gone.transpose(*wild[name].dims)), name


def test_others_are_as_if_it_had_not_been_there(with_wild, without):
    kept = with_wild.sel(learning_rate=[1e-3, 1e-2])
    for name in NAMES:
        assert np.allclose(kept[name], without[name], rtol=1e-6, atol=1e-6, equal_nan=True), name


def test_noted_where_train_notes_it(with_wild, activation):
    run = train(learning_rate=1e4, activation=activation, record_at=RECORD_AT, **COMMON).data
    noted = int(with_wild.diverged_at.sel(learning_rate=1e4, seed=0).squeeze())
    assert abs(noted - run.attrs["diverged_at"]) <= 1  # rounding near the largest number


@pytest.mark.parametrize("size", [1, 2])
def test_alone_in_a_group(monkeypatch, size):
    sweeping = importlib.import_module("richbook.train.sweep")
    monkeypatch.setattr(sweeping, "networks_at_once", lambda *_: size)
    grid = sweep(learning_rate=[1e-3, 1e4], seeds=1, **COMMON).squeeze()
    assert grid.diverged_at.values[0] == -1 and grid.diverged_at.values[1] > 0
    assert np.isnan(grid.d_lr.values[1, -1]) and grid.d_lr.values[0, -1] > 0


def test_a_network_that_comes_back_stays_out(monkeypatch):
    """A loss may overflow once and the network then sit still, dead; it is not a result."""
    descend, calls = Ensemble.descend, []

    def overflow_once(self, inputs, targets):
        losses = descend(self, inputs, targets)
        calls.append(1)
        if len(calls) == 5:
            losses[1] = float("inf")
        return losses

    monkeypatch.setattr(Ensemble, "descend", overflow_once)
    grid = sweep(target_scale=[1.0, 2.0, 3.0], seeds=1, record_at=[4, 5], **COMMON).squeeze()
    assert grid.diverged_at.values.tolist() == [-1, 5, -1]
    for name in NAMES:
        gone = grid[name].isnull().sel(target_scale=2.0)
        assert not gone.sel(step=4).any() and gone.sel(step=[5, 60]).all(), name
        assert not grid[name].sel(target_scale=[1.0, 3.0]).isnull().any(), name


@pytest.mark.parametrize("record_at", [range(13), []], ids=["each step", "the last step"])
def test_every_missing_loss_is_explained(record_at):
    """Learning rates at all distances from the edge; the last step is where a note is forgotten."""
    rates = [0.03, 0.1, 0.2, 0.3, 0.5, 1, 3, 10, 100, 1e4, 1e8, 1e30]
    options = {"seeds": 2, "weight_decay": [0, 0.1], "record_at": record_at, "progress": False}
    for steps in (5, 12):
        options["record_at"] = [step for step in record_at if step <= steps]
        grid = sweep(learning_rate=rates, steps=steps, width=16, batch_size=20, **options)
        missing = (grid.step >= grid.diverged_at) & (grid.diverged_at >= 0)
        assert np.array_equal(grid.train_loss.isnull(), missing.transpose(*grid.train_loss.dims))
        assert missing.any() and not missing.all()
        for name in NAMES:
            assert not np.isinf(grid[name]).any(), name
