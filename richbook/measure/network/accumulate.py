"""One pass's worth of moments: of features, outputs and targets, and of the layers before.

Outputs come in two forms. Fewer than the features, they are measured as they are. As many or more,
they are functions of the features and the head, and their own moments are never formed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from richbook.measure.capture import Batch
from richbook.measure.class_moments import ClassMoments
from richbook.measure.errors import RichbookError
from richbook.measure.head import HeadFunctions, checked_head, features_twice, head_functions
from richbook.measure.inputs import check_finite, rank_tolerance, to_float64
from richbook.measure.interval import MOST_SAMPLES
from richbook.measure.moments import Moments
from richbook.measure.network.affine import affine_map
from richbook.measure.network.kept import Kept
from richbook.measure.network.labels import TargetReader
from richbook.measure.span import OutputSpan, output_span

#: A wider layer's moments would take more than 128 MiB; it is measured on the kept samples.
WIDEST_LAYER = 4096
#: A head that is not affine has its outputs' covariance formed, for no more outputs than this.
MOST_OUTPUTS = 8192


class Accumulator:
    """Adds batches, and at the end tells the moments and what the outputs span."""

    def __init__(
        self,
        first: Batch,
        head: nn.Module,
        targets: TargetReader,
        precision: torch.dtype | None,
    ) -> None:
        self.width, self.outputs = first.features.shape[1], first.outputs.shape[1]
        self.dtype, self.precision = first.features.dtype, precision or first.outputs.dtype
        self.weight, self.bias = affine_map(head, first.features, first.outputs)
        self.by_head = self.weight is not None and self.outputs >= self.width
        if not self.by_head and self.outputs > MOST_OUTPUTS:
            size = 8e-9 * self.outputs**2
            raise RichbookError(
                f"head: {type(head).__name__} is not affine in its {self.width} features, and the "
                f"covariance of its {self.outputs} outputs would take {size:.0f} GB; choose a "
                "layer that is"
            )
        self.moments, self.classes = Moments(), ClassMoments()
        self.layers = {name: Moments() for name in first.layers}
        self.targets = targets
        self.target_dtype: torch.dtype | None = None
        self.labelled = self.outputs <= self.width + 1
        self.kept = Kept(MOST_SAMPLES)
        self.head_functions: HeadFunctions | None = None

    def add(self, batch: Batch) -> None:
        """Add one batch; an error of the moments says which tensor and row was wrong."""
        labels, targets = self.targets.read(batch.targets, self.outputs)
        # Ranks and weak directions are read from the features' moments, which asks for float64.
        features = to_float64(batch.features)
        outputs = features[:, :0] if self.by_head else batch.outputs
        self._note_targets(labels, targets)
        if targets is not None:
            check_finite(targets, "targets", self.moments.count)
        values = outputs if self.target_dtype is None else torch.cat([outputs, targets], dim=1)
        self.moments.update(features, values)
        if self.labelled:
            self.classes.update(features, labels)
        wide = self._add_layers(batch)
        predicted = batch.outputs.argmax(1)
        self.kept.add(features=batch.features, outputs=outputs, predicted=predicted, **wide)

    def _note_targets(self, labels: Tensor | None, targets: Tensor | None) -> None:
        """Targets that stop being usable in some batch are left out of the earlier ones too."""
        self.labelled &= labels is not None
        if self.moments.count == 0:
            self.target_dtype = None if targets is None else targets.dtype
        elif targets is None and self.target_dtype is not None:
            self.moments, self.target_dtype = self._columns(targets=False), None

    def _add_layers(self, batch: Batch) -> dict[str, Tensor]:
        """Update the layers' moments; returns the rows of those too wide to have any."""
        functions, wide = batch.features if self.by_head else batch.outputs, {}
        for name, values in batch.layers.items():
            if len(values) != len(functions):
                raise RichbookError(
                    f"layers: {name!r} gave {len(values)} rows for {len(functions)} samples of the "
                    "head; choose layers and a position that give one row a sample"
                )
            if values.shape[1] > WIDEST_LAYER:
                wide[f"layer {name}"] = values
            else:
                self.layers[name].update(values, functions)
        return wide

    def _columns(self, targets: bool) -> Moments:
        """The moments of the features with the outputs alone, or with the targets alone."""
        own = 0 if self.by_head else self.outputs
        part = slice(own, None) if targets else slice(0, own)
        every = self.moments
        return Moments(
            count=every.count,
            feature_mean=every.feature_mean,
            output_mean=every.output_mean[part],
            feature_scatter=every.feature_scatter,
            cross_scatter=every.cross_scatter[:, part],
            output_scatter=every.output_scatter[part, part],
        )

    def finish(self) -> None:
        """Find what the outputs span, once all batches are in."""
        tolerance, moments = rank_tolerance(self.precision), self._columns(targets=False)
        if self.by_head:
            weight, bias = checked_head(self.weight, self.bias, self.width)
            self.head_functions = head_functions(moments, weight, bias, tolerance)
            self.richness = self.seen_by_head(features_twice(moments))
            self.span = self.head_functions.span
        else:
            self.richness = moments
            self.span = output_span(moments.output_mean, moments.output_covariance, tolerance)

    def seen_by_head(self, moments: Moments) -> Moments:
        """Moments whose outputs were the head's features, with the head's functions instead."""
        return self.head_functions.moments(moments)

    def quality(self) -> tuple[Moments, OutputSpan] | None:
        """Moments of the features and the targets, and the targets' span, if there are any."""
        if self.target_dtype is None:
            return None
        moments = self._columns(targets=True)
        tolerance = rank_tolerance(self.target_dtype)
        return moments, output_span(moments.output_mean, moments.output_covariance, tolerance)

    def basis(self, features: Tensor, outputs: Tensor) -> Tensor:
        """A well-conditioned basis of Ĥ at the kept samples, float64, shape (n, rank)."""
        values = self.head_functions.of(features) if self.by_head else to_float64(outputs)
        span = self.span
        basis = (values - span.mean) @ span.whitening[:, span.kept] + span.offset[span.kept]
        if bool(span.includes_constant):
            basis = torch.cat([torch.ones_like(basis[:, :1]), basis], dim=1)
        return basis
