"""Data sets by name: digits, MNIST, Fashion-MNIST, CIFAR-10, CIFAR-100 and modular addition.

The digits come with scikit-learn and modular addition is computed. The others lie in a folder of
their name in ``$RICHBOOK_DATA``, in the files in which they are published; without that variable
they come from OpenML through scikit-learn, which caches them.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import torch

from richbook.measure import RichbookError
from richbook.train.data.cifar import VERSIONS, read_cifar_folder
from richbook.train.data.files import is_folder
from richbook.train.data.idx import read_idx_folder
from richbook.train.data.modular import modular_data
from richbook.train.data.openml import fetch
from richbook.train.data.pictures import KNOWN, Data, Pictures, data_of, standardised

#: Of the 1 797 digits, this many train; the others test. The split is the same everywhere.
DIGITS_TRAIN = 1000
PICTURE_NAMES = ("digits", *KNOWN)
DATA_NAMES = (*PICTURE_NAMES, "modular")


def load_data(name: str = "digits") -> Data:
    """Load a data set by name.

    Args:
        name: "digits" needs no file and no network; nor does "modular", all pairs (a, b) of 0 to 96
            as tokens with the label (a + b) mod 97, half of which train. "mnist", "fashion-mnist",
            "cifar10" and "cifar100" (its 100 fine classes) come from the folder of that name in
            ``$RICHBOOK_DATA``, else from OpenML.

    Returns:
        A ``Data``. It is cached: treat its tensors as read-only. Colour pictures are rows of
        3 · 32 · 32 numbers, ``inputs.view(-1, *data.image_shape)`` makes (n, 3, 32, 32) of them.

    Raises:
        RichbookError: an unknown name; a file that is missing, truncated, swapped or of the wrong
            kind, named; no folder and no network.

    Example:
        >>> digits = load_data("digits")
        >>> tuple(digits.train_inputs.shape), digits.classes, digits.image_shape
        ((1000, 64), 10, (8, 8))
    """
    if name not in DATA_NAMES:
        raise RichbookError(f"name: expected one of {', '.join(DATA_NAMES)}, got {name!r}")
    if name == "digits":
        return _digits()
    if name == "modular":
        return _modular()
    folder = os.environ.get("RICHBOOK_DATA")
    return _from_folder(name, _expanded(folder) / name) if folder else _from_openml(name)


def _expanded(folder: str) -> Path:
    """An absolute path: what is cached stays right when the working directory changes."""
    try:
        return Path(folder).expanduser().absolute()
    except RuntimeError as error:
        raise RichbookError(f"RICHBOOK_DATA: expected a folder, got {folder!r}: {error}") from error


@functools.cache
def _digits() -> Data:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(0)).numpy()
    images, labels = bunch.data[order], bunch.target[order]
    train, test = (
        Pictures("digits", images[part], labels[part])
        for part in (slice(None, DIGITS_TRAIN), slice(DIGITS_TRAIN, None))
    )
    return standardised("digits", train, test, 10, (8, 8))


@functools.cache
def _modular() -> Data:
    return modular_data()


@functools.cache
def _from_folder(name: str, folder: Path) -> Data:
    if not is_folder(folder):
        raise RichbookError(
            f"RICHBOOK_DATA: expected a folder {folder} with {KNOWN[name].files}; "
            "it does not exist. Without RICHBOOK_DATA the data set is fetched from OpenML"
        )
    if name in VERSIONS:
        return data_of(name, *read_cifar_folder(name, folder), KNOWN[name].image_shape)
    train, test = read_idx_folder(folder, KNOWN[name].classes)
    return data_of(name, train, test, train.images.shape[1:])


@functools.cache
def _from_openml(name: str) -> Data:
    return data_of(name, *fetch(name), KNOWN[name].image_shape)
