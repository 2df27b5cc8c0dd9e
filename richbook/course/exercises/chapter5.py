"""Checks of chapter 5: the utilisation curve, outputs of weak directions, held-out quality."""

import torch
from torch import Tensor

from richbook.course.checking import as_tensor, close, exercise, require


def _drawer(generator: torch.Generator):
    return lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)


def _eigenfunctions(features: Tensor) -> Tensor:
    """Eigenfunctions of the centred kernel as columns (n, p), from the n×n matrix."""
    count, width = features.shape
    centred = features - features.mean(0)
    vectors = torch.linalg.eigh(centred @ centred.T / count)[1]
    return vectors.flip(1)[:, :width] * count**0.5


def _shares(functions: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """‖P e_k‖² for each function (n, p), P onto the span of ``values``, and the trace of c(P)."""
    left, sizes, _ = torch.linalg.svd(values, full_matrices=False)
    left = left[:, sizes > 1e-9 * sizes[0]]
    shares = (left.T @ functions).square().sum(0) / len(functions)
    return shares, (left - left.mean(0)).square().sum()


def _curve(functions: Tensor, values: Tensor) -> Tensor:
    shares, total = _shares(functions, values)
    return shares.cumsum(0) / total


_LINEAR = "a linear map of the features plus a constant"
_NOISY = "not a linear map of the features"


@exercise("5.1", "utilization(features, outputs)")
def utilization(answer, generator):
    """Equal to the curve from n×n matrices, for outputs with and without an offset or noise."""
    draw = _drawer(generator)
    cases = ((80, 6, 2, 0.0, 0.0), (120, 9, 3, 1.0, 0.0), (100, 7, 2, 1.0, 1.0))
    for count, width, classes, offset, noise in cases:
        features = draw(count, width) @ draw(width, width) + draw(width)
        outputs = features @ draw(width, classes)
        outputs = outputs - outputs.mean(0) + noise * outputs.std() * draw(count, classes)
        outputs = outputs + offset * outputs.std() * draw(classes)
        expected = _curve(_eigenfunctions(features), outputs)
        value = as_tensor(answer(features, outputs), "the curve", (width,))
        require(
            (value.diff() > -1e-9).all(), "a cumulative curve never falls; yours does. Add them up"
        )
        require(
            close(value[-1], expected[-1], 1e-6),
            f"the outputs are {_NOISY if noise else _LINEAR}, so that the curve ends at "
            f"{float(expected[-1]):.4f}; yours ends at {float(value[-1]):.4f}",
        )
        require(
            close(value, expected, 1e-6),
            f"the first direction carries {float(expected[0]):.4f}, yours {float(value[0]):.4f}. "
            "Strongest first, eigenfunctions of the centred features, and project before centring?",
        )


@exercise("5.2", "outputs_with(features, shares)")
def outputs_with(answer, generator):
    """One output of which each eigenfunction carries the share asked for."""
    draw = _drawer(generator)
    for width, weakest in ((5, False), (8, True)):
        features = draw(100, width) @ draw(width, width) + draw(width)
        shares = draw(width).square()
        shares = torch.eye(width, dtype=torch.float64)[-1] if weakest else shares / shares.sum()
        outputs = as_tensor(answer(features, shares), "the output")
        outputs = outputs[:, None] if outputs.ndim == 1 else outputs
        require(
            outputs.ndim == 2 and len(outputs) == 100,
            f"expected one output of the same 100 samples, got shape {tuple(outputs.shape)}",
        )
        require(outputs.std(0).max() > 0, "an output that is constant uses no direction at all")
        found, _ = _shares(_eigenfunctions(features), outputs)
        gap = int((found - shares).abs().argmax())
        require(
            close(found, shares, 1e-6),
            f"direction {gap + 1} should carry {float(shares[gap]):.4f} of the output and carries "
            f"{float(found[gap]):.4f}",
        )


@exercise("5.3", "held_out_quality(features, new_features, new_targets)")
def held_out_quality(answer, generator):
    """Eigenfunctions of old samples, orthonormalised and judged at new ones."""
    draw = _drawer(generator)
    for width, classes in ((5, 2), (8, 3)):
        mixing, offset = draw(width, width), draw(width)
        features, new_features = (draw(count, width) @ mixing + offset for count in (150, 90))
        new_targets = new_features @ draw(width, classes) + 3 * draw(90, classes) + draw(classes)
        expected = _held_out(features, new_features, new_targets)
        value = as_tensor(answer(features, new_features, new_targets), "the curve", (width,))
        same = _curve(_eigenfunctions(new_features), new_targets)
        require(
            not close(value, same, 1e-6),
            "these are the eigenfunctions of the new samples; find them on the old ones",
        )
        require(
            close(value[-1], expected[-1], 1e-6),
            f"the curve should end at {float(expected[-1]):.4f}, yours ends at "
            f"{float(value[-1]):.4f}. Are the functions orthonormal on the new samples?",
        )
        require(
            close(value, expected, 1e-6),
            f"the first eigenfunction carries {float(expected[0]):.4f}, yours "
            f"{float(value[0]):.4f}. Strongest first, in the order of the old samples?",
        )


def _held_out(features: Tensor, new_features: Tensor, new_targets: Tensor) -> Tensor:
    """By Gram–Schmidt, one function after the other."""
    centred = features - features.mean(0)
    directions = torch.linalg.svd(centred, full_matrices=False)[2]  # rows, strongest first
    functions: list[Tensor] = []
    for direction in directions:
        values = (new_features - features.mean(0)) @ direction
        values = values - values.mean()
        for earlier in functions:
            values = values - (values @ earlier) / len(values) * earlier
        functions.append(values / values.square().mean().sqrt())
    return _curve(torch.stack(functions, 1), new_targets)
