"""Which positions of a batch are tokens, and which are padding: the attention mask."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from richbook.measure.errors import RichbookError

MISFIT = (
    "pass an index from 0 on, which needs no mask; or wrap the model so that the mask has another "
    "name if it is not about these positions"
)


@dataclasses.dataclass(frozen=True)
class Attended:
    """The tokens of a batch, (n, T), True where there is one; padding may be on either side.

    Example:
        >>> import torch
        >>> attended = Attended(torch.tensor([[True, True, False], [False, True, True]]))
        >>> attended.index(-1)
        tensor([1, 2])
        >>> attended.mean(torch.tensor([[[1.0], [3.0], [9.0]], [[9.0], [5.0], [7.0]]]))
        tensor([[2.],
                [6.]])
    """

    mask: Tensor
    found: dict = dataclasses.field(default_factory=dict, repr=False)  # each layer asks anew

    def index(self, position: int) -> Tensor:
        """Where the token is that a negative position means, counted from the last; (n,).

        Raises:
            RichbookError: a sample that has tokens, but too few.
        """
        if position not in self.found:
            self.found[position] = self._find(position)
        return self.found[position]

    def _find(self, position: int) -> Tensor:
        from_here_on = self.mask.flip(1).cumsum(1).flip(1)  # (n, T), the last token has 1
        counts = self.mask.sum(1)
        short = (counts > 0) & (counts < -position)
        if bool(short.any()):
            sample = int(short.int().argmax())
            raise RichbookError(
                f"position: {position} is out of range, by its attention mask sample {sample} has "
                f"{int(counts[sample])} tokens"
            )
        return (self.mask & (from_here_on == -position)).int().argmax(1)

    def take(self, values: Tensor, position: int) -> Tensor:
        """One position of each sample: (n, T, ...) -> (n, ...)."""
        key = position, values.device
        if key not in self.found:
            index = self.index(position).to(values.device)
            self.found[key] = torch.arange(len(index), device=values.device), index
        return values[self.found[key]]

    def mean(self, values: Tensor) -> Tensor:
        """The average over tokens, (n, T, ...) -> (n, ...); 0 for a sample without any."""
        if values.device not in self.found:
            self.found[values.device] = self.mask.to(values.device)
        mask = self.found[values.device].reshape(*self.mask.shape, *[1] * (values.ndim - 2))
        wide = torch.promote_types(values.dtype, torch.float32)  # a sum may be too large for half
        total = torch.where(mask, values, 0).sum(1, dtype=wide)  # padding may hold nan: no product
        return (total / mask.sum(1).clamp(min=1)).to(values.dtype)

    def fits(self, values: Tensor) -> bool:
        """Whether a tensor has these samples and positions."""
        return values.shape[:2] == self.mask.shape

    def checked(self, values: Tensor, what: str) -> None:
        """Raise unless a tensor has these samples and positions."""
        if not self.fits(values):
            raise RichbookError(
                f"position: {what} has the shape {tuple(values.shape)}, and the batch an attention "
                f"mask {tuple(self.mask.shape)}, expected the same samples and positions; {MISFIT}"
            )

    def kept(self, position: int | str | None, where: tuple[int, ...], rows: int) -> Tensor | None:
        """Which rows are no padding, (rows,); None if all are.

        Args:
            position: as for :class:`ForwardPasses`.
            where: the positions of the head's input, (T,), or () if it has no axis for them.
            rows: how many rows it gave.
        """
        if not where and rows == self.mask.numel() != len(self.mask):
            kept = self.mask.flatten()  # the head takes tokens as (n T, d)
        elif len(where) != 1 or position is None or (isinstance(position, int) and position >= 0):
            return None
        else:
            kept = self.mask.flatten() if position == "all" else self.mask.any(1)
        return None if bool(kept.all()) else kept


def attended_in(args: tuple, kwargs: dict) -> Attended | None:
    """The mask among a batch's inputs: "attention_mask" of shape (n, T) in a dictionary.

    If there are inputs of a decoder, whose names begin with "decoder_", it is theirs that counts.

    Raises:
        RichbookError: a mask with negative numbers, which are to be added to something.
    """
    for inputs in (kwargs, *(value for value in args if isinstance(value, Mapping))):
        decodes = any(str(name).startswith("decoder_") for name in inputs)
        name = "decoder_attention_mask" if decodes else "attention_mask"
        mask = inputs.get(name)
        if not isinstance(mask, (Tensor, np.ndarray)) or mask.ndim != 2:
            continue
        mask = torch.as_tensor(mask)
        if mask.dtype != torch.bool and bool((mask < 0).any()):
            raise RichbookError(f"loader: {name!r} has negative numbers, expected 1 for a token "
                                "and 0 for padding")  # fmt: skip
        return Attended(mask != 0)
    return None
