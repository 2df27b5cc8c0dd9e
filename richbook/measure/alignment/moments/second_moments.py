"""Mean and centred second moment of one set of vectors, merged block by block in float64."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class SecondMoment:
    """Over the rows seen so far: their number, mean (d,), and Σ(v − mean)(v − mean)ᵀ, (d, d).

    Example:
        >>> import torch
        >>> moment = SecondMoment(1)
        >>> moment.add(2, mean=torch.tensor([2.0]), scatter=torch.tensor([[2.0]]))  # of 1 and 3
        >>> moment.add(1, mean=torch.tensor([5.0]), scatter=torch.tensor([[0.0]]))
        >>> moment.count, moment.mean.tolist(), moment.scatter.tolist()
        (3, [3.0], [[8.0]])
    """

    width: int
    count: int = 0
    mean: Tensor | None = None
    scatter: Tensor | None = None

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
