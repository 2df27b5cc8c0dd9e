"""Named, seeded recipes of the book's experiments, and their recorded results."""

from richbook.experiments.alignment_sweep import load_alignment_sweep, record_alignment_sweep
from richbook.experiments.comparing import at_equal_loss, rank_correlation
from richbook.experiments.digits_sweep import load_sweep, record_sweep
from richbook.experiments.recipe import Config, Finding, Recipe, Row
from richbook.experiments.recipes import RECIPES
from richbook.experiments.reproducing import reproduce
from richbook.experiments.results import load_result, provenance, reproduction_table
from richbook.experiments.trial import Batches, Trial

__all__ = [
    "RECIPES",
    "Batches",
    "Config",
    "Finding",
    "Recipe",
    "Row",
    "Trial",
    "at_equal_loss",
    "load_alignment_sweep",
    "load_result",
    "load_sweep",
    "provenance",
    "rank_correlation",
    "record_alignment_sweep",
    "record_sweep",
    "reproduce",
    "reproduction_table",
]
