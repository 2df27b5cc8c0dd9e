"""Find the last linear layer: the one whose output the model returns."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from richbook.measure.capture.batches import first_floating, tensors_in
from richbook.measure.capture.hooks import floating_inputs, only_input
from richbook.measure.capture.models import Names
from richbook.measure.capture.positions import (
    Position,
    as_rows,
    features_come_last,
    positions_of,
)
from richbook.measure.capture.state import version
from richbook.measure.errors import RichbookError

PASS_HEAD = 'pass head="name" (any module that takes one tensor can be the head)'
TIED = "a head computed by F.linear, or a 1×1 convolution, is no torch.nn.Linear"


@dataclasses.dataclass
class LinearCall:
    """One call of a linear layer, kept by reference until the forward pass is over."""

    name: str
    module: nn.Module
    order: int
    inputs: Tensor | None
    output: Tensor | None
    input_version: int | None
    output_version: int | None
    input_shape: tuple[int, ...]
    output_dtype: torch.dtype
    layout: tuple
    storage: StorageWeakRef | None

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of what the layer returned."""
        return tuple(self.layout[0])

    def __str__(self) -> str:
        return f"{self.name!r} {self.input_shape} -> {self.output_shape}"


class LinearWatch:
    """Note the calls of all linear layers in one forward pass, and which of them is the head.

    Tensors are kept by reference, and let go as soon as the model has let go of a layer's output:
    it cannot be returned any more. So watching costs neither time nor memory to speak of.

    Example:
        >>> import torch
        >>> from richbook.measure.capture.hooks import hooked
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(),
        ...                             torch.nn.Linear(4, 2))
        >>> watch = LinearWatch(Names(model))
        >>> with torch.no_grad(), hooked(watch.modules, after=watch):
        ...     returned = model(torch.zeros(5, 3))
        >>> print(watch.head(returned))
        '2' (5, 4) -> (5, 2)
    """

    def __init__(self, names: Names, clock: itertools.count | None = None) -> None:
        self.names = names
        self.clock = clock if clock is not None else itertools.count()
        self.calls: list[LinearCall] = []
        self.held: list[LinearCall] = []  # those whose tensors may still be needed
        self.modules = [
            module
            for module, name in names.first.items()
            if isinstance(module, nn.Linear)
            and "parametrizations" not in name.split(".")
            and not names.inside(module, nn.TransformerEncoderLayer)
        ]

    def __call__(self, module: nn.Module, args: tuple, kwargs: dict, output: object) -> None:
        """The forward hook."""
        if not isinstance(output, Tensor):
            return
        inputs = next(iter(floating_inputs(args, kwargs)), None)
        if inputs is None:
            return
        if self.held:
            self.held[-1].output = None
        self.held = [call for call in self.held if not _let_go(call)]
        call = LinearCall(
            self.names.first[module], module, next(self.clock), inputs, output, version(inputs),
            version(output), tuple(inputs.shape), output.dtype,
            (output.shape, output.stride(), output.storage_offset()), _storage(output),
        )  # fmt: skip
        self.calls.append(call)
        self.held.append(call)

    def head(self, returned: object) -> LinearCall:
        """The call whose output is in what the model returned, or else the last call if it fits.

        Raises:
            RichbookError: no linear layer was called; several were returned, or none that fits.
                The message names the candidates in the order of their calls.
        """
        if not self.calls:
            raise RichbookError(
                "head: the forward pass calls no torch.nn.Linear"
                f"{self._hidden()}; {PASS_HEAD}; {TIED}"
            )
        tensors = {}
        for tensor in tensors_in(returned):
            storage = _storage(tensor)
            if storage is not None:
                tensors.setdefault(storage.cdata, tensor)
        found = [call for call in self.calls if call.storage and call.storage.cdata in tensors]
        if len({call.module for call in found}) > 1:
            raise RichbookError(
                f"head: the model returns the outputs of several linear layers, "
                f"{'; '.join(map(str, found))}; {PASS_HEAD}"
            )
        if found:
            call = found[-1]
            _take_from(call, tensors[call.storage.cdata])
        else:
            call = self._last_if_it_fits(returned)
        check_called_once(call.name, sum(call.module is other.module for other in self.calls))
        return call

    def _last_if_it_fits(self, returned: object) -> LinearCall:
        call = self.calls[-1]
        shapes = [tuple(tensor.shape) for tensor in tensors_in(returned)]
        for shape in shapes:
            if shape and (shape[-1] == call.output_shape[-1] or (*shape, 1) == call.output_shape):
                return call
        shown = "; ".join(map(str, self.calls[-8:]))
        raise RichbookError(
            f"head: the model returns {_shapes(shapes)}, which no linear layer gave and the last "
            f"one does not fit; called were {'... ' if len(self.calls) > 8 else ''}{shown}; "
            f"{PASS_HEAD}; {TIED}"
        )

    def _hidden(self) -> str:
        layers = [name for name, m in self.names.modules.items()
                  if isinstance(m, nn.TransformerEncoderLayer)]  # fmt: skip
        return " outside of its nn.TransformerEncoderLayers" if layers else ""


def _let_go(call: LinearCall) -> bool:
    """Drop a call's tensors if the model has dropped its output."""
    if call.storage is not None and not call.storage.expired():
        return False
    call.inputs = call.output = None
    return True


def _take_from(call: LinearCall, tensor: Tensor) -> None:
    """Get a call's output back from a returned tensor, which may be a view of a part of it."""
    if call.output is None and tensor.dtype == call.output_dtype:
        call.output = tensor.as_strided(*call.layout)


def is_unchanged(call: LinearCall) -> bool:
    """Whether a call's tensors are there and nobody wrote to them since."""
    return (
        call.inputs is not None
        and call.output is not None
        and version(call.inputs) == call.input_version
        and version(call.output) == call.output_version
    )


def check_called_once(name: str, calls: int) -> None:
    """Raise unless the head was called exactly once in a forward pass."""
    if calls > 1:
        raise RichbookError(
            f"head: {name!r} is called {calls} times in one forward pass, expected once; which "
            "call gives the features? Choose a module that is called once, or measure the inputs "
            "of one call at a time"
        )


class HeadRecorder:
    """The hooks of a known head: copies of its input, before the call, and of its output."""

    def __init__(
        self, name: str, module: nn.Module, position: Position, clock: Iterator[int]
    ) -> None:
        self.name, self.position, self.clock = name, position, clock
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
            values, self.position, what, channels_last=self.channels_last, layer=False
        )


def _storage(tensor: Tensor) -> StorageWeakRef | None:
    """What tells whether two tensors share memory; None for tensors that have none."""
    try:
        storage = tensor.untyped_storage()
        return StorageWeakRef(storage) if storage.nbytes() else None
    except (RuntimeError, NotImplementedError):  # nested and wrapped tensors
        return None


def _shapes(shapes: list[tuple[int, ...]]) -> str:
    return "no tensor" if not shapes else " and ".join(map(str, shapes[:6]))

