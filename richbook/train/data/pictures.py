"""Pictures with labels: checked against what is known of their data set, then standardised."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from richbook.measure import RichbookError


@dataclass(frozen=True)
class Data:
    """Inputs (n, d) and labels (n,), in two parts.

    Pictures are float32, standardised by the mean and the spread (standard deviation) of the
    training pixels: one mean and one spread for grey pictures, one for each channel for colour.
    ``image_shape`` says how a row becomes a picture again,
    ``inputs.view(-1, *data.image_shape)``: (height, width) for grey, (3, height, width) for
    colour, channels first. It is None for "modular", whose inputs are int64 tokens.

    Example:
        >>> inputs, labels = torch.eye(4), torch.arange(4)
        >>> data = Data("corners", inputs, labels, inputs, labels, 4, (2, 2))
        >>> data.train_inputs.view(-1, *data.image_shape).shape
        torch.Size([4, 2, 2])
    """

    name: str
    train_inputs: Tensor
    train_labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor
    classes: int
    image_shape: tuple[int, ...] | None


@dataclass(frozen=True)
class Known:
    """What is known of a published data set before a file is read.

    Attributes:
        image_shape: of the pictures as published.
        train_counts, test_counts: how many pictures of each class the published parts hold.
        openml: its name at OpenML, where version 1 is meant.
        files: what to put into its folder.
    """

    image_shape: tuple[int, ...]
    train_counts: tuple[int, ...]
    test_counts: tuple[int, ...]
    openml: str
    files: str

    @property
    def classes(self) -> int:
        """How many classes there are, whichever of them a file holds."""
        return len(self.train_counts)


IDX_FILES = "train-images-idx3-ubyte and its three companions (plain or .gz)"
MNIST_TRAIN = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
MNIST_TEST = (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)
KNOWN = {
    "mnist": Known((28, 28), MNIST_TRAIN, MNIST_TEST, "mnist_784", IDX_FILES),
    "fashion-mnist": Known((28, 28), (6000,) * 10, (1000,) * 10, "Fashion-MNIST", IDX_FILES),
    "cifar10": Known(
        (3, 32, 32), (5000,) * 10, (1000,) * 10, "CIFAR_10",
        "cifar-10-binary.tar.gz or cifar-10-python.tar.gz (as downloaded, or unpacked)",
    ),
    "cifar100": Known(
        (3, 32, 32), (500,) * 100, (100,) * 100, "CIFAR-100",
        "cifar-100-binary.tar.gz or cifar-100-python.tar.gz (as downloaded, or unpacked)",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Pictures:
    """One part of a data set as it was read: images (n, …), labels (n,), and where from."""

    source: str
    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


def check_labels(source: str, labels: np.ndarray, classes: int, kind: str = "labels") -> None:
    """Labels (n,) must be class numbers.

    Raises:
        RichbookError: one is not; the message has the source and the row, counted from 0.

    Example:
        >>> check_labels("a.bin", np.array([0, 9]), 10)
    """
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        row = int(wrong[0])
        raise RichbookError(
            f"{source}: expected {kind} from 0 to {classes - 1}, "
            f"got {int(labels[row])} in row {row}"
        )


def data_of(name: str, train: Pictures, test: Pictures, image_shape: tuple[int, ...]) -> Data:
    """The two parts of a published data set, checked and standardised.

    Files may hold fewer pictures than published, as a subset does. Where their number is the
    published one, so must be the number of pictures of each class: this finds files that are
    swapped, repeated or of another data set.

    Raises:
        RichbookError: a part is empty, the parts look swapped, or a label or a count is not what
            it should be; the message says which file.
    """
    known = KNOWN[name]
    for part, counts in ((train, known.train_counts), (test, known.test_counts)):
        if part.images.size == 0:
            raise RichbookError(f"{part.source}: expected pictures, got none")
        check_labels(part.source, part.labels, known.classes)
        _check_counts(name, part, counts)
    if train.images.shape[1:] != test.images.shape[1:]:
        raise RichbookError(
            f"{test.source}: expected pictures of shape {train.images.shape[1:]} as in "
            f"{train.source}, got {test.images.shape[1:]}"
        )
    if len(train) < len(test):
        raise RichbookError(
            f"{train.source}: expected at least as many pictures as in {test.source}, "
            f"got {len(train)} and {len(test)}; are the training and the test files swapped?"
        )
    return standardised(name, train, test, known.classes, image_shape)


def _check_counts(name: str, part: Pictures, counts: tuple[int, ...]) -> None:
    if len(part) != sum(counts):
        return
    found = np.bincount(part.labels.astype(np.int64), minlength=len(counts))
    wrong = np.flatnonzero(found != np.array(counts))
    if len(wrong):
        label = int(wrong[0])
        raise RichbookError(
            f"{part.source}: expected {counts[label]} of {len(part)} pictures in class {label}, "
            f"as in {name}, got {found[label]}; are files swapped, repeated or of another set?"
        )


def standardised(
    name: str, train: Pictures, test: Pictures, classes: int, image_shape: tuple[int, ...]
) -> Data:
    """Pictures as rows, standardised by the training pixels: for each channel, if there are three.

    Raises:
        RichbookError: the training pixels of a channel are all equal.

    Example:
        >>> both = Pictures("here", np.array([[0, 2], [2, 4]]), np.array([0, 1]))
        >>> standardised("tiny", both, both, 2, (1, 2)).train_inputs.mean()
        tensor(0.)
    """
    channels = image_shape[0] if len(image_shape) == 3 else 1
    inputs = [
        torch.tensor(part.images.reshape(len(part), -1), dtype=torch.float32)
        for part in (train, test)
    ]
    split = [values.view(len(values), channels, -1) for values in inputs]  # (n, channels, pixels)
    for channel in range(channels):
        pixels = split[0][:, channel]
        mean, spread = pixels.mean(dtype=torch.float64).float(), pixels.std()
        if not spread > 0:
            where = f" in channel {channel}" if channels > 1 else ""
            raise RichbookError(
                f"{train.source}: expected pixels that differ{where}, "
                f"got {float(mean):g} everywhere"
            )
        for values in split:  # in place: both are our own copies, and may be large
            values[:, channel].sub_(mean).div_(spread)
    labels = [torch.tensor(part.labels, dtype=torch.int64) for part in (train, test)]
    shape = tuple(int(side) for side in image_shape)
    return Data(name, inputs[0], labels[0], inputs[1], labels[1], classes, shape)
