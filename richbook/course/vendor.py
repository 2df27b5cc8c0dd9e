"""Third-party scripts of the HTML book: fetched when the book is built, never committed.

With npm at hand, `vendor` copies MathJax, RequireJS and the widget manager into the book, which
then works from disk without a network. Each package is pinned by version and by the sha512
published for it; a file that disagrees is refused. Without npm the pages name the same
versions at a public content delivery network.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from jupyter_core.paths import jupyter_path

from richbook.measure.errors import RichbookError

NETWORK = "https://cdn.jsdelivr.net/npm"
NPM_TIMEOUT = 120  # seconds


@dataclass(frozen=True)
class Package:
    """An npm package: its pinned version, its sha512, and which of its files go where.

    `files` are pairs: a pattern of paths inside the package, and the folder they go to.
    """

    name: str
    version: str
    sha512: str
    files: tuple[tuple[str, str], ...]

    @property
    def tarball(self) -> str:
        """The file name that `npm pack` gives it."""
        return f"{self.name.removeprefix('@').replace('/', '-')}-{self.version}.tgz"


MATHJAX = Package(
    "mathjax",
    "3.2.2",
    "Bt+SSVU8eBG27zChVewOicYs7Xsdt40qm4+UpHyX7k0/O9NliPc+x77k1/FEsPsjKPZGJvtRZM1vO+geW0OhGw==",
    (
        ("es5/tex-mml-chtml.js", "mathjax"),
        ("es5/output/chtml/fonts/woff-v2/*.woff", "mathjax/output/chtml/fonts/woff-v2"),
        ("LICENSE", "mathjax"),
    ),
)
REQUIRE = Package(
    "requirejs",
    "2.3.8",
    "7/cTSLOdYkNBNJcDMWf+luFvMriVm7eYxp4BcFCsAX0wF421Vyce5SXP17c+Jd5otXKGNehIonFlyQXSowL6Mw==",
    (("require.js", "."),),
)
MANAGER = Package(
    "@jupyter-widgets/html-manager",
    "1.0.15",
    "5thBIV6ymNgmPVOHvzx+gGy8ZSKmSazhtGw4/c4xJDVzRhG9PTeQsRjF3FUTopvFi//SABeNz1yp47bCrJ3CQA==",
    (
        ("dist/embed-amd.js", "@jupyter-widgets/html-manager/dist"),
        # It looks for its fonts beside itself, and for the same ones two folders further up.
        ("dist/*.woff2", "@jupyter-widgets/html-manager/dist"),
        ("dist/*.woff2", "@jupyter-widgets"),
    ),
)
PACKAGES = (MATHJAX, REQUIRE, MANAGER)


def cache_folder() -> Path:
    """Where fetched packages are kept, so that the second build needs no network.

    Example:
        >>> cache_folder().name
        'richbook'
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "richbook"


def settings(local: bool) -> dict[str, Any]:
    """The Sphinx settings that name the scripts: copies inside the book, or pinned addresses.

    Example:
        >>> settings(local=True)["mathjax_path"]
        'vendor/mathjax/tex-mml-chtml.js'
        >>> settings(local=False)["mathjax_path"].endswith("mathjax@3.2.2/es5/tex-mml-chtml.js")
        True
    """
    if local:
        return {
            "mathjax_path": "vendor/mathjax/tex-mml-chtml.js",
            "nb_ipywidgets_js": {
                "vendor/require.js": {},
                "require-config.js": {},
                f"vendor/{MANAGER.name}/dist/embed-amd.js": {},
            },
        }
    manager = f"{NETWORK}/{MANAGER.name}@{MANAGER.version}/dist/embed-amd.js"
    return {
        "mathjax_path": f"{NETWORK}/mathjax@{MATHJAX.version}/es5/tex-mml-chtml.js",
        "nb_ipywidgets_js": {
            f"{NETWORK}/requirejs@{REQUIRE.version}/require.js": {"crossorigin": "anonymous"},
            "require-config.js": {},
            manager: {"crossorigin": "anonymous", "data-jupyter-widgets-cdn": f"{NETWORK}/"},
        },
    }


def vendor(folder: Path) -> str | None:
    """Fill `folder` with the scripts that the book's pages need.

    anywidget's module lies in its wheel and is copied in any case.

    Args:
        folder: an empty or missing folder; Sphinx copies it to `_static/vendor`.

    Returns:
        None if all is there, else the reason why the pages must name public addresses.

    Raises:
        RichbookError: if a package does not have the sha512 that is pinned here.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(_anywidget_module(), folder / "anywidget.js")
    try:
        for package in PACKAGES:
            extract(fetch(package), package, folder)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return None


def _anywidget_module() -> Path:
    for folder in jupyter_path("nbextensions"):
        module = Path(folder) / "anywidget" / "index.js"
        if module.exists():
            return module
    raise RichbookError("anywidget: its browser module is missing; reinstall the package anywidget")


def fetch(package: Package) -> Path:
    """The tarball of a package: from the cache, else fetched by npm.

    Raises:
        OSError: if there is no npm, or it cannot fetch the package.
        RichbookError: if what npm fetched does not have the pinned sha512.
    """
    cache = cache_folder()
    kept = cache / package.tarball
    if kept.exists() and _digest(kept) == package.sha512:
        return kept
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("npm is not installed")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as draft:
        command = [npm, "pack", "--silent", f"{package.name}@{package.version}"]
        done = subprocess.run(
            command, cwd=draft, capture_output=True, text=True, timeout=NPM_TIMEOUT
        )
        tarball = Path(draft) / package.tarball
        if done.returncode or not tarball.exists():
            said = (done.stderr or done.stdout).strip().splitlines()
            raise OSError(f"npm could not fetch {package.name}: {said[-1] if said else '?'}")
        if _digest(tarball) != package.sha512:
            raise RichbookError(
                f"package: {package.tarball} has the sha512 {_digest(tarball)}; "
                f"expected {package.sha512}"
            )
        os.replace(tarball, kept)
    return kept


def _digest(path: Path) -> str:
    return base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()


def extract(tarball: Path, package: Package, folder: Path) -> list[Path]:
    """Copy the files that `package.files` names from its tarball into `folder`.

    Raises:
        RichbookError: if one of the names finds nothing.
    """
    written: dict[tuple[str, str], list[Path]] = {pair: [] for pair in package.files}
    with tarfile.open(tarball) as archive:
        for member in archive:
            inside = PurePosixPath(member.name).relative_to("package")
            for pattern, place in package.files:
                if not member.isfile() or not fnmatch(inside.as_posix(), pattern):
                    continue
                target = Path(folder) / place / inside.name
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.extractfile(member) as source, target.open("wb") as sink:
                    shutil.copyfileobj(source, sink)
                written[pattern, place].append(target)
    missing = [pattern for (pattern, place), paths in written.items() if not paths]
    if missing:
        raise RichbookError(f"package: {package.tarball} holds nothing named {', '.join(missing)}")
    return [path for paths in written.values() for path in paths]
