"""Attention and shared weights, which multiply by F.linear, against modules that do the same."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional

from richbook.measure.alignment import Balance, alignment, layer_moments
from richbook.measure.errors import RichbookError
from tests.measure.alignment.one_at_a_time import (
    distance,
    rows_one_at_a_time,
    second_moments,
)
from tests.measure.capture.networks import Encoder, Hooked, Transformer, drawn, seeded

cross_entropy = functional.cross_entropy
MATRICES = ("H_a", "H_b", "G_a", "G_b")
WIDTH, HEADS = 8, 2


class Explicit(nn.Module):
    """Attention by modules: ``parts`` project queries, keys and values, alone or together."""

    def __init__(self, attention, parts):
        super().__init__()
        self.parts, self.batch_first = parts, attention.batch_first
        packed = attention.in_proj_weight is not None
        weights = (
            attention.in_proj_weight.split([len(part) * WIDTH for part in parts])
            if packed
            else [attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight]
        )
        biases = attention.in_proj_bias.split([len(part) * WIDTH for part in parts])
        for part, weight, bias in zip(parts, weights, biases, strict=True):
            self.add_module(part, linear(weight, bias))
        self.out = linear(attention.out_proj.weight, attention.out_proj.bias)

    def forward(self, query, key, value, **settings):
        given = {"q": query, "k": key, "v": value}
        found = {}
        for part in self.parts:
            rows = getattr(self, part)(given[part[0]])
            found |= dict(zip(part, rows.chunk(len(part), -1), strict=True))
        heads = [self._heads(found[name]) for name in "qkv"]  # (n, heads, tokens, width)
        mixed = functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        return self.out(mixed if self.batch_first else mixed.transpose(0, 1)), None

    def _heads(self, values):
        values = values if self.batch_first else values.transpose(0, 1)
        return values.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def linear(weight, bias):
    made = nn.Linear(weight.shape[1], weight.shape[0])
    made.weight.data, made.bias.data = weight.detach().clone(), bias.detach().clone()
    return made


SELF, CROSS, ALL = ("qkv",), ("q", "kv"), ("q", "k", "v")
NAMES = {
    SELF: ["in_proj_weight"],
    CROSS: ["in_proj_weight[0:8]", "in_proj_weight[8:24]"],
    ALL: ["in_proj_weight[0:8]", "in_proj_weight[8:16]", "in_proj_weight[16:24]"],
}


def attending(kind, batch_first=True, sizes=None):
    """A network around an attention, and the same around its modules."""

    def forward(self, x):
        x = torch.tanh(self.first(x))
        other = x.flip(1)
        query, key, value = {SELF: (x, x, x), CROSS: (x, other, other), ALL: (x, other, x * 2)}[
            kind
        ]
        if sizes:
            key, value = key[..., : sizes["kdim"]], value[..., : sizes["vdim"]]
        axes = (query, key, value)
        if not batch_first:
            swapped = {id(a): a.transpose(0, 1) for a in axes}
            axes = [swapped[id(a)] for a in axes]
        mixed = self.attention(*axes, need_weights=False)[0]
        mixed = mixed if batch_first else mixed.transpose(0, 1)
        return self.head((x + mixed)[:, 0])

    def make():
        attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first, **(sizes or {}))
        nn.init.normal_(attention.in_proj_bias)
        parts = {"first": nn.Linear(3, WIDTH), "head": nn.Linear(WIDTH, 3)}
        return Hooked(forward, **parts, attention=attention)

    model = seeded(make)
    modules = Hooked(
        forward,
        first=model.first,
        head=model.head,
        attention=Explicit(model.attention, kind),
    )
    return model, modules


def same(found, expected, names):
    for name, other in names.items():
        assert found[name].count == expected[other].count
        for matrix in MATRICES:
            assert distance(getattr(found[name], matrix), getattr(expected[other], matrix)) < 1e-5


@pytest.mark.parametrize("kind", NAMES, ids="-".join)
@pytest.mark.parametrize("batch_first", [True, False])
def test_attention_equals_its_modules(kind, batch_first):
    model, modules = attending(kind, batch_first)
    loader = list(zip(drawn(17, 5, 3).split(6), (torch.arange(17) % 3).split(6), strict=True))
    found = layer_moments(model, loader, cross_entropy)
    expected = layer_moments(modules, loader, cross_entropy)
    names = dict(zip([f"attention.{n}" for n in NAMES[kind]],
                     [f"attention.{part}" for part in kind], strict=True))  # fmt: skip
    names |= {"attention.out_proj": "attention.out", "first": "first", "head": "head"}
    assert set(found) == set(names)
    same(found, expected, names)
    for name, other in names.items():
        assert torch.equal(found[name].weight, expected[other].weight)


def test_attention_equals_one_sample_at_a_time():
    model, modules = attending(SELF)
    inputs, targets = drawn(9, 4, 3), torch.arange(9) % 3
    found = layer_moments(model, [(inputs, targets)], cross_entropy)
    every = ["first", "attention.qkv", "attention.out", "head"]
    rows = rows_one_at_a_time(modules, inputs, targets, cross_entropy, every)
    names = ["first", "attention.in_proj_weight", "attention.out_proj", "head"]
    for name, other in zip(names, every, strict=True):
        moments = second_moments(rows[other])
        for matrix in MATRICES:
            assert distance(getattr(found[name], matrix), moments[matrix]) < 2e-5


def test_keys_and_values_of_other_widths():
    model, modules = attending(ALL, sizes={"kdim": 5, "vdim": 6})
    loader = [(drawn(11, 5, 3), torch.arange(11) % 3)]
    names = {f"attention.{part}_proj_weight": f"attention.{part}" for part in "qkv"}
    found = layer_moments(model, loader, cross_entropy)
    same(found, layer_moments(modules, loader, cross_entropy), names)


@pytest.mark.parametrize("tokens, batch_first", [(4, True), (4, False), (40, True)])
def test_samples_are_kept_together_where_tokens_come_first(tokens, batch_first):
    """Also where there are as many tokens as samples: groups of an interval are of samples."""
    model, modules = attending(SELF, batch_first)
    loader = [(drawn(40, tokens, 3), torch.arange(40) % 3)] * 2
    settings = {"groups": True, "seed": 3}
    found = layer_moments(model, loader, cross_entropy, **settings)
    expected = layer_moments(modules, loader, cross_entropy, **settings)
    pairs = {"in_proj_weight": "qkv", "out_proj": "out"}
    for name, other in pairs.items():
        parts = zip(
            found[f"attention.{name}"].groups, expected[f"attention.{other}"].groups, strict=True
        )
        for one, two in parts:
            assert one.count == two.count
            assert distance(one.H_a, two.H_a) < 1e-5 and distance(one.G_b, two.G_b) < 1e-4


@pytest.mark.parametrize("count, tokens", [(6, 5), (5, 5)])
def test_labels_that_the_loss_ignores(count, tokens):
    """Tokens without a label are left out, though an attention has its tokens first."""

    def forward(self, x):
        x = self.inner.first(x)
        return self.inner.head(x + self.inner.attention(x, x, x, need_weights=False)[0])

    model, modules = (Hooked(forward, inner=network) for network in attending(SELF))
    labels = torch.arange(count * tokens).reshape(count, tokens) % 3
    labels[0, 1:] = labels[2, 0] = labels[4, 3] = -100
    loss = lambda outputs, targets: cross_entropy(outputs.flatten(0, 1), targets.flatten())  # noqa: E731
    loader = [(drawn(count, tokens, 3), labels)]
    found = layer_moments(model, loader, loss)
    expected = layer_moments(modules, loader, loss)
    pairs = {"in_proj_weight": "qkv", "out_proj": "out"}
    same(
        found, expected, {f"inner.attention.{a}": f"inner.attention.{b}" for a, b in pairs.items()}
    )
    assert found["inner.attention.out_proj"].count == int((labels >= 0).sum())


def test_a_head_that_multiplies_by_the_embedding():
    """The same as a head module with a tied weight."""
    free, tied = seeded(lambda: Transformer("free")), seeded(lambda: Transformer("tied"))
    tied.load_state_dict(free.state_dict(), strict=False)
    tokens = torch.arange(60).reshape(12, 5) % 11
    loss = lambda outputs, targets: cross_entropy(outputs.flatten(0, 1), targets.flatten())  # noqa: E731
    found = layer_moments(free, [(tokens, tokens.flip(1))], loss)
    expected = layer_moments(tied, [(tokens, tokens.flip(1))], loss)
    assert "embedding.weight" not in expected  # once only, as the module
    same(found, expected, {"embedding.weight": "head"})


@pytest.mark.parametrize("wanted, names", [
    ("encoder.layers.0.self_attn", ["in_proj_weight", "out_proj"]),
    ("encoder.layers.0.self_attn.in_proj_weight", ["in_proj_weight"]),
    ("encoder.layers.0.self_attn.out_proj", ["out_proj"]),
])  # fmt: skip
def test_parts_of_an_attention_by_name(wanted, names):
    model, loader = seeded(Encoder), [(drawn(13, 4, 8), torch.arange(13) % 3)]
    found = layer_moments(model, loader, cross_entropy, wanted)
    assert list(found) == [f"encoder.layers.0.self_attn.{name}" for name in names]
    every = layer_moments(model, loader, cross_entropy)
    same(found, every, {name: name for name in found})


def test_a_parameter_that_is_not_multiplied_by():
    model = seeded(Transformer)
    tokens = torch.arange(60).reshape(12, 5) % 11
    loss = lambda outputs, targets: cross_entropy(outputs.flatten(0, 1), targets.flatten())  # noqa: E731
    with pytest.raises(RichbookError, match="'embedding.weight' was never called: the forward"):
        layer_moments(model, [(tokens, tokens)], loss, "embedding.weight")


def test_alignment_of_an_encoder_has_intervals_and_leaves_linear_alone():
    before = functional.linear
    model, loader = seeded(Encoder), [(drawn(40, 4, 8), torch.arange(40) % 3)]
    table = alignment(model, loader, cross_entropy)
    relation = table["encoder.layers.1.self_attn.in_proj_weight"].backward.GWA
    assert relation.low < relation.value < relation.high
    assert functional.linear is before
    with pytest.raises(ZeroDivisionError):
        layer_moments(model, loader, lambda outputs, targets: outputs.sum() / 0 * (1 / 0))
    assert functional.linear is before


def test_a_frozen_attention():
    model, modules = attending(CROSS)
    loader = [(drawn(17, 5, 3), torch.arange(17) % 3)]
    expected = layer_moments(modules, loader, cross_entropy)
    found = layer_moments(model.requires_grad_(False), loader, cross_entropy)
    names = dict(zip(NAMES[CROSS], CROSS, strict=True)) | {"out_proj": "out"}
    same(found, expected, {f"attention.{a}": f"attention.{b}" for a, b in names.items()})


def test_an_attention_that_calls_its_output_projection_counts_once():
    """As where an adapter takes the place of one."""

    class Calling(nn.MultiheadAttention):
        def forward(self, query, key, value, **settings):
            return self.out_proj(functional.linear(query, self.in_proj_weight[:WIDTH])), None

    def forward(self, x):
        return self.head(self.attention(x, x, x)[0][:, 0])

    parts = {"attention": Calling(WIDTH, HEADS, batch_first=True), "head": nn.Linear(WIDTH, 3)}
    model = seeded(lambda: Hooked(forward, **parts))
    found = layer_moments(model, [(drawn(9, 4, WIDTH), torch.arange(9) % 3)], cross_entropy)
    names = ["attention.in_proj_weight[0:8]", "attention.out_proj", "head"]
    assert list(found) == names
    assert [layer.count for layer in found.values()] == [36, 36, 9]
    assert all(not name.endswith("#2") for name in itertools.chain(found))


def test_the_balance_leaves_products_without_a_module_out():
    """And says so where one is asked for."""

    def forward(self, x):
        return functional.linear(torch.tanh(self.first(x)), self.spare)

    model = seeded(lambda: Hooked(forward, first=nn.Linear(3, 5, bias=False)))
    model.spare = nn.Parameter(drawn(4, 5))
    inputs, targets = drawn(20, 3), torch.arange(20) % 4
    found = Balance(model, cross_entropy, 0.1, 0.01, 5)
    found.update(inputs, targets)
    assert list(found.result()) == ["first"]
    asked = Balance(model, cross_entropy, 0.1, 0.01, 5, layers=["spare"])
    with pytest.raises(RichbookError, match="'spare' cannot be balanced: no module multiplies"):
        asked.update(inputs, targets)
