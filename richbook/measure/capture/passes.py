"""One pass over a loader: what the head takes and gives, batch by batch."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterable, Iterator

from torch import Tensor, nn

from richbook.measure.capture.batches import Call, as_call, checked_loader, tensors_in
from richbook.measure.capture.heads import LinearWatch, is_unchanged
from richbook.measure.capture.hooks import hooked
from richbook.measure.capture.layers import LayerOutputs, LayerRecorder
from richbook.measure.capture.models import Names, checked_model, device_of
from richbook.measure.capture.positions import IGNORED, checked_position, target_rows
from richbook.measure.capture.recorder import HeadRecorder, check_called_once
from richbook.measure.capture.state import (
    BufferKeeper,
    RandomStream,
    eager,
    evaluating,
    unfused,
    version,
    without_gradients,
)
from richbook.measure.errors import RichbookError


@dataclasses.dataclass(frozen=True)
class Batch:
    """What one batch gave, one row a sample: detached tensors on the model's device.

    Attributes:
        features: Φ, the input of the head, shape (rows, p).
        outputs: f̂, the output of the head, shape (rows, C).
        targets: shape (rows,) or (rows, k), or None if the loader gives none.
        layers: the outputs of the chosen layers, name -> (rows, width), in the order of the calls.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(),
        ...                             torch.nn.Linear(4, 2))
        >>> loader = [(torch.zeros(5, 3), torch.arange(5))]
        >>> batch = next(iter(ForwardPasses(model, loader, layers=["1"])))
        >>> batch.features.shape, batch.outputs.shape, batch.targets
        (torch.Size([5, 4]), torch.Size([5, 2]), tensor([0, 1, 2, 3, 4]))
        >>> torch.equal(batch.layers["1"], batch.features)
        True
    """

    features: Tensor
    outputs: Tensor
    targets: Tensor | None
    layers: dict[str, Tensor]


class ForwardPasses:
    """Run a model once over a loader and yield a :class:`Batch` for each of its batches.

    The head is the last linear layer: Φ is its input and f̂ its output. Unless it is named, the
    first batch finds it: of all ``torch.nn.Linear`` modules it is the one whose output the model
    returns, in a tensor, tuple, dictionary or dataclass. If none is returned as it is, it is the
    last one called, provided that what is returned orders each row as that layer does (it does
    after a softmax, a sigmoid, a cast). ``head_name`` says which it was.

    The model runs without gradients, eagerly if it is compiled, under the caller's autocast, and in
    eval mode unless ``train_mode``. Between batches, after the last one, and after an error it is
    as it was: mode, hooks, gradients, buffers; so are the random numbers of torch, numpy and
    Python.

    Args:
        model: a ``torch.nn.Module``.
        loader: an iterable of batches: (inputs, targets), (inputs,), a tensor, or a dictionary
            whose "labels", "label", "targets", "target" or "y" are the targets and whose other
            entries are keyword arguments. Of a longer tuple the last is the targets. Batches move
            to the device of the model's first parameter.
        head: the name of the head in ``model.named_modules()``, or the module, or None. Any module
            that takes one tensor can be the head.
        layers: names of modules whose outputs to record too; or "all": every module that has
            parameters of its own or is an activation, is called before the head and gives as many
            rows. A module that is called several times gives "name", "name#2", and so on; one with
            several names has the first of them. Of a tuple the first tensor of real numbers counts.
        position: for tokens, tensors (n, T, d): an index such as 0 or -1, "mean" (averaged over
            positions; padding counts) or "all" (each token is a sample). The same position is
            taken of targets (n, T). For a head that takes maps (n, c, h, w): "mean" or "all". Other
            layers' maps are averaged over h and w unless it is "all". nn.Linear and nn.LayerNorm
            read maps as (n, h, w, c). Samples come first: not (T, n, d).
        train_mode: run with the modes as they are: batch norm takes the statistics of the batch,
            dropout drops.

    Rows whose integer label is −100 (what torch's losses ignore) are left out everywhere.

    Raises:
        RichbookError: a model, loader, head, layer, position or targets that do not fit; the
            message says what to pass instead.

    Example:
        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(3, 16), torch.nn.ReLU(inplace=True), torch.nn.Linear(16, 2))
        >>> loader = [(torch.randn(8, 3), torch.arange(8) % 2), (torch.randn(5, 3), torch.ones(5))]
        >>> passes = ForwardPasses(model, loader, layers=["0"])
        >>> for batch in passes:
        ...     print(tuple(batch.features.shape), tuple(batch.outputs.shape), list(batch.layers))
        (8, 16) (8, 2) ['0']
        (5, 16) (5, 2) ['0']
        >>> passes.head_name
        '2'
    """

    def __init__(
        self,
        model: nn.Module,
        loader: Iterable,
        head: str | nn.Module | None = None,
        layers: str | Iterable[str | nn.Module] | None = None,
        *,
        position: int | str | None = None,
        train_mode: bool = False,
    ) -> None:
        self.model = checked_model(model)
        self.loader = checked_loader(loader)
        self.position = checked_position(position)
        self.train_mode = train_mode
        self.names = Names(self.model)
        self.head_name: str | None = None
        self.head: nn.Module | None = None
        if head is not None:
            self.head_name, self.head = self.names.find(head, "head")
        self.layers = LayerOutputs(self.names, layers, self.position)
        self.device = device_of(self.model)
        recorded = [*self.layers.modules, *([] if self.head is None else [self.head])]
        fused = (nn.TransformerEncoder, nn.TransformerEncoderLayer)
        self._unfused = any(self.names.inside(module, fused) for module in recorded)

    def __iter__(self) -> Iterator[Batch]:
        """Run the model on each batch of the loader in turn."""
        modules = list(self.model.modules())
        buffers = BufferKeeper(modules)
        stream = RandomStream([] if self.device is None else [self.device])
        with stream.drawn():
            batches = iter(self.loader)
        seen = yielded = False
        while True:
            with stream.drawn():
                try:
                    batch = next(batches)
                except StopIteration:
                    break
                with self._model_as_found(modules, buffers):
                    rows = self._rows(as_call(batch, self.device))
            seen = True
            if len(rows.features):
                yielded = True
                yield rows
        if not yielded:
            raise RichbookError(
                "loader: it gave no samples; every label is -100, which marks what to leave out"
                if seen
                else "loader: it gave no batch (a generator is used up after one pass)"
            )

    @contextlib.contextmanager
    def _model_as_found(self, modules: list[nn.Module], buffers: BufferKeeper) -> Iterator[None]:
        with (
            without_gradients(),
            buffers.kept(),
            evaluating([] if self.train_mode else modules),
            eager(),
            unfused(self._unfused),
        ):
            yield

    def _rows(self, call: Call) -> Batch:
        head, recorder = self._searched(call) if self.head is None else self._recorded(call)
        features, outputs = head.rows()
        targets = call.targets
        if targets is not None:
            targets = target_rows(targets, self.position, head.samples, head.where, len(features))
            targets = targets.to(features.device)
        layers = self.layers.settle(recorder, len(features), self.head, head.order)
        layers = {name: values.to(features.device) for name, values in layers.items()}
        if call.has_ignored and targets.ndim == 1:
            kept = targets != IGNORED
            features, outputs, targets = features[kept], outputs[kept], targets[kept]
            layers = {name: values[kept] for name, values in layers.items()}
        return Batch(features, outputs, targets, layers)

    def _recorded(self, call: Call) -> tuple[HeadRecorder, LayerRecorder]:
        """Run the model and copy what the known head takes and gives."""
        clock = itertools.count()
        head = HeadRecorder(self.head_name, self.head, self.position, clock)
        layers = self.layers.recorder(clock)
        with (
            hooked(self.layers.modules, after=layers),
            hooked([self.head], before=head.before, after=head.after),
        ):
            self.model(*call.args, **call.kwargs)
        if head.calls == 0:
            why = self.names.why_uncalled(self.head_name, [])
            raise RichbookError(f"head: {self.head_name!r} was never called: {why}")
        check_called_once(self.head_name, head.calls)
        return head, layers

    def _searched(self, call: Call) -> tuple[HeadRecorder, LayerRecorder]:
        """Run the model, find the head, and take what it took and gave from the same run."""
        clock = itertools.count()
        watch, layers = LinearWatch(self.names, clock), self.layers.recorder(clock)
        given = [(tensor, version(tensor)) for tensor in tensors_in((call.args, call.kwargs))]
        with hooked(self.layers.modules, after=layers), hooked(watch.modules, after=watch):
            returned = self.model(*call.args, **call.kwargs)
        found = watch.head(returned)
        self.head_name, self.head = found.name, found.module
        if is_unchanged(found):
            head = HeadRecorder(found.name, found.module, self.position, iter([found.order]))
            head.before(found.module, (found.inputs,), {})
            head.after(found.module, (), {}, found.output)
            return head, layers
        # something wrote into the head's input or output after the call: run again and copy
        if any(version(tensor) != before for tensor, before in given):
            raise RichbookError(
                f"head: the model writes into its own inputs; pass head={found.name!r}"
            )
        return self._recorded(call)
