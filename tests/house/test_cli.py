"""The command `richbook`: what it does, what it says, and its exit status."""

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from richbook import cli
from richbook.course import checkup
from richbook.measure.errors import RichbookError


def test_every_command_has_a_help_page(capsys):
    for name in cli.COMMANDS:
        with pytest.raises(SystemExit) as ended:
            cli.main([name, "--help"])
        assert ended.value.code == 0
        assert f"richbook {name}" in capsys.readouterr().out


def test_command_line_is_quick_to_answer(root):
    """Help needs no Sphinx and no Jupyter: the command that needs them imports them."""
    command = (
        "import sys; from richbook import cli; cli.parser();"
        "print(sorted({'sphinx', 'nbclient', 'jupytext'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", command], cwd=root, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_unknown_option_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["book", "--sideways"])
    assert ended.value.code == 2
    assert "book does not know --sideways" in capsys.readouterr().err


def test_error_is_told_without_traceback(monkeypatch, capsys):
    def fail(**options):
        raise RichbookError("text: 07-x.md, code cell 3 of 4 failed")

    monkeypatch.setattr("richbook.course.book.make_book", fail)
    assert cli.main(["book", "--only", "07"]) == 1
    said = capsys.readouterr()
    assert said.err == "richbook book: text: 07-x.md, code cell 3 of 4 failed\n"


def test_book_passes_its_options_on_and_prints_where_it_lies(monkeypatch, capsys, tmp_path):
    got = {}

    def make(**options):
        got.update(options)
        return tmp_path / "index.html"

    monkeypatch.setattr("richbook.course.book.make_book", make)
    assert cli.main(["book", "--no-execute", "--out", str(tmp_path)]) == 0
    assert got == {"out": tmp_path, "only": None, "execute": False}
    assert str(tmp_path / "index.html") in capsys.readouterr().out


def test_lab_opens_the_notebooks_and_passes_options_on(monkeypatch, root):
    ran = []

    def run(command, env):
        ran.append((command, env))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.chdir(root)
    monkeypatch.setattr(cli.subprocess, "run", run)
    assert cli.main(["lab", "--no-browser", "--port=9999"]) == 0
    ((command, environment),) = ran
    assert command[:4] == [sys.executable, "-m", "jupyter", "lab"]
    assert f"--ServerApp.root_dir={root / 'notebooks'}" in command
    assert command[-2:] == ["--no-browser", "--port=9999"]
    assert environment["JUPYTER_PREFER_ENV_PATH"] == "1"


@pytest.mark.parametrize("name, recorder", [
    (None, "record_sweep"), ("digits", "record_sweep"), ("alignment", "record_alignment_sweep"),
])  # fmt: skip
def test_sweep_writes_the_file_that_was_asked_for(name, recorder, monkeypatch, tmp_path, capsys):
    def record(path, progress, device):
        assert not progress, "a bar in a file is a thousand lines"
        assert device == "cpu"
        xr.Dataset({"found": ("step", [0.5])}).to_netcdf(path, engine="h5netcdf")

    def other(*arguments, **settings):
        raise AssertionError("the other sweep was trained")

    for known in ("record_sweep", "record_alignment_sweep"):
        monkeypatch.setattr(f"richbook.experiments.{known}", record if known == recorder else other)
    which, out = ([] if name is None else [name]), tmp_path / "mine.nc"
    assert cli.main(["sweep", *which, "--out", str(out), "--device", "cpu"]) == 0
    assert float(xr.open_dataset(out, engine="h5netcdf").found[0]) == 0.5
    assert str(out) in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    assert cli.main(["sweep", *which, "--device", "cpu"]) == 0
    assert Path("alignment-sweep.nc" if name == "alignment" else "sweep.nc").exists()


def test_sweep_knows_no_other(capsys):
    with pytest.raises(SystemExit):
        cli.main(["sweep", "mnist"])
    assert "invalid choice: 'mnist'" in capsys.readouterr().err


def test_sweep_of_alignments_is_that_of_the_book(monkeypatch, tmp_path):
    """A single cell of its grid, really trained and written."""
    experiment = importlib.import_module("richbook.experiments.alignment_sweep")
    small = dict(weight_decay=[0.01], learning_rate=[0.05], batch_size=[16], seeds=1,
                 activation=["tanh"], steps=3, width=8)  # fmt: skip
    assert set(small) - {"steps", "width"} == set(experiment.ALIGNMENT_GRID) - {"record_at"}
    monkeypatch.setattr(experiment, "ALIGNMENT_GRID", small)
    out = tmp_path / "alignment.nc"
    assert cli.main(["sweep", "alignment", "--out", str(out)]) == 0
    with xr.open_dataset(out, engine="h5netcdf") as found:
        assert found.alignment.sizes["relation"] == 3 and found.sizes["step"] == 4
        assert bool(np.isfinite(found.alignment).all())


def test_doctor_finds_this_installation_in_order(capsys, root, monkeypatch):
    monkeypatch.chdir(root)
    monkeypatch.setattr(
        checkup, "CHECKS", tuple(c for c in checkup.CHECKS if c != checkup.notebooks)
    )
    assert cli.main(["doctor"]) == 0, capsys.readouterr().out
    said = capsys.readouterr().out
    assert "torch 2." in said
    assert "All that the book needs is here." in said


@pytest.mark.parametrize("needed", [True, False])
def test_doctor_fails_only_for_what_is_needed(monkeypatch, capsys, needed):
    row = checkup.Row("npm", "missing", False, needed, "Install Node.js.")
    monkeypatch.setattr(checkup, "CHECKS", (lambda: row,))
    assert cli.main(["doctor"]) == int(needed)
    assert "npm: Install Node.js." in capsys.readouterr().out


def test_doctor_survives_a_check_that_breaks(monkeypatch, capsys):
    def torch_is_broken():
        raise ImportError("libtorch.so: no such file")

    monkeypatch.setattr(checkup, "CHECKS", (torch_is_broken,))
    assert cli.main(["doctor"]) == 1
    assert "ImportError: libtorch.so: no such file" in capsys.readouterr().out


def test_doctor_misses_a_package(monkeypatch):
    monkeypatch.setitem(checkup.PACKAGES, "no-such-package", "a test")
    row = checkup.packages()
    assert (row.fine, row.needed) == (False, True)
    assert "no-such-package (for a test)" in row.finding


def test_doctor_looks_for_data_where_the_variable_says(monkeypatch, tmp_path):
    monkeypatch.setenv("RICHBOOK_DATA", str(tmp_path))
    assert not checkup.data().fine
    (tmp_path / "mnist").mkdir()
    assert checkup.data().finding.endswith("mnist")
