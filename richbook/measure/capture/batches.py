"""What loaders yield: inputs, keyword arguments and targets, on the model's device."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from richbook.measure.capture.attended import Attended, attended_in
from richbook.measure.capture.positions import has_ignored
from richbook.measure.errors import RichbookError

#: A batch that is a dictionary has its targets under one of these.
TARGET_KEYS = ("labels", "label", "targets", "target", "y")
WIDE_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
WRAP = "wrap a single batch in a list: [(inputs, targets)]"


@dataclasses.dataclass(frozen=True)
class Call:
    """How to call the model on a batch, and what the batch says should come out."""

    args: tuple
    kwargs: dict
    targets: Tensor | None
    has_ignored: bool  # whether some label is −100
    target_key: str | None = None  # what the targets were called, in a dictionary
    attended: Attended | None = None  # which tokens are no padding, if the batch says so

    @property
    def is_empty(self) -> bool:
        """Whether the inputs are there and hold no sample."""
        tensors = [tensor for tensor in tensors_in((self.args, self.kwargs)) if tensor.ndim]
        return bool(tensors) and not any(map(len, tensors))


def checked_loader(loader: object) -> Iterable:
    """The loader, or an error that says how to make one.

    Raises:
        RichbookError: a tensor, a tuple of tensors that may be inputs and targets, a dictionary, a
            dataset without batches, or something that cannot be iterated over.

    Example:
        >>> import torch
        >>> checked_loader(torch.zeros(8, 3))
        Traceback (most recent call last):
            ...
        richbook.measure.errors.RichbookError: loader: expected an iterable of batches, got a ...
    """
    if isinstance(loader, Dataset) and not isinstance(loader, IterableDataset):
        raise RichbookError(
            f"loader: expected an iterable of batches, got a {type(loader).__name__}, which "
            "yields single samples; wrap it: torch.utils.data.DataLoader(dataset, batch_size=128)"
        )
    problem = None
    if isinstance(loader, (Tensor, np.ndarray)):
        problem = f"a {type(loader).__name__} of shape {tuple(loader.shape)}"
    elif isinstance(loader, tuple) and loader and all(map(_is_array, loader)):
        if _are_pieces(loader):
            return loader
        problem = f"a tuple of {len(loader)} tensors"
    elif isinstance(loader, list) and _is_split_pair(loader):
        problem = "a list of inputs and targets"
    elif isinstance(loader, (Mapping, str)) or not isinstance(loader, Iterable):
        problem = f"a {type(loader).__name__}"
    if problem is not None:
        raise RichbookError(f"loader: expected an iterable of batches, got {problem}; {WRAP}")
    return loader


def _is_array(value: object) -> bool:
    return isinstance(value, (Tensor, np.ndarray))


def _is_split_pair(batches: list) -> bool:
    """[inputs, labels], which as batches would be two of different types."""
    if len(batches) != 2 or not all(map(_is_array, batches)):
        return False
    return batches[0].dtype != batches[1].dtype and len(batches[0]) == len(batches[1])


def _are_pieces(arrays: tuple) -> bool:
    """What ``inputs.split(64)`` gives: pieces of one tensor, or some of other lengths.

    Of equal length and not from one tensor they could be inputs, a mask and targets.
    """
    first = arrays[0]
    for other in arrays:
        if other.ndim < 2 or other.dtype != first.dtype or other.shape[1:] != first.shape[1:]:
            return False
    if len({len(array) for array in arrays}) > 1:
        return True
    return len(arrays) == 1 or (
        all(isinstance(array, Tensor) for array in arrays)
        and all(itertools.starmap(_goes_on, itertools.pairwise(arrays)))
    )


def _goes_on(before: Tensor, after: Tensor) -> bool:
    """Whether one tensor's rows come right after another's in the same memory."""
    return (
        after.untyped_storage().data_ptr() == before.untyped_storage().data_ptr()
        and after.stride() == before.stride()
        and after.storage_offset() == before.storage_offset() + len(before) * before.stride(0)
    )


def as_call(batch: object, device: torch.device | None) -> Call:
    """Sort a batch into positional inputs, keyword inputs and targets, moved to a device.

    A dictionary's targets are under "labels", "label", "targets", "target" or "y", and the rest are
    keyword arguments; of a tuple or list the last is the targets unless it is the only one; a
    tensor is the input. A dictionary's attention mask stays among the inputs.

    Raises:
        RichbookError: another type of batch, an empty tuple, targets that are no numbers.

    Example:
        >>> import torch
        >>> call = as_call({"x": torch.zeros(2, 3), "label": [0, 1]}, torch.device("cpu"))
        >>> list(call.kwargs), call.targets
        (['x'], tensor([0, 1]))
    """
    args, kwargs, targets, key = (), {}, None, None
    if isinstance(batch, Mapping):
        kwargs = dict(batch)
        named = [key for key in TARGET_KEYS if key in kwargs]
        if len(named) > 1:
            raise RichbookError(f"loader: a batch has {' and '.join(map(repr, named))}; keep one")
        key = named[0] if named else None
        targets = kwargs.pop(key) if named else None
    elif isinstance(batch, (tuple, list)) and batch:
        args, targets = (tuple(batch), None) if len(batch) == 1 else (batch[:-1], batch[-1])
    elif _is_array(batch) or hasattr(batch, "to"):
        args = (batch,)
    else:
        got = f"an empty {type(batch).__name__}" if batch == () or batch == [] else type(batch)
        raise RichbookError(
            "loader: expected batches that are (inputs, targets), a tensor, or a dictionary, "
            f"got {got if isinstance(got, str) else got.__name__}"
        )
    targets = None if targets is None else _as_targets(targets)
    return Call(
        tuple(moved(value, device) for value in args),
        {key: moved(value, device) for key, value in kwargs.items()},
        moved(targets, device),
        has_ignored(targets),  # before they move: asking an accelerator would wait for it
        key,
        attended_in(args, kwargs),
    )


def _as_targets(targets: object) -> Tensor:
    try:
        targets = torch.as_tensor(targets)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RichbookError(
            f"targets: expected a tensor or numbers, got {type(targets).__name__}; leave out what "
            "is not a target, or put it into a dictionary under its argument's name"
        ) from error
    # torch can store these, and do little else with them
    return targets.long() if targets.dtype in WIDE_UNSIGNED else targets


def moved(value: object, device: torch.device | None) -> object:
    """Move every tensor in a nested value; what holds none is returned as it is."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        value = torch.as_tensor(value)
    if isinstance(value, Tensor):
        # an inference tensor cannot be written to in place outside inference mode: a copy can
        value = value.clone() if value.is_inference() else value
        return value if device is None else value.to(device)
    if hasattr(value, "to") and device is not None and not isinstance(value, type):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: moved(part, device) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(moved(part, device) for part in value))
    if isinstance(value, (tuple, list)):
        return type(value)(moved(part, device) for part in value)
    return value


def tensors_in(value: object) -> Iterator[Tensor]:
    """All tensors in what a module returned: a tensor, or nested containers and dataclasses.

    Example:
        >>> import torch
        >>> returned = {"logits": torch.zeros(2), "more": (torch.ones(3), None)}
        >>> [tuple(tensor.shape) for tensor in tensors_in(returned)]
        [(2,), (3,)]
    """
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_in(part)
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from tensors_in(part)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name, None))


def first_floating(value: object) -> Tensor | None:
    """The first tensor of real numbers in what a module returned."""
    return next((tensor for tensor in tensors_in(value) if tensor.is_floating_point()), None)
