"""Recorded results of the recipes, and the table that compares them with the paper."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xarray as xr
from scipy import stats

from richbook.experiments.digits_sweep import RECORDED
from richbook.experiments.recipe import DerivedRow, Row
from richbook.experiments.reproducing import found
from richbook.measure import RichbookError

#: A new seed falls into the band with this probability, if the seeds are normally distributed.
BAND_PROBABILITY = 0.95
#: The band is never narrower than this, which other hardware and other versions may need.
BAND_LEAST = 0.01


def load_result(name: str | Path) -> xr.Dataset:
    """Load the recorded result of a recipe, or a file that ``reproduce`` wrote.

    Args:
        name: a recipe's name, or a path that ends in ``.nc``.

    Raises:
        RichbookError: no such recipe, result or file; a file that is not a recipe's result.

    Example:
        >>> load_result("label-in-pixels").d_lr.dims
        ('trained', 'seed', 'step')
    """
    path = Path(name) if str(name).endswith(".nc") else recorded_path(str(name))
    if not path.is_file():
        raise RichbookError(f"name: the file {path} does not exist")
    try:
        with xr.open_dataset(path, engine="h5netcdf") as stored:
            result = stored.load()
    except (OSError, ValueError) as error:
        raise RichbookError(f"name: {path} cannot be read as netCDF ({error})") from error
    if "recipe" not in result.attrs:
        raise RichbookError(f"name: {path} is not the result of a recipe")
    return result


def provenance(result: xr.Dataset) -> str:
    """How a result was made, in one line.

    Example:
        >>> provenance(load_result("label-in-pixels")).split(",")[:3]
        ['label-in-pixels (full): mnist', ' 3 seeds', ' 1500 steps']
    """
    made, config = result.attrs, json.loads(result.attrs["config"])
    torch_version = json.loads(made["versions"])["torch"].partition("+")[0]
    return (
        f"{made['recipe']} ({made['variant']}): {config['data']}, {result.sizes['seed']} seeds, "
        f"{config['steps']} steps, {made['trial_seconds'] / 60:.0f} minutes on {made['device']}, "
        f"torch {torch_version}, {made['made']}"
    )


def recorded_path(name: str) -> Path:
    """Where the recorded result of a recipe lies, or would lie."""
    return RECORDED / f"{found(name).name}.nc"


def band(values: np.ndarray) -> tuple[float, float]:
    """Where the number of a new seed is expected: the mean ± t·s·√(1 + 1/n), at 95 %.

    Example:
        >>> low, high = band(np.array([0.1, 0.2, 0.3]))
        >>> round(low, 2), round(high, 2)
        (-0.3, 0.7)
    """
    values = np.asarray(values, dtype=float)
    half = BAND_LEAST
    if len(values) > 1:
        quantile = stats.t.ppf((1 + BAND_PROBABILITY) / 2, len(values) - 1)
        half = max(half, quantile * values.std(ddof=1) * np.sqrt(1 + 1 / len(values)))
    return float(values.mean() - half), float(values.mean() + half)


@dataclass(frozen=True)
class Comparison:
    """One number of the paper beside ours.

    Attributes:
        recipe: the recipe's name.
        setting: what was trained and measured.
        paper: the paper's number or verdict, or None.
        ours: the number of every seed.
        again: the same of a rerun, or None.
    """

    recipe: str
    setting: str
    paper: float | str | None
    ours: np.ndarray
    again: np.ndarray | None = None

    @property
    def inside(self) -> bool | None:
        """Whether the rerun's mean lies in the band of the recorded seeds."""
        if self.again is None:
            return None
        low, high = band(self.ours)
        return bool(low <= np.mean(self.again) <= high)

    def cells(self) -> list[str]:
        """Setting, paper, ours, and what there is of a rerun, as text."""
        texts = [self.setting, "–" if self.paper is None else _number(self.paper)]
        texts.append(_spread(self.ours))
        if self.again is not None:
            low, high = band(self.ours)
            texts += [
                f"{low:.3f} to {high:.3f}",
                _spread(self.again),
                "yes" if self.inside else "NO",
            ]
        return texts


def compare(result: xr.Dataset, again: xr.Dataset | None = None) -> list[Comparison]:
    """Every row of a result's recipe, with a rerun beside it if there is one.

    Example:
        >>> rows = compare(load_result("label-in-pixels"))
        >>> rows[0].paper, rows[0].ours.shape
        (0.0087, (3,))
    """
    recipe = found(result.attrs["recipe"])
    small = " (stand-in)" if result.attrs["variant"] == "stand-in" else ""
    return [
        Comparison(
            recipe.name,
            row.setting + small,
            row.paper,
            _values(row, result),
            None if again is None else _values(row, again),
        )
        for row in recipe.rows
    ]


def _values(row: Row | DerivedRow, result: xr.Dataset) -> np.ndarray:
    return np.atleast_1d(row.per_seed(result).values.astype(float))


def _number(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.2g}" if abs(value) < 0.1 else f"{value:.3g}"


def _spread(values: np.ndarray) -> str:
    if np.isnan(values).all():
        return "nan"
    spread = f" ± {np.nanstd(values, ddof=1):.2g}" if len(values) > 1 else ""
    return f"{np.nanmean(values):.3g}{spread}"


class ReproductionTable:
    """The paper's numbers, ours, and whether the conclusion is the same; a table in a notebook.

    Args:
        results: results by recipe name.
    """

    HEADER = ("experiment", "paper", "ours", "same conclusion?")

    def __init__(self, results: Mapping[str, xr.Dataset]) -> None:
        self.comparisons = {name: compare(result) for name, result in results.items()}
        self.findings = {name: found(name).finding(result) for name, result in results.items()}

    def rows(self, brief: bool = False) -> list[list[str]]:
        """Cells as text; the verdict stands in the first row of each recipe.

        Args:
            brief: leave out the rows of which the paper says nothing.
        """
        rows = []
        for name, comparisons in self.comparisons.items():
            kept = [each for each in comparisons if each.paper is not None or not brief]
            for index, comparison in enumerate(kept):
                rows.append([*comparison.cells(), self.verdict(name) if index == 0 else ""])
        return rows

    def verdict(self, name: str) -> str:
        """The verdict on a recipe, with the reason."""
        finding = self.findings[name]
        return f"{finding.same}: {finding.why}"

    def to_markdown(self, brief: bool = False) -> str:
        """The table in Markdown; the README has the brief one."""
        lines = [self.HEADER, ["---"] * len(self.HEADER), *self.rows(brief)]
        return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)

    def __repr__(self) -> str:
        return self.to_markdown()

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in self.HEADER)
        body = ""
        for name, comparisons in self.comparisons.items():
            for index, comparison in enumerate(comparisons):
                cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in comparison.cells())
                if index == 0:
                    verdict = html.escape(self.verdict(name))
                    cells += f'<td rowspan="{len(comparisons)}">{verdict}</td>'
                body += f"<tr>{cells}</tr>"
        return f'<table class="rb-table"><tr>{head}</tr>{body}</table>'


def reproduction_table(results: Mapping[str, xr.Dataset] | None = None) -> ReproductionTable:
    """The paper's experiments beside ours, from the recorded results unless others are given.

    Example:
        >>> table = reproduction_table({"label-in-pixels": load_result("label-in-pixels")})
        >>> table.verdict("label-in-pixels").split(":")[0]
        'yes'
    """
    if results is None:
        from richbook.experiments.recipes import RECIPES

        results = {name: load_result(name) for name in RECIPES}
    return ReproductionTable(results)
