"""A transformer for the book's arithmetic: it reads a few tokens and answers at the last one."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

#: Spread of the initial embeddings.
EMBEDDING_SPREAD = 0.02


class Block(nn.Module):
    """Causal attention and a ReLU perceptron, each behind a layer norm and beside a skip
    connection. ``last_only`` computes the last position alone, which saves most of the last block's
    work and changes nothing about it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_perceptron = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * width, bias=False)
        self.mix = nn.Linear(width, width, bias=False)
        self.perceptron = nn.Sequential(
            nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
        )

    def forward(self, stream: Tensor, last_only: bool = False) -> Tensor:
        """(n, tokens, width) -> the same, or (n, 1, width)."""
        normed = self.norm_attention(stream)
        asking = normed[:, -1:] if last_only else normed
        key, value = self.key_value(normed).chunk(2, dim=-1)
        heads = (self._split(part) for part in (self.query(asking), key, value))
        attended = scaled_dot_product_attention(*heads, is_causal=not last_only)
        attended = attended.transpose(1, 2).flatten(2)  # (n, heads, t, w/heads) -> (n, t, w)
        stream = (stream[:, -1:] if last_only else stream) + self.mix(attended)
        return stream + self.perceptron(self.norm_perceptron(stream))

    def _split(self, values: Tensor) -> Tensor:
        """(n, tokens, width) -> (n, heads, tokens, width/heads)."""
        return values.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Transformer(nn.Module):
    """A causal transformer that answers at the last of ``length`` tokens.

    ``features(tokens)`` is Φ, the input of ``head``; the module is f̂.

    Args:
        vocabulary: how many tokens there are.
        length: tokens of an input.
        outputs: C.
        width, heads, depth: of the stream, of attention, blocks.
        block_scale: factor of the blocks' initial matrices, beside PyTorch's.
        final_norm: whether a layer norm stands between the last block and the head.
        seed: fixes the initial weights.

    Example:
        >>> network = Transformer(vocabulary=6, length=3, outputs=5, width=16, heads=2)
        >>> tokens = torch.tensor([[0, 1, 5], [4, 4, 5]])
        >>> network.features(tokens).shape, network(tokens).shape
        (torch.Size([2, 16]), torch.Size([2, 5]))
    """

    def __init__(
        self,
        vocabulary: int,
        length: int,
        outputs: int,
        width: int = 128,
        heads: int = 4,
        depth: int = 2,
        final_norm: bool = True,
        block_scale: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embedding = nn.Embedding(vocabulary, width)
            nn.init.normal_(self.embedding.weight, std=EMBEDDING_SPREAD)
            self.position = nn.Parameter(EMBEDDING_SPREAD * torch.randn(length, width))
            self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
            with torch.no_grad():
                for weight in self.blocks.parameters():
                    if weight.dim() == 2:
                        weight.mul_(block_scale)
            self.norm = nn.LayerNorm(width) if final_norm else nn.Identity()
            self.head = nn.Linear(width, outputs)

    def features(self, tokens: Tensor) -> Tensor:
        """Φ at the last token: (n, length) -> (n, width)."""
        stream = self.embedding(tokens) + self.position
        for block in self.blocks[:-1]:
            stream = block(stream)
        return self.norm(self.blocks[-1](stream, last_only=True)[:, -1])

    def forward(self, tokens: Tensor) -> Tensor:
        """f̂: (n, length) -> (n, outputs)."""
        return self.head(self.features(tokens))
