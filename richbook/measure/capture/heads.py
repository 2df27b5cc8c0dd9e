"""Find the last linear layer: the one whose output the model returns."""

from __future__ import annotations

import dataclasses
import itertools

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from richbook.measure.capture.batches import tensors_in
from richbook.measure.capture.hooks import floating_inputs
from richbook.measure.capture.models import Names
from richbook.measure.capture.recorder import check_called_once
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
        """The last call, if what is returned can have been made of its output row by row."""
        call, tensors = self.calls[-1], list(tensors_in(returned))
        if any(_keeps_order(call, tensor) for tensor in tensors):
            return call
        shown = "; ".join(map(str, self.calls[-8:]))
        raise RichbookError(
            f"head: the model returns {_shapes(tensors)}, which no linear layer gave and the last "
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


def _keeps_order(call: LinearCall, returned: Tensor) -> bool:
    """Whether rows of ``returned`` rise where the output of a call does, at all or one position.

    So they do after a softmax, a sigmoid, a cast or a division by a temperature. After a layer norm
    or a sum they do not: then the call is not the head, but a layer that happens to be as wide.
    """
    output = call.output.detach()
    if returned.shape == output.shape[:-1] and output.shape[-1] == 1:
        return returned.is_floating_point()
    if returned.ndim == output.ndim - 1:
        returned = returned.unsqueeze(1)  # one of several positions
    if not returned.is_floating_point() or returned.ndim != output.ndim or output.ndim < 2:
        return False
    if returned.shape[-1] != output.shape[-1] or returned.shape[0] != output.shape[0]:
        return False
    try:
        values = returned.detach().expand_as(output)
    except RuntimeError:
        return False
    if version(call.output) != call.output_version:
        return True  # overwritten since: there is nothing to compare with
    some = (slice(0, 64), ..., slice(None, None, -(-output.shape[-1] // 64)))  # sorting takes time
    ordered = values[some].float().gather(-1, output[some].argsort(-1).to(values.device))
    fall = (ordered.cummax(-1).values - ordered).amax(-1)  # 0 in exact arithmetic
    fits = (fall <= 0.01 * (ordered.amax(-1) - ordered.amin(-1))) | fall.isnan()
    return bool(fits.all(0).any() if values.shape != returned.shape else fits.all())


def is_unchanged(call: LinearCall) -> bool:
    """Whether a call's tensors are there and nobody wrote to them since."""
    return (
        call.inputs is not None
        and call.output is not None
        and version(call.inputs) == call.input_version
        and version(call.output) == call.output_version
    )


def _storage(tensor: Tensor) -> StorageWeakRef | None:
    """What tells whether two tensors share memory; None for tensors that have none."""
    try:
        storage = tensor.untyped_storage()
        return StorageWeakRef(storage) if storage.nbytes() else None
    except (RuntimeError, NotImplementedError):  # nested and wrapped tensors
        return None


def _shapes(tensors: list[Tensor]) -> str:
    return " and ".join(str(tuple(tensor.shape)) for tensor in tensors[:6]) or "no tensor"

