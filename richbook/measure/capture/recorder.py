"""Copy what a known head takes and gives, as rows."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from richbook.measure.capture.attended import Attended
from richbook.measure.capture.batches import first_floating
from richbook.measure.capture.hooks import only_input
from richbook.measure.capture.positions import (
    Position,
    as_rows,
    features_come_last,
    positions_of,
)
from richbook.measure.errors import RichbookError


class HeadRecorder:
    """The hooks of a known head: copies of its input, before the call, and of its output."""

    def __init__(
        self,
        name: str,
        module: nn.Module,
        position: Position,
        clock: Iterator[int],
        attended: Attended | None = None,
    ) -> None:
        self.name, self.position, self.clock = name, position, clock
        self.attended = attended
        self.channels_last = features_come_last(module)
        self.calls = 0
        self.samples, self.where, self.order = 0, (), -1
        self.features: Tensor | None = None
        self.outputs: Tensor | None = None

    def before(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        """The hook before the call."""
        self.calls += 1
        if self.calls == 1:
            self.order = next(self.clock)
            inputs = only_input(args, kwargs, self.name)
            self.features = self._rows(inputs, "input")
            self.samples, self.where = len(inputs), positions_of(inputs, self.channels_last)

    def after(self, module: nn.Module, args: tuple, kwargs: dict, output: object) -> None:
        """The hook after the call."""
        if self.outputs is None:
            values = first_floating(output)
            if values is None:
                raise RichbookError(
                    f"head: {self.name!r} returns {type(output).__name__}, expected real numbers"
                )
            self.outputs = self._rows(values, "output")

    def rows(self) -> tuple[Tensor, Tensor]:
        """Φ (rows, p) and f̂ (rows, C)."""
        if len(self.features) != len(self.outputs):
            raise RichbookError(
                f"head: {self.name!r} takes {len(self.features)} rows and gives "
                f"{len(self.outputs)}, expected as many; with positions, choose one of them"
            )
        return self.features, self.outputs

    def _rows(self, values: Tensor, which: str) -> Tensor:
        what = f"the {which} of the head {self.name!r}"
        return as_rows(
            values, self.position, what,
            channels_last=self.channels_last, layer=False, attended=self.attended,
        )  # fmt: skip


def check_called_once(name: str, calls: int) -> None:
    """Raise unless the head was called exactly once in a forward pass."""
    if calls > 1:
        raise RichbookError(
            f"head: {name!r} is called {calls} times in one forward pass, expected once; which "
            "call gives the features? Choose a module that is called once, or measure the inputs "
            "of one call at a time"
        )
