"""No layer is taken for the head unless what is returned is made of its output alone."""

import pytest
import torch
from torch import nn

from richbook.measure import RichbookError
from richbook.measure.capture import ForwardPasses
from richbook.measure.capture.follows import aligned, keeps_order, usual_function
from tests.measure.capture.networks import Hooked, Transformer, drawn, seeded

INPUTS = drawn(20, 3)


def found(model, inputs=INPUTS, **settings):
    """The name of the head that the first batch finds."""
    passes = ForwardPasses(model, [inputs], **settings)
    next(iter(passes))
    return passes.head_name


def branches(forward, outputs: int = 1, device: str = "cpu", **more: nn.Module) -> nn.Module:
    """A linear branch ``wide`` and a branch ``deep`` of two layers."""

    def make():
        deep = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, outputs))
        return Hooked(forward, wide=nn.Linear(3, outputs), deep=deep, **more)

    return seeded(make, device)


def in_place(m, x):
    """The sum of both branches, written into the output of one."""
    made = m.deep(x)
    made += m.wide(x)
    return made


SUMS = {
    "wide and deep": lambda m, x: m.wide(x) + m.deep(x),
    "deep and wide": lambda m, x: m.deep(x) + m.wide(x),
    "sigmoid": lambda m, x: (m.wide(x) + m.deep(x)).sigmoid(),
    "gate": lambda m, x: m.wide(x) * m.deep(x).sigmoid(),
    "gate first": lambda m, x: m.deep(x).sigmoid() * m.wide(x),
    "input": lambda m, x: m.deep(x) + x.sum(1, keepdim=True),
    "mixture": lambda m, x: torch.where(x[:, :1] > 0, m.wide(x), m.deep(x)),
    "in place": in_place,
}


@pytest.mark.parametrize(("outputs", "squeezed"), [(1, False), (1, True), (2, False), (5, False)])
@pytest.mark.parametrize("forward", SUMS.values(), ids=SUMS)
def test_two_branches(forward, outputs, squeezed, device):
    made = (lambda m, x: forward(m, x).squeeze(-1)) if squeezed else forward
    model = branches(made, outputs, device)
    told = "(the last one does not fit|not follow from the output of 'deep.2' alone); called were '"
    with pytest.raises(RichbookError, match=f"^head: the model returns .*{told}"):
        found(model)
    assert found(model, head="deep.2") == "deep.2"


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("after", [torch.tanh, lambda y: y.softmax(-1), lambda y: y - 1])
def test_branches_that_agree(after, outputs, device):
    """Where both rise with the same feature, as after training, order tells nothing."""
    if outputs == 1 and after(torch.ones(3, 1)).unique().tolist() == [1]:
        after = torch.sigmoid  # of one number a softmax is 1
    model = branches(lambda m, x: after(m.wide(x) + m.deep(x)), outputs, device)
    with torch.no_grad():
        for layer in (model.wide, model.deep[0], model.deep[2]):
            layer.weight.fill_(0.3)
            layer.weight[0] *= 1 if outputs == 1 or layer is model.deep[0] else -1
            layer.bias.fill_(2.0 if layer is model.deep[0] else 0.0)
        inputs = INPUTS[:, :1].expand(20, 3).to(device)
        assert keeps_order(model.deep(inputs), model(inputs))
    told = "does not follow from the output of 'deep.2' alone; called were 'wide'"
    with pytest.raises(RichbookError, match=f"^head: the model returns .*{told}"):
        found(model, inputs)


MADE_OF_ONE = {
    "squeezed": lambda logits: logits.squeeze(-1),
    "clone": lambda logits: logits.clone(),
    "log softmax": lambda logits: logits.log_softmax(-1),
    "sigmoid": lambda logits: logits.sigmoid(),
    "half": lambda logits: logits.sigmoid().half(),
    "from double": lambda logits: logits.double().softmax(-1).float(),
    "temperature": lambda logits: (logits / 0.3).softmax(-1),
    "scaled by its largest": lambda logits: logits / logits.abs().max(),
    "in place": lambda logits: logits.mul_(3).sub_(1),
    "in place, then cast": lambda logits: logits.mul_(3).double(),
    "activation in place": lambda logits: logits.relu_(),
    "in place, flattened": lambda logits: logits.mul_(3).view(-1),
    "dictionary": lambda logits: {"loss": torch.zeros(()), "scores": (logits * 2).exp()},
}


@pytest.mark.parametrize("outputs", [1, 4])
@pytest.mark.parametrize("made", MADE_OF_ONE.values(), ids=MADE_OF_ONE)
def test_made_of_one(made, outputs, device):
    model = branches(lambda m, x: made(m.deep(x)), outputs, device)
    passes = ForwardPasses(model, [INPUTS, INPUTS])
    with torch.no_grad():
        features = model.deep[:2](INPUTS.to(device))
        outputs = model.deep(INPUTS.to(device))
    for batch in passes:
        assert passes.head_name == "deep.2"
        torch.testing.assert_close(batch.features, features)
        torch.testing.assert_close(batch.outputs, outputs)


def test_one_output_that_falls():
    assert found(branches(lambda m, x: 1 - m.deep(x).sigmoid().squeeze(-1))) == "deep.2"
    with pytest.raises(RichbookError, match="^head: .* the last one does not fit"):
        found(branches(lambda m, x: m.deep(x).square()))


def test_one_sample_tells_of_copies_only():
    for made in (lambda y: y.clone(), lambda y: y.softmax(-1)):
        assert found(branches(lambda m, x, made=made: made(m.deep(x)), 4), INPUTS[:1]) == "deep.2"
    model = branches(lambda m, x: (m.deep(x) / 0.3).softmax(-1), 4)
    told = "may be made of .* 'deep.2' alone or not: one sample does not tell; let the first batch"
    with pytest.raises(RichbookError, match=rf"^head: the model returns \(1, 4\), which {told}"):
        found(model, INPUTS[:1])


def test_dropout_before_the_head_does_not_disturb():
    """The run that exchanges samples draws other numbers, but the head's output is given."""
    model = branches(lambda m, x: (m.deep(m.drop(x)) / 0.3).softmax(-1), 4, drop=nn.Dropout(0.5))
    assert found(model.train(), train_mode=True) == "deep.2"


def test_the_exchange_leaves_no_hook_and_raises_what_the_model_raises():
    runs = []

    def forward(m, x):
        runs.append(1)
        if len(runs) == 2:
            raise KeyError("the second run")
        return (m.deep(x) / 0.3).softmax(-1)

    model = branches(forward, 4)
    with pytest.raises(KeyError, match="the second run"):
        found(model)
    assert not any(module._forward_hooks for module in model.modules())


def test_an_embedding_returned_beside_probabilities():
    """One is a layer's output as it is, the other is made of the head's: both could be meant."""

    def forward(m, x):
        embedding = m.embed(x)
        return {"embedding": embedding, "probabilities": m.top(embedding.relu()).softmax(-1)}

    parts = {"embed": nn.Linear(3, 8), "top": nn.Linear(8, 4)}
    model = seeded(lambda: Hooked(forward, **parts))
    told = r"outputs of several linear layers, 'embed' .* -> \(20, 8\); 'top' .* -> \(20, 4\)"
    with pytest.raises(RichbookError, match=f"^head: the model returns the {told}"):
        found(model)


def test_a_position_of_each_sample():
    """A model that picks a token of each sample returns a copy; its softmax is as good."""
    tokens = torch.arange(20).reshape(4, 5) % 11
    last = torch.tensor([1, 4, 0, 2])
    for made in (lambda y: y, lambda y: y.softmax(-1), lambda y: y.double()):
        picking = seeded(
            lambda made=made: Hooked(
                lambda m, x, made=made: made(m.net(x)[torch.arange(4), last]), net=Transformer()
            )
        )
        assert found(picking, tokens, position=0) == "net.head"


def test_alignment_by_shape():
    output = drawn(8, 5, 3)
    for shape, wanted in (((8, 5, 3), 5), ((8, 3), 1), ((8, 1, 3), 1)):
        assert aligned(output, drawn(*shape))[1].shape == (8, wanted, 3)
    for shape in ((8, 2, 3), (5, 3), (8, 5), (8,), (0, 3), (8, 5, 3, 1)):
        assert aligned(output, drawn(*shape)) is None
    assert aligned(output, torch.zeros(8, 3, dtype=torch.int64)) is None
    assert aligned(torch.zeros(0, 3), torch.zeros(0, 3)) is None
    assert aligned(drawn(8, 5, 1), drawn(8, 5))[1].shape == (8, 5, 1)
    assert aligned(drawn(8, 5, 1), drawn(8))[1].shape == (8, 1, 1)


def test_usual_functions_are_told_from_their_likes():
    logits = 9 * drawn(20, 4)
    for made in (logits * (1 + 1e-5), (logits + 0.01 * drawn(20, 4, seed=1)).softmax(-1)):
        assert usual_function(logits, made) is None
    saturated = 40 * torch.eye(4)  # all but equal to a one-hot code, and to that of its double
    assert usual_function(saturated, (2 * saturated).softmax(-1)) is None
    assert usual_function(saturated, saturated.softmax(-1)) is not None
