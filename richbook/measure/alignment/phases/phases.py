"""The phases of a layer: which relation holds on either side, and the powers that this implies."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from richbook.measure.alignment.phases.exponents import Exponents
from richbook.measure.alignment.relations.relations import RELATIONS, SIDES
from richbook.measure.errors import RichbookError

#: The two matrices that a relation wants proportional, on the side b (forward) or a (backward).
PAIRS = {"RGA": ("H", "G"), "RWA": ("H", "Z"), "GWA": ("G", "Z")}
#: Powers of Z as functions of x and y, (coefficient of x, coefficient of y, constant). H_a ∝ Z_a^x
#: and G_b ∝ Z_b^y define them; W Z_a^x Wᵀ = Z_b^(x+1) and Wᵀ Z_b^y W = Z_a^(y+1) give the others.
POWERS = {
    "b": {"H": (1, 0, 1), "G": (0, 1, 0), "Z": (0, 0, 1)},
    "a": {"H": (1, 0, 0), "G": (0, 1, 1), "Z": (0, 0, 1)},
}
#: Powers in the table of phases are whole numbers: half way, the next one begins.
TOLERANCE = 0.5
#: Less of a matrix on the diagonal, or of an entry owed to its own direction, and it has no powers.
SMALLEST_SHARE, SMALLEST_PURITY = 0.5, 0.1


@dataclass(frozen=True)
class PredictedExponents:
    """Powers of Z in a phase: H_a ∝ Z_a^x, G_b ∝ Z_b^y, and what follows from them.

    Attributes:
        forward, backward: the relations.
        x, y: the two free powers; nan if the relations contradict each other unless all
            eigenvalues of Z are equal.
    """

    forward: str
    backward: str
    x: float
    y: float

    @property
    def flat_only(self) -> bool:
        """Whether the two relations hold together only for a Z whose eigenvalues are all equal."""
        return math.isnan(self.x)

    @property
    def H_a(self) -> float:
        """The power of Z_a that H_a is, x."""
        return self.x

    @property
    def G_b(self) -> float:
        """The power of Z_b that G_b is, y."""
        return self.y

    @property
    def H_b(self) -> float:
        """The power of Z_b that H_b is, x + 1."""
        return self.x + 1

    @property
    def G_a(self) -> float:
        """The power of Z_a that G_a is, y + 1."""
        return self.y + 1

    @property
    def HG_b(self) -> float:
        """The power of G_b that H_b is; infinite if only G_b is flat, nan if both are."""
        return _quotient(self.H_b, self.G_b)

    @property
    def HG_a(self) -> float:
        """The power of G_a that H_a is; infinite if only G_a is flat, nan if both are."""
        return _quotient(self.H_a, self.G_a)

    def holds(self, side: str, relation: str) -> bool:
        """Whether a relation holds on a side ("forward" or "backward") at these powers."""
        _check_relation("relation", relation)
        if side not in SIDES:
            raise RichbookError(f"side: expected one of {', '.join(SIDES)}, got {side!r}")
        a, b, c = _condition("b" if side == "forward" else "a", relation)
        return self.flat_only or a * self.x + b * self.y + c == 0

    def __repr__(self) -> str:
        head = f"{self.forward} forward, {self.backward} backward: "
        if self.flat_only:
            return head + "flat spectrum only"
        return head + (
            f"x = {self.x:g}, y = {self.y:g}; H_b ∝ Z_b^{self.H_b:g}, G_b ∝ Z_b^{self.G_b:g}, "
            f"H_a ∝ Z_a^{self.H_a:g}, G_a ∝ Z_a^{self.G_a:g}"
        )


def predicted_exponents(forward: str, backward: str) -> PredictedExponents:
    r"""Solve for the powers of Z that one relation on either side of a layer implies.

    Write H_a ∝ Z_a^x and G_b ∝ Z_b^y. Since H_b = W H_a Wᵀ and G_a = Wᵀ G_b W,

    .. math:: H_b \propto Z_b^{x+1}, \qquad G_a \propto Z_a^{y+1},

    and each relation is an equation between two powers: RGA (H ∝ G), RWA (H ∝ Z), GWA (G ∝ Z),
    forward on the side b and backward on the side a. Two equations fix x and y, unless both sides
    have the same relation: those contradict each other, except for a flat spectrum.
    The polynomial alignment hypothesis of Ziyin et al. 2025, arXiv 2410.03006.

    Args:
        forward, backward: "RGA", "RWA" or "GWA".

    Raises:
        RichbookError: another name.

    Example:
        >>> predicted_exponents("GWA", "RWA")
        GWA forward, RWA backward: x = 1, y = 1; H_b ∝ Z_b^2, G_b ∝ Z_b^1, H_a ∝ Z_a^1, G_a ∝ Z_a^2
        >>> predicted_exponents("RWA", "RWA")
        RWA forward, RWA backward: flat spectrum only
    """
    _check_relation("forward", forward)
    _check_relation("backward", backward)
    rows = np.array([_condition("b", forward), _condition("a", backward)], dtype=float)
    if np.linalg.matrix_rank(rows[:, :2]) < 2:
        return PredictedExponents(forward, backward, math.nan, math.nan)
    x, y = np.round(np.linalg.solve(rows[:, :2], -rows[:, 2]), 12) + 0.0  # no −0
    return PredictedExponents(forward, backward, float(x), float(y))


@dataclass(frozen=True)
class Phase:
    """Which relations a layer's exponents allow.

    Attributes:
        forward, backward: "RGA", "RWA", "GWA"; "all" where the three hold together; else "none".
        predicted: the powers that go with them, where both sides have one relation; else None.
        reason: why, in words.
    """

    forward: str
    backward: str
    predicted: PredictedExponents | None
    reason: str

    def __repr__(self) -> str:
        return f"forward {self.forward}, backward {self.backward} ({self.reason})"


def classify_phase(exponents: Exponents, tolerance: float = TOLERANCE) -> Phase:
    """Name the relation that holds on either side of a layer, where its intervals leave one.

    A relation holds if the interval of the power that it speaks of lies within ``tolerance`` of
    what it says: of H in Z (RWA), of G in Z (GWA), or of H/G in Z (RGA). It is named if the
    intervals of the other two exclude them. If all three hold, the side is "all". A side is "none"
    where nothing or more than one thing fits; where less than half of a matrix is diagonal in Z's
    eigenbasis; where entries are leaks of other directions; and where an exponential law fits
    better. If both sides have a relation but x and y are not those of the pair, both are "none".
    The reason says so where one gap between eigenvalues spans most of their range.

    Args:
        exponents: what :func:`exponents` found for a layer.
        tolerance: the powers that relations speak of are whole numbers, so 0.5 tells them apart.

    Raises:
        RichbookError: no ``Exponents``, or a tolerance that is not above 0.

    Example:
        >>> from types import SimpleNamespace
        >>> import torch
        >>> from richbook.measure.alignment.phases.exponents import exponents
        >>> weight = torch.diag(torch.tensor([4.0, 3.0, 2.0, 1.0, 0.5])).double()
        >>> z = weight @ weight
        >>> classify_phase(exponents(SimpleNamespace(weight=weight, H_a=z, G_b=z)))
        forward GWA, backward RWA (all intervals within 0.5 of x = 1, y = 1)
    """
    if not isinstance(exponents, Exponents):
        raise RichbookError(
            f"exponents: expected those of one layer, as from exponents(moments), got "
            f"{type(exponents).__name__}"
        )
    if not (isinstance(tolerance, int | float) and tolerance > 0):
        raise RichbookError(f"tolerance: expected a number above 0, got {tolerance!r}")
    if math.isnan(exponents.x):
        return Phase("none", "none", None, f"only {exponents.used} eigenvalues")
    named, reasons = {}, []
    caveat = ""
    if exponents.gap > exponents.decades / 2:
        caveat = f"; {exponents.gap:.1f} of {exponents.decades:.1f} decades are one gap"
    for side, word in (("b", "forward"), ("a", "backward")):
        named[word], why = _name(exponents, side, tolerance)
        reasons += [f"{word}: {why}"] if why else []
    if not set(named.values()) <= set(RELATIONS):
        return Phase(**named, predicted=None, reason="; ".join(reasons) + caveat)
    cell = predicted_exponents(**named)
    fits = exponents.H_a.within(cell.x, tolerance) and exponents.G_b.within(cell.y, tolerance)
    place = f"x = {cell.x:g}, y = {cell.y:g}"
    if cell.flat_only or not fits:
        return Phase("none", "none", None, f"intervals not within {tolerance:g} of {place}")
    reason = f"all intervals within {tolerance:g} of {place}{caveat}"
    return Phase(**named, predicted=cell, reason=reason)


def _name(exponents: Exponents, side: str, tolerance: float) -> tuple[str, str]:
    """The relation of a side, and why there is none."""
    for matrix in "HG":
        share = exponents.diagonal[f"{matrix}_{side}"]
        if not share >= SMALLEST_SHARE:
            return "none", f"{matrix}_{side} is to {share:.0%} diagonal in Z's eigenbasis"
        if not (own := exponents.purity[matrix]) >= SMALLEST_PURITY:
            return "none", f"a diagonal entry of {matrix}_{side} is to {1 - own:.0%} a leak"
    fits = {"RWA": (f"H_{side}", 1), "GWA": (f"G_{side}", 1), "RGA": (f"ratio_{side}", 0)}
    laws = {name: (getattr(exponents, field), value) for name, (field, value) in fits.items()}
    holds = [name for name, (law, value) in laws.items() if law.within(value, tolerance)]
    if len(holds) == 3:
        return "all", ""
    open_ = [n for n, (law, value) in laws.items() if n not in holds and law.allows(value)]
    if len(holds) != 1 or open_:
        possible = " or ".join(sorted(holds + open_))
        return "none", f"{possible} possible, none certain" if possible else "no relation fits"
    (name,) = holds
    if name != "RGA" and laws[name][0].law == "exponential":
        return "none", f"an exponential law fits better than {name}"
    return name, ""


def _condition(side: str, relation: str) -> tuple[int, int, int]:
    """The (a, b, c) of a·x + b·y + c = 0, the equality of a relation's two powers."""
    first, second = (POWERS[side][matrix] for matrix in PAIRS[relation])
    return tuple(p - q for p, q in zip(first, second, strict=True))


def _quotient(power_of_h: float, power_of_g: float) -> float:
    if power_of_g:
        return power_of_h / power_of_g
    return math.nan if not power_of_h or math.isnan(power_of_h) else math.inf


def _check_relation(name: str, value: object) -> None:
    if value not in RELATIONS:
        raise RichbookError(f"{name}: expected one of {', '.join(RELATIONS)}, got {value!r}")
