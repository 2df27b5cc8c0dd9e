"""Run a recipe from its configuration to a file."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
import xarray as xr
from tqdm.auto import tqdm

from richbook.experiments.digits_sweep import save
from richbook.experiments.recipe import Config, Recipe
from richbook.experiments.trials import Job, run_all
from richbook.experiments.workplace import Workplace
from richbook.measure import RichbookError
from richbook.train.provenance import commit, how_made
from richbook.train.settings import is_whole
from richbook.train.single import checked_device


def reproduce(
    recipe: Recipe | str,
    out: str | Path | None = None,
    *,
    variant: str | None = None,
    device: torch.device | str | None = None,
    workers: int = 1,
    restart: bool = False,
    progress: bool = True,
    **changes: object,
) -> xr.Dataset:
    """Run an experiment again and write its result, whole or not at all.

    A run that was stopped or killed goes on from its last checkpoint when it is called again with
    the same arguments; until it is finished, what it has lies in ``<out>.unfinished``.

    Args:
        recipe: a name, see ``RECIPES``, or a ``Recipe`` of your own.
        out: the file to write, netCDF; else the recipe's name in the current folder.
        variant: "quick", "full", "stand-in" or "real"; else the full one, or, where the real one
            needs a GPU, the one that fits the device.
        device: where to train, else a CUDA device if there is one, else the CPU.
        workers: trials at a time; above 1, each in a process of its own, and a script then needs
            the usual ``if __name__ == "__main__"``.
        restart: throw an unfinished run away instead of going on with it.
        progress: show a progress bar.
        **changes: settings of the configuration to change, for example ``seeds=5``.

    Returns:
        An ``xarray.Dataset`` over the recipe's axis, ``seed`` and ``step``. Its attributes say what
        was run: recipe, variant, configuration (JSON), versions, device, wall time and commit. A
        network that diverged is nan from there on.

    Raises:
        RichbookError: an unknown recipe, variant or setting; a folder that does not exist; an
            unfinished run with other settings in the way.

    Example:
        >>> reproduce("label-in-pixels", "no/such/folder/result.nc")
        Traceback (most recent call last):
        richbook.measure.errors.RichbookError: out: the folder no/such/folder does not exist
    """
    recipe = found(recipe)
    device = checked_device(device)
    variant = recipe.variant_for(device) if variant is None else variant
    config = recipe.config(variant).replace(**changes)
    out = Path(f"{recipe.name}.nc" if out is None else out)
    if not out.parent.is_dir():
        raise RichbookError(f"out: the folder {out.parent} does not exist")
    if not (is_whole(workers) and workers >= 1):
        raise RichbookError(f"workers: expected a whole number of at least 1, got {workers!r}")
    workplace = Workplace.beside(out)
    workplace.open(_plan(recipe, variant, config, device), restart)
    jobs = _jobs(recipe, config, device, workplace, workers)
    start = time.monotonic()
    total = config.steps * len(jobs)
    with tqdm(total=total, disable=not progress, desc=recipe.name, unit="step") as bar:
        try:
            run_all(jobs, workers, bar.update)
        except BaseException:
            workplace.close_if_bare()
            raise
    result = assembled(recipe, config, [workplace.load(job.index, job.seed) for job in jobs])
    result.attrs |= _attributes(recipe, variant, config)
    result.attrs |= how_made(time.monotonic() - start, str(device), jobs[0].threads)
    result.attrs |= {"workers": workers, "trial_seconds": round(float(result.seconds.sum()), 1)}
    save(result, out, packed={})
    workplace.close()
    return result


def found(recipe: Recipe | str) -> Recipe:
    """The recipe of a name, or an error that lists the names."""
    if isinstance(recipe, Recipe):
        return recipe
    from richbook.experiments.recipes import RECIPES

    if recipe not in RECIPES:
        raise RichbookError(f"recipe: expected one of {', '.join(RECIPES)}, got {recipe!r}")
    return RECIPES[recipe]


def assembled(recipe: Recipe, config: Config, trials: list[dict]) -> xr.Dataset:
    """A dataset of finished trials, in the order of values and seeds."""
    steps = config.record_at()
    records = [record for trial in trials for record in trial["records"]]
    names = {name: value for record in records for name, value in record.items()}
    shape = (len(config.values), config.seeds)
    variables = {}
    for name, example in names.items():
        filled = np.full((len(trials), len(steps), *example.shape), np.nan, dtype=np.float32)
        for row, trial in enumerate(trials):
            for column, record in enumerate(trial["records"]):
                if name in record:  # some have no value before the first step
                    filled[row, column] = record[name].numpy()
        dims = (recipe.axis, "seed", "step", *recipe.curves.get(name, ()))
        variables[name] = (dims, filled.reshape(*shape, *filled.shape[1:]))
    for name, key, kind in (("seconds", "seconds", float), ("diverged_at", "diverged_at", int)):
        values = np.array([kind(trial[key]) for trial in trials]).reshape(shape)
        variables[name] = ((recipe.axis, "seed"), values)
    coordinates = {recipe.axis: list(config.values), "seed": range(config.seeds), "step": steps}
    return xr.Dataset(variables, coordinates)


def _plan(recipe: Recipe, variant: str, config: Config, device: torch.device) -> dict:
    """What an unfinished run must agree on with the one that goes on with it: not the seeds."""
    settings = dataclasses.asdict(config)
    del settings["seeds"]
    return {"recipe": recipe.name, "variant": variant, "device": device.type} | settings


def _jobs(
    recipe: Recipe, config: Config, device: torch.device, workplace: Workplace, workers: int
) -> list[Job]:
    threads = max(1, (os.cpu_count() or 1) // workers) if recipe.many_threads else 1
    return [
        Job(recipe, config, index, seed, str(device), workplace, threads)
        for index in range(len(config.values))
        for seed in range(config.seeds)
    ]


def _attributes(recipe: Recipe, variant: str, config: Config) -> dict:
    return {
        "recipe": recipe.name,
        "question": recipe.question,
        "variant": variant,
        "axis": recipe.axis,
        "data": config.data,
        "config": json.dumps(dataclasses.asdict(config)),
        "commit": commit(),
    }
