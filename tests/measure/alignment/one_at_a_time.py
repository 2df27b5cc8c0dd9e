"""H and G by the definition: one sample in, one loss out, one gradient back, in float64."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn


def rows_one_at_a_time(model, inputs, targets, loss, names) -> dict[str, dict[str, Tensor]]:
    """h_a, h_b, g_a and g_b of each call of each layer, one row a sample, token or position.

    ``inputs`` and ``targets`` have one entry a sample; ``loss(outputs, targets)`` is called with
    one sample at a time. h_b leaves the bias out; g_a comes from autograd, not from g_b.
    """
    model = copy.deepcopy(model).double()
    layers = {name: model.get_submodule(name) for name in names}
    calls: list[tuple[str, nn.Module, Tensor, Tensor]] = []
    entered: list[Tensor] = []

    def before(layer, args):
        # a copy of the input that only this call of this layer uses
        entered.append(args[0].detach().requires_grad_() * 1 if not args[0].requires_grad
                       else args[0].clone())  # fmt: skip
        return (entered[-1], *args[1:])

    def after(name):
        def hook(layer, args, output):
            output = output.clone()  # what follows may write into it
            calls.append((name, layer, entered.pop(), output))
            return output.clone()

        return hook

    for name, layer in layers.items():
        layer.register_forward_pre_hook(before)
        layer.register_forward_hook(after(name))
    found: dict[str, dict[str, list[Tensor]]] = {}
    for i in range(len(inputs)):
        one = inputs[i : i + 1]
        one = one.double() if one.is_floating_point() else one
        calls.clear()
        value = loss(model(one), None if targets is None else targets[i : i + 1]).sum()
        ends = [tensor for _, _, *pair in calls for tensor in pair]
        gradients = torch.autograd.grad(value, ends, allow_unused=True)
        gradients = [torch.zeros_like(e) if g is None else g
                     for e, g in zip(ends, gradients, strict=True)]  # fmt: skip
        seen: dict[str, int] = {}
        for k, (name, layer, taken, given) in enumerate(calls):
            seen[name] = seen.get(name, 0) + 1
            key = name if seen[name] == 1 else f"{name}#{seen[name]}"
            rows = as_rows(layer, taken.detach(), given.detach(), *gradients[2 * k : 2 * k + 2])
            for side, values in rows.items():
                found.setdefault(key, {}).setdefault(side, []).append(values)
    return {key: {s: torch.cat(v) for s, v in sides.items()} for key, sides in found.items()}


def modules_in(names) -> list[str]:
    """Those of modules that are called; test_products.py has the other products."""
    return [name for name in names if "_proj" not in name]


CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def as_rows(layer, taken, given, gradient_a, gradient_b) -> dict[str, Tensor]:
    """The four matrices of one call."""
    if not isinstance(layer, CONVOLUTIONS):
        bias = 0 if layer.bias is None else layer.bias.detach()
        flat = lambda values: values.reshape(-1, values.shape[-1])  # noqa: E731
        return {"h_a": flat(taken), "h_b": flat(given - bias), "g_a": flat(-gradient_a),
                "g_b": flat(-gradient_b)}  # fmt: skip
    bias = 0 if layer.bias is None else layer.bias.detach()
    places = lambda values: values.movedim(1, -1).flatten(0, -2)  # noqa: E731
    g_b, weight = places(-gradient_b), matrix_of(layer)
    return {"h_a": patches(layer, taken), "h_b": places(given) - bias, "g_a": g_b @ weight,
            "g_b": g_b}  # fmt: skip


def patches(layer: nn.Module, images: Tensor) -> Tensor:
    """(positions of all images, in · kh · kw): a convolution for each number of a patch."""
    mode = {"zeros": "constant"}.get(layer.padding_mode, layer.padding_mode)
    padded = nn.functional.pad(images, layer._reversed_padding_repeated_twice, mode=mode)
    size = layer.in_channels * math.prod(layer.kernel_size)
    picking = torch.eye(size, dtype=images.dtype)
    picking = picking.reshape(size, layer.in_channels, *layer.kernel_size)
    convolve = getattr(nn.functional, f"conv{len(layer.kernel_size)}d")
    picked = convolve(padded, picking, stride=layer.stride, dilation=layer.dilation)
    return picked.movedim(1, -1).flatten(0, -2)


def matrix_of(layer: nn.Module) -> Tensor:
    """W (out, in), found by what a convolution does to each unit patch."""
    if not isinstance(layer, CONVOLUTIONS):
        return layer.weight.detach().double()
    per_group = layer.in_channels // layer.groups
    size = math.prod(layer.kernel_size)
    matrix = torch.zeros(layer.out_channels, layer.in_channels * size, dtype=torch.float64)
    for out in range(layer.out_channels):
        first = out // (layer.out_channels // layer.groups) * per_group * size
        matrix[out, first : first + per_group * size] = layer.weight[out].detach().flatten()
    return matrix


def second_moments(rows: dict[str, Tensor]) -> dict[str, Tensor]:
    """H_a, H_b, G_a, G_b as means of outer products, row by row in one product."""
    names = {"h_a": "H_a", "h_b": "H_b", "g_a": "G_a", "g_b": "G_b"}
    return {names[side]: v.T @ v / len(v) for side, v in rows.items()}


def distance(found: Tensor, expected: Tensor) -> float:
    """Frobenius distance, relative to what is expected."""
    expected = expected.to(found)
    return float((found - expected).norm() / expected.norm())
