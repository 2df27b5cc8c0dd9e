"""One network: how a run is started, repeated, cancelled, and how it may end."""

import random

import numpy as np
import pytest
import torch
import xarray as xr

from richbook.train import TrainingSettings, train, training
from richbook.train.recording import SCALARS

SHORT = TrainingSettings(steps=12, width=16, batch_size=20)


def numbers(data):
    return np.concatenate([data[name].values.ravel() for name in (*SCALARS, "utilization")])


def same(first, second):
    return np.array_equal(numbers(first), numbers(second), equal_nan=True)


def test_history(device):
    history = train(SHORT, record_at=[0, 5], device=device, progress=False)
    data = history.data
    assert isinstance(data, xr.Dataset) and dict(data.sizes) == {"step": 3, "k": 16}
    assert data.step.values.tolist() == [0, 5, 12] and data.k.values.tolist() == list(range(1, 17))
    assert set(data.data_vars) == {*SCALARS, "utilization"}
    assert all(data[name].dims == ("step",) for name in SCALARS)
    assert data.utilization.dims == ("step", "k")
    assert all(variable.dtype == np.float32 for variable in data.data_vars.values())
    assert history.settings == SHORT and data.attrs["diverged_at"] == -1
    for model in (history.model, history.initial_model):
        assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
    assert history.initial_model.head.weight.eq(0).all() and history.model.head.weight.ne(0).any()


def test_records_of_the_generator(device):
    records = list(training(SHORT, record_at=[0, 5], device=device))
    history = train(SHORT, record_at=[0, 5], device=device, progress=False)
    for record, step in zip(records, [0, 5, 12], strict=True):
        assert set(record) == {"step", "diverged_at", "utilization", *SCALARS}
        assert record["step"] == step and record["diverged_at"] == -1
        assert record["utilization"].shape == (16,)
        assert isinstance(record["utilization"], np.ndarray)
        for name in SCALARS:
            assert type(record[name]) is float
            stored = float(history.data[name].sel(step=step))
            assert record[name] == pytest.approx(stored, rel=1e-6, nan_ok=True)


def test_keyword_changes_and_settings_object_agree():
    changed = train(steps=12, width=16, batch_size=20, seed=3, progress=False)
    assert changed.settings == SHORT.replace(seed=3)
    assert same(changed.data, train(SHORT.replace(seed=3), progress=False).data)
    assert same(changed.data, train(SHORT, seed=3, progress=False).data)


def test_same_seed_same_numbers(device):
    first = train(SHORT, device=device, progress=False).data
    torch.manual_seed(5)
    assert same(first, train(SHORT, device=device, progress=False).data)


def test_what_is_recorded_does_not_change_the_run():
    dense = train(SHORT, record_at=range(13), progress=False).data
    sparse = train(SHORT, record_at=[7], progress=False).data
    assert same(dense.sel(step=[7, 12]), sparse)


def test_another_seed_other_numbers():
    first, second = (train(SHORT, seed=seed, progress=False).data for seed in (0, 1))
    later = slice(1, None)
    for name in ("d_lr", "train_loss", "nc1", "s_init", "parameter_norm"):
        assert np.all(first[name][later] != second[name][later]), name


def test_start_of_a_network_that_outputs_zero():
    """All of these are known beforehand, for any data with C classes."""
    start = train(SHORT, target_scale=3.0, record_at=[0], progress=False).data.isel(step=0)
    assert float(start.train_loss) == pytest.approx(3.0**2 * (1 - 1 / 10), rel=1e-6)
    assert float(start.s_init) == pytest.approx(0, abs=1e-6)
    assert start.d_lr.isnull() and start.utilization.isnull().all()  # no learned functions yet
    assert float(start.train_accuracy) < 0.2 and np.isfinite(start.nc1)


def test_stopping_to_iterate_stops_the_training(monkeypatch):
    taken = []
    step = torch.optim.SGD.step
    monkeypatch.setattr(torch.optim.SGD, "step", lambda self: (taken.append(1), step(self))[1])
    run = training(SHORT.replace(steps=1000), record_at=[0, 3, 6, 1000])
    assert [next(run)["step"] for _ in range(3)] == [0, 3, 6]
    assert len(taken) == 6
    run.close()
    assert list(run) == [] and len(taken) == 6


def test_two_runs_at_once_do_not_disturb_each_other():
    alone = list(training(SHORT, record_at=[4, 8]))
    first, second = training(SHORT, [4, 8]), training(SHORT.replace(seed=1), [4, 8])
    together = [record for pair in zip(first, second, strict=True) for record in pair]
    assert [record["d_lr"] for record in together[::2]] == [record["d_lr"] for record in alone]


def global_state():
    return torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()


def test_global_state_is_untouched():
    torch.manual_seed(0)
    before = global_state()
    run = training(SHORT, record_at=[2, 4])
    for _ in run:
        assert torch.is_grad_enabled()
        assert torch.get_num_threads() >= 1
    train(SHORT, progress=False)
    after = global_state()
    assert torch.equal(before[0], after[0])
    assert np.array_equal(before[1], after[1]) and before[2] == after[2]
    assert torch.is_grad_enabled()


def test_trains_where_gradients_are_switched_off():
    expected = train(SHORT, progress=False).data
    with torch.no_grad():
        run = training(SHORT)
        for _ in run:
            assert not torch.is_grad_enabled()  # nor switched on behind the caller's back
        assert same(expected, train(SHORT, progress=False).data)


def test_other_default_dtype():
    expected = train(SHORT, progress=False).data
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        assert same(expected, train(SHORT, progress=False).data)
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("activation", ["relu", "tanh", "linear"])
def test_diverging_run_ends_in_nan(device, activation):
    wild = SHORT.replace(learning_rate=1e4, steps=200, activation=activation)
    with torch.no_grad():
        history = train(wild, record_at=[0, 100], device=device, progress=False)
    diverged_at = history.data.attrs["diverged_at"]
    assert 0 < diverged_at < 100
    for name in (*SCALARS, "utilization"):
        assert history.data[name].sel(step=[100, 200]).isnull().all(), name
    assert history.data.train_loss.sel(step=0) > 0
    records = list(training(wild, record_at=[0, 100], device=device))
    assert [record["step"] for record in records] == [0, diverged_at]
    assert records[-1]["diverged_at"] == diverged_at and np.isnan(records[-1]["d_lr"])


@pytest.mark.parametrize("learning_rate", [0.3, 1.0, 3.0, 30.0, 1e3, 1e8, 1e30])
def test_every_missing_loss_is_explained(learning_rate):
    """Recorded at each step, so that the overflow is met wherever it first shows."""
    settings = SHORT.replace(learning_rate=learning_rate, weight_decay=0)
    data = train(settings, record_at=range(13), progress=False).data
    diverged_at = data.attrs["diverged_at"]
    missing = (data.step >= diverged_at) & (diverged_at >= 0)
    assert np.array_equal(data.train_loss.isnull(), missing)
    assert not np.isinf(numbers(data)).any()


def test_progress_bar(capfd):
    train(SHORT, progress=False)
    quiet = capfd.readouterr()
    train(SHORT)
    assert quiet.err == "" and "training" in capfd.readouterr().err


def test_number_of_threads_is_left_as_it_was():
    """Training takes one thread; between records, and after an early stop, the setting is back."""
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        run = training(TrainingSettings(steps=3), record_at=[1])
        next(run)
        assert torch.get_num_threads() == before + 1
        run.close()
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)
