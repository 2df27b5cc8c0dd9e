"""A recipe of milliseconds, whose numbers are known in closed form.

$DESCENT_KILL_AT names a step at which its process is killed, $DESCENT_LOG a file of steps done.
"""

import os
import signal
import time
from dataclasses import dataclass

import torch

from richbook.experiments.recipe import Config, Finding, Recipe, Row
from richbook.experiments.trial import Batches, Trial

SAMPLES = 12


@dataclass(frozen=True)
class Descent(Config):
    """Gradient descent on θ²/2: θ after t steps is (1 − rate)^t · start."""

    values: tuple = (0.1, 0.5)
    seeds: int = 2
    steps: int = 20
    records: int = 4
    pause: float = 0.0
    momentum: float = 0.0
    diverges: bool = False


def _constant(step):
    return 1.0


def build(config, value, seed, device):
    """One number θ, which starts at 1 + seed, and the order of the batches."""
    model = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.fill_(1.0 + seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=value, momentum=config.momentum)
    batches, seen = Batches(SAMPLES, 4, seed), []

    def loss(step):
        time.sleep(config.pause)
        if step == int(os.environ.get("DESCENT_KILL_AT", -1)):
            os.kill(os.getpid(), signal.SIGKILL)
        if "DESCENT_LOG" in os.environ:
            with open(os.environ["DESCENT_LOG"], "a") as log:
                log.write(f"{value} {seed} {step}\n")
        seen.append(int(batches(step).sum()))
        factor = float("nan") if config.diverges and value > 0.3 else 1.0
        return factor * model.weight.square().sum() / 2

    def measure():
        curve = model.weight.flatten() * torch.arange(1, 4)
        return {"theta": model.weight.sum(), "curve": curve, "drawn": float(sum(seen[-1:]))}

    return Trial(model, optimizer, loss, measure, schedule=_constant)


def finding(result):
    """It does."""
    return Finding("yes", "it does")


RECIPE = Recipe(
    name="descent",
    question="Does gradient descent descend?",
    axis="rate",
    build=build,
    variants={"full": Descent(), "quick": Descent(steps=5)},
    rows=(Row("θ at the end", "theta", {"rate": 0.5}, 0.0),),
    finding=finding,
    curves={"curve": ("k",)},
)
