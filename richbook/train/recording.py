"""What is recorded about a network, or about a whole ensemble of them, at a step of training."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from richbook.measure.cka import cka_from_moments
from richbook.measure.collapse import within_over_between
from richbook.measure.distance import low_rank_distance
from richbook.measure.inputs import exact_arithmetic, rank_tolerance, to_float64
from richbook.measure.moments import Moments
from richbook.measure.spectrum import utilization_from_moments
from richbook.train.data import Data

#: Recorded numbers in the order of the design; ``utilization``, a curve of length p, comes on top.
SCALARS = (
    "d_lr",
    "train_loss",
    "train_accuracy",
    "test_accuracy",
    "nc1",
    "s_init",
    "parameter_norm",
)
#: Networks measured at once: bounds the memory for features in float64, and keeps to the caches.
NETWORKS_AT_ONCE = 8


def centred_targets(labels: Tensor, classes: int) -> Tensor:
    """One-hot code less 1/C: (n,) -> (n, C). Times the target scale, these are the targets f*."""
    return torch.nn.functional.one_hot(labels, classes).float() - 1 / classes


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Squared error summed over outputs and averaged over samples: (..., n, C) -> (...)."""
    return (outputs - targets).square().sum(-1).mean(-1)


@dataclass(frozen=True)
class Evaluation:
    """What each of K networks of one seed returned on the data.

    ``initial_features`` are the features of the same training inputs before the first step, which
    all of them share.
    """

    train_features: Tensor  # (K, n, p)
    train_outputs: Tensor  # (K, n, C)
    test_outputs: Tensor  # (K, m, C)
    initial_features: Tensor  # (n, p)
    target_scale: Tensor  # (K,)
    parameter_norm: Tensor  # (K,)

    def record(self, data: Data) -> dict[str, Tensor]:
        """All recorded numbers in float64 on the CPU, (K,), and ``utilization`` (K, p).

        A network has diverged if its outputs, its loss or ‖θ‖² leave the range of float32: all its
        numbers are nan.
        """
        initial = Moments.of(self.initial_features, self.initial_features[:, :0])
        chunks = [
            self._part(slice(start, start + NETWORKS_AT_ONCE))._record(data, initial)
            for start in range(0, len(self.train_features), NETWORKS_AT_ONCE)
        ]
        return {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}

    def _part(self, networks: slice) -> Evaluation:
        each = {name: values[networks] for name, values in vars(self).items()}
        return Evaluation(**each | {"initial_features": self.initial_features})

    def _record(self, data: Data, initial: Moments) -> dict[str, Tensor]:
        labels = data.train_labels.to(self.train_outputs.device)
        present = labels.unique(return_inverse=True)[1]  # a subset may lack some of the classes
        targets = self.target_scale[:, None, None] * centred_targets(labels, data.classes)
        train_loss = squared_error(self.train_outputs, targets)
        finite = train_loss.isfinite() & _all_finite(self.train_features)
        finite &= _all_finite(self.test_outputs)
        finite &= self.parameter_norm.to(finite.device, torch.float32).isfinite()
        features = _zero_unless(finite, self.train_features)
        outputs = _zero_unless(finite, self.train_outputs)
        tolerance = rank_tolerance(outputs.dtype)
        with exact_arithmetic(features.device):
            moments = Moments.of(features, outputs)
            movement = _beside(moments, features, initial, self.initial_features)
        result = {
            "d_lr": low_rank_distance(moments, tolerance, features.dtype),
            "train_loss": train_loss,
            "train_accuracy": _accuracy(outputs, labels),
            "test_accuracy": _accuracy(self.test_outputs, data.test_labels),
            "nc1": within_over_between(features, present),
            "s_init": 1 - cka_from_moments(movement, features.dtype, features.dtype),
            "parameter_norm": self.parameter_norm,
            "utilization": utilization_from_moments(moments, tolerance)[1],
        }
        return {name: _nan_unless(finite, values) for name, values in result.items()}


def _beside(
    moments: Moments, features: Tensor, initial: Moments, initial_features: Tensor
) -> Moments:
    """Moments of features and initial features: only the products between the two are new."""
    centred = initial_features - initial.feature_mean.to(initial_features)  # (n, p)
    return Moments(
        count=moments.count,
        feature_mean=moments.feature_mean,
        output_mean=initial.feature_mean,
        feature_scatter=moments.feature_scatter,
        cross_scatter=to_float64(features.mT @ centred),
        output_scatter=initial.feature_scatter,
    )


def _accuracy(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs.argmax(-1) == labels.to(outputs.device)).float().mean(-1)


def _all_finite(values: Tensor) -> Tensor:
    """(K, n, ·) -> (K,). A sum is finite only if every term is, and takes one pass over memory."""
    return values.sum((-2, -1)).isfinite()


def _zero_unless(finite: Tensor, values: Tensor) -> Tensor:
    return values if bool(finite.all()) else torch.where(finite[:, None, None], values, 0.0)


def _nan_unless(finite: Tensor, values: Tensor) -> Tensor:
    values, finite = values.cpu().double(), finite.cpu()
    return torch.where(finite.reshape(-1, *[1] * (values.ndim - 1)), values, torch.nan)
