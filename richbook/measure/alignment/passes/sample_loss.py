"""From a loss over a batch to the loss of each of its samples."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from richbook.measure.capture.batches import tensors_in
from richbook.measure.errors import RichbookError

#: How far the gradient of a doubled batch may be from once or twice that of the batch.
TOLERANCE = 0.05


class SampleLoss:
    """The sum over a batch of the losses of its samples, whatever the loss makes of a batch.

    A loss that gives several numbers (``reduction="none"``) gives each sample's own: they are
    summed. One that gives a single number is either a mean over samples or a sum. Which, the batch
    written twice tells: the gradient of a sum is then twice what it was (the two copies taken
    together), that of a mean is what it was. A mean is multiplied by the number of samples.

    So the loss of a sample is its share in that of the batch. For a plain mean or sum that is what
    the loss gives for the sample alone. A weighted mean (class weights, padding left out) divides
    by the weights of the batch, as it does in training. What depends on the batch in some other way
    but not on its size (a contrastive loss, mostly) counts as a mean: −∂ℓ/∂h is then n times what a
    sample's h contributes.

    Args:
        loss: takes what the model returned and the targets, and returns a tensor.

    Example:
        >>> import torch
        >>> outputs = torch.zeros(4, 3, requires_grad=True)
        >>> for reduction in ("mean", "sum", "none"):
        ...     loss = SampleLoss(torch.nn.CrossEntropyLoss(reduction=reduction))
        ...     total = loss.total(outputs, torch.tensor([0, 1, 2, 0]), samples=4)
        ...     print(reduction, round(total.item(), 4))
        mean 4.3944
        sum 4.3944
        none 4.3944
    """

    def __init__(self, loss: Callable) -> None:
        if not callable(loss) or isinstance(loss, type):
            got = f"{loss!r}"
            if isinstance(loss, type):
                got = f"the class {loss.__name__}, not an instance"
            raise RichbookError(
                "loss: expected a function of (outputs, targets), such as "
                f"torch.nn.functional.cross_entropy, got {got}"
            )
        self.loss = loss
        self.is_mean: bool | None = None

    @property
    def ignored(self) -> int:
        """The label that the loss leaves out, −100 unless it says otherwise."""
        return getattr(self.loss, "ignore_index", -100)

    def total(self, outputs: object, targets: Tensor | None, samples: int) -> Tensor:
        """Σ_i ℓ_i, a scalar with a graph.

        Args:
            outputs: what the model returned.
            targets: what the loader gave.
            samples: how many samples the loss counts.

        Raises:
            RichbookError: a value that is no tensor, or does not depend on the outputs; a single
                number that is neither a mean nor a sum over samples.
        """
        value = self._value(outputs, targets)
        if not value.requires_grad:
            raise RichbookError("loss: its value does not depend on what the model returned")
        if value.ndim > 0 or samples == 1:
            return value.sum()
        if self.is_mean is None:
            self.is_mean = self._find_reduction(outputs, targets)
        return value * samples if self.is_mean else value

    def _value(self, outputs: object, targets: Tensor | None) -> Tensor:
        try:
            value = self.loss(outputs, targets)
        except (TypeError, AttributeError, ValueError, RuntimeError, IndexError) as error:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors_in(outputs))
            given = "no targets" if targets is None else f"targets {tuple(targets.shape)}"
            raise RichbookError(
                f"loss: called with outputs {shapes or type(outputs).__name__} and {given} it "
                f"raises {type(error).__name__}: {error}"
            ) from error
        if not isinstance(value, Tensor) or not value.is_floating_point():
            got = type(value).__name__ if not isinstance(value, Tensor) else value.dtype
            hint = "; pick the loss out of it" if isinstance(value, (tuple, list, Mapping)) else ""
            raise RichbookError(f"loss: expected a tensor of real numbers, got {got}{hint}")
        return value

    def _find_reduction(self, outputs: object, targets: Tensor | None) -> bool | None:
        """Whether the loss is a mean; None if no gradient tells."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what they say was said of the batch itself
            try:
                first, second = self._once_and_twice(outputs, targets, torch.float32)
            except RichbookError:  # a loss that insists on half precision
                first, second = self._once_and_twice(outputs, targets, torch.float16)
        size = first.square().sum()
        if not 0 < float(size) < float("inf"):
            return None  # nothing to go by; if it is nan, the layers' gradients say where
        ratio = float((first * second).sum() / size)
        rest = float((second - ratio * first).square().sum() / size) ** 0.5
        if rest < TOLERANCE and min(abs(ratio - 1), abs(ratio - 2)) < TOLERANCE:
            return abs(ratio - 1) < TOLERANCE
        raise RichbookError(
            "loss: expected a mean or a sum over samples, or one number a sample; with every "
            f"sample twice the gradient is {ratio:.3g} times what it was"
            + ("" if rest < TOLERANCE else " and points elsewhere")
            + ", where 1 or 2 was expected; does it compare samples with each other?"
        )

    def _once_and_twice(
        self, outputs: object, targets: Tensor | None, least: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """The gradient of a batch, and of the batch written twice (of both copies together)."""
        count = batch_size(outputs, targets)
        leaves: list[Tensor] = []

        def leaf(tensor: Tensor) -> Tensor:
            tensor = tensor.detach()
            if tensor.is_floating_point() and _sample_axis(tensor, count) is not None:
                if torch.finfo(tensor.dtype).bits < torch.finfo(least).bits:
                    tensor = tensor.to(least)  # a mean of many may be too small for half precision
                leaves.append(tensor.requires_grad_())
            return tensor

        def twice(tensor: Tensor) -> Tensor:
            axis = _sample_axis(tensor, count)
            return tensor if axis is None else torch.cat([tensor, tensor], dim=axis)

        with torch.enable_grad():
            once = mapped(outputs, leaf)
            doubled = mapped(once, twice), mapped(targets, twice)
            if not leaves:
                shapes = [tuple(tensor.shape) for tensor in tensors_in(outputs)]
                raise RichbookError(
                    f"loss: of outputs {shapes} and {count} samples it cannot be told whether it "
                    'is a mean; pass one with reduction="none"'
                )
            return tuple(_gradient(self._value(*given), leaves)
                         for given in ((once, targets), doubled))  # fmt: skip


def _gradient(value: Tensor, leaves: list[Tensor]) -> Tensor:
    found = torch.autograd.grad(value, leaves, allow_unused=True)
    pairs = zip(found, leaves, strict=True)
    filled = [torch.zeros_like(leaf) if part is None else part for part, leaf in pairs]
    return torch.cat([part.flatten().double().cpu() for part in filled])


def _sample_axis(tensor: Tensor, count: int) -> int | None:
    """The axis of samples: the first; the second behind tokens; or the first, of runs of tokens.

    Also the first where the samples are the tokens of sequences, (n, T, C) for n·T of them.
    """
    shape = tensor.shape
    if not shape or not shape[0]:
        return None
    if shape[0] != count and len(shape) > 2 and shape[1] == count:
        return 1
    tokens = any(shape[:axes].numel() == count for axes in range(2, len(shape)))
    return 0 if tokens or shape[0] % count == 0 else None


def batch_size(outputs: object, targets: Tensor | None) -> int:
    """The number of samples: of the targets if there are any, else of the first output."""
    if targets is not None and targets.ndim:
        return len(targets)
    return next((len(tensor) for tensor in tensors_in(outputs) if tensor.ndim), 1)


def mapped(value: object, function: Callable[[Tensor], Tensor]) -> object:
    """The same nest of containers with ``function`` applied to every tensor in it."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        made = copy.copy(value)
        for key in value:
            made[key] = mapped(value[key], function)
        return made
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(part, function) for part in value))
    if isinstance(value, (tuple, list)):
        return type(value)(mapped(part, function) for part in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        made = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(made, field.name, mapped(getattr(value, field.name), function))
        return made
    return value
