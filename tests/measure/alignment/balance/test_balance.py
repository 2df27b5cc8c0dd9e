"""Both identities against the mean of all possible steps; assumptions where they are met."""

import copy
import itertools
import math

import pytest
import torch
from torch import nn

from richbook.measure import DegenerateWarning
from richbook.measure.alignment.balance.balance import Balance, balance
from tests.measure.capture.networks import Hooked, drawn, seeded
from tests.measure.reference import put


@pytest.fixture(autouse=True)
def _one_thread():
    """Thousands of products of this size: threads would spend their time waiting."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def half_square(outputs, targets):
    return (outputs - targets).square().flatten(1).sum(1) / 2


def pulled(outputs, targets):
    """A loss whose −∂ℓ/∂outputs is the targets."""
    return -(outputs * targets).flatten(1).sum(1)


def mlp():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2, bias=False))


def on_tokens():
    """Linear layers on (n, T, d), averaged over tokens."""
    return Hooked(
        lambda self, x: self.down(torch.tanh(self.up(x))).mean(1),
        up=nn.Linear(3, 4), down=nn.Linear(4, 2),
    )  # fmt: skip


def convolution():
    return nn.Sequential(nn.Conv2d(2, 3, 2, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(27, 2))


SHAPES = {mlp: (3,), on_tokens: (5, 3), convolution: (2, 2, 2)}


def mean_of_all_steps(model, x, y, rate, decay, size):
    """E[ΔWWᵀ] and E[ΔWᵀW] of every weight, over all batches of ``size`` samples, by doing them."""

    def grams(network):
        weights = [p.detach().flatten(1) for p in network.parameters() if p.ndim > 1]
        return [gram for w in weights for gram in (w @ w.T, w.T @ w)]

    before, after = grams(model), None
    batches = list(itertools.product(range(len(x)), repeat=size))
    for batch in batches:
        network = copy.deepcopy(model)
        optimiser = torch.optim.SGD(network.parameters(), rate, weight_decay=decay)
        half_square(network(x[list(batch)]), y[list(batch)]).mean().backward()
        optimiser.step()
        found = grams(network)
        after = found if after is None else [a + b for a, b in zip(after, found, strict=True)]
    return [a / len(batches) - b for a, b in zip(after, before, strict=True)]


@pytest.mark.parametrize("make", SHAPES)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_is_the_mean_change_of_all_possible_steps(device, make, size):
    """Exactly, at any rate and decay: no term is left out."""
    model = seeded(lambda: make().double(), "cpu").train()
    x, y = drawn(4, *SHAPES[make]).double(), drawn(4, 2, seed=1).double()
    rate, decay = 0.3, 0.4
    wanted = mean_of_all_steps(model, x, y, rate, decay, size)
    found = Balance(model.to(put(device, [0.0]).device), half_square, rate, decay, size)
    found.update(put(device, x), put(device, y))
    with pytest.warns(DegenerateWarning, match="single state"):
        layers = found.result().values()
    sides = [side for layer in layers for side in (layer.output, layer.input)]
    for side, change in zip(sides, wanted, strict=True):
        mine = rate * (side.cross + side.noise - side.decay).cpu()
        assert torch.allclose(mine, change, rtol=0, atol=1e-13)


def by_the_sample(model, x, y):
    """W, h_a, g_b of each sample and layer, from a loop of one-sample backward passes."""
    found = {name: [] for name, part in model.named_children() if isinstance(part, nn.Linear)}
    for row, target in zip(x, y, strict=True):
        value, kept = row[None], {}
        for name, part in model.named_children():
            before, value = value, part(value)
            kept[name] = (before, value)
        total = half_square(value, target[None]).sum()
        for name in found:
            h, h_b = kept[name]
            (gradient,) = torch.autograd.grad(total, h_b, retain_graph=True)
            found[name].append((h[0].detach(), -gradient[0]))
    return found


@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_terms_are_those_of_a_loop_over_samples_and_updates(momentum):
    models = [seeded(lambda: mlp().double(), seed=seed) for seed in range(3)]
    x, y = drawn(7, 3).double(), drawn(7, 2, seed=1).double()
    rate, decay, size = 0.02, 0.3, 4
    layers = balance(iter(models), x, y, half_square, rate, decay, size, momentum=momentum)
    rate = rate / (1 - momentum)
    samples = [by_the_sample(model, x, y) for model in models]
    for name, layer in layers.items():
        cross, noise, gram, mixed, norms, factored, gradients = 0, 0, 0, 0, 0, 0, []
        for model, rows in zip(models, samples, strict=True):
            weight = model.get_submodule(name).weight.detach()
            steps = [torch.outer(g, h) for h, g in rows[name]]  # D of each sample
            mean = sum(steps) / 7
            second = sum(step @ step.T for step in steps) / 7
            cross = cross + sum(torch.outer(g, weight @ h) for h, g in rows[name]) / 7 / 3
            noise = noise + (second / size + (1 - 1 / size) * mean @ mean.T) / 3
            gram = gram + weight @ weight.T / 3
            mixed = mixed + (1 - 1 / size) * mean @ mean.T / 3
            norms = norms + second / 3
            c = sum(h @ h for h, _ in rows[name]) / 7
            factored = factored + c * sum(torch.outer(g, g) for _, g in rows[name]) / 7 / 3
            gradients.append((mean, weight))
        side = layer.output
        shrunk = rate * decay
        assert torch.allclose(side.cross, (1 - shrunk) * (cross + cross.T), atol=1e-13)
        assert torch.allclose(side.noise, rate * noise, atol=1e-13)
        assert torch.allclose(side.decay, (2 * decay - rate * decay**2) * gram, atol=1e-13)
        rest = side.cross + side.noise - side.decay
        assert side.residual == pytest.approx(float(rest.norm() / side.decay.norm()))
        alone = (side.cross - side.decay).norm() / side.decay.norm()
        assert side.residual_without_noise == pytest.approx(float(alone))
        assert side.noise_share == pytest.approx(float(side.noise.norm() / side.decay.norm()))
        assert side.mean_gradient == pytest.approx(float(mixed.norm() / noise.norm()))
        assert side.norms == pytest.approx(float((norms - factored).norm() / norms.norm()))
        mean, weight = (sum(parts) / 3 for parts in zip(*gradients, strict=True))
        wanted = (mean - decay * weight).norm() / (decay * weight).norm()
        assert layer.mean_weight == pytest.approx(float(wanted)) and layer.updates == 3


def test_the_input_side_is_the_output_side_of_the_transposed_layer():
    """h and g change places: with a loss linear in the output both can be chosen."""
    weight = drawn(3, 5).double()
    h, g = drawn(20, 5, seed=1).double(), drawn(20, 3, seed=2).double()
    sides = []
    for w, inside, outside in ((weight, h, g), (weight.T, g, h)):
        layer = nn.Linear(*reversed(w.shape), bias=False).double()
        layer.weight.data = w.clone()
        found = Balance(layer, pulled, 0.1, 0.2, 4)
        for scale in (1.0, 2.0):
            found.update(scale * inside, outside)
        sides.append(found.result()[""])
    for one, other in ((sides[0].input, sides[1].output), (sides[0].output, sides[1].input)):
        assert torch.allclose(one.noise, other.noise) and torch.allclose(one.cross, other.cross)
        assert one.to_dict() == pytest.approx(other.to_dict(), nan_ok=True)


def pulled_layer(weight, h, g, size=1, rate=0.1, decay=0.2):
    """The balance of one layer with W, h_a and g_b as given."""
    layer = nn.Linear(*reversed(weight.shape), bias=False).double()
    layer.weight.data = weight.clone()
    found = Balance(layer, pulled, rate, decay, size)
    found.update(h, g)
    with pytest.warns(DegenerateWarning):
        return found.result()[""]


def test_assumptions_are_zero_where_they_are_met():
    weight, h = drawn(3, 5).double(), drawn(40, 5, seed=1).double()
    h = 2 * h / h.norm(dim=1, keepdim=True)  # equal norms
    side = pulled_layer(weight, h, drawn(40, 3, seed=2).double()).output
    assert side.norms < 1e-14 and side.mean_gradient < 1e-14  # B = 1 has no ∇∇ᵀ
    assert side.own_steps > 0.1 and side.cross_moment > 0.1
    proportional = pulled_layer(weight, h, 0.7 * h @ weight.T).output  # g_b = 0.7 h_b
    assert proportional.own_steps < 1e-7 and proportional.cross_moment < 1e-7


def test_assumption_residuals_see_what_they_are_about():
    weight, g = torch.eye(2).double(), torch.eye(2).repeat(2, 1).double()
    h = torch.tensor([[3.0, 0], [0, 1], [-3, 0], [0, -1]]).double()
    side = pulled_layer(weight, h, g).output
    # E[‖h‖² g gᵀ] = diag(9, 1)/2, E‖h‖² G = 5 diag(1, 1)/2
    assert side.norms == pytest.approx(math.sqrt(32 / 82))
    assert math.isnan(side.cross_moment)  # h and −h cancel: E[g h ᵀ] = 0
    whole = pulled_layer(weight, h, h, size=10**9).output  # all noise is that of the mean
    assert whole.mean_gradient == pytest.approx(1, abs=1e-6)


def test_cross_moment_must_be_symmetric():
    """A rotation of h by a right angle: E[g hᵀ] is antisymmetric and shares nothing with G."""
    h = drawn(50, 2, seed=3).double()
    h = torch.linalg.qr(h)[0] * 50**0.5  # H_a = I
    turn = torch.tensor([[0.0, -1], [1, 0]]).double()
    side = pulled_layer(torch.eye(2).double(), h, h @ turn.T).output
    assert side.cross_moment == pytest.approx(1) and float(side.cross.norm()) < 1e-12


def test_drift_and_sampling():
    model = nn.Linear(1, 1, bias=False).double()
    found = Balance(model, pulled, 0.5, 0.25, 1)
    one = torch.ones(1, 1).double()
    for step, weight in ((10, 1.0), (12, 2.0), (14, 3.0)):
        model.weight.data.fill_(weight)
        found.update(one, one, step=step)
    side = found.result()[""].output
    # each state: cross 2(1 − 1/8) w, noise 0.5, decay (0.5 − 1/32) w²
    rest = [1.75 * w + 0.5 - 0.46875 * w * w for w in (1, 2, 3)]
    decay = 0.46875 * 14 / 3
    mean = sum(rest) / 3
    assert side.residual == pytest.approx(abs(mean) / decay)
    spread = sum((r - mean) ** 2 for r in rest) / 3
    assert side.sampling == pytest.approx(math.sqrt(spread / 2) / decay)
    assert side.drift == pytest.approx((9 - 1) / (0.5 * 4) / decay)


def test_drift_is_unknown_without_steps():
    model = nn.Linear(2, 2)
    found = Balance(model, half_square, 0.1, 0.1, 1)
    for _ in range(2):
        found.update(drawn(5, 2), drawn(5, 2, seed=1))
    assert math.isnan(found.result()[""].output.drift)


def simulated(rate, momentum, decay=0.5, size=4, steps=5000):
    """A layer at rest under noise that outweighs the loss, and its balance."""
    x, y = drawn(32, 3).double(), 3 * drawn(32, 2, seed=1).double()
    model = seeded(lambda: nn.Linear(3, 2, bias=False).double())
    found = Balance(model, half_square, rate, decay, size, momentum=momentum)
    weight, velocity = model.weight.data, torch.zeros(2, 3).double()
    draw = torch.Generator().manual_seed(2)
    for step in range(steps):
        batch = torch.randint(32, (size,), generator=draw)
        gradient = (x[batch] @ weight.T - y[batch]).T @ x[batch] / size + decay * weight
        velocity = momentum * velocity + gradient
        weight -= rate * velocity
        if step > 500 and step % 10 == 0:
            found.update(x, y, step=step)
    return found.result()[""]


@pytest.mark.parametrize(("rate", "momentum"), [(0.1, 0.0), (0.05, 0.5), (0.01, 0.9)])
def test_a_layer_at_rest(rate, momentum):
    """The same size of noise each time: with momentum the rate counts 1/(1 − μ) times."""
    found = simulated(rate, momentum)
    for side in (found.output, found.input):
        assert side.noise_share > 0.4 and side.residual < 0.2 and side.drift < 0.05
        assert side.residual_without_noise > 3 * side.residual


def test_steps_along_the_gradient_alone_leave_the_noise_out():
    """Full batches, at the minimum: ∇ = γ W, and the identity holds with nothing to average."""
    x, y = drawn(20, 3).double(), drawn(20, 2, seed=1).double()
    decay = 0.3
    normal = x.T @ x / 20 + decay * torch.eye(3).double()
    weight = torch.linalg.solve(normal, x.T @ y / 20).T
    model = nn.Linear(3, 2, bias=False).double()
    model.weight.data = weight
    rate = 1e-9
    found = Balance(model, half_square, rate, decay, 20)
    found.update(x, y)
    found.update(x, y)
    layer = found.result()[""]
    assert layer.mean_weight < 1e-12
    assert layer.output.residual < 1e-8 and layer.input.residual < 1e-8
