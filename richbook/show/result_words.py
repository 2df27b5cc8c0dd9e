"""Say a recipe's result in words: what a variable is called, how things stood at a step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from richbook.show.packing import richness_word
from richbook.show.selection import WORDS, short_value

#: What a reader calls the variables of a result; the order is that of the table of numbers.
RESULT_WORDS = {
    "d_lr": "D_LR",
    "d_lr_train": "D_LR on training samples",
    "d_lr_test": "D_LR on test samples",
    "isotropic_d_lr": "isotropic floor",
    "train_accuracy": "train accuracy",
    "test_accuracy": "test accuracy",
    "train_loss": "training loss",
    "relative_loss": "training loss, first = 1",
    "test_loss": "test loss",
    "feature_rank": "features' effective rank",
    "output_rank": "outputs' effective rank",
    "strength_quality": "correlation of ρ and quality",
    "nc1": "NC1",
    "s_init": "S_init",
    "parameter_norm": "parameter norm ‖θ‖²",
    "ntk_movement": "NTK movement",
    "inside_share": "share of the kernel in use",
    "inside_cosine": "evenness of the part in use",
    "d_lr_of_outputs": "1 − CKA with outputs' kernel",
}
#: Accuracies that come in variants: the rest of the name says which.
TESTED = "test_accuracy_"

#: Mean accuracies that differ by less than this count as the same.
EQUALLY_GOOD = 5e-4


def words_of(name: str) -> str:
    """What a variable or an axis of a result is called.

    Example:
        >>> words_of("feature_rank"), words_of("test_accuracy_no_code"), words_of("final_norm")
        ("features' effective rank", 'test accuracy, no code', 'final norm')
    """
    if name.startswith(TESTED):
        return f"test accuracy, {name.removeprefix(TESTED).replace('_', ' ')}"
    return RESULT_WORDS.get(name) or WORDS.get(name) or name.replace("_", " ")


def is_numeric(values: np.ndarray) -> bool:
    """Whether the values of an axis are numbers, which have an order, or names."""
    return np.asarray(values).dtype.kind in "iuf"


def value_labels(values: np.ndarray) -> list[str]:
    """Write the values along an axis.

    Example:
        >>> value_labels(np.array([0.001, 0.05])), value_labels(np.array(["with", "without"]))
        (['1e-3', '0.05'], ['with', 'without'])
    """
    values = np.asarray(values)
    return [short_value(float(v)) if is_numeric(values) else str(v) for v in values]


def describe_moment(
    measure: str, values: Sequence[float], accuracies: dict[str, float], diverged: int, floor: float
) -> str:
    """Say in one line how the networks of one setting stand at one step.

    Args:
        measure: the name of what is shown, usually ``d_lr``.
        values: the measure of every seed, nan where it diverged or is undefined.
        accuracies: by name, means over seeds.
        diverged: how many seeds have diverged by then.
        floor: the isotropic D_LR, nan if unknown.

    Example:
        >>> describe_moment("d_lr", [0.06, 0.08], {"test_accuracy": 0.8}, diverged=0, floor=0.7)
        'D_LR 0.070 (0.060–0.080) · test accuracy 0.80 · rich'
        >>> describe_moment("d_lr", [float("nan")], {}, diverged=1, floor=0.7)
        'the only seed has diverged'
    """
    values = np.asarray(values, dtype=float)
    if diverged == len(values):
        return "the only seed has diverged" if diverged == 1 else f"all {diverged} seeds diverged"
    known = values[np.isfinite(values)]
    name = words_of(measure)
    parts = [f"{name} undefined"]
    if len(known):
        parts = [f"{name} {_number(known.mean())}"]
        if len(known) > 1:
            parts[0] += f" ({_number(known.min())}–{_number(known.max())})"
    parts += [f"{words_of(key)} {value:.2f}" for key, value in accuracies.items()]
    if len(known) and measure.startswith("d_lr"):
        parts.append(richness_word(float(known.mean()), floor))
    if diverged:
        parts.append(f"{diverged} of {len(values)} seeds diverged")
    return " · ".join(part for part in parts if part)


def describe_ends(labels: Sequence[str], values: xr.DataArray, accuracy: xr.DataArray) -> str:
    """Say which setting tests best and which is richest, and whether the seeds can tell.

    Args:
        labels: one for each setting.
        values: D_LR at the end, (setting, seed).
        accuracy: on test samples, the same shape.

    Returns:
        One or two sentences; "" where everything is nan.

    Example:
        >>> d_lr = xr.DataArray([[0.2, 0.2], [0.1, 0.1]], dims=("rate", "seed"))
        >>> test = xr.DataArray([[0.8, 0.9], [0.7, 0.8]], dims=("rate", "seed"))
        >>> describe_ends(["0.01", "0.1"], d_lr, test)
        'Best on test samples: 0.01. Richest: 0.1. The two ranges of accuracy overlap.'
    """
    mean_d_lr, mean_accuracy = values.mean("seed").values, accuracy.mean("seed").values
    if len(labels) < 2 or np.isnan(mean_d_lr).all() or np.isnan(mean_accuracy).all():
        return ""
    best, richest = int(np.nanargmax(mean_accuracy)), int(np.nanargmin(mean_d_lr))
    if np.ptp(mean_accuracy) < EQUALLY_GOOD:  # false where one is nan
        return f"All do equally well on test samples. Richest: {labels[richest]}."
    if best == richest:
        return f"Best on test samples and richest: {labels[best]}."
    said = f"Best on test samples: {labels[best]}. Richest: {labels[richest]}."
    tested = accuracy.transpose(..., "seed").values
    if np.nanmax(tested[richest]) < np.nanmin(tested[best]):
        return f"{said} The two ranges of accuracy do not overlap."
    return f"{said} The two ranges of accuracy overlap."


def describe_gaps(measure: str, values: xr.DataArray, diverged: int) -> str:
    """Say why lines have gaps: the measure is undefined at some steps, or networks diverged.

    Example:
        >>> empty = xr.DataArray([[float("nan"), 0.2]], dims=("seed", "step"),
        ...                      coords={"step": [0, 10]})
        >>> describe_gaps("d_lr", empty, diverged=0)
        'D_LR is undefined at step 0, where features or outputs are constant.'
    """
    said = []
    others = [name for name in values.dims if name != "step"]
    empty = values.isnull().all(others)
    steps = [int(step) for step in values["step"].values[empty.values]]
    if steps and measure.startswith("d_lr"):
        said.append(
            f"{words_of(measure)} is undefined at step {steps[0]}"
            f"{' and others' if len(steps) > 1 else ''}, where features or outputs are "
            "constant."
        )
    elif steps:
        said.append(f"{words_of(measure)} is undefined at step {steps[0]}.")
    if diverged:
        verb = (
            "networks diverged: their lines end"
            if diverged > 1
            else ("network diverged: its line ends")
        )
        said.append(f"{diverged} {verb}.")
    return " ".join(said)


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.3g}"
