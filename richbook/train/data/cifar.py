"""CIFAR-10 and CIFAR-100 from the files in which they are published: binary or Python version.

Krizhevsky, "Learning multiple layers of features from tiny images", 2009. Both versions hold the
same rows of 3 · 32 · 32 unsigned bytes: the red values of the picture, line by line, then the green
and the blue ones. The binary version puts the label in front of each row (CIFAR-100: the coarse
label of 20 and the fine one of 100); the Python version is a pickled dictionary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from richbook.measure import RichbookError
from richbook.train.data.cifar_rows import binary_part, python_part
from richbook.train.data.files import is_file, read_archive, read_file
from richbook.train.data.pictures import Pictures

#: Each published batch of CIFAR-10 holds this many pictures.
BATCH = 10_000


@dataclass(frozen=True)
class Version:
    """One of the forms in which a set is published.

    Attributes:
        archive: name of the download.
        folder: what it unpacks to.
        train, test: names of the files.
        decode: (content, path, name of the set) -> ``Pictures``.
    """

    archive: str
    folder: str
    train: tuple[str, ...]
    test: str
    decode: Callable[[bytes, Path, str], Pictures]

    @property
    def files(self) -> tuple[str, ...]:
        """Names of all files."""
        return (*self.train, self.test)


BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
VERSIONS = {
    "cifar10": (
        Version(
            "cifar-10-binary.tar.gz", "cifar-10-batches-bin",
            tuple(f"{batch}.bin" for batch in BATCHES), "test_batch.bin", binary_part,
        ),
        Version(
            "cifar-10-python.tar.gz", "cifar-10-batches-py", BATCHES, "test_batch", python_part
        ),
    ),
    "cifar100": (
        Version(
            "cifar-100-binary.tar.gz", "cifar-100-binary", ("train.bin",), "test.bin", binary_part
        ),
        Version("cifar-100-python.tar.gz", "cifar-100-python", ("train",), "test", python_part),
    ),
}  # fmt: skip


def read_cifar_folder(name: str, folder: Path) -> tuple[Pictures, Pictures]:
    """The training part and the test part: images (n, 3072) and labels (n,), fine ones if there
    are two kinds.

    The files may lie in the folder itself, in the one that the archive unpacks to, or still in the
    archive; the binary version is taken if both are there.

    Raises:
        RichbookError: a file is missing, broken, or of the other set; the message names it.
    """
    version, place, contents = _contents(name, folder)
    parts = [
        version.decode(contents.pop(file), place / file, name)  # pop: half the memory
        for file in version.files
    ]
    *train, test = parts
    if name == "cifar10":
        _check_batches(train)
    return _joined(train), test


def _contents(name: str, folder: Path) -> tuple[Version, Path, dict[str, bytes]]:
    """The version there is, where it lies, and what each of its files holds."""
    incomplete = []
    for version in VERSIONS[name]:
        for place in (folder, folder / version.folder):
            present = [file for file in version.files if is_file(place / file)]
            if len(present) == len(version.files):
                return version, place, {file: read_file(place / file) for file in present}
            incomplete += [(version, place, present)] if present else []
    for version in VERSIONS[name]:
        archive = folder / version.archive
        if is_file(archive):
            return version, archive, read_archive(archive, version.files)
    if incomplete:
        version, place, present = max(incomplete, key=lambda found: len(found[2]))
        missing = next(file for file in version.files if file not in present)
        raise RichbookError(
            f"{place}: expected the file {missing} beside {present[0]}; {name} has "
            f"{len(version.files)} files: {', '.join(version.files)}"
        )
    raise RichbookError(_nothing(name, folder))


def _nothing(name: str, folder: Path) -> str:
    binary, python = VERSIONS[name]
    message = (
        f"{folder}: expected {binary.archive} or {python.archive}, or their files "
        f"({', '.join(binary.files)}; {', '.join(python.files)}), found none of them"
    )
    for other, versions in VERSIONS.items():
        for version in versions:
            for file in (version.archive, f"{version.folder}/{version.test}", version.test):
                if other != name and is_file(folder / file):
                    return f"{message}; {file} belongs to {other}"
    return message


def _check_batches(parts: list[Pictures]) -> None:
    """If one batch of CIFAR-10 is as long as published, all must be: a short one was cut off."""
    lengths = [len(part) for part in parts]
    if max(lengths) == BATCH and min(lengths) < BATCH:
        short = parts[int(np.argmin(lengths))]
        raise RichbookError(
            f"{short.source}: expected {BATCH} pictures as in the other batches, got {len(short)}; "
            "is it complete?"
        )


def _joined(parts: list[Pictures]) -> Pictures:
    if len(parts) == 1:
        return parts[0]
    return Pictures(
        f"{parts[0].source} to {Path(parts[-1].source).name}",
        np.concatenate([part.images for part in parts]),
        np.concatenate([part.labels for part in parts]),
    )
