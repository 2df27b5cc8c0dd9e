"""One number, five ways: the definition, d_lr, the metric, the head form and measure."""

import contextlib
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import richbook
from richbook.measure import d_lr, d_lr_from_head
from tests.measure import reference

EXACT = {torch.float64: 1e-8, torch.float32: 1e-5}


class Network(nn.Module):
    """A body of one hidden layer with an offset in its features, and a head whose outputs may sum
    to zero."""

    def __init__(self, width, outputs, zero_sum, dtype, generator):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.LayerNorm(width))
        self.head = nn.Linear(width, outputs)
        self.to(dtype)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
            if zero_sum:
                for part in self.head.parameters():
                    part -= part.mean(0)

    def forward(self, inputs):
        return {"logits": self.head(self.body(inputs))}


def case(number):
    """Sizes, dtype and block of a random case; the rank is known because the case was made so."""
    rng = np.random.default_rng(number)
    count, width = int(rng.integers(60, 400)), int(rng.integers(3, 40))
    outputs = int(rng.integers(2, 12)) if number % 4 else width + int(rng.integers(0, 5))
    zero_sum = number % 3 == 0
    dtype = [torch.float64, torch.float32][number % 2]
    block = int(rng.integers(1, 70))
    rank = outputs - 1 if zero_sum else outputs
    # Layer norm leaves width − 1 feature directions and the constant, once its bias is in.
    return count, width, outputs, zero_sum, dtype, block, min(rank, width)


@pytest.mark.parametrize("number", range(20))
def test_all_ways_agree(number):
    count, width, outputs, zero_sum, dtype, block, rank = case(number)
    generator = torch.Generator().manual_seed(number)
    network = Network(width, outputs, zero_sum, dtype, generator)
    inputs = torch.randn(count, 6, generator=generator).to(dtype)
    with torch.no_grad():
        features = network.body(inputs)
        values = network.head(features)
    metric = richbook.LowRankMeasure()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", richbook.DegenerateWarning)
        for start in range(0, count, block):
            rows = slice(start, start + block)
            metric.update(features[rows], values[rows])
        found = {
            "d_lr": d_lr(features, values),
            "metric": metric.compute(),
            "head": d_lr_from_head(features, network.head.weight, network.head.bias),
            "measure": richbook.measure(network, list(inputs.split(block))).d_lr,
        }
    expected = reference.d_lr(features, values, rank)
    assert {name: float(value) for name, value in found.items()} == pytest.approx(
        dict.fromkeys(found, expected), abs=EXACT[dtype]
    )


@contextlib.contextmanager
def nothing():
    yield


@pytest.mark.parametrize("around", [nothing, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_bf16_weights_and_autocast(around):
    """The features and outputs that the network really had, measured as bfloat16 deserves."""
    generator = torch.Generator().manual_seed(0)
    network = Network(16, 5, True, torch.float32, generator)
    if around is nothing:
        network = network.bfloat16()
    inputs = torch.randn(400, 6, generator=generator)
    inputs = inputs.bfloat16() if around is nothing else inputs
    with around():
        report = richbook.measure(network, list(inputs.split(64)))
        features = network.body(inputs)
        values = network.head(features)
    assert report.precision == "bfloat16" and report.rank == 4
    expected = reference.d_lr(features.float(), values.float(), rank=4)
    assert report.d_lr == pytest.approx(expected, abs=5e-3)
    assert report.d_lr == pytest.approx(float(d_lr(features, values)), abs=1e-5)
