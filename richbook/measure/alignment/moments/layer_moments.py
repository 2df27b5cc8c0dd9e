"""H, G and Z on both sides of every linear layer of a network, over a whole loader."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from richbook.measure.alignment.moments.accumulate import UNIT_SIDES, LayerStream, of_directions
from richbook.measure.alignment.moments.layer import LayerMoments, UnitMoments
from richbook.measure.alignment.moments.second_moments import SecondMoment
from richbook.measure.alignment.passes.gradients import GradientPasses, LayerCall
from richbook.measure.alignment.passes.warning import warn_caller
from richbook.measure.interval import GROUPS


def layer_moments(
    model: nn.Module,
    loader: Iterable,
    loss: Callable,
    layers: str | Iterable[str | nn.Module] | None = None,
    *,
    train_mode: bool = False,
    unit: bool = False,
    groups: bool = False,
    seed: int = 0,
) -> dict[str, LayerMoments]:
    """Measure H, G and Z of linear layers over a loader, with one backward pass for each batch.

    A layer multiplies by a matrix, h_b = W h_a. H and G are second moments of h and of
    g = −∂ℓ/∂h on either side of it, ℓ being the loss of one sample of the loader
    (Ziyin et al. 2025, arXiv 2410.03006). Memory does not depend on the number of samples.

    - ``nn.Linear``, wherever it is: every axis but the last counts rows, so that a token is a row.
      Its gradient is that of its whole sequence's loss.
    - ``nn.Conv1d``, ``nn.Conv2d``, ``nn.Conv3d``: every position of the output is a row; h_a is the
      patch under it, in the order of ``F.unfold`` and with the padding filled in; W is
      (out, in·kh·kw), block diagonal with groups.
    - A product by ``F.linear`` with a parameter, under the parameter's name: the projections of
      ``nn.MultiheadAttention`` (queries, keys and values together if they project the same tokens,
      else by rows: "in_proj_weight[0:64]"), or a head that uses the embedding's weight.
    - Left out, with a warning: recurrent layers, which multiply inside, where nothing can see it;
      transposed convolutions, whose outputs add up several W h.
    - A layer that is called several times has a row for each call: "name", "name#2". Tied weights
      are measured layer by layer.
    - Where h_a goes elsewhere too (a residual branch), g_a = Wᵀ g_b leaves out what comes back
      from there.

    The model is left as it was found: modes, hooks, buffers, gradients, random states. It runs
    eagerly if it is compiled, and under the caller's autocast; products are float32 or better.

    Args:
        model: any module. It runs in eval mode, where dropout does nothing and batch norm is a
            fixed map, so that each sample has a loss of its own.
        loader: an iterable of batches, as for :func:`measure`. It is gone through once.
        loss: a function of (what the model returned, the targets) that gives a mean or a sum over
            samples, or one number or several a sample, which are summed. The loss of a sample is
            its share: for ``F.mse_loss``, the mean over its outputs; for a mean over tokens, that
            over its own. A mean with class weights is divided by those of the batch, as in
            training. Samples and tokens whose integer label is −100 (or the loss's
            ``ignore_index``) are left out of H and G.
        layers: names of layers or parameters, or modules (an attention stands for its projections);
            None for every linear layer, convolution and product that the forward pass calls, that a
            gradient reaches, and that takes at most 8 192 numbers.
        train_mode: run the modes as they are: dropout drops, and batch norm takes the statistics of
            the batch, so that −∂ℓ/∂h of a sample includes its effect on the others.
        unit: also keep the covariances of h/|h| and g/|g|: about twice the time for linear layers,
            and many times for convolutions, whose patches are then written out one by one.
        groups: also keep the moments of each of 20 random groups of samples, for an interval.
        seed: of the groups.

    Returns:
        A dictionary from names to ``LayerMoments``, in the order of the forward pass.

    Raises:
        RichbookError: a model, loader, loss or layer that does not fit; nan or infinity.

    Warns:
        DegenerateWarning: a layer was left out, and why; groups without samples.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> inputs = torch.randn(100, 8, generator=torch.Generator().manual_seed(0))
        >>> loader = [(inputs, torch.arange(100) % 3)]
        >>> found = layer_moments(model, loader, nn.functional.cross_entropy)
        >>> found
        {'0': LayerMoments('0', 8 -> 16, 100 rows), '2': LayerMoments('2', 16 -> 3, 100 rows)}
        >>> head = found["2"]
        >>> torch.allclose(head.H_b, head.weight @ head.H_a @ head.weight.T)
        True
    """
    passes = GradientPasses(model, loader, loss, layers, train_mode=train_mode)
    dealer = _Groups(GROUPS if groups else 1, seed)
    streams: dict[str, LayerStream] = {}
    for calls in passes:
        dealer.next_batch()  # all layers put a sample into the same group
        for call in calls:
            if call.name not in streams:
                weight = passes.weights[call.name]
                streams[call.name] = LayerStream(call.name, weight, call.map, dealer.number, unit)
            streams[call.name].add(call, dealer.of(call))
    for stream in streams.values():
        stream.finish()
    found = {name: _finish(streams[name], unit) for name in passes.weights}
    short = [repr(name) for name, layer in found.items() if groups and not layer.groups]
    if short:
        warn_caller(
            f"groups: of {', '.join(short)} not each of the {GROUPS} has a sample that counts, so "
            "that there is no interval; take more samples"
        )
    return found


class _Groups:
    """Deals groups to samples at random, so that their sizes differ by one at most."""

    def __init__(self, number: int, seed: int) -> None:
        self.number, self.generator = number, torch.Generator().manual_seed(seed)
        self.deck = torch.empty(0, dtype=torch.long)
        self.dealt: dict[str, Tensor] = {}

    def next_batch(self) -> None:
        """From here on the samples are others."""
        self.dealt = {}

    def of(self, call: LayerCall) -> Tensor | None:
        """The group of each unit of a call, (units,), by its sample; None if there is but one."""
        if self.number == 1:
            return None
        units = len(call.inputs)
        samples = torch.arange(units) if call.samples is None else call.samples.cpu()
        kind = "units" if call.samples is None else "samples"
        size = int(samples.max()) + 1 if units else 0
        dealt = self.dealt.get(kind, self.deck[:0])
        self.dealt[kind] = torch.cat([dealt, self._deal(size - len(dealt))])
        return self.dealt[kind][samples].to(call.inputs.device)

    def _deal(self, count: int) -> Tensor:
        count = max(count, 0)
        while len(self.deck) < count:
            more = torch.randperm(self.number, generator=self.generator)
            self.deck = torch.cat([self.deck, more])
        dealt, self.deck = self.deck[:count], self.deck[count:]
        return dealt


def _finish(stream: LayerStream, unit: bool) -> LayerMoments:
    """The moments of all groups together, and of each if there are several with samples in them."""
    parts = {side: moments.parts for side, moments in stream.moments.items()}
    together = {side: SecondMoment.pooled(parts[side], stream.sides[side]) for side in parts}
    weight = stream.weight.to(torch.float64)
    groups = ()
    if stream.groups > 1 and all(part.count for every in parts.values() for part in every):
        each = [dict(zip(parts, some, strict=True)) for some in zip(*parts.values(), strict=True)]
        groups = tuple(_moments(stream.name, weight, part, unit) for part in each)
    return replace(_moments(stream.name, weight, together, unit), groups=groups)


def _moments(name: str, weight: Tensor, found: dict[str, SecondMoment], unit: bool) -> LayerMoments:
    h_a, g_b = found["h_a"], found["g_b"]
    directions = None
    if unit:
        sides = [found[of_directions(side)] for side in UNIT_SIDES]
        directions = UnitMoments(
            *(side.covariance for side in sides),
            means=tuple(side.average for side in sides),
            counts=tuple(side.count for side in sides),
        )
    return LayerMoments(
        name=name,
        count=h_a.count,
        weight=weight,
        covariance_h_a=h_a.covariance,
        mean_h_a=h_a.average,
        covariance_g_b=g_b.covariance,
        mean_g_b=g_b.average,
        unit=directions,
    )
