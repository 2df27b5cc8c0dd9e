"""The loss of a sample, whatever the loss makes of a batch."""

import dataclasses
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn import functional

from richbook.measure import RichbookError
from richbook.measure.alignment import layer_moments
from tests.measure.alignment.one_at_a_time import (
    distance,
    modules_in,
    rows_one_at_a_time,
    second_moments,
)
from tests.measure.capture.networks import Hooked, Transformer, drawn, mlp, seeded

MATRICES = ("H_a", "H_b", "G_a", "G_b")
WEIGHT = torch.tensor([0.2, 1.0, 3.0, 0.5])


def batches(*tensors, size=5):
    return list(zip(*(tensor.split(size) for tensor in tensors), strict=True))


def check(model, inputs, targets, loss, single=None, tolerance=2e-5, size=5):
    """Equal to the loss, or another that stands for it, called with one sample at a time."""
    found = layer_moments(model, batches(inputs, targets, size=size), loss)
    names = [name for name in found]
    expected = rows_one_at_a_time(model, inputs, targets, single or loss, names)
    for name, rows in expected.items():
        for matrix, moment in second_moments(rows).items():
            assert distance(getattr(found[name], matrix), moment) < tolerance, (name, matrix)


def double(loss):
    """The same loss for the float64 reference: its class weights follow its outputs' dtype."""
    return lambda outputs, targets: loss.to(outputs.dtype)(outputs, targets)


CLASSES = {
    "function": functional.cross_entropy,
    "module": nn.CrossEntropyLoss(),
    "smoothed": nn.CrossEntropyLoss(label_smoothing=0.2),
    "sum": nn.CrossEntropyLoss(reduction="sum"),
    "none": nn.CrossEntropyLoss(reduction="none"),
    "scaled": lambda outputs, targets: 0.3 * functional.cross_entropy(outputs, targets),
    "with a constant": lambda outputs, targets: functional.cross_entropy(outputs, targets) + 7,
    "divided by a fixed number": lambda outputs, targets: functional.cross_entropy(
        outputs, targets, reduction="sum") / 64,
    "margin": nn.MultiMarginLoss(),
    "one value a sample, (n, 1)": lambda outputs, targets: functional.cross_entropy(
        outputs, targets, reduction="none")[:, None],
}  # fmt: skip


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("size", [5, 1])
def test_classification(name, size):
    check(seeded(mlp), drawn(13, 3), torch.arange(13) % 4, CLASSES[name], size=size)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("loss", [nn.MSELoss, nn.SmoothL1Loss, nn.BCEWithLogitsLoss])
def test_regression(loss, reduction):
    """A mean is also one over the outputs, so the loss of a sample is; "none" is summed."""
    check(seeded(mlp), drawn(13, 3), torch.rand(13, 4), loss(reduction=reduction))
    check(seeded(mlp), drawn(13, 3), torch.rand(13, 4), functional.mse_loss)


@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_class_weights_of_a_sum(reduction):
    loss = nn.CrossEntropyLoss(weight=WEIGHT, reduction=reduction)
    check(seeded(mlp), drawn(13, 3), torch.arange(13) % 4, loss, double(loss))


def test_class_weights_of_a_mean_are_divided_by_those_of_the_batch():
    """As in training: with all samples in one batch, n w_i ℓ_i / Σ w."""
    inputs, targets = drawn(13, 3), torch.arange(13) % 4
    whole = WEIGHT[targets].double().mean()

    def single(outputs, targets):
        return WEIGHT[targets] / whole * functional.cross_entropy(outputs, targets)

    loss = nn.CrossEntropyLoss(weight=WEIGHT.clone())
    check(seeded(mlp), inputs, targets, loss, single, size=13)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignored", [-100, 2])
def test_ignored_samples_are_left_out(reduction, ignored):
    inputs, targets = drawn(23, 3), torch.arange(23) % 4
    if ignored == -100:
        targets[3::4] = -100
    targets[5:10] = ignored  # a whole batch
    loss = nn.CrossEntropyLoss(reduction=reduction, ignore_index=ignored)
    model, kept = seeded(mlp), targets != ignored
    found = layer_moments(model, batches(inputs, targets), loss)
    expected = rows_one_at_a_time(model, inputs[kept], targets[kept], loss, list(found))
    for name, rows in expected.items():
        assert found[name].count == int(kept.sum())
        for matrix, moment in second_moments(rows).items():
            assert distance(getattr(found[name], matrix), moment) < 2e-5


def token_loss(outputs, targets, **settings):
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), **settings)


def test_ignored_tokens_are_left_out():
    """Each token that has a label counts; a mean over tokens is divided as in training."""
    model, tokens = seeded(Transformer), torch.arange(60).reshape(12, 5) % 11
    targets = tokens.flip(1).clone()
    targets[:, 0] = -100
    targets[3] = -100
    found = layer_moments(model, [(tokens, targets)], token_loss)
    assert found["head"].count == int((targets != -100).sum()) == 44

    def single(outputs, targets):  # of 4 tokens each
        return token_loss(outputs, targets, reduction="sum") / 4

    kept = torch.arange(12) != 3
    rows = rows_one_at_a_time(model, tokens[kept], targets[kept], single, modules_in(found))
    labelled = (targets[kept] != -100).flatten()
    for name, sides in rows.items():
        moments = second_moments({side: values[labelled] for side, values in sides.items()})
        for matrix, moment in moments.items():
            assert distance(getattr(found[name], matrix), moment) < 2e-5


def test_tokens_before_samples():
    """A model whose layers see (T, n, d): rows are dropped along the right axis."""

    def forward(self, x):
        return self.head(torch.relu(self.body(x.transpose(0, 1)))).mean(0)

    parts = {"body": nn.Linear(3, 6), "head": nn.Linear(6, 4)}
    model = seeded(lambda: Hooked(forward, **parts))
    inputs, targets = drawn(8, 7, 3), torch.arange(8) % 4
    targets[::3] = -100
    found = layer_moments(model, batches(inputs, targets), functional.cross_entropy)
    kept = targets != -100
    rows = rows_one_at_a_time(
        model, inputs[kept], targets[kept], functional.cross_entropy, list(found)
    )
    for name, sides in rows.items():
        for matrix, moment in second_moments(sides).items():
            assert distance(getattr(found[name], matrix), moment) < 2e-5


@dataclasses.dataclass(frozen=True)
class Output:
    logits: torch.Tensor
    name: str = "output"


WRAPPED = {
    "dictionary": (lambda x: {"logits": x, "none": None}, lambda out: out["logits"]),
    "ordered": (lambda x: OrderedDict(logits=x), lambda out: out["logits"]),
    "tuple": (lambda x: (x, [x.detach()]), lambda out: out[0]),
    "dataclass": (Output, lambda out: out.logits),
}


@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_what_the_model_returns_goes_to_the_loss_as_it_is(name, reduction):
    wrap, unwrap = WRAPPED[name]
    model = seeded(lambda: Hooked(lambda self, x: wrap(self.net(x)), net=mlp()))

    def loss(outputs, targets):
        return functional.cross_entropy(unwrap(outputs), targets, reduction=reduction)

    check(model, drawn(13, 3), torch.arange(13) % 4, loss)


def test_without_targets():
    model, inputs = seeded(mlp), drawn(13, 3)
    found = layer_moments(model, list(inputs.split(5)), lambda out, _: out.square().sum(1))
    rows = rows_one_at_a_time(model, inputs, None, lambda out, _: out.square().sum(), list(found))
    for name, sides in rows.items():
        for matrix, moment in second_moments(sides).items():
            assert distance(getattr(found[name], matrix), moment) < 2e-5


def test_a_first_batch_without_gradients_decides_nothing():
    """A hinge that is satisfied by all of the first batch."""
    inputs = torch.cat([drawn(5, 3) * 0, drawn(8, 3)])

    def hinge(outputs, targets):
        return torch.relu(outputs.abs() - 1e6 * (1 - targets)[:, None]).mean()

    targets = torch.cat([torch.zeros(5), torch.ones(8)])
    check(seeded(mlp), inputs, targets, hinge)


def pairs(outputs, targets):
    return (outputs @ outputs.T).sum()


WRONG = {
    "no function": (3, r"loss: expected a function of \(outputs, targets\)"),
    "the class": (nn.CrossEntropyLoss, "loss: .* got the class CrossEntropyLoss, not an instance"),
    "samples against each other": (pairs, r"loss: expected a mean or a sum over samples.*twice"),
    "no tensor": (lambda o, t: 1.0, "loss: expected a tensor of real numbers, got float"),
    "counts": (lambda o, t: (o.argmax(1) == t).sum(), "real numbers, got torch.int64"),
    "detached": (lambda o, t: o.detach().sum(), "does not depend on what the model returned"),
    "other classes": (lambda o, t: functional.cross_entropy(o, t + 9),
                      r"called with outputs \(5, 4\) and targets \(5,\) it raises IndexError"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_losses_that_cannot_be_used(name):
    loss, message = WRONG[name]
    with pytest.raises(RichbookError, match=message):
        layer_moments(seeded(mlp), batches(drawn(13, 3), torch.arange(13) % 4), loss)
    if name == "samples against each other":
        layer_moments(seeded(mlp), batches(drawn(3, 3), torch.arange(3), size=1), pairs)


def test_a_loss_without_targets_says_so():
    with pytest.raises(RichbookError, match=r"loss: called with outputs \(5, 4\) and no targets"):
        layer_moments(seeded(mlp), [drawn(5, 3)], functional.cross_entropy)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("form", [
    lambda outputs: outputs.flatten(0, 1), lambda outputs: outputs.transpose(0, 1),
], ids=["tokens in one row", "tokens first"])  # fmt: skip
def test_outputs_whose_samples_are_not_their_rows(form, reduction):
    model = seeded(lambda: Hooked(lambda self, x: form(self.net(x)), net=mlp()))

    def loss(outputs, targets):
        outputs = outputs.flatten(0, 1) if outputs.ndim == 3 else outputs
        targets = targets.T if form(drawn(2, 3, 1)).ndim == 3 else targets
        return functional.cross_entropy(outputs, targets.flatten(), reduction=reduction)

    check(model, drawn(12, 7, 3), torch.arange(84).reshape(12, 7) % 4, loss, size=4)


def test_outputs_that_have_no_samples():
    model = seeded(lambda: Hooked(lambda self, x: self.net(x).mean(0)[:3], net=mlp()))
    with pytest.raises(RichbookError, match="cannot be told whether it is a mean"):
        layer_moments(model, [(drawn(5, 3), torch.ones(5))], lambda out, y: out.sum())
