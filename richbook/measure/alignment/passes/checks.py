"""What is wrong with a batch, a model or a loss, said of the first thing that is."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from richbook.measure.alignment.passes.recording import Part
from richbook.measure.capture.batches import Call, tensors_in
from richbook.measure.errors import RichbookError


def check_lengths(call: Call, returned: object, samples: int) -> None:
    """Raise if a batch has another number of targets than of inputs.

    Losses that broadcast would pass over it. Targets may count tokens, and tokens may come first.

    Args:
        call: the batch.
        returned: what the model made of it.
        samples: the number of targets.

    Example:
        >>> call = Call((torch.zeros(40, 3),), {}, torch.zeros(1, 4), False)
        >>> check_lengths(call, torch.zeros(40, 4), 1)
        Traceback (most recent call last):
            ...
        richbook.measure.errors.RichbookError: targets: got 1 of them, shape (1, 4), for inputs ...
    """
    if call.targets is None or not call.targets.ndim:
        return
    inputs = [tensor for tensor in tensors_in((call.args, call.kwargs)) if tensor.ndim]
    outputs = [tensor for tensor in tensors_in(returned) if tensor.ndim]
    counts = {size for tensor in inputs for size in tensor.shape[:2]}
    for tensor in outputs:
        counts |= {tensor.shape[:axis].numel() for axis in range(1, tensor.ndim + 1)}
        counts |= set(tensor.shape[:2])
    if inputs and outputs and samples not in counts:
        raise RichbookError(
            f"targets: got {samples} of them, shape {tuple(call.targets.shape)}, for inputs of "
            f"shape {_shapes(inputs)} and outputs of shape {_shapes(outputs)}; expected one a "
            "sample"
        )


def _shapes(tensors: list[Tensor]) -> str:
    return ", ".join(str(tuple(tensor.shape)) for tensor in tensors)


def check_finite_parameters(model: nn.Module) -> None:
    """Raise if training diverged, and a parameter or a buffer holds nan or an infinity.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> _ = layer.bias.detach().fill_(torch.nan)
        >>> check_finite_parameters(layer)
        Traceback (most recent call last):
            ...
        richbook.measure.errors.RichbookError: model: its parameter 'bias' contains nan or an ...
    """
    for kind, found in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, tensor in found:
            if not _is_finite(tensor) and not _is_mask(tensor):
                raise RichbookError(
                    f"model: its {kind} {name!r} contains nan or an infinity, expected finite "
                    "numbers; did training diverge?"
                )


def _is_mask(tensor: Tensor) -> bool:
    """Attention masks are of zeros and minus infinities."""
    return bool(((tensor == 0) | (tensor == -torch.inf)).all())


def check_finite_loss(
    model: nn.Module, call: Call, number: int, parts: list[Part], returned: object, total: Tensor
) -> None:
    """Raise if the loss of a batch is not finite; the message names where that began.

    Args:
        model: that ran.
        call, number: the batch, and its place in the loader from 0 on.
        parts: the calls of the model's linear layers, in order.
        returned: what the model made of it.
        total: the summed loss.
    """
    if bool(total.detach().isfinite()):
        return
    check_finite_parameters(model)
    _check_batch((call.args, call.kwargs), f"loader: the inputs of batch {number}")
    _check_batch(call.targets, f"loader: the targets of batch {number}")
    found = [f"the layer {part.name!r} takes" for part in parts if not _is_finite(part.inputs)]
    if not all(map(_is_finite, tensors_in(returned))):
        found.append("it returns")
    if found:
        raise RichbookError(
            f"model: what {found[0]} is not finite, although its parameters and inputs are; did "
            "numbers overflow?"
        )
    if torch.finfo(total.dtype).bits > 16:  # in half precision the sum alone may overflow
        raise RichbookError(
            f"loss: its value on batch {number} is {float(total.detach()):g}, although what the "
            "model returned and the targets are finite"
        )


def _check_batch(values: object, what: str) -> None:
    for tensor in tensors_in(values):
        if not _is_finite(tensor) and not _is_mask(tensor):
            rows = (~tensor.isfinite()).reshape(len(tensor), -1).any(1).nonzero()[:, 0]
            kind = "nan" if bool(tensor.isnan().any()) else "an infinity"
            raise RichbookError(
                f"{what} contain {kind}, first in sample {int(rows[0])} ({len(rows)} of "
                f"{len(tensor)} do), expected finite numbers"
            )


def check_finite_gradients(names: Iterable[str], gradients: list[Tensor | None]) -> None:
    """Raise if gradients of a finite loss are not finite, naming the layer nearest to the loss.

    The first layer's are looked at: what went wrong later in the network has come back to it.
    Where it has not, because a mask was between, the moments will say so.

    Example:
        >>> check_finite_gradients(["0", "2"], [torch.tensor([torch.nan])] * 2)
        Traceback (most recent call last):
            ...
        richbook.measure.errors.RichbookError: loss: its gradient at the output of the layer '2' ...
    """
    reached = [
        (name, grad) for name, grad in zip(names, gradients, strict=True) if grad is not None
    ]
    if not reached or bool(reached[0][1].sum(dtype=torch.float32).isfinite()):
        return
    bad = [name for name, gradient in reached if not _is_finite(gradient)]
    if bad:
        raise RichbookError(
            f"loss: its gradient at the output of the layer {bad[-1]!r} contains nan or an "
            "infinity, although its value is finite; a root or a norm at 0 has such a gradient, "
            "and so has what overflows in half precision"
        )


def _is_finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(tensor.detach().isfinite().all())
