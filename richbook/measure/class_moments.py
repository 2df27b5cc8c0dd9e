"""Class by class: how many samples, where their mean lies, and how they scatter around it.

What neural collapse needs of the data, in one pass and in blocks of any cut. Each class's rows of a
block are centred on their own mean before they are multiplied, and blocks are merged in float64 as
in ``moments.py``, with one step m_b − m_a for every class that occurs in both:

    S = S_a + S_b + Σ_c (n_ac n_bc / n_c) (m_bc − m_ac)(m_bc − m_ac)ᵀ,   n_c = n_ac + n_bc.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from richbook.measure.errors import RichbookError
from richbook.measure.inputs import as_samples, check_finite, exact_arithmetic, to_float64
from richbook.measure.moments import BLOCK_ROWS
from richbook.measure.products import safe_dtype, symmetric_product

#: A larger label is taken for a mistake: the table of means has a row for every number below it.
LARGEST_LABEL = 1_000_000


@dataclass
class ClassMoments:
    """Counts, means and the within-class scatter of labelled features, over the samples so far.

    Attributes:
        num_classes: C. If None, C grows with the largest label seen.
        counts: samples of each class, int64, shape (C,), or None before the first sample.
        means: class means, float64, shape (C, p); a class that has not occurred has a row of nan.
        within_scatter: Σ_i (Φ_i − μ_c(i))(Φ_i − μ_c(i))ᵀ, not divided by n; float64, shape (p, p).

    Example:
        >>> import torch
        >>> stream = ClassMoments()
        >>> for labels in (torch.tensor([0, 2, 0]), torch.tensor([2, 2])):
        ...     stream.update(torch.arange(1.0, 1 + len(labels))[:, None], labels)
        >>> stream.counts.tolist(), stream.means.flatten().tolist()
        ([2, 0, 3], [2.0, nan, 1.6666666666666667])
        >>> round(float(stream.within_scatter), 6)
        2.666667
    """

    num_classes: int | None = None
    counts: Tensor | None = None  # (C,)
    means: Tensor | None = None  # (C, p)
    within_scatter: Tensor | None = None  # (p, p)

    def update(self, features: Tensor, labels: Tensor) -> None:
        """Add samples: features (n, p) and integer labels (n,), cut into blocks of 4096 rows.

        float32 and half-precision features are multiplied in float32, the others in float64. No
        gradient is kept: a stream that kept them would keep all its data.

        Raises:
            RichbookError: another width than before, labels that are not n integers from 0 to
                C − 1, or a nan, infinity or overflow; nothing is added then.
        """
        features = as_samples(features, "features", minimum=0).detach()
        labels = as_labels(labels, features)
        check_classes(labels, self.num_classes)
        self._check_width(features.shape[1])
        check_finite(features, "features", self.count)
        added = ClassMoments(self.num_classes)
        with exact_arithmetic(features.device):
            for rows, names in zip(
                features.split(BLOCK_ROWS), labels.split(BLOCK_ROWS), strict=True
            ):
                if len(rows):
                    added = added.merge(_block_moments(rows, names, self.num_classes))
        vars(self).update(vars(self.merge(added)))

    def merge(self, other: ClassMoments) -> ClassMoments:
        """Class moments of both samples together; neither operand changes.

        Raises:
            RichbookError: different ``num_classes``, or a class beyond it; different widths.
        """
        told = {m.num_classes for m in (self, other)} - {None}
        if len(told) > 1:
            raise RichbookError(
                f"num_classes: expected the same in both, got {self.num_classes} "
                f"and {other.num_classes}"
            )
        num_classes = next(iter(told), None)
        known = [m for m in (self, other) if m.means is not None]
        if not known:
            return ClassMoments(num_classes)
        self._check_width(known[-1].means.shape[1])
        size = max(len(m.counts) for m in known)
        if num_classes is not None:
            check_classes(torch.tensor([size - 1]), num_classes)
            size = num_classes
        if len(known) == 1:
            return ClassMoments(num_classes, *known[0]._padded(size), known[0].within_scatter)
        (count_a, mean_a), (count_b, mean_b) = self._padded(size), other._padded(size)
        counts = count_a + count_b
        in_both = (count_a > 0) & (count_b > 0)
        means = torch.where((count_a > 0)[:, None], mean_a, mean_b)
        step = (mean_b - mean_a)[in_both]  # (classes in both, p)
        share = (count_b.double() / counts.clamp_min(1))[in_both, None]
        means[in_both] += step * share
        pull = step * (count_a[in_both, None] * share).sqrt()
        scatter = self.within_scatter + other.within_scatter + pull.T @ pull
        return ClassMoments(num_classes, counts, means, scatter)

    @property
    def count(self) -> int:
        """Samples so far."""
        return 0 if self.counts is None else int(self.counts.sum())

    def _padded(self, size: int) -> tuple[Tensor, Tensor]:
        """Counts and means with rows for ``size`` classes."""
        missing = size - len(self.counts)
        if not missing:
            return self.counts, self.means
        empty = self.means.new_full((missing, self.means.shape[1]), torch.nan)
        return torch.nn.functional.pad(self.counts, (0, missing)), torch.cat([self.means, empty])

    def _check_width(self, width: int) -> None:
        if self.means is not None and self.means.shape[1] != width:
            raise RichbookError(
                f"features: expected {self.means.shape[1]} columns as in the samples before, "
                f"got {width}"
            )


def as_labels(labels: object, features: Tensor, name: str = "labels") -> Tensor:
    """Labels as int64, shape (n,), on the features' device, or say what is wrong with them."""
    expected = f"{name}: expected {len(features)} integers, one a sample"
    try:
        labels = torch.as_tensor(labels, device=features.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RichbookError(f"{expected}, got {type(labels).__name__}") from error
    if labels.shape != features.shape[:1] or labels.is_floating_point() or labels.is_complex():
        raise RichbookError(f"{expected}, got {labels.dtype} of shape {tuple(labels.shape)}")
    return labels.to(torch.int64)


def check_classes(labels: Tensor, classes: int | None) -> None:
    """Raise unless the labels are numbers of classes, from 0 to C − 1."""
    if not labels.numel():
        return
    lowest, highest = (int(end) for end in torch.aminmax(labels))
    if lowest < 0:
        raise RichbookError(
            f"labels: expected classes numbered from 0, got {lowest}; leave out samples without a "
            "class"
        )
    if classes is not None and highest >= classes:
        raise RichbookError(f"labels: expected classes from 0 to {classes - 1}, got {highest}")
    if classes is None and highest > LARGEST_LABEL:
        raise RichbookError(
            f"labels: expected classes numbered from 0 to at most {LARGEST_LABEL}, got {highest}; "
            "number them consecutively"
        )


def class_means(features: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    """Means (..., C, p) of float64 features (..., n, p) over classes that all occur.

    Counting from the first row keeps a mean that all features share out of the sums.
    """
    first = features[..., :1, :]
    sums = features.new_zeros(*features.shape[:-2], len(counts), features.shape[-1])
    return first + sums.index_add(-2, labels, features - first) / counts[:, None]


def _block_moments(features: Tensor, labels: Tensor, num_classes: int | None) -> ClassMoments:
    """The moments of one block of at least one row."""
    present, places, counts = labels.unique(return_inverse=True, return_counts=True)
    order = torch.arange(len(labels), device=labels.device)
    first = torch.full_like(present, len(labels)).scatter_reduce(0, places, order, "amin")
    values = features.to(safe_dtype(features))
    reference = values[first]  # (classes, p)
    # Counting from the first sample of its class leaves exactly 0 of a class that is one point.
    shifted = values - reference[places]
    device = to_float64(reference).device  # the CPU where the features' device has no float64
    present, places, counts = present.to(device), places.to(device), counts.to(device)
    mean = class_means(to_float64(shifted), places, counts)
    rounded = mean.to(values)
    rest = mean - to_float64(rounded)  # what rounding the mean leaves in the centred rows
    centred = shifted - rounded[places.to(values.device)]
    weighted = counts[:, None] * rest
    size = int(present[-1]) + 1 if num_classes is None else num_classes
    means = mean.new_full((size, features.shape[1]), torch.nan)
    means[present] = to_float64(reference) + mean
    return ClassMoments(
        num_classes=num_classes,
        counts=counts.new_zeros(size).index_copy(0, present, counts),
        means=means,
        within_scatter=to_float64(symmetric_product(centred)) - weighted.T @ rest,
    )
