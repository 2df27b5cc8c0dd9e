"""The scale of the targets, as seen by D_LR and by the measures that people used before.

Small targets can be reached with features that hardly move (Chizat, Oyallon and Bach 2019), so the
networks here go from lazy to rich. Nam et al., "Decoupling Dynamical Richness from Representation
Learning", ICLR 2026, compare the measures in a table of ticks and crosses.
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

SCALES = (0.03, 0.1, 0.3, 1.0, 3.0)
PAPER = {
    "d_lr": "follows",
    "s_init": "does not follow",
    "parameter_norm": "does not follow",
    "nc1": "wrong direction",
}


def build_one(config: Perceptrons, value: float, seed: int, device: torch.device) -> Trial:
    """The network trained on one scale of the targets."""
    return build(config.replace(target_scale=float(value)), seed, device)


def finding(result: xr.Dataset) -> Finding:
    """Does D_LR follow, and do the others not?"""
    following = follows(result)
    others = [following[name] for name in ("s_init", "parameter_norm", "nc1")]
    same = "yes" if following["d_lr"] and not any(others) else "partly"
    return Finding(same if following["d_lr"] else "no", sentence("target scale", result))


RECIPE = Recipe(
    name="target-scale",
    question="Which measures see that larger targets make training richer?",
    axis="target_scale",
    build=build_one,
    variants={
        "full": Perceptrons(values=SCALES),
        "quick": Perceptrons(
            values=(0.1, 3.0), seeds=2, steps=120, records=5, width=16, ntk_images=20
        ),
    },
    rows=rows("target scale", PAPER),
    finding=finding,
    curves=CURVES,
)
