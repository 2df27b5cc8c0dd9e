"""Checks and casts that every measure applies to what it is given."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from richbook.measure.errors import DegenerateWarning, RichbookError

#: Beyond this magnitude the fourth powers in a squared Frobenius norm leave float64's range.
LARGEST_MAGNITUDE = 1e70


def as_samples(
    values: object, name: str, *, minimum: int = 2, single_column: bool = False
) -> Tensor:
    """Return ``values`` as a real tensor of shape (n, d), or say what is wrong with it.

    Args:
        values: a tensor, or anything ``torch.as_tensor`` takes, with one row a sample.
        name: the argument's name, for the error message.
        minimum: the smallest number of rows that makes sense.
        single_column: read a vector of n numbers as n samples of one number.

    Raises:
        RichbookError: wrong number of dimensions, too few rows, no columns, complex or non-numeric.
    """
    if hasattr(values, "__array__") and not isinstance(values, Tensor):
        values = np.array(values)  # a copy: torch takes no negative strides, and no data frames
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RichbookError(
            f"{name}: expected a tensor of shape (n, d), got {type(values).__name__}"
        ) from error
    if tensor.is_complex() or tensor.layout != torch.strided:
        got = tensor.dtype if tensor.is_complex() else tensor.layout
        raise RichbookError(f"{name}: expected a dense tensor of real numbers, got {got}")
    if single_column and (tensor.ndim == 1 or tensor.shape[1:] == (1,)):
        if name in ("outputs", "targets") and not tensor.is_floating_point():
            raise RichbookError(
                f"{name}: got a vector of {tensor.shape[0]} whole numbers, which look like class "
                "labels; expected the network's outputs, (n, C) (for labels, their one-hot code)"
            )
        tensor = tensor.reshape(-1, 1)
    if tensor.ndim != 2:
        hint = " (for a sequence of tokens, flatten(0, 1) makes each a sample)"
        raise RichbookError(
            f"{name}: expected shape (n, d), one row a sample, got {tuple(tensor.shape)}"
            + (hint if tensor.ndim == 3 else "")
        )
    if tensor.shape[0] < minimum:
        raise RichbookError(
            f"{name}: expected at least {minimum} samples (rows), got {tensor.shape[0]}"
        )
    if tensor.shape[1] < 1:
        raise RichbookError(
            f"{name}: expected at least one column, got shape {tuple(tensor.shape)}"
        )
    return tensor


def check_same_length(**named: Tensor) -> None:
    """Raise unless all tensors have the same number of rows; the keywords name them."""
    if len({tensor.shape[0] for tensor in named.values()}) > 1:
        sizes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in named.items())
        raise RichbookError(f"expected the same samples (rows) in every argument, got {sizes}")


def check_finite(values: Tensor, name: str, first_row: int = 0) -> float | None:
    """Raise if ``values`` (..., n, d) has a nan, an infinity, or a number too large to square.

    ``first_row`` is added to the row that the message names (for blocks of a longer stream).
    Returns the norm of all values together if it was found on the way: the fastest look at them.
    """
    if values.numel() == 0 or not values.is_floating_point():
        return None
    norm = float(torch.linalg.vector_norm(values.detach()))
    if norm <= LARGEST_MAGNITUDE:
        return norm
    low, high = torch.aminmax(values.detach())  # nan spreads to both
    largest = max(abs(float(low)), abs(float(high)))
    if largest <= LARGEST_MAGNITUDE:
        return None
    if largest < float("inf"):
        raise RichbookError(
            f"{name}: the largest magnitude is {largest:.1e}, expected at most "
            f"{LARGEST_MAGNITUDE:.0e} (larger numbers overflow when squared); rescale them or "
            "check whether training diverged"
        )
    bad_rows = (~torch.isfinite(values.detach())).any(dim=-1).nonzero()
    row = int(bad_rows[0, -1]) + first_row
    kind = "nan" if bool(torch.isnan(values.detach()).any()) else "an infinity"
    raise RichbookError(
        f"{name}: row {row} contains {kind} ({len(bad_rows)} of {values.shape[-2]} rows in this "
        "block do), expected finite numbers; did training diverge?"
    )


def warn_if_few_samples(features: Tensor, stacklevel: int) -> None:
    """Warn at n ≤ p, where eigenfunctions describe the sample and not the network."""
    count, width = features.shape
    if count <= width:
        message = (
            f"{count} samples for {width} features: the eigenfunctions describe this sample, "
            f"not the network; take more than {width} samples"
        )
        warnings.warn(message, DegenerateWarning, stacklevel=stacklevel + 1)


def rank_tolerance(precision: torch.dtype) -> float:
    """Relative size below which a singular value of the outputs is rounding, given their dtype.

    Rounding each number of an (n, C) matrix to ``precision`` leaves singular values of about
    0.2·eps times the largest. Half-precision outputs are accumulated in float32 and rounded once,
    so eps itself is a margin of five. Sums over p terms in float32 or float64 add a few eps of
    their own.
    """
    if not precision.is_floating_point:
        return 8 * torch.finfo(torch.float64).eps
    eps = torch.finfo(precision).eps
    return eps if torch.finfo(precision).bits <= 16 else 8 * eps


def checked_precision(precision: torch.dtype | None, default: torch.dtype) -> torch.dtype:
    """The dtype the outputs were computed in: as declared, else the default, usually their own."""
    if precision is None:
        return default
    if not isinstance(precision, torch.dtype) or not precision.is_floating_point:
        raise RichbookError(
            "precision: expected a floating-point torch.dtype such as torch.float32, "
            f"got {precision!r}"
        )
    return precision


def working_dtype(tensor: Tensor) -> torch.dtype:
    """float32 for half and single precision, float64 for everything else (integers are exact)."""
    if tensor.is_floating_point() and torch.finfo(tensor.dtype).bits <= 32:
        return torch.float32
    return torch.float64


def to_float64(tensor: Tensor) -> Tensor:
    """Cast to float64, on the CPU for a device that has no float64 (Apple's MPS)."""
    if tensor.device.type == "mps":
        tensor = tensor.cpu()
    return tensor.to(torch.float64)


class _ExactProducts:
    """The process-wide switches for TF32 and bf16, held at "ieee" while anyone needs them there."""

    def __init__(self) -> None:
        self.lock, self.users, self.saved = threading.Lock(), 0, []
        self.backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)

    def __enter__(self) -> None:
        with self.lock:
            if self.users == 0:
                self.saved = [backend.fp32_precision for backend in self.backends]
                for backend in self.backends:
                    backend.fp32_precision = "ieee"
            self.users += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.users -= 1
            if self.users == 0:
                for backend, precision in zip(self.backends, self.saved, strict=True):
                    backend.fp32_precision = precision


_exact_products = _ExactProducts()


@contextlib.contextmanager
def exact_arithmetic(device: torch.device) -> Iterator[None]:
    """Switch off autocast, TF32 and bf16 shortcuts: a float32 product is a float32 product."""
    with _exact_products, torch.autocast(device.type, enabled=False):
        yield
