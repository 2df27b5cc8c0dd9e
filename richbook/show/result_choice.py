"""Which variables of a recipe's result are shown: those asked for, or what is usual and there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import xarray as xr

from richbook.measure.errors import RichbookError
from richbook.show.result_words import RESULT_WORDS, TESTED
from richbook.show.selection import get_variable, listed

CURVES = ("utilization", "quality")
#: The table of numbers has at most this many rows unless they are asked for.
MOST_NUMBERS = 11


@dataclass(frozen=True)
class Shown:
    """The variables that the panels show, all of them in the data.

    Attributes:
        measure: in the first panel and in the last.
        accuracies: in the second panel; the first one of test samples is in the last panel.
        curves: over the eigenfunctions.
        numbers: in the table.
    """

    measure: str
    accuracies: tuple[str, ...]
    curves: tuple[str, ...]
    numbers: tuple[str, ...]

    @property
    def tested(self) -> str | None:
        """The accuracy that the last panel compares with the measure."""
        return next((name for name in self.accuracies if name.startswith("test")), None)


def result_axis(result: xr.Dataset) -> str:
    """The name of the axis along which a result's settings lie.

    Raises:
        RichbookError: the data is not the result of a recipe, or lacks an axis.

    Example:
        >>> from richbook.experiments import load_result
        >>> result_axis(load_result("learning-rate"))
        'learning_rate'
    """
    if not isinstance(result, xr.Dataset):
        raise RichbookError(f"result must be an xarray.Dataset, not {type(result).__name__}")
    axis = result.attrs.get("axis")
    if axis is None:
        raise RichbookError(
            "result has no attribute 'axis'; expected what load_result or reproduce returned"
        )
    missing = [name for name in (axis, "seed", "step") if name not in result.dims]
    if missing:
        raise RichbookError(
            f"result lacks the axes {listed(missing)}; it has: {listed(result.dims)}"
        )
    return axis


def choose(
    result: xr.Dataset,
    measure: str = "d_lr",
    accuracies: Sequence[str] | None = None,
    curves: Sequence[str] | None = None,
    numbers: Sequence[str] | None = None,
) -> Shown:
    """Check the names of variables, and fill in what is usual and there for those not given.

    Raises:
        RichbookError: a name that the result lacks, or of a variable of another shape.

    Example:
        >>> from richbook.experiments import load_result
        >>> choose(load_result("learning-rate")).accuracies
        ('train_accuracy', 'test_accuracy')
    """
    axis = result_axis(result)
    plain = [name for name in result.data_vars if set(result[name].dims) == {axis, "seed", "step"}]
    over_k = [
        name for name in result.data_vars if set(result[name].dims) == {axis, "seed", "step", "k"}
    ]
    if accuracies is None:
        accuracies = [name for name in plain if name == "train_accuracy"]
        accuracies += [name for name in plain if f"{name}_".startswith(TESTED)]
    if curves is None:
        curves = [name for name in CURVES if name in over_k]
    if numbers is None:
        usual = [measure, *RESULT_WORDS, *accuracies, *plain]
        numbers = [name for name in dict.fromkeys(usual) if name in plain][:MOST_NUMBERS]
    shown = Shown(measure, *(_names(each) for each in (accuracies, curves, numbers)))
    for argument, names, known in (
        ("measure", (measure,), plain),
        ("accuracies", shown.accuracies, plain),
        ("curves", shown.curves, over_k),
        ("numbers", shown.numbers, plain),
    ):
        for name in names:
            get_variable(result, name, argument)
            if name not in known:
                raise RichbookError(
                    f"{argument}={name!r} has the axes {listed(result[name].dims)};"
                    f" expected one of: {listed(known) or 'none'}"
                )
    return shown


def _names(names: Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
