"""What cannot be balanced is named; what is measured is left as it was."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parametrizations

from richbook.measure import DegenerateWarning, RichbookError
from richbook.measure.alignment.balance.balance import Balance, balance
from tests.measure.capture.networks import Hooked, Transformer, drawn, mlp, seeded
from tests.measure.capture.test_as_found import snapshot


def fed(model, layers=None, inputs=None, targets=None, **changes):
    settings = {"learning_rate": 0.1, "weight_decay": 0.1, "batch_size": 2} | changes
    found = Balance(model, cross_entropy, layers=layers, **settings)
    inputs = drawn(6, 3) if inputs is None else inputs
    found.update(inputs, torch.arange(len(inputs)) % 2 if targets is None else targets)
    return found


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 0}, "learning_rate: expected a finite number above 0, got 0"),
        ({"learning_rate": float("nan")}, "learning_rate: expected a finite number above 0"),
        ({"learning_rate": "fast"}, "learning_rate: .* got 'fast'"),
        ({"weight_decay": 0.0}, "weight_decay: expected a finite number above 0, got 0.0"),
        ({"batch_size": 0}, "batch_size: expected a whole number from 1, got 0"),
        ({"batch_size": 2.0}, "batch_size: .* got 2.0"),
        ({"momentum": 1.0}, "momentum: expected a number from 0 to below 1, got 1.0"),
        ({"momentum": -0.1}, "momentum: .* got -0.1"),
    ],
)
def test_settings(changes, message):
    settings = {"learning_rate": 0.1, "weight_decay": 0.1, "batch_size": 2} | changes
    with pytest.raises(RichbookError, match=message):
        Balance(mlp(), cross_entropy, **settings)


def test_nothing_to_report():
    with pytest.raises(RichbookError, match="updates: expected at least one"):
        Balance(mlp(), cross_entropy, 0.1, 0.1, 1).result()
    with pytest.raises(RichbookError, match="training: expected states of the network, got none"):
        balance(iter([]), drawn(6, 3), torch.arange(6) % 2, cross_entropy, 0.1, 0.1, 1)


def frozen():
    model = mlp()
    model[2].requires_grad_(False)
    return model


def tied():
    model = Hooked(
        lambda self, x: self.last(self.b(torch.relu(self.a(x)))),
        a=nn.Linear(3, 3), b=nn.Linear(3, 3), last=nn.Linear(3, 2),
    )  # fmt: skip
    model.b.weight = model.a.weight
    return model


def called_twice():
    return Hooked(
        lambda self, x: self.last(self.a(torch.relu(self.a(x)))),
        a=nn.Linear(3, 3), last=nn.Linear(3, 2),
    )  # fmt: skip


def normalised():
    model = mlp()
    parametrizations.weight_norm(model[2])
    return model


@pytest.mark.parametrize(
    ("make", "layer", "message", "rest"),
    [
        (frozen, "2", "'2' cannot be balanced: its weight is frozen", ["0", "4"]),
        (tied, "b", "'b' .* tied to that of another module", ["last"]),
        (called_twice, "a", "'a.*' .* called several times", ["last"]),
        (normalised, "2", "'2' .* computed from other parameters", ["0", "4"]),
    ],
)
def test_layers_that_do_not_move_as_assumed(make, layer, message, rest):
    """An error if named; left out if not."""
    with pytest.raises(RichbookError, match=message):
        fed(make(), [layer])
    with pytest.warns(DegenerateWarning, match="single state"):
        assert list(fed(make()).result()) == rest


def test_groups():
    model = nn.Sequential(nn.Conv2d(2, 2, 1, groups=2), nn.Flatten(), nn.Linear(8, 2))
    with pytest.raises(RichbookError, match="'0' cannot be balanced: its groups"):
        fed(model, ["0"], drawn(6, 2, 2, 2))


def test_no_layer_left():
    with pytest.raises(RichbookError, match="none of its linear layers trains"):
        fed(mlp().requires_grad_(False))


def test_batch_norm():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    with pytest.raises(RichbookError, match="BatchNorm1d '1' normalises over the batch"):
        fed(model.train())
    model[1].eval()
    assert list(fed(model).sums) == ["0", "2"]


def test_tokens_left_out():
    model = seeded(Transformer)
    tokens = torch.arange(12).reshape(3, 4) % 11
    labels = tokens.clone()
    labels[0, 0] = -100

    def loss(outputs, targets):
        return cross_entropy(outputs.flatten(0, 1), targets.flatten())

    found = Balance(model, loss, 0.1, 0.1, 1, ["head"])
    found.update(tokens, tokens)
    with pytest.raises(RichbookError, match="'head' has not the same number of rows"):
        found.update(tokens, labels)


def test_a_run_that_diverged():
    model = mlp(outputs=2)
    loss = nn.CrossEntropyLoss(reduction="none")
    found = Balance(model, loss, 0.1, 0.1, 2)
    found.update(drawn(6, 3), torch.arange(6) % 2)
    sums = {name: float(terms["norm_b"]) for name, terms in found.sums.items()}
    model[2].weight.data[0, 0] = torch.nan
    with pytest.raises(RichbookError, match="parameter '2.weight' contains nan .* diverge"):
        found.update(drawn(6, 3), torch.arange(6) % 2)
    assert sums == {name: float(terms["norm_b"]) for name, terms in found.sums.items()}


def test_other_layers_than_before():
    model = Hooked(
        lambda self, x: self.last(self.a(x) if x.sum() < 0 else x),
        a=nn.Linear(3, 3), last=nn.Linear(3, 2),
    )  # fmt: skip
    found = fed(model, inputs=-torch.ones(6, 3))
    with pytest.raises(RichbookError, match="other layers than at the first update"):
        found.update(torch.ones(6, 3), torch.arange(6) % 2)


def test_the_model_and_the_random_numbers_are_as_they_were():
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.ReLU(inplace=True), nn.Linear(8, 2))
    model.train()
    model[0].weight.grad = torch.ones(8, 3)
    before = snapshot(model)
    found = fed(model)
    assert snapshot(model) == before
    model[3].weight.data.fill_(torch.inf)
    before = snapshot(model)
    with pytest.raises(RichbookError):
        found.update(drawn(6, 3), torch.arange(6) % 2)
    assert snapshot(model) == before


def test_dropout_drops():
    """The gradient of a training step has dropout in it."""
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 2))
    states = []
    for mode in (True, False):
        model.train(mode)
        found = fed(model, inputs=torch.ones(200, 3), targets=torch.arange(200) % 2)
        states.append(float(found.sums["1"]["norm_b"]))  # the mean of ‖h_a‖²
    assert states[0] == pytest.approx(6, rel=0.2) and states[1] == pytest.approx(3)


def test_batches_of_any_loss_give_the_same():
    """A mean, a sum and a loss for each sample are the same ℓ."""
    model, x, y = seeded(mlp), drawn(6, 3), torch.arange(6) % 4
    found = []
    for reduction in ("mean", "sum", "none"):
        balanced = Balance(model, nn.CrossEntropyLoss(reduction=reduction), 0.1, 0.1, 2)
        balanced.update(x, y)
        found.append(balanced.sums["0"]["square_b"])
    assert torch.allclose(found[0], found[1]) and torch.allclose(found[0], found[2])


def test_reports_read_well():
    found = fed(seeded(mlp))
    found.update(drawn(6, 3, seed=3), torch.arange(6) % 2)
    layer = found.result()["0"]
    assert repr(layer).startswith("LayerBalance('0', 2 updates, output residual")
    assert repr(layer.output).startswith("SideBalance(residual=")
    assert {"output_residual", "input_cross_moment", "mean_weight"} <= set(layer.to_dict())
