"""The neural feature ansatz: a layer's weight against the gradients of the network's outputs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn

from richbook.measure.alignment.moments.layer_moments import layer_moments
from richbook.measure.capture.batches import first_floating
from richbook.measure.errors import RichbookError
from richbook.measure.products import frobenius

#: Every output takes a pass over the loader.
MOST_OUTPUTS = 4096


@dataclass(frozen=True, repr=False)
class FeatureAnsatz:
    """One layer's WᵀW beside its average gradient outer product; see :func:`nfa`.

    Attributes:
        name: the layer.
        gram: WᵀW, float64, shape (in, in).
        agop: Σ_c E[∇f_c ∇f_cᵀ], the gradient with respect to what the layer takes, same shape.

    Example:
        >>> import torch
        >>> FeatureAnsatz("fc", torch.diag(torch.tensor([1.0, 2.0])), torch.eye(2))
        FeatureAnsatz('fc', width 2, cosine 0.949)
    """

    name: str
    gram: Tensor
    agop: Tensor

    @property
    def cosine(self) -> float:
        """Tr(WᵀW · AGOP) over the product of their norms; 1 if they are proportional."""
        return _cosine(self.gram, self.agop)

    @property
    def correlation(self) -> float:
        """Pearson correlation of the entries of the two matrices."""
        return _cosine(self.gram - self.gram.mean(), self.agop - self.agop.mean())

    def __repr__(self) -> str:
        width = len(self.gram)
        return f"FeatureAnsatz({self.name!r}, width {width}, cosine {self.cosine:.3f})"


def nfa(
    model: nn.Module, loader: Iterable, layers: list[str] | str | None = None
) -> dict[str, FeatureAnsatz]:
    r"""Compare WᵀW of each linear layer with the average gradient outer product of the outputs.

    .. math:: \mathrm{AGOP} = \sum_c E\big[\nabla f_c\, \nabla f_c^{\mathsf T}\big], \qquad
              \nabla f_c = \partial f_c / \partial h_a = W^{\mathsf T}\, \partial f_c/\partial h_b

    The neural feature ansatz says WᵀW ∝ AGOP^α (Radhakrishnan et al., "Mechanism for feature
    learning in neural networks and backpropagation-free machine learning models", Science 2024).
    Backward GWA says the same with the gradient of the loss in place of those of the outputs. The
    loss makes the difference. Write f' = A f with A invertible, and let the loss undo A: nothing
    about the training changes, nor does any g = −∂ℓ/∂h, so GWA stays what it is. But ∂f'/∂h =
    A ∂f/∂h, and AGOP becomes E[J AᵀA Jᵀ] with J the matrix of the ∇f_c: only for orthogonal A is
    it the same. Read the loss itself as the network's one output, and AGOP is G_a.

    Each output takes a forward and a backward pass over the loader. Which layers, and what their
    rows are, is as for :func:`layer_moments`; the model runs in eval mode and is left as it was.

    Args:
        model: any module whose first output is a tensor (n, ...); its entries are the f_c.
        loader: an iterable of batches that can be gone through more than once. Of targets, if
            there are any, only −100 counts: such rows are left out.
        layers: names of layers, or None for all.

    Returns:
        A dictionary from names to ``FeatureAnsatz``, in the order of the forward pass.

    Raises:
        RichbookError: more than 4 096 outputs, or another number of them in some batch; what
            ``layer_moments`` raises.

    Warns:
        DegenerateWarning: a layer was left out; the message says why.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(5, 4, bias=False), nn.Linear(4, 1, bias=False))
        >>> found = nfa(model, [torch.ones(3, 5)])
        >>> round(found["1"].cosine, 9)  # one output, straight from this layer: AGOP is WᵀW
        1.0
    """
    flat = _FlatOutputs()
    first = layer_moments(model, loader, flat, layers)
    total = {name: moments.G_a for name, moments in first.items()}
    called = list(dict.fromkeys(name.partition("#")[0] for name in first))
    for which in range(1, flat.width):
        flat.which = which
        for name, moments in layer_moments(model, loader, flat, called).items():
            total[name] = total[name] + moments.G_a
    return {name: FeatureAnsatz(name, first[name].Z_a, total[name]) for name in first}


class _FlatOutputs:
    """A "loss" that is one of the outputs."""

    def __init__(self) -> None:
        self.which, self.width = 0, 0

    def __call__(self, outputs: object, targets: Tensor | None) -> Tensor:
        values = first_floating(outputs)
        if values is None or values.ndim < 1:
            raise RichbookError(
                f"model: expected outputs (n, ...) of real numbers, got {type(outputs).__name__}"
            )
        values = values.reshape(len(values), -1)
        if not 1 <= values.shape[1] <= MOST_OUTPUTS or self.width not in (0, values.shape[1]):
            wanted = self.width or f"1 to {MOST_OUTPUTS}"
            raise RichbookError(
                f"model: expected {wanted} outputs a sample, got {values.shape[1]}; each takes a "
                "pass over the loader"
            )
        self.width = values.shape[1]
        # zero times the rest, so that a layer which this output does not use has a gradient of zero
        return values[:, self.which] + 0 * values.sum(1)


def _cosine(one: Tensor, other: Tensor) -> float:
    size = frobenius(one) * frobenius(other)
    if not bool(size > 0):
        return float("nan")
    return min(max(float((one * other).sum() / size), -1.0), 1.0)
