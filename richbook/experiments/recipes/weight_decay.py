"""Weight decay, as seen by D_LR and by the measures that people used before.

Nam et al., "Decoupling Dynamical Richness from Representation Learning", ICLR 2026, compare these
measures in a table of ticks and crosses.
"""

from __future__ import annotations

import torch
import xarray as xr

from richbook.experiments.recipe import Finding, Recipe
from richbook.experiments.recipes.perceptrons import (
    CURVES,
    Perceptrons,
    build,
    follows,
    rows,
    sentence,
)
from richbook.experiments.trial import Trial

DECAYS = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
PAPER = {
    "d_lr": "follows",
    "s_init": "misleads",
    "parameter_norm": "misleads",
    "nc1": "unstable size",
}


def build_one(config: Perceptrons, value: float, seed: int, device: torch.device) -> Trial:
    """The network trained with one weight decay."""
    return build(config.replace(weight_decay=float(value)), seed, device)


def finding(result: xr.Dataset) -> Finding:
    """Does D_LR follow, and do the others mislead?"""
    following = follows(result)
    others = [following["s_init"], following["parameter_norm"]]
    same = "yes" if following["d_lr"] and not any(others) else "partly"
    return Finding(same if following["d_lr"] else "no", sentence("weight decay", result))


RECIPE = Recipe(
    name="weight-decay",
    question="Which measures see that weight decay makes training richer?",
    axis="weight_decay",
    build=build_one,
    variants={
        "full": Perceptrons(values=DECAYS),
        "quick": Perceptrons(
            values=(0.0, 1e-2), seeds=2, steps=120, records=5, width=16, ntk_images=20
        ),
    },
    rows=rows("weight decay", PAPER),
    finding=finding,
    curves=CURVES,
)
