"""Heads of every kind: what they really apply is what is measured."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

import richbook
from richbook.measure import RichbookError
from richbook.measure.network import accumulate
from richbook.measure.network.affine import affine_map

WIDTH = 12
pytestmark = pytest.mark.filterwarnings("ignore::richbook.measure.DegenerateWarning")


class Adapted(nn.Linear):
    """A linear layer whose forward adds a product of two thin matrices, as adapters do."""

    def __init__(self, inside, outside):
        super().__init__(inside, outside)
        self.down, self.up = nn.Linear(inside, 2, bias=False), nn.Linear(2, outside, bias=False)

    def forward(self, inputs):
        return super().forward(inputs) + 3 * self.up(self.down(inputs))


class Wrapped(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.base = nn.Linear(inside, outside)

    def forward(self, inputs):
        return 2 * self.base(inputs) + 1


class Cosine(nn.Linear):
    """Not affine: features are normalised first."""

    def forward(self, inputs):
        return functional.linear(
            functional.normalize(inputs, dim=1), functional.normalize(self.weight, dim=1)
        )


HEADS = {
    "plain": nn.Linear,
    "subclass": Adapted,
    "wrapper": Wrapped,
    "cosine": Cosine,
    "spectral norm": lambda a, b: parametrizations.spectral_norm(nn.Linear(a, b)),
    "weight norm": lambda a, b: parametrizations.weight_norm(nn.Linear(a, b)),
}


def network(kind, outputs):
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(6, WIDTH), nn.ReLU())
    return nn.Sequential(body, HEADS[kind](WIDTH, outputs))


def measured(model, labels=True, count=400):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, 6, generator=generator)
    outputs = model.eval()(inputs[:2]).shape[1]
    targets = torch.arange(count) % outputs
    loader = [(inputs, targets)] if labels else [inputs]
    with torch.no_grad():
        features = model[0](inputs)
        return richbook.measure(model, loader, head="1"), features, model[1](features), targets


@pytest.mark.parametrize("outputs", [5, WIDTH, WIDTH + 1, 40])
@pytest.mark.parametrize("kind", HEADS)
def test_the_outputs_are_those_of_the_head(kind, outputs):
    report, features, values, labels = measured(network(kind, outputs))
    expected = float(richbook.d_lr(features, values))
    assert report.d_lr == pytest.approx(expected, abs=1e-4)
    if outputs <= WIDTH + 1:
        nearest = torch.stack([features[labels == c].mean(0) for c in range(outputs)])
        disagree = torch.cdist(features, nearest).argmin(1) != values.argmax(1)
        assert float(report.collapse.nc4) == pytest.approx(float(disagree.float().mean()), abs=0.01)
        assert report.collapse.nc3.isnan() == (kind == "cosine")
    else:
        assert report.collapse is None
        assert any("classes form no simplex" in text for text in report.warnings)


def test_nc3_of_an_adapter_is_that_of_its_sum():
    model = network("subclass", 5)
    report, features, values, labels = measured(model)
    head = model[1]
    whole = (head.weight + 3 * head.up.weight @ head.down.weight).detach()
    expected = richbook.neural_collapse(features, labels, whole, head.bias.detach())
    assert float(report.collapse.nc3) == pytest.approx(float(expected.nc3), abs=1e-5)


def test_a_spectral_norm_is_not_moved_in_train_mode():
    model = network("spectral norm", 5).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    richbook.measure(model, [torch.randn(100, 6)])
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model[1].training


def test_too_many_outputs_of_a_head_that_is_not_affine(monkeypatch):
    monkeypatch.setattr(accumulate, "MOST_OUTPUTS", 30)
    with pytest.raises(RichbookError, match="head: Cosine is not affine in its 12 features"):
        measured(network("cosine", 40), labels=False)
    measured(network("wrapper", 40), labels=False)  # this one needs no such matrix


def test_bf16_and_autocast_heads_are_affine():
    model = network("plain", 40)
    inputs = torch.randn(200, 6)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        features = model[0](inputs)
        assert affine_map(model[1], features, model[1](features))[0] is not None
    half = model.bfloat16()
    with torch.no_grad():
        features = half[0](inputs.bfloat16())
        assert affine_map(half[1], features, half[1](features))[0] is not None


def test_what_is_not_affine():
    features = torch.randn(20, 3)
    bent = nn.Sequential(nn.Linear(3, 4), nn.Softplus())
    for head in (bent, nn.Conv2d(3, 4, 1)):
        assert affine_map(head, features, torch.rand(20, 4)) == (None, None)
