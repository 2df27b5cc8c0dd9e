"""Which models can be measured, and their modules by name."""

from __future__ import annotations

import difflib

import torch
from torch import nn
from torch.nn.modules import activation
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from richbook.measure.errors import RichbookError

ACTIVATIONS = tuple(
    getattr(activation, name)
    for name in activation.__all__
    if name not in ("MultiheadAttention", "Softmax", "Softmax2d", "LogSoftmax", "Softmin")
)


def checked_model(model: object) -> nn.Module:
    """The module to run (for a compiled one the original), or an error that says what to pass.

    Raises:
        RichbookError: not a module; scripted; DataParallel; parameters without values.

    Example:
        >>> import torch
        >>> checked_model(torch.nn.DataParallel(torch.nn.Linear(3, 2)))
        Traceback (most recent call last):
            ...
        richbook.measure.errors.RichbookError: model: it is a DataParallel, whose copies ...
    """
    if not isinstance(model, nn.Module):
        raise RichbookError(
            f"model: expected a torch.nn.Module, got {type(model).__name__}"
            + (" (the class, not an instance)" if isinstance(model, type) else "")
        )
    model = uncompiled(model)
    for name, module in model.named_modules():
        if isinstance(module, (DataParallel, DistributedDataParallel)):
            path = "model" + (f".{name}" if name else "")
            raise RichbookError(
                f"model: {'it' if not name else path} is a {type(module).__name__}, whose copies "
                f"hooks cannot follow; pass the module inside it, {path}.module"
            )
    if isinstance(model, torch.jit.ScriptModule):
        raise RichbookError(
            "model: it is scripted or traced, and its inner calls cannot be seen; pass the "
            "torch.nn.Module that it was made from"
        )
    for name, parameter in model.named_parameters():
        if is_lazy(parameter) or parameter.device.type == "meta":
            raise RichbookError(
                f"model: the parameter {name!r} has no values yet; "
                + ("run one batch through it" if is_lazy(parameter) else "load its weights")
                + " first"
            )
    return model


def uncompiled(module: nn.Module) -> nn.Module:
    """The module that ``torch.compile`` was given; any other module is returned as it is."""
    while isinstance(getattr(module, "_orig_mod", None), nn.Module):
        module = module._orig_mod
    return module


def device_of(model: nn.Module) -> torch.device | None:
    """Where the first parameter lies (the first buffer if there is none); None without either."""
    for tensors in (model.parameters(), model.buffers()):
        for tensor in tensors:
            return tensor.device
    return None


class Names:
    """A model's modules by their ``named_modules()`` path, shared ones under each of their names.

    What ``torch.compile`` adds to a path (``_orig_mod.``) is left out.

    Example:
        >>> import torch
        >>> names = Names(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)))
        >>> list(names.modules)
        ['', '0', '1']
        >>> names.find("2", "head")
        Traceback (most recent call last):
            ...
        richbook.measure.errors.RichbookError: head: the model has no module '2'; ...
    """

    def __init__(self, model: nn.Module) -> None:
        self.modules: dict[str, nn.Module] = {}
        for path, module in model.named_modules(remove_duplicate=False):
            # the wrapper of a compiled module comes first and makes way for what it wraps
            self.modules[short(path)] = uncompiled(module)
        self.every: dict[nn.Module, list[str]] = {}
        for name, module in self.modules.items():
            self.every.setdefault(module, []).append(name)
        self.first = {module: names[0] for module, names in self.every.items()}

    def find(self, wanted: object, argument: str) -> tuple[str, nn.Module]:
        """A module by its name, or the name of a module.

        Raises:
            RichbookError: no such module; the message suggests the names nearest to it.
        """
        if isinstance(wanted, nn.Module):
            module = uncompiled(wanted)
            if module not in self.first:
                raise RichbookError(
                    f"{argument}: the {type(module).__name__} that was passed is not a part of "
                    "the model"
                )
            return self.first[module], module
        if not isinstance(wanted, str):
            raise RichbookError(
                f"{argument}: expected the name of a module or a module of the model, "
                f"got {type(wanted).__name__}"
            )
        name = short(wanted)
        if name not in self.modules:
            near = self.nearest(name)
            hint = f"did you mean {near}?" if near else f"it has {_listed(list(self.modules)[1:])}"
            raise RichbookError(f"{argument}: the model has no module {wanted!r}; {hint}")
        return name, self.modules[name]

    def nearest(self, name: str, among: list[str] | None = None) -> str:
        """Up to three names that look like this one, quoted; empty if none does."""
        known = [other for other in (among if among is not None else self.modules) if other]
        return " or ".join(map(repr, difflib.get_close_matches(name, known, n=3, cutoff=0.5)))

    def owner(self, name: str) -> nn.Module | None:
        """The module that a named module is a part of."""
        return self.modules.get(name.rpartition(".")[0]) if name else None

    def inside(self, module: nn.Module, kinds: type | tuple[type, ...]) -> bool:
        """Whether a module is a part of one of some kind."""
        for name in self.every[module]:
            steps = name.split(".") if name else []
            owners = (".".join(steps[:k]) for k in range(len(steps)))
            if any(isinstance(self.modules.get(owner), kinds) for owner in owners):
                return True
        return False

    def with_activity(self) -> dict[str, nn.Module]:
        """The modules with parameters of their own, and the activations: a model's layers."""
        chosen = {}
        for module, name in self.first.items():
            if "parametrizations" in name.split("."):
                continue  # what computes a weight from other weights
            owns = any(parameter is not None for parameter in module._parameters.values())
            if owns or parametrize.is_parametrized(module) or isinstance(module, ACTIVATIONS):
                chosen[name] = module
        return chosen

    def why_uncalled(self, name: str, called: list[str]) -> str:
        """What to say of a module that a forward pass did not call."""
        owner = self.owner(name)
        if isinstance(owner, nn.MultiheadAttention):
            attention = name.rpartition(".")[0]
            return (
                "nn.MultiheadAttention uses its weight without calling it, so hooks never see it; "
                f"choose the attention module {attention!r} itself"
            )
        if isinstance(self.modules[name], (nn.ModuleList, nn.ModuleDict)):
            return "it is a list of modules, which is never called; choose one of its parts"
        near = self.nearest(name, called)
        return "the forward pass does not use it" + (f"; it does call {near}" if near else "")


def short(path: str) -> str:
    """A module's path without the steps that ``torch.compile`` adds."""
    return ".".join(step for step in path.split(".") if step != "_orig_mod")


def _listed(names: list[str], most: int = 12) -> str:
    shown = ", ".join(map(repr, names[:most])) or "no parts"
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
