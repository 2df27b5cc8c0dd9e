"""Checks of chapter 9: an alignment and its null, and a listing with seven faults to repair.

The faults that the checks of 9.2, 9.3 and 9.4 look for, by name: a single batch; the norm of an
elementwise product for a correlation; the batch's 1/B in the gradients; gradients that pile up in
the parameters; no optimiser step; transposes against the docstring; a W that must be square.
"""

import torch
from torch import Tensor, nn

from richbook.course.checking import as_tensor, close, exercise, require
from richbook.course.exercises.small_network import (
    Itself,
    by_sample,
    small_batches,
    small_network,
    stepped,
)


def _drawer(generator: torch.Generator):
    return lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)


def _symmetric(draw, size: int, rank: int, sign: float = 1.0) -> Tensor:
    """A symmetric matrix with eigenvalues of one sign, or with ``sign=-1`` of both."""
    factor = draw(size, rank)
    return (factor * (sign ** torch.arange(rank))) @ factor.T


def _cosine(first: Tensor, second: Tensor) -> Tensor:
    return (first * second).sum() / (first.norm() * second.norm())


def _parts(result: object, what: str, count: int = 2) -> tuple:
    require(isinstance(result, tuple | list) and len(result) == count, f"expected {what}")
    return tuple(result)


@exercise("9.1", "cosine_and_null(A, B)")
def cosine_and_null(answer, generator):
    """The cosine of two symmetric matrices, and its mean over random eigenvectors."""
    draw = _drawer(generator)
    for size, ranks, sign in ((5, (5, 5), 1.0), (8, (8, 2), 1.0), (6, (6, 6), -1.0)):
        first, second = _symmetric(draw, size, ranks[0]), _symmetric(draw, size, ranks[1], sign)
        if sign < 0 and _cosine(first, second) > 0:
            second = -second  # a cosine below 0, which must not be cut off
        result = _parts(answer(first, second), "two numbers, the cosine and its mean by chance")
        cosine, null = as_tensor(result[0], "the cosine", ()), as_tensor(result[1], "the null", ())
        expected = _cosine(first, second)
        require(
            close(cosine, expected),
            f"two matrices of size {size} have the cosine {float(expected):.4f}; yours is "
            f"{float(cosine):.4f}. Multiply entry by entry, add up, divide by both norms",
        )
        expected = first.trace() * second.trace() / (size * first.norm() * second.norm())
        require(
            close(null, expected),
            f"over random eigenvectors the cosine is {float(expected):.4f} on average, yours is "
            f"{float(null):.4f}. What is the mean of Q A Qᵀ, over all rotations Q?",
        )


@exercise("9.2", "forward_moments(network, batches)")
def forward_moments(answer, generator):
    """H_b, G_b and their cosine over all batches; the parameters' gradients untouched."""
    draw = _drawer(generator)
    for _ in range(2):
        network, batches = small_network(draw), small_batches(draw, generator)
        for parameter in network.parameters():
            parameter.grad = draw(*parameter.shape)
        before = [parameter.grad.clone() for parameter in network.parameters()]
        result = _parts(
            answer(Itself(network), batches), "three things: H_b, G_b and their alignment", 3
        )
        _check_moments(network, batches, result)
        after = [parameter.grad for parameter in network.parameters()]
        require(
            all(g is not None and torch.equal(g, b) for g, b in zip(after, before, strict=True)),
            "the gradients in the parameters are not what they were: those of the measurement "
            "pile up there (or were wiped out). Ask torch.autograd.grad for the one you need",
        )


def _check_moments(network: nn.Module, batches: list, result: tuple) -> None:
    width = network[0].out_features
    h_b, g_b = as_tensor(result[0], "H_b"), as_tensor(result[1], "G_b")
    for value, name in ((h_b, "H_b"), (g_b, "G_b")):
        require(
            value.shape == (width, width),
            f"{name} has shape {tuple(value.shape)}, the layer has {width} units: a transpose is "
            "on the wrong factor, against the docstring",
        )
    rows = [by_sample(network, *batch) for batch in batches]
    h, g = (torch.cat(parts) for parts in zip(*rows, strict=True))
    one_batch = [part.T @ part / len(part) for part, _ in rows]
    require(
        not any(close(h_b, one) for one in one_batch),
        "H_b is that of one batch only; go through all of them",
    )
    require(
        close(h_b, h.T @ h / len(h)),
        "H_b is not the mean of h hᵀ over all samples; a sample of a small batch counts as much "
        "as one of a large batch, and no mean is subtracted",
    )
    expected = g.T @ g / len(g)
    require(
        float(g_b.trace()) > 0.5 * float(expected.trace()),
        f"the trace of G_b is {float(g_b.trace()):.4f} and should be "
        f"{float(expected.trace()):.4f}: the loss of a batch of B is a mean, so that the gradient "
        "of each sample comes with 1/B",
    )
    require(
        _near(g_b, expected),
        "G_b is not the mean of g gᵀ over all samples, with g = −∂ℓ/∂h_b of one sample's loss",
    )
    value, expected = as_tensor(result[2], "the alignment", ()), _cosine(h_b, g_b)
    wrong = ((h_b / h_b.norm()) * (g_b / g_b.norm())).norm()
    require(
        not close(value, wrong) or close(expected, wrong),
        "your alignment is the norm of an elementwise product: it forgets signs, and equal "
        "matrices do not get 1. Add up the products instead",
    )
    require(
        close(value, expected),
        f"the cosine of your H_b and G_b is {float(expected):.4f}, you return {float(value):.4f}",
    )


def _near(value: Tensor, expected: Tensor) -> bool:
    """Close relative to the largest entry: moments of gradients are small numbers."""
    return bool((value - expected).abs().max() <= 1e-6 * expected.abs().max())


@exercise("9.3", "watched_training(network, batches, rate, decay, measure)")
def watched_training(answer, generator):
    """What ``measure`` gives before the first step and after each, though it leaves gradients."""
    draw = _drawer(generator)
    rate, decay = 0.3, 0.05
    network, batches = small_network(draw), small_batches(draw, generator)
    probe = draw(sum(p.numel() for p in network.parameters()))

    def position(weights) -> float:
        return float(torch.cat([w.detach().flatten() for w in weights]) @ probe)

    def measure(network: nn.Module) -> float:
        network(batches[0][0]).square().sum().backward()  # as careless measures do
        return position(network.parameters())

    weights = [p.detach().clone() for p in network.parameters()]
    expected = [position(weights)]
    for batch in batches:
        weights = stepped(weights, batch, rate, decay)
        expected.append(position(weights))
    result = answer(
        Itself(network), batches, rate, decay, measure
    )  # a value more than there are batches
    values = as_tensor(result, "the list of values", (len(batches) + 1,))
    require(
        values.std() > 1e-9,
        "the measure is the same at every step: the network never moves. A backward pass is no "
        "optimiser step",
    )
    require(
        close(values, torch.tensor(expected, dtype=torch.float64)),
        "the network takes other steps than SGD with this batch, this rate and this decay: are "
        "gradients of earlier batches, or of the measure, still in the parameters?",
    )


@exercise("9.4", "penalty(h, W, side)")
def penalty(answer, generator):
    """1 − cos(H, Z) for rectangular and square W, on either side, with a gradient."""
    draw = _drawer(generator)
    for out, into in ((4, 7), (7, 4), (5, 5)):
        weight = draw(out, into)
        for side, width in (("input", into), ("output", out)):
            h = draw(30, width) @ draw(width, width)
            gram = weight.T @ weight if side == "input" else weight @ weight.T
            expected = 1 - _cosine(h.T @ h, gram.detach())
            for learns in "hW":
                h, weight = h.requires_grad_(learns == "h"), weight.requires_grad_(learns == "W")
                value = _penalty_of(answer, h, weight, side)
                require(
                    isinstance(value, Tensor) and value.requires_grad,
                    f"the penalty has no gradient for {learns}: keep it a tensor, without item() "
                    "or detach()",
                )
                value = as_tensor(value, "the penalty", ())
                require(
                    close(value, expected),
                    f"with W of shape ({out}, {into}) and h on its {side} side 1 − cos(H, Z) is "
                    f"{float(expected):.4f}, yours is {float(value):.4f}. Which of W Wᵀ and WᵀW "
                    "is that side's, and is H the raw second moment?",
                )


def _penalty_of(answer, h: Tensor, weight: Tensor, side: str) -> object:
    """What an answer makes of one side; Wrong where shapes do not fit."""
    try:
        return answer(h, weight, side)
    except RuntimeError as error:
        if isinstance(error, NotImplementedError):
            raise
        shape = f"W of shape {tuple(weight.shape)} and h on its {side} side"
        require(False, f"fails for {shape}: does it need a square W? ({error})")


@exercise("9.5", "forward_only(W)")
def forward_only(answer, generator):
    """H_a and G_b for which the three forward relations hold exactly."""
    draw = _drawer(generator)
    for out, into in ((4, 7), (6, 4), (5, 5)):
        weight = draw(out, into)
        result = _parts(answer(weight), "two matrices, H_a and G_b")
        h_a = as_tensor(result[0], "H_a", (into, into))
        g_b = as_tensor(result[1], "G_b", (out, out))
        for value, name in ((h_a, "H_a"), (g_b, "G_b")):
            require(value.norm() > 0, f"{name} is zero, and then nothing is proportional to it")
            require(close(value, value.T), f"{name} is a second moment, and so symmetric")
            low = float(torch.linalg.eigvalsh((value + value.T) / 2)[0] / value.norm())
            require(low > -1e-6, f"{name} is a second moment: it has no negative eigenvalues")
        h_b, z_b = weight @ h_a @ weight.T, weight @ weight.T
        for name, pair in {"RWA": (h_b, z_b), "GWA": (g_b, z_b), "RGA": (h_b, g_b)}.items():
            value = float(_cosine(*pair))
            require(
                value > 1 - 1e-6,
                f"W of shape ({out}, {into}): forward {name} is {value:.4f} and should be 1",
            )
