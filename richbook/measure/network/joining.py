"""Small batches, joined before they are multiplied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from richbook.measure.capture import Batch

#: A batch of 100 rows is all overhead: batches are joined to so many rows, or so many bytes.
JOINED_ROWS, JOINED_BYTES = 1024, 2**26


def joined(batches: Iterable[Batch]) -> Iterator[Batch]:
    """The same rows in fewer, larger batches.

    Example:
        >>> import torch
        >>> small = [Batch(torch.ones(100, 3), torch.ones(100, 2), None, {}) for _ in range(20)]
        >>> [len(batch.features) for batch in joined(small)]
        [1100, 900]
    """
    waiting: list[Batch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows += len(batch.features)
        tensors = [batch.features, batch.outputs, *batch.layers.values()]
        size += sum(tensor.nbytes for tensor in tensors)
        if rows >= JOINED_ROWS or size >= JOINED_BYTES:
            yield _join(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield _join(waiting)


def _join(batches: list[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    has_targets = all(batch.targets is not None for batch in batches)
    return Batch(
        features=torch.cat([batch.features for batch in batches]),
        outputs=torch.cat([batch.outputs for batch in batches]),
        targets=torch.cat([batch.targets for batch in batches]) if has_targets else None,
        layers={
            name: torch.cat([batch.layers[name] for batch in batches]) for name in batches[0].layers
        },
    )
