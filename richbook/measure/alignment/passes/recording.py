"""The forward hooks of a pass that will be followed by a backward pass."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from richbook.measure.alignment.layers.linear_maps import LinearMap, linear_map
from richbook.measure.alignment.passes.products import Layer, Product, watched_products
from richbook.measure.capture.hooks import floating_inputs

#: Units on which a layer is checked to be linear, and how far it may be off, relatively.
CHECKED_UNITS, TOLERANCE, HALF_TOLERANCE = 4, 0.01, 0.05
#: Names of the nodes that multiply matrices in the graph of autograd.
PRODUCTS = ("AddmmBackward0", "MmBackward0")


@dataclass
class Part:
    """One call of a layer: a copy of its input, and where in the graph its output is.

    ``problem`` says in words why the call cannot be measured, if it cannot; ``tokens_first`` that
    the second axis of the input counts samples if it can.
    """

    name: str
    layer: Layer
    inputs: Tensor
    shape: torch.Size
    edge: GradientEdge | None
    problem: str | None
    tokens_first: bool = False


class Recorder:
    """Notes each call of some layers during one forward pass, in order.

    Calls whose names are not ``known`` are checked to be W h + b. An output that needs no gradient
    so far (a frozen layer on plain inputs) is made to need one.

    Example:
        >>> import torch
        >>> from richbook.measure.alignment.layers.linear_maps import linear_map
        >>> layer = torch.nn.Linear(3, 2).requires_grad_(False)
        >>> recorder = Recorder({layer: linear_map(layer)}, {layer: "layer"})
        >>> with recorder.watching():
        ...     outputs = layer(torch.ones(5, 3)).relu_()
        >>> (call,) = recorder.calls
        >>> (gradient,) = torch.autograd.grad(outputs.sum(), [call.edge])
        >>> gradient.shape, call.problem
        (torch.Size([5, 2]), None)
    """

    def __init__(
        self,
        maps: dict[Layer, LinearMap],
        names: dict[Layer, str],
        known: Collection[str] = (),
        attentions: Collection[nn.MultiheadAttention] = (),
    ) -> None:
        self.maps, self.names, self.known = maps, names, known
        self.attentions = attentions
        self.calls: list[Part] = []
        self.counts: dict[str, int] = {}
        self.latest: Tensor | None = None  # what the latest product gave

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """The hooks are there inside the block only: a backward pass may run layers again."""
        handles = []
        try:
            for layer in list(self.maps):
                if isinstance(layer, nn.Module):
                    handles.append(layer.register_forward_hook(self._hook, with_kwargs=True))
            with watched_products(self.names, self.attentions, self._multiplied):
                yield
        finally:
            for handle in handles:
                handle.remove()
            self.latest = None

    def _hook(self, module: nn.Module, args: tuple, kwargs: dict, output: object) -> Tensor | None:
        inputs = next(iter(floating_inputs(args, kwargs)), None)
        if inputs is None or not isinstance(output, Tensor) or output is self.latest:
            return None
        returned = self._note(module, self.names[module], inputs, output)
        return None if returned is output else returned

    def _multiplied(self, product: Product) -> Tensor:
        layer = product.layer
        if layer not in self.maps:
            self.maps[layer] = linear_map(layer)
        self.latest = self._note(
            layer, product.name, product.inputs, product.output, product.attention
        )
        return self.latest

    def _note(
        self, layer: Layer, name: str, inputs: Tensor, output: Tensor, tokens_first: bool = False
    ) -> Tensor:
        self.counts[name] = self.counts.get(name, 0) + 1
        if self.counts[name] > 1:
            name = f"{name}#{self.counts[name]}"
        if not inputs.numel():
            return output
        found = self.maps[layer]
        inputs = found.copied(inputs.detach())  # what comes next may write into it
        given, edge = output, None
        if torch.is_grad_enabled():
            output, edge = _with_own_edge(output, _is_plain(layer))
        problem = None
        if name not in self.known:
            problem = _problem(found, layer, inputs, given.detach())
        self.calls.append(Part(name, layer, inputs, given.shape, edge, problem, tokens_first))
        return output


def _is_plain(layer: Layer) -> bool:
    """Whether what the layer gives is the product itself, and nobody else has seen it."""
    if not isinstance(layer, nn.Module):
        return True
    return type(layer) is nn.Linear and len(layer._forward_hooks) == 1  # that of the recorder


def _with_own_edge(output: Tensor, plain: bool) -> tuple[Tensor, GradientEdge]:
    """The output, or a copy, and a place in the graph that what follows cannot go around.

    The output of a linear layer with a bias on (n, T, d) is a view. If an activation writes into
    it, autograd leads the gradient to what it is a view of, past the view itself. Where that is
    plainly the product on (n·T, d), its place serves, and a copy is saved.
    """
    if not output.requires_grad:
        output = output.detach().requires_grad_().clone()  # a leaf could not be written to
        return output, get_gradient_edge(output)
    whole = output._base
    if plain and whole is not None and type(whole.grad_fn).__name__ in PRODUCTS:
        if whole.numel() == output.numel() and whole.shape[-1] == output.shape[-1]:
            return output, get_gradient_edge(whole)
    if output._is_view() or output.is_leaf:
        output = output.clone()
    return output, get_gradient_edge(output)


def _problem(found: LinearMap, layer: Layer, inputs: Tensor, output: Tensor) -> str | None:
    """Why a call is not W h + b, in words; None if it is, on a few units."""
    if not found.takes(inputs):
        return f"it takes the shape {tuple(inputs.shape)}"
    if not isinstance(layer, nn.Module):
        return None  # a product is nothing else
    with torch.no_grad(), torch.autocast(inputs.device.type, enabled=False):
        units = found.units(inputs)[:CHECKED_UNITS].float()
        weight, bias = found.weight().float(), found.bias()
        expected = found.inputs(units) @ weight.T + (0 if bias is None else bias.float())
        given = found.outputs(found.units(output)[:CHECKED_UNITS]).float()
        if given.shape != expected.shape:
            return f"it gives the shape {tuple(output.shape)}"
        half = torch.finfo(output.dtype).bits <= 16
        size = torch.nan_to_num(expected, 0, 0, 0).abs().max()
        error = torch.nan_to_num(given - expected, 0, 0, 0).abs().max()  # of nan others will tell
        if bool(error > (HALF_TOLERANCE if half else TOLERANCE) * size):
            return f"this {type(layer).__name__} does not give W h + b, with W its weight"
    return None
