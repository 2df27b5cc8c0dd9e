"""What no file of the project may hold, and how large files may be."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LONGEST_MODULE = 250  # lines
LARGEST_NOTEBOOK = 500_000  # bytes


def spelt(text: str) -> str:
    """Dots are put in below so that this file does not find itself; this takes them out."""
    return text.replace("·", "")


FORBIDDEN = {
    "a path of somebody's machine": spelt(r"(?:^|[^\w.~-])/(?:w·ork|r·oot|f·arm|h·ome)/\w"),
    "a temporary folder of somebody's machine": spelt(r"/t·mp/\w"),
    "an address of a package registry": spelt(
        r"index·-url|find·-links|/si·mple/|registry\.n·pmjs|p·ypi\.org"
    ),
    "a place left to fill in": spelt(r"\b(?:T·ODO|F·IXME|X·XX)\b|lorem i·psum"),
}


def project_files() -> list[Path]:
    """Everything that git tracks or would track; without git, everything but what is built."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 0 and done.stdout:
        found = [ROOT / name for name in done.stdout.split("\0") if name]
    else:
        built = {".venv", "build", "dist", "__pycache__", ".git", ".pytest_cache"}
        found = [p for p in ROOT.rglob("*") if not built & set(p.relative_to(ROOT).parts)]
    return [path for path in found if path.is_file()]


def text_of(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_holds(what):
    pattern = re.compile(FORBIDDEN[what], re.MULTILINE)
    found = []
    for path in project_files():
        for match in pattern.finditer(text_of(path) or ""):
            around = match.string[max(0, match.start() - 30) : match.end() + 30]
            found.append(f"{path.relative_to(ROOT)}: {around!r}")
    assert found == []


def test_the_patterns_find_what_they_are_for():
    samples = ["see /w·ork/main", "/t·mp/x1", "--index·-url x", "T·ODO: write"]
    for pattern, sample in zip(FORBIDDEN.values(), samples, strict=True):
        assert re.search(pattern, spelt(sample), re.MULTILINE), sample


def test_modules_fit_in_the_head():
    long = {
        str(path.relative_to(ROOT)): lines
        for path in (ROOT / "richbook").rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > LONGEST_MODULE
    }
    assert long == {}


def test_notebooks_are_small():
    sizes = {path.name: path.stat().st_size for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert {name: size for name, size in sizes.items() if size >= LARGEST_NOTEBOOK} == {}


def test_nothing_built_is_kept():
    """Neither environments, caches and pages, nor other people's scripts."""
    built = re.compile(r"^(?:build|\.venv)/|__pycache__|/(?:require|embed-amd|tex-mml-chtml)\.js$")
    kept = [path.relative_to(ROOT).as_posix() for path in project_files()]
    assert [name for name in kept if built.search(name)] == []
