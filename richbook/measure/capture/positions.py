"""From what a layer gives to one row a sample: which token counts, or which part of a map."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from richbook.measure.capture.attended import Attended
from richbook.measure.errors import RichbookError

Position = int | str | None
CHOICES = '-1 or another index, "mean" (their average) or "all" (each is a sample)'
#: torch's losses leave out rows with this label; so do we.
IGNORED = -100


def checked_position(position: object) -> Position:
    """The position, or an error that lists what it can be."""
    if position is None or position in ("mean", "all"):
        return position
    if isinstance(position, int) and not isinstance(position, bool):
        return position
    raise RichbookError(f"position: expected None, {CHOICES}, got {position!r}")


def positions_of(values: Tensor, channels_last: bool = False) -> tuple[int, ...]:
    """The axes between samples and features: () for (n, d), (T,) for (n, T, d), (h, w) for maps.

    Example:
        >>> import torch
        >>> positions_of(torch.zeros(8, 5, 3)), positions_of(torch.zeros(8, 3, 7, 6))
        ((5,), (7, 6))
    """
    if values.ndim <= 3 or channels_last:
        return tuple(values.shape[1:-1])
    return tuple(values.shape[2:])


def features_come_last(module: nn.Module) -> bool:
    """Whether a module's 4-D tensors are (n, h, w, d); everywhere else they are (n, c, h, w)."""
    return isinstance(module, (nn.Linear, nn.LayerNorm, nn.Embedding))


def as_rows(
    values: Tensor,
    position: Position,
    what: str,
    *,
    channels_last: bool,
    layer: bool,
    attended: Attended | None = None,
) -> Tensor:
    """A new tensor (rows, d) from (n, d), (n, T, d) or (n, c, h, w).

    Args:
        values: what a layer took or gave.
        position: an index, "mean" or "all", for tensors with positions.
        what: names the tensor in messages, such as "the input of the head 'fc'".
        channels_last: read (n, h, w, d) instead of (n, c, h, w).
        layer: average a map over its positions unless ``position`` is "all", as the pooling before
            most heads does; for the head itself this must be asked for.
        attended: which of the positions (n, T) are tokens; a negative index and "mean" are about
            those only, "all" gives a row for each position nevertheless.

    Raises:
        RichbookError: a shape that is none of these; positions, and ``position`` is None; an index
            out of range; a mask for other positions.

    Example:
        >>> import torch
        >>> tokens = torch.arange(12.0).reshape(2, 3, 2)
        >>> as_rows(tokens, -1, "the output", channels_last=False, layer=True)
        tensor([[ 4.,  5.],
                [10., 11.]])
        >>> as_rows(tokens, "all", "the output", channels_last=False, layer=True).shape
        torch.Size([6, 2])
    """
    shape = tuple(values.shape)
    if values.ndim < 2:
        raise RichbookError(
            f"{what} has the shape {shape}, expected (n, d), with one row a sample"
            + ("; does the loader yield single samples instead of batches?" if not layer else "")
        )
    values = values.detach()
    where = positions_of(values, channels_last)
    if not where:
        return values.clone()
    is_map = len(where) > 1
    if is_map and not channels_last:
        values = values.movedim(1, -1)
    values = values.flatten(1, -2)  # (n, positions, d)
    if is_map and position != "all" and (layer or values.shape[1] == 1):
        position = "mean"
    if position is None or (is_map and isinstance(position, int)):
        kind, choices = "tokens (n, T, d)", CHOICES
        if is_map:
            kind = "maps (n, h, w, d)" if channels_last else "maps (n, c, h, w)"
            choices = '"mean" (the average over the map) or "all" (each place is a sample)'
        raise RichbookError(f"position: {what} has the shape {shape}, {kind}; pass {choices}")
    masked = attended is not None and not is_map and (position in ("mean", "all") or position < 0)
    if masked:
        attended.checked(values, what)
    if position == "mean":
        return attended.mean(values) if masked else values.mean(1)
    if position == "all":
        return values.flatten(0, 1).clone()
    if not -values.shape[1] <= position < values.shape[1]:
        raise RichbookError(
            f"position: {position} is out of range, {what} has {values.shape[1]} positions, "
            f"shape {shape}"
        )
    return attended.take(values, position) if masked else values[:, position].clone()


def target_rows(
    targets: Tensor,
    position: Position,
    samples: int,
    where: tuple[int, ...],
    rows: int,
    attended: Attended | None = None,
) -> Tensor | None:
    """Targets (rows,) or (rows, k) for features that had the positions ``where``.

    Args:
        targets: (n,) or (n, ...); with a target at each position (n, T, ...), (n, h, w) or
            (n, k, h, w).
        position: as for the features.
        samples: n.
        where: () or (T,) or (h, w).
        rows: how many rows the features have now.
        attended: as for :func:`as_rows`.

    Returns:
        The targets, or None for labels at each position where features are averaged over positions.

    Raises:
        RichbookError: another number of rows.

    Example:
        >>> import torch
        >>> target_rows(torch.tensor([[1, 2, 3], [4, 5, 6]]), -1, 2, (3,), 2)
        tensor([3, 6])
    """
    shape = tuple(targets.shape)
    if where and len(where) > 1 and shape[:1] + shape[2:] == (samples, *where):
        targets = targets.movedim(1, -1)
    if where and tuple(targets.shape[: 1 + len(where)]) == (samples, *where):
        targets = targets.flatten(1, len(where))  # (n, positions, ...)
        if position == "all":
            targets = targets.flatten(0, 1)
        elif isinstance(position, int):
            counted = attended is not None and position < 0
            targets = attended.take(targets, position) if counted else targets[:, position]
        elif targets.shape[1] == 1:
            targets = targets[:, 0]
        elif targets.is_floating_point():
            masked = attended is not None and len(where) == 1
            targets = attended.mean(targets) if masked else targets.mean(1)
        else:
            return None
    if targets.ndim < 1 or len(targets) != rows:
        raise RichbookError(
            f"targets: shape {shape} for {rows} rows of features"
            + (f" ({samples} samples with the positions {where})" if where else "")
            + ", expected one target a row"
            + (", batch first" if targets.ndim > 1 and rows in targets.shape else "")
        )
    if targets.ndim > 2:
        targets = targets.flatten(1)
    if targets.ndim == 2 and targets.shape[1] == 1 and not targets.is_floating_point():
        targets = targets[:, 0]
    return targets


def has_ignored(targets: Tensor | None) -> bool:
    """Whether some label is −100. To be asked before the labels move to an accelerator."""
    if targets is None or targets.dtype in (torch.bool, torch.uint8):
        return False
    if targets.is_floating_point() or targets.is_complex():
        return False
    return bool((targets == IGNORED).any())
