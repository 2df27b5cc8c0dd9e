"""The weight and the bias that a head really applies, whatever kind of module it is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from richbook.measure.capture.state import (
    BufferKeeper,
    RandomStream,
    eager,
    evaluating,
    without_gradients,
)
from richbook.measure.inputs import to_float64

#: Samples on which the weight is compared with what the head returned.
COMPARED = 64


def affine_map(
    head: nn.Module, features: Tensor, outputs: Tensor
) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """W (C, p) and b (C,) with outputs = ΦWᵀ + b, or None twice if the head does something else.

    A plain ``nn.Linear`` has them. Any other module (an adapter around a linear layer, a quantised
    or normalised one) is asked for the images of 0 and of the unit vectors. Either way they must
    reproduce, up to rounding, the outputs that the head gave for these features.

    Example:
        >>> wrapped = nn.Sequential(nn.Linear(3, 2))
        >>> features = torch.rand(5, 3)
        >>> weight, bias = affine_map(wrapped, features, wrapped(features).detach())
        >>> bool(torch.allclose(weight, wrapped[0].weight, atol=1e-6))
        True
        >>> affine_map(nn.Tanh(), features, features.tanh())
        (None, None)
    """
    with _untouched(head, features.device):
        try:
            weight, bias = _asked(head, features, outputs.shape[1])
        except Exception:  # noqa: BLE001 - a module that takes no unit vectors is not affine in them
            return None, None
        if weight.shape != (outputs.shape[1], features.shape[1]):
            return None, None
        rows = slice(0, COMPARED)
        exact = [to_float64(part) for part in (features[rows], weight, bias, outputs[rows])]
        error = (exact[0] @ exact[1].T + exact[2] - exact[3]).abs()
        size = exact[0].abs() @ exact[1].abs().T + exact[2].abs()
        narrow = max((outputs, weight), key=lambda part: torch.finfo(part.dtype).eps)
        if bool((error <= 8 * torch.finfo(narrow.dtype).eps * size).all()):
            return weight, bias
    return None, None


def _asked(head: nn.Module, features: Tensor, outputs: int) -> tuple[Tensor, Tensor]:
    if type(head) is nn.Linear and not is_parametrized(head):
        weight = head.weight.detach()
        bias = weight.new_zeros(outputs) if head.bias is None else head.bias.detach()
        return weight, bias
    unit = torch.eye(features.shape[1], dtype=features.dtype, device=features.device)
    bias = head(torch.zeros_like(unit[:1]))[0]
    return (head(unit) - bias).T.contiguous(), bias


@contextlib.contextmanager
def _untouched(head: nn.Module, device: torch.device) -> Iterator[None]:
    """The head in eval mode, without gradients, and afterwards as it was."""
    modules = list(head.modules())
    with contextlib.ExitStack() as stack:
        stack.enter_context(RandomStream([device]).drawn())
        stack.enter_context(BufferKeeper(modules).kept())
        stack.enter_context(evaluating(modules))
        stack.enter_context(without_gradients())
        stack.enter_context(eager())
        yield
