"""One file of CIFAR, binary or pickled: its rows of pixels and its labels, checked."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from richbook.measure import RichbookError
from richbook.train.data.pickles import read_pickle
from richbook.train.data.pictures import Pictures, check_labels

PIXELS = 3 * 32 * 32
#: The labels of each set in the order of the binary version: key in the Python version -> classes.
#: The last kind is the one to learn.
LABELS = {
    "cifar10": {"labels": 10},
    "cifar100": {"coarse_labels": 20, "fine_labels": 100},
}
#: What the files of the Python version say of themselves.
SAYINGS = {
    "cifar10": {f"data_batch_{number}": f"training batch {number} of 5" for number in range(1, 6)}
    | {"test_batch": "testing batch 1 of 1"},
    "cifar100": {"train": "training batch 1 of 1", "test": "testing batch 1 of 1"},
}


def binary_part(content: bytes, path: Path, name: str) -> Pictures:
    """What a file of the binary version holds.

    Raises:
        RichbookError: not a whole number of rows, or a label that this set does not have.

    Example:
        >>> len(binary_part(bytes(3073 * 4), Path("data_batch_1.bin"), "cifar10"))
        4
    """
    kinds = LABELS[name]
    row = len(kinds) + PIXELS
    if not content or len(content) % row:
        raise RichbookError(
            f"{path}: expected rows of {row} bytes ({len(kinds)} label(s) and {PIXELS} pixels), "
            f"got {len(content)} bytes{_other(name, len(content))}"
        )
    table = np.frombuffer(content, np.uint8).reshape(-1, row)
    labels = {key: table[:, column] for column, key in enumerate(kinds)}
    return _checked(str(path), name, table[:, len(kinds) :], labels)


def _other(name: str, length: int) -> str:
    """A hint, where a length fits the other set."""
    for other, kinds in LABELS.items():
        if other != name and length and length % (len(kinds) + PIXELS) == 0:
            return f", which are rows of {other}"
    return "; is it complete?"


def python_part(content: bytes, path: Path, name: str) -> Pictures:
    """What a file of the Python version holds. Its name must be the one it was published under.

    Raises:
        RichbookError: not such a pickle, another part, arrays or labels that do not fit.
    """
    source = str(path)
    entries = read_pickle(content, source)
    kinds = LABELS[name]
    for key in ("data", *kinds):
        if key not in entries:
            got = ", ".join(sorted(entries)) or "none"
            raise RichbookError(f"{source}: expected the key {key!r} as {name} has it, got {got}")
    said = entries.get("batch_label")
    said = said.decode("latin-1") if isinstance(said, bytes) else said
    expected = SAYINGS[name][path.name]
    if said in SAYINGS[name].values() and said != expected:
        raise RichbookError(f"{source}: expected {expected!r}, the file says that it is {said!r}")
    images = entries["data"]
    if not (isinstance(images, np.ndarray) and images.ndim == 2 and images.shape[1] == PIXELS):
        got = getattr(images, "shape", type(images).__name__)
        raise RichbookError(f"{source}: expected data of shape (n, {PIXELS}), got {got}")
    labels = {key: _whole_numbers(entries[key], f"{source}: {key}", len(images)) for key in kinds}
    return _checked(source, name, images, labels)


def _whole_numbers(values: object, what: str, count: int) -> np.ndarray:
    if not (isinstance(values, list) and all(type(value) is int for value in values)):
        raise RichbookError(f"{what}: expected a list of whole numbers")
    if len(values) != count:
        raise RichbookError(f"{what}: expected one for each of {count} pictures, got {len(values)}")
    return np.clip(values, -1, 1 << 31).astype(np.int64)  # no label is out there; the check says so


def _checked(source: str, name: str, images: np.ndarray, labels: dict) -> Pictures:
    for key, classes in LABELS[name].items():
        check_labels(source, labels[key], classes, key.replace("_", " "))
    return Pictures(source, images, labels[list(LABELS[name])[-1]])
