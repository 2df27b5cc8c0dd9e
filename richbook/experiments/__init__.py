"""Named, seeded recipes of the book's experiments, and their recorded results."""

from richbook.experiments.digits_sweep import load_sweep, record_sweep

__all__ = ["load_sweep", "record_sweep"]
