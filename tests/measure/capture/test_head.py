"""Finding the head, and what it takes and gives: one forward pass a batch and no copy too late."""

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from richbook.measure import RichbookError
from richbook.measure.capture import ForwardPasses
from richbook.measure.capture.hooks import hooked
from tests.measure.capture.networks import (
    ConvNet,
    Encoder,
    Hooked,
    Output,
    ResNet,
    Transformer,
    Wrapped,
    drawn,
    mlp,
    seeded,
)


def one(model, inputs, **settings):
    """The passes and the batch of a loader with one batch."""
    passes = ForwardPasses(model, [inputs], **settings)
    (batch,) = passes
    return passes, batch


def check(model, inputs, name, features, device, **settings):
    """Found under that name; Φ and f̂ are those computed by hand, bit by bit."""
    model = model.to(device)
    passes, batch = one(model, inputs, **settings)
    assert passes.head_name == name and passes.head is model.get_submodule(name)
    with torch.no_grad():
        wanted = features(inputs.to(device))
        outputs = passes.head(wanted)
    torch.testing.assert_close(batch.features, wanted, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(batch.outputs, outputs, rtol=1e-5, atol=1e-6)
    assert batch.features.device == outputs.device
    assert not batch.features.requires_grad and not batch.outputs.requires_grad


def test_sequential(device):
    model = seeded(mlp)
    check(model, drawn(10, 3), "4", lambda x: model[:4](x), device)


@pytest.mark.parametrize("make", [ConvNet, ResNet])
def test_convolutions(make, device):
    model = seeded(make)
    channels = 1 if make is ConvNet else 3
    name = "head" if make is ConvNet else "fc"
    check(model, drawn(10, channels, 6, 6), name, lambda x: model.body(x), device)


@pytest.mark.parametrize("kind", ["linear", "tied"])
def test_transformer(kind, device):
    model = seeded(lambda: Transformer(kind))
    tokens = torch.arange(20).reshape(4, 5) % 11
    check(model, tokens, "head", lambda x: model.body(x)[:, -1], device, position=-1)


def test_fused_encoder(device):
    model = seeded(Encoder)
    check(model, drawn(4, 5, 8), "head", lambda x: model.body(x), device)


WRAPS = {
    "tensor": lambda logits, features: logits,
    "tuple": lambda logits, features: (features, logits),
    "nested": lambda logits, features: ("text", [None, {"deep": (logits,)}], 3),
    "dict": lambda logits, features: {"hidden": features, "logits": logits},
    "dataclass": lambda logits, features: Output(logits, {"hidden": features}),
    "view": lambda logits, features: logits[:, :2],
    "reshaped": lambda logits, features: logits.reshape(-1, 2, 2),
    "detached": lambda logits, features: logits.detach(),
    "double": lambda logits, features: logits.double(),
    "softmax": lambda logits, features: logits.softmax(-1),
    "log softmax in a tuple": lambda logits, features: (features, logits.log_softmax(-1)),
    "softmax at a temperature": lambda logits, features: (logits / 0.1).softmax(-1),
    "sigmoid in half precision": lambda logits, features: logits.sigmoid().bfloat16(),
    "unit length": lambda logits, features: nn.functional.normalize(logits),
    "in place": lambda logits, features: logits.mul_(3.0),
    "features in place": lambda logits, features: (logits, features.zero_()),
    "both in place": lambda logits, features: (logits.relu_(), features.add_(1)),
}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_whatever_is_returned(wrap, device):
    model = seeded(lambda: Wrapped(wrap))
    check(model, drawn(10, 3), "classifier.0", model.body, device)


def test_one_output_squeezed(device):
    model = seeded(lambda: Hooked(lambda m, x: m.fc(x).sigmoid().squeeze(-1), fc=nn.Linear(3, 1)))
    check(model, drawn(10, 3), "fc", lambda x: x, device)


def test_probabilities_of_the_next_token(device):
    """A softmax at one of the positions that the head saw."""
    model = seeded(Transformer, device)
    asking = Hooked(lambda m, x: m.net(x)[:, -1].softmax(-1), net=model).eval()
    tokens = torch.arange(20).reshape(4, 5) % 11
    passes, batch = one(asking, tokens, position=-1)
    assert passes.head_name == "net.head"
    torch.testing.assert_close(batch.outputs, model(tokens.to(device))[:, -1].detach())


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: x[:, 0], lambda x: x.mean(1)])
def test_a_body_without_a_head(wrap):
    """Its last linear layer is as wide as what it returns, and is still not taken for the head."""
    model = seeded(lambda: Hooked(lambda m, x: wrap(m.net.body(x)), net=Transformer()))
    tokens = torch.arange(20).reshape(4, 5) % 11
    message = r"which no linear layer gave and the last one does not fit; .*'net.blocks.1.down'"
    with pytest.raises(RichbookError, match=f"^head: the model returns .*{message}"):
        one(model, tokens, position=0)
    _, batch = one(model, tokens, position=0, head="net.blocks.1.down")
    assert batch.features.shape == (4, 16)


def test_probabilities_that_are_not_numbers():
    """A network that diverged is measured all the same: the measures say what is wrong with it."""
    model = seeded(lambda: Wrapped(WRAPS["softmax"]))
    nn.init.constant_(model.classifier[0].weight, torch.nan)
    passes, batch = one(model, drawn(10, 3))
    assert passes.head_name == "classifier.0" and batch.outputs.isnan().all()


def test_the_head_is_not_the_last_linear_layer_called(device):
    """The head's output is found in what is returned although other layers are called after it."""

    def forward(m, x):
        logits = m.head(x)
        m.aside(m.between(torch.tanh(logits)))
        return logits[:, 1:]

    parts = {"head": nn.Linear(3, 4), "between": nn.Linear(4, 4), "aside": nn.Linear(4, 2)}
    model = seeded(lambda: Hooked(forward, **parts))
    check(model, drawn(10, 3), "head", lambda x: x, device)


@pytest.mark.parametrize("wrap", ["tensor", "softmax", "view"])
def test_the_search_costs_no_second_forward(wrap):
    model, calls = seeded(lambda: Wrapped(WRAPS[wrap])), []
    with hooked([model], before=lambda *_: calls.append(1)):
        list(ForwardPasses(model, [drawn(10, 3), drawn(7, 3)]))
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("wrap", "more"),
    [("features in place", 1), ("softmax at a temperature", 1), ("in place", 2)],
)
def test_what_the_search_costs_at_most(wrap, more):
    """A run to copy in time what is written to, and one to see what is made of the output."""
    model, calls = seeded(lambda: Wrapped(WRAPS[wrap])), []
    with hooked([model], before=lambda *_: calls.append(1)):
        list(ForwardPasses(model, [drawn(10, 3), drawn(7, 3)]))
    assert len(calls) == 2 + more


def test_the_search_lets_go_of_what_cannot_be_returned():
    """Of a long chain of layers only a few tensors are in memory at a time, as without hooks."""
    made, most = [], []

    def forward(m, x):
        for layer in m.layers:
            x = layer(x).tanh()
            made.append(StorageWeakRef(x.untyped_storage()))
            most.append(sum(not storage.expired() for storage in made))
        return m.head(x)

    layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(9))
    model = seeded(lambda: Hooked(forward, layers=layers, head=nn.Linear(6, 2)))
    passes, _ = one(model, drawn(5, 6))
    assert passes.head_name == "head"
    assert max(most) <= 3


def test_named_or_passed(device):
    model = seeded(lambda: Wrapped(WRAPS["dict"]), device)
    inputs = drawn(10, 3)
    _, found = one(model, inputs)
    for head in ("classifier.0", model.classifier[0]):
        passes, batch = one(model, inputs, head=head)
        assert passes.head_name == "classifier.0"
        assert torch.equal(batch.features, found.features)
        assert torch.equal(batch.outputs, found.outputs)


def test_any_module_of_one_tensor_can_be_the_head(device):
    """A head that normalises and writes into its own input first."""
    head = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(16, 4))
    model = seeded(lambda: Hooked(lambda m, x: m.top(m.body(x)), body=nn.Linear(3, 16), top=head))
    model = model.to(device)
    _, batch = one(model, drawn(10, 3), head="top")
    with torch.no_grad():
        features = model.body(drawn(10, 3).to(device))
    torch.testing.assert_close(batch.features, features)
    assert (batch.features < 0).any()
    torch.testing.assert_close(batch.outputs, model.top(features.clone()).detach())


def test_a_head_called_with_keywords():
    model = seeded(lambda: Hooked(lambda m, x: m.fc(input=x), fc=nn.Linear(3, 2)))
    for head in (None, "fc"):
        _, batch = one(model, drawn(10, 3), head=head)
        assert torch.equal(batch.features, drawn(10, 3))


def test_the_models_own_hooks_come_first():
    """What a hook of the user's makes of the output is the output."""
    model = seeded(mlp)
    model[4].register_forward_hook(lambda module, args, output: output * 2)
    model[4].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    for head in (None, "4"):
        _, batch = one(model, drawn(10, 3), head=head)
        with torch.no_grad():
            features = model[:4](drawn(10, 3)) + 1
            outputs = 2 * nn.functional.linear(features, model[4].weight, model[4].bias)
        torch.testing.assert_close(batch.features, features)
        torch.testing.assert_close(batch.outputs, outputs)


def test_a_subclass_and_a_parametrised_layer():
    class Scaled(nn.Linear):
        def forward(self, x, scale=2.0):
            return scale * super().forward(x)

    weight_normed = nn.utils.parametrizations.weight_norm(nn.Linear(16, 4))
    for head in (Scaled(16, 4), weight_normed):
        model = seeded(lambda head=head: nn.Sequential(nn.Linear(3, 16), nn.Tanh(), head))
        passes, batch = one(model, drawn(10, 3))
        assert passes.head_name == "2"
        torch.testing.assert_close(batch.outputs, model(drawn(10, 3)).detach())


def test_two_heads_are_named():
    model = seeded(
        lambda: Hooked(lambda m, x: (m.policy(x), m.value(x)),
                       policy=nn.Linear(3, 4), value=nn.Linear(3, 1))
    )  # fmt: skip
    candidates = r"'policy' \(10, 3\) -> \(10, 4\); 'value' \(10, 3\) -> \(10, 1\); pass head="
    with pytest.raises(RichbookError, match=f"^head: .*outputs of several.*{candidates}"):
        one(model, drawn(10, 3))
    passes, batch = one(model, drawn(10, 3), head="value")
    assert batch.outputs.shape == (10, 1)


def test_a_head_used_twice_is_an_error():
    def forward(m, x):
        return m.fc(x), m.fc(-x)

    model = seeded(lambda: Hooked(forward, fc=nn.Linear(3, 4)))
    for head in (None, "fc"):
        with pytest.raises(RichbookError, match="^head: 'fc' is called 2 times in one forward"):
            one(model, drawn(10, 3), head=head)


def test_no_linear_layer_that_fits():
    model = seeded(lambda: Transformer("free"))
    tokens = torch.arange(20).reshape(4, 5) % 11
    last = r"'blocks.1.up' \(4, 5, 8\) -> \(4, 5, 16\); 'blocks.1.down' .*F.linear"
    with pytest.raises(RichbookError, match=rf"^head: the model returns \(4, 5, 11\), .*{last}"):
        one(model, tokens, position=-1)


@pytest.mark.parametrize("returned", [None, "text", [], {"loss": 0.5}])
def test_no_tensor_is_returned(returned):
    model = seeded(lambda: Hooked(lambda m, x: (m.fc(x), returned)[1], fc=nn.Linear(3, 4)))
    with pytest.raises(RichbookError, match="^head: the model returns no tensor, which no linear"):
        one(model, drawn(10, 3))


def test_no_linear_layer_at_all():
    model = seeded(lambda: nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten()))
    told = 'calls no torch.nn.Linear; pass head="name".*F.linear, or a 1×1 convolution, is no .*'
    told += r"tied to an embedding go to richbook.d_lr_from_head\(features, weight\)"
    with pytest.raises(RichbookError, match=f"^head: the forward pass {told}"):
        one(model, drawn(10, 1, 2, 2))
    encoder = seeded(lambda: Encoder().encoder)
    with pytest.raises(RichbookError, match="no torch.nn.Linear outside of its nn.TransformerEnc"):
        one(encoder, drawn(4, 5, 8))


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("classifer.0", r"no module 'classifer.0'; did you mean 'classifier.0'"),
        ("zzz", r"no module 'zzz'; it has 'backbone', 'backbone.net', 'backbone.net.0'"),
        (nn.Linear(16, 4), "the Linear that was passed is not a part of the model"),
        (3, "expected the name of a module or a module of the model, got int"),
    ],
)
def test_a_head_that_is_not_there(head, message):
    with pytest.raises(RichbookError, match=f"^head: .*{message}"):
        ForwardPasses(seeded(lambda: Wrapped(WRAPS["dict"])), [], head=head)


def test_a_head_that_is_never_called():
    model = seeded(lambda: Hooked(lambda m, x: m.fc(x), fc=nn.Linear(3, 4), unused=nn.Linear(3, 4)))
    with pytest.raises(RichbookError, match="^head: 'unused' was never called: the forward pass "):
        one(model, drawn(10, 3), head="unused")


def test_the_projection_inside_an_attention_module():
    model = seeded(lambda: Transformer())
    tokens = torch.arange(20).reshape(4, 5) % 11
    name = "blocks.1.attention.out_proj"
    told = "nn.MultiheadAttention uses its weight.*choose .*'blocks.1.attention' itself"
    with pytest.raises(RichbookError, match=f"^head: '{name}' was never called: {told}"):
        one(model, tokens, head=name, position=-1)


def test_a_head_of_two_tensors_or_none():
    model = seeded(lambda: Hooked(lambda m, x: m.both(x, x), both=nn.Bilinear(3, 3, 2)))
    told = r"2 tensors of real numbers of shapes \(10, 3\), \(10, 3\), expected one"
    with pytest.raises(RichbookError, match=f"^head: 'both' is called with {told}"):
        one(model, drawn(10, 3), head="both")
    model = seeded(Transformer)
    with pytest.raises(RichbookError, match="^head: 'embedding' is called with 0 tensors"):
        one(model, torch.zeros(4, 5, dtype=torch.int64), head="embedding")


def test_a_model_that_writes_into_its_inputs():
    """Its first batch cannot be run again."""

    def forward(m, x):
        return m.fc(x.mul_(2)).exp_()

    model = seeded(lambda: Hooked(forward, fc=nn.Linear(3, 4)))
    with pytest.raises(RichbookError, match="^head: the model writes into its own inputs; pass"):
        one(model, drawn(10, 3))
    _, batch = one(model, drawn(10, 3), head="fc")
    assert torch.equal(batch.features, 2 * drawn(10, 3))


def test_single_samples_instead_of_batches():
    told = r"expected \(n, d\).*single samples instead of batches"
    with pytest.raises(RichbookError, match=rf"^the input of the head '4' .* \(16,\), {told}"):
        one(seeded(mlp), drawn(3))
