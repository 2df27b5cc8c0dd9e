r"""The empirical neural tangent kernel, and how far it has moved since initialisation.

Row (i, c) of the Jacobian J is ∇_θ f̂_c(x_i), the derivative of one output at one sample with
respect to all trained parameters. The kernel K = J Jᵀ belongs to the network linearised at θ; in
lazy training it stays what it was (Jacot, Gabriel and Hongler, "Neural Tangent Kernel", NeurIPS
2018).
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from richbook.measure.errors import DegenerateWarning, RichbookError
from richbook.measure.inputs import check_finite, exact_arithmetic, to_float64
from richbook.measure.tangent_blocks import COPIES, Block, plan
from richbook.measure.tangent_rows import TangentRows


def ntk_distance(
    model: nn.Module,
    initial_model: nn.Module,
    inputs: Tensor,
    *,
    memory: int = 2**30,
    outputs: str = "all",
) -> Tensor:
    r"""Compute 1 − CKA(NTK_0, NTK_t), how far the tangent kernel has moved, on a small batch.

    .. math:: K_{(i,c),(j,d)} = \nabla_\theta \hat f_c(x_i) \cdot \nabla_\theta \hat f_d(x_j),
              \qquad K^{\mathrm{tr}}_{ij} = \sum_c K_{(i,c),(j,c)}

    ``outputs="all"`` compares the kernels K of all pairs of a sample and an output, centred over
    the pairs; ``outputs="trace"`` compares K^tr, centred over the samples. The two are different
    numbers. Both are exact, and take a backward pass for each output of each sample, repeated about
    (size of J)/``memory`` times where J does not fit. The trace keeps n² numbers where the other
    keeps (nC)², and takes a few outputs at a time: it is meant for many classes.

    θ are the parameters of ``model`` that require gradients: a frozen body does not count. Of
    ``initial_model`` the same ones are taken if its parameters have the same names and shapes, even
    if they are frozen; of another architecture, those that require gradients. A parameter that is
    used twice is one parameter.

    Args:
        model: the network after training, in eval mode, which maps (n, ...) to (n, C).
        initial_model: the network before training, with as many outputs.
        inputs: shape (n, ...), a row a sample, as both models take them. Tens of samples are usual.
        memory: bytes that may be in use at a time, for kernels, Jacobians and, by an estimate, the
            activations behind them.
        outputs: "all" or "trace".

    Returns:
        A float64 scalar in [0, 1], without gradient. nan, with a ``DegenerateWarning``, where all
        rows of a Jacobian are equal to rounding, as they are for copies of one sample and C = 1.

    Raises:
        RichbookError: no module, or one without trained parameters; outputs that are not (n, C), or
            not the same C; outputs of one sample that depend on the others (batch norm in train
            mode) or on chance (dropout); nan or infinity; too little ``memory`` for even one row,
            with what it takes.

    Example:
        >>> import torch
        >>> inputs = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
        >>> one, other = torch.nn.Linear(5, 3), torch.nn.Linear(5, 3)
        >>> abs(round(float(ntk_distance(one, other, inputs)), 6))  # K is (x·x′ + 1) I for both
        0.0
    """
    if outputs not in ("all", "trace"):
        raise RichbookError(f"outputs: expected 'all' or 'trace', got {outputs!r}")
    if isinstance(memory, bool) or not isinstance(memory, (int, float)) or not memory > 0:
        raise RichbookError(f"memory: expected a positive number of bytes, got {memory!r}")
    # No tensor made in inference mode may enter a graph: leave that mode, and copy.
    with torch.inference_mode(False):
        inputs = _as_inputs(inputs).clone()
        after = TangentRows(model, "model", inputs)
        before = TangentRows(initial_model, "initial_model", inputs, like=model)
        if after.width != before.width:
            raise RichbookError(
                f"initial_model: expected {after.width} outputs, as model has, got {before.width}"
            )
        sides = [(rows, plan(rows, memory, outputs)) for rows in (after, before)]
        kernels = []
        for side in sides:
            kernels.append(_centred_kernel(*side, memory * COPIES, outputs))
    return _one_minus_cosine(*(kernel.to(_home(inputs.device)) for kernel in kernels))


def _home(device: torch.device) -> torch.device:
    """Where float64 lives: the device itself, or the CPU for one that has none."""
    return torch.device("cpu") if device.type == "mps" else device


def _as_inputs(inputs: object) -> Tensor:
    try:
        inputs = torch.as_tensor(inputs).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise RichbookError(
            f"inputs: expected a tensor of shape (n, ...), got {type(inputs).__name__}"
        ) from error
    if inputs.ndim < 1 or len(inputs) < 2:
        raise RichbookError(
            f"inputs: expected at least 2 samples in the first dimension, got {tuple(inputs.shape)}"
        )
    check_finite(inputs.reshape(len(inputs), -1), "inputs")
    return inputs


def _one_minus_cosine(kernel: Tensor, initial: Tensor) -> Tensor:
    """1 − CKA of two centred kernels; nan if one is."""
    size = torch.linalg.vector_norm(kernel) * torch.linalg.vector_norm(initial)
    return 1 - (torch.dot(kernel.flatten(), initial.flatten()) / size).clamp(0, 1)


def _centred_kernel(
    rows: TangentRows, groups: list[list[Block]], copies: float, outputs: str
) -> Tensor:
    """K less its means, (nC, nC) or (n, n) in float64; nan, with a warning, if that is zero.

    Every row is counted from the first one before it is multiplied: where all gradients share a
    large part, the product would otherwise drown what is left after centring.
    """
    total = rows.count * (rows.width if outputs == "all" else 1)
    kernel = torch.zeros(total, total, dtype=torch.float64, device=_home(rows.device))
    size = 0.0
    with exact_arithmetic(rows.device):
        for group in groups:
            first = rows.jacobian(Block.first(group[0], outputs))
            size = size + sum(to_float64(part).square().sum() for part in first)
            for k, left in enumerate(group):
                jacobian = rows.jacobian(left)
                kernel[left.rows, left.rows] += _product(jacobian, jacobian, first, copies, outputs)
                for right in group[:k]:
                    # No name for the other block: it must be gone before the next is made.
                    block = _product(jacobian, rows.jacobian(right), first, copies, outputs)
                    kernel[left.rows, right.rows] += block
                    kernel[right.rows, left.rows] += block.T
                del jacobian
    _check_kernel(kernel, rows)
    raw = kernel.trace() + len(kernel) * size
    kernel -= kernel.mean(0)
    kernel -= kernel.mean(1, keepdim=True)
    if bool(kernel.trace() <= rows.rounding**2 * raw):
        message = (
            f"all rows of the Jacobian of {rows.name} are equal on these inputs, to rounding: "
            "CKA is 0/0, returning nan"
        )
        warnings.warn(message, DegenerateWarning, stacklevel=3)
        kernel.fill_(torch.nan)
    return kernel


def _product(
    left: list[Tensor], right: list[Tensor], first: list[Tensor], copies: float, outputs: str
) -> Tensor:
    """(left − first)(right − first)ᵀ in float64, over the parameters; each a list of one tensor
    (samples, outputs, size) a parameter. ``copies``: bytes for what is cast at a time."""

    def cast(part: Tensor, origin: Tensor, columns: slice) -> Tensor:
        counted = to_float64(part[..., columns]) - to_float64(origin[..., columns])
        return counted.flatten(0, 1) if outputs == "all" else counted.flatten(1)

    total = 0.0
    for a, b, origin in zip(left, right, first, strict=True):
        column = 8 * 2 * (a.shape[0] * a.shape[1] + b.shape[0] * b.shape[1])  # a cast, a difference
        step = max(1, int(copies // column))
        for start in range(0, a.shape[-1], step):
            columns = slice(start, start + step)
            cast_a = cast(a, origin, columns)
            total = total + cast_a @ (cast_a if b is a else cast(b, origin, columns)).T
    return total


def _check_kernel(kernel: Tensor, rows: TangentRows) -> None:
    bad = (~kernel.diagonal().isfinite()).nonzero()
    if len(bad):
        sample = int(bad[0, 0]) * rows.count // len(kernel)
        raise RichbookError(
            f"{rows.name}: its derivatives at sample {sample} contain nan or an infinity, "
            "expected finite numbers; did training diverge?"
        )
