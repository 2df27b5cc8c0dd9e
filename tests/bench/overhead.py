"""What ``measure`` costs beside the forward passes that it cannot avoid."""

import itertools

import torch
from torch import nn

from richbook.measure import measure
from tests.bench.table import best_times, show

SAMPLES, BATCH = 2000, 100
TARGET = 1.05


class Block(nn.Module):
    """A residual block of two 3×3 convolutions with batch norm."""

    def __init__(self, inside, outside, stride):
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outside) for _ in range(2))
        self.short = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, inputs):
        values = torch.relu(self.norms[0](self.first(inputs)))
        return torch.relu(self.norms[1](self.second(values)) + self.short(inputs))


def resnet():
    """ResNet-20 for 32×32 images: three stages of three blocks, widths 16, 32 and 64."""
    widths = [3, 16, 16, 16, 32, 32, 32, 64, 64, 64]
    sizes = [(a, b, 2 if b == 2 * a else 1) for a, b in itertools.pairwise(widths)]
    blocks = [Block(*size) for size in sizes]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Transformer(nn.Module):
    """Two layers of width 128 on 64 tokens, with a head on the last one."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 512, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(128, 10)

    def forward(self, tokens):
        return self.head(self.layers(self.embed(tokens))[:, -1])


def problems():
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(SAMPLES, 3, 32, 32, generator=generator)
    tokens = torch.randint(64, (SAMPLES, 64), generator=generator)
    labels = torch.randint(10, (SAMPLES,), generator=generator)
    for name, model, inputs in (
        ("ResNet-20, p = 64", resnet(), images),
        ("transformer, 2 layers, p = 128", Transformer(), tokens),
    ):
        yield name, model.eval(), list(zip(inputs.split(BATCH), labels.split(BATCH), strict=True))


def forward_alone(model, loader):
    with torch.no_grad():
        for inputs, _ in loader:
            model(inputs)


def run(thread_counts):
    torch.manual_seed(0)
    rows = []
    for name, model, loader in problems():
        for threads in thread_counts:
            torch.set_num_threads(threads)
            calls = [
                lambda model=model, loader=loader: forward_alone(model, loader),
                lambda model=model, loader=loader: measure(model, loader),
                lambda model=model, loader=loader: measure(
                    model, loader, layers="all", position=-1
                ),
            ]
            plain, measured, deep = best_times(calls, patience=20)
            ratios = [f"{value / plain:.3f}×" for value in (measured, deep)]
            rows.append([name, str(threads), f"{plain:.2f} s", *ratios])
    show(
        f"measure against the forward passes alone, n = {SAMPLES}, batches of {BATCH}",
        ["", "threads", "forward", "measure", "with all layers"],
        rows,
        [
            f"Target for measure: at most {TARGET}×. It includes the spectrum, the interval and",
            "NC1 to NC4. Best of several, taken in turns.",
        ],
    )
