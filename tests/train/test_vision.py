"""Convolutional networks: shapes, known sizes, forward passes written out, initial weights."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from richbook.measure import RichbookError
from richbook.train.vision import VGG, ResNet, as_pictures, initialize


def pictures(n=4, channels=3, side=32, seed=1):
    return torch.randn(n, channels, side, side, generator=torch.Generator().manual_seed(seed))


def small(kind, channels=3, classes=10, **changes):
    if kind == "vgg":
        settings = {"width": 4, "blocks": (1, 2), "hidden": (16, 12)} | changes
        return VGG(channels, classes, **settings)
    return ResNet(channels, classes, **{"width": 4} | changes)


def settled(model, seed=7):
    """The model in evaluation mode, with statistics and scales that are not 0 and 1."""
    draw = torch.Generator().manual_seed(seed)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            for values in (layer.weight.data, layer.running_var):
                values.copy_(0.5 + torch.rand(values.shape, generator=draw))
            for values in (layer.bias.data, layer.running_mean):
                values.copy_(torch.randn(values.shape, generator=draw) / 5)
    return model.eval()


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_rows_become_pictures():
    grey = np.arange(2 * 12).reshape(2, 3, 4)
    found = as_pictures(torch.tensor(grey.reshape(2, -1)), (3, 4))
    assert found.shape == (2, 1, 3, 4) and np.array_equal(found[:, 0], grey)
    colour = np.arange(2 * 36).reshape(2, 3, 4, 3)
    found = as_pictures(torch.tensor(colour.reshape(2, -1)), (3, 4, 3))
    assert np.array_equal(found, colour)


def test_what_is_no_picture_is_an_error():
    with pytest.raises(RichbookError, match=r"inputs: expected rows of 64 .* shape \(5, 63\)"):
        as_pictures(torch.zeros(5, 63), (8, 8))
    with pytest.raises(RichbookError, match="image_shape: expected the shape of a picture"):
        as_pictures(torch.zeros(5, 2), None)


def test_sizes_of_the_published_networks():
    """14 714 688 in the convolutions of VGG-16; 11 173 962 in ResNet-18 for 32 pixels."""
    vgg = VGG(3, 100, batch_norm=False)
    linear = 512 * 512 + 512
    assert parameters(vgg) == 14_714_688 + 2 * linear + 512 * 100 + 100
    assert [type(layer) for layer in vgg.modules()].count(nn.Conv2d) == 13
    assert [type(layer) for layer in vgg.modules()].count(nn.Linear) == 3
    normalised = VGG(3, 100)
    units = sum(m.num_features for m in normalised.modules() if hasattr(m, "num_features"))
    assert parameters(normalised) == parameters(vgg) + 2 * units - sum(
        m.out_channels for m in vgg.modules() if isinstance(m, nn.Conv2d)
    )
    assert parameters(ResNet(3, 10)) == 11_173_962


@pytest.mark.parametrize("kind", ["vgg", "resnet"])
@pytest.mark.parametrize("side", [1, 8, 14, 28, 32])
def test_features_are_the_input_of_the_head(kind, side, device):
    model = small(kind, channels=1).to(device).eval()
    seen = []
    model.head.register_forward_hook(lambda module, given, result: seen.append((given[0], result)))
    images = pictures(channels=1, side=side).to(device)
    outputs = model(images)
    assert torch.equal(model.features(images), seen[0][0])
    assert torch.equal(outputs, seen[0][1])
    assert seen[0][0].shape == (4, 12 if kind == "vgg" else 32) and outputs.shape == (4, 10)
    assert bool((seen[0][0] >= 0).all())


def normalise(values, layer):
    shape = (1, -1, *[1] * (values.ndim - 2))
    mean, variance = layer.running_mean.reshape(shape), layer.running_var.reshape(shape)
    values = (values - mean) / (variance + 1e-5).sqrt()
    return values * layer.weight.reshape(shape) + layer.bias.reshape(shape)


@pytest.mark.parametrize("batch_norm", [True, False])
def test_vgg_written_out(batch_norm):
    model = settled(small("vgg", batch_norm=batch_norm)).double()
    values = images = pictures(side=7).double()
    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    norms = iter(m for m in model.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d))
    for index, layer in enumerate(layers[:-1]):
        if index < 3:
            values = functional.conv2d(values, layer.weight, layer.bias, padding=1)
        else:
            values = values @ layer.weight.T + layer.bias
        values = normalise(values, next(norms)) if batch_norm else values
        values = values.clamp(min=0)
        if index in (0, 2):  # the blocks have one and two convolutions
            side = -(-values.shape[-1] // 2)
            padded = functional.pad(values, (0, 2 * side - values.shape[-1]) * 2, value=0)
            values = padded.reshape(*values.shape[:2], side, 2, side, 2).amax((3, 5))
        if index == 2:
            values = values.mean((2, 3))
    assert torch.allclose(model.features(images), values)
    expected = values @ model.head.weight.T + model.head.bias
    assert torch.allclose(model(images), expected)


@pytest.mark.parametrize("stride", [1, 2])
def test_resnet_written_out(stride):
    model = settled(small("resnet", stages=(1, 2), stride=stride)).double()
    images = pictures(side=9).double()
    first, norm, _, plain, wider, last, _, _ = model.body

    def convolved(values, layer, stride=1):
        size = layer.weight.shape[-1]
        return functional.conv2d(values, layer.weight, padding=size // 2, stride=stride)

    values = normalise(convolved(images, first, stride), norm).clamp(min=0)
    for block, step in ((plain, 1), (wider, 2), (last, 1)):
        one, norm_one, _, two, norm_two = block.change
        change = normalise(convolved(values, one, step), norm_one).clamp(min=0)
        change = normalise(convolved(change, two), norm_two)
        if step == 2:
            values = normalise(convolved(values, block.shortcut[0], 2), block.shortcut[1])
        values = (values + change).clamp(min=0)
    values = values.mean((2, 3))
    assert torch.allclose(model.features(images), values)
    assert torch.allclose(model(images), values @ model.head.weight.T + model.head.bias)


def test_default_weights_are_spread_like_torchs():
    layers = nn.ModuleList([nn.Conv2d(16, 64, 3), nn.Linear(300, 200)])
    torchs = [(layer.weight.detach().clone(), layer.bias.detach().clone()) for layer in layers]
    initialize(layers, "default", seed=3)
    for layer, drawn in zip(layers, torchs, strict=True):
        for ours, theirs in zip((layer.weight, layer.bias), drawn, strict=True):
            assert not torch.equal(ours, theirs)
            assert float(ours.detach().std()) == pytest.approx(float(theirs.std()), rel=0.25)
            assert float(ours.detach().abs().max()) == pytest.approx(
                float(theirs.abs().max()), rel=0.1
            )


def test_he_keeps_the_size_and_the_default_shrinks_it():
    """Per ReLU layer the second moment changes by fan-in · variance / 2: by 1, and by 1/6."""
    images = pictures(n=64, channels=16, side=12)
    ratios = {}
    for kind in ("he", "default"):
        body = nn.Sequential(*[nn.Conv2d(16, 512, 1, bias=False), nn.ReLU()])
        initialize(body, kind, seed=0)
        ratios[kind] = float(body(images).detach().square().mean() / images.square().mean())
    assert ratios["he"] == pytest.approx(1, rel=0.1)
    assert ratios["default"] == pytest.approx(1 / 6, rel=0.1)


def test_another_initialization_is_an_error():
    with pytest.raises(RichbookError, match="expected one of default, he, got 'xavier'"):
        VGG(1, 2, width=2, initialization="xavier")


def state(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("kind", ["vgg", "resnet"])
def test_the_seed_fixes_the_weights_and_leaves_the_global_generator(kind):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = state(small(kind, seed=1))
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(10)
    assert torch.equal(state(small(kind, seed=1)), first)
    assert not torch.equal(state(small(kind, seed=2)), first)


def test_only_the_normalisation_differs_with_and_without():
    with_norm, without = small("vgg", batch_norm=True), small("vgg", batch_norm=False)
    weights = [
        [m.weight.shape for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
        for model in (with_norm, without)
    ]
    assert weights[0] == weights[1]
