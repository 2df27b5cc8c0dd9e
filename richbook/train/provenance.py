"""How a recorded result was made, so that a reader can make it again."""

from __future__ import annotations

import json
import platform
import subprocess
from datetime import date
from importlib.metadata import version
from pathlib import Path

from richbook.measure import isotropic_d_lr
from richbook.train.data import load_data
from richbook.train.settings import TrainingSettings

RECORDED_VERSIONS = ("torch", "numpy", "scikit-learn")


def attributes(settings: TrainingSettings, varied: tuple[str, ...] = ()) -> dict:
    """Attributes of every training dataset: the data, the settings as JSON, and the isotropic D_LR.

    The targets sum to zero over the outputs, and a head that starts at zero keeps that, so the
    outputs then span C − 1 functions. What is ``varied`` along the axes of a sweep is no setting.
    """
    classes = load_data(settings.data).classes
    rank = classes - 1 if settings.zero_head else classes
    return {
        "data": settings.data,
        "settings": json.dumps(
            {name: value for name, value in settings.to_dict().items() if name not in varied}
        ),
        "isotropic_d_lr": isotropic_d_lr(settings.width, rank),
    }


def how_made(seconds: float, device: str, threads: int) -> dict:
    """Attributes of a recorded result: when, with what, on what, how long."""
    versions = {name: version(name) for name in RECORDED_VERSIONS} | {
        "python": platform.python_version()
    }
    return {
        "made": date.today().isoformat(),
        "versions": json.dumps(versions),
        "device": device,
        "threads": threads,
        "wall_seconds": round(seconds, 1),
    }


def commit() -> str:
    """The commit of the checkout that this package runs from, "-dirty" if it was changed since, or
    the version of an installed package."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"]
    folder = Path(__file__).resolve().parents[2]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        done = None
    inside = (folder / ".git").exists() and done is not None and done.returncode == 0
    return done.stdout.strip() if inside else f"richbook {version('richbook')}"
