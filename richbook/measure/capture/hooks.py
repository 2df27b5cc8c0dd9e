"""Record what modules take and give while a model runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

from torch import Tensor, nn

from richbook.measure.errors import RichbookError


@contextlib.contextmanager
def hooked(
    modules: Iterable[nn.Module],
    *,
    before: Callable | None = None,
    after: Callable | None = None,
) -> Iterator[None]:
    """Call ``before(module, args, kwargs)`` and ``after(module, args, kwargs, output)`` at a call.

    The hooks come last, so they see what the model's own hooks made of inputs and outputs. They
    are gone after the block, also if it raises. Gradients flow through them.

    Example:
        >>> import torch
        >>> layer, seen = torch.nn.Linear(3, 2), []
        >>> with hooked([layer], after=lambda module, args, kwargs, output: seen.append(output)):
        ...     _ = layer(torch.zeros(5, 3))
        >>> seen[0].shape, len(layer._forward_hooks)
        (torch.Size([5, 2]), 0)
    """
    handles = []
    try:
        for module in modules:
            if before is not None:
                handles.append(module.register_forward_pre_hook(_mute(before), with_kwargs=True))
            if after is not None:
                handles.append(module.register_forward_hook(_mute(after), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _mute(function: Callable) -> Callable:
    """A hook's return value would replace the inputs or the output."""

    def hook(*arguments: object) -> None:
        function(*arguments)

    return hook


def floating_inputs(args: tuple, kwargs: dict) -> list[Tensor]:
    """The tensors of real numbers among a call's arguments."""
    values = (*args, *kwargs.values())
    return [value for value in values if isinstance(value, Tensor) and value.is_floating_point()]


def only_input(args: tuple, kwargs: dict, name: str) -> Tensor:
    """The one tensor of real numbers among a call's arguments.

    Raises:
        RichbookError: none, or several: a head is a function of one tensor.
    """
    found = floating_inputs(args, kwargs)
    if len(found) != 1:
        shapes = ", ".join(str(tuple(value.shape)) for value in found)
        raise RichbookError(
            f"head: {name!r} is called with {len(found)} tensors of real numbers"
            + (f" of shapes {shapes}" if found else "")
            + ", expected one: its input is taken for the features"
        )
    return found[0]
