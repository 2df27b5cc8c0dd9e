"""Outputs of chosen layers: copied in time, named by call, and the same in every batch."""

import pytest
import torch
from torch import nn

from richbook.measure import RichbookError
from richbook.measure.capture import ForwardPasses
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


def layers_of(model, inputs, layers, **settings):
    """The layers of the only batch, as recorded."""
    (batch,) = ForwardPasses(model, [inputs], layers=layers, **settings)
    return batch.layers


def names_of_all(model, inputs, **settings):
    """Which rows "all" gives."""
    return list(layers_of(model, inputs, "all", **settings))


def test_outputs_before_the_activation_that_writes_into_them(device):
    model = seeded(mlp, device)
    recorded = layers_of(model, drawn(10, 3), ["0", "1", "2"])
    with torch.no_grad():
        x = drawn(10, 3).to(device)
        first = nn.functional.linear(x, model[0].weight, model[0].bias)
        wanted = {"0": first, "1": first.relu(), "2": model[2](first.relu())}
    assert list(recorded) == ["0", "1", "2"]
    for name, values in wanted.items():
        torch.testing.assert_close(recorded[name], values)
        assert recorded[name].device == values.device and not recorded[name].requires_grad
    assert (recorded["0"] < 0).any() and (recorded["2"] < 0).any()


def test_no_layers():
    for layers in (None, [], ()):
        assert layers_of(seeded(mlp), drawn(10, 3), layers) == {}


def test_one_name_a_module_and_the_head_itself():
    model = seeded(mlp)
    assert list(layers_of(model, drawn(10, 3), "2")) == ["2"]
    assert list(layers_of(model, drawn(10, 3), [model[0], "2"])) == ["0", "2"]
    (batch,) = ForwardPasses(model, [drawn(10, 3)], layers=["4", "0"])
    assert list(batch.layers) == ["0", "4"]  # in the order of the calls
    assert torch.equal(batch.layers["4"], batch.outputs)


def test_a_module_used_three_times(device):
    def forward(m, x):
        for _ in range(3):
            x = m.activation(m.mix(x))
        return m.head(x)

    parts = {"mix": nn.Linear(4, 4), "activation": nn.ReLU(inplace=True), "head": nn.Linear(4, 2)}
    model = seeded(lambda: Hooked(forward, **parts), device)
    recorded = layers_of(model, drawn(10, 4), ["mix", "activation"])
    assert list(recorded) == ["mix", "activation", "mix#2", "activation#2", "mix#3", "activation#3"]
    with torch.no_grad():
        x = drawn(10, 4).to(device)
        for suffix in ("", "#2", "#3"):
            x = model.mix(x)
            torch.testing.assert_close(recorded[f"mix{suffix}"], x)
            x = x.relu()
            torch.testing.assert_close(recorded[f"activation{suffix}"], x)
    assert names_of_all(model, drawn(10, 4)) == list(recorded)


@pytest.mark.parametrize("layers", [["act1"], ["act2"], ["act1", "act2"], ["body.1", "act2"]])
def test_one_activation_under_several_names(layers):
    """It gives a row a call, under the first of the names that were asked for."""
    relu = nn.ReLU()
    parts = {"body": nn.Sequential(nn.Linear(3, 5), relu), "act1": relu, "fc": nn.Linear(5, 5),
             "act2": relu, "head": nn.Linear(5, 2)}  # fmt: skip
    model = seeded(lambda: Hooked(lambda m, x: m.head(m.act2(m.fc(m.body(x)))), **parts))
    recorded = layers_of(model, drawn(10, 3), layers)
    assert list(recorded) == [layers[0], f"{layers[0]}#2"]
    with torch.no_grad():
        first = model.body(drawn(10, 3))
        torch.testing.assert_close(recorded[layers[0]], first)
        torch.testing.assert_close(recorded[f"{layers[0]}#2"], model.fc(first).relu())


def test_all_layers_of_a_multilayer_perceptron():
    model = seeded(lambda: nn.Sequential(*mlp(), nn.Softmax(dim=-1)))
    assert names_of_all(model, drawn(10, 3)) == ["0", "1", "2", "3"]
    assert names_of_all(model, drawn(10, 3), head="2") == ["0", "1"]


def test_all_layers_of_convolutions(device):
    model = seeded(ConvNet, device)
    recorded = layers_of(model, drawn(10, 1, 6, 6), "all")
    assert list(recorded) == ["conv1", "norm1", "relu", "conv2", "norm2", "relu#2"]
    assert [tuple(rows.shape) for rows in recorded.values()] == [(10, 4)] * 3 + [(10, 6)] * 3
    with torch.no_grad():
        maps = model.conv1(drawn(10, 1, 6, 6).to(device))
    torch.testing.assert_close(recorded["conv1"], maps.mean((2, 3)))
    block = ["conv1", "bn1", "relu", "conv2", "bn2", "relu#2"]
    wanted = ["stem", *(f"blocks.{k}.{name}" for k in range(2) for name in block)]
    assert names_of_all(seeded(ResNet), drawn(10, 3, 6, 6)) == wanted


def test_all_layers_of_a_transformer():
    model = seeded(Transformer)
    tokens = torch.arange(20).reshape(4, 5) % 11
    block = ["norm1", "attention", "norm2", "up", "activation", "down"]
    wanted = ["embedding", *(f"blocks.{k}.{name}" for k in range(2) for name in block), "norm"]
    assert names_of_all(model, tokens, position=-1) == wanted
    recorded = layers_of(model, tokens, "all", position="all")
    assert {len(rows) for rows in recorded.values()} == {20}


def test_all_leaves_out_what_has_other_rows():
    """A table of positions is no function of the samples; nor is what computes a weight."""

    def forward(m, x):
        x = m.embedding(x) + m.positions(torch.arange(x.shape[1]))
        return m.head(m.normed(x[:, -1]))

    def make():
        normed = nn.utils.parametrizations.weight_norm(nn.Linear(8, 4, bias=False))
        parts = {"embedding": nn.Embedding(11, 8), "positions": nn.Embedding(5, 8)}
        return Hooked(forward, **parts, normed=normed, head=nn.Linear(4, 3))

    tokens = torch.arange(20).reshape(4, 5) % 11
    assert names_of_all(seeded(make), tokens, position=0) == ["embedding", "normed"]


def test_layers_inside_the_fused_encoder(device):
    """In eval mode torch fuses the layer and calls none of its parts, unless it is told not to."""
    model = seeded(Encoder, device)
    before = torch.backends.mha.get_fastpath_enabled()
    padding = torch.zeros(4, 5, dtype=torch.bool)
    padding[1, 3:] = True
    for batch in ({"x": drawn(4, 5, 8)}, {"x": drawn(4, 5, 8), "padding": padding}):
        names = ["encoder.layers.0.linear1", "encoder.layers.1.norm2", "encoder.layers.1"]
        passes = ForwardPasses(model, [batch, batch], layers=names, position=0)
        first, second = passes
        assert list(first.layers) == names
        for name in names:
            assert torch.equal(first.layers[name], second.layers[name])
        torch.testing.assert_close(first.layers["encoder.layers.1.norm2"], first.features)
        torch.testing.assert_close(first.layers["encoder.layers.1"], first.features)
    assert torch.backends.mha.get_fastpath_enabled() == before


def test_modules_that_return_tuples(device):
    def forward(m, x):
        return m.head(m.memory(m.attention(x, x, x)[0])[0][:, -1])

    def make():
        attention = nn.MultiheadAttention(8, 2, batch_first=True)
        memory = nn.LSTM(8, 6, batch_first=True)
        return Hooked(forward, attention=attention, memory=memory, head=nn.Linear(6, 3))

    model = seeded(make, device)
    (batch,) = ForwardPasses(
        model, [drawn(4, 5, 8)], layers=["attention", "memory"], position=-1
    )
    torch.testing.assert_close(batch.layers["memory"], batch.features)
    with torch.no_grad():
        x = drawn(4, 5, 8).to(device)
        wanted = model.attention(x, x, x)[0][:, -1]
    torch.testing.assert_close(batch.layers["attention"], wanted, rtol=1e-4, atol=1e-5)


def test_a_name_with_a_typo():
    with pytest.raises(RichbookError, match="^layers: .*no module 'cnv1'; did you mean 'conv1'"):
        ForwardPasses(seeded(ConvNet), [], layers=["cnv1"])
    with pytest.raises(RichbookError, match='^layers: expected None, "all" or a list .*got int'):
        ForwardPasses(seeded(ConvNet), [], layers=3)
    with pytest.raises(RichbookError, match="^layers: expected the name of a module or a module"):
        ForwardPasses(seeded(ConvNet), [], layers=[3])


def test_a_layer_that_is_never_reached():
    def forward(m, x):
        return m.head(m.used1(x) if x is not None else m.used2(x))

    parts = {"used1": nn.Linear(3, 4), "used2": nn.Linear(3, 4), "head": nn.Linear(4, 2)}
    model = seeded(lambda: Hooked(forward, **parts))
    message = r"^layers: 'used2' \(Linear\) was never called: .* it does call 'used1'"
    with pytest.raises(RichbookError, match=message):
        layers_of(model, drawn(10, 3), ["used1", "used2"])
    assert names_of_all(model, drawn(10, 3)) == ["used1"]
    tokens = torch.arange(20).reshape(4, 5) % 11
    with pytest.raises(RichbookError, match="'blocks' .*list of modules, which is never called"):
        layers_of(seeded(Transformer), tokens, ["blocks"], position=0)
    message = "'blocks.0.attention.out_proj' .*MultiheadAttention.*'blocks.0.attention' itself"
    with pytest.raises(RichbookError, match=f"^layers: {message}"):
        layers_of(seeded(Transformer), tokens, ["blocks.0.attention.out_proj"], position=0)


@pytest.mark.parametrize("layers", [["mix"], "all"])
def test_calls_that_change_from_batch_to_batch(layers):
    def forward(m, x):
        for _ in range(len(x)):
            x = m.mix(x)
        return m.head(x)

    model = seeded(lambda: Hooked(forward, mix=nn.Linear(3, 3), head=nn.Linear(3, 2)))
    for first, second in ((3, 2), (2, 3)):
        passes = ForwardPasses(model, [drawn(first, 3), drawn(second, 3)], layers=layers)
        message = f"'mix' is called {second} times in this batch and {first} times in the first"
        with pytest.raises(RichbookError, match=f"^layers: {message}"):
            list(passes)


def test_a_layer_that_gives_no_rows():
    parts = {"count": nn.Identity(), "body": nn.Linear(3, 4), "head": nn.Linear(4, 2)}
    for values, got in ((7, "int"), (torch.tensor(1.0), r"shape \(\)")):
        def forward(m, x, values=values):
            m.count(values)
            return m.head(m.body(x))

        model = seeded(lambda forward=forward: Hooked(forward, **parts))
        with pytest.raises(RichbookError, match=f"^layers: the output of 'count' is {got}, exp"):
            layers_of(model, drawn(10, 3), ["count"])


def test_a_layer_with_other_samples():
    def forward(m, x):
        return m.head(m.body(x).reshape(5, 2, 4).mean(1))

    model = seeded(lambda: Hooked(forward, body=nn.Linear(3, 4), head=nn.Linear(4, 2)))
    message = r"'body' gives 10 rows, \(10, 4\), and the head takes 5; .* batch first"
    with pytest.raises(RichbookError, match=f"^layers: {message}"):
        layers_of(model, drawn(10, 3), ["body"])
    assert names_of_all(model, drawn(10, 3)) == []
