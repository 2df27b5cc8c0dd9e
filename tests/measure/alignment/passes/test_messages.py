"""What went wrong is named where it began: parameter, batch, target, layer or loss."""

import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

from richbook.measure import DegenerateWarning, RichbookError, alignment, layer_moments
from tests.measure.alignment.one_at_a_time import distance
from tests.measure.capture.networks import ConvNet, Encoder, Hooked, drawn, mlp, seeded
from tests.measure.capture.test_as_found import snapshot

cross_entropy = functional.cross_entropy


def data(count=13, classes=4):
    return drawn(count, 3), torch.arange(count) % classes


def spoiled(name, value=math.nan, make=mlp):
    """A network with one number of a parameter or buffer replaced."""
    model = seeded(make)
    found = dict(model.named_parameters()) | dict(model.named_buffers())
    found[name].detach().view(-1)[0] = value
    return model


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("measure", [layer_moments, alignment])
@pytest.mark.parametrize("name", ["0.weight", "2.weight", "2.bias", "4.weight", "4.bias"])
def test_a_parameter(name, measure, value):
    """A gradient brings nan to every layer, the first of which is not to blame."""
    model, kind = spoiled(name, value), "nan or an infinity"
    with pytest.raises(RichbookError, match=f"model: its parameter '{name}' contains {kind}"):
        measure(model, [data()], cross_entropy)


def test_a_buffer():
    model = spoiled("norm2.running_var", make=ConvNet)
    loader = [(drawn(13, 1, 6, 6), torch.arange(13) % 3)]
    with pytest.raises(RichbookError, match="model: its buffer 'norm2.running_var' contains nan"):
        layer_moments(model, loader, cross_entropy)


@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("make, shape", [(mlp, (3,)), (ConvNet, (1, 6, 6))])
def test_a_sample(make, shape, groups, device):
    inputs, targets = drawn(13, *shape), torch.arange(13) % 3
    spoiled = inputs.clone()
    spoiled[7] = torch.nan
    loader = [(inputs, targets), (spoiled, targets)]
    message = r"loader: the inputs of batch 1 contain nan, first in sample 7 \(1 of 13 do\)"
    with pytest.raises(RichbookError, match=message):
        layer_moments(seeded(make, device), loader, cross_entropy, groups=groups)


def test_a_target():
    inputs, targets = drawn(13, 3), torch.zeros(13, 4)
    targets[5, 2] = -math.inf
    targets[5, 1] = 1
    with pytest.raises(RichbookError, match="the targets of batch 0 contain an infinity, first in"):
        layer_moments(seeded(mlp), [(inputs, targets)], functional.mse_loss)


def test_numbers_that_overflow():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 4))
    for layer in (model[2], model[3]):
        layer.weight.detach().mul_(1e30)
    with pytest.raises(RichbookError, match="model: what it returns is not finite, although its"):
        layer_moments(model, [data()], cross_entropy)
    model.append(nn.Linear(4, 4))
    with pytest.raises(RichbookError, match="model: what the layer '4' takes is not finite"):
        layer_moments(model, [data()], cross_entropy)


def test_a_loss_that_is_not_finite():
    scaled = lambda outputs, targets: cross_entropy(outputs, targets) * math.inf  # noqa: E731
    with pytest.raises(RichbookError, match="loss: its value on batch 0 is inf, although"):
        layer_moments(seeded(mlp), [data()], scaled)


def test_a_gradient_that_is_not_finite():
    """The root of 0 is finite, its slope is not: it began behind the last layer."""
    rooted = lambda outputs, targets: (outputs - outputs.detach()).abs().sqrt().sum(1)  # noqa: E731
    with pytest.raises(RichbookError, match="loss: its gradient at the output of the layer '4'"):
        layer_moments(seeded(mlp), [data()], rooted)


def root(self, x):
    x = self.first(x)
    return self.last(self.second(x - x.detach()).abs().sqrt())


def test_a_gradient_that_is_not_finite_inside_the_network():
    parts = {"first": nn.Linear(3, 3), "second": nn.Linear(3, 3, bias=False)}
    model = seeded(lambda: Hooked(root, last=nn.Linear(3, 4), **parts))
    with pytest.raises(RichbookError, match="loss: its gradient at the output of the layer 'sec"):
        layer_moments(model, [data()], cross_entropy)


def test_a_mask_of_infinities_is_none_of_it():
    """Attention masks hold them, as buffers and as inputs; and a sum in half precision is finite
    sample by sample."""
    model = seeded(Encoder)
    model.register_buffer("mask", torch.full((4, 4), -math.inf).triu(1))
    padding = torch.zeros(13, 4)
    padding[:, 3] = -math.inf
    given = {"x": drawn(13, 4, 8), "padding": padding, "label": data()[1] % 3}
    assert layer_moments(model, [given], cross_entropy)
    model.head.bias.detach().fill_(math.inf)
    with pytest.raises(RichbookError, match="its parameter 'head.bias'"):
        layer_moments(model, [given], cross_entropy)


def test_the_model_is_as_it_was_after_each(device):
    model = seeded(mlp, device).train()
    before = snapshot(model)
    for loss in (lambda o, t: o.sum() * math.nan, lambda o, t: (o - o.detach()).abs().sqrt().sum()):
        with pytest.raises(RichbookError, match="^loss: its"):
            layer_moments(model, [data()], loss)
        assert snapshot(model) == before


@pytest.mark.parametrize("value", [
    lambda loss: (loss, {"accuracy": 1.0}), lambda loss: {"loss": loss},
])  # fmt: skip
def test_a_loss_that_returns_more(value):
    loss = lambda outputs, targets: value(cross_entropy(outputs, targets))  # noqa: E731
    with pytest.raises(RichbookError, match="loss: expected a tensor .*; pick the loss out of it"):
        layer_moments(seeded(mlp), [data()], loss)


@pytest.mark.parametrize("targets, loss", [
    (torch.ones(1, 4), functional.mse_loss), (torch.ones(1, 4), nn.L1Loss(reduction="none")),
    (torch.arange(8) % 4, cross_entropy), (torch.arange(26) % 4, cross_entropy),
])  # fmt: skip
def test_another_number_of_targets(targets, loss):
    """Also where the loss would broadcast, and the mean over samples pass for one sample's loss."""
    message = rf"targets: got {len(targets)} of them, .* inputs of shape \(13, 3\) and outputs"
    with pytest.raises(RichbookError, match=message):
        layer_moments(seeded(mlp), [(drawn(13, 3), targets)], loss)


def test_targets_by_token_are_as_many_as_they_look():
    """(n, T, C) against n·T labels: every token a sample."""
    model = seeded(mlp)
    loss = lambda outputs, targets: cross_entropy(outputs.flatten(0, 1), targets)  # noqa: E731
    inputs, targets = drawn(6, 5, 3), torch.arange(30) % 4
    found = layer_moments(model, [(inputs, targets)], loss)
    expected = layer_moments(model, [(inputs.flatten(0, 1), targets)], cross_entropy)
    assert found["0"].count == 30 and distance(found["0"].G_b, expected["0"].G_b) < 1e-5


def test_a_container_names_its_layers():
    model = nn.Sequential(seeded(mlp), nn.Tanh())
    with pytest.raises(RichbookError, match="'0' is of the class Sequential.* it holds '0.0', '0"):
        layer_moments(model, [data()], cross_entropy, "0")


def recurrent():
    def forward(self, x):
        return self.head(self.recurrent(x)[0][:, -1])

    return Hooked(forward, recurrent=nn.LSTM(3, 5, batch_first=True), head=nn.Linear(5, 4))


OTHERS = {
    "LSTM": (recurrent, (5, 3), "'recurrent' is left out: a LSTM multiplies inside"),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose1d(2, 3, 2), nn.Flatten(),
                                         nn.Linear(18, 4)),
                   (2, 5), "'0' is left out: a ConvTranspose1d adds up overlapping patches"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("measure", [layer_moments, alignment])
def test_matrices_that_cannot_be_seen_are_named(name, measure):
    make, shape, message = OTHERS[name]
    model, loader = seeded(make), [(drawn(13, *shape), torch.arange(13) % 3)] * 2
    with pytest.warns(DegenerateWarning, match=message) as caught:
        measure(model, loader, cross_entropy)
    about = [warning for warning in caught if "left out" in str(warning.message)]
    assert len(about) == 1 and about[0].filename == __file__
    layer = message.split("'")[1]
    with pytest.raises(RichbookError, match=f"layers: '{layer}' is of the class .*, which"):
        measure(model, loader, cross_entropy, layer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer_moments(model, loader, cross_entropy, _linear_of(model))


def _linear_of(model):
    return [m for m in model.modules() if type(m) is nn.Linear][-1:]


def test_too_few_samples_for_an_interval():
    with pytest.warns(DegenerateWarning, match="groups: of '0', '2', '4' not each of the 20 has"):
        found = alignment(seeded(mlp), [data(13)], cross_entropy, interval=True)
    assert math.isnan(found["0"].forward.GWA.low)
