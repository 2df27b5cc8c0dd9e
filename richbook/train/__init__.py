"""Data, models, and training: one network, or a whole grid as one batched ensemble."""

from richbook.train.alignment_sweep import alignment_sweep
from richbook.train.data import Data, load_data, modular_data
from richbook.train.models import MLP
from richbook.train.settings import TrainingSettings
from richbook.train.single import History, train, training
from richbook.train.sweep import sweep

__all__ = [
    "MLP",
    "Data",
    "History",
    "TrainingSettings",
    "alignment_sweep",
    "load_data",
    "modular_data",
    "sweep",
    "train",
    "training",
]
