"""The largest curvature of the loss, from products of the Hessian with vectors."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from richbook.measure.alignment.passes.sample_loss import SampleLoss, batch_size
from richbook.measure.alignment.passes.samples import ignored_labels
from richbook.measure.capture.batches import Call, as_call, checked_loader
from richbook.measure.capture.models import checked_model, device_of
from richbook.measure.capture.state import (
    BufferKeeper,
    RandomStream,
    eager,
    evaluating,
    unfused,
)
from richbook.measure.errors import DegenerateWarning, RichbookError
from richbook.measure.inputs import exact_arithmetic


def sharpness(
    model: nn.Module,
    loader: Iterable,
    loss: Callable,
    *,
    tolerance: float = 1e-3,
    iterations: int = 100,
    seed: int = 0,
) -> Tensor:
    r"""Compute the largest eigenvalue of the Hessian of the mean loss, by Lanczos iteration.

    .. math:: \lambda_{\max}\big(\nabla^2_\theta\, E[\ell]\big), \qquad
              \theta \text{ all parameters that require gradients}

    The Hessian is never formed: one iteration takes one product with a vector, which is a forward
    pass and two backward passes over the loader (Pearlmutter, "Fast exact multiplication by the
    Hessian", 1994). Lanczos with full orthogonalisation finds the largest eigenvalue in the sense
    of the number line, where power iteration would find the one largest in size. It stops when the
    residual, which bounds the distance to an eigenvalue, is below ``tolerance`` times the value.
    Steps of plain gradient descent with rate η are unstable above 2/η. Weight decay γ adds γ to
    every eigenvalue; it is not included.

    Args:
        model: any module; it runs in eval mode and is left as it was.
        loader: an iterable of batches that can be gone through more than once, with the same
            samples each time (augmentation would change the Hessian between products).
        loss: as for :func:`layer_moments`; averaged over samples.
        tolerance: relative, above the rounding of the parameters' dtype.
        iterations: at most so many; each keeps a vector of the parameters' size in memory.
        seed: of the vector to start from.

    Returns:
        A float64 scalar on the CPU. It may be negative, where the loss curves down everywhere.

    Raises:
        RichbookError: no trained parameter; a loader that is used up after one pass; arguments out
            of range; nan or infinity; a model that cannot be differentiated twice.

    Warns:
        DegenerateWarning: not converged; the message says how far off it may be.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> loader = [(torch.tensor([[3.0, 0.0], [0.0, 1.0]]), torch.zeros(2, 1))]
        >>> half_square = lambda outputs, targets: (outputs - targets).square().sum(1) / 2
        >>> round(float(sharpness(model, loader, half_square)), 4)  # of diag(9, 1)/2
        4.5
    """
    if not isinstance(tolerance, (int, float)) or not 0 < tolerance < 1:
        raise RichbookError(f"tolerance: expected a number between 0 and 1, got {tolerance!r}")
    if isinstance(iterations, bool) or not isinstance(iterations, int) or iterations < 1:
        raise RichbookError(f"iterations: expected a whole number from 1, got {iterations!r}")
    product = _HessianProduct(model, loader, loss)
    value, residual = _largest(product, tolerance, iterations, seed)
    if residual > tolerance * abs(value):
        warnings.warn(
            f"sharpness: not converged after {iterations} iterations; there is an eigenvalue "
            f"within {residual:.2g} of {value:.4g}, perhaps not the largest",
            DegenerateWarning, stacklevel=2,
        )  # fmt: skip
    return torch.tensor(value, dtype=torch.float64)


def _largest(
    product: _HessianProduct, tolerance: float, iterations: int, seed: int
) -> tuple[float, float]:
    """The largest Ritz value and the norm of its residual."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(product.size, generator=generator).to(product.device, product.dtype)
    basis = [start / torch.linalg.vector_norm(start)]
    diagonal, beside = [], []
    for _ in range(min(iterations, product.size)):
        image = product(basis[-1])
        diagonal.append(float(image @ basis[-1]))
        for _ in range(2):  # once is not enough against rounding
            for vector in basis:
                image = image - (image @ vector) * vector
        beside.append(float(torch.linalg.vector_norm(image)))
        small = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
        off = torch.tensor(beside[:-1], dtype=torch.float64)
        values, vectors = torch.linalg.eigh(small + torch.diag(off, 1) + torch.diag(off, -1))
        value, residual = float(values[-1]), beside[-1] * abs(float(vectors[-1, -1]))
        # a start that lies in an invariant subspace, or all of it, has nothing left to add
        exhausted = beside[-1] <= product.rounding * float(values.abs().max())
        if residual <= tolerance * abs(value) and len(diagonal) > 1 or exhausted:
            return value, 0.0 if exhausted else residual
        basis.append(image / beside[-1])
    return value, 0.0 if len(diagonal) == product.size else residual


class _HessianProduct:
    """v -> ∇²E[ℓ] v over a loader, with vectors of all trained parameters in a row."""

    def __init__(self, model: nn.Module, loader: Iterable, loss: Callable) -> None:
        self.model, self.loader = checked_model(model), checked_loader(loader)
        self.loss = SampleLoss(loss)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        if not self.parameters:
            raise RichbookError(
                "model: none of its parameters requires a gradient, and the Hessian is about those"
            )
        self.size = sum(p.numel() for p in self.parameters)
        self.device = device_of(self.model)
        self.dtype = torch.float32
        for parameter in self.parameters:
            self.dtype = torch.promote_types(self.dtype, parameter.dtype)
        self.rounding = 100 * torch.finfo(self.dtype).eps
        self.buffers = BufferKeeper(list(self.model.modules()))
        self.count: int | None = None

    def __call__(self, vector: Tensor) -> Tensor:
        """The product, in the same dtype."""
        stream = RandomStream([self.device])
        total, count = torch.zeros_like(vector), 0
        with stream.drawn():
            batches = iter(self.loader)
        while True:
            with stream.drawn():
                try:
                    batch = next(batches)
                except StopIteration:
                    break
                with self._model_as_found():
                    part, samples = self._of_batch(as_call(batch, self.device), vector)
            total, count = total + part, count + samples
        self._check(total, count)
        return total / count

    @contextlib.contextmanager
    def _model_as_found(self) -> Iterator[None]:
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            self.buffers.kept(),
            evaluating(self.buffers.modules),
            eager(),
            unfused(True),
            sdpa_kernel(SDPBackend.MATH),  # the other kernels have no second derivative
            exact_arithmetic(self.device),
        ):
            yield

    def _of_batch(self, call: Call, vector: Tensor) -> tuple[Tensor, int]:
        returned = self.model(*call.args, **call.kwargs)
        samples = batch_size(returned, call.targets)
        ignored = ignored_labels(call.targets, self.loss.ignored)
        if ignored is not None:
            samples = int((~ignored).reshape(samples, -1).any(1).sum())
        if not samples:
            return torch.zeros_like(vector), 0
        total = self.loss.total(returned, call.targets, samples)
        try:
            first = torch.autograd.grad(
                total, self.parameters, create_graph=True, allow_unused=True
            )
            second = self._differentiate(first, vector)
        except RuntimeError as error:
            raise RichbookError(f"model: it cannot be differentiated twice: {error}") from error
        pairs = zip(second, self.parameters, strict=True)
        rows = [torch.zeros_like(p) if part is None else part for part, p in pairs]
        return torch.cat([row.flatten().to(self.dtype) for row in rows]), samples

    def _differentiate(
        self, first: tuple[Tensor | None, ...], vector: Tensor
    ) -> tuple[Tensor | None, ...]:
        """The gradient of gradient·vector; a gradient that is constant adds nothing."""
        along = vector.split([p.numel() for p in self.parameters])
        terms = [
            (part * direction.view_as(part).to(part.dtype)).sum()
            for part, direction in zip(first, along, strict=True)
            if part is not None and part.requires_grad
        ]
        if not terms:
            return (None,) * len(self.parameters)
        found = torch.autograd.grad(sum(terms), self.parameters, allow_unused=True)
        if all(part is None for part in found):  # how torch passes over a once_differentiable
            raise RuntimeError("no gradient of its gradients reaches a parameter")
        return found

    def _check(self, total: Tensor, count: int) -> None:
        if count == 0 or self.count not in (None, count):
            raise RichbookError(
                f"loader: it gave {count} samples in this pass"
                + ("" if self.count is None else f" and {self.count} in the first")
                + "; expected the same samples in every pass (a generator is used up after one)"
            )
        self.count = count
        if not bool(total.isfinite().all()):
            raise RichbookError(
                "model: the curvature contains nan or an infinity, expected finite numbers; did "
                "training diverge?"
            )
