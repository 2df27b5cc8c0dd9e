"""Addition modulo a prime, the task on which networks grok: they fit first and generalise later.

Power et al., "Grokking: generalization beyond overfitting on small algorithmic datasets", 2022.
"""

from __future__ import annotations

from numbers import Integral, Real

import torch

from richbook.measure import RichbookError
from richbook.train.data.pictures import Data

#: More pairs than this (the square of it) are no small task any more.
LARGEST_MODULUS = 2000
LARGEST_SEED = 2**62


def modular_data(modulus: int = 97, train_share: float = 0.5, seed: int = 0) -> Data:
    """All pairs (a, b) with the label (a + b) mod ``modulus``, split at random in two parts.

    Args:
        modulus: p; the numbers are 0 to p − 1, and there are p² pairs and p classes.
        train_share: of the pairs, this share trains (rounded) and the rest tests.
        seed: fixes which.

    Returns:
        A ``Data`` whose inputs are int64 tokens (n, 3): a, b and the equals sign, which is the
        token p. There are p + 1 tokens. ``image_shape`` is None.

    Raises:
        RichbookError: an argument out of range, named; a part that would be empty.

    Example:
        >>> data = modular_data(modulus=5)
        >>> data.train_inputs[0].tolist(), int(data.train_labels[0]), data.classes
        ([3, 4, 5], 2, 5)
        >>> len(data.train_inputs), len(data.test_inputs)
        (12, 13)
    """
    _check_whole("modulus", modulus, 2, LARGEST_MODULUS)
    _check_whole("seed", seed, 0, LARGEST_SEED)
    if not (isinstance(train_share, Real) and 0 < train_share < 1):
        raise RichbookError(f"train_share: expected a number between 0 and 1, got {train_share!r}")
    modulus, pairs = int(modulus), int(modulus) ** 2
    trained = round(train_share * pairs)
    if not 0 < trained < pairs:
        raise RichbookError(
            f"train_share: expected a share that leaves at least 1 of {pairs} pairs on each side, "
            f"got {train_share!r}"
        )
    order = torch.randperm(pairs, generator=torch.Generator().manual_seed(int(seed)))
    a, b = order // modulus, order % modulus
    inputs = torch.stack([a, b, torch.full_like(a, modulus)], dim=1)  # (p², 3)
    labels = (a + b) % modulus
    train, test = slice(None, trained), slice(trained, None)
    return Data("modular", inputs[train], labels[train], inputs[test], labels[test], modulus, None)


def _check_whole(name: str, value: object, least: int, most: int) -> None:
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not (whole and least <= value <= most):
        raise RichbookError(
            f"{name}: expected a whole number from {least} to {most}, got {value!r}"
        )
