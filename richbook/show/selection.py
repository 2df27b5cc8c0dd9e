"""Find a sweep's variable, axis or cell by name and value, or say which ones there are."""

from collections.abc import Iterable

import numpy as np
import xarray as xr

from richbook.measure.errors import RichbookError

#: The three hyperparameters of a sweep, in the order of its dimensions.
HYPERPARAMETERS = ("weight_decay", "target_scale", "learning_rate")

#: A phrase and, with its symbol and unit, an axis label for every name a sweep or a history knows.
WORDS = {
    "weight_decay": "weight decay",
    "target_scale": "target scale",
    "learning_rate": "learning rate",
    "d_lr": "D_LR",
    "s_init": "S_init",
    "parameter_norm": "parameter norm",
    "nc1": "NC1",
    "train_loss": "training loss",
    "train_accuracy": "train accuracy",
    "test_accuracy": "test accuracy",
}
SYMBOLS = {"weight_decay": r"\gamma", "target_scale": "s", "learning_rate": r"\eta"}
AXIS_LABELS = {
    "weight_decay": r"weight decay $\gamma$",
    "target_scale": r"target scale $s$",
    "learning_rate": r"learning rate $\eta$ (per step)",
    "step": r"training step $t$ (updates)",
    "k": r"number of eigenfunctions $k$",
    "d_lr": r"$D_{\mathrm{LR}}$",
    "s_init": r"$S_{\mathrm{init}}$",
    "parameter_norm": r"$\|\theta\|^2$",
    "nc1": r"NC1",
    "train_loss": r"training loss (squared error)",
    "train_accuracy": "train accuracy (fraction correct)",
    "test_accuracy": "test accuracy (fraction correct)",
    "utilization": r"cumulative utilisation $\hat\Pi(k)$",
}


def listed(values: Iterable) -> str:
    """Write values as a list for an error message.

    Example:
        >>> listed([0.0, 1e-4, 0.1])
        '0, 0.0001, 0.1'
    """
    return ", ".join(f"{v:g}" if isinstance(v, (int, float, np.number)) else str(v) for v in values)


def short_value(value: float) -> str:
    """Write a hyperparameter's value in as few characters as it takes, for ticks and labels.

    Example:
        >>> [short_value(v) for v in (0, 0.0003, 0.03, 1.0, 10)]
        ['0', '3e-4', '0.03', '1', '10']
    """
    if value == 0 or not 0 < abs(value) < 0.01:
        return f"{value:g}"
    mantissa, exponent = f"{value:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def axis_label(name: str) -> str:
    """Return the axis label of a variable or dimension: its words, symbol and unit.

    Example:
        >>> axis_label("target_scale")
        'target scale $s$'
    """
    return AXIS_LABELS.get(name, name.replace("_", " "))


def get_variable(data: xr.Dataset, name: str, argument: str = "variable") -> xr.DataArray:
    """Return a variable of a history or sweep.

    Raises:
        RichbookError: if `data` is no Dataset or has no such variable; the message lists those it
            has.
    """
    if not isinstance(data, xr.Dataset):
        raise RichbookError(f"data must be an xarray.Dataset, not {type(data).__name__}")
    if name not in data.data_vars:
        raise RichbookError(
            f"{argument}={name!r} is not in the data; it has: {listed(sorted(data.data_vars))}"
        )
    return data[name]


def check_axis(data: xr.Dataset | xr.DataArray, name: str, argument: str) -> np.ndarray:
    """Return the values on the axis `name`.

    Raises:
        RichbookError: if the data has no such axis; the message lists those it has.
    """
    if name not in data.dims:
        raise RichbookError(
            f"{argument}={name!r} is not an axis of the data; it has: {listed(data.dims)}"
        )
    return np.asarray(data[name].values)


def check_drawn(axis: str | None, argument: str) -> None:
    """Raise a RichbookError if `axis` is the one that every plot takes its mean and band over."""
    if axis == "seed":
        raise RichbookError(
            f"{argument}='seed' cannot be an axis of the plot: its mean and range "
            "are drawn; fix seed= to see one"
        )


def index_of(data: xr.Dataset | xr.DataArray, axis: str, value: float) -> int:
    """Return the position of `value` on an axis, up to rounding.

    Raises:
        RichbookError: if there is no such axis or value; the message lists what there is.

    Example:
        >>> index_of(xr.Dataset(coords={"target_scale": [0.1, 1.0]}), "target_scale", 1)
        1
    """
    values = check_axis(data, axis, "axis")
    try:
        hits = np.flatnonzero(np.isclose(values.astype(float), float(value), rtol=1e-5, atol=0))
    except (TypeError, ValueError):
        hits = []
    if not len(hits):
        raise RichbookError(f"{axis}={value!r} is not in the data; it has: {listed(values)}")
    return int(hits[0])


def fix(data: xr.DataArray, keep: tuple[str, ...], fixed: dict[str, float]) -> xr.DataArray:
    """Fix every hyperparameter that is not kept, so that only the kept axes (and seeds) remain.

    Args:
        data: a variable of a sweep.
        keep: the axes that the caller draws, beside `seed`.
        fixed: the value of each other axis. An axis of length one needs none, `step` is the last
            one if it is not given.

    Returns:
        The variable over `keep` and, if the data has it, `seed`.

    Raises:
        RichbookError: if an axis is unknown, fixed and drawn at once, or left open.
    """
    for axis in keep:
        check_axis(data, axis, "axis")
    for axis, value in fixed.items():
        if axis in keep:
            raise RichbookError(f"{axis} is drawn and cannot be fixed at {value!r} as well")
        data = data.isel({axis: index_of(data, axis, value)})
    for axis in [d for d in data.dims if d not in keep and d != "seed"]:
        if axis == "step" or data.sizes[axis] == 1:
            data = data.isel({axis: -1})
            continue
        raise RichbookError(
            f"{axis} is neither drawn nor fixed; give {axis}= one of: {listed(data[axis].values)}"
        )
    return data


def band(data: xr.DataArray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean, smallest and largest value over the seeds that are not nan.

    Without an axis `seed` the three are the same. Where every seed is nan, so are they.
    """
    if "seed" not in data.dims:
        values = np.asarray(data.values, dtype=float)
        return values, values, values
    return tuple(
        np.asarray(getattr(data, name)("seed", skipna=True).values, dtype=float)
        for name in ("mean", "min", "max")
    )
