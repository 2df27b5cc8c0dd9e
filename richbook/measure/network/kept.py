"""A random part of a stream, for what cannot be computed from moments."""

from __future__ import annotations

import torch
from torch import Tensor


class Kept:
    """Keeps ``capacity`` rows of a stream, every set of rows with the same probability.

    Each row draws a number from a generator of its own, and the rows with the smallest numbers stay
    (in the order in which they came), so that nothing depends on how the stream is cut into blocks.

    Example:
        >>> import torch
        >>> kept = Kept(capacity=3)
        >>> for block in torch.arange(10).split(4):
        ...     kept.add(values=block)
        >>> len(kept.rows()["values"])
        3
    """

    def __init__(self, capacity: int, seed: int = 0) -> None:
        self.capacity = capacity
        self.generator = torch.Generator().manual_seed(seed)
        self.numbers: list[Tensor] = []
        self.blocks: list[dict[str, Tensor]] = []

    def add(self, **values: Tensor) -> None:
        """Add a block of rows: tensors of equal length, under the same names each time."""
        length = len(next(iter(values.values())))
        self.numbers.append(torch.rand(length, generator=self.generator, dtype=torch.float64))
        self.blocks.append(values)
        if sum(map(len, self.numbers)) > 2 * self.capacity:
            self._thin()

    def rows(self) -> dict[str, Tensor]:
        """The rows kept so far, by name."""
        self._thin()
        return self.blocks[0] if self.blocks else {}

    def _thin(self) -> None:
        if not self.blocks:
            return
        numbers = torch.cat(self.numbers)
        values = {
            name: torch.cat([block[name] for block in self.blocks]) for name in self.blocks[0]
        }
        if len(numbers) > self.capacity:
            chosen = numbers.argsort(stable=True)[: self.capacity].sort().values
            numbers = numbers[chosen]
            values = {name: rows[chosen.to(rows.device)] for name, rows in values.items()}
        self.numbers, self.blocks = [numbers], [values]
