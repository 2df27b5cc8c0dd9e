"""Find the last linear layer: the one whose output the model returns."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from richbook.measure.capture.batches import tensors_in
from richbook.measure.capture.follows import aligned, keeps_order, usual_function
from richbook.measure.capture.hooks import floating_inputs
from richbook.measure.capture.models import Names
from richbook.measure.capture.recorder import check_called_once
from richbook.measure.capture.state import storage_of, version
from richbook.measure.errors import RichbookError

PASS_HEAD = 'pass head="name" (any module that takes one tensor can be the head)'
TIED = (
    "a head computed by F.linear, or a 1×1 convolution, is no torch.nn.Linear; features and the "
    "weight of a head that is tied to an embedding go to richbook.d_lr_from_head(features, weight)"
)


@dataclasses.dataclass(eq=False)
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


@dataclasses.dataclass
class Found:
    """The call that was taken for the head's, and what makes it so.

    Attributes:
        call: of a linear layer.
        place: which of the tensors in what the model returned is its output, or made of it.
        function: of the output is returned; None if that is not known.
        is_certain: whether nothing but the output can be in what is returned.
    """

    call: LinearCall
    place: int
    function: Callable | None
    is_certain: bool


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
        >>> print(watch.head(returned).call)
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
            (output.shape, output.stride(), output.storage_offset()), storage_of(output),
        )  # fmt: skip
        self.calls.append(call)
        self.held.append(call)

    def head(self, returned: object) -> Found:
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
        tensors = list(tensors_in(returned))
        places = {}
        for place, tensor in enumerate(tensors):
            storage = storage_of(tensor)
            if storage is not None:
                places.setdefault(storage.cdata, place)
        given = [call for call in self.calls if call.storage and call.storage.cdata in places]
        last = None if self.calls[-1] in given else self._last_if_it_fits(tensors)
        candidates = given
        if last and (not given or is_written_once(last.call)):
            candidates = [*given, last.call]
        if len({call.module for call in candidates}) > 1:
            raise RichbookError(
                f"head: the model returns the outputs of several linear layers, "
                f"{'; '.join(map(str, candidates))}; {PASS_HEAD}"
            )
        if given:
            call = given[-1]
            place = places[call.storage.cdata]
            _take_from(call, tensors[place])
            found = Found(call, place, None, is_written_once(call))
        elif last:
            found = last
        else:
            raise self.misfit(tensors, "no linear layer gave and the last one does not fit")
        name, module = found.call.name, found.call.module
        check_called_once(name, sum(call.module is module for call in self.calls))
        return found

    def _last_if_it_fits(self, tensors: list[Tensor]) -> Found | None:
        """The last call, if something returned can have been made of its output row by row."""
        call = self.calls[-1]
        written_once = is_written_once(call)
        for place, tensor in enumerate(tensors if written_once else ()):
            function = usual_function(call.output, tensor)
            if function is not None:
                return Found(call, place, function, True)
        fits = keeps_order if written_once else aligned  # else there is nothing to compare with
        for place, tensor in enumerate(tensors):
            if fits(call.output, tensor):
                return Found(call, place, None, False)
        return None

    def misfit(self, tensors: list[Tensor], why: str) -> RichbookError:
        """An error about what the model returns, with the candidates."""
        shown = "; ".join(map(str, self.calls[-8:]))
        return RichbookError(
            f"head: the model returns {_shapes(tensors)}, which {why}; called were "
            f"{'... ' if len(self.calls) > 8 else ''}{shown}; {PASS_HEAD}; {TIED}"
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


def is_written_once(call: LinearCall) -> bool:
    """Whether a call's output is there and nobody wrote to it since."""
    return call.output is not None and version(call.output) == call.output_version


def is_unchanged(call: LinearCall) -> bool:
    """Whether a call's tensors are there and nobody wrote to them since."""
    return (
        call.inputs is not None
        and version(call.inputs) == call.input_version
        and is_written_once(call)
    )


def _shapes(tensors: list[Tensor]) -> str:
    return " and ".join(str(tuple(tensor.shape)) for tensor in tensors[:6]) or "no tensor"
