"""The data sets by name: digits, and MNIST and Fashion-MNIST from a folder or from OpenML."""

import importlib
import urllib.error
from types import SimpleNamespace

import numpy as np
import pytest
import sklearn.datasets
import torch

from richbook.measure import RichbookError
from richbook.train import load_data

loading = importlib.import_module("richbook.train.data")


def raw_digits():
    bunch = sklearn.datasets.load_digits()
    return bunch.data, bunch.target


def rows(array):
    return sorted(map(tuple, np.rint(np.asarray(array)).astype(int).tolist()))


def test_digits_are_scikit_learns_cut_in_two():
    images, labels = raw_digits()
    data = load_data()
    assert (data.name, data.classes, data.image_shape) == ("digits", 10, (8, 8))
    assert len(data.train_inputs) == 1000 and len(data.test_inputs) == 797
    mean, spread = images_of_training(images, labels, data)
    both = torch.cat([data.train_inputs, data.test_inputs]) * spread + mean
    both_labels = torch.cat([data.train_labels, data.test_labels])
    assert rows(np.c_[both, both_labels]) == rows(np.c_[images, labels])  # every one, once


def images_of_training(images, labels, data):
    """Mean and spread of the training pictures, found by undoing the standardisation."""
    scale = (images.max() - images.min()) / float(data.train_inputs.max() - data.train_inputs.min())
    return images.min() - scale * float(data.train_inputs.min()), scale


def test_digits_split_is_the_one_of_the_recorded_sweep():
    data = load_data("digits")
    assert data.train_labels[:12].tolist() == [6, 5, 5, 7, 9, 9, 8, 4, 6, 8, 6, 0]
    assert data.test_labels[:12].tolist() == [9, 9, 9, 1, 0, 7, 5, 1, 0, 3, 9, 7]


def test_digits_split_does_not_depend_on_global_random_state():
    before = load_data("digits")
    loading._digits.cache_clear()
    torch.manual_seed(77)
    np.random.seed(77)
    state = torch.get_rng_state()
    after = load_data("digits")
    assert after is not before and torch.equal(after.train_inputs, before.train_inputs)
    assert torch.equal(after.test_labels, before.test_labels)
    assert torch.equal(torch.get_rng_state(), state)


def test_standardisation():
    images, labels = raw_digits()
    data = load_data("digits")
    assert data.train_inputs.dtype == torch.float32 and data.train_labels.dtype == torch.int64
    assert float(data.train_inputs.mean()) == pytest.approx(0, abs=1e-6)
    assert float(data.train_inputs.std()) == pytest.approx(1, abs=1e-6)
    mean, spread = images_of_training(images, labels, data)
    tests = (
        data.test_inputs.numpy() * spread + mean
    )  # by the training pictures' numbers, not by their own
    assert np.allclose(tests, np.rint(tests), atol=1e-4)
    assert tests.min() >= -1e-4 and tests.max() <= 16 + 1e-4


def test_every_class_is_in_both_parts():
    data = load_data("digits")
    for labels in (data.train_labels, data.test_labels):
        shares = torch.bincount(labels, minlength=10) / len(labels)
        assert 0.07 < float(shares.min()) and float(shares.max()) < 0.13


@pytest.mark.parametrize("name", ["imagenet", "", "Digits", None, 3, ["digits"], {"digits": 1}])
def test_unknown_name(name):
    with pytest.raises(RichbookError) as caught:
        load_data(name)
    expected = "name: expected one of digits, mnist, fashion-mnist, got "
    assert str(caught.value) == expected + repr(name)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_the_real_files(mnist_folder, name):
    if not (mnist_folder / name).is_dir():
        pytest.skip(f"no {name} in {mnist_folder}")
    data = load_data(name)
    assert data.train_inputs.shape == (60000, 784) and data.test_inputs.shape == (10000, 784)
    assert data.classes == 10 and data.image_shape == (28, 28)
    assert float(data.train_inputs.mean(dtype=torch.float64)) == pytest.approx(0, abs=1e-4)
    assert float(data.train_inputs.double().std()) == pytest.approx(1, abs=1e-3)
    counts = torch.bincount(data.train_labels).tolist()
    if name == "fashion-mnist":
        assert counts == [6000] * 10
    else:
        assert counts == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
        assert data.test_labels[:5].tolist() == [7, 2, 1, 0, 4]


@pytest.fixture
def openml(monkeypatch):
    """Stand in for the fetcher: the test sets ``answer``; ``asked`` lists the calls."""
    answers = SimpleNamespace(answer=None, asked=[])

    def fetch(name, **options):
        answers.asked.append((name, options))
        if isinstance(answers.answer, Exception):
            raise answers.answer
        return answers.answer

    monkeypatch.delenv("RICHBOOK_DATA", raising=False)
    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
    loading._from_openml.cache_clear()
    yield answers
    loading._from_openml.cache_clear()


def bunch(count, pixels):
    data = np.zeros((count, pixels), dtype=np.uint8)
    data[:, 0] = np.arange(count) % 250
    return SimpleNamespace(data=data, target=np.array([str(i % 10) for i in range(count)]))


@pytest.mark.parametrize(
    ("name", "asked"), [("mnist", "mnist_784"), ("fashion-mnist", "Fashion-MNIST")]
)
def test_from_openml(openml, name, asked):
    openml.answer = bunch(70000, 784)
    data = load_data(name)
    assert [call[0] for call in openml.asked] == [asked]
    assert data.train_inputs.shape == (60000, 784) and data.test_inputs.shape == (10000, 784)
    assert data.train_labels[:3].tolist() == [0, 1, 2] and data.test_labels[-1] == 9
    assert data.image_shape == (28, 28) and data.classes == 10
    assert load_data(name) is data and len(openml.asked) == 1  # fetched once


@pytest.mark.parametrize(
    "failure", [urllib.error.URLError("no route"), ValueError("?"), OSError("x")]
)
def test_no_network_says_both_ways(openml, failure):
    openml.answer = failure
    with pytest.raises(RichbookError) as caught:
        load_data("mnist")
    message = str(caught.value)
    assert "RICHBOOK_DATA" in message and "mnist/train-images-idx3-ubyte" in message
    assert "OpenML" in message and "network" in message and str(failure) in message


def test_failure_to_fetch_is_not_remembered(openml):
    openml.answer = OSError("no network")
    with pytest.raises(RichbookError):
        load_data("mnist")
    openml.answer = bunch(70000, 784)
    assert load_data("mnist").classes == 10


@pytest.mark.parametrize(("count", "pixels"), [(70000, 783), (60000, 784)])
def test_openml_gives_something_else(openml, count, pixels):
    openml.answer = bunch(count, pixels)
    expected = rf"^mnist: expected 70000 images of 784 pixels .*got shape \({count}, {pixels}\)"
    with pytest.raises(RichbookError, match=expected):
        load_data("mnist")


def test_empty_variable_counts_as_none(openml, monkeypatch):
    monkeypatch.setenv("RICHBOOK_DATA", "")
    openml.answer = OSError("no network")
    with pytest.raises(RichbookError, match="OpenML"):
        load_data("mnist")
