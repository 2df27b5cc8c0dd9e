"""D_LR as a torchmetrics metric: streamed, synchronised across processes, checkpointed.

The state is one vector, a packet: the moments laid end to end, headed by their sizes. Synchronising
concatenates the vectors of all processes, whatever their lengths, so that a process which has seen
nothing takes part too; computing merges the packets, which is exact.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torchmetrics import Metric

from richbook.measure.degenerate import warn_if_degenerate
from richbook.measure.distance import distance_to_span
from richbook.measure.errors import DegenerateWarning
from richbook.measure.inputs import (
    as_samples,
    check_same_length,
    checked_precision,
    exact_arithmetic,
    rank_tolerance,
)
from richbook.measure.moments import Moments
from richbook.measure.span import output_span

#: From fine to coarse; a packet's header holds the places of its dtypes in this list.
PRECISIONS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
#: Samples, features, outputs, and the dtypes of the features and of the outputs.
HEADER = 5


class LowRankMeasure(Metric):
    r"""D_LR over a stream of batches, as :func:`d_lr` of all of them together.

    .. math:: D_{LR} = 1 - \mathrm{CKA}(T, T_{MP})

    Nam et al. 2026. Use it like any torchmetrics metric: ``update`` with each batch, ``compute`` at
    the end, alone, in a ``MetricCollection`` or in a LightningModule (``self.log("d_lr",
    self.metric)``). The state is part of ``state_dict()``, so that a run may stop in the middle of
    an epoch and go on. Calling the metric itself, as in ``metric(features, outputs)``, also gives
    the value of that batch alone, for twice the work and mostly from too few samples.

    Args:
        precision: the dtype that the outputs were computed in, if they are cast before they get
            here; else the coarsest dtype of the outputs seen.
        **kwargs: of ``torchmetrics.Metric``, such as ``process_group`` or ``sync_on_compute``.

    Raises:
        RichbookError: in ``update``, shapes that do not fit those before, nan or infinity; nothing
            is added then.

    Warns:
        DegenerateWarning: in ``compute``, what :func:`d_lr` warns of; and fewer than 2 samples,
            which give nan.

    Example:
        >>> import torch
        >>> metric = LowRankMeasure()
        >>> features = torch.randn(1000, 16, generator=torch.Generator().manual_seed(0))
        >>> for batch in features.split(300):
        ...     metric.update(batch, batch[:, :4])
        >>> round(float(metric.compute()), 1)
        0.5
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = True  # the alternative would keep the packets of all batches apart
    plot_lower_bound, plot_upper_bound = 0.0, 1.0
    packets: list[Tensor] | Tensor  # one vector, or none; a tensor while synchronised

    def __init__(self, precision: torch.dtype | None = None, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.precision = precision and checked_precision(precision, torch.float32)
        self.add_state("packets", default=[], dist_reduce_fx="cat", persistent=True)
        self.settled = False
        self.set_dtype(torch.float64)  # of the empty vector that an idle process sends
        self.settled = True

    def update(self, features: Tensor, outputs: Tensor) -> None:
        """Add a batch: the input (n, p) and the output (n, C) of the last linear layer."""
        features = as_samples(features, "features", minimum=1)
        outputs = as_samples(outputs, "outputs", minimum=1, single_column=True)
        check_same_length(features=features, outputs=outputs)
        moments, *dtypes = self._merged()
        moments.update(features, outputs.to(features.device))
        seen = [_place(features.dtype), _place(outputs.dtype)]
        coarsest = [max(pair) for pair in zip(dtypes, seen, strict=True)]
        self.packets = [_pack(moments, coarsest)]

    def compute(self) -> Tensor:
        """D_LR of all samples since the last ``reset``, a float64 scalar."""
        moments, features, outputs = self._merged()
        if moments.count < 2:
            message = f"{moments.count} samples so far, expected at least 2: returning nan"
            warnings.warn(message, DegenerateWarning, stacklevel=3)
            return torch.tensor(torch.nan, dtype=torch.float64, device=self.device)
        tolerance = rank_tolerance(self.precision or PRECISIONS[outputs])
        with exact_arithmetic(moments.feature_mean.device):
            span = output_span(moments.output_mean, moments.output_covariance, tolerance)
            warn_if_degenerate(moments, span, PRECISIONS[features], stacklevel=3)
            return distance_to_span(moments, span, PRECISIONS[features])

    def plot(self, val: object = None, ax: object = None) -> tuple:
        """Plot one value or several, as all torchmetrics do; returns the figure and the Axes."""
        return self._plot(val, ax)

    def _apply(self, fn: Callable, exclude_state: Sequence[str] = "") -> Metric:
        """Move the state where ``fn`` moves the module, but leave it float64 once it is."""

        def moved(tensor: Tensor) -> Tensor:
            there = fn(tensor)
            return there if there.dtype == tensor.dtype else tensor.to(there.device)

        return super()._apply(moved if self.settled else fn, exclude_state)

    @property
    def moments(self) -> Moments:
        """The moments seen by this process, for the other measures."""
        return self._merged()[0]

    def _merged(self) -> tuple[Moments, int, int]:
        """All packets together, and the places of the coarsest dtypes in ``PRECISIONS``."""
        total, dtypes = Moments(), (0, 0)
        together = isinstance(self.packets, Tensor)  # of all processes
        rest = self.packets if together else torch.cat(self.packets or [torch.zeros(0)])
        while len(rest):
            moments, found, rest = _unpack(rest)
            total = total.merge(moments)
            dtypes = tuple(max(pair) for pair in zip(dtypes, found, strict=True))
        return total, *dtypes


def _place(dtype: torch.dtype) -> int:
    """The place of the dtype in ``PRECISIONS``; integers are exact."""
    if dtype in PRECISIONS:
        return PRECISIONS.index(dtype)
    return len(PRECISIONS) - 1 if dtype.is_floating_point else 0


def _pack(moments: Moments, dtypes: list[int]) -> Tensor:
    mean = moments.feature_mean
    sizes = [moments.count, len(mean), len(moments.output_mean), *dtypes]
    parts = [mean.new_tensor(sizes), *(part.flatten() for part in _parts(moments))]
    return torch.cat(parts)


def _parts(moments: Moments) -> list[Tensor]:
    return [value for name, value in vars(moments).items() if name != "count"]


def _unpack(packets: Tensor) -> tuple[Moments, tuple[int, int], Tensor]:
    """The first packet, its dtypes, and the rest."""
    count, width, outputs, *dtypes = (int(number) for number in packets[:HEADER].tolist())
    shapes = [(width,), (outputs,), (width, width), (width, outputs), (outputs, outputs)]
    lengths = [torch.Size(shape).numel() for shape in shapes]
    *parts, rest = packets[HEADER:].split([*lengths, len(packets) - HEADER - sum(lengths)])
    shaped = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
    return Moments(count, *shaped), tuple(dtypes), rest
