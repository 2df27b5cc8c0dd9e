"""Layers that "all" leaves out because they are given nothing of the batch."""

import pytest
import torch
from torch import nn

from richbook.measure.capture import ForwardPasses
from tests.measure.capture.networks import Hooked, drawn, seeded

COUNT = 6  # of samples and of positions
TOKENS = torch.arange(COUNT * COUNT).reshape(COUNT, COUNT) * 7 % 11


def names(forward, batch, position=-1, samples=COUNT, **parts):
    """What "all" lists."""
    model = seeded(lambda: Hooked(forward, **parts))
    (found,) = ForwardPasses(model, [batch], layers="all", position=position)
    assert len(found.features) == samples
    return list(found.layers)


def embeddings(**more: nn.Module) -> dict[str, nn.Module]:
    """Of words and places, and a norm and a head."""
    return {"words": nn.Embedding(11, 8), "places": nn.Embedding(32, 8), **more,
            "norm": nn.LayerNorm(8), "head": nn.Linear(8, 3)}  # fmt: skip


PLACES = {
    "arange": lambda x: torch.arange(x.shape[1], device=x.device),
    "from a number": lambda x: torch.arange(3, 3 + x.shape[1], device=x.device),
    "in a row": lambda x: torch.arange(x.shape[1], device=x.device)[None],
    "for each sample": lambda x: torch.arange(x.shape[1], device=x.device).expand(x.shape),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("pooled", [False, True])
def test_embeddings_of_positions(place, pooled, device):
    def forward(m, x):
        x = m.norm(m.words(x) + m.places(place(x)))
        return m.head(x.mean(1) if pooled else x)

    model = seeded(lambda: Hooked(forward, **embeddings()), device)
    (found,) = ForwardPasses(model, [TOKENS], layers="all", position=-1)
    assert list(found.layers) == ["words", "norm"]
    (found,) = ForwardPasses(model, [TOKENS[:4]], layers="all", position=-1)
    assert list(found.layers) == ["words", "norm"]
    passes = ForwardPasses(model, [TOKENS[:1], TOKENS, TOKENS[:3]], layers="all", position=-1)
    assert [list(found.layers) for found in passes] == [["words", "norm"]] * 3


def test_a_layer_that_is_named_is_recorded_all_the_same():
    def forward(m, x):
        return m.head(m.norm(m.words(x) + m.places(torch.arange(COUNT))))

    model = seeded(lambda: Hooked(forward, **embeddings()))
    (found,) = ForwardPasses(model, [TOKENS], layers=["places"], position=-1)
    assert torch.equal(found.layers["places"], model.places.weight[:COUNT].detach())


def test_what_is_made_of_positions():
    """A small network over places, and one over a table that is a buffer."""

    def forward(m, x):
        place = m.relu(m.first(m.places(torch.arange(COUNT))))
        return m.head(m.norm(m.words(x) + m.second(place) + m.third(m.norm.table)))

    more = {"first": nn.Linear(8, 8), "relu": nn.ReLU(), "second": nn.Linear(8, 8),
            "third": nn.Linear(8, 8)}  # fmt: skip
    parts = embeddings(**more)
    parts["norm"].register_buffer("table", drawn(COUNT, 8))
    assert names(forward, TOKENS, **parts) == ["words", "norm"]


def test_distances_between_positions():
    def forward(m, x):
        place = torch.arange(COUNT)
        bias = m.bias((place - place[:, None]).clamp(-2, 2) + 2)  # (T, T, 1)
        return m.head(m.norm(m.words(x) + bias.mean(1)))

    assert names(forward, TOKENS, **embeddings(bias=nn.Embedding(5, 1))) == ["words", "norm"]


def test_integers_of_the_batch_stay():
    """A class for each sample, also where the classes count up; a column; a hash of one."""

    def forward(m, x, kind):
        made = m.words(x) + m.kind(kind)[:, None] + m.column(x[:, 2].float().long())[:, None]
        return m.head(m.norm(made + m.hash((x[:, 1] * 5 + 3) % 9)[:, None]))

    parts = embeddings(kind=nn.Embedding(9, 8), column=nn.Embedding(11, 8), hash=nn.Embedding(9, 8))
    del parts["places"]
    tokens = TOKENS.clone()
    tokens[:, 2] = torch.arange(2, 2 + COUNT)
    wanted = ["words", "kind", "column", "hash", "norm"]
    for kind in (torch.arange(COUNT), torch.tensor([3, 1, 3, 0, 2, 5])):
        batch = (tokens, kind, torch.arange(COUNT))
        assert names(forward, batch, **parts) == wanted
        counting = (torch.arange(COUNT)[None] + torch.arange(COUNT)[:, None], *batch[1:])
        assert names(forward, counting, **parts) == wanted


def test_a_buffer_that_the_batch_is_written_into():
    class Remembering(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("memory", torch.zeros(COUNT, 3))
            self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            self.memory.copy_(x)
            return self.head(self.body(self.memory))

    (found,) = ForwardPasses(seeded(Remembering), [drawn(COUNT, 3)], layers="all")
    assert list(found.layers) == ["body"]
