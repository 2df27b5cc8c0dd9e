"""A trained network in a phase: two hidden linear layers on digits, one image a step."""

import numpy as np
import pytest
import torch
from torch import nn

from richbook.measure.alignment import layer_moments
from richbook.measure.alignment.phases.exponents import exponents
from richbook.measure.alignment.phases.phases import classify_phase, predicted_exponents
from richbook.train import load_data


def trained(inputs, labels, seed, rate=0.02, decay=0.01, steps=20_000, width=32):
    """SGD by hand on cross-entropy: h = W1 x, W2 h, W3 h, softmax."""
    rng = np.random.default_rng(seed)
    shapes = ((width, inputs.shape[1]), (width, width), (10, width))
    one, two, three = (rng.uniform(-1, 1, shape) / shape[1] ** 0.5 for shape in shapes)
    for i in rng.integers(len(inputs), size=steps):
        x = inputs[i]
        h = one @ x
        k = two @ h
        logits = three @ k
        error = np.exp(logits - logits.max())
        error /= error.sum()
        error[labels[i]] -= 1
        at_two = three.T @ error
        at_one = two.T @ at_two
        three -= rate * (np.outer(error, k) + decay * three)
        two -= rate * (np.outer(at_two, h) + decay * two)
        one -= rate * (np.outer(at_one, x) + decay * one)
    return one, two, three


@pytest.fixture(scope="module", params=[0, 1])
def layers(request):
    data = load_data("digits")
    inputs, labels = data.train_inputs, data.train_labels
    weights = trained(inputs.double().numpy(), labels.numpy(), request.param)
    model = nn.Sequential(*(nn.Linear(w.shape[1], w.shape[0], bias=False) for w in weights))
    for layer, weight in zip(model, weights, strict=True):
        layer.weight.data = torch.tensor(weight, dtype=torch.float32)
    assert (model(inputs).argmax(1) == labels).double().mean() > 0.9
    loss = nn.functional.cross_entropy
    return layer_moments(model, [(inputs, labels)], loss, groups=True)


def test_the_middle_layer_is_in_the_phase_of_gwa_and_rwa(layers):
    found = exponents(layers["1"])
    predicted = predicted_exponents("GWA", "RWA")
    for name in ("H_b", "G_b", "H_a", "G_a"):
        law = getattr(found, name)
        assert law.exponent == pytest.approx(getattr(predicted, name), abs=0.3)
        assert law.r2 > 0.97 and law.law == "power"
    assert found.HG_b.exponent == pytest.approx(2, abs=0.4)
    assert classify_phase(found).predicted == predicted


def test_its_rule_for_eigenvalues_finds_the_rank_of_the_errors(layers):
    """Errors of ten classes sum to zero: G has nine directions, and so has what is fitted."""
    assert 8 <= exponents(layers["1"]).used <= 9


def test_the_other_layers_are_not(layers):
    for name in ("0", "2"):
        assert classify_phase(exponents(layers[name])).predicted is None
