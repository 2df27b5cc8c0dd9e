"""Which sample of a batch a row of a layer belongs to, and which rows have labels to be ignored."""

from __future__ import annotations

import torch
from torch import Tensor

from richbook.measure.alignment.layers.linear_maps import LinearMap
from richbook.measure.errors import RichbookError


def ignored_labels(targets: Tensor | None, label: int) -> Tensor | None:
    """Where integer targets hold the label that the loss leaves out; None if nowhere.

    Example:
        >>> import torch
        >>> ignored_labels(torch.tensor([3, -100]), -100), ignored_labels(torch.ones(2), -100)
        (tensor([False,  True]), None)
    """
    if targets is None or targets.ndim == 0 or targets.is_floating_point():
        return None
    if targets.dtype in (torch.bool, torch.uint8):
        return None
    found = targets == label
    return found if bool(found.any()) else None


def samples_of_units(
    values: Tensor, layer: LinearMap, samples: int, tokens_first: bool = False
) -> Tensor | None:
    """The sample of each unit of what a layer took, (units,); None where the shape does not tell.

    The first axis that is as long as the batch counts samples (with ``tokens_first`` the second, if
    it is as long); if none is, units come in runs of equal length, one a sample.

    Example:
        >>> import torch
        >>> from richbook.measure.alignment.layers.linear_maps import linear_map
        >>> dense = linear_map(torch.nn.Linear(5, 3))
        >>> samples_of_units(torch.zeros(2, 3, 5), dense, 2)
        tensor([0, 0, 0, 1, 1, 1])
        >>> samples_of_units(torch.zeros(3, 2, 5), dense, 2)
        tensor([0, 1, 0, 1, 0, 1])
    """
    shape = layer.unit_shape(values)
    if samples in shape:
        second = tokens_first and len(shape) > 1 and shape[1] == samples
        axis = 1 if second else shape.index(samples)
        index = torch.arange(samples, device=values.device)
        index = index.reshape([-1 if k == axis else 1 for k in range(len(shape))])
        return index.expand(shape).reshape(-1)
    units = shape.numel()
    if units and units % samples == 0:
        return torch.arange(samples, device=values.device).repeat_interleave(units // samples)
    return None


def kept_units(
    ignored: Tensor,
    values: Tensor,
    layer: LinearMap,
    samples: Tensor | None,
    name: str,
    tokens_first: bool = False,
) -> Tensor:
    """Which units take part, (units,): tokens whose own label is not ignored, where each has one.

    Elsewhere, the units of samples that have some label which is not ignored.

    Raises:
        RichbookError: neither can be told from the shapes.
    """
    shape = layer.unit_shape(values)
    turned = ignored.ndim == 2 and ignored.T.shape == shape
    if ignored.ndim > 1 and ignored.shape == shape and not (turned and tokens_first):
        return ~ignored.reshape(-1)
    if turned:
        return ~ignored.T.reshape(-1)
    if samples is None:
        raise RichbookError(
            f"layers: {name!r} takes the shape {tuple(values.shape)}, in which the {len(ignored)} "
            "samples of the batch cannot be told apart, and some have labels that the loss "
            "ignores; leave those out in the loader"
        )
    return (~ignored).reshape(len(ignored), -1).any(1).to(samples.device)[samples]
