"""MNIST and its like from IDX files: a header of sizes, then unsigned bytes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from richbook.measure import RichbookError
from richbook.train.data.files import is_file, read_file
from richbook.train.data.pictures import Pictures, check_labels

#: IDX type code of unsigned bytes; the other codes do not occur in these data sets.
UNSIGNED_BYTE = 0x08


def read_idx_folder(folder: Path, classes: int) -> tuple[Pictures, Pictures]:
    """The training part and the test part: images (n, height, width) and labels (n,).

    Raises:
        RichbookError: a file is missing, broken, or does not fit its companion.
    """
    return _part(folder, "train", classes), _part(folder, "t10k", classes)


def _part(folder: Path, split: str, classes: int) -> Pictures:
    images_path = _path(folder, f"{split}-images-idx3-ubyte")
    labels_path = _path(folder, f"{split}-labels-idx1-ubyte")
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if len(images) != len(labels):
        raise RichbookError(
            f"{folder}: {split} has {len(images)} images in {images_path.name} but "
            f"{len(labels)} labels in {labels_path.name}"
        )
    check_labels(str(labels_path), labels, classes)
    return Pictures(str(images_path), images, labels)


def _path(folder: Path, stem: str) -> Path:
    for path in (folder / stem, folder / f"{stem}.gz"):
        if is_file(path):
            return path
    raise RichbookError(f"{folder}: expected the file {stem} or {stem}.gz, found neither")


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Read an IDX file of unsigned bytes with the given number of dimensions, plain or .gz.

    Raises:
        RichbookError: not an IDX file, another number of dimensions, an empty one, truncated or too
            long.
    """
    content = read_file(path)
    header = 4 + 4 * dimensions
    if len(content) < 4 or content[:3] != bytes([0, 0, UNSIGNED_BYTE]):
        raise RichbookError(
            f"{path}: expected an IDX file of unsigned bytes, got the first bytes {content[:4]!r}"
        )
    if content[3] != dimensions:
        raise RichbookError(
            f"{path}: expected {dimensions} dimension(s), the file says {content[3]}"
        )
    if len(content) < header:
        raise RichbookError(f"{path}: expected a header of {header} bytes, got {len(content)}")
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4))
    if math.prod(shape) == 0:
        raise RichbookError(f"{path}: expected sizes of at least 1, the file says {shape}")
    if len(content) - header != math.prod(shape):
        raise RichbookError(
            f"{path}: expected {math.prod(shape)} bytes of data for shape {shape}, "
            f"got {len(content) - header}"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
