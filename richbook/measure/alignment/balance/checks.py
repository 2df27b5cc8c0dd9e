"""Where the stationarity identities do not apply, in words."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import parametrize

from richbook.measure.errors import RichbookError


def checked_number(value: object, name: str, low: float, high: float, *, closed: bool) -> float:
    """A number above ``low`` (from ``low`` on if ``closed``) and below ``high``.

    Example:
        >>> checked_number(0.9, "momentum", 0, 1, closed=True)
        0.9
        >>> checked_number(0, "learning_rate", 0, float("inf"), closed=False)
        Traceback (most recent call last):
            ...
        richbook.measure.errors.RichbookError: learning_rate: expected a finite number above 0, ...
    """
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and (low < value < high or closed and value == low):
        return float(value)
    kind = "a finite number" if high == float("inf") else "a number"
    bounds = f"from {low:g}" if closed else f"above {low:g}"
    bounds += "" if high == float("inf") else f" to below {high:g}"
    raise RichbookError(f"{name}: expected {kind} {bounds}, got {value!r}")


def check_samples_apart(model: nn.Module) -> None:
    """Raise if batch norm mixes the samples of a batch, so that none has a gradient of its own."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            raise RichbookError(
                f"model: {type(module).__name__} {name!r} normalises over the batch, so that no "
                "sample has a gradient of its own, which the identities are made of; with its "
                "statistics fixed (eval mode) in training as well, it can be measured"
            )


def why_not_balanced(model: nn.Module, layer: object, name: str) -> str | None:
    """Why a step does not move a layer's weight by η times the mean of g_b h_aᵀ, if so.

    Example:
        >>> import torch
        >>> first = torch.nn.Linear(3, 3).requires_grad_(False)
        >>> why_not_balanced(torch.nn.Sequential(first), first, "0")
        'its weight is frozen'
    """
    if not isinstance(layer, nn.Module):
        return "no module multiplies by it, but F.linear"
    if "#" in name:
        return "it is called several times in one forward pass, and their gradients add up"
    if parametrize.is_parametrized(layer, "weight") or "weight" not in layer._parameters:
        return "its weight is computed from other parameters, which are what the steps move"
    if not layer.weight.requires_grad:
        return "its weight is frozen"
    owners = sum(
        parameter is layer.weight
        for module in model.modules()
        for parameter in module._parameters.values()
    )
    if owners > 1:
        return "its weight is tied to that of another module"
    if getattr(layer, "groups", 1) > 1:
        return "its groups leave most of W at zero, whatever D says"
    return None
