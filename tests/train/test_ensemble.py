"""The hand-written gradients and updates of the ensemble, in float64 against autograd and SGD."""

import pytest
import torch

from richbook.measure import parameter_norm
from richbook.train import MLP, TrainingSettings
from richbook.train.ensemble import Ensemble, networks_at_once
from tests.train import plain

KINDS = [(activation, depth) for activation in ("relu", "tanh", "linear") for depth in (1, 2, 3)]
D, C, WIDTH, SAMPLES = 6, 3, 5, 7
CPU = torch.device("cpu")


def cells(**fixed):
    """Three networks that differ in all that an ensemble lets them differ in."""
    fixed = {"width": WIDTH, "zero_head": False} | fixed
    return [
        TrainingSettings(seed=0, learning_rate=0.1, weight_decay=0.0, **fixed),
        TrainingSettings(seed=1, learning_rate=0.02, weight_decay=0.3, **fixed),
        TrainingSettings(seed=1, learning_rate=0.05, weight_decay=0.1, **fixed),
    ]


def in_float64(ensemble, noise=0.3):
    """The same ensemble in double precision, moved away from its special start (zero biases)."""
    generator = torch.Generator().manual_seed(0)
    for name in ("weights", "biases", "weight_velocities", "bias_velocities"):
        values = [value.double() for value in getattr(ensemble, name)]
        if not name.endswith("velocities"):
            for value in values:
                value += noise * torch.randn(value.shape, generator=generator, dtype=value.dtype)
        setattr(ensemble, name, values)
    ensemble.weight_decay = ensemble.weight_decay.double()
    ensemble.learning_rate = ensemble.learning_rate.double()
    return ensemble


def batch(count, seed=3):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    return draw(count, SAMPLES, D), draw(count, SAMPLES, C)


def network(ensemble, member, activation):
    """One member as an nn.Sequential in float64."""
    parts = []
    for weight, bias in zip(ensemble.weights, ensemble.biases, strict=True):
        linear = torch.nn.Linear(weight.shape[2], weight.shape[1], dtype=torch.float64)
        linear.weight.data, linear.bias.data = weight[member].clone(), bias[member, :, 0].clone()
        parts += [linear, plain.ACTIVATIONS[activation]()]
    return torch.nn.Sequential(*parts[:-1])


def parameters(ensemble, member):
    pairs = zip(ensemble.weights, ensemble.biases, strict=True)
    return [value for weight, bias in pairs for value in (weight[member], bias[member, :, 0])]


def loss_of(model, inputs, targets):
    return ((model(inputs) - targets) ** 2).sum(1).mean()


@pytest.mark.parametrize(("activation", "depth"), KINDS)
def test_gradients_equal_autograd(activation, depth):
    made = cells(activation=activation, depth=depth, momentum=0.0)
    ensemble = in_float64(Ensemble([s.replace(weight_decay=0.0) for s in made], D, C, CPU))
    ensemble.learning_rate = torch.ones_like(ensemble.learning_rate)
    networks = [network(ensemble, member, activation) for member in range(3)]
    before = [[value.clone() for value in parameters(ensemble, member)] for member in range(3)]
    inputs, targets = batch(3)
    losses = ensemble.descend(inputs, targets)
    for member, model in enumerate(networks):
        loss = loss_of(model, inputs[member], targets[member])
        loss.backward()
        assert float(losses[member]) == pytest.approx(float(loss.detach()), rel=1e-12)
        after = parameters(ensemble, member)
        for old, new, parameter in zip(before[member], after, model.parameters(), strict=True):
            assert torch.allclose(old - new, parameter.grad, atol=1e-12)
            assert parameter.grad.abs().max() > 1e-6


@pytest.mark.parametrize("activation", ["relu", "tanh", "linear"])
def test_gradients_equal_finite_differences(activation):
    """Autograd is not asked here: the loss is evaluated at parameters moved by ±ε."""
    made = cells(activation=activation, depth=2, momentum=0.0)
    ensemble = in_float64(Ensemble([s.replace(weight_decay=0.0) for s in made], D, C, CPU))
    ensemble.learning_rate = torch.ones_like(ensemble.learning_rate)
    model, before = network(ensemble, 0, activation), [v.clone() for v in parameters(ensemble, 0)]
    inputs, targets = batch(3)
    ensemble.descend(inputs, targets)
    eps = 1e-6
    with torch.no_grad():
        for parameter, old, new in zip(
            model.parameters(), before, parameters(ensemble, 0), strict=True
        ):
            flat, slope = parameter.view(-1), torch.zeros(parameter.numel(), dtype=torch.float64)
            for entry in range(len(flat)):
                flat[entry] += eps
                above = loss_of(model, inputs[0], targets[0])
                flat[entry] -= 2 * eps
                slope[entry] = (above - loss_of(model, inputs[0], targets[0])) / (2 * eps)
                flat[entry] += eps
            assert torch.allclose((old - new).flatten(), slope, atol=1e-7)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("activation", "depth"), KINDS)
def test_steps_equal_torch_sgd(activation, depth, momentum):
    made = cells(activation=activation, depth=depth, momentum=momentum)
    ensemble = in_float64(Ensemble(made, D, C, CPU))
    networks = [network(ensemble, member, activation) for member in range(3)]
    optimisers = [
        torch.optim.SGD(
            model.parameters(), lr=s.learning_rate, momentum=momentum, weight_decay=s.weight_decay
        )
        for model, s in zip(networks, made, strict=True)
    ]
    for step in range(4):
        inputs, targets = batch(3, seed=step)
        ensemble.descend(inputs, targets)
        for member, (model, optimiser) in enumerate(zip(networks, optimisers, strict=True)):
            optimiser.zero_grad()
            loss_of(model, inputs[member], targets[member]).backward()
            optimiser.step()
    for member, model in enumerate(networks):
        for ours, theirs in zip(parameters(ensemble, member), model.parameters(), strict=True):
            assert torch.allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("activation", ["relu", "tanh", "linear"])
def test_forward_pass(device, activation):
    made = cells(activation=activation)
    ensemble = Ensemble(made, D, C, torch.device(device))
    shared = torch.randn(SAMPLES, D, generator=torch.Generator().manual_seed(1))
    own = torch.randn(3, SAMPLES, D, generator=torch.Generator().manual_seed(2))
    for inputs in (shared, own):
        features = ensemble.features(inputs.to(device))
        outputs = ensemble.head(features)
        assert features.shape == (3, SAMPLES, WIDTH) and outputs.shape == (3, SAMPLES, C)
        for member, settings in enumerate(made):
            model = MLP(D, C, settings)
            given = inputs if inputs.ndim == 2 else inputs[member]
            assert torch.allclose(features[member].cpu(), model.features(given), atol=1e-5)
            assert torch.allclose(outputs[member].cpu(), model(given), atol=1e-5)
    norms = ensemble.parameter_norms().cpu()
    expected = [float(parameter_norm(MLP(D, C, settings))) for settings in made]
    assert norms.dtype == torch.float64 and norms.tolist() == pytest.approx(expected, rel=1e-6)


def test_parameter_norm_does_not_overflow_float32():
    ensemble = Ensemble(cells(), D, C, CPU)
    ensemble.weights[0][1] = 1e25
    assert ensemble.parameter_norms()[1] == pytest.approx(WIDTH * D * 1e50, rel=1e-6)


def test_inputs_are_not_changed():
    ensemble = Ensemble(cells(), D, C, CPU)
    inputs, targets = (values.float() for values in batch(3))
    copies = inputs.clone(), targets.clone()
    ensemble.descend(inputs, targets)
    ensemble.head(ensemble.features(inputs))
    assert torch.equal(inputs, copies[0]) and torch.equal(targets, copies[1])


def test_groups_fit_the_caches_of_the_processor():
    shape = torch.Size((1000, 64))
    small, large = (networks_at_once(TrainingSettings(width=w), shape, CPU) for w in (16, 512))
    assert small > 4 * large >= 4
    assert networks_at_once(TrainingSettings(width=4096), shape, CPU) == 1
    assert networks_at_once(TrainingSettings(), shape, torch.device("cuda")) > 1000
