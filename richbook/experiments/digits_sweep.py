"""The default sweep: weight decay × target scale × learning rate × seed on digits.

The sliders and figures of chapters 0, 1 and 4 show it. ``richbook sweep`` records it again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
import xarray as xr

from richbook.measure import RichbookError
from richbook.train import sweep

GRID = {
    "weight_decay": [0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2],
    "target_scale": [0.03, 0.1, 0.3, 1, 3, 10],
    "learning_rate": [3e-4, 1e-3, 3e-3, 1e-2, 3e-2],
    "seeds": 3,
}
RECORDED = Path(__file__).parent / "recorded"
#: Two bytes a number for the curves, which lie in [0, 1].
CURVE_ENCODING = {
    "dtype": "uint16",
    "scale_factor": 1 / 65000,
    "_FillValue": 65535,
    "zlib": True,
    "complevel": 9,
    "shuffle": True,
}
PACKED = {"utilization": CURVE_ENCODING}
#: Bits of mantissa kept of a scalar: a relative error of at most 2⁻¹³.
SCALAR_BITS = 12


def record_sweep(
    path: str | Path, progress: bool = True, device: torch.device | str | None = None
) -> xr.Dataset:
    """Train the default sweep and write it to ``path`` as netCDF, whole or not at all.

    Returns:
        What was recorded. It takes two to four minutes on two CPU cores.

    Raises:
        RichbookError: the folder of ``path`` does not exist.

    Example:
        >>> record_sweep("no/such/folder/sweep.nc")
        Traceback (most recent call last):
        richbook.measure.errors.RichbookError: path: the folder no/such/folder does not exist
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise RichbookError(f"path: the folder {path.parent} does not exist")
    result = sweep(**GRID, progress=progress, device=device)
    save(result, path)
    return result


def load_sweep(name: str = "digits") -> xr.Dataset:
    """Load a recorded sweep: a dataset as ``sweep`` returns, with how it was made in ``.attrs``.

    Raises:
        RichbookError: no sweep of that name.

    Example:
        >>> recorded = load_sweep()
        >>> list(recorded.d_lr.sizes.items())[:4]
        [('weight_decay', 6), ('target_scale', 6), ('learning_rate', 5), ('seed', 3)]
    """
    path = RECORDED / f"{name}_sweep.nc"
    if not path.is_file():
        names = ", ".join(
            sorted(file.stem.removesuffix("_sweep") for file in RECORDED.glob("*_sweep.nc"))
        )
        raise RichbookError(f"name: expected one of {names or '(none recorded)'}, got {name!r}")
    with xr.open_dataset(path, engine="h5netcdf") as stored:
        recorded = stored.load()
    return recorded.assign(utilization=recorded.utilization.astype(np.float32))


def save(result: xr.Dataset, path: Path, packed: Mapping[str, dict] = PACKED) -> None:
    """Write a sweep compactly; an interrupted write leaves no file of that name.

    ``packed`` says how to store what is not to be stored as rounded scalars.
    """
    encoding = {name: {"zlib": True, "complevel": 9, "shuffle": True} for name in result.data_vars}
    encoding |= packed
    rounded = result.copy()
    for name, values in result.data_vars.items():
        if values.dtype.kind == "f" and name not in packed:
            rounded[name] = values.copy(data=_rounded(values.values))
    partial = path.with_name(path.name + ".partial")
    try:
        rounded.to_netcdf(partial, engine="h5netcdf", encoding=encoding)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _rounded(values: np.ndarray) -> np.ndarray:
    """Round float32 to ``SCALAR_BITS`` bits of mantissa, so that the rest compresses away."""
    drop = 23 - SCALAR_BITS
    bits = values.astype(np.float32).view(np.uint32)
    rounded = (
        (bits + np.uint32(1 << (drop - 1))) & np.uint32(0xFFFFFFFF ^ ((1 << drop) - 1))
    ).view(np.float32)
    return np.where(np.isfinite(values), rounded, values)
