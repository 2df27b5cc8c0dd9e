"""Weight decay, as seen by D_LR and by the measures that people used before.

Nam et al., "Decoupling Dynamical Richness from Representation Learning", ICLR 2026, compare these
measures in a table of ticks and crosses.
"""

from __future__ import annotations

from richbook.experiments.recipes.perceptrons import knob_recipe

RECIPE = knob_recipe(
    name="weight-decay",
    axis="weight_decay",
    question="Which measures see that weight decay makes training richer?",
    values=(0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2),
    quick=(0.0, 1e-2),
    paper={
        "d_lr": "follows",
        "s_init": "misleads",
        "parameter_norm": "misleads",
        "nc1": "unstable size",
    },
    misled=("s_init", "parameter_norm"),
)
