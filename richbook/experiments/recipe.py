"""What a recipe is: a question, configurations, a way to build each network, and what to expect."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import xarray as xr

from richbook.experiments.trial import Trial
from richbook.measure import RichbookError
from richbook.train.settings import is_whole, log_steps


@dataclass(frozen=True)
class Config:
    """What every recipe's configuration has; each recipe adds its own fields.

    Attributes:
        values: what varies along the recipe's axis.
        seeds: how many seeds, 0, 1, …; each fixes initial weights and batches.
        steps: updates of each network.
        records: about how many steps are recorded, 0 and then spaced evenly on a log axis.
        data: a name that ``load_data`` knows, or what the recipe makes its data of.
    """

    values: tuple
    seeds: int = 3
    steps: int = 1000
    records: int = 14
    data: str = "digits"

    def record_at(self) -> list[int]:
        """The steps that are recorded, the last one always."""
        return log_steps(self.steps, self.records)

    def replace(self, **changes: object) -> Config:
        """A copy with some values changed; an unknown name is an error that lists the known."""
        known = [each.name for each in dataclasses.fields(self)]
        for name in changes:
            if name not in known:
                raise RichbookError(f"{name}: no such setting; expected some of {', '.join(known)}")
        changed = dataclasses.replace(self, **changes)
        for name in ("seeds", "steps"):
            value = getattr(changed, name)
            if not (is_whole(value) and value >= 1):
                raise RichbookError(f"{name}: expected a whole number of at least 1, got {value!r}")
        return changed


@dataclass(frozen=True)
class Row:
    """One number of the reproduction table.

    Attributes:
        setting: in words, what was trained and measured.
        variable: the name of the recorded variable.
        at: where along the recipe's axis.
        paper: the paper's number or verdict, or None where it has none.

    Example:
        >>> from richbook.experiments import load_result
        >>> row = Row("all layers: D_LR", "d_lr", {"trained": "all layers"}, paper=0.0087)
        >>> [round(float(value), 3) for value in row.per_seed(load_result("label-in-pixels"))]
        [0.007, 0.009, 0.009]
    """

    setting: str
    variable: str
    at: Mapping[str, object]
    paper: float | str | None = None

    def per_seed(self, result: xr.Dataset) -> xr.DataArray:
        """The number of every seed at the last step: (seed,)."""
        return result[self.variable].sel(self.at).isel(step=-1)


@dataclass(frozen=True)
class DerivedRow:
    """A number of the reproduction table that takes more than looking up.

    Attributes:
        setting: in words, what was trained and measured.
        compute: result -> the number of every seed, (seed,).
        paper: the paper's number or verdict, or None where it has none.
    """

    setting: str
    compute: Callable[[xr.Dataset], xr.DataArray]
    paper: float | str | None = None

    def per_seed(self, result: xr.Dataset) -> xr.DataArray:
        """The number of every seed: (seed,)."""
        return self.compute(result)


@dataclass(frozen=True)
class Finding:
    """Whether the conclusion is the paper's ("yes", "partly" or "no"), and why.

    Example:
        >>> from richbook.experiments import RECIPES, load_result
        >>> RECIPES["label-in-pixels"].finding(load_result("label-in-pixels")).same
        'yes'
    """

    same: str
    why: str


@dataclass(frozen=True)
class Recipe:
    """An experiment that anyone can run again.

    Attributes:
        name: what ``richbook reproduce`` calls it.
        question: one line.
        axis: the dimension along which ``Config.values`` lie.
        build: (config, value, seed, device) -> ``Trial``.
        variants: configurations by name. Each recipe has "quick", seconds for a test, and either
            "full", or "stand-in" for a CPU and "real" for a GPU.
        rows: the numbers of the reproduction table.
        finding: looks at a result and says whether the paper's conclusion holds.
        curves: names of the dimensions of every recorded variable that is not a scalar.
        many_threads: whether the networks are large enough to gain from several CPU threads; small
            ones are slower on two than on one.

    Example:
        >>> from richbook.experiments import RECIPES
        >>> RECIPES["target-scale"].axis, RECIPES["target-scale"].config("full").values
        ('target_scale', (0.03, 0.1, 0.3, 1.0, 3.0))
    """

    name: str
    question: str
    axis: str
    build: Callable[[Config, object, int, torch.device], Trial]
    variants: Mapping[str, Config]
    rows: tuple[Row | DerivedRow, ...]
    finding: Callable[[xr.Dataset], Finding]
    curves: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    many_threads: bool = False

    def variant_for(self, device: torch.device) -> str:
        """The variant to run where nobody asked for one: the real one needs a GPU."""
        if "full" in self.variants:
            return "full"
        return "real" if device.type == "cuda" else "stand-in"

    def config(self, variant: str) -> Config:
        """The configuration of a variant, or an error that lists them."""
        if variant not in self.variants:
            names = ", ".join(self.variants)
            raise RichbookError(f"variant: {self.name} has {names}, got {variant!r}")
        return self.variants[variant]
