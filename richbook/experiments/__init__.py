"""Named, seeded recipes of the book's experiments, and their recorded results."""

from richbook.experiments.alignment_sweep import load_alignment_sweep, record_alignment_sweep
from richbook.experiments.digits_sweep import load_sweep, record_sweep

__all__ = ["load_alignment_sweep", "load_sweep", "record_alignment_sweep", "record_sweep"]
