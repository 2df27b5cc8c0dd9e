"""Powers of Z in H and G: made ones are found again, and agree with a plain version."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from richbook.measure.alignment.phases.exponents import exponents
from richbook.measure.errors import DegenerateWarning
from tests.measure.alignment.phases.laws import (
    layer,
    layer_of_diagonals,
    layer_of_powers,
    plain_fits,
    power,
    weight,
)
from tests.measure.reference import orthogonal

FOUR = ("H_b", "G_b", "H_a", "G_a")
SIZES = np.geomspace(3.0, 0.3, 8)
SHAPES = {
    "square": (8, 8),
    "wide": (8, 21),
    "tall": (17, 8),
    "rank deficient": (15, 12),
    "rank deficient, tall": (30, 10),
}


def noisy(seed, d=9, spread=1.0):
    """A layer with full matrices near a power law, not diagonal in Z's eigenbasis."""
    rng = np.random.default_rng(seed)
    w = rng.normal(size=(d, d + 2)) @ np.diag(np.geomspace(1, 0.1, d + 2))
    mix = np.eye(d + 2) + 0.1 * spread * rng.normal(size=(d + 2, d + 2))
    other = np.eye(d) + 0.1 * spread * rng.normal(size=(d, d))
    h_a = mix @ (w.T @ w + 0.01 * np.eye(d + 2)) @ mix.T
    return layer(w, h_a, other @ (w @ w.T) @ other.T)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("x, y", [(1, 1), (0, 1), (2, 1), (-1, 0), (0.37, -0.8), (0, -1)])
def test_exact_powers_are_found(device, shape, x, y):
    rng = np.random.default_rng(len(shape))
    found = exponents(layer_of_powers(rng, *SHAPES[shape], SIZES, x, y, device=device))
    wanted = {"H_b": x + 1, "G_b": y, "H_a": x, "G_a": y + 1, "ratio_b": x + 1 - y}
    assert found.used == 8 and found.decades == pytest.approx(2)
    for name, exponent in wanted.items():
        law = getattr(found, name)
        assert [law.exponent, law.low, law.high] == pytest.approx([exponent] * 3, abs=1e-7)
        assert np.isnan(law.sample_low) and law.within(exponent, 1e-6) and law.allows(exponent)
        if exponent and name != "ratio_b":
            assert law.r2 == pytest.approx(1) and law.law == "power"
        elif not exponent:
            assert np.isnan(law.r2) and law.law == "undecided", "flat: no law explains anything"
    assert found.diagonal == pytest.approx(dict.fromkeys(FOUR, 1.0))
    assert found.purity == pytest.approx({"H": 1.0, "G": 1.0}, rel=1e-6)


@pytest.mark.parametrize("x, y", [(1, 1), (2, 1), (1, 2), (0.5, 0.5), (0, -1)])
def test_powers_between_h_and_g(x, y):
    found = exponents(layer_of_powers(np.random.default_rng(0), 8, 8, SIZES, x, y))
    assert found.HG_b.exponent == pytest.approx((x + 1) / y)
    assert [found.HG_b.low, found.HG_b.high] == pytest.approx([(x + 1) / y] * 2)
    if y + 1:
        assert found.HG_a.exponent == pytest.approx(x / (y + 1))
    else:
        assert np.isnan(found.HG_a.exponent), "H_a and G_a are both flat"


def test_a_flat_g_leaves_an_upright_axis():
    found = exponents(layer_of_powers(np.random.default_rng(0), 8, 8, SIZES, 0, 0))
    assert found.HG_b.exponent == np.inf
    assert (found.HG_b.low, found.HG_b.high) == (-np.inf, np.inf)
    assert found.HG_a.exponent == pytest.approx(0)


@pytest.mark.parametrize("seed", range(5))
def test_agrees_with_a_plain_version(device, seed):
    moments = noisy(seed)
    on_device = SimpleNamespace(**{k: v for k, v in vars(moments).items() if k == "name"})
    for key in ("weight", "H_a", "G_b"):
        if torch.device(device).type == "mps":
            pytest.skip("mps has no float64")
        setattr(on_device, key, getattr(moments, key).to(device))
    found = exponents(on_device)
    for name, wanted in plain_fits(moments, found.used).items():
        law = getattr(found, name)
        assert law.exponent == pytest.approx(wanted["exponent"], rel=1e-7)
        assert law.r2 == pytest.approx(wanted["r2"], rel=1e-7)
        assert law.low < law.exponent < law.high
        assert found.diagonal[name] == pytest.approx(wanted["share"], rel=1e-7)
        assert found.diagonals[name].numpy() == pytest.approx(wanted["diagonal"], rel=1e-7)
        values = found.eigenvalues.numpy()
        exponential = np.corrcoef(values, np.log(wanted["diagonal"]))[0, 1] ** 2
        assert law.exponential_r2 == pytest.approx(exponential, rel=1e-7)
        aic = len(values) * np.log((1 - exponential) / (1 - wanted["r2"]))
        assert law.aic_difference == pytest.approx(aic, rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_the_identities_hold_for_the_fits_of_any_layer(seed):
    """No alignment at all: random H_a and G_b of full rank."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(12, 40)), rng.normal(size=(10, 40))
    found = exponents(layer(rng.normal(size=(10, 12)), a @ a.T, b @ b.T))
    assert found.H_b.exponent == pytest.approx(found.x + 1, abs=1e-9)
    assert found.G_a.exponent == pytest.approx(found.y + 1, abs=1e-9)
    assert found.H_b.low == pytest.approx(found.H_a.low + 1, abs=1e-9)
    assert found.ratio_b.exponent == pytest.approx(found.x + 1 - found.y, abs=1e-9)
    assert found.ratio_a.high == pytest.approx(found.ratio_b.high - 2, abs=1e-9)
    assert found.H_b.r2 > found.H_a.r2, "Z on both axes"


@pytest.mark.parametrize("seed", range(3))
def test_purity_is_what_the_other_directions_leave(seed):
    """By regression of each coordinate on the others, in samples that have these second moments."""
    moments = noisy(seed, spread=3)
    found = exponents(moments)
    values, vectors = np.linalg.eigh(np.asarray(moments.weight @ moments.weight.T))
    along = vectors.T @ np.asarray(moments.G_b) @ vectors
    samples = np.linalg.cholesky(along).T  # (rows, directions), samplesᵀ samples = along
    left = []
    for k in range(len(values)):
        others = np.delete(samples, k, 1)
        rest = samples[:, k] - others @ np.linalg.lstsq(others, samples[:, k])[0]
        left.append(rest @ rest / (samples[:, k] @ samples[:, k]))
    assert found.purity["G"] == pytest.approx(min(left), rel=1e-6)


def test_a_leak_is_told_from_an_eigenvalue():
    """Eigenvectors off by 3 %: the small entries are leaks, and the exponent is too small."""
    rng = np.random.default_rng(3)
    values = np.geomspace(1, 1e-3, 8)
    turn, _ = np.linalg.qr(np.eye(8) + 0.03 * rng.normal(size=(8, 8)))
    moments = layer(np.diag(values**0.5), turn * values**2 @ turn.T, np.diag(values))
    found = exponents(moments)
    assert found.x < 1.5 and found.purity["H"] < 0.1 and found.purity["G"] == pytest.approx(1)
    assert found.diagonal["H_a"] > 0.98, "the norm does not notice"


def test_exponential_laws_are_told_from_powers():
    rng = np.random.default_rng(4)
    values = np.linspace(4, 0.2, 10)
    noise = np.exp(0.05 * rng.normal(size=(2, 10)))
    found = exponents(
        layer_of_diagonals(rng, values, np.exp(1.5 * values) * noise[0], values**1.5 * noise[1])
    )
    assert found.H_a.law == "exponential" and found.H_a.exponential_r2 > 0.99 > found.H_a.r2
    assert found.G_b.law == "power" and found.G_b.r2 > 0.99 > found.G_b.exponential_r2
    assert found.H_a.aic_difference < -2 and found.G_b.aic_difference > 2


def test_which_eigenvalues_are_used():
    """The lowest rank of Z, H and G; entries that are 0 are left out; top overrides it."""
    rng = np.random.default_rng(5)
    values, ones = np.geomspace(10, 0.1, 12), np.ones(12)
    few = np.r_[ones[:7], np.zeros(5)]
    assert exponents(layer_of_diagonals(rng, values, ones, ones)).used == 12
    assert exponents(layer_of_diagonals(rng, values, few, ones)).used == 7
    assert exponents(layer_of_diagonals(rng, values, ones, few)).used == 7
    assert exponents(layer_of_diagonals(rng, values * few, ones, ones)).used == 7
    dead = np.r_[1.0, 0.0, ones[2:]]  # a strong weight on an input that is always 0
    assert exponents(layer_of_diagonals(rng, values, dead, ones)).used == 10
    found = exponents(layer_of_diagonals(rng, values, ones, ones), top=5)
    assert found.eigenvalues.numpy() == pytest.approx(values[:5])
    assert found.decades == pytest.approx(np.log10(values[0] / values[4]))
    assert found.gap == pytest.approx(found.decades / 4)
    assert exponents(layer_of_diagonals(rng, values, ones, ones), top=50).used == 12


def test_rounding_of_float32_is_not_a_direction():
    """Moments summed in float32 have eigenvalues of ±1e-8 where there should be none."""
    rng = np.random.default_rng(6)
    samples = (rng.normal(size=(500, 6)) @ rng.normal(size=(6, 20))).astype(np.float32)
    g_b = samples.T @ samples / 500
    moments = layer(rng.normal(size=(20, 20)), np.eye(20), g_b)
    assert exponents(moments).used == 6
    tiny = np.r_[np.geomspace(1, 1e-4, 6), 1e-9]
    exact = layer_of_diagonals(rng, np.geomspace(2, 1, 7), tiny, np.ones(7))
    assert exponents(exact).used == 6 and exponents(exact, resolution=1e-14).used == 7


def test_ties_are_one_eigenvalue(device):
    """Within a tied space directions are arbitrary: the result does not depend on them."""
    rng = np.random.default_rng(7)
    sizes = np.sqrt(np.repeat([4.0, 2.0, 1.0, 0.5, 0.25], [1, 3, 1, 2, 2]))
    h = np.array([5.0, 3.0, 2.0, 4.0, 1.0, 0.7, 0.5, 0.2, 0.3])
    means = [5.0, 3.0, 1.0, 0.6, 0.25]
    wanted = np.polyfit(np.log([4.0, 2.0, 1.0, 0.5, 0.25]), np.log(means), 1)[0]
    for _ in range(3):
        left, right = orthogonal(rng, 9), orthogonal(rng, 9)
        mixing = np.eye(9)
        mixing[1:4, 1:4], mixing[5:7, 5:7] = orthogonal(rng, 3), orthogonal(rng, 2)
        right_ = right @ mixing
        moments = layer(left * sizes @ right.T, right_ * h @ right_.T, np.eye(9), device=device)
        found = exponents(moments)
        assert found.used == 5 and found.x == pytest.approx(wanted)
        assert found.diagonals["H_a"].numpy() == pytest.approx(means)


def test_a_flat_spectrum_has_no_exponents():
    rng = np.random.default_rng(8)
    moments = layer(3 * orthogonal(rng, 12), np.eye(12), np.eye(12))
    with pytest.warns(DegenerateWarning, match="1 different eigenvalues"):
        assert np.isnan(exponents(moments).x)


def test_scales_and_rotations_do_not_matter():
    """W → aRWSᵀ, H_a → bSH_aSᵀ, G_b → cRG_bRᵀ: the same fits, to rounding."""
    moments = noisy(9)
    rng = np.random.default_rng(9)
    r, s = (torch.tensor(orthogonal(rng, d)) for d in (9, 11))
    turned = SimpleNamespace(
        name="fc",
        weight=7 * r @ moments.weight @ s.T,
        H_a=1e3 * s @ moments.H_a @ s.T,
        G_b=1e-6 * r @ moments.G_b @ r.T,
    )
    for name in (*FOUR, "ratio_a", "HG_a", "HG_b"):
        one, other = (getattr(exponents(m), name) for m in (moments, turned))
        assert (one.exponent, one.low, one.high) == pytest.approx(
            (other.exponent, other.low, other.high), rel=1e-6
        )


def test_turning_the_layer_round_exchanges_h_and_g():
    """Wᵀ with H and G exchanged: x and y change places, and so do the two sides."""
    moments = noisy(10)
    mirror = SimpleNamespace(name="", weight=moments.weight.T, H_a=moments.G_b, G_b=moments.H_a)
    one, other = exponents(moments), exponents(mirror)
    assert (one.x, one.y) == pytest.approx((other.y, other.x))
    assert one.HG_b.exponent == pytest.approx(1 / other.HG_a.exponent)
    assert one.H_b.high == pytest.approx(other.G_a.high)


def test_a_dictionary_of_layers_and_the_tables():
    moments = {name: noisy(seed) for seed, name in enumerate(("0", "2"))}
    found = exponents(moments)
    assert list(found) == ["0", "2"] and found["2"].x == exponents(moments["2"]).x
    text = repr(found["0"])
    assert "fc: 9 eigenvalues" in text and "Z_b → H_b" in text and "G_a → H_a" in text
    assert found["0"]._repr_html_().count("<tr>") == 7
    plain = found["0"].to_dict()
    assert plain["H_a"]["exponent"] == found["0"].x and plain["H_a"]["sample_low"] is None
    assert plain["used"] == 9 and set(plain["diagonal"]) == set(FOUR)


def test_powers_of_singular_matrices_are_what_the_tests_say():
    """H_b = W H_a Wᵀ is Z_b^(x+1), for a rank-deficient W: the identity behind everything here."""
    w = weight(np.random.default_rng(11), 9, 6, np.array([3.0, 2.0, 1.0, 0.5]))
    for x in (-1.0, 0.0, 0.5, 2.0):
        left = w @ power(w.T @ w, x, 4) @ w.T
        assert left == pytest.approx(power(w @ w.T, x + 1, 4), abs=1e-10)
