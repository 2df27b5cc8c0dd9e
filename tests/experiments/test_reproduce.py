"""A recipe's run: what it writes, and what is left of it when it is stopped."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import xarray as xr

from richbook.experiments import load_result, reproduce, reproducing
from richbook.measure import RichbookError
from tests.conftest import ROOT
from tests.experiments.fake_recipe import RECIPE

SCRIPT = """
from tests.experiments.fake_recipe import RECIPE
from richbook.experiments.reproducing import reproduce
if __name__ == "__main__":
    reproduce(RECIPE, {out!r}, progress=False, momentum=0.9, device="cpu", {more})
"""


def run(out, **options):
    return reproduce(RECIPE, out, progress=False, device="cpu", **options)


def start(tmp_path, more="", **environment):
    """The recipe in a process of its own."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(out=str(tmp_path / "result.nc"), more=more))
    return subprocess.Popen(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def steps_in(log):
    return [line.split() for line in log.read_text().splitlines()]


def test_numbers_are_those_of_the_closed_form(tmp_path):
    result = run(tmp_path / "result.nc")
    assert dict(result.sizes) == {"rate": 2, "seed": 2, "step": 4, "k": 3}
    assert result.step.values.tolist() == RECIPE.config("full").record_at()
    start, rate = 1 + result.seed, result.rate
    expected = start * (1 - rate) ** result.step
    np.testing.assert_allclose(result.theta, expected.transpose(*result.theta.dims), rtol=1e-6)
    np.testing.assert_allclose(result.curve.isel(k=2), 3 * result.theta, rtol=1e-6)
    assert (result.diverged_at == -1).all() and (result.seconds >= 0).all()


def test_the_file_holds_the_same_and_how_it_was_made(tmp_path):
    result = run(tmp_path / "result.nc")
    stored = load_result(tmp_path / "result.nc")
    np.testing.assert_allclose(stored.theta, result.theta, rtol=2**-13)
    assert json.loads(stored.config)["seeds"] == 2
    assert {"recipe", "variant", "versions", "device", "wall_seconds", "commit", "made"} <= set(
        stored.attrs
    )
    assert os.listdir(tmp_path) == ["result.nc"]


def test_workers_change_nothing(tmp_path):
    xr.testing.assert_equal(
        run(tmp_path / "one.nc", momentum=0.9).drop_vars("seconds"),
        run(tmp_path / "two.nc", momentum=0.9, workers=2).drop_vars("seconds"),
    )


def test_a_killed_run_goes_on_from_its_last_record(tmp_path):
    log = tmp_path / "log"
    whole = run(tmp_path / "whole.nc", momentum=0.9)
    process = start(tmp_path, DESCENT_KILL_AT="13", DESCENT_LOG=str(log))
    assert process.wait(120) == -signal.SIGKILL, process.stderr.read().decode()
    assert not (tmp_path / "result.nc").exists()
    assert steps_in(log)[-1] == ["0.1", "0", "12"]
    log.unlink()
    process = start(tmp_path, DESCENT_LOG=str(log))
    assert process.wait(120) == 0, process.stderr.read().decode()
    recorded = whole.step.values
    last = recorded[recorded < 13].max()
    assert steps_in(log)[0] == ["0.1", "0", str(last + 1)]
    resumed = load_result(tmp_path / "result.nc")
    for name in ("theta", "curve", "drawn"):
        np.testing.assert_allclose(resumed[name], whole[name], rtol=2**-13, err_msg=name)
    assert not (tmp_path / "result.nc.unfinished").exists()


def test_workers_end_with_a_killed_parent(tmp_path):
    log = tmp_path / "log"
    process = start(tmp_path, "workers=2, pause=0.05, steps=1000", DESCENT_LOG=str(log))
    deadline = time.monotonic() + 120
    while not (log.exists() and len(steps_in(log)) > 4):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)
    process.kill()
    process.wait()
    time.sleep(1.0)
    size = log.stat().st_size
    time.sleep(1.0)
    assert log.stat().st_size == size
    assert not (tmp_path / "result.nc").exists()


def test_an_error_in_a_worker_is_told(tmp_path):
    with pytest.raises(RichbookError, match="device"):
        reproduce(RECIPE, tmp_path / "result.nc", device="nowhere", progress=False)
    process = start(tmp_path, "workers=2, values=(0.1, 'a lot')")
    assert process.wait(120) == 1
    assert "TypeError" in process.stderr.read().decode()
    assert not (tmp_path / "result.nc").exists()


def test_what_was_trained_serves_a_run_with_more_seeds(tmp_path, monkeypatch):
    def fail(*args, **options):
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(reproducing, "save", fail)
        with pytest.raises(OSError, match="full"):
            run(tmp_path / "result.nc")
    log = tmp_path / "log"
    monkeypatch.setenv("DESCENT_LOG", str(log))
    result = run(tmp_path / "result.nc", seeds=3)
    assert {seed for _, seed, _ in steps_in(log)} == {"2"}
    assert result.sizes["seed"] == 3


def test_another_configuration_does_not_mix_with_an_unfinished_run(tmp_path, monkeypatch):
    def interrupted(jobs, workers, report):
        jobs[0].run(report)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(reproducing, "run_all", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "result.nc", momentum=0.5)
    with pytest.raises(RichbookError, match=r"another momentum \(0.5, now 0.0\).*--restart"):
        run(tmp_path / "result.nc")
    result = run(tmp_path / "result.nc", restart=True)
    assert json.loads(result.config)["momentum"] == 0.0


def test_a_network_that_diverges_is_nan_and_said_to_be(tmp_path):
    result = run(tmp_path / "result.nc", diverges=True)
    assert np.isfinite(result.theta.sel(rate=0.1)).all()
    lost = result.theta.sel(rate=0.5)
    assert np.isfinite(lost.isel(step=0)).all() and lost.isel(step=-1).isnull().all()
    assert (result.diverged_at.sel(rate=0.5) > 0).all()
    assert (result.diverged_at.sel(rate=0.1) == -1).all()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"variant": "huge"}, "variant: descent has full, quick, got 'huge'"),
        ({"colour": 1}, "colour: no such setting; expected some of values, seeds"),
        ({"seeds": 0}, "seeds: expected a whole number of at least 1, got 0"),
        ({"seeds": True}, "seeds: expected a whole number"),
        ({"steps": 1.5}, "steps: expected a whole number"),
        ({"workers": 0}, "workers: expected a whole number"),
    ],
)
def test_bad_arguments_are_named(tmp_path, options, message):
    with pytest.raises(RichbookError, match=message):
        run(tmp_path / "result.nc", **options)
    assert os.listdir(tmp_path) == []


def test_unknown_recipes_and_folders_are_named(tmp_path):
    with pytest.raises(RichbookError, match="recipe: expected one of label-in-pixels, .*'nothing'"):
        reproduce("nothing", tmp_path / "result.nc")
    with pytest.raises(RichbookError, match="out: the folder .* does not exist"):
        run(tmp_path / "missing" / "result.nc")
