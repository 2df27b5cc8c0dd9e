"""What a loader's targets are: classes, or functions to be expressed, or nothing usable."""

from __future__ import annotations

import torch
from torch import Tensor

#: One-hot targets have as many columns as there are classes; more than this many are not kept.
MOST_CLASSES = 2048


class TargetReader:
    """Turns each batch's targets into class labels (n,) and target functions (n, C*).

    Integers of shape (n,) are classes, and their one-hot code is the target; everything else is
    taken as it is. ``note`` says in words what could not be used.

    Example:
        >>> import torch
        >>> labels, functions = TargetReader(outputs=3).read(torch.tensor([2, 0]))
        >>> labels.tolist(), functions.tolist()
        ([2, 0], [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    """

    def __init__(self, outputs: int) -> None:
        self.outputs, self.note = outputs, None

    def read(self, targets: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Labels and target functions of one batch, each None where there are none."""
        if targets is None or self.note:
            return None, None
        if targets.ndim == 2 and targets.shape[1] == 1 and not targets.is_floating_point():
            targets = targets[:, 0]
        if targets.is_complex() or targets.ndim > 2:
            self.note = f"targets of shape {tuple(targets.shape)} are not measured against"
            return None, None
        if targets.is_floating_point() or targets.ndim == 2:
            functions = targets if targets.is_floating_point() else targets.float()
            return None, functions if functions.ndim == 2 else functions[:, None]
        return self._classes(targets)

    def _classes(self, labels: Tensor) -> tuple[Tensor | None, Tensor | None]:
        classes = max(self.outputs, 2)  # a single output may tell two classes apart
        low, high = (int(end) for end in torch.aminmax(labels)) if len(labels) else (0, 0)
        if classes > MOST_CLASSES:
            self.note = f"quality and neural collapse are left out for {classes} classes"
        elif low < 0 or high >= classes:
            self.note = (
                f"labels reach from {low} to {high}, beyond the {self.outputs} outputs: "
                "quality and neural collapse are left out"
            )
        if self.note:
            return None, None
        labels = labels.long()
        return labels, torch.nn.functional.one_hot(labels, classes).float()
