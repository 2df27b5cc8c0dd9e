"""Products with a parameter that no module's call shows: ``F.linear`` with a weight.

``nn.MultiheadAttention`` multiplies this way, by its joint projection of queries, keys and values
and by that of its output, and so does a head that shares the weight of an embedding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from richbook.measure.alignment.layers.linear_maps import KINDS


@dataclass(frozen=True)
class Rows:
    """Some of the rows of a parameter, as a layer.

    Attributes:
        parameter: (rows, in).
        start, stop: which rows.
    """

    parameter: nn.Parameter
    start: int
    stop: int


#: What may be measured: a module, a matrix, or some rows of one.
Layer = nn.Module | nn.Parameter | Rows


@dataclass(frozen=True)
class Product:
    """One call of ``F.linear``.

    Attributes:
        layer, name: what it multiplies by.
        inputs, output: what it took and gave. In an attention inputs are (tokens, samples, in).
        attention: whether it is a part of one.
    """

    layer: Layer
    name: str
    inputs: Tensor
    output: Tensor
    attention: bool


def matrices(modules: Mapping[nn.Module, str]) -> dict[nn.Parameter, str]:
    """The parameters that ``F.linear`` may be called with, outside of linear layers, by name.

    Example:
        >>> model = nn.Sequential(nn.Embedding(5, 4), nn.MultiheadAttention(4, 1), nn.Linear(4, 2))
        >>> list(matrices({module: name for name, module in model.named_modules()}).values())
        ['0.weight', '1.in_proj_weight']
    """
    tied = {id(module._parameters.get("weight")) for module in modules if isinstance(module, KINDS)}
    found: dict[nn.Parameter, str] = {}
    for module, name in modules.items():
        for own, parameter in module._parameters.items():
            if parameter is not None and parameter.ndim == 2 and id(parameter) not in tied:
                found.setdefault(parameter, f"{name}.{own}" if name else own)
    return found


@contextlib.contextmanager
def watched_products(
    names: Mapping[Layer, str],
    attentions: Iterable[nn.MultiheadAttention],
    seen: Callable[[Product], Tensor],
) -> Iterator[None]:
    """Inside the block ``F.linear`` with one of these matrices returns what ``seen`` makes of it.

    Args:
        names: the matrices, and output projections of attentions; other modules are passed over.
        attentions: those of the model.
        seen: is given each product.

    Example:
        >>> import torch
        >>> weight = nn.Parameter(torch.ones(1, 2))
        >>> with watched_products({weight: "w"}, [], lambda product: product.output + 1):
        ...     functional.linear(torch.ones(3, 2), weight).flatten().tolist()
        [3.0, 3.0, 3.0]
    """
    watcher, original = _Watcher(names, attentions), functional.linear

    def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        output = original(inputs, weight, bias)
        product = watcher.product(inputs, weight, output)
        return output if product is None else seen(product)

    if watcher.layers:
        functional.linear = linear
    try:
        yield
    finally:
        functional.linear = original


class _Watcher:
    """Knows weights again, whole or by some of their rows."""

    def __init__(
        self, names: Mapping[Layer, str], attentions: Iterable[nn.MultiheadAttention]
    ) -> None:
        self.names = names
        # by the identity of the weight
        self.layers: dict[int, Layer] = {
            id(layer): layer for layer in names if isinstance(layer, nn.Parameter)
        }
        self.owners: dict[int, nn.MultiheadAttention] = {}
        for attention in attentions:
            own = [p for p in attention._parameters.values() if p is not None]
            self.owners |= dict.fromkeys(map(id, own), attention)
            output = attention.out_proj
            if output in names:
                self.layers[id(output.weight)] = output
                self.owners[id(output.weight)] = attention
        self.queries: dict[nn.MultiheadAttention, torch.Size] = {}  # their tokens and samples

    def product(self, inputs: Tensor, weight: Tensor, output: Tensor) -> Product | None:
        """A call of ``F.linear``; None if it is with no weight that counts."""
        whole, start = self._whole(weight)
        owner, layer = self.owners.get(id(whole)), self.layers.get(id(whole))
        if owner is not None and start == 0 and inputs.ndim == 3:
            if whole is owner.in_proj_weight or whole is owner.q_proj_weight:
                self.queries[owner] = inputs.shape[:2]
        if layer is None:
            return None
        name = self.names[layer]
        if owner is not None and layer is owner.out_proj:
            inputs = inputs.reshape(*self.queries.get(owner, inputs.shape[:1]), -1)
        if whole is not weight:
            layer = Rows(whole, start, start + len(weight))
            name = f"{name}[{layer.start}:{layer.stop}]"
        return Product(layer, name, inputs, output, owner is not None)

    def _whole(self, weight: Tensor) -> tuple[Tensor, int]:
        """What a weight is a part of, and its first row there."""
        whole = weight._base
        known = id(weight) in self.layers or id(weight) in self.owners
        if known or whole is None or whole.ndim != 2 or weight.stride() != whole.stride():
            return weight, 0
        start, beyond = divmod(weight.storage_offset() - whole.storage_offset(), whole.stride(0))
        return (weight, 0) if beyond or weight.shape[1] != whole.shape[1] else (whole, start)
