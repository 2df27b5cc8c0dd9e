"""Data sets, standardised and split: digits (bundled with scikit-learn), MNIST and Fashion-MNIST.

MNIST and Fashion-MNIST are read from IDX files in ``$RICHBOOK_DATA/mnist`` and
``$RICHBOOK_DATA/fashion-mnist``, plain or gzipped; without that variable they come from OpenML
through scikit-learn, which caches them.
"""

from __future__ import annotations

import functools
import gzip
import math
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from richbook.measure import RichbookError

#: Of the 1 797 digits, this many train; the others test. The split is the same everywhere.
DIGITS_TRAIN = 1000
OPENML_NAMES = {"mnist": "mnist_784", "fashion-mnist": "Fashion-MNIST"}
DATA_NAMES = ("digits", *OPENML_NAMES)
#: IDX type code of unsigned bytes; the other codes do not occur in these data sets.
UNSIGNED_BYTE = 0x08


@dataclass(frozen=True)
class Data:
    """Inputs (n, d) in float32 and labels (n,).

    The inputs are standardised by one mean and one spread, those of the training inputs.
    ``image_shape`` says how a row becomes a picture again.
    """

    name: str
    train_inputs: Tensor
    train_labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor
    classes: int
    image_shape: tuple[int, int]


def load_data(name: str = "digits") -> Data:
    """Load a data set by name: "digits", "mnist" or "fashion-mnist".

    Args:
        name: "digits" needs no file and no network. The others come from the folder of that name in
            ``$RICHBOOK_DATA``, else from OpenML.

    Returns:
        A ``Data``. It is cached: treat its tensors as read-only.

    Raises:
        RichbookError: an unknown name; a file that is missing, truncated or of the wrong kind,
            named; no folder and no network.

    Example:
        >>> digits = load_data("digits")
        >>> tuple(digits.train_inputs.shape), digits.classes, digits.image_shape
        ((1000, 64), 10, (8, 8))
    """
    if name == "digits":
        return _digits()
    if name in DATA_NAMES:
        folder = os.environ.get("RICHBOOK_DATA")
        return _from_idx(name, Path(folder).expanduser() / name) if folder else _from_openml(name)
    raise RichbookError(f"name: expected one of {', '.join(DATA_NAMES)}, got {name!r}")


@functools.cache
def _digits() -> Data:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(0)).numpy()
    images, labels = bunch.data[order], bunch.target[order]
    train, test = slice(None, DIGITS_TRAIN), slice(DIGITS_TRAIN, None)
    return _standardised("digits", images[train], labels[train], images[test], labels[test], (8, 8))


@functools.cache
def _from_idx(name: str, folder: Path) -> Data:
    if not folder.is_dir():
        raise RichbookError(
            f"RICHBOOK_DATA: expected a folder {folder} with the IDX files of {name}; "
            "it does not exist"
        )
    parts = [
        read_idx(_idx_path(folder, f"{split}-{kind}"), dimensions)
        for split in ("train", "t10k")
        for kind, dimensions in (("images-idx3-ubyte", 3), ("labels-idx1-ubyte", 1))
    ]
    for split, images, labels in (("train", *parts[:2]), ("t10k", *parts[2:])):
        if len(images) != len(labels):
            raise RichbookError(
                f"{folder}: {split} has {len(images)} images but {len(labels)} labels"
            )
        if images.size == 0:
            raise RichbookError(f"{folder}: expected pictures in {split}, got {images.shape}")
    if parts[0].shape[1:] != parts[2].shape[1:]:
        raise RichbookError(
            f"{folder}: train images are {parts[0].shape[1:]}, t10k images {parts[2].shape[1:]}"
        )
    return _standardised(name, *parts, parts[0].shape[1:])


def _idx_path(folder: Path, stem: str) -> Path:
    for path in (folder / stem, folder / f"{stem}.gz"):
        if path.is_file():
            return path
    raise RichbookError(f"{folder}: expected the file {stem} or {stem}.gz, found neither")


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Read an IDX file of unsigned bytes with the given number of dimensions, plain or .gz.

    Raises:
        RichbookError: not an IDX file, another number of dimensions, truncated or too long.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise RichbookError(f"{path}: cannot be read ({error}); is it complete?") from error
    header = 4 + 4 * dimensions
    if len(content) < header or content[:2] != b"\0\0" or content[2] != UNSIGNED_BYTE:
        raise RichbookError(
            f"{path}: expected an IDX file of unsigned bytes, got the first bytes {content[:4]!r}"
        )
    if content[3] != dimensions:
        raise RichbookError(
            f"{path}: expected {dimensions} dimension(s), the file says {content[3]}"
        )
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4))
    if len(content) - header != math.prod(shape):
        raise RichbookError(
            f"{path}: expected {math.prod(shape)} bytes of data for shape {shape}, "
            f"got {len(content) - header}"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


@functools.cache
def _from_openml(name: str) -> Data:
    from sklearn.datasets import fetch_openml

    try:
        bunch = fetch_openml(OPENML_NAMES[name], version=1, as_frame=False, parser="liac-arff")
    except Exception as error:  # the fetcher raises whatever the network layer raises
        raise RichbookError(
            f"{name}: could not be fetched from OpenML ({error}). Either set RICHBOOK_DATA to a "
            f"folder that has {name}/train-images-idx3-ubyte and its three companions (plain or "
            ".gz), or try again with a network"
        ) from error
    images, labels = bunch.data, bunch.target.astype(int)
    if images.shape != (70000, 784):
        raise RichbookError(
            f"{name}: expected 70000 images of 784 pixels from OpenML, got shape {images.shape}"
        )
    return _standardised(
        name, images[:60000], labels[:60000], images[60000:], labels[60000:], (28, 28)
    )


def _standardised(name, train_images, train_labels, test_images, test_labels, image_shape) -> Data:
    train = torch.tensor(
        np.asarray(train_images).reshape(len(train_images), -1), dtype=torch.float32
    )
    test = torch.tensor(np.asarray(test_images).reshape(len(test_images), -1), dtype=torch.float32)
    mean, spread = train.mean(dtype=torch.float64).float(), train.std()
    return Data(
        name=name,
        train_inputs=(train - mean) / spread,
        train_labels=torch.tensor(np.asarray(train_labels), dtype=torch.int64),
        test_inputs=(test - mean) / spread,
        test_labels=torch.tensor(np.asarray(test_labels), dtype=torch.int64),
        classes=int(np.max(train_labels)) + 1,
        image_shape=tuple(int(side) for side in image_shape),
    )
