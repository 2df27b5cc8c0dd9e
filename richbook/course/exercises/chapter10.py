"""Checks of chapter 10: relations at given powers, a fit in Z's eigenbasis, a symmetric slope."""

import math

import numpy as np
import torch

from richbook.course.checking import as_tensor, close, exercise, require

NAMES = {"RGA", "RWA", "GWA"}


def _draw(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _rotation(generator, size):
    return torch.linalg.qr(_draw(generator, size, size))[0]


def _power(sizes, vectors, exponent):
    return vectors * sizes**exponent @ vectors.T


def _held(generator, x, y):
    """Which relations hold, by making the matrices of a random layer and comparing them."""
    sizes = torch.tensor([4.0, 2.0, 1.0, 0.3], dtype=torch.float64)
    left, right = (_rotation(generator, size)[:, :4] for size in (6, 5))
    weight = left * sizes.sqrt() @ right.T
    h_a, g_b = _power(sizes, right, x), _power(sizes, left, y)
    sides = (
        (weight @ h_a @ weight.T, g_b, weight @ weight.T),
        (h_a, weight.T @ g_b @ weight, weight.T @ weight),
    )
    found = []
    for h, g, z in sides:
        pairs = {"RGA": (h, g), "RWA": (h, z), "GWA": (g, z)}
        cosines = {n: (a * b).sum() / (a.norm() * b.norm()) for n, (a, b) in pairs.items()}
        found.append({name for name, cosine in cosines.items() if cosine > 1 - 1e-9})
    return tuple(found)


@exercise("10.1", "relations(x, y)")
def relations(answer, generator):
    """Right at points with whole coordinates around the phases, on each line, and beside it."""
    points = [(x, y) for x in range(-1, 4) for y in range(-1, 4)]
    # Multiples of 1/16, for which x + 1 == y and x - y == -1 are the same on a computer.
    place = (2 * int(torch.randint(-8, 8, (), generator=generator)) + 1) / 16
    lines = [(place, place + 1), (place + 1, place)]
    lines += [(0, place), (1, place), (place, 0), (place, 1)]
    points += lines + [(x + 1 / 16, y - 1 / 16) for x, y in lines]
    for x, y in points:
        result = answer(x, y)
        require(
            isinstance(result, tuple | list)
            and len(result) == 2
            and all(isinstance(part, set | frozenset | list | tuple) for part in result),
            "expected two sets of names, forward and backward",
        )
        sides = [set(part) for part in result]
        require(all(side <= NAMES for side in sides), "expected names out of RGA, RWA and GWA")
        for word, mine, yours in zip(
            ("forward", "backward"), _held(generator, x, y), sides, strict=True
        ):
            require(
                mine == yours,
                f"at x = {x:g}, y = {y:g} matrices made from a random W obey "
                f"{' and '.join(sorted(mine)) or 'no relation'} {word}; yours says "
                f"{' and '.join(sorted(yours)) or 'none'}",
            )


def _layer(generator, out, width, rank, noise):
    """A weight of some rank, H_a and G_b near powers of Z, with full matrices, and their powers."""
    x, y = (3 * torch.rand(2, generator=generator, dtype=torch.float64) - 1.5).tolist()
    sizes = torch.logspace(0.5, -1, rank, dtype=torch.float64)
    left, right = _rotation(generator, out), _rotation(generator, width)
    weight = left[:, :rank] * sizes.sqrt() @ right[:, :rank].T
    h = torch.cat([sizes**x, torch.ones(width - rank, dtype=torch.float64)])
    g = torch.cat([sizes**y, torch.ones(out - rank, dtype=torch.float64)])
    right, left = _turned(generator, right, noise), _turned(generator, left, noise)
    return weight, _power(h, right, 1), _power(g, left, 1)


def _turned(generator, basis, noise):
    """An orthonormal basis, turned a little."""
    step = noise * _draw(generator, *basis.shape)
    return basis @ torch.linalg.matrix_exp(step - step.T)


def _slope(weight, matrix, rank):
    """The slope along the eigenvectors of weightᵀ weight, one by one."""
    values, vectors = torch.linalg.eigh(weight.T @ weight)
    logs = [
        (math.log(float(value)), math.log(float(vector @ matrix @ vector)))
        for value, vector in list(zip(values, vectors.T, strict=True))[-rank:]
    ]
    mean_x, mean_y = (sum(part) / len(logs) for part in zip(*logs, strict=True))
    above = sum((a - mean_x) * (b - mean_y) for a, b in logs)
    return above / sum((a - mean_x) ** 2 for a, _ in logs)


@exercise("10.2", "fit(weight, H_a, G_b)")
def fit(answer, generator):
    """Equal to a fit written out, for square, rectangular and rank-deficient weights."""
    shapes = ((6, 6, 6, 0.0), (5, 8, 5, 0.02), (9, 7, 5, 0.0), (6, 9, 4, 0.03))
    for out, width, rank, noise in shapes:
        weight, h_a, g_b = _layer(generator, out, width, rank, noise)
        result = answer(weight, h_a, g_b)
        numbers = isinstance(result, tuple | list | torch.Tensor | np.ndarray)
        require(numbers and len(result) == 2, "expected two numbers, x and y")
        wanted = (_slope(weight, h_a, rank), _slope(weight.T, g_b, rank))
        for name, value, right in zip("xy", result, wanted, strict=True):
            value = as_tensor(value, name, ())
            require(
                close(value, torch.tensor(right), 1e-4),
                f"for a weight of shape {(out, width)} and rank {rank} the fit gives "
                f"{name} = {right:.4f}, yours is {float(value):.4f}. x is a slope for H_a and y "
                "one for G_b, of log diagonal entries on log eigenvalues of Z. Entries belong to "
                "the directions of Z, in their order, and only to those that W uses",
            )


@exercise("10.3", "symmetric_slope(g, h)")
def symmetric_slope(answer, generator):
    """Exact without noise, reciprocal, and right for many noisy points of any slope."""
    for alpha in (2.0, 0.5, -1.5, 1.0 + float(torch.rand((), generator=generator))):
        logs = 1.5 * _draw(generator, 20_000)
        for noise, tolerance in ((0.0, 1e-6), (0.8, 0.06)):
            g = (logs + noise * _draw(generator, len(logs))).exp()
            h = (0.3 + alpha * logs + noise * _draw(generator, len(logs))).exp()
            value = as_tensor(answer(g, h), "the exponent", ())
            require(
                (value - alpha).abs() <= tolerance * max(1, abs(alpha)),
                f"{'noisy' if noise else 'exact'} points of h = c·g^α with α = {alpha:.2f} give "
                f"{float(value):.3f} (both logarithms carry noise of size {noise})",
            )
            back = as_tensor(answer(h, g), "the exponent", ())
            require(
                close(value * back, torch.tensor(1.0), 1e-6),
                f"exchanging g and h should give 1/α: {float(value):.4f} and {float(back):.4f} "
                f"multiply to {float(value * back):.3f}",
            )
