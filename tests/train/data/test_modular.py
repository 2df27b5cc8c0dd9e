"""Modular addition: every pair once, the right sum, a fixed split, and no network for pictures."""

import itertools

import numpy as np
import pytest
import torch

from richbook.measure import RichbookError
from richbook.train import TrainingSettings, alignment_sweep, load_data, sweep, train, training
from richbook.train.data.modular import modular_data


def rows(inputs, labels):
    return [(*map(int, row), int(label)) for row, label in zip(inputs, labels, strict=True)]


@pytest.mark.parametrize(("modulus", "share"), [(97, 0.5), (7, 0.3), (2, 0.5), (11, 0.99)])
def test_every_pair_once(modulus, share):
    data = modular_data(modulus, share, seed=3)
    training_rows = rows(data.train_inputs, data.train_labels)
    test_rows = rows(data.test_inputs, data.test_labels)
    numbers = range(modulus)
    expected = [(a, b, modulus, (a + b) % modulus) for a, b in itertools.product(numbers, numbers)]
    assert sorted(training_rows + test_rows) == expected
    assert abs(len(training_rows) - share * modulus**2) <= 0.5
    assert data.train_inputs.dtype == data.train_labels.dtype == torch.int64
    assert data.test_inputs.dtype == data.test_labels.dtype == torch.int64
    assert (data.name, data.classes, data.image_shape) == ("modular", modulus, None)


def test_the_named_set():
    data = load_data("modular")
    assert data is load_data("modular")
    assert data.train_inputs.shape == (4704, 3) and data.test_inputs.shape == (4705, 3)
    assert data.classes == 97
    assert torch.equal(data.train_inputs, modular_data().train_inputs)


def test_the_seed_fixes_the_split():
    first, same, other = (
        modular_data(13, seed=1),
        modular_data(13, seed=1),
        modular_data(13, seed=2),
    )
    assert torch.equal(first.train_inputs, same.train_inputs)
    assert not torch.equal(first.train_inputs, other.train_inputs)


def test_the_split_is_the_one_of_recorded_results():
    data = load_data("modular")
    assert data.train_inputs[:4, :2].tolist() == [[28, 57], [13, 3], [1, 93], [56, 83]]


def test_global_random_state_is_left_alone():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    before = modular_data(13)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    assert torch.equal(modular_data(13).train_inputs, before.train_inputs)


def test_the_split_is_a_fair_one():
    """Of every row and column of the addition table, about half trains (binomial, 5 sigma)."""
    data = modular_data()
    for column in (0, 1):
        counts = torch.bincount(data.train_inputs[:, column], minlength=97)
        assert int((counts - 97 / 2).abs().max()) < 5 * (97 * 0.25) ** 0.5


@pytest.mark.parametrize(
    ("argument", "value"),
    [("modulus", value) for value in (1, 0, -5, 2.0, "97", None, True, 10**6)]
    + [("train_share", value) for value in (0, 1, -0.1, 1.5, float("nan"), "half", None, True)]
    + [("train_share", value) for value in (1e-9, 1 - 1e-9)]
    + [("seed", value) for value in (-1, 0.5, None, "0", True, 2**63)],
)
def test_wrong_arguments(argument, value):
    with pytest.raises(RichbookError, match=f"^{argument}: expected .*, got ") as caught:
        modular_data(**{argument: value})
    assert repr(value) in str(caught.value)


def test_numpy_numbers_are_numbers():
    data = modular_data(np.int64(7), np.float32(0.5), np.int64(2))
    assert torch.equal(data.train_inputs, modular_data(7, 0.5, 2).train_inputs)


@pytest.mark.parametrize("call", [TrainingSettings, train, training, sweep, alignment_sweep])
def test_networks_for_pictures_say_that_they_are(call):
    expected = r"^data: expected pictures, one of digits, mnist, .*cifar100, got 'modular'$"
    with pytest.raises(RichbookError, match=expected):
        call(data="modular") if call is not training else call(TrainingSettings(data="modular"))
