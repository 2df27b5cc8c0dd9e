"""How strongly H and G follow a layer's weights: their powers of Z, fitted in Z's eigenbasis."""

from __future__ import annotations

import html
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from richbook.measure.alignment.phases import directions
from richbook.measure.alignment.phases.directions import Directions, diagonals
from richbook.measure.alignment.phases.power_law import (
    UNKNOWN,
    PowerLaw,
    fit_laws,
    fit_major_axis,
    major_axis,
    slope,
    with_samples,
)
from richbook.measure.errors import DegenerateWarning, RichbookError

#: Fewer different eigenvalues than this do not make a line.
FEWEST = 4
MATRICES = ("H_b", "G_b", "H_a", "G_a")
#: The fits in powers of Z, and what each follows.
IN_Z = {"H_b": "Z_b", "G_b": "Z_b", "H_a": "Z_a", "G_a": "Z_a", "ratio_b": "Z_b", "ratio_a": "Z_a"}
#: The fits between H and G.
BETWEEN = {"HG_b": ("H_b", "G_b"), "HG_a": ("H_a", "G_a")}
COLUMNS = ("relation", "exponent", "interval", "R²", "better law", "diagonal")


@dataclass(frozen=True, repr=False)
class Exponents:
    """Power laws of one layer, each a :class:`PowerLaw`.

    Attributes:
        name: of the layer.
        used: how many different eigenvalues of Z the fits use.
        decades: log10 of the largest over the smallest of them.
        gap: log10 of the largest ratio between neighbours. Where it is most of ``decades``, each
            line joins two clusters of points, and its R² says little about a power law.
        H_b, G_b: powers of Z_b.
        H_a, G_a: powers of Z_a. The first is the exponent x, and H_b's is x + 1; G_b's is y, and
            G_a's is y + 1. That holds exactly for the fits, so there are two results and not four,
            and the R² of H_b and G_a come out higher only because Z is on both axes.
        ratio_b, ratio_a: the power of Z in H/G: 0 where H ∝ G.
        HG_b, HG_a: the power of G that H is, by the major axis; both are noisy.
        diagonal: for each matrix the share of its squared norm that lies on the diagonal of Z's
            eigenbasis, at the directions used. A power law between matrices needs a share near 1.
        purity: for "H" and "G" the smallest share of a direction's diagonal entry that the other
            directions do not account for, the same on both sides. Where it is small, the entry is
            what leaks from stronger directions, and the exponent is too near to 0.
        eigenvalues: of Z, descending, shape (used,).
        diagonals: the entries that were fitted, by matrix, each of shape (used,).

    Example:
        >>> from types import SimpleNamespace
        >>> z = torch.diag(torch.tensor([8.0, 4.0, 2.0, 1.0]))
        >>> found = exponents(SimpleNamespace(name="fc", weight=z.sqrt(), H_a=z, G_b=z.sqrt()))
        >>> found.rows()[0][:3]
        ('Z_b → H_b', '2.00', '2.00 to 2.00')
    """

    name: str
    used: int
    decades: float
    gap: float
    H_b: PowerLaw
    G_b: PowerLaw
    H_a: PowerLaw
    G_a: PowerLaw
    ratio_b: PowerLaw
    ratio_a: PowerLaw
    HG_b: PowerLaw
    HG_a: PowerLaw
    diagonal: dict[str, float]
    purity: dict[str, float]
    eigenvalues: Tensor
    diagonals: dict[str, Tensor]

    @property
    def x(self) -> float:
        """The power in H_a ∝ Z_a^x."""
        return self.H_a.exponent

    @property
    def y(self) -> float:
        """The power in G_b ∝ Z_b^y."""
        return self.G_b.exponent

    def to_dict(self) -> dict:
        """Plain numbers, ready for JSON; None for what is nan or infinite."""
        found: dict = {part: getattr(self, part) for part in ("name", "used", "decades", "gap")}
        found |= {name: dict(vars(getattr(self, name))) for name in (*IN_Z, *BETWEEN)}
        return _finite(found | {"diagonal": self.diagonal, "purity": self.purity})

    def rows(self) -> list[tuple[str, ...]]:
        """The table: relation, exponent, interval, R², better law, share on the diagonal."""
        relations = {name: f"{IN_Z[name]} → {name}" for name in MATRICES}
        relations |= {name: f"{g} → {h}" for name, (h, g) in BETWEEN.items()}
        rows = []
        for name, relation in relations.items():
            fit: PowerLaw = getattr(self, name)
            interval = "{:.2f} to {:.2f}".format(*fit.interval)
            of_z = (fit.law, f"{self.diagonal[name]:.2f}") if name in MATRICES else ("", "")
            rows.append((relation, f"{fit.exponent:.2f}", interval, f"{fit.r2:.3f}", *of_z))
        return rows

    def _title(self) -> str:
        return (
            f"{self.name}: {self.used} eigenvalues over {self.decades:.1f} decades, largest gap "
            f"{self.gap:.1f}; purity H {self.purity['H']:.2f}, G {self.purity['G']:.2f}"
        )

    def __repr__(self) -> str:
        rows = [COLUMNS, *self.rows()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        padded = [zip(row, widths, strict=True) for row in rows]
        lines = ["  ".join(f"{cell:{width}}" for cell, width in row).rstrip() for row in padded]
        return "\n".join([self._title(), *lines])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{cell}</th>" for cell in COLUMNS)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self.rows()
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f"<p>{html.escape(self._title())}</p>{table}"


def exponents(
    moments: object,
    top: int | None = None,
    resolution: float = directions.RESOLUTION,
    level: float = 0.95,
    seed: int = 0,
) -> Exponents | dict[str, Exponents]:
    r"""Fit powers of Z to H and G on both sides of a layer (Ziyin et al. 2025, arXiv 2410.03006).

    With W = Σ_k s_k u_k v_kᵀ, the eigenvalues of Z_b = WWᵀ and Z_a = WᵀW are λ_k = s_k², and

    .. math:: \log v_k^\top H_a v_k = x \log\lambda_k + \dots, \qquad
              \log u_k^\top G_b u_k = y \log\lambda_k + \dots

    are fitted by least squares. The other two powers follow, since u_kᵀ H_b u_k = λ_k v_kᵀ H_a v_k
    and v_kᵀ G_a v_k = λ_k u_kᵀ G_b u_k exactly, aligned or not.

    Which eigenvalues are used: the largest ones, as many as Z, H and G all have above rounding.
    Those that differ by less than 10⁻⁵ count as one, with the mean of their diagonal entries.
    Directions that training never used keep what decay has left of the initial weights and what
    noise has added since. That is no rounding: leave them out with ``top``.

    The interval is a wild bootstrap over eigenvalues (see ``power_law``). With
    ``layer_moments(..., groups=True)`` there is a second one over samples, a jackknife over groups.

    Args:
        moments: a ``LayerMoments``, or anything with ``weight`` (out, in), ``H_a`` (in, in) and
            ``G_b`` (out, out); or a dictionary of such, as from :func:`layer_moments`.
        top: use this many of the largest eigenvalues instead of the rule.
        resolution: eigenvalues of H and G below this share of the largest are rounding. 10⁻⁷ is
            right for a float32 network; for one in float64, with float64 inputs, 10⁻¹⁴ is.
        level: of the intervals.
        seed: of the bootstrap.

    Returns:
        ``Exponents``, or a dictionary of them.

    Raises:
        RichbookError: something else than moments, shapes that do not fit, nan or infinity, a top
            below 1, a resolution or level outside (0, 1).

    Warns:
        DegenerateWarning: fewer than four different eigenvalues; all exponents are nan.

    Example:
        >>> from types import SimpleNamespace
        >>> weight = torch.diag(torch.tensor([4.0, 3.0, 2.0, 1.0, 0.5])).double()
        >>> z = weight @ weight
        >>> found = exponents(SimpleNamespace(name="fc", weight=weight, H_a=z, G_b=z @ z))
        >>> round(found.x, 6), round(found.y, 6), round(found.H_b.exponent, 6)
        (1.0, 2.0, 2.0)
    """
    if isinstance(moments, Mapping):
        options = (top, resolution, level, seed)
        return {name: exponents(layer, *options) for name, layer in moments.items()}
    if not (isinstance(level, int | float) and 0 < level < 1):
        raise RichbookError(f"level: expected a share between 0 and 1, got {level!r}")
    if not (isinstance(resolution, int | float) and 0 < resolution < 1):
        raise RichbookError(f"resolution: expected a share between 0 and 1, got {resolution!r}")
    if top is not None and not (isinstance(top, int) and top >= 1):
        raise RichbookError(f"top: expected a whole number of eigenvalues from 1, got {top!r}")
    name = str(getattr(moments, "name", ""))
    found = directions.directions_of(moments, top, resolution)
    count = len(found.eigenvalues)
    fits = dict.fromkeys((*IN_Z, *BETWEEN), UNKNOWN)
    if count >= FEWEST:
        fits = _fit(found, level, seed)
    else:
        z, h, g = found.ranks
        message = (
            f"layer {name!r} has {count} different eigenvalues of Z in use (rank of Z {z}, of H "
            f"{h}, of G {g}), expected at least {FEWEST}: its exponents are nan"
        )
        warnings.warn(message, DegenerateWarning, stacklevel=2)
    logs = found.eigenvalues.log10()
    steps = -logs.diff()
    return Exponents(
        name=name,
        used=count,
        decades=float(logs[0] - logs[-1]) if count else math.nan,
        gap=float(steps.max()) if count > 1 else math.nan,
        **fits,
        diagonal=found.shares,
        purity=found.purity,
        eigenvalues=found.eigenvalues,
        diagonals=found.diagonals(),
    )


def _fit(found: Directions, level: float, seed: int) -> dict[str, PowerLaw]:
    """All laws of a layer, with an interval over samples where it has groups."""
    over, values = found.eigenvalues, _values(found.eigenvalues, found.H, found.G)
    fits = fit_laws(over, values, level, seed)
    for name, (h, g) in BETWEEN.items():
        fits[name] = fit_major_axis(values[g], values[h], over, level, seed)
    if not found.left_out:
        return fits
    rest = _values(over, *(torch.stack(part) for part in zip(*found.left_out, strict=True)))
    slopes = {name: slope(over, rest[name]) for name in IN_Z}
    slopes |= {name: major_axis(rest[g], rest[h]) for name, (h, g) in BETWEEN.items()}
    return {name: with_samples(law, slopes[name], level) for name, law in fits.items()}


def _values(over: Tensor, h: Tensor, g: Tensor) -> dict[str, Tensor]:
    """What is fitted: the four diagonals and the ratios H/G."""
    four = diagonals(over, h, g)
    ratios = {f"ratio_{side}": four[f"H_{side}"] / four[f"G_{side}"] for side in "ba"}
    return four | ratios


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
