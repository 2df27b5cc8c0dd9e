"""What a training run may be told, and what it answers to nonsense."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from richbook.measure import RichbookError
from richbook.train import TrainingSettings, sweep, train, training
from richbook.train.settings import log_steps

NAN, INFINITY = float("nan"), float("inf")
WRONG = {
    "weight_decay": [-1e-9, NAN, INFINITY, "0.1", None, True, [0.1], 1j],
    "target_scale": [0, -1, NAN, INFINITY, "1", None],
    "learning_rate": [0, -0.1, NAN, INFINITY, "1", None],
    "momentum": [-0.1, 1, 1.5, NAN, "0.9", None],
    "seed": [-1, 0.5, NAN, "0", None, 2**64, True],
    "steps": [0, -5, 1.5, NAN, INFINITY, "10", None, True],
    "batch_size": [0, -5, 1.5, NAN, "10", None],
    "width": [0, -5, 1.5, NAN, "10", None],
    "depth": [0, -5, 1.5, NAN, "10", None],
    "activation": ["sigmoid", "ReLU", "", None, 3, ["relu"]],
    "data": ["imagenet", "", None, 3, ["digits"]],
    "zero_head": ["no", 0, None],
}
CASES = [(name, value) for name, values in WRONG.items() for value in values]


@pytest.mark.parametrize(("name", "value"), CASES)
def test_wrong_value_is_an_error_that_names_it(name, value):
    with pytest.raises(RichbookError, match=rf"^{name}: expected .*, got ") as caught:
        TrainingSettings(**{name: value})
    assert repr(value) in str(caught.value)


def test_every_setting_is_checked():
    assert set(WRONG) == {field.name for field in dataclasses.fields(TrainingSettings)}


@pytest.mark.parametrize("call", [train, sweep])
def test_wrong_value_reaches_the_caller(call):
    with pytest.raises(RichbookError, match="^width: expected a whole number of at least 1, got 0"):
        call(width=0, progress=False)
    with pytest.raises(RichbookError, match="^learning_rat: no such setting; .*learning_rate"):
        call(learning_rat=0.1, progress=False)
    with pytest.raises(RichbookError, match="^settings: expected a TrainingSettings, got dict"):
        call(settings={"width": 3}, progress=False)


def test_errors_are_value_errors():
    with pytest.raises(ValueError):
        TrainingSettings(depth=0)


def test_defaults_are_those_of_the_book():
    settings = TrainingSettings()
    assert settings.to_dict() == {
        "data": "digits",
        "weight_decay": 1e-2,
        "target_scale": 1.0,
        "learning_rate": 1e-2,
        "seed": 0,
        "steps": 3000,
        "batch_size": 100,
        "momentum": 0.9,
        "width": 64,
        "depth": 2,
        "activation": "relu",
        "zero_head": True,
    }
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.width = 3


def test_edges_are_allowed():
    TrainingSettings(weight_decay=0, momentum=0, seed=0, steps=1, batch_size=1, width=1, depth=1)


def test_numbers_of_numpy_become_plain_ones():
    """They come out of sweeps and of np.logspace, and JSON cannot write them."""
    given = {"learning_rate": np.float32(0.25), "width": np.int64(8), "zero_head": np.bool_(False)}
    settings = TrainingSettings(**given)
    assert json.loads(json.dumps(settings.to_dict()))["learning_rate"] == 0.25
    assert [type(getattr(settings, name)) for name in given] == [float, int, bool]
    assert settings == TrainingSettings(learning_rate=0.25, width=8, zero_head=False)


def test_replace_changes_one_value_and_checks_it():
    settings = TrainingSettings(width=8)
    assert settings.replace(seed=3) == TrainingSettings(width=8, seed=3)
    assert settings.seed == 0
    with pytest.raises(RichbookError, match="^seed: expected"):
        settings.replace(seed=-1)


@pytest.mark.parametrize("steps", [1, 2, 3, 10, 200, 3000, 10**6])
@pytest.mark.parametrize("count", [2, 4, 14, 40])
def test_log_steps(steps, count):
    chosen = log_steps(steps, count)
    assert chosen[0] == 0 and chosen[-1] == steps
    assert chosen == sorted(set(chosen)) and len(chosen) <= max(count, 3)
    assert all(isinstance(step, int) for step in chosen)


def test_log_steps_are_evenly_spaced_on_a_log_axis():
    assert log_steps(1000, 5) == [0, 1, 10, 100, 1000]
    ratios = np.diff(np.log(log_steps(3000)[5:]))
    assert ratios.max() / ratios.min() < 1.2


@pytest.mark.parametrize(
    "wrong",
    [[-1], [11], [1.5], [NAN], [INFINITY], ["a"], "5", ["5"], [None], [[1]], [True], 11, {}],
)
def test_record_at_wrong(wrong):
    settings = TrainingSettings(steps=10)
    expected = "^record_at: expected a list of whole numbers from 0 to 10, got "
    with pytest.raises(RichbookError, match=expected):
        train(settings, record_at=wrong, progress=False)
    with pytest.raises(RichbookError, match=expected):
        training(settings, record_at=wrong)  # at the call, before the first record
    with pytest.raises(RichbookError, match=expected):
        sweep(settings=settings, record_at=wrong, progress=False)


@pytest.mark.parametrize(
    ("given", "recorded"),
    [
        ([], [3]),
        ([0], [0, 3]),
        ([2, 0, 2, 3], [0, 2, 3]),
        ((1.0, 2.0), [1, 2, 3]),
        (range(4), [0, 1, 2, 3]),
        (np.array([1, 2]), [1, 2, 3]),
        (torch.tensor([2]), [2, 3]),
        (1, [1, 3]),
        (None, [0, 1, 2, 3]),
    ],
)
def test_record_at(given, recorded):
    small = TrainingSettings(steps=3, width=4, batch_size=4)
    assert train(small, record_at=given, progress=False).data.step.values.tolist() == recorded
    assert [record["step"] for record in training(small, record_at=given)] == recorded
    grid = sweep(settings=small, seeds=1, record_at=given, progress=False)
    assert grid.step.values.tolist() == recorded
