"""One forward and one backward pass a batch: what each linear layer takes, and the gradient there.

The gradient that autograd brings to a layer's output, of the sum of the samples' losses, has a row
for each sample: no loop over samples is needed. It is asked for at the layers' outputs alone, so
that parameters get none and those before the first layer cost nothing.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from richbook.measure.alignment.layers.linear_maps import LinearMap, linear_map
from richbook.measure.alignment.passes.checks import (
    check_finite_gradients,
    check_finite_loss,
    check_lengths,
)
from richbook.measure.alignment.passes.choice import chosen_layers, is_every, not_measured
from richbook.measure.alignment.passes.recording import Part, Recorder
from richbook.measure.alignment.passes.sample_loss import SampleLoss, batch_size
from richbook.measure.alignment.passes.samples import ignored_labels, kept_units, samples_of_units
from richbook.measure.alignment.passes.warning import warn_caller
from richbook.measure.capture.batches import Call, as_call, checked_loader
from richbook.measure.capture.models import Names, checked_model, device_of
from richbook.measure.capture.state import (
    BufferKeeper,
    RandomStream,
    eager,
    evaluating,
    unfused,
)
from richbook.measure.errors import RichbookError

#: Without being asked for, layers that take more numbers than this are left out.
WIDEST = 8192


@dataclass(frozen=True)
class LayerCall:
    """What one call of a linear layer took in one batch, and −∂ℓ/∂h_b there.

    A unit is a row, or for convolutions an image; ``rows`` makes matrices of any of them.

    Attributes:
        name: the layer, with "#2" for its second call in one forward pass, and so on.
        inputs: h_a by unit, (units, in) or (units, c, h, w).
        gradient: g_b by unit, (units, out) or (units, c', h', w').
        samples: the sample of the batch that each unit is a part of, or None where shapes do not
            tell.
        map: how the layer becomes a matrix.
    """

    name: str
    inputs: Tensor
    gradient: Tensor
    samples: Tensor | None
    map: LinearMap

    def rows(self, units: Tensor | slice = slice(None)) -> tuple[Tensor, Tensor]:
        """h_a (rows, in) and g_b (rows, out) of some units."""
        return self.map.inputs(self.inputs[units]), self.map.outputs(self.gradient[units])


class GradientPasses:
    """Run a model and its loss over a loader; yields a list of :class:`LayerCall` for each batch.

    The arguments are those of :func:`layer_moments`. Between batches, after the last one and after
    an error the model and all random numbers are as they were, and no graph is kept.

    Attributes:
        notes: which layers were left out, and why, once the first batch is in.

    Example:
        >>> import torch
        >>> layer = torch.nn.Linear(2, 1, bias=False)
        >>> loader = [(torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0]]))]
        >>> half_square = lambda outputs, targets: (outputs - targets).square().sum(1) / 2
        >>> ((call,),) = GradientPasses(layer, loader, half_square)
        >>> h_a, g_b = call.rows()
        >>> h_a, torch.equal(g_b, -layer(h_a))
        (tensor([[3., 4.]]), True)
    """

    def __init__(
        self,
        model: nn.Module,
        loader: Iterable,
        loss: Callable,
        layers: str | Iterable[str | nn.Module] | None = None,
        *,
        train_mode: bool = False,
    ) -> None:
        self.model, self.loader = checked_model(model), checked_loader(loader)
        self.loss, self.train_mode = SampleLoss(loss), train_mode
        self.names, self.device = Names(self.model), device_of(self.model)
        self.every, self.chosen = is_every(layers), chosen_layers(self.names, layers)
        self.maps = {layer: linear_map(layer) for layer in self.chosen}
        every = self.model.modules()
        self.attentions = [m for m in every if isinstance(m, nn.MultiheadAttention)]
        self.weights: dict[str, Tensor] = {}  # by call, in the order of the forward pass
        self.left_out: dict[str, str] = {}
        self.notes: list[str] = []

    def __iter__(self) -> Iterator[list[LayerCall]]:
        """Run the model and the loss on each batch of the loader in turn."""
        modules = list(self.model.modules())
        buffers = BufferKeeper(modules)
        stream = RandomStream([] if self.device is None else [self.device])
        with stream.drawn():
            batches = iter(self.loader)
        seen = False
        for number in itertools.count():
            with stream.drawn():
                try:
                    batch = next(batches)
                except StopIteration:
                    break
                with self._model_as_found(modules, buffers):
                    calls = self._calls(as_call(batch, self.device), number)
            if calls:
                if not seen and self.every:
                    for note in not_measured(self.names):
                        self._note(note)
                seen = True
                yield calls
                del calls  # nothing of a batch is kept while the next one runs
        if not seen:
            raise RichbookError(
                "loader: it gave no samples (a generator is used up after one pass)"
            )

    @contextlib.contextmanager
    def _model_as_found(self, modules: list[nn.Module], buffers: BufferKeeper) -> Iterator[None]:
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            buffers.kept(),
            evaluating([] if self.train_mode else modules),
            eager(),
            unfused(True),
        ):
            yield

    def _calls(self, call: Call, number: int) -> list[LayerCall]:
        recorder = Recorder(self.maps, self.chosen, self.weights, self.attentions)
        with recorder.watching():
            returned = self.model(*call.args, **call.kwargs)
        samples = batch_size(returned, call.targets)
        check_lengths(call, returned, samples)
        ignored = ignored_labels(call.targets, self.loss.ignored)
        count = samples if ignored is None else int((~ignored).reshape(samples, -1).any(1).sum())
        if not samples or not count:
            return []
        total = self.loss.total(returned, call.targets, count)
        check_finite_loss(self.model, call, number, recorder.calls, returned, total)
        edges = [part.edge for part in recorder.calls if part.edge is not None]
        found = iter(torch.autograd.grad(-total, edges, allow_unused=True) if edges else ())
        gradients = [None if part.edge is None else next(found) for part in recorder.calls]
        check_finite_gradients([part.name for part in recorder.calls], gradients)
        calls = [
            self._layer_call(part, gradient, samples, ignored)
            for part, gradient in zip(recorder.calls, gradients, strict=True)
            if self._is_measured(part, gradient)
        ]
        self._check_called(recorder)
        return calls

    def _layer_call(
        self, part: Part, gradient: Tensor | None, samples: int, ignored: Tensor | None
    ) -> LayerCall:
        if gradient is None:
            gradient = torch.zeros(part.shape, device=part.inputs.device)
        found, name = self.maps[part.layer], part.name
        where = samples_of_units(part.inputs, found, samples, part.tokens_first)
        inputs, gradient = found.units(part.inputs), found.units(gradient)
        if ignored is not None:
            kept = kept_units(ignored, part.inputs, found, where, name, part.tokens_first)
            inputs, gradient = inputs[kept], gradient[kept]
            where = None if where is None else where[kept]
        return LayerCall(name, _single(inputs), _single(gradient), where, found)

    def _is_measured(self, part: Part, gradient: Tensor | None) -> bool:
        """Settle at a call's first appearance whether it is measured; keep its weight if so."""
        if part.name in self.left_out:
            return False
        if part.name in self.weights:
            return True
        reason, width = part.problem, self.maps[part.layer].weight().shape[1]
        if reason is None and gradient is None:
            reason = (
                "no gradient reaches it: the loss does not depend on its output, or it is "
                "computed without gradients (torch.no_grad, detach, a reentrant checkpoint)"
            )
        if reason is None and self.every and width > WIDEST:
            reason = f"it takes {width} numbers, more than {WIDEST}; name it to have it measured"
        if reason is None:
            self.weights[part.name] = self.maps[part.layer].weight().clone()
            return True
        if not self.every:
            raise RichbookError(f"layers: {part.name!r} cannot be measured: {reason}")
        self.left_out[part.name] = reason
        self._note(f"{part.name!r} is left out: {reason}")
        return False

    def _note(self, text: str) -> None:
        self.notes.append(text)
        warn_caller(f"layers: {text}")

    def _check_called(self, recorder: Recorder) -> None:
        """After the first batch: every layer asked for was called, and some layer is measured."""
        if self.every and not self.weights:
            why = "; ".join(self.notes) or "the forward pass calls none of its linear layers"
            raise RichbookError(f"model: no layer can be measured: {why}")
        called = {name.partition("[")[0] for name in self.weights}  # some rows are enough
        for layer, name in self.chosen.items():
            if not self.every and name not in called:
                why = "the forward pass does not multiply by it"
                if isinstance(layer, nn.Module):
                    why = self.names.why_uncalled(name, list(self.weights))
                raise RichbookError(f"layers: {name!r} was never called: {why}")


def _single(values: Tensor) -> Tensor:
    """Half precision becomes single."""
    half = values.is_floating_point() and torch.finfo(values.dtype).bits <= 16
    return values.float() if half else values
