"""Do the strong features get good first?

Every eigenfunction e_k of the feature kernel has a strength, its eigenvalue ρ_k, and a quality, the
share of it that lies in the span of the targets. Both are followed during training, in a lazy
network (small targets) and in a rich one.

Nam et al., "Decoupling Dynamical Richness from Representation Learning", ICLR 2026.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import torch
import xarray as xr
from scipy import stats
from torch import Tensor

from richbook.experiments.recipe import DerivedRow, Finding, Recipe
from richbook.experiments.recipes.perceptrons import CURVES, Perceptrons, build
from richbook.experiments.trial import Trial
from richbook.train.data import load_data

LAZY, RICH = 0.03, 1.0
#: Eigenfunctions weaker than this, relative to the strongest, are rounding.
VISIBLE = 1e-6


GROUPS = ("strong", "middle", "weak")


def strength_and_quality(strength: Tensor, quality: Tensor, rank: int) -> dict[str, float]:
    """Spearman's correlation, over k, of strength and quality; and the quality of three groups.

    ``quality_strong`` is the mean quality of e_1 … e_r, as many as the targets span functions,
    ``quality_middle`` that of the next 2r, ``quality_weak`` that of all others.

    Args:
        strength: ρ_k/ρ_1, (p,).
        quality: Π*(k), cumulative and ending at 1, (p,).
        rank: r.
    """
    each = rank * torch.diff(quality, prepend=quality.new_zeros(1))
    visible = strength > VISIBLE
    found = stats.spearmanr(strength[visible].numpy(), each[visible].numpy()).statistic
    parts = (each[:rank], each[rank : 3 * rank], each[3 * rank :])
    means = {
        f"quality_{name}": float(part.mean()) for name, part in zip(GROUPS, parts, strict=True)
    }
    return {"strength_quality": float(found)} | means


def build_one(config: Perceptrons, value: float, seed: int, device: torch.device) -> Trial:
    """A network that learns targets of one scale, its eigenfunctions followed one by one."""
    trial = build(config.replace(target_scale=float(value)), seed, device)
    rank = load_data(config.data).classes - 1

    def measure() -> dict:
        record = dict(trial.measure())
        strength, quality = record["relative_eigenvalue"].cpu(), record["quality"].cpu()
        return record | strength_and_quality(strength, quality, rank)

    return replace(trial, measure=measure)


def gain(result: xr.Dataset, scale: float, group: str) -> xr.DataArray:
    """How much the quality of a group has grown since initialisation: (seed,)."""
    quality = result[f"quality_{group}"].sel(target_scale=scale)
    return quality.isel(step=-1) - quality.isel(step=0)


def correlation(result: xr.Dataset, scale: float, step: int) -> xr.DataArray:
    """Correlation of strength and quality at a place along the recorded steps: (seed,)."""
    return result.strength_quality.sel(target_scale=scale).isel(step=step)


def finding(result: xr.Dataset) -> Finding:
    """Do the strong gain most, and are strength and quality correlated throughout, in every seed of
    the rich network?"""
    gains = {group: gain(result, RICH, group) for group in GROUPS}
    others = max(gains["middle"].max(), gains["weak"].max())
    strongest = bool((gains["strong"] > others).all())
    along = result.strength_quality.sel(target_scale=RICH)
    correlated = bool((along > 0).all())
    same = "yes" if strongest and correlated else "partly" if strongest or correlated else "no"
    return Finding(
        same,
        f"In the rich network the strongest functions gain {float(gains['strong'].mean()):+.2f} in "
        f"quality, the next {float(gains['middle'].mean()):+.2f}, the weakest "
        f"{float(gains['weak'].mean()):+.3f}. Strength and quality are correlated at every step, "
        f"by rank at {float(along.isel(step=0).mean()):.2f} before training, "
        f"{float(along.mean('seed').max()):.2f} at most and "
        f"{float(along.isel(step=-1).mean()):.2f} at the end: what the strong gain, the next lose. "
        "(Functions are sorted anew at each step.)",
    )


def _rows() -> tuple[DerivedRow, ...]:
    found = []
    for name, scale in (("rich", RICH), ("lazy", LAZY)):
        for when, step in (("before", 0), ("after", -1)):
            found.append(
                DerivedRow(
                    f"digits, {name} network: rank correlation of ρ_k and quality, {when} training",
                    functools.partial(correlation, scale=scale, step=step),
                    "correlated" if name == "rich" else None,
                )
            )
        for group in GROUPS:
            found.append(
                DerivedRow(
                    f"digits, {name} network: gain in quality of the {group} functions",
                    functools.partial(gain, scale=scale, group=group),
                )
            )
    return tuple(found)


RECIPE = Recipe(
    name="feature-quality",
    question="Do features with large eigenvalues become good first?",
    axis="target_scale",
    build=build_one,
    variants={
        "full": Perceptrons(values=(LAZY, RICH), records=24, ntk_images=0),
        "quick": Perceptrons(
            values=(LAZY, RICH), seeds=1, steps=120, records=5, width=32, ntk_images=0
        ),
    },
    rows=_rows(),
    finding=finding,
    curves=CURVES,
)
