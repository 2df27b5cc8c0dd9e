"""The terms of the stationarity identities of one layer, at one state of its weight.

From the rows h_a and g_b of a batch and W alone; the other side follows, h_b = W h_a and
g_a = Wᵀ g_b. Where a sample has several rows (tokens, positions of a convolution) its gradient
D = Σ_t g_b h_aᵀ sums over them, and so do all moments below, which are averages over samples.
"""

from __future__ import annotations

from torch import Tensor

from richbook.measure.alignment.passes.gradients import LayerCall
from richbook.measure.errors import RichbookError
from richbook.measure.inputs import check_finite, exact_arithmetic, to_float64

#: Samples are multiplied out so many numbers at a time, where each has several rows.
BLOCK_NUMBERS = 2**24


def rows_by_sample(call: LayerCall) -> tuple[Tensor, Tensor]:
    """h_a (n, rows, in) and g_b (n, rows, out) of a layer's call, float64, by sample.

    Raises:
        RichbookError: samples that cannot be told apart, or have different numbers of rows (labels
            that the loss ignores leave some out); nan or infinity.
    """
    name, units = call.name, len(call.inputs)
    counts = None if call.samples is None else call.samples.bincount()
    if counts is None or len(counts[counts > 0].unique()) != 1:
        raise RichbookError(
            f"layers: {name!r} has not the same number of rows for each sample of the batch, "
            "so that no gradient can be given to each; leave it out, and labels to be ignored too"
        )
    samples = int((counts > 0).sum())
    rows = call.rows() if units == samples else call.rows(call.samples.argsort(stable=True))
    for side, values in zip(("h_a", "g_b"), rows, strict=True):
        check_finite(values, f"{side} of the layer {name!r}")
    h_a, g_b = (to_float64(values).unflatten(0, (samples, -1)) for values in rows)
    return h_a, g_b


def balance_terms(h_a: Tensor, g_b: Tensor, weight: Tensor) -> dict[str, Tensor]:
    """Every average that the identities and their assumptions are made of.

    Args:
        h_a: shape (n, rows, in), float64.
        g_b: shape (n, rows, out), float64.
        weight: W, shape (out, in).

    Returns:
        float64 tensors: ``weight`` and ``mean``, W and ∇ = E[g_b h_aᵀ] (out, in). With _b
        (out, out) and with _a (in, in): ``gram``, W Wᵀ; ``cross``, E[g h ᵀ]; ``square``, E[D Dᵀ]
        and E[DᵀD]; ``mean_square``, ∇∇ᵀ and ∇ᵀ∇; ``factored``, E‖h_a‖² G_b and E‖g_b‖² H_a, each
        norm the mean over rows; ``same``, G_b and H_a; ``other``, H_b and G_a; and the scalars
        ``norm_b`` = E‖h_a‖², ``norm_a`` = E‖g_b‖².

    Example:
        >>> import torch
        >>> h_a = torch.tensor([[[1.0, 2.0]], [[0.0, 1.0]]]).double()  # two samples, a row each
        >>> g_b = torch.tensor([[[1.0]], [[-1.0]]]).double()
        >>> terms = balance_terms(h_a, g_b, torch.tensor([[3.0, 0.0]]).double())
        >>> terms["mean"], terms["square_b"]  # D is (1, 2) and (0, −1), of squares 5 and 1
        (tensor([[0.5000, 0.5000]], dtype=torch.float64), tensor([[3.]], dtype=torch.float64))
    """
    with exact_arithmetic(h_a.device):
        count, weight = len(h_a), to_float64(weight)
        flat_h, flat_g = h_a.flatten(0, 1), g_b.flatten(0, 1)
        mean = flat_g.T @ flat_h / count
        h_square, g_square = flat_h.T @ flat_h / count, flat_g.T @ flat_g / count
        norm_b, norm_a = flat_h.square().sum(1).mean(), flat_g.square().sum(1).mean()
        return {
            "weight": weight,
            "mean": mean,
            "gram_b": weight @ weight.T,
            "gram_a": weight.T @ weight,
            "cross_b": mean @ weight.T,  # E[g_b h_bᵀ]
            "cross_a": weight.T @ mean,  # E[g_a h_aᵀ]
            "square_b": _squares(h_a, g_b),
            "square_a": _squares(g_b, h_a),
            "mean_square_b": mean @ mean.T,
            "mean_square_a": mean.T @ mean,
            "factored_b": norm_b * g_square,
            "factored_a": norm_a * h_square,
            "same_b": g_square,
            "same_a": h_square,
            "other_b": weight @ h_square @ weight.T,
            "other_a": weight.T @ g_square @ weight,
            "norm_b": norm_b,
            "norm_a": norm_a,
        }


def _squares(inner: Tensor, outer: Tensor) -> Tensor:
    """E[D Dᵀ] of D = Σ_t outer_t inner_tᵀ: Σ_ts (inner_t · inner_s) outer_t outer_sᵀ."""
    count, rows, width = outer.shape
    if rows == 1:
        scaled = inner.square().sum(-1, keepdim=True) * outer
        return scaled.flatten(0, 1).T @ outer.flatten(0, 1) / count
    total = outer.new_zeros(width, width)
    step = max(1, BLOCK_NUMBERS // (rows * max(rows, width, inner.shape[-1])))
    for start in range(0, count, step):
        part, other = inner[start : start + step], outer[start : start + step]
        mixed = part @ part.mT @ other  # (samples, rows, width)
        total += mixed.flatten(0, 1).T @ other.flatten(0, 1)
    return total / count


def identity(
    terms: dict[str, Tensor], side: str, rate: float, decay: float, batch_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Cross, noise and decay of one side ("a" or "b"), of one state or of averages over states.

    The expected change of W Wᵀ (or WᵀW) in a step is ``rate`` times cross + noise − decay.

    Example:
        >>> import torch
        >>> one = torch.ones(1, 1, 1).double()
        >>> identity(balance_terms(one, one, one[0]), "b", 0.1, 0.5, 1)  # W 1 -> 0.95 + 0.1
        (tensor([[1.9000]], ...), tensor([[0.1000]], ...), tensor([[0.9750]], ...))
    """
    cross, gram = terms[f"cross_{side}"], terms[f"gram_{side}"]
    share, shrunk = 1 / batch_size, rate * decay
    noise = share * terms[f"square_{side}"] + (1 - share) * terms[f"mean_square_{side}"]
    return (1 - shrunk) * (cross + cross.T), rate * noise, decay * (2 - shrunk) * gram
