"""Run somebody's model and leave it, and the random numbers, as they were.

Nothing here is held while the caller has the word: each forward pass is wrapped on its own, so that
a loop which is left early, or raises, finds the model as it was.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef


class RandomStream:
    """The random numbers of a pass: they go on from batch to batch, and nobody else's do.

    Inside ``with stream.drawn():`` torch (CPU and the given devices), numpy and Python draw from
    this stream, which starts where the caller's was; after it they are where the caller left them.

    Example:
        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> stream = RandomStream([])
        >>> with stream.drawn():
        ...     first = torch.rand(1)
        >>> with stream.drawn():
        ...     second = torch.rand(1)
        >>> bool(first == torch.rand(1)), bool(second == torch.rand(1))
        (True, True)
    """

    def __init__(self, devices: list[torch.device]) -> None:
        self.devices = [device for device in devices if device.type in ("cuda", "mps", "xpu")]
        self.inside: list | None = None

    @contextlib.contextmanager
    def drawn(self) -> Iterator[None]:
        """Draw from this stream inside the block."""
        outside = self._read()
        before = outside if self.inside is None else self.inside
        self._write(before, outside)
        try:
            yield
        finally:
            self.inside = self._read()
            self._write(outside, self.inside)

    def _read(self) -> list:
        accelerators = [
            getattr(torch, device.type).get_rng_state(*_index(device)) for device in self.devices
        ]
        numbers = np.random.get_state(legacy=False)
        return [random.getstate(), numbers, torch.get_rng_state(), *accelerators]

    def _write(self, wanted: list, now: list) -> None:
        """Set the states that differ from those there are: mostly none, and setting takes time."""
        if wanted[0] != now[0]:
            random.setstate(wanted[0])
        if not _equal(wanted[1], now[1]):
            np.random.set_state(wanted[1])
        if not torch.equal(wanted[2], now[2]):
            torch.set_rng_state(wanted[2])
        for device, state, present in zip(self.devices, wanted[3:], now[3:], strict=True):
            if not torch.equal(state, present):
                getattr(torch, device.type).set_rng_state(state, *_index(device))


def _equal(first: object, second: object) -> bool:
    """Whether two states of numpy's generator, nested dictionaries, are the same."""
    if isinstance(first, dict):
        return all(_equal(first[key], second[key]) for key in first)
    return np.array_equal(first, second) if isinstance(first, np.ndarray) else first == second


def _index(device: torch.device) -> tuple:
    """MPS has one device, and its functions take no number."""
    return () if device.type == "mps" else (device,)


class BufferKeeper:
    """Copies of a model's buffers (batch-norm statistics, say), to put back after each pass.

    A write is seen by torch's version counter. Batch norm writes behind its back, so the first
    block also compares all values, and the later ones do if that found any such write.

    Example:
        >>> import torch
        >>> norm = torch.nn.BatchNorm1d(2)
        >>> with BufferKeeper([norm]).kept(), torch.no_grad():
        ...     _ = norm(torch.tensor([[1.0, 5.0], [3.0, 9.0]]))
        ...     print(norm.running_mean)
        tensor([0.2000, 0.7000])
        >>> norm.running_mean, int(norm.num_batches_tracked)
        (tensor([0., 0.]), 0)
    """

    def __init__(self, modules: list[nn.Module]) -> None:
        self.modules = modules
        self.copies: dict[int, tuple[Tensor, int | None, Tensor]] = {}
        self.compare_values = True

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Put every buffer back at the end of the block."""
        found = [(module, dict(module._buffers), dict(vars(module))) for module in self.modules]
        for _, buffers, _ in found:
            for buffer in buffers.values():
                self._copy(buffer)
        try:
            yield
        finally:
            silent = False
            for module, buffers, attributes in found:
                silent |= any([self._put_back(buffer) for buffer in buffers.values()])
                _put_back_objects(module, buffers, attributes)
            self.compare_values &= silent

    def _copy(self, buffer: Tensor | None) -> None:
        if buffer is None:
            return
        known = self.copies.get(id(buffer))
        if known is None or known[1] is None or known[1] != version(buffer):
            # the buffer itself is kept beside its copy, so that its id stays taken
            self.copies[id(buffer)] = (buffer, version(buffer), buffer.detach().clone())

    def _put_back(self, buffer: Tensor | None) -> bool:
        """Whether the buffer was written to without a trace in its version."""
        if buffer is None:
            return False
        _, before, copy = self.copies[id(buffer)]
        written = before != version(buffer)
        compare = self.compare_values or before is None
        silent = not written and compare and _differ(buffer, copy)
        if written or silent:
            with torch.inference_mode(buffer.is_inference()), torch.no_grad():
                buffer.copy_(copy)
            self.copies[id(buffer)] = (buffer, version(buffer), copy)
        return silent


def _put_back_objects(module: nn.Module, buffers: dict, attributes: dict) -> None:
    """Undo what a forward did by assignment to a module's buffers, and to what belongs to them.

    A module that makes a longer table of positions also notes its length in a plain attribute: the
    one without the other would break it.
    """
    now = module._buffers
    if len(now) == len(buffers) and all(now.get(name) is buffers[name] for name in buffers):
        return
    now.clear()
    now.update(buffers)
    vars(module).clear()
    vars(module).update(attributes)


def version(tensor: Tensor) -> int | None:
    """How often a tensor was written to in place; None where torch does not count."""
    return None if tensor.is_inference() else tensor._version


def storage_of(tensor: Tensor) -> StorageWeakRef | None:
    """What tells whether two tensors share memory; None for tensors that have none."""
    try:
        storage = tensor.untyped_storage()
        return StorageWeakRef(storage) if storage.nbytes() else None
    except (RuntimeError, NotImplementedError):  # nested and wrapped tensors
        return None


def _differ(first: Tensor, second: Tensor) -> bool:
    if first.layout != torch.strided:
        return False  # torch compares no sparse tensors; the version counter has to do
    return not torch.equal(first, second)


@contextlib.contextmanager
def evaluating(modules: list[nn.Module]) -> Iterator[None]:
    """Every module in eval mode inside the block, then each as it was.

    The flags are set one by one: a model's own ``train()`` may do more than set flags.
    """
    training = [module for module in modules if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextlib.contextmanager
def without_gradients() -> Iterator[None]:
    """No graph, and ordinary tensors also where the caller is in inference mode.

    Ordinary tensors count their in-place writes, which capture relies on.
    """
    with torch.inference_mode(False), torch.no_grad():
        yield


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Compiled code runs as it is written inside the block: compiled code calls no hooks."""
    if "torch._dynamo" not in sys.modules:  # nothing has been compiled, and importing it is slow
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


@contextlib.contextmanager
def unfused(wanted: bool) -> Iterator[None]:
    """If wanted, ``nn.TransformerEncoderLayer`` calls its parts one by one inside the block."""
    before = torch.backends.mha.get_fastpath_enabled()
    if wanted:
        torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
