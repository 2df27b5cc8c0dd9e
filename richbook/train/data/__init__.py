"""Data sets by name, read from the files in which they are published, fetched, or made."""

from richbook.train.data.idx import read_idx
from richbook.train.data.loading import DATA_NAMES, DIGITS_TRAIN, PICTURE_NAMES, load_data
from richbook.train.data.modular import modular_data
from richbook.train.data.pictures import Data

__all__ = [
    "DATA_NAMES",
    "DIGITS_TRAIN",
    "PICTURE_NAMES",
    "Data",
    "load_data",
    "modular_data",
    "read_idx",
]
