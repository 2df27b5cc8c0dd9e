"""Alignments along a training run, at a few of its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from torch import nn

from richbook.measure.alignment.relations.alignment import alignment
from richbook.measure.alignment.relations.relations import RELATIONS, SIDES
from richbook.measure.alignment.relations.table import Alignment
from richbook.measure.errors import RichbookError

if TYPE_CHECKING:
    import xarray

#: Steps a decade for ``at="log"``.
A_DECADE = 4
VARIABLES = {"value": "alignment", "low": "low", "high": "high", "null_mean": "null_mean",
             "null_std": "null_std"}  # fmt: skip


class AlignmentHistory:
    """Records the alignments of a network while any loop trains it.

    Call :meth:`record` at every step; it measures at those that were asked for, and does nothing at
    the others. The network is left as it was found, its gradients included.

    Args:
        model, loss, layers, kind, normalize, train_mode, seed: as for :func:`alignment`. The groups
            and the random eigenvectors are the same at every step.
        loader: as for :func:`alignment`, but it is gone through at every recorded step: a list of
            batches or a ``DataLoader``, not a generator.
        at: the steps to record; "log" for 0 and four a decade: 1, 2, 3, 6, 10, 18, 32, 56, 100, …
        interval: whether to record intervals too.

    Raises:
        RichbookError: other steps than whole numbers from 0 on; a loader that can be used but once.

    Example:
        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        >>> inputs, labels = torch.randn(60, 4), torch.arange(60) % 2
        >>> loss = nn.functional.cross_entropy
        >>> history = AlignmentHistory(model, [(inputs, labels)], loss)
        >>> optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> for step in range(11):
        ...     _ = history.record(step)
        ...     optimiser.zero_grad()
        ...     loss(model(inputs), labels).backward()
        ...     optimiser.step()
        >>> history.steps
        [0, 1, 2, 3, 6, 10]
        >>> dict(history.data.sizes)
        {'step': 6, 'layer': 2, 'side': 2, 'relation': 3}
        >>> history.data.alignment.sel(layer="0", side="forward", relation="GWA").shape
        (6,)
    """

    def __init__(
        self,
        model: nn.Module,
        loader: Iterable,
        loss: Callable,
        layers: str | Iterable[str | nn.Module] | None = None,
        kind: str = "cosine",
        normalize: bool = False,
        *,
        at: str | Iterable[int] = "log",
        interval: bool = False,
        train_mode: bool = False,
        seed: int = 0,
    ) -> None:
        if hasattr(loader, "__next__"):
            raise RichbookError(
                f"loader: expected a list of batches or a DataLoader, got {type(loader).__name__}, "
                "which is used up after one step"
            )
        self.model, self.loader, self.loss, self.at = model, loader, loss, _checked_steps(at)
        self.settings = {
            "layers": list(layers) if not isinstance(layers, str | nn.Module | None) else layers,
            "kind": kind,
            "normalize": normalize,
            "interval": interval,
            "train_mode": train_mode,
            "seed": seed,
        }
        self.alignments: dict[int, Alignment] = {}

    @property
    def steps(self) -> list[int]:
        """The steps that were recorded, in rising order."""
        return sorted(self.alignments)

    def record(self, step: int, *, always: bool = False) -> bool:
        """Measure the model as it is now, if the step is one of those to be recorded.

        Args:
            step: how many steps of training the model has had. Recorded twice, the later counts.
            always: record whatever the step is (the last one of a run, say).

        Returns:
            Whether it was recorded.
        """
        step = int(step)
        wanted = _is_log_spaced(step) if self.at == "log" else step in self.at
        if wanted or always:
            self.alignments[step] = alignment(self.model, self.loader, self.loss, **self.settings)
        return wanted or always

    @property
    def data(self) -> xarray.Dataset:
        """The record over (step, layer, side, relation): ``alignment``, ``null_mean``, ``null_std``
        and, if there are intervals, ``low`` and ``high``.

        Raises:
            RichbookError: nothing is recorded yet, or not the same layers at every step.
        """
        import xarray

        if not self.alignments:
            raise RichbookError("history: nothing is recorded yet; call record(step)")
        tables = [self.alignments[step] for step in self.steps]
        names = [[layer.name for layer in table] for table in tables]
        if any(other != names[0] for other in names):
            raise RichbookError(
                "history: expected the same layers at every step, got "
                + " and ".join(sorted({str(other) for other in names}))
            )
        left_out = () if self.settings["interval"] else ("low", "high")
        kept = [what for what in VARIABLES if what not in left_out]
        dims = ("step", "layer", "side", "relation")
        return xarray.Dataset(
            {
                VARIABLES[what]: (dims, [table.array(what).numpy() for table in tables])
                for what in kept
            },
            coords={
                "step": self.steps,
                "layer": names[0],
                "side": list(SIDES),
                "relation": list(RELATIONS),
            },
            attrs={"kind": tables[0].kind, "normalize": int(tables[0].normalize)},
        )


def _checked_steps(at: object) -> str | frozenset[int]:
    if isinstance(at, str):
        if at == "log":
            return at
        raise RichbookError(f'at: expected "log" or a list of steps, got {at!r}')
    try:
        steps = frozenset(int(step) for step in at if int(step) == step and step >= 0)
        whole = len(steps) == len(set(at))
    except (TypeError, ValueError):
        whole = False
    if not whole:
        raise RichbookError(f'at: expected "log" or a list of whole numbers from 0 on, got {at!r}')
    return steps


def _is_log_spaced(step: int) -> bool:
    """Whether a step is 0, or 10^(k/4) rounded, for some whole k."""
    if step < 1:
        return step == 0
    power, k = 1.0, 0
    while round(power) < step:
        k += 1
        power = 10 ** (k / A_DECADE)
    return round(power) == step
