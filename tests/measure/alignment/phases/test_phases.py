"""The table of phases against random weights, and which phase a layer's exponents allow."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from richbook.measure.alignment.phases.exponents import exponents
from richbook.measure.alignment.phases.phases import (
    PredictedExponents,
    classify_phase,
    predicted_exponents,
)
from richbook.measure.errors import RichbookError
from tests.measure.alignment.phases.laws import (
    layer,
    layer_of_diagonals,
    layer_of_powers,
    power,
    weight,
)

RELATIONS = ("RGA", "RWA", "GWA")
#: x and y of the published table.
TABLE = {
    ("RGA", "RWA"): (1, 2),
    ("RGA", "GWA"): (-1, 0),
    ("RWA", "RGA"): (0, -1),
    ("RWA", "GWA"): (0, 0),
    ("GWA", "RGA"): (2, 1),
    ("GWA", "RWA"): (1, 1),
}
SHAPES = [(8, 8), (6, 11), (13, 7)]
each_cell = pytest.mark.parametrize("cell", TABLE, ids="+".join)


def proportional(a, b):
    return abs((a * b).sum()) / (np.linalg.norm(a) * np.linalg.norm(b)) > 1 - 1e-9


def relations_of(w, x, y, rank):
    """Which of the six hold for H_a = Z_a^x and G_b = Z_b^y, by comparing whole matrices."""
    z_a, z_b = w.T @ w, w @ w.T
    h_a, g_b = power(z_a, x, rank), power(z_b, y, rank)
    sides = {"forward": (w @ h_a @ w.T, g_b, z_b), "backward": (h_a, w.T @ g_b @ w, z_a)}
    found = {}
    for side, (h, g, z) in sides.items():
        pairs = {"RGA": (h, g), "RWA": (h, z), "GWA": (g, z)}
        found[side] = {name for name, pair in pairs.items() if proportional(*pair)}
    return found


def some_weight(shape, seed=0):
    rng = np.random.default_rng(seed)
    sizes = rng.uniform(0.5, 2, min(shape) - 1)  # of deficient rank
    return weight(rng, *shape, sizes), len(sizes)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("forward, backward", list(product(RELATIONS, RELATIONS)))
def test_every_cell_with_random_weights(forward, backward, shape):
    predicted = predicted_exponents(forward, backward)
    assert predicted.flat_only == (forward == backward)
    if predicted.flat_only:
        return
    w, rank = some_weight(shape)
    held = relations_of(w, predicted.x, predicted.y, rank)
    assert held == {"forward": {forward}, "backward": {backward}}
    for side, relation in product(held, RELATIONS):
        assert predicted.holds(side, relation) == (relation in held[side])


@each_cell
def test_the_table(cell):
    x, y = TABLE[cell]
    found = predicted_exponents(*cell)
    assert (found.x, found.y) == (x, y) == (found.H_a, found.G_b)
    assert (found.H_b, found.G_a) == (x + 1, y + 1)
    powers = (found.H_b, found.G_b, found.H_a, found.G_a)
    assert all(-1 <= value <= 3 for value in powers)
    between = [v for v in (found.HG_b, found.HG_a) if math.isfinite(v) and v > 0]
    assert all(1 / 3 <= value <= 3 for value in between)


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_same_relation_on_both_sides_needs_a_flat_spectrum(relation):
    found = predicted_exponents(relation, relation)
    assert found.flat_only and math.isnan(found.H_b) and math.isnan(found.HG_a)
    assert repr(found).endswith("flat spectrum only")
    w, rank = some_weight((8, 8))
    for x, y in np.random.default_rng(0).uniform(-3, 3, (200, 2)):
        held = relations_of(w, x, y, rank)
        assert not (relation in held["forward"] and relation in held["backward"])
    flat = weight(np.random.default_rng(1), 9, 7, np.full(5, 1.7))
    held = relations_of(flat, *np.random.default_rng(2).uniform(-3, 3, 2), 5)
    assert held == {"forward": set(RELATIONS), "backward": set(RELATIONS)}
    assert found.holds("forward", "RWA") and found.holds("backward", "GWA")


def test_two_relations_of_a_side_imply_the_third():
    """Two on a side fix x and y, and the third holds there: forward at (0, 1), backward at (1, 0).
    For powers, and for any matrices of which two pairs are proportional."""
    w, rank = some_weight((8, 8))
    held = relations_of(w, 0, 1, rank)
    assert held == {"forward": set(RELATIONS), "backward": set()}
    held = relations_of(w, 1, 0, rank)
    assert held == {"forward": set(), "backward": set(RELATIONS)}
    for x, y in product(np.linspace(-2, 3, 11), repeat=2):
        held = relations_of(w, x, y, rank)
        assert len(held["forward"]) != 2 and len(held["backward"]) != 2


def test_what_is_printed():
    assert repr(predicted_exponents("GWA", "RWA")) == (
        "GWA forward, RWA backward: x = 1, y = 1; "
        "H_b ∝ Z_b^2, G_b ∝ Z_b^1, H_a ∝ Z_a^1, G_a ∝ Z_a^2"
    )
    found = predicted_exponents("RGA", "GWA")
    assert math.isnan(found.HG_b) and found.HG_a == -1
    assert predicted_exponents("RWA", "GWA").HG_b == math.inf
    assert predicted_exponents("GWA", "RGA").HG_b == 3
    assert predicted_exponents("RGA", "RWA").HG_a == pytest.approx(1 / 3)


SIZES = np.geomspace(3, 0.3, 9)


def noisy_layer(seed, x, y, spread, decades=2.0, count=9, leak=0.0):
    """Diagonal H and G around powers of Z, turned a little if there is a leak."""
    rng = np.random.default_rng(seed)
    values = np.logspace(0, -decades, count)
    noise = np.exp(spread * rng.normal(size=(2, count)))
    moments = layer_of_diagonals(rng, values, values**x * noise[0], values**y * noise[1])
    if leak:
        turn = np.linalg.qr(np.eye(count) + leak * rng.normal(size=(count, count)))[0]
        moments.H_a = moments.H_a.new_tensor(turn) @ moments.H_a @ moments.H_a.new_tensor(turn.T)
    return moments


@each_cell
@pytest.mark.parametrize("shape", SHAPES)
def test_exact_powers_are_named(cell, shape):
    rng = np.random.default_rng(0)
    sizes = np.geomspace(3, 0.3, min(shape))
    found = classify_phase(exponents(layer_of_powers(rng, *shape, sizes, *TABLE[cell])))
    assert (found.forward, found.backward) == cell
    assert found.predicted == predicted_exponents(*cell)
    assert found.reason.startswith("all intervals within 0.5 of x = ")


@each_cell
@pytest.mark.parametrize("seed", range(5))
def test_noisy_powers_are_named(cell, seed):
    found = classify_phase(exponents(noisy_layer(seed, *TABLE[cell], spread=0.2)))
    assert (found.forward, found.backward) == cell, found


@pytest.mark.parametrize("seed", range(3))
def test_the_whole_hypothesis_on_one_side(seed):
    forward = classify_phase(exponents(noisy_layer(seed, 0, 1, 0.1)))
    assert (forward.forward, forward.backward, forward.predicted) == ("all", "none", None)
    backward = classify_phase(exponents(noisy_layer(seed, 1, 0, 0.1)))
    assert (backward.forward, backward.backward) == ("none", "all")
    assert backward.reason == "forward: no relation fits"


@pytest.mark.parametrize(
    "x, y, forward, backward",
    [
        (2.5, 2.5, "none", "none"),
        (0.5, 0.5, "none", "none"),
        (1.5, -1.5, "none", "none"),
        (0, 3, "RWA", "none"),  # H_b ∝ Z_b, and nothing more
        (3, 0, "none", "GWA"),  # G_a ∝ Z_a, and nothing more
    ],
)
def test_other_powers_have_no_phase(x, y, forward, backward):
    found = classify_phase(exponents(noisy_layer(0, x, y, 0.05)))
    assert (found.forward, found.backward, found.predicted) == (forward, backward, None)


@pytest.mark.parametrize("seed", range(10))
def test_wide_intervals_name_nothing(seed):
    """The same scatter over a fifth of a decade."""
    found = classify_phase(exponents(noisy_layer(seed, 1, 1, 0.4, decades=0.2)))
    assert (found.forward, found.backward, found.predicted) == ("none", "none", None)
    assert "none certain" in found.reason or "no relation fits" in found.reason


def test_wrong_phases_are_rare():
    """Of layers without any law, random spectra of H and G, none should get both names."""
    rng, both = np.random.default_rng(0), 0
    for _ in range(60):
        values = np.sort(np.exp(rng.normal(size=8)))[::-1]
        h, g = np.exp(1.5 * rng.normal(size=(2, 8)))
        found = classify_phase(exponents(layer_of_diagonals(rng, values, h, g)))
        both += found.predicted is not None
    assert both <= 1


def test_a_leak_has_no_phase():
    moments = noisy_layer(0, 1, 1, 0.05, decades=3)
    assert classify_phase(exponents(moments)).forward == "GWA"
    leaky = noisy_layer(0, 1, 1, 0.05, decades=3, leak=0.05)
    found = classify_phase(exponents(leaky))
    assert (found.forward, found.backward) == ("none", "none") and "a leak" in found.reason


def test_matrices_off_the_diagonal_have_no_phase():
    """H_a large where W does not look: backward RWA would be a claim about all of H_a."""
    rng = np.random.default_rng(0)
    moments = layer_of_powers(rng, 6, 12, np.geomspace(2, 0.2, 6), 1, 1)
    values, vectors = np.linalg.eigh(np.asarray(moments.weight.T @ moments.weight))
    moments.H_a += 100 * moments.H_a.new_tensor(np.outer(vectors[:, 0], vectors[:, 0]))
    found = classify_phase(exponents(moments))
    assert found.forward == "GWA" and found.backward == "none"
    assert found.reason == "backward: H_a is to 3% diagonal in Z's eigenbasis"


def test_an_exponential_law_has_no_phase():
    rng = np.random.default_rng(1)
    values = np.linspace(1.6, 0.4, 10)
    noise = np.exp(0.02 * rng.normal(size=(2, 10)))
    slope = np.polyfit(np.log(values), values, 1)[0]  # so that the power fitted to it is near 1
    h, g = np.exp(values / slope) * noise[0], np.exp(values / slope) * noise[1]
    found = classify_phase(exponents(layer_of_diagonals(rng, values, h, g)))
    assert found.forward == "none" and "an exponential law fits better than GWA" in found.reason


def test_one_gap_is_mentioned():
    rng = np.random.default_rng(2)
    values = np.r_[np.geomspace(1, 0.3, 7), 1e-3, 5e-4]
    found = classify_phase(exponents(layer_of_diagonals(rng, values, values, values)))
    assert (found.forward, found.backward) == ("GWA", "RWA")
    assert found.reason.endswith("; 2.5 of 3.3 decades are one gap")


def test_tolerance():
    found = exponents(noisy_layer(0, 1.2, 1.1, 0.02))
    assert classify_phase(found).predicted == predicted_exponents("GWA", "RWA")
    assert classify_phase(found, tolerance=0.1).forward == "none"


def test_x_and_y_must_be_those_of_the_pair():
    """RWA backward at x = 1.4 and RGA forward with it put y at 2.4 + 0.4: not the cell (1, 2)."""
    found = classify_phase(exponents(noisy_layer(0, 1.4, 2.7, 0.01)))
    assert (found.forward, found.backward) == ("none", "none")
    assert found.reason == "intervals not within 0.5 of x = 1, y = 2"


def test_intervals_over_samples_count():
    found = exponents(noisy_layer(0, 1, 1, 0.05))
    uncertain = replace(found, H_a=replace(found.H_a, sample_low=0.2, sample_high=1.8))
    assert classify_phase(found).backward == "RWA"
    assert classify_phase(uncertain).backward == "none"


@pytest.mark.filterwarnings("ignore:layer")
def test_too_few_eigenvalues_have_no_phase():
    found = classify_phase(exponents(layer(np.eye(6), np.eye(6), np.eye(6))))
    assert (found.forward, found.backward) == ("none", "none")
    assert repr(found) == "forward none, backward none (only 1 eigenvalues)"


def test_errors_name_the_argument():
    with pytest.raises(RichbookError, match="^forward: expected one of RGA, RWA, GWA, got 'CRH'"):
        predicted_exponents("CRH", "RWA")
    with pytest.raises(RichbookError, match="^backward: expected one of .*, got None"):
        predicted_exponents("RWA", None)
    with pytest.raises(RichbookError, match="^side: expected one of forward, backward"):
        PredictedExponents("RWA", "RWA", 0, 1).holds("a", "RWA")
    with pytest.raises(RichbookError, match="^relation: expected one of RGA"):
        predicted_exponents("RWA", "GWA").holds("forward", "rwa")
    with pytest.raises(RichbookError, match="^exponents: expected those of one layer.*got dict"):
        classify_phase({})
    found = exponents(layer_of_powers(np.random.default_rng(0), 9, 9, SIZES, 1, 1))
    with pytest.raises(RichbookError, match="^tolerance: expected a number above 0, got 0"):
        classify_phase(found, tolerance=0)
