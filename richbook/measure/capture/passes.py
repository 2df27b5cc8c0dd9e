"""One pass over a loader: what the head takes and gives, batch by batch."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator

from torch import Tensor, nn

from richbook.measure.capture.batches import Call, as_call, checked_loader
from richbook.measure.capture.layers import LayerOutputs
from richbook.measure.capture.models import Names, checked_model, device_of
from richbook.measure.capture.positions import IGNORED, Position, checked_position, target_rows
from richbook.measure.capture.recorder import HeadRecorder
from richbook.measure.capture.runs import Runs
from richbook.measure.capture.state import (
    BufferKeeper,
    RandomStream,
    eager,
    evaluating,
    unfused,
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
    last one called, provided that what is returned is made of that layer's output alone: it is a
    copy, a softmax or a sigmoid of it; or else it orders each row as the layer does, and, in one
    more run with the samples of the layer's output exchanged, is exchanged likewise. Of two
    branches that are added, or a layer and its gate, none is the head. ``head_name`` says which it
    was.

    The model runs without gradients, eagerly if it is compiled, under the caller's autocast, and in
    eval mode unless ``train_mode``. Between batches, after the last one, and after an error it is
    as it was: mode, hooks, gradients, buffers; so are the random numbers of torch, numpy and
    Python. A generator that a loader was given for its own (``generator=``) moves on, as in any
    pass over that loader.

    Args:
        model: a ``torch.nn.Module``.
        loader: an iterable of batches: (inputs, targets), (inputs,), a tensor, or a dictionary
            whose "labels", "label", "targets", "target" or "y" are the targets and whose other
            entries are keyword arguments. Of a longer tuple the last is the targets. A dictionary's
            "attention_mask" (n, T), if there is one, also tells tokens from padding; for a model
            with a decoder it is "decoder_attention_mask". Batches move to the device of the model's
            first parameter; those without samples are skipped.
        head: the name of the head in ``model.named_modules()``, or the module, or None. Any module
            that takes one tensor can be the head.
        layers: names of modules whose outputs to record too; or "all": every module that has
            parameters of its own or is an activation, is called before the head, on more than
            positions, parameters and buffers, and gives as many rows. A module that is called
            several times gives "name", "name#2", and so on; one with several names has the first of
            them. Of a tuple the first tensor of real numbers counts.
        position: for tokens, tensors (n, T, d): an index such as 0 or -1, "mean" (averaged over
            positions) or "all" (each token is a sample). With an attention mask -1 is the last
            token of each sample before its padding, "mean" is over tokens, and "all" leaves padding
            out; an index from 0 on is taken as it is. Without a mask padding counts. The same
            position is taken of targets (n, T), and nothing is shifted: where the labels are the
            input tokens, as for many language models, the target of a row is the token that was
            read there, not the next one. With "mean", integer targets (n, T) are left out. For a
            head that takes maps (n, c, h, w): "mean" or "all". Other layers' maps are averaged over
            h and w unless it is "all". nn.Linear and nn.LayerNorm read maps as (n, h, w, c).
            Samples come first: not (T, n, d).
        train_mode: run with the modes as they are: batch norm takes the statistics of the batch,
            dropout drops.

    Rows whose integer label is −100 (what torch's losses ignore) are left out everywhere; so are
    rows with −100 among several integers. ``notes`` says in words what else was left out.

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
        self.layers = LayerOutputs(self.names, layers, self.position)
        self.notes: list[str] = []
        self._runs = Runs(self.model, self.names, self.layers, self.position, head)
        self.device = device_of(self.model)
        recorded = [*self.layers.modules, *([] if self.head is None else [self.head])]
        fused = (nn.TransformerEncoder, nn.TransformerEncoderLayer)
        self._unfused = any(self.names.inside(module, fused) for module in recorded)

    @property
    def head_name(self) -> str | None:
        """The head's path in ``named_modules()``; None until the first batch has found it."""
        return self._runs.head_name

    @property
    def head(self) -> nn.Module | None:
        """The head; None until the first batch has found it."""
        return self._runs.head

    def __iter__(self) -> Iterator[Batch]:
        """Run the model on each batch of the loader in turn."""
        modules = list(self.model.modules())
        buffers = BufferKeeper(modules)
        stream = RandomStream([] if self.device is None else [self.device])
        with stream.drawn():
            batches = iter(self.loader)
        seen = ran = yielded = False
        while True:
            with stream.drawn():
                try:
                    batch = next(batches)
                except StopIteration:
                    break
                seen, call = True, as_call(batch, self.device)
                if call.is_empty:
                    continue
                with self._model_as_found(modules, buffers):
                    rows = self._rows(call)
            ran = True
            if len(rows.features):
                yielded = True
                yield rows
        if not yielded:
            raise RichbookError(f"loader: it gave no {_what_is_missing(seen, ran)}")

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
        head, recorder = self._runs.run(call)
        features, outputs = head.rows()
        targets = self._targets(call, head, len(features))
        layers = self.layers.settle(recorder, len(features), self.head, head.order)
        layers = {name: values.to(features.device) for name, values in layers.items()}
        kept = _kept(call, head, targets, self.position, len(features))
        if kept is not None:
            kept = kept.to(features.device)
            features, outputs = features[kept], outputs[kept]
            targets = None if targets is None else targets[kept]
            layers = {name: values[kept] for name, values in layers.items()}
        return Batch(features, outputs, targets, layers)

    def _targets(self, call: Call, head: HeadRecorder, rows: int) -> Tensor | None:
        if call.targets is None:
            return None
        targets = target_rows(
            call.targets, self.position, head.samples, head.where, rows, call.attended
        )
        if targets is not None:
            return targets.to(head.features.device)
        note = (
            "targets at each position are labels, which cannot be averaged: they are left out; "
            'with position="all" or an index they count'
        )
        if note not in self.notes:
            self.notes.append(note)
        return None


def _kept(
    call: Call, head: HeadRecorder, targets: Tensor | None, position: Position, rows: int
) -> Tensor | None:
    """Which rows are neither padding nor without a label, (rows,); None for all."""
    kept = call.attended.kept(position, head.where, rows) if call.attended else None
    if call.has_ignored and targets is not None:
        labelled = targets != IGNORED
        labelled = labelled if labelled.ndim == 1 else labelled.all(1)
        kept = labelled if kept is None else labelled & kept.to(labelled.device)
    return kept


def _what_is_missing(seen: bool, ran: bool) -> str:
    """What to say of a loader that gave no row, from whether it gave a batch and one that ran."""
    if not seen:
        return "batch (a generator is used up after one pass)"
    if not ran:
        return "samples; every batch is empty"
    return "samples; every label is -100, which marks what to leave out, or all is padding"
