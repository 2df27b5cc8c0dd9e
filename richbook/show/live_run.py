"""One run of the sliders that train: its records as data, and what to say about it."""

from dataclasses import dataclass

import numpy as np
import xarray as xr

from richbook.show.packing import verdict
from richbook.train import TrainingSettings
from richbook.train.provenance import attributes


@dataclass(frozen=True)
class LiveRun:
    """One run that came to its end.

    Attributes:
        settings: of the network.
        records: what was recorded, one dict for each recorded step.
        diverged_at: the step at which it diverged, -1 if it did not.
        floor: the isotropic D_LR.

    Example:
        >>> record = {"step": 1, "d_lr": 0.3, "utilization": np.array([0.5, 1.0])}
        >>> LiveRun(TrainingSettings(), [record], -1, 0.6).data["utilization"].sizes["k"]
        2
    """

    settings: TrainingSettings
    records: list[dict]
    diverged_at: int
    floor: float

    @property
    def data(self) -> xr.Dataset:
        """The records over step (and k), with the names of `train`, ready for `plot_history`."""
        names = [
            name
            for name, value in self.records[0].items()
            if np.ndim(value) == 0 and name not in ("step", "diverged_at")
        ]
        variables = {name: ("step", [float(r[name]) for r in self.records]) for name in names}
        curves = np.stack([r["utilization"] for r in self.records])
        return xr.Dataset(
            variables | {"utilization": (("step", "k"), curves)},
            coords={
                "step": [r["step"] for r in self.records],
                "k": np.arange(1, curves.shape[1] + 1),
            },
            attrs={"isotropic_d_lr": self.floor, "diverged_at": self.diverged_at},
        )


def isotropic_floor(settings: TrainingSettings) -> float:
    """Return the D_LR of an isotropic kernel for the network that the settings describe."""
    return float(attributes(settings)["isotropic_d_lr"])


def dense_steps(steps: int) -> list[int]:
    """Return the steps to record at: dense on a logarithmic axis, and never more than 50 apart.

    Between two records a run can neither be shown nor cancelled.

    Example:
        >>> dense_steps(5)
        [0, 1, 2, 3, 4, 5]
    """
    spaced = np.rint(np.geomspace(1, steps, 40)).astype(int).tolist()
    return sorted({0, *spaced, *range(50, steps, 50), steps})


def progress_words(record: dict, settings: TrainingSettings) -> str:
    """Say how far a run has come, in one line."""
    return (
        f"step {record['step']} of {settings.steps} · D_LR {record['d_lr']:.3f} · "
        f"test accuracy {record['test_accuracy']:.2f}"
    )


def final_words(run: LiveRun) -> str:
    """Say how a run ended: D_LR, accuracy and a word for it, or that it diverged and when."""
    if run.diverged_at >= 0:
        return (
            f"diverged at step {run.diverged_at}: the loss is no longer a number. "
            "Try a smaller learning rate or target scale."
        )
    last = run.records[-1]
    d_lr = (
        f"D_LR {last['d_lr']:.3f}"
        if np.isfinite(last["d_lr"])
        else ("D_LR undefined (features or outputs are constant)")
    )
    parts = [
        d_lr,
        f"test accuracy {last['test_accuracy']:.2f}",
        verdict(last["d_lr"], last["test_accuracy"], run.floor),
    ]
    return "finished: " + " · ".join(part for part in parts if part)
