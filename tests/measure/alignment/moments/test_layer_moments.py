"""``layer_moments`` against gradients taken one sample at a time."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from richbook.measure.alignment import LayerMoments, layer_moments
from tests.measure.alignment.one_at_a_time import (
    distance,
    matrix_of,
    modules_in,
    rows_one_at_a_time,
    second_moments,
)
from tests.measure.capture.networks import (
    ConvNet,
    Encoder,
    Hooked,
    ResNet,
    Transformer,
    drawn,
    mlp,
    seeded,
)

MATRICES = ("H_a", "H_b", "G_a", "G_b")
cross_entropy = functional.cross_entropy


def batches(*tensors, size=5):
    """A loader with a ragged last batch."""
    return list(zip(*(tensor.split(size) for tensor in tensors), strict=True))


def labels(count, classes):
    return torch.arange(count) % classes


def token_loss(outputs, targets, **settings):
    return cross_entropy(outputs.flatten(0, 1), targets.flatten(), **settings)


def check(model, inputs, targets, loss, tolerance=2e-5, size=5, **settings):
    """All matrices and means of all layers equal those of one sample at a time."""
    found = layer_moments(model, batches(inputs, targets, size=size), loss, **settings)
    names = list(dict.fromkeys(name.partition("#")[0] for name in modules_in(found)))
    expected = rows_one_at_a_time(model.cpu(), inputs, targets, loss, names)
    assert set(modules_in(found)) == set(expected)
    for name, rows in expected.items():
        layer, moments = found[name], second_moments(rows)
        assert layer.count == len(rows["h_a"]) and layer.name == name
        for matrix in MATRICES:
            assert distance(getattr(layer, matrix).cpu(), moments[matrix]) < tolerance, matrix
        for side in rows:
            mean, scale = rows[side].mean(0), rows[side].norm(dim=1).mean()
            error = (getattr(layer, f"mean_{side}").cpu() - mean).norm() / scale
            assert error < tolerance, side
    return found


def sequential_with(layer):
    return lambda: nn.Sequential(layer(), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(8, 3))


NETWORKS = {
    "perceptron, activations in place": (mlp, (3,), 4),
    "convolutional, batch norm, dropout": (ConvNet, (1, 6, 6), 3),
    "residual, adding in place": (ResNet, (3, 6, 6), 5),
    "torch's encoder": (Encoder, (4, 8), 3),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_equals_one_sample_at_a_time(name, device):
    make, shape, classes = NETWORKS[name]
    model = seeded(make, device)
    inputs, targets = drawn(17, *shape, seed=1), labels(17, classes)
    found = check(model, inputs, targets, cross_entropy)
    assert all(isinstance(layer, LayerMoments) for layer in found.values())
    assert all(getattr(layer, m).dtype == torch.float64
               for layer in found.values() for m in MATRICES)  # fmt: skip


def test_float64_is_exact_to_the_last_digits():
    model = seeded(ConvNet).double()
    check(model, drawn(9, 1, 6, 6).double(), labels(9, 3), cross_entropy, tolerance=1e-12)
    model = seeded(mlp).double()
    check(model, drawn(9, 3).double(), labels(9, 4), cross_entropy, tolerance=1e-12)


def test_transformer_tokens_are_rows(device):
    """Also with token inputs that no gradient can reach."""
    model = seeded(Transformer, device)
    tokens = torch.arange(60).reshape(12, 5) % 11
    found = check(model, tokens, tokens.flip(1), token_loss)
    assert modules_in(found) == [
        "blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down", "head",
    ]  # fmt: skip
    assert found["head"].count == 60


def test_tied_weights(device):
    model = seeded(lambda: Transformer("tied"), device)
    tokens = torch.arange(60).reshape(12, 5) % 11
    found = check(model, tokens, tokens.flip(1), token_loss)
    assert torch.equal(found["head"].weight, model.embedding.weight.detach().double())


def test_in_place_activations_after_a_layer_on_tokens(device):
    """With a bias, the output of nn.Linear on (n, T, d) is a view, which autograd treats apart."""
    model = seeded(mlp, device)
    check(model, drawn(12, 5, 3), labels(60, 4).reshape(12, 5), token_loss)


def test_a_module_called_twice_and_a_branch(device):
    """The two calls have rows of their own; g_a leaves out what comes back through the branch."""

    def forward(self, x):
        x = torch.tanh(self.first(x))
        return self.head(x + self.shared(torch.tanh(self.shared(x))))

    def make():
        parts = {"first": nn.Linear(3, 6), "shared": nn.Linear(6, 6), "head": nn.Linear(6, 4)}
        return Hooked(forward, **parts)

    found = check(seeded(make, device), drawn(13, 3), labels(13, 4), cross_entropy)
    assert list(found) == ["first", "shared", "shared#2", "head"]


@pytest.mark.parametrize("settings", [
    {"stride": 2}, {"padding": 1}, {"padding": (2, 0)}, {"padding": "same"}, {"dilation": 2},
    {"groups": 2}, {"groups": 4, "padding": 1}, {"padding": 1, "padding_mode": "reflect"},
    {"padding": "same", "padding_mode": "circular", "dilation": (1, 2)}, {"bias": False},
    {"kernel_size": 1}, {"kernel_size": 1, "stride": 2}, {"kernel_size": (2, 3), "padding": 2},
    {"kernel_size": 5, "padding": 2, "stride": (1, 2)},
], ids=str)  # fmt: skip
def test_convolutions(settings, device):
    settings = {"kernel_size": 3} | settings
    made = [nn.Conv2d(4, 8, **settings), nn.Tanh(), nn.Conv2d(8, 5, 3), nn.AdaptiveAvgPool2d(1)]
    model = seeded(lambda: nn.Sequential(*made, nn.Flatten(), nn.Linear(5, 3)), device)
    inputs = drawn(11, 4, 9, 7) + 1
    found = check(model, inputs, labels(11, 3), cross_entropy)
    weight = matrix_of(model.cpu()[0])
    assert torch.equal(found["0"].weight.cpu(), weight)
    assert found["0"].Z_a.shape == (weight.shape[1],) * 2


@pytest.mark.parametrize("settings", [
    {}, {"stride": 2, "padding": 1}, {"dilation": 2}, {"groups": 2, "padding": "same"},
    {"padding": 2, "padding_mode": "circular", "bias": False},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("kind, sizes", [(nn.Conv1d, (11,)), (nn.Conv3d, (5, 6, 7))])
def test_convolutions_over_sequences_and_volumes(kind, sizes, settings, device):
    pool = {nn.Conv1d: nn.AdaptiveAvgPool1d, nn.Conv3d: nn.AdaptiveAvgPool3d}[kind]
    made = [kind(4, 6, 3, **settings), nn.Tanh(), pool(1), nn.Flatten(), nn.Linear(6, 3)]
    model = seeded(lambda: nn.Sequential(*made), device)
    found = check(model, drawn(9, 4, *sizes) + 1, labels(9, 3), cross_entropy)
    assert list(found) == ["0", "4"]
    assert torch.equal(found["0"].weight.cpu(), matrix_of(model.cpu()[0]))


def test_maps_of_several_sizes():
    model = seeded(ConvNet)
    images = [drawn(4, 1, size, size, seed=size) for size in (6, 8, 6)]
    loader = [(image, labels(4, 3)) for image in images]
    found = layer_moments(model, loader, cross_entropy)
    parts = [rows_one_at_a_time(model, x, y, cross_entropy, ["conv2"])["conv2"] for x, y in loader]
    rows = {side: torch.cat([part[side] for part in parts]) for side in parts[0]}
    for matrix, expected in second_moments(rows).items():
        assert distance(getattr(found["conv2"], matrix), expected) < 2e-5


def test_the_exact_identities(device):
    """H_b = W H_a Wᵀ and G_a = Wᵀ G_b W, and the centred ones, to rounding."""
    model = seeded(ConvNet, device)
    for layer in layer_moments(model, batches(drawn(9, 1, 6, 6), labels(9, 3)),
                               cross_entropy).values():  # fmt: skip
        for part in (layer, layer.centred()):
            w = part.weight
            assert distance(part.H_b, w @ part.H_a @ w.T) < 1e-14
            assert distance(part.G_a, w.T @ part.G_b @ w) < 1e-14
        assert distance(layer.Z_b, w @ w.T) < 1e-14 and distance(layer.Z_a, w.T @ w) < 1e-14
        mean = layer.mean_h_a
        assert distance(layer.centred().H_a, layer.H_a - torch.outer(mean, mean)) < 1e-10
        # the mean of g_b is the gradient of a bias, up to its sign
        assert layer.mean_g_a.shape == mean.shape


def test_mean_of_g_is_minus_the_gradient_of_the_bias():
    model, (inputs, targets) = seeded(mlp), (drawn(40, 3), labels(40, 4))
    found = layer_moments(model, batches(inputs, targets), cross_entropy)
    gradients = torch.autograd.grad(
        cross_entropy(model(inputs), targets), [model[0].bias, model[2].bias, model[4].bias]
    )
    for name, gradient in zip("024", gradients, strict=True):
        torch.testing.assert_close(found[name].mean_g_b.float(), -gradient, rtol=1e-4, atol=1e-6)


def test_how_the_stream_is_cut_does_not_matter():
    for make, shape, classes in (NETWORKS[name] for name in list(NETWORKS)[:2]):
        model, inputs, targets = seeded(make), drawn(300, *shape), labels(300, classes)
        found = [layer_moments(model, batches(inputs, targets, size=size), cross_entropy)
                 for size in (300, 64, 17)]  # fmt: skip
        for name in found[0]:
            for matrix in MATRICES:
                first, *others = (getattr(layers[name], matrix) for layers in found)
                assert all(distance(other, first) < 1e-5 for other in others)


@pytest.mark.parametrize("make, shape", [(mlp, (3,)), (ConvNet, (1, 8, 8))])
def test_a_large_offset_costs_no_digits(make, shape):
    """Inputs near 1000 that vary by 1: the covariance is right although the input is float32."""
    model = seeded(make)
    inputs = drawn(100, *shape) + 1000
    name = "0" if make is mlp else "conv1"
    found = layer_moments(model, batches(inputs, labels(100, 3), size=50), cross_entropy, [name])
    rows = rows_one_at_a_time(model, inputs, labels(100, 3), cross_entropy, [name])[name]
    covariance = torch.cov(rows["h_a"].T, correction=0)
    assert distance(found[name].covariance_h_a, covariance) < 1e-5
    assert distance(found[name].H_a, second_moments(rows)["H_a"]) < 1e-6


def test_directions(device):
    """The covariances of h/|h| and g/|g|, of which a zero has none."""
    model = seeded(ConvNet, device)
    inputs, targets = drawn(30, 1, 6, 6), labels(30, 3)
    inputs[3] = 0
    found = layer_moments(model, batches(inputs, targets), cross_entropy, unit=True)
    expected = rows_one_at_a_time(model.cpu(), inputs, targets, cross_entropy, list(found))
    for name, rows in expected.items():
        for k, side in enumerate(("h_a", "h_b", "g_a", "g_b")):
            values = rows[side][rows[side].abs().amax(1) > 0]
            values = values / values.norm(dim=1, keepdim=True)
            unit = found[name].unit
            assert unit.counts[k] == len(values)
            got = getattr(unit, f"{side[0].upper()}{side[1:]}").cpu()
            assert distance(got, torch.cov(values.T, correction=0)) < 1e-4
            assert distance(unit.means[k].cpu(), values.mean(0)) < 1e-3
    assert found["conv1"].unit.counts[0] < found["conv1"].count


def test_groups_are_the_whole(device):
    """The groups are disjoint and together they are all samples; all but one is the rest."""
    model = seeded(ConvNet, device)
    loader = batches(drawn(90, 1, 6, 6), labels(90, 3))
    found = layer_moments(model, loader, cross_entropy, groups=True, unit=True)
    plain = layer_moments(model, loader, cross_entropy)
    for name, layer in found.items():
        assert len(layer.groups) == 20 and plain[name].groups == ()
        counts = [group.count for group in layer.groups]
        assert sum(counts) == layer.count and max(counts) - min(counts) == layer.count // 90
        for matrix in MATRICES:
            assert distance(getattr(layer, matrix), getattr(plain[name], matrix)) < 1e-5
            whole = sum(g.count * getattr(g, matrix) for g in layer.groups) / layer.count
            assert distance(whole, getattr(layer, matrix)) < 1e-10
            rest = layer.without(layer.groups[0])
            others = sum(g.count * getattr(g, matrix) for g in layer.groups[1:])
            assert distance(getattr(rest, matrix), others / rest.count) < 1e-10
        unit, part = layer.unit, layer.unit.without(layer.groups[3].unit)
        others = [g.unit for k, g in enumerate(layer.groups) if k != 3]
        second = sum(o.counts[0] * (o.H_a + torch.outer(o.means[0], o.means[0])) for o in others)
        mean = sum(o.counts[0] * o.means[0] for o in others) / part.counts[0]
        assert distance(part.H_a, second / part.counts[0] - torch.outer(mean, mean)) < 1e-10
        assert part.counts[0] == unit.counts[0] - layer.groups[3].unit.counts[0]


def test_groups_depend_on_the_seed_and_keep_samples_whole():
    model, tokens = seeded(Transformer), torch.arange(300).reshape(60, 5) % 11
    found = [
        layer_moments(model, batches(tokens, tokens), token_loss, groups=True, seed=seed)["head"]
        for seed in (0, 0, 1)
    ]
    assert all(group.count % 5 == 0 for group in found[0].groups)
    first = [layer.groups[0].H_a for layer in found]
    assert torch.equal(first[0], first[1]) and not torch.equal(first[0], first[2])
    few = layer_moments(model, [(tokens[:9], tokens[:9])], token_loss, groups=True)["head"]
    assert few.groups == ()  # fewer samples than groups
