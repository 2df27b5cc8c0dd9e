"""``measure``: every richness measure of a network, from one pass over a loader."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from richbook.measure.capture import ForwardPasses
from richbook.measure.class_geometry import NeuralCollapse
from richbook.measure.collapse import collapse_from_moments, disagreement
from richbook.measure.degenerate import degeneracy
from richbook.measure.distance import distance_to_span
from richbook.measure.errors import DegenerateWarning, RichbookError
from richbook.measure.inputs import checked_precision, exact_arithmetic, rank_tolerance
from richbook.measure.interval import GROUPS, Interval, interval_of_part
from richbook.measure.network.accumulate import Accumulator
from richbook.measure.network.joining import joined
from richbook.measure.network.labels import TargetReader
from richbook.measure.network.report import LayerRichness, Report
from richbook.measure.operators import EIGENVALUE_RESOLUTION
from richbook.measure.richness import d_lr, isotropic_d_lr
from richbook.measure.spectrum import Decomposition, kernel_eigenpairs, share_of_span

#: The nominal level of the report's interval.
LEVEL = 0.95


def measure(
    model: nn.Module,
    loader: Iterable,
    head: str | nn.Module | None = None,
    layers: list[str] | str | None = None,
    *,
    position: int | str | None = None,
    train_mode: bool = False,
    precision: torch.dtype | None = None,
) -> Report:
    r"""Measure how rich a network's features are: one pass over a loader, one report.

    Φ is the input of the last linear layer, and f̂ its output; the layer is found by watching the
    first batch, and the report says which one it is. D_LR (Nam et al. 2026) comes with its value
    for features without structure, an interval, the ranks, the spectrum, the utilisation, and,
    if the loader gives targets, the quality; with integer labels also NC1 to NC4 (Papyan et al.
    2020). The model is left as it was found: modes, hooks, gradients, buffers and random states.

    Args:
        model: any module. It runs in eval mode, without gradients.
        loader: an iterable of batches: tensors, tuples (inputs, targets), or dictionaries whose
            "labels" or "targets" are taken out and whose other entries are keyword arguments.
        head: the last layer, as a name of ``named_modules()`` or a module, if the guess is wrong or
            impossible.
        layers: names of layers whose outputs are measured too, against the outputs of the whole
            network, or "all". Feature maps are averaged over their pixels.
        position: which token of sequences (batch, tokens, width) is a sample: an index such as -1,
            "mean", or "all", for which each token is a sample. With an attention mask in the
            batch's dictionary, -1 is each sample's last token, "mean" averages over tokens, and
            "all" leaves padding out; without one padding counts. Labels (n, T) are taken at the
            same position and never shifted: where a language model's labels are its input tokens,
            the target of a row is the token read there, not the next one. With "mean" such labels
            are left out.
        train_mode: run the model in the modes that its modules are in (and restore what that
            changes) instead of eval mode.
        precision: the dtype that the head's outputs are computed in, if not that of their tensor.

    Returns:
        A ``Report``: a table in a notebook, ``to_dict()``, and attributes such as ``d_lr``.

    Raises:
        RichbookError: a head that cannot be decided on (the message names the candidates), a layer
            that does not exist or is not reached, a loader without batches or with less than two
            samples, nan or infinity in features or outputs.

    Warns:
        DegenerateWarning: D_LR is nan. What merely limits the numbers is in ``report.warnings``.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        >>> inputs = torch.randn(500, 8, generator=torch.Generator().manual_seed(0))
        >>> report = measure(model, [(inputs, torch.arange(500) % 3)])
        >>> report.head, report.samples, report.rank
        ('2', 500, 3)
        >>> 0 < report.d_lr < 1
        True
    """
    if precision is not None:
        checked_precision(precision, torch.float32)
    passes = ForwardPasses(model, loader, head, layers, position=position, train_mode=train_mode)
    found: Accumulator | None = None
    targets = TargetReader()
    for batch in joined(targets.watched(passes)):
        if found is None:
            found = Accumulator(batch, passes.head, targets, precision)
        found.add(batch)
    if found.moments.count < 2:
        raise RichbookError("loader: expected at least 2 samples, got 1")
    with exact_arithmetic(found.moments.feature_mean.device), torch.no_grad():
        found.finish()
        return _report(found, passes)


def _report(found: Accumulator, passes: ForwardPasses) -> Report:
    moments, span, notes = found.richness, found.span, []
    message = degeneracy(moments, span, found.dtype)
    if message:
        notes.append(message)
    if passes.position == "all":
        notes.append(
            "samples of one sequence or image are not independent: the interval is too narrow"
        )
    value = float(distance_to_span(moments, span, found.dtype))
    if message and value != value:
        warnings.warn(message, DegenerateWarning, stacklevel=3)
    rank, eigenvalues, directions = (
        int(span.centred_rank),
        *kernel_eigenpairs(moments.feature_covariance),
    )
    floor = isotropic_d_lr(found.width, rank) if rank else float("nan")
    collapse = _collapse(found, notes)
    notes += [*passes.notes, *([found.targets.note] if found.targets.note else [])]
    return Report(
        d_lr=value,
        isotropic_d_lr=floor,
        interval=_interval(found, value),
        rank=rank,
        feature_rank=_rank(eigenvalues, found),
        effective_rank=float(eigenvalues.sum() ** 2 / eigenvalues.square().sum()),
        samples=moments.count,
        width=found.width,
        outputs=found.outputs,
        precision=str(found.precision).removeprefix("torch."),
        head=passes.head_name,
        decomposition=_decomposition(found, eigenvalues, directions),
        collapse=collapse,
        layers=tuple(_layer(found, name, rank) for name in found.layers),
        warnings=tuple(notes),
    )


def _rank(eigenvalues: Tensor, found: Accumulator) -> int:
    """Directions that vary by more than the rounding of the features."""
    resolution = max(EIGENVALUE_RESOLUTION, 8 * torch.finfo(found.dtype).eps ** 2)
    rank = int((eigenvalues > resolution * eigenvalues[0]).sum())
    return min(rank, found.moments.count - 1)


def _decomposition(found: Accumulator, eigenvalues: Tensor, directions: Tensor) -> Decomposition:
    utilization = share_of_span(found.richness, found.span, eigenvalues, directions)
    targets = found.quality()
    return Decomposition(
        eigenvalues=eigenvalues,
        relative_eigenvalues=eigenvalues / eigenvalues[0],
        utilization=utilization,
        quality=None if targets is None else share_of_span(*targets, eigenvalues, directions),
        directions=directions,
    )


def _interval(found: Accumulator, value: float) -> Interval | None:
    kept = found.kept.rows()
    if len(kept["features"]) < 2 * GROUPS or value != value:
        return None
    return interval_of_part(
        kept["features"],
        found.basis(kept["features"], kept["outputs"]),
        rank_tolerance(torch.float64),
        found.moments.count,
        LEVEL,
        "jackknife",
        torch.Generator().manual_seed(0),
        value,
    )


def _collapse(found: Accumulator, notes: list[str]) -> NeuralCollapse | None:
    """NC1 to NC4; what they warn of is added to the notes."""
    if not found.labelled:
        if found.targets.classes and found.outputs > found.width + 1:
            notes.append(
                f"neural collapse is left out: {found.outputs} classes form no simplex in "
                f"{found.width} features"
            )
        return None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        weight = found.weight if found.outputs > 1 else None  # one output has no row a class
        collapse = collapse_from_moments(found.classes, weight)
    notes += [str(warning.message) for warning in caught]
    kept = found.kept.rows()
    if found.outputs == 1 or bool(collapse.nc1.isnan()):
        return collapse
    predicted = kept["predicted"]
    share = disagreement(kept["features"], found.classes.means, predicted)
    if len(predicted) < found.moments.count:
        notes.append(f"NC4 and the interval are from {len(predicted)} samples drawn at random")
    return replace(collapse, nc4=share)


def _layer(found: Accumulator, name: str, rank: int) -> LayerRichness:
    moments = found.layers[name]
    if moments.count:
        moments = found.seen_by_head(moments) if found.by_head else moments
        value = distance_to_span(moments, found.span, found.dtype)
        width, samples = moments.feature_mean.shape[-1], moments.count
    else:
        kept = found.kept.rows()
        features = kept[f"layer {name}"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DegenerateWarning)
            value = d_lr(features, found.basis(kept["features"], kept["outputs"]))
        width, samples = features.shape[1], len(features)
    floor = isotropic_d_lr(width, rank) if rank else float("nan")
    return LayerRichness(name, width, float(value), floor, samples)
