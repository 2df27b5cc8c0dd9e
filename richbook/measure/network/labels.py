"""What a loader's targets are: classes, or functions to be expressed, or nothing usable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from richbook.measure.capture import Batch
from richbook.measure.errors import RichbookError

#: One-hot targets have as many columns as there are classes; more than this many are not kept.
MOST_CLASSES = 2048


class TargetReader:
    """Turns each batch's targets into class labels (n,) and target functions (n, C*).

    Integers of shape (n,) are classes, and their one-hot code is the target; everything else is
    taken as it is. ``note`` says in words what could not be used.

    Example:
        >>> import torch
        >>> labels, functions = TargetReader().read(torch.tensor([2, 0]), outputs=3)
        >>> labels.tolist(), functions.tolist()
        ([2, 0], [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    """

    def __init__(self) -> None:
        self.note: str | None = None
        self.kinds: set = set()
        self.classes = False

    def watched(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches, after a look at the targets of each, before any are joined.

        Raises:
            RichbookError: another shape than in the batches before, or numbers of another kind.
        """
        for batch in batches:
            self._watch(batch.targets)
            yield batch

    def _watch(self, targets: Tensor | None) -> None:
        kind = None
        if targets is not None:
            kind = (tuple(targets.shape[1:]), targets.is_floating_point())
        self.kinds.add(kind)
        known = [kind for kind in self.kinds if kind is not None]
        if len(known) > 1:
            (first, _), (second, _) = sorted(known)
            raise RichbookError(
                f"targets: expected the same shape and kind of numbers in every batch, got (n, "
                f"{', '.join(map(str, first))}) and (n, {', '.join(map(str, second))})"
            )
        if len(self.kinds) > 1:
            self.note = "some batches have no targets: quality and neural collapse are left out"

    def read(self, targets: Tensor | None, outputs: int) -> tuple[Tensor | None, Tensor | None]:
        """Labels and target functions of some samples, each None where there are none."""
        if targets is None or self.note:
            return None, None
        if targets.ndim == 2 and targets.shape[1] == 1 and not targets.is_floating_point():
            targets = targets[:, 0]
        if targets.is_complex() or targets.ndim > 2:
            self.note = f"targets of shape {tuple(targets.shape)} are not measured against"
            return None, None
        if targets.is_floating_point() or targets.ndim == 2:
            functions = targets if targets.is_floating_point() else targets.double()
            return None, functions if functions.ndim == 2 else functions[:, None]
        self.classes = True
        return self._one_hot(targets.long(), outputs)

    def _one_hot(self, labels: Tensor, outputs: int) -> tuple[Tensor | None, Tensor | None]:
        classes = max(outputs, 2)  # a single output may tell two classes apart
        low, high = (int(end) for end in torch.aminmax(labels)) if len(labels) else (0, 0)
        if classes > MOST_CLASSES:
            self.note = f"quality and neural collapse are left out for {classes} classes"
        elif low < 0 or high >= classes:
            self.note = (
                f"labels reach from {low} to {high}, beyond the {outputs} outputs: "
                "quality and neural collapse are left out"
            )
        if self.note:
            return None, None
        return labels, torch.nn.functional.one_hot(labels, classes).float()
