"""The scale of the targets, as seen by D_LR and by the measures that people used before.

Small targets can be reached with features that hardly move (Chizat, Oyallon and Bach 2019), so the
networks here go from lazy to rich. Nam et al., "Decoupling Dynamical Richness from Representation
Learning", ICLR 2026, compare the measures in a table of ticks and crosses.
"""

from __future__ import annotations

from richbook.experiments.recipes.perceptrons import knob_recipe

RECIPE = knob_recipe(
    name="target-scale",
    axis="target_scale",
    question="Which measures see that larger targets make training richer?",
    values=(0.03, 0.1, 0.3, 1.0, 3.0),
    quick=(0.1, 3.0),
    paper={
        "d_lr": "follows",
        "s_init": "does not follow",
        "parameter_norm": "does not follow",
        "nc1": "wrong direction",
    },
    misled=("s_init", "parameter_norm", "nc1"),
)
