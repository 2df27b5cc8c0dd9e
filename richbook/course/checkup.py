"""What `richbook doctor` looks at: the installation, the machine, the data, the notebooks."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

# The packages that the chapters use, and those that build the book.
PACKAGES = {
    "torch": "the measures and the training",
    "scikit-learn": "the digits data",
    "xarray": "the recorded sweep",
    "h5netcdf": "reading the recorded sweep",
    "matplotlib": "the figures",
    "ipywidgets": "the sliders",
    "anywidget": "the sliders",
    "jupyterlab": "`richbook lab`",
    "jupytext": "`richbook book`",
    "nbclient": "`richbook book`",
    "myst-nb": "`richbook book`",
    "sphinx-book-theme": "`richbook book`",
}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DATA_SETS = ("mnist", "fashion-mnist", "cifar10", "cifar100")


@dataclass(frozen=True)
class Row:
    """One finding: whether it is fine, whether the book needs it, and what to do if it is not."""

    subject: str
    finding: str
    fine: bool = True
    needed: bool = False
    advice: str = ""

    @property
    def mark(self) -> str:
        """A sign for the start of the line.

        Example:
            >>> Row("npm", "missing", fine=False).mark
            '-'
        """
        return "+" if self.fine else "!" if self.needed else "-"


def examine() -> list[Row]:
    """Look at everything. A check that fails by itself becomes a finding; nothing is raised.

    Example:
        >>> examine()[0].subject
        'python'
    """
    rows = []
    for check in CHECKS:
        try:
            rows.append(check())
        except Exception as error:  # a doctor who dies of the patient helps nobody
            said = f"{type(error).__name__}: {error}"
            rows.append(Row(check.__name__, said, False, True, "Run `make env`, then this again."))
    return rows


def python() -> Row:
    """The interpreter: 3.11 or newer.

    Example:
        >>> python().fine
        True
    """
    fine = sys.version_info >= (3, 11)
    return Row(
        "python",
        f"{platform.python_version()} at {sys.prefix}",
        fine,
        needed=True,
        advice="Install Python 3.11 or newer, then run `make env`.",
    )


def packages() -> Row:
    """The packages that chapters and book need.

    Example:
        >>> packages().subject
        'packages'
    """
    found, missing = [], []
    for name, purpose in PACKAGES.items():
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(f"{name} (for {purpose})")
    finding = f"missing: {', '.join(missing)}" if missing else ", ".join(found)
    advice = "Run `make env`, or: pip install 'richbook[book]'."
    return Row("packages", finding, not missing, needed=True, advice=advice)


def device() -> Row:
    """Where training runs, and on how many cores.

    Example:
        >>> "cores" in device().finding
        True
    """
    import torch

    name = "cpu"
    if torch.cuda.is_available():
        name = f"cuda ({torch.cuda.get_device_name(0)})"
    elif torch.backends.mps.is_available():
        name = "mps"
    cores = os.cpu_count() or 1
    return Row("device", f"{name}, {cores} cores, torch uses {torch.get_num_threads()} threads")


def sweep() -> Row:
    """The recorded sweep that the sliders move through.

    Example:
        >>> sweep().finding  # doctest: +ELLIPSIS
        '6 weight_decay x ...'
    """
    from richbook.experiments import load_sweep

    recorded = load_sweep()
    shape = " x ".join(f"{size} {name}" for name, size in recorded.sizes.items() if name != "k")
    return Row("sweep", shape, needed=True)


def data() -> Row:
    """Where the larger data sets lie. The chapters need none: digits come with scikit-learn.

    Example:
        >>> data().needed
        False
    """
    named = os.environ.get("RICHBOOK_DATA")
    if not named:
        return Row("data", "digits (MNIST and others: set RICHBOOK_DATA to the folder they lie in)")
    there = [name for name in DATA_SETS if (Path(named) / name).is_dir()]
    return Row(
        "data",
        f"digits, and in {named}: {', '.join(there) or 'nothing'}",
        bool(there),
        advice=f"RICHBOOK_DATA names {named}; expected a folder there called {DATA_SETS[0]}.",
    )


def npm() -> Row:
    """npm, which puts the scripts of the HTML pages into the book.

    Example:
        >>> npm().needed
        False
    """
    found = shutil.which("npm")
    finding = found or "missing: the HTML book will load scripts from a public network"
    advice = "For an HTML book that works offline, install Node.js."
    return Row("npm", finding, bool(found), advice=advice)


def browser() -> Row:
    """Chromium, for the browser tests alone.

    Example:
        >>> browser().needed
        False
    """
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    finding = found or "no chromium: the browser tests will skip"
    return Row("browser", finding, bool(found), advice="For the browser tests, install chromium.")


def notebooks() -> Row:
    """Whether the notebooks agree with their texts.

    Example:
        >>> notebooks().subject
        'notebooks'
    """
    from richbook.course.chapters import drift, find_root, find_texts, notebook_of
    from richbook.measure.errors import RichbookError

    try:
        texts = find_texts(find_root())
    except RichbookError:
        return Row("notebooks", "no checkout of the book here")
    stale = [text.stem for text in texts if drift(text, notebook_of(text))]
    finding = f"differ from their text: {', '.join(stale)}" if stale else f"{len(texts)}, in sync"
    advice = "Run `make book`, which executes the texts again."
    return Row("notebooks", finding, not stale, needed=True, advice=advice)


CHECKS: tuple[Callable[[], Row], ...] = (
    python, packages, device, sweep, data, npm, browser, notebooks
)  # fmt: skip
