"""What people measured before D_LR: movement of the kernel, and the size of the parameters."""

from __future__ import annotations

from torch import Tensor, nn

from richbook.measure.cka import cka
from richbook.measure.errors import RichbookError
from richbook.measure.inputs import to_float64


def kernel_distance(features: Tensor, initial_features: Tensor) -> Tensor:
    r"""Compute S_init = 1 − CKA(T_0, T_t), how far the kernel has moved since initialisation.

    Any two networks can be compared, of different width too: the kernels are functions of two
    samples, and no unit of one network need correspond to a unit of the other.

    Args:
        features: Φ_t, shape (n, p).
        initial_features: Φ_0 of the same samples in the same order, shape (n, p_0).

    Returns:
        A float64 scalar in [0, 1]: 0 if the kernel has only been scaled or rotated. nan, with a
        ``DegenerateWarning``, if one of the two is constant.

    Raises:
        RichbookError: shapes that do not fit, fewer than 2 samples, nan or infinity.

    Example:
        >>> import torch
        >>> initial = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
        >>> abs(round(float(kernel_distance(2 * initial, initial)), 6))
        0.0
        >>> wide = torch.cat([initial, initial.square()], dim=1)  # 8 features against 4
        >>> 0 < float(kernel_distance(wide, initial)) < 1
        True
    """
    return 1 - cka(features, initial_features)


def parameter_norm(model: nn.Module) -> Tensor:
    """Compute ‖θ‖², the sum of squares of all parameters, as a float64 scalar on the CPU.

    Frozen parameters count; a parameter that is used in two places counts once; buffers, such as
    the statistics of batch norm, do not.

    Raises:
        RichbookError: the model has no parameters.

    Example:
        >>> import torch
        >>> layer = torch.nn.Linear(2, 1, bias=False)
        >>> _ = torch.nn.init.constant_(layer.weight, 3.0)
        >>> float(parameter_norm(layer))
        18.0
    """
    parameters = list(model.parameters()) if isinstance(model, nn.Module) else []
    if not parameters:
        raise RichbookError(
            f"model: expected a module with parameters, got {type(model).__name__} with none"
        )
    return sum(to_float64(parameter.detach()).square().sum().cpu() for parameter in parameters)
