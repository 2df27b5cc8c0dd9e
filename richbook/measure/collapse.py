"""Neural collapse: how tightly classes gather (NC1), how their means are placed (NC2), and what the
head makes of them (NC3, NC4).

Papyan, Han and Donoho, "Prevalence of neural collapse during the terminal phase of deep learning
training", PNAS 2020 (arXiv 2008.08186).
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import torch
from torch import Tensor

from richbook.measure.class_geometry import (
    INDISTINCT,
    SINGLE,
    NeuralCollapse,
    as_head,
    geometry,
    within_over_between,
)
from richbook.measure.class_moments import ClassMoments, as_labels, check_classes, class_means
from richbook.measure.errors import DegenerateWarning, RichbookError
from richbook.measure.inputs import as_samples, check_finite, to_float64
from richbook.measure.moments import BLOCK_ROWS


def nc1(features: Tensor, labels: Tensor) -> Tensor:
    r"""Compute NC1, the within-class spread in units of the between-class spread: 0 is collapsed.

    .. math:: \mathrm{NC1} = \frac{1}{C} \mathrm{Tr}(\Sigma_W \Sigma_B^+)

    Σ_W averages (Φ − μ_c)(Φ − μ_c)ᵀ over samples; Σ_B averages (μ_c − μ)(μ_c − μ)ᵀ over classes, μ
    being the mean of the class means; Σ_B⁺ is the pseudo-inverse (Papyan, Han and Donoho, PNAS
    2020).

    Args:
        features: shape (n, p).
        labels: integers, shape (n,); classes that do not occur are ignored.

    Returns:
        A float64 scalar, at least 0 and without upper bound. nan, with a ``DegenerateWarning``, for
        one class, identical class means, or a single sample in each class.

    Raises:
        RichbookError: labels that are not n integers, nan or infinity in the features.

    Example:
        >>> import torch
        >>> features = torch.tensor([[1.0], [3.0], [-1.0], [-3.0]])
        >>> round(float(nc1(features, torch.tensor([0, 0, 1, 1]))), 6)
        0.125
    """
    features = as_samples(features, "features")
    check_finite(features, "features")
    _, labels = as_labels(labels, features).unique(return_inverse=True)
    value = within_over_between(features, labels)
    message = INDISTINCT.format("NC1 is") if bool(value.isnan()) else None
    if message is None and len(features) == int(labels.max()) + 1:
        value, message = torch.full_like(value, torch.nan), SINGLE
    if message:
        warnings.warn(message, DegenerateWarning, stacklevel=2)
    return value


def neural_collapse(
    features: Tensor, labels: Tensor, weight: Tensor | None = None, bias: Tensor | None = None
) -> NeuralCollapse:
    r"""Measure the four signs of neural collapse of labelled features and, if given, their head.

    With class means μ_c, their mean μ (each class counts once, however frequent it is), the centred
    means m_c = μ_c − μ as rows of M (C, p), and Σ_W, Σ_B as in :func:`nc1`:

    .. math::
        \mathrm{NC1} &= \tfrac{1}{C} \mathrm{Tr}(\Sigma_W \Sigma_B^+), &
        \mathrm{NC2_{norm}} &= \mathrm{std}_c \|m_c\| \,/\, \mathrm{mean}_c \|m_c\|, \\
        \mathrm{NC3} &= \Big\| \frac{W}{\|W\|_F} - \frac{M}{\|M\|_F} \Big\|_F, &
        \mathrm{NC2_{angle}} &= \mathrm{mean}_{c<c'}
            \Big| \frac{m_c \cdot m_{c'}}{\|m_c\| \|m_{c'}\|} + \frac{1}{C-1} \Big|, \\
        \mathrm{NC4} &= \mathrm{P}\big(\arg\min_c \|\Phi - \mu_c\|
            \ne \arg\max_c (W\Phi + b)_c\big)

    (Papyan, Han and Donoho, PNAS 2020; std divides by C). W enters NC3 as it is. A vector that all
    its rows share changes neither softmax nor argmax, but counts here; to leave it out, give
    ``weight - weight.mean(0)``. NC1 comes out too small, by about the factor 1 − C/n: the means
    are those of the same samples.

    Args:
        features: Φ, shape (n, p), the input of the head.
        labels: classes, integers from 0, shape (n,). They index the rows of ``weight``.
        weight: W of the head, shape (C, p). Without it ``nc3`` and ``nc4`` are nan.
        bias: b of the head, shape (C,); none is 0.

    Returns:
        A ``NeuralCollapse`` on the features' device (on the CPU for MPS). All but ``nc4``
        are differentiable in the features, and ``nc3`` in the weight.

    Raises:
        RichbookError: shapes that do not fit, labels that are no classes of the head, nan or
            infinity.

    Warns:
        DegenerateWarning: numbers are undefined, and nan: all of them for one class or identical
            class means; NC1 if no class has two samples; ``nc2_angle`` if a class mean lies at
            their centre; NC3 and NC4 for a weight of zeros. Or classes do not occur: they are left
            out, and NC3 compares the other rows of W.

    Example:
        >>> import torch
        >>> labels = torch.arange(12) % 3
        >>> simplex = torch.eye(3, dtype=torch.float64) - 1 / 3
        >>> found = neural_collapse(simplex[labels] + 5, labels, weight=2 * simplex)
        >>> {name: round(value, 12) for name, value in found.to_dict().items()}
        {'nc1': 0.0, 'nc2_norm': 0.0, 'nc2_angle': 0.0, 'nc3': 0.0, 'nc4': 0.0}
    """
    features = as_samples(features, "features")
    check_finite(features, "features")
    labels = as_labels(labels, features)
    exact = to_float64(features)
    weight, bias = as_head(weight, bias, exact)
    check_classes(labels, None if weight is None else len(weight))
    present, places, counts = labels.to(exact.device).unique(
        return_inverse=True, return_counts=True
    )
    means = class_means(exact, places, counts)
    within = exact - means[places]

    def spread(inverse: Tensor) -> Tensor:
        return (within @ inverse).square().sum()

    size = exact.detach().square().sum() / len(exact)
    found = geometry(means, present, counts, size, spread, weight)
    if weight is None or bool(found.nc3.isnan()):
        return found
    with torch.no_grad():
        table = means.new_full((len(weight), means.shape[1]), torch.nan)
        table[present] = means
        outputs = ((rows @ weight.T + bias) for rows in exact.split(BLOCK_ROWS))
        predicted = torch.cat([rows.argmax(1) for rows in outputs])
    return replace(found, nc4=disagreement(exact, table, predicted))


def collapse_from_moments(
    class_moments: ClassMoments, weight: Tensor | None = None
) -> NeuralCollapse:
    """Finish a stream of class moments into NC1 to NC3, as :func:`neural_collapse` would.

    ``nc4`` needs the samples a second time, since the class means are known only at the end, and is
    nan: see :func:`disagreement`.

    Args:
        class_moments: what ``ClassMoments.update`` has accumulated, block by block.
        weight: W of the head, shape (C, p). Without it ``nc3`` is nan.

    Raises:
        RichbookError: no samples so far, or a weight of another shape.

    Warns:
        DegenerateWarning: as :func:`neural_collapse`.

    Example:
        >>> import torch
        >>> stream = ClassMoments()
        >>> for shift in (-1.0, 1.0):  # two classes with means 0 and 8 that scatter by 1
        ...     stream.update(torch.tensor([[0 + shift], [8 + shift]]), torch.tensor([0, 1]))
        >>> round(float(collapse_from_moments(stream).nc1), 6)
        0.03125
    """
    if class_moments.means is None:
        raise RichbookError("class_moments: expected at least 2 samples, got none")
    present = class_moments.counts.nonzero()[:, 0]
    means, counts = class_moments.means[present], class_moments.counts[present]
    weight, _ = as_head(weight, None, means)
    if weight is not None and len(weight) < len(class_moments.counts):
        raise RichbookError(
            f"weight: expected a row for each of {len(class_moments.counts)} classes, "
            f"got {len(weight)}"
        )
    scatter = class_moments.within_scatter

    def spread(inverse: Tensor) -> Tensor:
        return ((scatter @ inverse) * inverse).sum()

    size = (scatter.trace() + (counts * means.square().sum(1)).sum()) / counts.sum()
    return geometry(means, present, counts, size, spread, weight)


def disagreement(features: Tensor, means: Tensor, predicted: Tensor) -> Tensor:
    """Share of samples whose nearest class mean is not the predicted class: NC4.

    Args:
        features: shape (n, p).
        means: class means, shape (C, p); a row of nan is a class without a mean, never the nearest.
        predicted: the classes that the network chose, integers, shape (n,).

    Returns:
        A float64 scalar between 0 and 1, without gradient.

    Raises:
        RichbookError: shapes that do not fit, or no class mean at all.

    Example:
        >>> import torch
        >>> features, means = torch.tensor([[0.0], [1.0], [4.0]]), torch.tensor([[0.0], [3.0]])
        >>> round(float(disagreement(features, means, torch.tensor([0, 1, 1]))), 4)
        0.3333
    """
    features = as_samples(features, "features", minimum=1).detach()
    predicted = as_labels(predicted, features, "predicted")
    means = as_samples(means, "means", minimum=1).detach()
    known = (~means.isnan().any(1)).nonzero()[:, 0]
    if not len(known) or means.shape[1] != features.shape[1]:
        raise RichbookError(
            f"means: expected shape (C, {features.shape[1]}) and at least one row without nan, "
            f"got {tuple(means.shape)} with {len(known)}"
        )
    means, known = to_float64(means[known].to(features.device)), known.to(features.device)
    centre = means.mean(0)
    centred = means - centre  # ‖Φ − μ_c‖² is smallest where Φ·m_c − ‖m_c‖²/2 is largest
    offset = centred.square().sum(1) / 2
    wrong = torch.zeros_like(offset[0])
    for rows, chosen in zip(features.split(BLOCK_ROWS), predicted.split(BLOCK_ROWS), strict=True):
        nearest = ((to_float64(rows) - centre) @ centred.T - offset).argmax(1)
        wrong += (known[nearest.to(known.device)] != chosen).sum().to(wrong.device)
    return wrong / len(features)
