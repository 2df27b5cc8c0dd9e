"""What all tests share: devices, data folders, and settings that make runs repeatable."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]

# Property tests draw the same examples in every CI run; at a desk they go on searching.
hypothesis.settings.register_profile("desk", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "desk")

DEVICES = {
    "cpu": True,
    "cuda": torch.cuda.is_available(),
    "mps": torch.backends.mps.is_available(),
}
PRESENT = [name for name, present in DEVICES.items() if present]


def pytest_report_header() -> str:
    """Say at the top which devices are tested; tests/house/test_devices.py skips the others."""
    return f"devices: {', '.join(PRESENT)}"


@pytest.fixture(scope="session", autouse=True)
def _few_threads():
    """More threads than this only contend: the networks of the tests are small."""
    torch.set_num_threads(min(2, os.cpu_count() or 1))


@pytest.fixture(params=PRESENT)
def device(request) -> str:
    """Each device of this machine in turn, out of "cpu", "cuda" and "mps"."""
    return request.param


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture
def mnist_folder(monkeypatch) -> Path:
    """The folder that holds `mnist/` and `fashion-mnist/`; RICHBOOK_DATA names it for the test."""
    named = os.environ.get("RICHBOOK_DATA")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    if not (folder / "mnist").is_dir():
        pytest.skip(f"no MNIST in {folder}: set RICHBOOK_DATA to a folder that holds mnist/")
    monkeypatch.setenv("RICHBOOK_DATA", str(folder))
    return folder
