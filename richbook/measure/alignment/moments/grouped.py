"""Mean and centred second moment of the rows of several groups, brought up to date together.

Twenty small products one after the other take several times as long as one batched product, and on
several threads longer still, since every step waits for all threads. So the rows are sorted by
group, all groups are multiplied at once, and each matrix only on and above its diagonal. Blocks are
not centred each on its own mean: where means are large against the spread, the mean of the first
block is subtracted from all that follow, and what is left of the mean is taken off at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from richbook.measure.alignment.moments.second_moments import SecondMoment
from richbook.measure.inputs import check_finite, to_float64
from richbook.measure.moments import BLOCK_ROWS
from richbook.measure.panels import add_product, empty_panels, whole
from richbook.measure.products import NARROW, row_sums, safe_dtype, symmetric_product

#: Rows of a group that are multiplied at a time, if there are several groups.
GROUP_ROWS = 512
#: A mean whose square is below this many variances costs no digits to speak of.
SMALL_OFFSET = 4.0


@dataclass(frozen=True)
class Sorting:
    """Where the rows of each group are among all rows.

    Attributes:
        places: (groups, k), row numbers; a group of fewer than k rows is filled up with others.
        filled: (groups, k), which these are.
        counts: (groups,), rows in each group, float64.
    """

    places: Tensor
    filled: Tensor
    counts: Tensor

    @classmethod
    def of(cls, groups: Tensor, number: int) -> Sorting:
        """From the group of each row, (n,).

        Example:
            >>> found = Sorting.of(torch.tensor([1, 0, 1]), number=2)
            >>> found.places.tolist(), found.filled.tolist()
            ([[1, 0], [0, 2]], [[False, True], [False, False]])
        """
        counts = groups.bincount(minlength=number)
        order = groups.argsort(stable=True)
        rank = torch.arange(int(counts.max()), device=groups.device)
        places = (counts.cumsum(0) - counts)[:, None] + rank
        places = order[places.clamp(max=len(order) - 1)]
        filled = rank >= counts[:, None]
        return cls(places, filled, to_float64(counts))

    def apply(self, rows: Tensor) -> Tensor:
        """The rows (n, d) by group, (groups, k, d), with zeros where a group has fewer."""
        found = rows.index_select(0, self.places.flatten())
        found = found.reshape(*self.places.shape, -1)
        return found.masked_fill_(self.filled[..., None], 0) if self.filled.any() else found

    def chosen(self) -> list[Tensor]:
        """The places of each group, without the others."""
        sizes = self.counts.long().tolist()
        return [places[:size] for places, size in zip(self.places, sizes, strict=True)]


class GroupedMoments:
    """Number, mean (d,) and centred scatter (d, d) of the rows of each group, float64.

    Args:
        width: d.
        groups: their number.

    Example:
        >>> moments = GroupedMoments(width=1, groups=2)
        >>> moments.update(torch.tensor([[1.0], [5.0], [3.0]]), torch.tensor([0, 1, 0]), "rows")
        >>> [(part.count, part.mean.item(), part.scatter.item()) for part in moments.finish()]
        [(2, 2.0, 2.0), (1, 5.0, 0.0)]
    """

    def __init__(self, width: int, groups: int) -> None:
        self.width, self.rows = width, 0
        self.parts = [SecondMoment(width) for _ in range(groups)]
        self.sums: _Sums | None = None

    def update(self, rows: Tensor, groups: Tensor | None, name: str) -> None:
        """Add rows (n, d), each to its group (n,), or all to the first.

        Raises:
            RichbookError: a nan or an infinity among them, with this name.
        """
        number = len(self.parts)
        most = BLOCK_ROWS if number == 1 else GROUP_ROWS * number
        for start in range(0, len(rows), most):
            block = rows[start : start + most]
            chosen = None if number == 1 else groups[start : start + most]
            norm = check_finite(block, name, self.rows)
            self._add(block, chosen, safe_dtype(block, norm), norm)
            self.rows += len(block)

    def _add(
        self, rows: Tensor, groups: Tensor | None, dtype: torch.dtype, norm: float | None
    ) -> None:
        rows = to_float64(rows) if dtype == torch.float64 else rows.to(dtype)
        sorting = None if groups is None else Sorting.of(groups, len(self.parts))
        if self.sums is None or not self.sums.add(rows, sorting, norm):
            self.finish()  # of rows around another mean
            self.sums = _Sums(rows, len(self.parts))
            self.sums.add(rows, sorting, norm, always=True)

    def finish(self) -> list[SecondMoment]:
        """The moments of each group, up to date with all that was added."""
        if self.sums is not None:
            for part, (count, mean, scatter) in zip(self.parts, self.sums.finish(), strict=True):
                if count:
                    part.add(count, mean, scatter)
            self.sums = None
        return self.parts


class _Sums:
    """Σ(v − offset) and, on and above the diagonal, Σ(v − offset)(v − offset)ᵀ in each group.

    Products in float32 are added up in float32 over a few thousand rows, and in float64 beyond.
    """

    def __init__(self, first: Tensor, groups: int) -> None:
        self.width = first.shape[1]
        self.offset = _large_mean(first)
        self.shifted = bool(self.offset.any())
        self.counts = torch.zeros(groups, dtype=torch.float64)
        self.totals = to_float64(first.new_zeros(groups, self.width))
        self.panels = empty_panels(groups, self.width, self.totals)
        self.recent: list[Tensor] = []
        self.recent_rows = torch.zeros(groups)

    def add(
        self, rows: Tensor, sorting: Sorting | None, norm: float | None, always: bool = False
    ) -> bool:
        """Add rows (n, d); or return False, and add nothing, where the offset is no longer near.

        The norm of all rows together is used if it is known.
        """
        if self.shifted:
            rows, norm = rows - self.offset.to(rows), None
        if sorting is None:
            parts = [(slice(None), rows[None], torch.tensor([len(rows)]))]
        elif sorting.places.numel() <= 2 * len(rows):
            parts = [(slice(None), sorting.apply(rows), sorting.counts)]
        else:  # a few groups have most of the rows
            parts = [
                (slice(group, group + 1), rows[chosen][None], sorting.counts[group])
                for group, chosen in enumerate(sorting.chosen())
                if len(chosen)
            ]
        totals = [row_sums(values) for _, values, _ in parts]
        if not (always or self._is_near(rows, torch.cat(totals).sum(0), norm)):
            return False
        for (groups, values, counts), total in zip(parts, totals, strict=True):
            self.counts[groups] += counts.to(self.counts)
            self.totals[groups] += total
            self._multiply(groups, values)
        return True

    def _is_near(self, rows: Tensor, total: Tensor, norm: float | None) -> bool:
        """Whether what is left of the mean is small, which a stream that drifts will leave."""
        mean = float((total / len(rows)).square().sum())
        norm = float(torch.linalg.vector_norm(rows)) if norm is None else norm
        square = norm**2 / len(rows)
        return mean <= SMALL_OFFSET * (square - mean) or square == 0

    def _multiply(self, groups: slice, values: Tensor) -> None:
        """Add the products of (groups, k, d), with zeros for rows that are none."""
        if values.dtype == torch.float64:
            add_product(values, [panel[groups] for panel in self.panels])
        elif self.width < NARROW:
            self.panels[0][groups] += symmetric_product(values)
        else:
            self.recent = self.recent or empty_panels(len(self.counts), self.width, values)
            add_product(values, [panel[groups] for panel in self.recent])
            self.recent_rows[groups] += values.shape[1]
            if self.recent_rows.max() >= BLOCK_ROWS:
                self._spill()

    def _spill(self) -> None:
        for totals, panels in zip(self.panels, self.recent, strict=False):
            for total, panel in zip(totals, panels, strict=True):  # all at once would be copied
                total += to_float64(panel) if panel.device != total.device else panel
        self.recent = []
        self.recent_rows.zero_()

    def finish(self) -> list[tuple[int, Tensor, Tensor]]:
        """Number, mean and centred scatter of each group."""
        self._spill()
        offset = to_float64(self.offset)
        found = []
        for group, count in enumerate(self.counts.tolist()):
            total = self.totals[group]
            mean = total / max(count, 1.0)
            second = whole(self.panels, group)
            found.append((int(count), offset + mean, second.addr_(total, mean, alpha=-1)))
        return found


def _large_mean(rows: Tensor) -> Tensor:
    """The mean (d,), or zeros where there is nothing to lose.

    It is counted from the first row, so that of a constant column nothing is left.
    """
    ones, first = rows.new_ones(1, len(rows)), rows[0]
    shifted = rows - first
    mean = (ones @ shifted)[0] / len(rows)
    variance = (ones @ shifted.square_())[0] / len(rows) - mean.square()
    mean = first + mean
    large = bool((mean.square() > SMALL_OFFSET * variance.clamp_min(0)).any())
    return mean if large else torch.zeros_like(mean)  # a copy of the rows is saved
