"""Pairs of networks that test alike and are not equally rich: the rounds of `richer_game`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from richbook.measure.errors import RichbookError
from richbook.show.packing import check_sweep
from richbook.show.selection import HYPERPARAMETERS
from richbook.train.settings import is_whole

#: Test accuracies of a pair differ by this much at most.
SAME_ACCURACY = 0.005
#: The larger D_LR of a pair is at least so many times the smaller one.
LEAST_RATIO = 2.0
#: Networks that test worse have learned too little to be rich or lazy.
TRAINED = 0.9


@dataclass(frozen=True)
class Network:
    """One network of a sweep, as it was at the end of training.

    Attributes:
        at: its position on each axis: weight decay, target scale, learning rate, seed.
        d_lr: its D_LR.
        test_accuracy: its accuracy on test samples.
    """

    at: tuple[int, int, int, int]
    d_lr: float
    test_accuracy: float

    @property
    def setting(self) -> tuple[int, int, int]:
        """The position of its three hyperparameters, which other seeds share."""
        return self.at[:-1]

    def of(self, sweep: xr.Dataset) -> xr.Dataset:
        """What the sweep holds of it: scalars over step, utilization over step and k."""
        return sweep.isel(dict(zip((*HYPERPARAMETERS, "seed"), self.at, strict=True)))


def trained_networks(sweep: xr.Dataset) -> list[Network]:
    """Return the networks of a sweep that learned, with a D_LR that is defined and not 0.

    Example:
        >>> from richbook.experiments import load_sweep
        >>> len(trained_networks(load_sweep()))
        379
    """
    check_sweep(sweep)
    last = sweep.isel(step=-1).transpose(*HYPERPARAMETERS, "seed", ...)
    d_lr, tested = (last[name].values.astype(float) for name in ("d_lr", "test_accuracy"))
    learned = (d_lr > 0) & (tested >= TRAINED)  # nan, where a network diverged, is neither
    return [
        Network(tuple(at), float(d_lr[tuple(at)]), float(tested[tuple(at)]))
        for at in np.argwhere(learned).tolist()
    ]


def choose_pairs(sweep: xr.Dataset, pairs: int = 8, seed: int = 0) -> list[tuple[Network, Network]]:
    """Draw pairs of networks with the same test accuracy, one at least twice as rich as the other.

    Test accuracies within a pair differ by at most 0.005, D_LR by a factor of 2 or more. No setting
    of the hyperparameters occurs twice. In half of the pairs the first network is the richer one.
    Pairs that differ most come first.

    Args:
        sweep: what `sweep` or `load_sweep` returned.
        pairs: how many.
        seed: fixes which.

    Raises:
        RichbookError: `pairs` or `seed` is not a whole number, or the sweep has too few such pairs.

    Example:
        >>> from richbook.experiments import load_sweep
        >>> first, second = choose_pairs(load_sweep(), pairs=3)[0]
        >>> abs(first.test_accuracy - second.test_accuracy) <= 0.005
        True
    """
    for name, value, least in (("pairs", pairs, 1), ("seed", seed, 0)):
        if not (is_whole(value) and value >= least):
            raise RichbookError(
                f"{name}: expected a whole number of at least {least}, got {value!r}"
            )
    networks, draw = trained_networks(sweep), np.random.default_rng(seed)
    chosen, used = [], set()
    for one, other in draw.permutation(_candidates(networks)).tolist():
        both = {networks[one].setting, networks[other].setting}
        if len(chosen) < pairs and not both & used:
            used |= both
            chosen.append((networks[one], networks[other]))
    if len(chosen) < pairs:
        raise RichbookError(
            f"pairs={pairs}: the sweep has only {len(chosen)} that test alike and "
            "differ in D_LR, with no setting used twice"
        )
    richer_first = (draw.permutation(pairs) + draw.integers(2)) % 2 == 0
    ordered = sorted(chosen, key=_ratio, reverse=True)
    return [
        tuple(sorted(pair, key=lambda network: network.d_lr, reverse=not first))
        for pair, first in zip(ordered, richer_first, strict=True)
    ]


def _candidates(networks: list[Network]) -> np.ndarray:
    """Return the positions of all pairs that fit, (number, 2), of different settings."""
    d_lr = np.array([network.d_lr for network in networks])
    tested = np.array([network.test_accuracy for network in networks])
    alike = np.abs(tested[:, None] - tested) <= SAME_ACCURACY
    richer = d_lr[:, None] * LEAST_RATIO <= d_lr
    settings = np.array([network.setting for network in networks]).reshape(-1, 3)
    elsewhere = (settings[:, None] != settings).any(-1)
    return np.argwhere(alike & richer & elsewhere)


def _ratio(pair: tuple[Network, Network]) -> float:
    values = [network.d_lr for network in pair]
    return max(values) / min(values)
