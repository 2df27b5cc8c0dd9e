"""Small networks of many shapes, each with its features and outputs computed by hand."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn


def drawn(*shape: int, seed: int = 0, device: str = "cpu") -> Tensor:
    """Normal numbers that do not depend on the global generator."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


def seeded(make, device: str = "cpu", seed: int = 0) -> nn.Module:
    """A module made from a seed, without moving the global generator, in eval mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().to(device).eval()


def mlp(inputs: int = 3, width: int = 16, outputs: int = 4) -> nn.Sequential:
    """Linear, ReLU in place, Linear, ReLU in place, Linear."""
    return nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(inplace=True),
        nn.Linear(width, width), nn.ReLU(inplace=True),
        nn.Linear(width, outputs),
    )  # fmt: skip


class ConvNet(nn.Module):
    """Two convolutions with batch norm, average pooling, dropout, a head. ``body(x)`` is Φ."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2, self.norm2 = nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.relu = nn.ReLU(inplace=True)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(6, 3)

    def body(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm1(self.conv1(x)))
        x = self.relu(self.norm2(self.conv2(x)))
        return self.dropout(x.mean((2, 3)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Block(nn.Module):
    """A residual block that adds in place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x
        return self.relu(out)


class ResNet(nn.Module):
    """A stem, two residual blocks, pooling, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.Sequential(Block(8), Block(8))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8, 5)

    def body(self, x: Tensor) -> Tensor:
        return self.pool(self.blocks(self.stem(x))).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x))


class TransformerBlock(nn.Module):
    """Attention and a feed-forward part with layer norm before each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.up, self.activation = nn.Linear(width, 2 * width), nn.GELU()
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm1(x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        return x + self.down(self.activation(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Two blocks over tokens; ``kind`` says how the head is made: "linear", "tied" or "free"."""

    def __init__(self, kind: str = "linear", tokens: int = 11, width: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(TransformerBlock(width) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.kind = kind
        if kind != "free":
            self.head = nn.Linear(width, tokens, bias=False)
        if kind == "tied":
            self.head.weight = self.embedding.weight

    def body(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def forward(self, tokens: Tensor) -> Tensor:
        features = self.body(tokens)
        if self.kind == "free":
            return nn.functional.linear(features, self.embedding.weight)
        return self.head(features)


class Encoder(nn.Module):
    """torch's own encoder, whose layers are fused in eval mode, with a head on the first token."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.1)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(8, 3)

    def body(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        return self.encoder(x, src_key_padding_mask=padding)[:, 0]

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        return self.head(self.body(x, padding))


@dataclasses.dataclass
class Output:
    """What some libraries return."""

    logits: Tensor
    extra: object = None


class Wrapped(nn.Module):
    """A body and a head; ``wrap`` makes what is returned from (logits, features)."""

    def __init__(self, wrap) -> None:
        super().__init__()
        self.backbone = nn.ModuleDict({"net": nn.Sequential(nn.Linear(3, 16), nn.Tanh())})
        self.classifier = nn.ModuleList([nn.Linear(16, 4)])
        self.wrap = wrap

    def body(self, x: Tensor) -> Tensor:
        return self.backbone["net"](x)

    def forward(self, x: Tensor) -> object:
        features = self.body(x)
        return self.wrap(self.classifier[0](features), features)


class Hooked(nn.Module):
    """Any function of the modules it is given; they are its attributes."""

    def __init__(self, function, **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)
        self.function = function

    def forward(self, *args: object, **kwargs: object) -> object:
        return self.function(self, *args, **kwargs)
