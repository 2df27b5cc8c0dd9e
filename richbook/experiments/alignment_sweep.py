"""The sweep of alignments: weight decay × learning rate × batch size × activation × seed on digits.

The sliders of chapter 9 show it, and its sentence on weight decay is computed from it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import xarray as xr

from richbook.experiments.digits_sweep import RECORDED, save
from richbook.measure import RichbookError
from richbook.train import alignment_sweep
from richbook.train.alignment_recording import ALIGNMENTS

#: Four hidden layers of width 64 without bias, cross-entropy, no momentum: the regime in which the
#: whole hypothesis shows, and what becomes of it on either side.
ALIGNMENT_GRID = {
    "weight_decay": [0, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1],
    "learning_rate": [0.02, 0.05, 0.1],
    "batch_size": [4, 16, 64],
    "activation": ["tanh", "relu", "linear"],
    "seeds": 3,
    "record_at": [0, 10, 30, 100, 300, 1000, 2000, 4000, 8000],
}
#: Two bytes a number, in whole steps of 1/10 000.
COSINE_ENCODING = {
    "dtype": "int16",
    "scale_factor": 1e-4,
    "_FillValue": -32768,
    "zlib": True,
    "complevel": 9,
    "shuffle": True,
}
FILE = "digits_alignment.nc"


def record_alignment_sweep(
    path: str | Path, progress: bool = True, device: torch.device | str | None = None
) -> xr.Dataset:
    """Train the networks of the recorded sweep again and write it to ``path``, whole or not at all.

    Returns:
        What was recorded: 486 networks. It took 22 minutes on one core of a busy machine.

    Raises:
        RichbookError: the folder of ``path`` does not exist.

    Example:
        >>> record_alignment_sweep("no/such/folder/alignment.nc")
        Traceback (most recent call last):
        richbook.measure.errors.RichbookError: path: the folder no/such/folder does not exist
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise RichbookError(f"path: the folder {path.parent} does not exist")
    result = alignment_sweep(**ALIGNMENT_GRID, progress=progress, device=device)
    save(result, path, dict.fromkeys(ALIGNMENTS, COSINE_ENCODING))
    return result


def load_alignment_sweep() -> xr.Dataset:
    """Load the recorded sweep of alignments, with how it was made in ``.attrs``.

    Returns:
        A dataset as ``alignment_sweep`` returns. Alignments are kept to four decimal places.

    Example:
        >>> recorded = load_alignment_sweep()
        >>> final = recorded.alignment.isel(step=-1).mean("seed")
        >>> network = {"activation": "tanh", "learning_rate": 0.05, "batch_size": 16}
        >>> gwa = final.sel(**network, layer=3, side="forward", relation="GWA")
        >>> bool(gwa.sel(weight_decay=0.01) > gwa.sel(weight_decay=0) + 0.1)
        True
    """
    with xr.open_dataset(RECORDED / FILE, engine="h5netcdf") as stored:
        recorded = stored.load()
    return recorded.assign({name: recorded[name].astype(np.float32) for name in ALIGNMENTS})
