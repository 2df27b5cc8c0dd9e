"""Which layers of a model are measured, and which hold matrices that cannot be."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.nn.modules.conv import _ConvTransposeNd

from richbook.measure.alignment.layers.linear_maps import KINDS
from richbook.measure.alignment.passes.products import Layer, matrices
from richbook.measure.capture.models import Names
from richbook.measure.errors import RichbookError

EXPECTED = "an nn.Linear or a convolution (nn.Conv1d, nn.Conv2d, nn.Conv3d)"
#: Modules that multiply by matrices, and why those are not measured.
OTHERS = {
    nn.RNNBase: "multiplies inside, where hooks cannot see it",
    nn.RNNCellBase: "multiplies inside, where hooks cannot see it",
    nn.Bilinear: "multiplies two inputs with each other",
    _ConvTransposeNd: "adds up overlapping patches, so that no output is W h",
}


def is_every(layers: object) -> bool:
    """Whether no layers in particular were asked for."""
    return layers is None or (isinstance(layers, str) and layers == "all")


def chosen_layers(names: Names, layers: object) -> dict[Layer, str]:
    """The layers to measure, with their names: those asked for, or every one there may be.

    Beside modules these are parameters that ``F.linear`` may multiply by. An attention stands for
    its projections.

    Raises:
        RichbookError: no such layer, or one that does not multiply by a matrix; the message names
            those that do.

    Example:
        >>> names = Names(nn.Sequential(nn.Linear(2, 3), nn.Tanh()))
        >>> list(chosen_layers(names, None).values())
        ['0']
        >>> chosen_layers(names, "1")
        Traceback (most recent call last):
            ...
        richbook.measure.errors.RichbookError: layers: '1' is of the class Tanh, expected ...
    """
    linear = {module: name for module, name in names.first.items() if isinstance(module, KINDS)}
    free = matrices(names.first)
    if is_every(layers):
        if not linear and not free:
            raise RichbookError(f"model: it has no layer to measure: expected {EXPECTED}")
        return linear | free
    layers = [layers] if isinstance(layers, (str, nn.Module)) else layers
    if not isinstance(layers, Iterable):
        raise RichbookError(
            f"layers: expected None or a list of names of layers, got {type(layers).__name__}"
        )
    chosen: dict[Layer, str] = {}
    for wanted in layers:
        for layer, name in _found(names, wanted, linear, free).items():
            chosen.setdefault(layer, name)
    if not chosen:
        raise RichbookError("layers: expected at least one layer, got none")
    return chosen


def _found(
    names: Names, wanted: object, linear: dict[nn.Module, str], free: dict[nn.Parameter, str]
) -> dict[Layer, str]:
    """One of the layers asked for; of an attention all projections."""
    if isinstance(wanted, str) and wanted in free.values():
        return {parameter: name for parameter, name in free.items() if name == wanted}
    name, module = names.find(wanted, "layers")
    if isinstance(module, nn.MultiheadAttention):
        own = set(map(id, module._parameters.values()))
        inside: dict[Layer, str] = {p: known for p, known in free.items() if id(p) in own}
        return inside | {module.out_proj: linear[module.out_proj]}
    if not isinstance(module, KINDS):
        raise RichbookError(_why_not(name, module, list(linear.values())))
    return {module: name}


def _why_not(name: str, module: nn.Module, linear: list[str]) -> str:
    reason = next((why for kind, why in OTHERS.items() if isinstance(module, kind)), None)
    text = f"layers: {name!r} is of the class {type(module).__name__}, "
    text += f"expected {EXPECTED}" if reason is None else f"which {reason}; expected {EXPECTED}"
    inside = [other for other in linear if other.startswith(f"{name}.")] if name else linear
    shown = ", ".join(map(repr, (inside or linear)[:12]))
    if not shown:
        return text
    more = ", and more" if len(inside or linear) > 12 else ""
    return f"{text}; {'it holds' if inside else 'there are'} {shown}{more}"


def not_measured(names: Names) -> list[str]:
    """What holds matrices and is left out when every layer is measured, in words.

    Example:
        >>> not_measured(Names(nn.Sequential(nn.Linear(2, 3), nn.GRU(3, 4))))
        ["'1' is left out: a GRU multiplies inside, where hooks cannot see it"]
    """
    found: dict[tuple[str, str], list[str]] = {}
    for module, name in names.first.items():
        for kind, reason in OTHERS.items():
            if isinstance(module, kind):
                found.setdefault((type(module).__name__, reason), []).append(name)
    notes = []
    for (kind, reason), every in found.items():
        shown = ", ".join(map(repr, every[:3])) + (f" and {len(every) - 3} more" * (len(every) > 3))
        notes.append(f"{shown} {'is' if len(every) == 1 else 'are'} left out: a {kind} {reason}")
    return notes
