"""One run of a model on one batch, and what its head took and gave in it."""

from __future__ import annotations

import itertools

from torch import Tensor, nn

from richbook.measure.capture.batches import Call, tensors_in
from richbook.measure.capture.calling import called
from richbook.measure.capture.follows import Exchange, usual_function
from richbook.measure.capture.heads import (
    Found,
    LinearWatch,
    is_unchanged,
    is_written_once,
)
from richbook.measure.capture.hooks import hooked
from richbook.measure.capture.layers import LayerOutputs, LayerRecorder
from richbook.measure.capture.models import Names
from richbook.measure.capture.positions import Position
from richbook.measure.capture.recorder import HeadRecorder, check_called_once
from richbook.measure.capture.state import version
from richbook.measure.errors import RichbookError


class Runs:
    """Runs a model on batches; the first one finds the head unless it is known.

    Args:
        model: to run; what a run changes about it is the caller's business.
        names: its modules.
        layers: which to record beside the head.
        position: as for :class:`ForwardPasses`.
        head: a name or module, or None.

    Example:
        >>> import torch
        >>> from richbook.measure.capture.batches import as_call
        >>> model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        >>> names = Names(model)
        >>> runs = Runs(model, names, LayerOutputs(names, None, None), None, None)
        >>> with torch.no_grad():
        ...     head, layers = runs.run(as_call(torch.zeros(5, 3), None))
        >>> runs.head_name, [tuple(values.shape) for values in head.rows()]
        ('2', [(5, 4), (5, 2)])
    """

    def __init__(
        self,
        model: nn.Module,
        names: Names,
        layers: LayerOutputs,
        position: Position,
        head: str | nn.Module | None,
    ) -> None:
        self.model, self.names, self.layers, self.position = model, names, layers, position
        self.head_name: str | None = None
        self.head: nn.Module | None = None
        if head is not None:
            self.head_name, self.head = names.find(head, "head")

    def run(self, call: Call) -> tuple[HeadRecorder, LayerRecorder]:
        """Run the model and copy what the head takes and gives."""
        return self._searched(call) if self.head is None else self._recorded(call)

    def _recorded(self, call: Call) -> tuple[HeadRecorder, LayerRecorder]:
        clock = itertools.count()
        head = self._recorder(call, clock)
        layers = self.layers.recorder(clock, call)
        with (
            hooked(self.layers.modules, after=layers),
            hooked([self.head], before=head.before, after=head.after),
        ):
            called(self.model, call)
        if head.calls == 0:
            why = self.names.why_uncalled(self.head_name, [])
            raise RichbookError(f"head: {self.head_name!r} was never called: {why}")
        check_called_once(self.head_name, head.calls)
        return head, layers

    def _searched(self, call: Call) -> tuple[HeadRecorder, LayerRecorder]:
        """Find the head, and take what it took and gave from the same run."""
        clock = itertools.count()
        watch, layers = LinearWatch(self.names, clock), self.layers.recorder(clock, call)
        given = [(tensor, version(tensor)) for tensor in tensors_in((call.args, call.kwargs))]
        with hooked(self.layers.modules, after=layers), hooked(watch.modules, after=watch):
            returned = list(tensors_in(called(self.model, call)))
        found = watch.head(returned)
        linear, unchanged = found.call, is_unchanged(found.call)
        if not (found.is_certain and unchanged):  # the model must run again
            if any(version(tensor) != before for tensor, before in given):
                raise RichbookError(
                    f"head: the model writes into its own inputs; pass head={linear.name!r}"
                )
        if not found.is_certain and not self._follows(call, found, returned[found.place]):
            raise watch.misfit(returned, _why_not(found))
        self.head_name, self.head = linear.name, linear.module
        if not unchanged:  # something wrote into the head's input or output after the call
            return self._recorded(call)
        head = self._recorder(call, iter([linear.order]))
        head.before(linear.module, (linear.inputs,), {})
        head.after(linear.module, (), {}, linear.output)
        self._check_picked(head, found, returned[found.place])
        return head, layers

    def _recorder(self, call: Call, clock: itertools.count) -> HeadRecorder:
        return HeadRecorder(self.head_name, self.head, self.position, clock, call.attended)

    def _follows(self, call: Call, found: Found, returned: Tensor) -> bool:
        """Whether what is returned is made of the found layer's output alone: run again to see."""
        linear = found.call
        exchange = Exchange(linear.module, linear.output if is_written_once(linear) else None)
        with exchange.made():
            again = list(tensors_in(called(self.model, call)))
        exchanged = again[found.place] if found.place < len(again) else None
        return exchange.explains(returned, exchanged)

    def _check_picked(self, head: HeadRecorder, found: Found, returned: Tensor) -> None:
        """Raise if the model returns its outputs at other tokens than those that count."""
        from_the_end = isinstance(self.position, int) and self.position < 0
        if not from_the_end or found.function is None or returned.numel() != head.outputs.numel():
            return
        if usual_function(head.outputs, returned) is None:
            raise RichbookError(
                f"position: the model returns the output of {self.head_name!r} at other positions "
                f"than {self.position}; if some are padding, give batches that are dictionaries "
                f"with an attention_mask; to measure at {self.position} all the same, "
                f"pass head={self.head_name!r}"
            )


def _why_not(found: Found) -> str:
    """What to say if what is returned does not follow from the layer that came last."""
    if found.call.output_shape[0] < 2:
        return (
            f"may be made of the output of {found.call.name!r} alone or not: one sample does not "
            "tell; let the first batch be larger"
        )
    return f"does not follow from the output of {found.call.name!r} alone"
