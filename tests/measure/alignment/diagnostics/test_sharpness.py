"""The largest curvature against the whole Hessian, which tiny models allow to be formed."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from richbook.measure import DegenerateWarning, RichbookError
from richbook.measure.alignment.diagnostics.sharpness import sharpness
from tests.measure.capture.networks import ConvNet, Encoder, Hooked, drawn, mlp, seeded
from tests.measure.capture.test_as_found import snapshot


def eigenvalues(model, x, y, loss=cross_entropy):
    """Of the whole Hessian, ascending, in the trained parameters."""
    trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}

    def value(parameters):
        return loss(functional_call(model, parameters, (x,)), y).mean()

    rows = jacrev(jacrev(value))(trained)
    sizes = {name: p.numel() for name, p in trained.items()}
    whole = torch.cat(
        [
            torch.cat([rows[a][b].reshape(sizes[a], sizes[b]) for b in trained], dim=1)
            for a in trained
        ]
    )
    return torch.linalg.eigvalsh(whole.double())


def tanh_net():
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("blocks", [1, 4])
def test_equals_the_hessian(device, dtype, blocks):
    if device == "mps" and dtype == torch.float64:
        pytest.skip("mps has no float64")
    model = seeded(tanh_net, device).to(dtype)
    x, y = drawn(40, 3).to(device, dtype), (torch.arange(40) % 4).to(device)
    wanted = float(eigenvalues(model, x, y)[-1])
    loader = DataLoader(TensorDataset(x, y), batch_size=40 // blocks, shuffle=True)
    value = sharpness(model, loader, cross_entropy, tolerance=1e-4)
    assert value.dtype == torch.float64 and value.shape == ()
    assert float(value) == pytest.approx(wanted, rel=2e-4)
    rough = sharpness(model, loader, cross_entropy, tolerance=0.05, seed=1)
    assert float(rough) == pytest.approx(wanted, rel=0.05)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_any_reduction_is_a_mean_over_samples(reduction):
    model, x, y = seeded(tanh_net).double(), drawn(40, 3).double(), torch.arange(40) % 4
    wanted = float(eigenvalues(model, x, y)[-1])
    unequal = [(x[:25], y[:25]), (x[25:], y[25:])]
    found = sharpness(model, unequal, nn.CrossEntropyLoss(reduction=reduction), tolerance=1e-6)
    assert float(found) == pytest.approx(wanted, rel=1e-6)


def test_the_largest_on_the_number_line_and_not_in_size():
    """A loss that falls without end: its most negative curvature is far larger."""
    model, x, y = seeded(tanh_net).double(), drawn(30, 3).double(), torch.zeros(30, 4).double()

    def loss(outputs, targets):
        return -outputs.square().sum(1)

    spectrum = eigenvalues(model, x, y, loss)
    assert -spectrum[0] > 2 * spectrum[-1]
    found = sharpness(model, [(x, y)], loss, tolerance=1e-6)
    assert float(found) == pytest.approx(float(spectrum[-1]), rel=1e-5)


def test_frozen_parameters_do_not_count():
    model, x, y = seeded(tanh_net).double(), drawn(40, 3).double(), torch.arange(40) % 4
    model[4].requires_grad_(False)
    wanted = float(eigenvalues(model, x, y)[-1])
    found = sharpness(model, [(x, y)], cross_entropy, tolerance=1e-6)
    assert float(found) == pytest.approx(wanted, rel=1e-6)


def test_a_seed_fixes_the_start_and_nothing_else():
    model, loader = seeded(tanh_net), [(drawn(40, 3), torch.arange(40) % 4)]
    values = [float(sharpness(model, loader, cross_entropy, seed=seed)) for seed in (0, 0, 1)]
    assert values[0] == values[1] and values[2] == pytest.approx(values[0], rel=3e-3)


def test_of_one_parameter_and_of_a_flat_loss():
    one = nn.Linear(1, 1, bias=False).double()
    loader = [(torch.tensor([[3.0]]).double(), torch.zeros(1, 1).double())]
    assert float(sharpness(one, loader, nn.MSELoss())) == pytest.approx(18)
    linear = [(drawn(5, 3), torch.zeros(5, 2))]
    assert float(sharpness(nn.Linear(3, 2), linear, lambda f, y: f.sum(1))) == 0


def test_unconverged_is_said():
    model, loader = seeded(tanh_net), [(drawn(40, 3), torch.arange(40) % 4)]
    with pytest.warns(DegenerateWarning, match="not converged after 2 iterations.* within"):
        sharpness(model, loader, cross_entropy, tolerance=1e-6, iterations=2)


def test_ignored_labels_are_left_out():
    model, x, y = seeded(tanh_net).double(), drawn(40, 3).double(), torch.arange(40) % 4
    labels = torch.where(torch.arange(40) < 10, -100, y)
    whole = sharpness(model, [(x, labels)], cross_entropy, tolerance=1e-6)
    rest = sharpness(model, [(x[10:], y[10:])], cross_entropy, tolerance=1e-6)
    assert float(whole) == pytest.approx(float(rest), rel=1e-5)


def test_convolutions_attention_and_no_gradient_mode():
    images = [(drawn(6, 1, 6, 6), torch.arange(6) % 3)]
    sequences = [(drawn(6, 5, 8), torch.arange(6) % 3)]
    with torch.no_grad():
        assert float(sharpness(seeded(ConvNet), images, cross_entropy, tolerance=0.01)) > 0
        assert float(sharpness(seeded(Encoder), sequences, cross_entropy, tolerance=0.01)) > 0


def test_left_as_it_was(device):
    model = seeded(ConvNet, device).train()
    model.conv1.requires_grad_(False)
    model.head.weight.grad = torch.ones_like(model.head.weight)
    before = snapshot(model)
    loader = DataLoader(
        TensorDataset(drawn(12, 1, 6, 6), torch.arange(12) % 3), batch_size=5, shuffle=True
    )
    sharpness(model, loader, cross_entropy, tolerance=0.1)
    assert snapshot(model) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tolerance": 0}, "tolerance: expected a number between 0 and 1, got 0"),
        ({"tolerance": "fine"}, "tolerance: .* got 'fine'"),
        ({"iterations": 0}, "iterations: expected a whole number from 1, got 0"),
        ({"loader": iter([(drawn(9, 3), torch.arange(9) % 4)])}, "gave 0 samples in this pass and"),
        ({"loader": []}, "loader: it gave 0 samples"),
        ({"model": mlp().requires_grad_(False)}, "none of its parameters requires a gradient"),
    ],
)
def test_errors(changes, message):
    settings = {"model": seeded(tanh_net), "loader": [(drawn(9, 3), torch.arange(9) % 4)]} | changes
    model, loader = settings.pop("model"), settings.pop("loader")
    with pytest.raises(RichbookError, match=message):
        sharpness(model, loader, cross_entropy, **settings)


def test_not_twice_differentiable():
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, gradient):
            return 2 * gradient

    model = Hooked(lambda self, x: Once.apply(self.a(x)).square(), a=nn.Linear(3, 4))
    with pytest.raises(RichbookError, match="cannot be differentiated twice"):
        sharpness(model, [(drawn(9, 3), torch.arange(9) % 4)], cross_entropy)


def test_a_run_that_diverged():
    model = seeded(tanh_net)
    model[0].weight.data[0, 0] = torch.nan
    loss = nn.CrossEntropyLoss(reduction="none")
    with pytest.raises(RichbookError, match="contains nan or an infinity.*did training diverge"):
        sharpness(model, [(drawn(9, 3), torch.arange(9) % 4)], loss)
