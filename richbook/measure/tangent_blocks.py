"""Cutting the Jacobian of a network into blocks of rows that fit a budget of memory.

The derivative of one output at one sample takes as much memory as the parameters. A block is some
samples and some outputs. Where one block cannot hold them all, every two are multiplied, and all
but one of the two are computed again for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from richbook.measure.errors import RichbookError

MEBIBYTE = 2**20
#: A block and the activations behind it take this often their size while the block is made.
IN_THE_MAKING = 2
#: The share of the budget that float64 copies of some columns of two blocks may take.
COPIES = 1 / 8


@dataclass(frozen=True)
class Block:
    """Some samples, some outputs, and the rows and columns of the kernel that they fill."""

    samples: slice
    outputs: slice
    rows: slice

    @classmethod
    def first(cls, block: Block, outputs: str) -> Block:
        """What the rows of a kernel are counted from: the first sample, and of "all" outputs the
        first one, since those share one mean."""
        return cls(slice(0, 1), slice(0, 1) if outputs == "all" else block.outputs, slice(0, 0))


class Rows(Protocol):
    """What a plan needs to know of the rows: how many samples and outputs, and what one takes."""

    name: str
    count: int
    width: int
    size: int
    running: int


def plan(rows: Rows, memory: float, outputs: str) -> list[list[Block]]:
    """Groups of blocks: within a group every two are multiplied, over groups the products add up.

    "all" is one group; "trace" has one for every few outputs. One block, if possible, else two at a
    time and a third in the making. The two kernels, a product and the first row are held as well.

    Raises:
        RichbookError: the smallest possible block does not fit.
    """
    count, width, size = rows.count, rows.width, rows.size
    kernels = 3 * 8 * (count * width if outputs == "all" else count) ** 2
    room = memory * (1 - COPIES) - kernels
    making = IN_THE_MAKING * (size + rows.running)  # bytes a row, while its block is made
    if room < size + size + making:
        takes = (kernels + 2 * size + making) / (1 - COPIES) / MEBIBYTE
        other = " or outputs='trace'" if outputs == "all" else ""
        raise RichbookError(
            f"memory: the kernels and one row at a time of the Jacobian of {rows.name} take "
            f"{takes:.3g} MiB, got {memory / MEBIBYTE:.3g} MiB; "
            f"give more memory, fewer inputs{other}"
        )
    part = int((room - size) // (size + making))  # rows a block, if there are two
    everything = slice(0, count)
    if outputs == "all":
        if room >= size + making * count * width:
            return [[Block(everything, slice(0, width), slice(0, count * width))]]
        return [
            [
                Block(samples, chosen, _rows(samples, chosen, width))
                for samples in _slices(count, max(1, part // width))
                for chosen in _slices(width, min(part, width))
            ]
        ]
    some = int(room // (size + making * count))  # outputs at a time, with all samples
    if some:
        return [[Block(everything, chosen, everything)] for chosen in _slices(width, some)]
    return [
        [Block(samples, chosen, samples) for samples in _slices(count, part)]
        for chosen in _slices(width, 1)
    ]


def _slices(total: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, total)) for start in range(0, total, step)]


def _rows(samples: slice, outputs: slice, width: int) -> slice:
    """Rows (sample, output) in order: several samples with all outputs, or one with some."""
    start = samples.start * width + outputs.start
    return slice(start, start + (samples.stop - samples.start) * (outputs.stop - outputs.start))
