"""Layers whose H and G are made, not measured, and a plain version of what is fitted to them.

Written in numpy, with the eigenvectors of WWᵀ and WᵀW instead of the singular vectors of W, and all
four matrices in full.
"""

from types import SimpleNamespace

import numpy as np
import torch

from tests.measure.reference import orthogonal, put


def weight(rng, out, width, sizes):
    """A matrix (out, width) with these singular values and random directions."""
    r = len(sizes)
    return orthogonal(rng, out)[:, :r] * sizes @ orthogonal(rng, width)[:, :r].T


def power(matrix, exponent, rank):
    """A power of a symmetric matrix on the space of its ``rank`` largest eigenvalues."""
    values, vectors = np.linalg.eigh(matrix)
    values, vectors = values[::-1][:rank], vectors[:, ::-1][:, :rank]
    return vectors * values**exponent @ vectors.T


def layer(w, h_a, g_b, name="fc", device="cpu", dtype=torch.float64):
    """An object that has what ``exponents`` asks for."""
    parts = {"weight": w, "H_a": h_a, "G_b": g_b}
    return SimpleNamespace(name=name, **{k: put(device, v, dtype) for k, v in parts.items()})


def layer_of_powers(rng, out, width, sizes, x, y, **kwargs):
    """H_a ∝ Z_a^x and G_b ∝ Z_b^y on the directions that W uses."""
    w = weight(rng, out, width, sizes)
    r = len(sizes)
    h_a, g_b = 3.7 * power(w.T @ w, x, r), 0.02 * power(w @ w.T, y, r)
    return layer(w, h_a, g_b, **kwargs)


def layer_of_diagonals(rng, eigenvalues, h, g, **kwargs):
    """A square layer whose H_a and G_b are diagonal in the singular directions of W."""
    d = len(eigenvalues)
    left, right = orthogonal(rng, d), orthogonal(rng, d)
    w = left * np.sqrt(eigenvalues) @ right.T
    return layer(w, right * h @ right.T, left * g @ left.T, **kwargs)


def plain_fits(moments, used):
    """Slope and R² for each of the four matrices, by np.polyfit in the eigenbasis of Z."""
    w, h_a, g_b = (np.asarray(getattr(moments, k).cpu()) for k in ("weight", "H_a", "G_b"))
    four = {
        "H_b": (w @ w.T, w @ h_a @ w.T),
        "G_b": (w @ w.T, g_b),
        "H_a": (w.T @ w, h_a),
        "G_a": (w.T @ w, w.T @ g_b @ w),
    }
    found = {}
    for name, (z, matrix) in four.items():
        values, vectors = np.linalg.eigh(z)
        values, vectors = values[::-1][:used], vectors[:, ::-1][:, :used]
        diagonal = np.array([v @ matrix @ v for v in vectors.T])
        slope = np.polyfit(np.log(values), np.log(diagonal), 1)[0]
        r2 = np.corrcoef(np.log(values), np.log(diagonal))[0, 1] ** 2
        share = (diagonal**2).sum() / (matrix**2).sum()
        found[name] = {"exponent": slope, "r2": r2, "share": share, "diagonal": diagonal}
    return found
