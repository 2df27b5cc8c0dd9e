"""What ``richbook reproduce`` prints: the list of recipes, and a run beside the recorded one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import xarray as xr

from richbook.experiments.recipes import RECIPES
from richbook.experiments.reproducing import found, reproduce
from richbook.experiments.results import compare, load_result, recorded_path
from richbook.train.single import checked_device


def recipes() -> str:
    """One paragraph a recipe: name, question, variants, and what the recorded run took.

    Example:
        >>> recipes().splitlines()[0].split()[0]
        'label-in-pixels'
    """
    lines = []
    for name, recipe in RECIPES.items():
        lines.append(f"{name:<18}{recipe.question}")
        lines.append(f"{'':<18}variants: {', '.join(recipe.variants)}")
        if recorded_path(name).is_file():
            made = load_result(name).attrs
            lines.append(
                f"{'':<18}recorded: {made['variant']}, {made['trial_seconds'] / 60:.1f} min of "
                f"training on {made['device']}, {made['made']}"
            )
    return "\n".join(lines)


def run(
    name: str, out: Path | None, *, device: str | None, workers: int | None, **options: object
) -> tuple[xr.Dataset, Path]:
    """Reproduce with as many networks at a time as there are CPU cores; also says where it lies."""
    found(name)
    if workers is None:
        chosen = checked_device(device)
        workers = (os.cpu_count() or 1) if chosen.type == "cpu" else 1
    out = Path(f"{name}.nc") if out is None else out
    return reproduce(name, out, device=device, workers=workers, **options), out


def comparison(result: xr.Dataset) -> tuple[str, bool]:
    """A table of this run beside the recorded one, and whether all of it lies in the bands.

    A run with other settings than the recorded one is printed alone: there is nothing to compare.
    """
    recipe = found(result.attrs["recipe"])
    recorded = load_result(recipe.name) if recorded_path(recipe.name).is_file() else None
    comparable = recorded is not None and _settings(recorded) == _settings(result)
    rows = compare(recorded, result) if comparable else compare(result)
    more = ["recorded", "band", "now", "inside"] if comparable else ["now"]
    text = _aligned([["", "paper", *more], *(row.cells() for row in rows)])
    finding = recipe.finding(result)
    text += f"\n\nSame conclusion as the paper: {finding.same}. {finding.why}"
    if not comparable:
        text += (
            f"\nThis was the variant {result.attrs['variant']}, and no result with its settings is "
            "recorded to compare it with."
        )
    return text, all(row.inside is not False for row in rows)


def _settings(result: xr.Dataset) -> dict:
    settings = json.loads(result.attrs["config"])
    del settings["seeds"]
    return settings


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
