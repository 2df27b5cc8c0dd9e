"""Symmetric products valuesᵀ values of several groups, of which half is computed.

A panel is a strip of columns from the diagonal on: (groups, columns, d − start).
"""

from __future__ import annotations

from torch import Tensor


def empty_panels(groups: int, width: int, like: Tensor) -> list[Tensor]:
    """Zeros for products (groups, d, d), with the dtype and device of a tensor."""
    step = panel_columns(width)
    return [like.new_zeros(groups, min(step, width - a), width - a) for a in range(0, width, step)]


def add_product(values: Tensor, panels: list[Tensor]) -> None:
    """Add valuesᵀ values, of values (groups, k, d), to the panels.

    Example:
        >>> import torch
        >>> panels = empty_panels(1, 2, like=torch.zeros(()))
        >>> add_product(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), panels)
        >>> whole(panels, group=0).tolist()
        [[10.0, 14.0], [14.0, 20.0]]
    """
    step = panel_columns(values.shape[-1])
    for k, panel in enumerate(panels):
        rest = values[..., k * step :]
        panel.baddbmm_(rest[..., :step].mT, rest)


def whole(panels: list[Tensor], group: int) -> Tensor:
    """The matrix (d, d) of one group."""
    width = panels[0].shape[-1]
    matrix = panels[0].new_empty(width, width)
    start = 0
    for panel in panels:
        part = panel[group]
        stop = start + len(part)
        matrix[start:stop, start:] = part
        matrix[stop:, start:stop] = part[:, len(part) :].T
        start = stop
    return matrix


def panel_columns(width: int) -> int:
    """Columns a panel; narrow products are computed whole."""
    if width < 256:
        return width
    return 128 if width < 1024 else 256
