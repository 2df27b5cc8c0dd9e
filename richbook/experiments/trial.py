"""One network being trained by a recipe: all that it takes to go on, to stop and to come back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

#: Looking at the loss waits for the device, so it is looked at once in so many steps.
STEPS_BETWEEN_LOOKS = 20
#: Apart from the seeds of initial weights, which are small numbers.
BATCH_SEED = 7_000_003


class Batches:
    """Indices of the samples of each step: every epoch is a permutation of its own.

    What a step gets depends on the seed and the step alone, so a run that was stopped goes on with
    the same batches. The last, smaller batch of an epoch is left out.

    Example:
        >>> batches = Batches(count=5, size=2, seed=0)
        >>> bool((batches(3) == Batches(5, 2, 0)(3)).all()), len(set(batches(1).tolist()))
        (True, 2)
    """

    def __init__(self, count: int, size: int, seed: int, device: torch.device | str = "cpu"):
        self.count, self.size, self.seed, self.device = count, min(size, count), seed, device
        self._epoch, self._order = -1, None

    def __call__(self, step: int) -> Tensor:
        """Indices (size,) of step 1, 2, …"""
        in_epoch = self.count // self.size
        epoch, batch = divmod(step - 1, in_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(BATCH_SEED * (self.seed + 1) + epoch)
            self._order = torch.randperm(self.count, generator=generator).to(self.device)
            self._epoch = epoch
        return self._order[batch * self.size : (batch + 1) * self.size]


@dataclass
class Trial:
    """A network, how it learns, and what is recorded of it.

    Attributes:
        model: the network. It is in training mode for ``loss`` and in evaluation mode for
            ``measure``.
        optimizer: a torch optimiser of its parameters.
        loss: the loss of step 1, 2, …, a scalar tensor. Whatever it draws must depend on the step
            alone (see ``Batches``), or a resumed run would differ.
        measure: what is recorded, scalars and curves, called without gradients.
        schedule: a factor of the learning rate at step 1, 2, …
        step: steps done.
        diverged: whether the loss left the finite numbers; everything recorded from then on is nan.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[int], Tensor]
    measure: Callable[[], Mapping[str, float | Tensor]]
    schedule: Callable[[int], float] | None = None
    step: int = 0
    diverged: bool = False
    _rates: list[float] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._rates = [group["lr"] for group in self.optimizer.param_groups]

    @torch.enable_grad()
    def advance(self, to_step: int) -> Iterator[int]:
        """Train up to a step; yields after every step, for progress bars and for stopping."""
        self.model.train()
        while self.step < to_step and not self.diverged:
            step = self.step + 1
            if self.schedule is not None:
                for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
                    group["lr"] = rate * self.schedule(step)
            loss = self.loss(step)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            self.step = step
            if step % STEPS_BETWEEN_LOOKS == 0 or step == to_step:
                self.diverged = not math.isfinite(float(loss.detach()))
            yield step

    @torch.no_grad()
    def record(self) -> dict[str, Tensor]:
        """What ``measure`` says, as float64 tensors on the CPU."""
        self.model.eval()
        measured = self.measure()
        return {
            name: torch.as_tensor(value).detach().to("cpu", torch.float64)
            for name, value in measured.items()
        }

    def state(self) -> dict:
        """All that changes during training, ready for ``torch.save``."""
        return {
            "step": self.step,
            "diverged": self.diverged,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state(self, state: dict) -> None:
        """Go back to where ``state`` was taken."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.diverged = state["step"], state["diverged"]
