"""Imports point one way, notebooks use public names only, and ruff has nothing to say."""

import ast
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_imports_point_one_way():
    command = "from importlinter.cli import lint_imports as lint; exit(lint(no_cache=True))"
    done = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ruff_is_content():
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "concise", "."],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_import_public_names_only(path):
    import richbook

    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type != "code":
            continue
        plain = [line for line in cell.source.splitlines() if not line.startswith(("%", "!"))]
        for node in ast.walk(ast.parse("\n".join(plain))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("richbook"):
                assert node.module == "richbook", f"{node.module} is not for readers to import"
                assert [a.name for a in node.names if not hasattr(richbook, a.name)] == []
            if isinstance(node, ast.Import):
                assert not [a.name for a in node.names if a.name.startswith("richbook.")]
