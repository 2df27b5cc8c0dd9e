"""WᵀW against the outer product of output gradients; what a change of the outputs does to it."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev, vmap
from torch.nn.functional import cross_entropy

from richbook.measure import DegenerateWarning, RichbookError
from richbook.measure.alignment.diagnostics.nfa import nfa
from richbook.measure.alignment.moments.layer_moments import layer_moments
from tests.measure.capture.networks import ConvNet, Hooked, drawn, mlp, seeded
from tests.measure.capture.test_as_found import snapshot


def network():
    return seeded(lambda: mlp().double())


def by_jacobians(model, x, depth):
    """AGOP at the input of the layer with index ``depth``, by torch.func, sample by sample."""
    inside = x
    for part in model[:depth]:
        inside = part(inside)
    rest, state = model[depth:], dict(model[depth:].named_parameters())

    def outputs(row):
        return functional_call(rest, state, (row[None],))[0]

    jacobian = vmap(jacrev(outputs))(inside.detach())  # (n, C, in)
    return torch.einsum("nci,ncj->ij", jacobian, jacobian) / len(x)


@pytest.mark.parametrize("blocks", [1, 3])
def test_equals_the_jacobians_of_torch_func(blocks):
    for part in (model := network()):
        part.inplace = False
    x = drawn(12, 3).double()
    found = nfa(model, list(x.split(12 // blocks)))
    assert list(found) == ["0", "2", "4"]
    for name, layer in found.items():
        weight = model[int(name)].weight.detach()
        agop = by_jacobians(model, x, int(name)).detach()
        assert torch.allclose(layer.agop, agop, atol=1e-12)
        assert torch.allclose(layer.gram, weight.T @ weight)
        a, b = layer.gram.flatten(), agop.flatten()
        assert layer.cosine == pytest.approx(float(a @ b / a.norm() / b.norm()))
        wanted = torch.corrcoef(torch.stack([a, b]))[0, 1]
        assert layer.correlation == pytest.approx(float(wanted))


def test_the_last_layer_of_its_own():
    """∂f/∂h of the head is W: the ansatz holds there whatever the network has learned."""
    assert nfa(network(), [drawn(9, 3).double()])["4"].cosine == pytest.approx(1)


class Mixed(nn.Module):
    """A network whose outputs are mixed by a matrix."""

    def __init__(self, model, mix):
        super().__init__()
        self.model, self.mix = model, mix

    def forward(self, x):
        return self.model(x) @ self.mix.T


MIXES = {
    "rotation": torch.linalg.qr(drawn(4, 4, seed=5).double())[0],
    "one output 30 times": torch.diag(torch.tensor([30.0, 1, 1, 1]).double()),
    "any invertible": drawn(4, 4, seed=6).double(),
}


@pytest.mark.parametrize("kind", MIXES)
def test_redefining_outputs_changes_the_ansatz_and_not_the_gradients_of_the_loss(kind):
    """f' = A f with ℓ'(f') = ℓ(A⁻¹ f'): G and Z stay, AGOP becomes Σ (AᵀA)_cd E[∇f_c ∇f_dᵀ]."""
    model, mix = network(), MIXES[kind]
    x, y = drawn(40, 3).double(), torch.arange(40) % 4
    inverse = torch.linalg.inv(mix)
    before = layer_moments(model, [(x, y)], cross_entropy)
    after = layer_moments(Mixed(model, mix), [(x, y)], lambda f, t: cross_entropy(f @ inverse.T, t))
    for name, moments in before.items():
        for side in ("G_a", "G_b", "Z_a", "Z_b", "H_a", "H_b"):
            one, other = getattr(moments, side), getattr(after[f"model.{name}"], side)
            assert torch.allclose(one, other, atol=1e-12)
    plain, mixed = nfa(model, [x])["2"], nfa(Mixed(model, mix), [x])["model.2"]
    same = torch.allclose(plain.agop / plain.agop.norm(), mixed.agop / mixed.agop.norm())
    assert same == (kind == "rotation")
    if kind == "rotation":
        assert mixed.cosine == pytest.approx(plain.cosine)
    else:
        assert abs(mixed.cosine - plain.cosine) > 0.01


def test_the_loss_read_as_the_only_output_makes_it_the_same_as_backward_gwa():
    model, x, y = network(), drawn(40, 3).double(), torch.arange(40) % 4

    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x, labels):
            return cross_entropy(self.model(x), labels, reduction="none")

    found = nfa(WithLoss(), [(x, y, y)])  # the labels are an input now, and again the targets
    wanted = layer_moments(model, [(x, y)], cross_entropy)
    for name, moments in wanted.items():
        assert torch.allclose(found[f"model.{name}"].agop, moments.G_a, atol=1e-12)


def test_hidden_units_in_another_basis():
    """Rotating what a layer takes rotates both matrices: the cosine stays."""
    x = drawn(30, 16).double()
    deep = nn.Sequential(nn.Linear(16, 4, bias=False), nn.Tanh(), nn.Linear(4, 3)).double()
    rotation = torch.linalg.qr(drawn(16, 16, seed=7).double())[0]
    turned = nn.Sequential(nn.Linear(16, 4, bias=False), nn.Tanh(), deep[2]).double()
    turned[0].weight.data = deep[0].weight.data @ rotation.T
    one, other = nfa(deep, [x])["0"], nfa(turned, [x @ rotation.T])["0"]
    assert other.cosine == pytest.approx(one.cosine)
    assert torch.allclose(rotation @ one.agop @ rotation.T, other.agop)


def test_convolutions_and_outputs_with_positions():
    model = seeded(ConvNet)
    found = nfa(model, [(drawn(5, 1, 6, 6), torch.arange(5) % 3)])
    assert list(found) == ["conv1", "conv2", "head"] and found["conv2"].agop.shape == (36, 36)
    tokens = seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    assert 0 < nfa(tokens, [drawn(5, 7, 3)])["0"].cosine <= 1


def test_layers_that_one_output_does_not_use():
    model = Hooked(
        lambda self, x: torch.cat([self.a(x), self.b(x)], dim=1),
        a=nn.Linear(3, 2, bias=False), b=nn.Linear(3, 2, bias=False),
    )  # fmt: skip
    for layer in nfa(model, [drawn(6, 3)]).values():
        assert layer.cosine == pytest.approx(1)  # each output is a row of its own layer


def test_layers_by_name_and_called_twice():
    model = Hooked(lambda self, x: self.a(torch.tanh(self.a(x))), a=nn.Linear(3, 3))
    assert list(nfa(model, [drawn(6, 3)])) == ["a", "a#2"]
    assert list(nfa(network(), [drawn(6, 3).double()], ["2"])) == ["2"]
    assert list(nfa(network(), [drawn(6, 3).double()], "2")) == ["2"]


def test_left_as_it_was(device):
    model = seeded(ConvNet, device).train()
    before = snapshot(model)
    nfa(model, [drawn(5, 1, 6, 6)])
    assert snapshot(model) == before


def test_errors():
    with pytest.raises(RichbookError, match="a generator is used up after one pass"):
        nfa(network(), iter([drawn(6, 3).double()]))
    with pytest.raises(RichbookError, match="expected 1 to 4096 outputs a sample, got 5000"):
        nfa(nn.Linear(2, 5000), [drawn(3, 2)])
    with pytest.raises(RichbookError, match="layers: the model has no module '7'"):
        nfa(network(), [drawn(6, 3).double()], ["7"])
    sized = Hooked(lambda self, x: self.a(x)[:, : len(x)], a=nn.Linear(3, 9))
    with pytest.raises(RichbookError, match="expected 2 outputs a sample, got 4"):
        nfa(sized, [drawn(2, 3), drawn(4, 3)])


def test_a_layer_left_out_is_said_once():
    model = Hooked(
        lambda self, x: self.a(x) + self.b(x.detach()).detach(),
        a=nn.Linear(3, 4), b=nn.Linear(3, 4),
    )  # fmt: skip
    with pytest.warns(DegenerateWarning) as caught:
        assert list(nfa(model, [drawn(6, 3)])) == ["a"]
    assert len(caught) == 1
