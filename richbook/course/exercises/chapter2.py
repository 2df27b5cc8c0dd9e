"""Checks of chapter 2: the feature kernel and its eigenfunctions."""

import torch

from richbook.course.checking import Wrong, as_tensor, close, exercise, require


def _features(generator, count, width):
    mixing = torch.randn(width, width, generator=generator, dtype=torch.float64)
    return torch.randn(count, width, generator=generator, dtype=torch.float64) @ mixing + 0.5


@exercise("2.1", "eigenpairs(features)")
def eigenpairs(answer, generator):
    """Eigenpairs of the n×n kernel, orthonormal under the mean over samples."""
    for count, width in ((40, 3), (60, 5)):
        features = _features(generator, count, width)
        result = answer(features)
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise Wrong("expected two things: the eigenvalues (p,) and the eigenfunctions (n, p)")
        values = as_tensor(result[0], "the eigenvalues", (width,))
        functions = as_tensor(result[1], "the eigenfunctions", (count, width))
        kernel = features @ features.T / count  # T on the samples
        require(
            (values.diff() <= 1e-9 * values.abs().max()).all(),
            "expected the eigenvalues in descending order",
        )
        require(
            close(values.sum(), kernel.trace()),
            "your eigenvalues should sum to E|Φ|²; did you divide by n?",
        )
        gram = functions.T @ functions / count
        identity = torch.eye(width, dtype=torch.float64)
        require(
            close(gram, identity),
            "the eigenfunctions should be orthonormal under the mean over samples: "
            "E[e_j e_k] = 1 if j = k, else 0",
        )
        require(
            close(kernel @ functions, functions * values),
            "T e_k should equal ρ_k e_k; yours does not",
        )


@exercise("2.2", "nystrom(features, new_features)")
def nystrom(answer, generator):
    """Orthonormal at the samples, and T e = ρ e at new inputs."""
    for count, width in ((50, 3), (80, 6)):
        features = _features(generator, count, width)
        fresh = _features(generator, 7, width)
        here = as_tensor(answer(features, features), "the eigenfunctions", (count, width))
        there = as_tensor(answer(features, fresh), "the eigenfunctions at new inputs", (7, width))
        gram = here.T @ here / count
        require(
            close(gram, torch.eye(width, dtype=torch.float64)),
            "at the samples themselves they should be orthonormal",
        )
        values = ((features.T @ here / count) ** 2).sum(0)  # ρ_k = |E[Φ e_k]|²
        moved = fresh @ (features.T @ here) / count  # E_x[Φ(x')·Φ(x) e_k(x)]
        require(
            close(moved, there * values, 1e-5),
            "at new inputs T e_k = ρ_k e_k should still hold, the mean running over the old "
            "samples; yours does not",
        )
