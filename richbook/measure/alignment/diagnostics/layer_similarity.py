"""How alike the layers of one network are: feature reuse as a number."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from richbook.measure.capture import Batch, ForwardPasses
from richbook.measure.cka import cka_from_moments
from richbook.measure.errors import RichbookError
from richbook.measure.inputs import exact_arithmetic, to_float64
from richbook.measure.moments import Moments
from richbook.measure.products import frobenius

#: Beyond this many features in all, the joint moments of the layers would take over 500 MB.
WIDEST = 8192


@dataclass(frozen=True)
class LayerSimilarity:
    """Every pair of layers compared; see :func:`layer_similarity`.

    Attributes:
        names: the layers, in the order of the forward pass.
        cka: float64, (L, L), linear CKA: whether two layers hold the same features, whatever their
            basis. nan for a layer that does not vary.
        moments: float64, (L, L), the cosine of H_k and H_l, unit by unit; nan where widths differ
            and for a layer that is zero.
    """

    names: tuple[str, ...]
    cka: Tensor
    moments: Tensor

    def neighbours(self, kind: str = "cka") -> Tensor:
        """Each layer against the next, shape (L − 1,): the numbers beside the diagonal."""
        if kind not in ("cka", "moments"):
            raise RichbookError(f'kind: expected "cka" or "moments", got {kind!r}')
        return getattr(self, kind).diagonal(1)


def layer_similarity(
    model: nn.Module,
    loader: Iterable,
    layers: list[str] | str = "all",
    *,
    position: int | str | None = None,
) -> LayerSimilarity:
    r"""Compare the outputs of layers with each other: do deeper ones reuse what is there?

    "Reuse", H_l ≈ H_{l+1}, can mean two things. The second moments themselves may be alike,

    .. math:: \cos(H_k, H_l) = \frac{\mathrm{Tr}(H_k H_l)}{\|H_k\|_F \|H_l\|_F} ,

    which compares unit with unit, and so only layers that share a basis, as the blocks of a
    residual network do: renumbering the units of one layer changes it. Or the layers hold the same
    features in other units, which linear CKA (Kornblith et al. 2019; centred) is about. One pass
    over the loader; the memory is the square of the summed widths, whatever the number of samples.
    The model runs in eval mode and is left as it was.

    Args:
        model: any module with a linear head, as for :func:`richbook.measure`.
        loader: an iterable of batches.
        layers: names of modules whose outputs to compare, or "all": every layer and activation
            before the head that gives a row for each sample.
        position: which token of sequences is a sample, as for :func:`richbook.measure`.

    Returns:
        A ``LayerSimilarity``.

    Raises:
        RichbookError: fewer than two layers, or more than 8 192 features in all; what ``measure``
            raises.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 2))
        >>> inputs = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
        >>> found = layer_similarity(model, [inputs])
        >>> found.names, found.cka.shape
        (('0', '1', '2'), torch.Size([3, 3]))
        >>> bool(found.neighbours()[0] > 0.9)  # tanh hardly bends such small values
        True
    """
    joint = raw = None
    passes = ForwardPasses(model, loader, layers=layers, position=position)
    for batch in passes:
        if joint is None:
            names, dtypes = _checked(batch)
            joint, raw = Moments(), [0.0] * len(names)
        with exact_arithmetic(batch.features.device):
            rows = [to_float64(batch.layers[name]) for name in names]
            joint.update(torch.cat(rows, dim=1))
            raw = [known + part.T @ part for known, part in zip(raw, rows, strict=True)]
    widths = [len(moment) for moment in raw]
    every = range(len(names))
    pairs = [[_cka(joint, widths, dtypes, k, m) for m in every] for k in every]
    cosines = [[_cosine(a, b) for b in raw] for a in raw]
    return LayerSimilarity(names, torch.tensor(pairs).double(), torch.tensor(cosines).double())


def _checked(batch: Batch) -> tuple[tuple[str, ...], list[torch.dtype]]:
    names = tuple(batch.layers)
    if len(names) < 2:
        raise RichbookError(
            f"layers: expected at least two to compare, got {', '.join(map(repr, names)) or 'none'}"
        )
    widths = {name: batch.layers[name].shape[1] for name in names}
    if sum(widths.values()) > WIDEST:
        listed = ", ".join(f"{name!r} {width}" for name, width in widths.items())
        raise RichbookError(
            f"layers: {sum(widths.values())} features in all ({listed}), expected at most "
            f"{WIDEST}; choose fewer layers"
        )
    return names, [batch.layers[name].dtype for name in names]


def _cka(
    joint: Moments, widths: list[int], dtypes: list[torch.dtype], first: int, second: int
) -> float:
    one, other = (slice(sum(widths[:k]), sum(widths[: k + 1])) for k in (first, second))
    pair = Moments(
        count=joint.count,
        feature_mean=joint.feature_mean[one],
        output_mean=joint.feature_mean[other],
        feature_scatter=joint.feature_scatter[one, one],
        cross_scatter=joint.feature_scatter[one, other],
        output_scatter=joint.feature_scatter[other, other],
    )
    return float(cka_from_moments(pair, dtypes[first], dtypes[second]))


def _cosine(one: Tensor, other: Tensor) -> float:
    if one.shape != other.shape:
        return float("nan")
    size = frobenius(one) * frobenius(other)
    return float((one * other).sum() / size) if bool(size > 0) else float("nan")
