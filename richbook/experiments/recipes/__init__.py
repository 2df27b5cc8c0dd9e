"""The experiments of the richness paper, one short file each."""

from richbook.experiments.recipe import Recipe
from richbook.experiments.recipes import label_in_pixels

#: Every recipe by the name that ``richbook reproduce`` knows.
RECIPES: dict[str, Recipe] = {module.RECIPE.name: module.RECIPE for module in (label_in_pixels,)}
