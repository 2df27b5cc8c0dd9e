"""Call a model on a batch, and say what is wrong with a batch that it cannot be called on."""

from __future__ import annotations

import inspect

from torch import nn

from richbook.measure.capture.batches import Call
from richbook.measure.errors import RichbookError


def called(model: nn.Module, call: Call) -> object:
    """What the model returns for a batch.

    Raises:
        RichbookError: arguments that the model's ``forward`` does not take. Errors from inside it
            are left as they are.

    Example:
        >>> import torch
        >>> from richbook.measure.capture.batches import as_call
        >>> called(nn.Linear(3, 2), as_call({"x": torch.zeros(5, 3)}, None))
        Traceback (most recent call last):
            ...
        richbook.measure.errors.RichbookError: loader: Linear.forward does not take a batch: ...
    """
    try:
        return model(*call.args, **call.kwargs)
    except TypeError as error:
        problem = _refusal(model, call)
        if problem is None:
            raise
        passed = [f"{len(call.args)} by place"] if call.args else []
        passed += map(repr, call.kwargs)
        raise RichbookError(
            f"loader: {type(model).__name__}.forward does not take a batch: {problem}; passed "
            f"were {', '.join(passed) or 'no arguments'}{_about_targets(call, problem)}"
        ) from error


def _refusal(model: nn.Module, call: Call) -> str | None:
    """What Python says of the arguments; None if they fit, or if that cannot be told."""
    try:
        inspect.signature(model.forward).bind(*call.args, **call.kwargs)
    except TypeError as error:
        return str(error)
    except ValueError:  # it has no signature
        pass
    return None


def _about_targets(call: Call, problem: str) -> str:
    if call.targets is None:
        return ""
    if call.target_key is None:
        return "; the last part of the tuple was taken for the targets"
    needed = f"'{call.target_key}'" in problem
    return f"; {call.target_key!r} was taken out for the targets" + (
        ": wrap the model in one whose forward does without" if needed else ""
    )
