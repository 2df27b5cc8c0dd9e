"""The experiments of the richness paper, one short file each."""

from richbook.experiments.recipe import Recipe
from richbook.experiments.recipes import (
    batch_norm,
    feature_quality,
    grokking,
    label_in_pixels,
    learning_rate,
    shuffled_labels,
    target_scale,
    weight_decay,
)

MODULES = (
    label_in_pixels,
    shuffled_labels,
    grokking,
    learning_rate,
    batch_norm,
    weight_decay,
    target_scale,
    feature_quality,
)
#: Every recipe by the name that ``richbook reproduce`` knows.
RECIPES: dict[str, Recipe] = {module.RECIPE.name: module.RECIPE for module in MODULES}
