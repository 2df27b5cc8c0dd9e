"""A network as a source of gradients: a row for each sample and output, a column a parameter."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from richbook.measure.errors import RichbookError
from richbook.measure.inputs import exact_arithmetic, rank_tolerance
from richbook.measure.tangent_blocks import Block


class TangentRows:
    """A network at fixed parameters, checked, whose derivatives can be asked for.

    Attributes:
        name: the argument that it came as, for error messages.
        count: n, the number of samples.
        width: C, the number of outputs.
        size: bytes that the derivative of one output at one sample takes.
        running: bytes that the model keeps of one sample for its backward pass.
        rounding: relative size of the errors in a derivative.
        device: where the parameters are.
    """

    def __init__(
        self, model: nn.Module, name: str, inputs: Tensor, like: nn.Module | None = None
    ) -> None:
        self.name, self.module = name, _unwrapped(model, name)
        _check_modes(self.module, name)
        trained = _trained(self.module, name, like)
        every = {key: value.detach() for key, value in self.module.named_parameters()}
        self.parameters = {key: value for key, value in every.items() if key in trained}
        self.frozen = {key: value for key, value in every.items() if key not in trained}
        self.device = next(iter(self.parameters.values())).device
        self.inputs, self.count = inputs.to(self.device), len(inputs)
        self.size = sum(p.numel() * p.element_size() for p in self.parameters.values())
        self.rounding = max(rank_tolerance(p.dtype) for p in self.parameters.values())
        self.vectorised = True
        with torch.no_grad(), exact_arithmetic(self.device), _untouched_chance(self.device):
            self.width = self._checked_width()
            self.running = self._kept_for_backward()

    def jacobian(self, block: Block) -> list[Tensor]:
        """The block's derivatives, a tensor (samples, outputs, size) for each parameter."""

        def derivative(chunk: int | None) -> Callable:
            def chosen(parameters: dict[str, Tensor], sample: Tensor) -> Tensor:
                return self._alone(parameters, sample)[block.outputs]

            return jacrev(chosen, chunk_size=chunk)

        with _untouched_chance(self.device):
            found = self._each(derivative, self.inputs[block.samples])
        return [part.flatten(2) if part.ndim > 2 else part[..., None] for part in found.values()]

    def _together(self, parameters: dict[str, Tensor], inputs: Tensor) -> Tensor:
        # Copies: what a module writes into its buffers goes there.
        buffers = {key: value.clone() for key, value in self.module.named_buffers()}
        # The plain attention is the one that vmap can differentiate at speed.
        with sdpa_kernel(SDPBackend.MATH):
            return functional_call(self.module, parameters | self.frozen | buffers, (inputs,))

    def _alone(self, parameters: dict[str, Tensor], sample: Tensor) -> Tensor:
        return self._together(parameters, sample[None]).reshape(-1)  # (C,)

    def _each(self, make: Callable, samples: Tensor) -> dict[str, Tensor]:
        """A function of (parameters, sample), for each sample, stacked.

        ``make`` gives that function, for chunks of outputs of a given size. Some models cannot be
        vectorised (a branch on a value, recurrent layers); those go one by one.
        """
        if self.vectorised:
            try:
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "There is a performance drop")
                    return vmap(make(None), in_dims=(None, 0))(self.parameters, samples)
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, ValueError) as error:
                if "randomness" in str(error):
                    raise RichbookError(
                        f"{self.name}: it draws random numbers when it is called, so that it has "
                        "no one tangent kernel; call eval() on it first"
                    ) from error
                self.vectorised = False
        function = make(1)
        found = [function(self.parameters, sample) for sample in samples]
        return {key: torch.stack([one[key] for one in found]) for key in found[0]}

    def _checked_width(self) -> int:
        """C, once the outputs are (n, C), finite, and those of each sample its own."""
        with self._explained(self.inputs):
            together = self._together(self.parameters, self.inputs)
        self._check_outputs(together)
        with self._explained(self.inputs[:1]):
            alone = self._each(
                lambda chunk: lambda *given: {"outputs": self._alone(*given)}, self.inputs
            )["outputs"]
        together = together.reshape(self.count, -1)
        bad = (~together.isfinite().all(1)).nonzero()
        if len(bad):
            raise RichbookError(
                f"{self.name}: its outputs for sample {int(bad[0, 0])} contain nan or an infinity, "
                "expected finite numbers; did training diverge?"
            )
        largest = together.abs().max()
        if alone.shape != together.shape or bool(
            (alone - together).abs().max() > torch.finfo(together.dtype).eps ** 0.5 * largest
        ):
            raise RichbookError(
                f"{self.name}: the outputs for a sample change with the other samples of the batch "
                "or from call to call, so that it has no tangent kernel of its own; call eval() on "
                "it first"
            )
        return together.shape[1]

    def _kept_for_backward(self) -> int:
        storages: dict[int, int] = {}

        def count(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
            return tensor

        leaves = {key: p.detach().requires_grad_() for key, p in self.parameters.items()}
        hooks = torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor)
        with torch.enable_grad(), hooks:
            self._together(leaves, self.inputs[:1])
        for known in (*leaves.values(), *self.frozen.values(), self.inputs):
            storages.pop(known.untyped_storage().data_ptr(), None)
        return sum(storages.values())

    @contextlib.contextmanager
    def _explained(self, inputs: Tensor) -> Iterator[None]:
        """Say what the model was called on, if that goes wrong."""
        try:
            yield
        except RichbookError:
            raise
        except (RuntimeError, TypeError, ValueError, IndexError, AssertionError) as error:
            raise RichbookError(
                f"inputs: {self.name} cannot be called on {inputs.dtype} of shape "
                f"{tuple(inputs.shape)}: {error}"
            ) from error

    def _check_outputs(self, values: object) -> None:
        got = type(values).__name__
        if isinstance(values, Tensor):
            got = f"{values.dtype} of shape {tuple(values.shape)}"
            usable = values.is_floating_point() and values.ndim in (1, 2) and values.numel()
            if usable and len(values) == self.count:
                return
        raise RichbookError(
            f"{self.name}: expected outputs of shape ({self.count}, C) for {self.count} inputs, "
            f"got {got}; wrap it in a module that returns such a tensor"
        )


def _unwrapped(model: nn.Module, name: str) -> nn.Module:
    """The module itself, out of what compiles it or spreads it over devices."""
    if not isinstance(model, nn.Module):
        raise RichbookError(f"{name}: expected a torch.nn.Module, got {type(model).__name__}")
    while inner := getattr(model, "_orig_mod", None) or (
        model.module
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel))
        else None
    ):
        model = inner
    return model


def _check_modes(model: nn.Module, name: str) -> None:
    for path, part in model.named_modules():
        where = f"{name}: {type(part).__name__} {path!r}" if path else f"{name}: it"
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            if part.training or part.running_mean is None:
                how = "is in train mode" if part.training else "has no running statistics"
                raise RichbookError(
                    f"{where} {how} and mixes the samples of a batch, so that no output belongs to "
                    f"one sample; call {name}.eval()"
                    + ("" if part.training else " on one with track_running_stats=True")
                )
        dropped = getattr(part, "p" if "Dropout" in type(part).__name__ else "dropout", 0)
        if part.training and isinstance(dropped, (int, float)) and dropped > 0:
            raise RichbookError(
                f"{where} drops units at random in train mode; call {name}.eval() first"
            )


def _trained(model: nn.Module, name: str, like: nn.Module | None) -> set[str]:
    """Names of the parameters that the kernel is about."""
    named = dict(model.named_parameters())
    if any(nn.parameter.is_lazy(parameter) for parameter in named.values()):
        raise RichbookError(f"{name}: it has lazy parameters; call it once on some inputs first")
    if like is not None:
        other = dict(_unwrapped(like, "model").named_parameters())
        if {k: p.shape for k, p in named.items()} == {k: p.shape for k, p in other.items()}:
            named = other
    trained = {key for key, parameter in named.items() if parameter.requires_grad}
    if not trained:
        raise RichbookError(
            f"{name}: none of its {len(named)} parameters requires a gradient, and the kernel is "
            f"about those that do; call {name}.requires_grad_() first"
        )
    return trained


@contextlib.contextmanager
def _untouched_chance(device: torch.device) -> Iterator[None]:
    """Leave the random state as it was, whatever the model draws."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
