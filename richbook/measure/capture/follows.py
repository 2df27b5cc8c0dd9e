"""Whether what a model returns is made of one layer's output, and of nothing else.

A layer may come last and be no head: one of two branches that are added, or a gate. Then what is
returned does not follow from that layer's output alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

#: Numbers that are compared at once: 64 MiB in single precision.
MOST_COMPARED = 2**24
#: What is often done to logits, apart from a cast.
USUAL = (
    lambda logits: logits.softmax(-1),
    lambda logits: logits.log_softmax(-1),
    lambda logits: logits.sigmoid(),
)


def aligned(output: Tensor, returned: Tensor) -> tuple[Tensor, Tensor] | None:
    """A layer's output (n, m, C), and what is returned as (n, m, C) or (n, 1, C); None if neither.

    Example:
        >>> import torch
        >>> [tuple(part.shape) for part in aligned(torch.zeros(8, 5, 3), torch.zeros(8, 3))]
        [(8, 5, 3), (8, 1, 3)]
        >>> aligned(torch.zeros(8, 3), torch.zeros(8, 2)) is None
        True
    """
    if not returned.is_floating_point() or output.ndim < 2 or not output.numel():
        return None
    if output.shape[-1] == 1 and returned.shape in (output.shape[:-1], output.shape[:1]):
        returned = returned.unsqueeze(-1)
    if returned.ndim == output.ndim - 1:
        returned = returned.unsqueeze(1)  # one of several positions
    samples, outputs = output.shape[0], output.shape[-1]
    if returned.ndim != output.ndim or not returned.numel():
        return None
    if returned.shape[0] != samples or returned.shape[-1] != outputs:
        return None
    output = output.detach().reshape(samples, -1, outputs)
    returned = returned.detach().reshape(samples, -1, outputs).to(output.device)
    return (output, returned) if returned.shape[1] in (1, output.shape[1]) else None


def usual_function(output: Tensor, returned: Tensor) -> Callable | None:
    """Which of the usual functions of a layer's output is returned: a copy, a softmax, a sigmoid.

    Of an output at several positions it may be one for each sample, as where a model picks the last
    token before the padding.

    Example:
        >>> import torch
        >>> logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
        >>> usual_function(logits, logits.sigmoid().double())(torch.zeros(1))
        tensor([0.5000])
        >>> usual_function(logits, logits + 1) is None
        True
    """
    pair = aligned(output, returned)
    if pair is None:
        return None
    output, returned = pair
    some = slice(0, max(1, MOST_COMPARED // output[0].numel()))
    for function in (lambda logits: logits, *USUAL):
        for dtype in {output.dtype, returned.dtype}:  # the model may have cast before or after
            made = function(output[some].to(dtype)).to(returned.dtype)
            matching = _same_rows(made, returned[some])  # (n, m)
            if bool((matching.any(1) if returned.shape[1] == 1 else matching).all()):
                return function
    return None


def _same_rows(made: Tensor, returned: Tensor) -> Tensor:
    """Which rows are the same numbers, up to the last digit; small ones count as much as large."""
    last_digit = 2 * torch.finfo(returned.dtype).eps
    return torch.isclose(made, returned, rtol=last_digit, atol=0.0, equal_nan=True).all(-1)


def keeps_order(output: Tensor, returned: Tensor) -> bool:
    """Whether rows of ``returned`` rise where those of an output do, at all or one position.

    So they do after a softmax, a sigmoid or a division by a temperature. After a layer norm or a
    sum they do not: then the layer is not the head, but happens to be as wide. A single column has
    no order within a row; it must rise, or fall, from sample to sample as the output does.

    Example:
        >>> import torch
        >>> column = torch.tensor([[1.0], [3.0], [2.0]])
        >>> keeps_order(column, column.sigmoid().squeeze(-1)), keeps_order(column, column.sin())
        (True, False)
    """
    pair = aligned(output, returned)
    if pair is None:
        return False
    output, returned = pair
    some = (slice(0, 64), slice(None), slice(None, None, -(-output.shape[-1] // 64)))
    output, returned = output[some].float(), returned[some].float()  # sorting takes time
    one_position = returned.shape[1] < output.shape[1]
    returned = returned.expand_as(output)
    if output.shape[-1] > 1:
        fits = _rises(output, returned)  # (n, m)
        return bool(fits.all(0).any() if one_position else fits.all())
    output, returned = output.squeeze(-1).mT, returned.squeeze(-1).mT  # (m, n)
    if not one_position:
        output, returned = output.reshape(1, -1), returned.reshape(1, -1)
    return bool((_rises(output, returned) | _rises(-output, returned)).any())


def _rises(output: Tensor, returned: Tensor) -> Tensor:
    """Along the last axis, up to 1 % of the range; nan rises."""
    ordered = returned.gather(-1, output.argsort(-1))
    fall = (ordered.cummax(-1).values - ordered).amax(-1)  # 0 in exact arithmetic
    return (fall <= 0.01 * (ordered.amax(-1) - ordered.amin(-1))) | fall.isnan()


class Exchange:
    """Gives each sample a layer's output of the sample before it.

    If what the model returns is made of that output and of nothing else, it is then what it was,
    but for each sample that of the one before it.

    Args:
        module: the layer.
        output: what it gave when the model ran before, (n, ...); None to take what it gives now.

    Example:
        >>> body, head = nn.Linear(2, 3), nn.Linear(2, 3)
        >>> inputs, exchange = torch.randn(5, 2), Exchange(head)
        >>> for model in (lambda x: head(x).exp(), lambda x: head(x) + body(x)):
        ...     returned = model(inputs)
        ...     with exchange.made():
        ...         exchanged = model(inputs)
        ...     print(exchange.explains(returned, exchanged))
        True
        False
    """

    def __init__(self, module: nn.Module, output: Tensor | None = None) -> None:
        self.module, self.output = module, output
        self.samples = 0

    @contextlib.contextmanager
    def made(self) -> Iterator[None]:
        """Calls inside the block give exchanged samples."""
        handle = self.module.register_forward_hook(self._hook)
        try:
            yield
        finally:
            handle.remove()

    def _hook(self, module: nn.Module, args: tuple, output: Tensor) -> Tensor:
        given = output if self.output is None else self.output
        self.samples = len(given)
        return given.roll(1, 0)

    def explains(self, returned: Tensor, exchanged: Tensor | None) -> bool:
        """Whether what is returned followed; of one sample alone nothing can be told."""
        if exchanged is None or exchanged.shape != returned.shape or self.samples < 2:
            return False
        if not returned.ndim or len(returned) % self.samples:
            return False
        expected = returned.detach().reshape(self.samples, -1).roll(1, 0)
        found = exchanged.detach().reshape(self.samples, -1).to(expected)
        allowed = 8 * torch.finfo(returned.dtype).eps
        return torch.allclose(found, expected, rtol=allowed, atol=0.0, equal_nan=True)
