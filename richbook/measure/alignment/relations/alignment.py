"""``alignment``: the six relations of the canonical representation hypothesis, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from richbook.measure.alignment.layers.linear_maps import CONVOLUTIONS
from richbook.measure.alignment.moments.layer import LayerMoments
from richbook.measure.alignment.moments.layer_moments import layer_moments
from richbook.measure.alignment.passes.warning import warn_caller
from richbook.measure.alignment.relations.relations import (
    KINDS,
    RELATIONS,
    SIDES,
    six_alignments,
    six_by_chance,
    six_intervals,
)
from richbook.measure.alignment.relations.table import Alignment, LayerAlignment, Relation, Side
from richbook.measure.errors import RichbookError
from richbook.measure.inputs import exact_arithmetic


def alignment(
    model: nn.Module,
    loader: Iterable,
    loss: Callable,
    layers: str | Iterable[str | nn.Module] | None = None,
    kind: str = "cosine",
    normalize: bool = False,
    *,
    interval: bool | None = None,
    train_mode: bool = False,
    seed: int = 0,
) -> Alignment:
    r"""Measure how well representations, gradients and weights of each linear layer align.

    For a layer h_b = W h_a, the canonical representation hypothesis (Ziyin et al. 2025, arXiv
    2410.03006) says that at the end of training, on either side of the layer,

    .. math::
        H \propto G \quad(\mathrm{RGA}), \qquad H \propto Z \quad(\mathrm{RWA}), \qquad
        G \propto Z \quad(\mathrm{GWA}),

    forward with H_b, G_b and Z_b = WWᵀ, backward with H_a, G_a and Z_a = WᵀW (the matrices of
    :func:`layer_moments`). An alignment of 1 is exact proportionality. Positive matrices have
    positive cosines, so compare with the null: the same spectra with random eigenvectors.

    Args:
        model, loader, loss, layers, train_mode: as for :func:`layer_moments`.
        kind: "cosine", Tr(AB)/(‖A‖‖B‖), what the theory speaks of; or "pearson", the correlation of
            the matrices' entries, what the paper's figures show.
        normalize: take for H and G the covariances of h/|h| and g/|g| over samples: each vector is
            divided by its norm (the bias is not in h), and then the mean is subtracted. A sample
            whose gradient is small counts as much as any other; vectors that are 0 are left out.
            About twice the time for linear layers, and many times for convolutions, whose patches
            are then written out one by one. Z stays as it is.
        interval: also estimate an interval at 95 % by leaving out each of 20 random groups of
            samples in turn, which takes 20 times the memory for moments. None: if the model has no
            convolutions, where it costs little; for a deep convolutional network it takes half as
            long again.
        seed: of the groups, and of the random eigenvectors for "pearson"; for "cosine" their mean
            and standard deviation are exact.

    Returns:
        An ``Alignment``: a table in a notebook, ``to_dict()``, and
        ``found["name"].forward.GWA.value``, with ``.low``, ``.high``, ``.null_mean``, ``.null_std``
        beside it.

    Raises:
        RichbookError: as for :func:`layer_moments`; an unknown kind.

    Warns:
        DegenerateWarning: a layer was left out; or a matrix is 0, and its alignments are nan.

    Example:
        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> loader = [(torch.randn(100, 8), torch.arange(100) % 3)]
        >>> found = alignment(model, loader, nn.functional.cross_entropy)
        >>> gwa = found["0"].forward.GWA
        >>> gwa.low < gwa.value < gwa.high
        True
    """
    _checked_kind(kind)
    if interval is None:
        modules = model.modules() if isinstance(model, nn.Module) else ()
        interval = not any(isinstance(module, CONVOLUTIONS) for module in modules)
    moments = layer_moments(
        model, loader, loss, layers,
        train_mode=train_mode, unit=bool(normalize), groups=interval, seed=seed,
    )  # fmt: skip
    return alignment_of(moments, kind, normalize, seed=seed)


def alignment_of(
    moments: LayerMoments | Mapping[str, LayerMoments] | Iterable[LayerMoments],
    kind: str = "cosine",
    normalize: bool = False,
    *,
    seed: int = 0,
) -> Alignment:
    """The alignments of moments that are there already; the arguments are those of `alignment`.

    Args:
        moments: of one layer, or what :func:`layer_moments` returned: with ``unit=True`` for
            ``normalize``, with ``groups=True`` for intervals.
        kind, normalize, seed: as for :func:`alignment`.

    Raises:
        RichbookError: an unknown kind; ``normalize`` and no moments of directions.

    Warns:
        DegenerateWarning: a matrix is 0, and its alignments are nan.

    Example:
        >>> import torch
        >>> weight = torch.diag(torch.tensor([1.0, 2.0], dtype=torch.float64))
        >>> eye, zero = torch.eye(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
        >>> layer = LayerMoments("fc", 10, weight, eye, zero, weight @ weight, zero)
        >>> found = alignment_of(layer)
        >>> round(found["fc"].forward.GWA.value, 6), round(found["fc"].backward.RWA.value, 6)
        (1.0, 0.857493)
    """
    _checked_kind(kind)
    if isinstance(moments, LayerMoments):
        moments = [moments]
    every = list(moments.values() if isinstance(moments, Mapping) else moments)
    if not all(isinstance(layer, LayerMoments) for layer in every):
        raise RichbookError(
            "moments: expected a LayerMoments, or what layer_moments returns, got "
            f"{type(moments).__name__}"
        )
    generator = torch.Generator().manual_seed(seed)
    rows, notes = [], []
    for layer in every:
        with exact_arithmetic(layer.weight.device), torch.no_grad():
            rows.append(_row(layer, kind, normalize, generator))
        notes += _notes(layer, rows[-1], kind)
    return Alignment(tuple(rows), kind, bool(normalize), tuple(notes))


def _checked_kind(kind: object) -> None:
    if kind not in KINDS:
        raise RichbookError(f"kind: expected 'cosine' or 'pearson', got {kind!r}")


def _row(
    moments: LayerMoments, kind: str, normalize: bool, generator: torch.Generator
) -> LayerAlignment:
    values = six_alignments(moments, kind, normalize)
    nothing = torch.full_like(values, torch.nan)
    low, high = six_intervals(moments, kind, normalize) or (nothing, nothing)
    mean, spread = six_by_chance(moments, kind, normalize, generator)
    numbers = torch.stack([values, low, high, mean, spread], dim=-1)  # (2, 3, 5)
    return LayerAlignment(
        name=moments.name,
        count=moments.count,
        width=moments.weight.shape[1],
        outputs=moments.weight.shape[0],
        forward=_side(numbers[0]),
        backward=_side(numbers[1]),
    )


def _side(numbers: Tensor) -> Side:
    return Side(*(Relation(*row.tolist()) for row in numbers))


def _notes(moments: LayerMoments, row: LayerAlignment, kind: str) -> list[str]:
    """What limits a layer's numbers; a warning is given as well where some are nan."""
    notes = []
    missing = [
        f"{side} {name}" for side in SIDES for name in RELATIONS
        if (value := getattr(getattr(row, side), name).value) != value
    ]  # fmt: skip
    if missing:
        why = "a matrix is 0" + (", or the same in all entries" if kind == "pearson" else "")
        notes.append(f"{row.name!r}: {why}: {', '.join(missing)} {_are(missing)} nan")
        warn_caller(notes[0])
    widest = max(row.width, row.outputs)
    if row.count <= widest:
        notes.append(
            f"{row.name!r}: {row.count} rows for matrices of size {widest}: H and G describe this "
            "sample; take several times more"
        )
    return notes


def _are(several: list) -> str:
    return "are" if len(several) > 1 else "is"
