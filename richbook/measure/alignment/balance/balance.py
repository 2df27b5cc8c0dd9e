"""Is a layer at rest? The identities that hold if it is, measured during training."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from richbook.measure.alignment.balance.checks import (
    check_samples_apart,
    checked_number,
    why_not_balanced,
)
from richbook.measure.alignment.balance.result import (
    LayerBalance,
    SideBalance,
    relative,
    side_balance,
)
from richbook.measure.alignment.balance.terms import balance_terms, identity, rows_by_sample
from richbook.measure.alignment.passes.checks import check_finite_parameters
from richbook.measure.alignment.passes.gradients import GradientPasses, LayerCall
from richbook.measure.errors import DegenerateWarning, RichbookError


class Balance:
    r"""Collects, late in training, what the stationarity of W Wᵀ and WᵀW demands.

    Let D be the mean over a batch of B samples of g_b h_aᵀ, with g_b = −∂ℓ/∂h_b, and assume

    1. each step is W ← (1 − ηγ) W + η D, stochastic gradient descent with decay in the gradient;
    2. the samples of a batch are drawn independently of each other and of W;
    3. averages of W Wᵀ over steps no longer change.

    Multiply the step by itself, average over batches, divide by η: with ∇ = E[g_b h_aᵀ],

    .. math:: (1-\eta\gamma)\, E[g_b h_b^\top + h_b g_b^\top] + \eta N_b
              = (2\gamma - \eta\gamma^2)\, W W^\top, \qquad
              N_b = \tfrac1B E[\|h_a\|^2 g_b g_b^\top] + (1-\tfrac1B) \nabla\nabla^\top

    and for WᵀW the mirror image, with E[g_a h_aᵀ + h_a g_aᵀ] and
    N_a = E[‖g_b‖² h_a h_aᵀ]/B + (1 − 1/B) ∇ᵀ∇. No term is left out: the left side less the right
    one, times η, *is* the expected change in one step. No alignment follows yet. It does if also

    4. norms factorise, E[‖h_a‖² g_b g_bᵀ] = E‖h_a‖² G_b, with c short for E‖h_a‖², and
    5. ∇∇ᵀ is small in N_b, so that N_b ∝ G_b;
    6. h_b of a sample moves by that sample's own gradient alone, h_b ← (1 − ηγ) h_b + (η/B) c g_b,
       with h_a at rest, and H_b is stationary. Then 2γ H_b = (c/B)(E[g_b h_bᵀ + h_b g_bᵀ] +
       (ηc/B) G_b), which is c/B times the identity: H_b ∝ W Wᵀ, forward RWA;
    7. so does E[g_b h_bᵀ], with g_b at rest. Then γ E[h_b g_bᵀ] = (c/B) G_b: the cross moment is
       symmetric and ∝ G_b, and by the identity G_b ∝ W Wᵀ, forward GWA, with
       G_b ∝ γ² H_b ∝ γ² W Wᵀ to first order in ηγ.

    On the input side 4 to 7 with h and g exchanged give backward GWA and RWA, and together all six
    relations of Ziyin et al. (2025, arXiv 2410.03006), the last two by division. Sums over
    other samples change the factors in 6 and 7, so that only directions are compared there.

    ``result()`` has the residual of each identity and of each assumption. A single state of the
    network is noise: feed a few dozen late ones or more, some steps apart. With momentum μ,
    v ← μ v + gradient, η becomes η/(1 − μ), under one more assumption: (8) the gradient is
    uncorrelated with v, as it is for η much below 1/curvature.

    Args:
        model: the module in training. It is measured in the modes it is in (dropout drops), and
            left as it was.
        loss: as for :func:`layer_moments`; the one that training uses, averaged over a batch.
        learning_rate: η.
        weight_decay: γ, above 0: without it nothing is balanced.
        batch_size: B, of training.
        layers: names of linear layers, or modules; None for all that train.
        momentum: μ, in [0, 1).

    Raises:
        RichbookError: a number out of range; at the first update, a layer whose weight is frozen,
            tied, computed from others, or split into groups; batch norm in train mode, which gives
            no sample a gradient of its own.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(4, 2, bias=False)
        >>> draw = torch.Generator().manual_seed(0)
        >>> x, y = torch.randn(64, 4, generator=draw), torch.randn(64, 2, generator=draw)
        >>> loss = lambda outputs, targets: (outputs - targets).square().sum(1) / 2
        >>> found = Balance(model, loss, learning_rate=0.05, weight_decay=0.5, batch_size=8)
        >>> optimiser = torch.optim.SGD(model.parameters(), 0.05, weight_decay=0.5)
        >>> for step in range(1000):
        ...     batch = torch.randint(64, (8,), generator=draw)
        ...     optimiser.zero_grad()
        ...     loss(model(x[batch]), y[batch]).mean().backward()
        ...     optimiser.step()
        ...     if step >= 200 and step % 5 == 0:
        ...         found.update(x, y, step=step)
        >>> side = found.result()[""].output  # the noise of the batches outweighs the loss here
        >>> side.residual < side.residual_without_noise / 2
        True
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable,
        learning_rate: float,
        weight_decay: float,
        batch_size: int,
        layers: str | Iterable[str | nn.Module] | None = None,
        *,
        momentum: float = 0.0,
    ) -> None:
        self.model, self.loss = model, loss
        self.layers = list(layers) if isinstance(layers, (list, tuple, set)) else layers
        rate = checked_number(learning_rate, "learning_rate", 0, math.inf, closed=False)
        self.decay = checked_number(weight_decay, "weight_decay", 0, math.inf, closed=False)
        self.rate = rate / (1 - checked_number(momentum, "momentum", 0, 1, closed=True))
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise RichbookError(f"batch_size: expected a whole number from 1, got {batch_size!r}")
        self.settings = (self.rate, self.decay, batch_size)
        self.sums: dict[str, dict[str, Tensor]] = {}
        self.ends: dict[str, list[tuple[int | None, dict[str, Tensor]]]] = {}
        self.updates = 0

    def update(self, inputs: Tensor, targets: Tensor, step: int | None = None) -> None:
        """Add the present state of the model.

        Args:
            inputs, targets: the samples that training draws its batches from, or many of them:
                expectations are averages over these. In a sample of n, ∇∇ᵀ comes out too large by
                about 1/n of E[D Dᵀ].
            step: the training step, for ``drift``.
        """
        self._add(self.model, inputs, targets, step)

    def _add(self, model: nn.Module, inputs: Tensor, targets: Tensor, step: int | None) -> None:
        passes = GradientPasses(model, [(inputs, targets)], self.loss, self.layers, train_mode=True)
        check_samples_apart(passes.model)
        check_finite_parameters(passes.model)
        for calls in passes:
            measured = [call for call in calls if self._trains(passes, call)]
            if self.updates and {call.name for call in measured} != set(self.sums):
                raise RichbookError("model: it calls other layers than at the first update")
            found = {
                call.name: balance_terms(*rows_by_sample(call), passes.weights[call.name])
                for call in measured
            }
            for name, terms in found.items():  # all of them or, after an error, none
                self._accumulate(name, terms, step)
        if not self.sums:
            raise RichbookError("model: none of its linear layers trains")
        self.updates += 1

    def _trains(self, passes: GradientPasses, call: LayerCall) -> bool:
        """Whether steps move this layer's weight as assumed; an error if it was asked for."""
        first = call.name.partition("#")[0]
        layer = next((m for m, name in passes.chosen.items() if name == first), None)
        called_again = f"{first}#2" in passes.weights
        problem = why_not_balanced(passes.model, layer, f"{first}#2" if called_again else first)
        if problem is not None and not passes.every:
            raise RichbookError(f"layers: {call.name!r} cannot be balanced: {problem}")
        return problem is None

    def _accumulate(self, name: str, terms: dict[str, Tensor], step: int | None) -> None:
        for side in "ab":
            cross, noise, decay = identity(terms, side, *self.settings)
            terms[f"rest_{side}"] = (cross + noise - decay).square().sum()
        known = self.sums.get(name)
        self.sums[name] = terms if known is None else {k: known[k] + terms[k] for k in terms}
        grams = {side: terms[f"gram_{side}"] for side in "ab"}
        self.ends.setdefault(name, [(step, grams)])[1:] = [(step, grams)]

    def result(self) -> dict[str, LayerBalance]:
        """Both identities of every layer, in the order of the forward pass.

        Raises:
            RichbookError: no update yet.

        Warns:
            DegenerateWarning: a single update, which says nothing about averages over steps.
        """
        if not self.updates:
            raise RichbookError("updates: expected at least one before the result, got none")
        if self.updates == 1:
            warnings.warn(
                "a single state of the network: the identities are about averages over many steps",
                DegenerateWarning, stacklevel=2,
            )  # fmt: skip
        return {name: self._layer(name) for name in self.sums}

    def _layer(self, name: str) -> LayerBalance:
        average = {key: value / self.updates for key, value in self.sums[name].items()}
        return LayerBalance(
            name=name,
            updates=self.updates,
            output=self._side(name, average, "b"),
            input=self._side(name, average, "a"),
            mean_weight=relative(average["mean"], self.decay * average["weight"]),
        )

    def _side(self, name: str, average: dict[str, Tensor], side: str) -> SideBalance:
        (first, before), (last, after) = self.ends[name][0], self.ends[name][-1]
        drift = math.nan
        if first is not None and last is not None and last > first:
            moved = torch.linalg.matrix_norm(after[side] - before[side])
            drift = float(moved) / (self.rate * (last - first))
        return side_balance(average, side, *self.settings, self.updates, drift)


def balance(
    training: Iterable[nn.Module],
    inputs: Tensor,
    targets: Tensor,
    loss: Callable,
    learning_rate: float,
    weight_decay: float,
    batch_size: int,
    layers: str | Iterable[str | nn.Module] | None = None,
    *,
    momentum: float = 0.0,
) -> dict[str, LayerBalance]:
    """Average both identities of every layer over states of a network; see :class:`Balance`.

    Args:
        training: yields the model at late steps of training, the same object each time or copies.
        inputs, targets: the samples that training draws its batches from.
        loss, learning_rate, weight_decay, batch_size, layers, momentum: as for :class:`Balance`.

    Returns:
        A dictionary from names to ``LayerBalance``, in the order of the forward pass.

    Raises:
        RichbookError: no state of the network; what ``Balance`` raises.

    Example:
        >>> import torch
        >>> x, y = torch.eye(3), torch.arange(3)
        >>> states = (torch.nn.Linear(3, 3) for _ in range(2))
        >>> list(balance(states, x, y, torch.nn.functional.cross_entropy, 0.1, 0.01, 1))
        ['']
    """
    found = None
    for model in training:
        if found is None:
            found = Balance(
                model, loss, learning_rate, weight_decay, batch_size, layers, momentum=momentum
            )
        found._add(model, inputs, targets, None)
    if found is None:
        raise RichbookError("training: expected states of the network, got none")
    return found.result()
