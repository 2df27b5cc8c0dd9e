"""The outputs of chosen layers, call by call, as rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from torch import Tensor, nn

from richbook.measure.capture.batches import Call, first_floating, tensors_in
from richbook.measure.capture.models import Names
from richbook.measure.capture.positions import (
    Position,
    as_rows,
    features_come_last,
    positions_of,
)
from richbook.measure.capture.unrelated import Unrelated
from richbook.measure.errors import RichbookError


class LayerOutputs:
    """Which layers to record, and what the first batch settled about them.

    Args:
        names: the model's modules.
        layers: None, "all", or names (or modules).
        position: as for :class:`ForwardPasses`.

    Example:
        >>> import torch
        >>> from richbook.measure.capture.hooks import hooked
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(inplace=True))
        >>> outputs = LayerOutputs(Names(model), ["0", "1"], None)
        >>> recorder = outputs.recorder()
        >>> with torch.no_grad(), hooked(outputs.modules, after=recorder):
        ...     _ = model(torch.ones(5, 3))
        >>> {name: tuple(rows.shape) for name, rows in outputs.settle(recorder, 5).items()}
        {'0': (5, 4), '1': (5, 4)}
    """

    def __init__(
        self, names: Names, layers: str | Iterable[str | nn.Module] | None, position: Position
    ) -> None:
        self.names, self.position = names, position
        self.every = layers == "all" if isinstance(layers, str) else False
        self.chosen = self._chosen(layers)
        self.keys: list[str] | None = None  # what the first batch gave, and in how many calls
        self.counts: dict[str, int] = {}
        self.modules = list(self.chosen)

    def _chosen(self, layers: object) -> dict[nn.Module, str]:
        if layers is None:
            return {}
        if self.every:
            return {module: name for name, module in self.names.with_activity().items()}
        if isinstance(layers, (str, nn.Module)):
            layers = [layers]
        if not isinstance(layers, Iterable):
            raise RichbookError(
                'layers: expected None, "all" or a list of names of modules, '
                f"got {type(layers).__name__}"
            )
        chosen: dict[nn.Module, str] = {}
        for wanted in layers:
            name, module = self.names.find(wanted, "layers")
            chosen.setdefault(module, name)
        return chosen

    def recorder(
        self, clock: itertools.count | None = None, call: Call | None = None
    ) -> LayerRecorder:
        """A forward hook for one pass over one batch, which notes its calls in order."""
        return LayerRecorder(self, clock if clock is not None else itertools.count(), call)

    def settle(
        self, recorder: LayerRecorder, rows: int, head: nn.Module | None = None, until: int = -1
    ) -> dict[str, Tensor]:
        """The recorded rows by name, "name#2" for a module's second call and so on.

        The first batch settles the names; for "all" they are the layers called before the head that
        give as many rows as the head, and were given something of the batch.

        Args:
            recorder: after the pass.
            rows: how many rows the head's input has.
            head: the head's module, which "all" leaves out.
            until: the head's place in the order of calls.

        Raises:
            RichbookError: a layer that was not called, one with another number of rows, or other
                calls than in the first batch.
        """
        found: dict[str, tuple[int, Tensor, nn.Module]] = {}
        counts: dict[str, int] = {}
        for order, module, values in recorder.calls:
            name = self.chosen[module]
            counts[name] = counts.get(name, 0) + 1
            key = name if counts[name] == 1 else f"{name}#{counts[name]}"
            found[key] = (order, values, module)
        if self.keys is None:
            self._settle_names(found, counts, rows, head, until)
        for name, before in self.counts.items():
            if counts.get(name, 0) != before:
                raise RichbookError(
                    f"layers: {name!r} is called {counts.get(name, 0)} times in this batch and "
                    f"{before} times in the first, expected the same in every batch"
                )
        for key in self.keys:
            if len(found[key][1]) != rows:
                raise RichbookError(
                    f"layers: {key!r} gives {len(found[key][1])} rows, "
                    f"{tuple(found[key][1].shape)}, and the head takes {rows}; expected the same "
                    "samples, batch first"
                )
        return {key: found[key][1] for key in self.keys}

    def _settle_names(
        self, found: dict, counts: dict, rows: int, head: nn.Module | None, until: int
    ) -> None:
        if not self.every:
            for module, name in self.chosen.items():
                if name not in counts:
                    why = self.names.why_uncalled(name, list(counts))
                    kind = type(module).__name__
                    raise RichbookError(f"layers: {name!r} ({kind}) was never called: {why}")
            self.keys, self.counts = list(found), counts
            return
        self.keys = [
            key
            for key, (order, values, module) in found.items()
            if module is not head and len(values) == rows and (until < 0 or order < until)
        ]
        kept = {found[key][2] for key in self.keys}
        self.modules = [module for module in self.modules if module in kept]
        self.counts = {self.chosen[module]: counts[self.chosen[module]] for module in kept}


class LayerRecorder:
    """The forward hook of one pass over one batch."""

    def __init__(
        self, outputs: LayerOutputs, clock: itertools.count, call: Call | None = None
    ) -> None:
        self.outputs, self.clock = outputs, clock
        self.attended = None if call is None else call.attended
        self.calls: list[tuple[int, nn.Module, Tensor]] = []
        self.unrelated = None
        if outputs.every and outputs.keys is None and call is not None:
            given = list(tensors_in((call.args, call.kwargs)))
            self.unrelated = Unrelated(outputs.names.modules[""], given)

    def __call__(self, module: nn.Module, args: tuple, kwargs: dict, output: object) -> None:
        """Keep a copy of the output's rows: what comes next may write into the output itself."""
        name = self.outputs.chosen[module]
        values = first_floating(output)
        if self._is_left_out(module, args, kwargs, output, values):
            return
        if values is None or values.ndim < 2:
            got = type(output).__name__ if values is None else f"shape {tuple(values.shape)}"
            raise RichbookError(
                f"layers: the output of {name!r} is {got}, expected real numbers (n, d), with one "
                "row a sample"
            )
        rows = as_rows(
            values, self.outputs.position, f"the output of {name!r}",
            channels_last=features_come_last(module), layer=True, attended=self.attended,
        )  # fmt: skip
        self.calls.append((next(self.clock), module, rows))

    def _is_left_out(
        self, module: nn.Module, args: tuple, kwargs: dict, output: object, values: Tensor | None
    ) -> bool:
        """What "all" is not about: no rows of numbers, other sequences, nothing of the batch."""
        if not self.outputs.every:
            return False
        if values is None or values.ndim < 2:
            return True
        if self.unrelated is not None and self.unrelated.notes((args, kwargs), output):
            return True
        has_positions = len(positions_of(values, features_come_last(module))) == 1
        return has_positions and self.attended is not None and not self.attended.fits(values)
