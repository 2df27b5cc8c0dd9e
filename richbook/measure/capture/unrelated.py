"""Layers that are called on nothing of the batch, such as an embedding of positions.

Such a layer gives a row for each position. Where there happen to be as many positions as samples,
shapes do not tell these rows from samples; what the layer was given does.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from richbook.measure.capture.batches import tensors_in
from richbook.measure.capture.state import storage_of, version


class Unrelated:
    """Tells, in one forward pass, which calls hold nothing of the batch.

    Those are calls on nothing but parameters and buffers, numbers of positions that the batch does
    not have, and what other such calls gave.

    Args:
        model: whose parameters and buffers they are.
        given: the tensors of the batch.

    Example:
        >>> tokens = torch.randint(0, 9, (4, 4))
        >>> unrelated = Unrelated(nn.Embedding(9, 2), [tokens])
        >>> made = torch.zeros(4, 2)
        >>> unrelated.notes((tokens,), made), unrelated.notes((torch.arange(4),), made)
        (False, True)
        >>> unrelated.notes((made,), made.tanh())
        True
    """

    def __init__(self, model: nn.Module, given: list[Tensor]) -> None:
        self.given = given
        self.places = {storage.cdata for tensor in given if (storage := storage_of(tensor))}
        self.known: dict[int, tuple[Tensor, int | None]] = {}
        for tensor in (*model.parameters(), *model.buffers()):
            self._add(tensor)

    def notes(self, inputs: object, output: object) -> bool:
        """Whether a call holds nothing of the batch; what it gave is then known to hold nothing."""
        if not all(map(self._holds_nothing, tensors_in(inputs))):
            return False
        for tensor in tensors_in(output):
            self._add(tensor)
        return True

    def _add(self, tensor: Tensor) -> None:
        storage = storage_of(tensor)
        if storage is not None:  # the tensor is kept, so that its memory is not used for another
            self.known[storage.cdata] = (tensor, version(tensor))

    def _holds_nothing(self, tensor: Tensor) -> bool:
        storage = storage_of(tensor)
        if storage is not None and storage.cdata in self.places:
            return False
        if storage is not None and storage.cdata in self.known:
            return version(tensor) == self.known[storage.cdata][1]  # else the batch may be in it
        return _counts_positions(tensor) and not any(_holds(given, tensor) for given in self.given)


def _counts_positions(tensor: Tensor) -> bool:
    """Integers such as 0, 1, 2, … in one or all rows, or a square that depends on i − j alone.

    Example:
        >>> place = torch.arange(4)
        >>> _counts_positions(place), _counts_positions((place - place[:, None]).clamp(-2, 2))
        (True, True)
        >>> _counts_positions(torch.tensor([3, 1, 2]))
        False
    """
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        return False
    if not 1 <= tensor.ndim <= 2 or tensor.numel() < 2:
        return False
    rows = tensor.long().reshape(-1, tensor.shape[-1])
    start = torch.arange(rows.shape[1], device=rows.device) + rows[0, 0]
    if bool((rows == start).all()):
        return True
    is_square = rows.shape[0] == rows.shape[1] > 2
    diagonal = is_square and bool((rows[1:, 1:] == rows[:-1, :-1]).all())
    return diagonal and bool((rows != rows[0, 0]).any())


def _holds(given: Tensor, tensor: Tensor) -> bool:
    """Whether the numbers are those of a tensor of the batch, or of a column of it."""
    given = given.to(tensor.device)
    if given.shape == tensor.shape:
        return bool((given == tensor).all())
    if given.ndim == 2 and tensor.shape == given.shape[:1]:
        return bool((given == tensor[:, None]).all(0).any())
    return False
