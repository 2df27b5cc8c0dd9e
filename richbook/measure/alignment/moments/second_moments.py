"""Mean and centred second moment of one set of vectors, streamed and mergeable.

The same arithmetic as :class:`richbook.measure.moments.Moments`, for one set of vectors instead of
features beside outputs: blocks are centred before they are multiplied, and merged in float64.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from richbook.measure.inputs import (
    LARGEST_MAGNITUDE,
    check_finite,
    exact_arithmetic,
    working_dtype,
)
from richbook.measure.moments import BLOCK_ROWS
from richbook.measure.products import FLOAT32_RANGE, centre_in, symmetric_product


@dataclass
class SecondMoment:
    """Over the rows seen so far: their number, mean (d,), and Σ(v − mean)(v − mean)ᵀ, (d, d).

    Example:
        >>> import torch
        >>> moment = SecondMoment(2)
        >>> for rows in torch.tensor([[1.0, 0.0], [3.0, 0.0], [5.0, 6.0]]).split(2):
        ...     moment.update(rows, "rows")
        >>> moment.count, moment.mean.tolist(), moment.covariance.tolist()
        (3, [3.0, 2.0], [[2.6666666666666665, 4.0], [4.0, 8.0]])
    """

    width: int
    count: int = 0
    mean: Tensor | None = None
    scatter: Tensor | None = None

    def update(self, rows: Tensor, name: str) -> None:
        """Add rows (n, d); a nan or an infinity among them is an error with this name."""
        with exact_arithmetic(rows.device), torch.no_grad():
            for block in rows.split(BLOCK_ROWS):
                if len(block):
                    centred, mean, rest = centre_in(block, self._dtype(block, name))
                    scatter = symmetric_product(centred)
                    if bool(rest.any()):
                        scatter -= len(block) * torch.outer(rest, rest)
                    self.add(len(block), mean, scatter)

    def _dtype(self, block: Tensor, name: str) -> torch.dtype:
        """What to multiply in; the block is looked through once, for this and for its errors."""
        low, high = torch.aminmax(block)
        largest = max(abs(float(low)), abs(float(high)))
        if not largest <= LARGEST_MAGNITUDE:
            check_finite(block, name, self.count)
        dtype, (smallest, greatest) = working_dtype(block), FLOAT32_RANGE
        squares_fit = largest == 0 or smallest < largest < greatest
        return dtype if squares_fit else torch.float64

    def add(self, count: int, mean: Tensor, scatter: Tensor) -> None:
        """Add rows by their number, mean and centred scatter, which is kept if it is the first."""
        if self.count == 0:
            self.count, self.mean, self.scatter = count, mean, scatter
            return
        total = self.count + count
        step = mean - self.mean
        self.scatter += scatter
        self.scatter.addr_(step, step, alpha=self.count * count / total)
        self.mean = self.mean + step * (count / total)
        self.count = total

    @classmethod
    def pooled(cls, parts: Iterable[SecondMoment], width: int) -> SecondMoment:
        """Of the rows of all parts, which stay as they are."""
        made = cls(width)
        for part in parts:
            if part.count:
                scatter = part.scatter if made.count else part.scatter.clone()
                made.add(part.count, part.mean, scatter)
        return made

    @property
    def covariance(self) -> Tensor:
        """The centred second moment, (d, d); nan where there are no rows."""
        if self.count == 0:
            return torch.full((self.width, self.width), torch.nan, dtype=torch.float64)
        return self.scatter / self.count

    @property
    def average(self) -> Tensor:
        """The mean, (d,); nan where there are no rows."""
        if self.count == 0:
            return torch.full((self.width,), torch.nan, dtype=torch.float64)
        return self.mean
