"""The network: where it starts, and what it calls features."""

import numpy as np
import pytest
import torch

from richbook.train import MLP, TrainingSettings

ACTIVATIONS = ["relu", "tanh", "linear"]


def network(inputs=20, outputs=5, **settings):
    return MLP(inputs, outputs, TrainingSettings(**settings))


def inputs(n=7, d=20):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_zero_head_gives_the_zero_function(activation, depth):
    model = network(activation=activation, depth=depth)
    assert torch.equal(model(inputs()), torch.zeros(7, 5))
    assert model.features(inputs()).abs().min(0).values.max() > 0


def test_other_head_does_not():
    model = network(zero_head=False)
    assert model(inputs()).abs().min() > 0
    assert model.head.bias.eq(0).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_features_are_the_input_of_the_head(activation, depth):
    model = network(activation=activation, depth=depth, width=16, zero_head=False)
    seen = []
    model.head.register_forward_hook(lambda module, given, result: seen.append((given[0], result)))
    outputs = model(inputs())
    assert torch.equal(model.features(inputs()), seen[0][0])
    assert torch.equal(outputs, seen[0][1])
    assert model.features(inputs()).shape == (7, 16) and outputs.shape == (7, 5)


@pytest.mark.parametrize(
    ("activation", "function"),
    [("relu", lambda z: np.maximum(z, 0)), ("tanh", np.tanh), ("linear", lambda z: z)],
)
def test_forward_pass_in_numpy(activation, function):
    model = network(activation=activation, depth=2, width=16, zero_head=False)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(1))
    values = inputs().numpy().astype(np.float64)
    for layer in model.hidden:
        weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
        values = function(values @ weight.T + bias)
    head = values @ model.head.weight.detach().numpy().T + model.head.bias.detach().numpy()
    assert np.allclose(model.features(inputs()).detach(), values, atol=1e-5)
    assert np.allclose(model(inputs()).detach(), head, atol=1e-5)


def test_modules_have_the_names_of_the_book():
    names = [name for name, _ in network(depth=2).named_parameters()]
    layers = ["hidden.0", "hidden.1", "head"]
    assert names == [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]


@pytest.mark.parametrize(("activation", "gain"), [("relu", 2), ("tanh", 1), ("linear", 1)])
def test_initial_spread(activation, gain):
    model = MLP(300, 10, TrainingSettings(width=200, activation=activation, zero_head=False))
    expected = [(gain / 300) ** 0.5, (gain / 200) ** 0.5, (1 / 200) ** 0.5]
    for layer, spread in zip([*model.hidden, model.head], expected, strict=True):
        weight = layer.weight.detach()
        assert float(weight.std()) == pytest.approx(spread, rel=0.05)
        assert abs(float(weight.mean())) < 4 * spread / weight.numel() ** 0.5
        assert layer.bias.eq(0).all()


def state(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_the_seed_fixes_the_weights_and_nothing_else_does():
    first = state(network(seed=1))
    torch.manual_seed(99)
    torch.rand(10)
    assert torch.equal(state(network(seed=1, learning_rate=3.0, target_scale=7.0)), first)
    assert not torch.equal(state(network(seed=2)), first)


def test_hidden_layers_do_not_depend_on_how_the_head_starts():
    zero, drawn = network(zero_head=True), network(zero_head=False)
    for layer, same in zip(zero.hidden, drawn.hidden, strict=True):
        assert torch.equal(layer.weight, same.weight)


def test_global_random_state_is_untouched():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    network(seed=4)
    assert torch.equal(torch.get_rng_state(), before)


def test_other_default_dtype():
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        model = network(zero_head=False)
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(state(model), state(network(zero_head=False)))
