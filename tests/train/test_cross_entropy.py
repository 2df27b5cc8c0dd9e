"""The ensemble on the cross-entropy against autograd and torch's own descent, in float64."""

import pytest
import torch
from torch import nn

from richbook.train import TrainingSettings
from richbook.train.cross_entropy import CrossEntropyEnsemble
from tests.train import plain

CPU = torch.device("cpu")
D, C, SAMPLES = 6, 3, 7
SETTINGS = TrainingSettings(width=5, depth=3, momentum=0.0, zero_head=False)


def cells(activation):
    return [
        SETTINGS.replace(activation=activation, seed=seed, learning_rate=rate, weight_decay=decay)
        for seed, rate, decay in ((0, 0.1, 0.0), (1, 0.02, 0.3), (1, 0.3, 0.1))
    ]


def in_float64(ensemble):
    for name in ("kept", "learning_rate"):
        setattr(ensemble, name, getattr(ensemble, name).double())
    ensemble.weights = [weight.double() for weight in ensemble.weights]
    return ensemble


def network(ensemble, member, activation):
    """One member as an nn.Sequential without biases, in float64."""
    parts = []
    for weight in ensemble.weights:
        linear = nn.Linear(weight.shape[2], weight.shape[1], bias=False, dtype=torch.float64)
        linear.weight.data = weight[member].clone()
        parts += [linear, plain.ACTIVATIONS[activation]()]
    return nn.Sequential(*parts[:-1])


def batch(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(*shape, D, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(C, shape, generator=generator)


@pytest.mark.parametrize("activation", plain.ACTIVATIONS)
def test_steps_equal_torch_sgd(activation):
    made = cells(activation)
    ensemble = CrossEntropyEnsemble(made, D, C, CPU)
    # 1 − rate · decay is kept in float32, which would be all that differs
    exact = [[[1 - s.learning_rate * s.weight_decay]] for s in made]
    rates = [[[s.learning_rate]] for s in made]
    ensemble = in_float64(ensemble)
    ensemble.kept = torch.tensor(exact, dtype=torch.float64)
    ensemble.learning_rate = torch.tensor(rates, dtype=torch.float64)
    networks = [network(ensemble, member, activation) for member in range(3)]
    optimisers = [
        torch.optim.SGD(model.parameters(), lr=s.learning_rate, weight_decay=s.weight_decay)
        for model, s in zip(networks, made, strict=True)
    ]
    before = [weight.clone() for weight in ensemble.weights]
    for step in range(4):
        inputs, labels = batch(step, 3, SAMPLES)
        ensemble.descend(inputs, labels)
        for member, (model, optimiser) in enumerate(zip(networks, optimisers, strict=True)):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(inputs[member]), labels[member]).backward()
            optimiser.step()
    for member, model in enumerate(networks):
        for layer, theirs in enumerate(model.parameters()):
            assert torch.allclose(ensemble.weights[layer][member], theirs, atol=1e-12)
            assert (before[layer][member] - theirs).abs().max() > 1e-3


@pytest.mark.parametrize("activation", plain.ACTIVATIONS)
def test_inputs_and_gradients_of_layers_one_sample_at_a_time(activation):
    ensemble = in_float64(CrossEntropyEnsemble(cells(activation), D, C, CPU))
    inputs, labels = batch(5, SAMPLES)
    found = list(ensemble.layers(inputs, labels))[::-1]
    assert len(found) == 4
    for member in range(3):
        model = network(ensemble, member, activation)
        linears = [module for module in model if isinstance(module, nn.Linear)]
        seen = {}
        for linear in linears:
            linear.register_forward_hook(lambda m, i, o, seen=seen: seen.update({m: (i[0], o)}))
        for sample in range(SAMPLES):
            row = slice(sample, sample + 1)
            loss = nn.functional.cross_entropy(model(inputs[row]), labels[row])
            ends = [seen[linear][1] for linear in linears]
            gradients = torch.autograd.grad(loss, ends)
            for layer, linear in enumerate(linears):
                weight, h_a, g_b = (values[member] for values in found[layer])
                assert torch.equal(weight, linear.weight)
                assert torch.allclose(h_a[:, sample], seen[linear][0][0], atol=1e-12)
                assert torch.allclose(g_b[:, sample], -gradients[layer][0], atol=1e-12)


def test_outputs(device):
    ensemble = CrossEntropyEnsemble(cells("tanh"), D, C, torch.device(device))
    inputs = batch(2, SAMPLES)[0].float()
    outputs = ensemble.outputs(inputs.to(device)).cpu()
    ensemble.weights = [weight.cpu() for weight in ensemble.weights]
    for member in range(3):
        expected = network(ensemble, member, "tanh").float()(inputs)
        assert torch.allclose(outputs[member], expected, atol=1e-5)


def test_same_seed_same_start_and_inputs_are_not_changed():
    ensemble = CrossEntropyEnsemble(cells("relu"), D, C, CPU)
    assert all(torch.equal(weight[1], weight[2]) for weight in ensemble.weights)
    assert not any(torch.equal(weight[0], weight[1]) for weight in ensemble.weights)
    inputs, labels = batch(1, 3, SAMPLES)
    inputs = inputs.float()
    copies = inputs.clone(), labels.clone()
    ensemble.descend(inputs, labels)
    assert torch.equal(inputs, copies[0]) and torch.equal(labels, copies[1])
