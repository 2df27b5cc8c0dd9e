"""Gradients of the measures agree with finite differences, and so does training on them."""

import warnings

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from richbook.measure import DegenerateWarning, cka, d_lr, kernel_distance
from tests.measure import reference
from tests.measure.reference import put

SHAPES = [(15, 4), (15, 1), (6, 9), (5, 5)]  # (n, p): more, as many and fewer samples than features


def _leaf(device, values):
    return put(device, values).requires_grad_()


def _agrees(function, *leaves):
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DegenerateWarning
        )  # small samples are spanned by few outputs
        return gradcheck(function, leaves, eps=1e-6, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize(("n", "p"), SHAPES)
@pytest.mark.parametrize("c", [1, 3])
def test_of_full_rank_outputs(device, n, p, c):
    features, outputs = reference.problem(0, n, p, c)
    assert _agrees(d_lr, _leaf(device, features), _leaf(device, outputs))


DEFICIENT = {
    "zero-sum": lambda free: free - free.mean(1, keepdim=True),
    "zero-sum on an offset": lambda free: (
        free - free.mean(1, keepdim=True) + torch.tensor([3.0, -2.0, -1.0]).to(free)
    ),
    "sum to one": lambda free: free.softmax(1),
    "repeated": lambda free: torch.cat([free, free[:, :1], 2 * free[:, 1:2] - free[:, :1]], dim=1),
    "with a bias": lambda free: torch.cat([free, torch.ones_like(free[:, :1])], dim=1),
}


@pytest.mark.parametrize(("n", "p"), SHAPES)
@pytest.mark.parametrize("kind", DEFICIENT)
def test_of_rank_deficient_outputs(device, n, p, kind):
    features, free = reference.problem(1, n, p, c=3)

    def function(features, free):
        return d_lr(features, DEFICIENT[kind](free))

    assert _agrees(function, _leaf(device, features), _leaf(device, free))


@pytest.mark.parametrize(("n", "p"), SHAPES)
def test_through_the_head_that_made_the_outputs(device, n, p):
    """Both arguments depend on the same features, as in a network."""
    features, _ = reference.problem(2, n, p)
    head = np.random.default_rng(2).normal(size=(p, 2)) if p > 1 else np.ones((1, 1))

    def function(features, head):
        return d_lr(features.tanh(), features.tanh() @ head + 0.3)

    assert _agrees(function, _leaf(device, features), _leaf(device, head))


def test_of_float32_inputs(device):
    features, outputs = reference.problem(3, n=40)
    gradients = []
    for dtype in (torch.float64, torch.float32):
        leaves = [put(device, values, dtype).requires_grad_() for values in (features, outputs)]
        d_lr(*leaves).backward()
        gradients.append([reference.array(leaf.grad) for leaf in leaves])
    for exact, single in zip(*gradients, strict=True):
        np.testing.assert_allclose(single, exact, atol=1e-5 * np.abs(exact).max())


def test_descent_makes_features_rich(device):
    """A small step against the gradient lowers D_LR by what the gradient promises."""
    features, outputs = reference.problem(4)
    leaf, outputs = _leaf(device, features), put(device, outputs)
    before = d_lr(leaf, outputs)
    before.backward()
    step = 1e-4
    after = d_lr(leaf.detach() - step * leaf.grad, outputs)
    promised = step * leaf.grad.square().sum()
    assert float((before - after).detach()) == pytest.approx(float(promised), rel=1e-3)


@pytest.mark.parametrize(("n", "p"), SHAPES)
@pytest.mark.parametrize("measure", [cka, kernel_distance])
def test_of_kernel_similarities(device, measure, n, p):
    first, second = reference.problem(5, n, p, c=3)
    assert _agrees(measure, _leaf(device, first), _leaf(device, second))
