"""The data sets by name: digits, and the real files of MNIST and Fashion-MNIST."""

import importlib

import numpy as np
import pytest
import sklearn.datasets
import torch

from richbook.measure import RichbookError
from richbook.train import load_data

loading = importlib.import_module("richbook.train.data.loading")
pictures = importlib.import_module("richbook.train.data.pictures")


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
    names = "digits, mnist, fashion-mnist, cifar10, cifar100, modular"
    assert str(caught.value) == f"name: expected one of {names}, got {name!r}"


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


@pytest.mark.parametrize("folder", ["~nobody-of-this-name/sets", "~/\0"])
def test_no_such_home(monkeypatch, folder):
    monkeypatch.setattr(loading.os, "environ", {"RICHBOOK_DATA": folder})
    with pytest.raises(RichbookError, match="RICHBOOK_DATA: expected a folder"):
        load_data("mnist")


def test_real_files_of_another_set_are_noticed(mnist_folder, tmp_path, monkeypatch):
    """The published sets differ in how many pictures of each class they have."""
    if not (mnist_folder / "fashion-mnist").is_dir():
        pytest.skip(f"no fashion-mnist in {mnist_folder}")
    (tmp_path / "mnist").symlink_to(mnist_folder / "fashion-mnist")
    monkeypatch.setenv("RICHBOOK_DATA", str(tmp_path))
    expected = r"train-images.*: expected 5923 of 60000 pictures in class 0, as in mnist, got 6000"
    with pytest.raises(RichbookError, match=expected):
        load_data("mnist")


def test_real_files_swapped_as_a_whole(mnist_folder, tmp_path, monkeypatch):
    (tmp_path / "mnist").mkdir()
    for file in (mnist_folder / "mnist").iterdir():
        one, other = ("train", "t10k") if file.name.startswith("train") else ("t10k", "train")
        (tmp_path / "mnist" / file.name.replace(one, other)).symlink_to(file)
    monkeypatch.setenv("RICHBOOK_DATA", str(tmp_path))
    with pytest.raises(RichbookError, match="got 10000 and 60000; are .* swapped"):
        load_data("mnist")


def test_many_colour_pictures_are_standardised_exactly():
    """Ten million pixels a channel, in float32, against sums of whole numbers."""
    rng = np.random.default_rng(0)
    shades = rng.integers(0, 256, size=(500, 3 * 1024), dtype=np.uint8)
    shades[:, :1024] //= 8
    many = np.repeat(shades, 20, axis=0)  # 10 000 pictures
    part = pictures.Pictures("here", many, np.arange(len(many)) % 10)
    data = pictures.standardised("many", part, part, 10, (3, 32, 32))
    for channel in range(3):
        values = shades[:, channel * 1024 : (channel + 1) * 1024].astype(np.int64)
        mean = values.sum() / values.size
        spread = np.sqrt((values**2).sum() / values.size - mean**2)
        expected = (values[:20] - mean) / spread
        got = data.train_inputs[: 20 * 20 : 20, channel * 1024 : (channel + 1) * 1024]
        assert np.allclose(got, expected, atol=2e-6)
