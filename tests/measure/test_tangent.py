"""The movement of the tangent kernel against a loop over samples, outputs, and pairs of those."""

import copy
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from richbook.measure.errors import DegenerateWarning, RichbookError
from richbook.measure.tangent import ntk_distance
from richbook.measure.tangent_blocks import COPIES, plan
from tests.measure import reference

N, D, C = 6, 5, 3


class Recurrent(nn.Module):
    """vmap cannot run a GRU."""

    def __init__(self):
        super().__init__()
        self.recurrent, self.head = nn.GRU(2, 4, batch_first=True), nn.Linear(4, C)

    def forward(self, inputs):
        return self.head(self.recurrent(inputs)[0][:, -1])


class Branching(nn.Module):
    """Nor a decision by a value."""

    def __init__(self):
        super().__init__()
        self.inner = perceptron()

    def forward(self, inputs):
        return torch.cat([self.inner(row) * (2 if row[0, 0] > 0 else 1) for row in inputs[:, None]])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)
        self.head = nn.Linear(4, C)

    def forward(self, tokens):
        return self.head(self.layer(self.table(tokens))[:, -1])


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(D, D), nn.Linear(D, D)
        self.second.weight = self.first.weight
        self.gain = nn.Parameter(torch.tensor(1.5))

    def forward(self, inputs):
        return self.gain * self.second(torch.tanh(self.first(inputs)))


class Scaled(nn.Module):
    def __init__(self, model, factor):
        super().__init__()
        self.model, self.factor = model, factor

    def forward(self, inputs):
        return self.factor * self.model(inputs)


class Shaped(nn.Module):
    """The inner model's outputs in another form."""

    def __init__(self, model, form):
        super().__init__()
        self.model, self.form = model, form

    def forward(self, inputs):
        return self.form(self.model(inputs))


def perceptron(width=8, outputs=C):
    return nn.Sequential(nn.Linear(D, width), nn.Tanh(), nn.Linear(width, outputs))


def convolutional():
    parts = [nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    return nn.Sequential(*parts, nn.Flatten(), nn.LayerNorm(2), nn.Dropout(0.5), nn.Linear(2, C))


NETWORKS = {  # what makes one, and the shape of a sample
    "perceptron": (perceptron, (D,)),
    "convolutional": (convolutional, (1, 5, 5)),
    "recurrent": (Recurrent, (3, 2)),
    "branching": (Branching, (D,)),
    "attention": (Attention, (4,)),
    "tied": (Tied, (D,)),
}


def pair(make=perceptron, shape=(D,), *, n=N, device="cpu", dtype=torch.float64, seed=0):
    """A network, another of the same kind (batch norm has statistics), and inputs."""
    if device == "mps" and dtype == torch.float64:
        pytest.skip("mps has no float64")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        inputs = torch.randn(n, *shape, dtype=torch.float64)
        if make is Attention:
            inputs = torch.randint(7, (n, *shape))
        models = [make().to(dtype) for _ in range(2)]
        for model in models:
            for name, buffer in model.named_buffers():
                if buffer.is_floating_point():
                    buffer.copy_(torch.rand(buffer.shape) + ("var" in name))
            model.to(device).eval()
    floating = inputs.is_floating_point()
    return *models, (inputs.to(dtype) if floating else inputs).to(device)


def gradients(model, inputs):
    """(n, C, P), one backward pass for each sample and output, sample by sample."""
    trained = [p for p in model.parameters() if p.requires_grad]
    found = []
    for row in inputs:
        outputs = model(row[None])[0]
        found.append([])
        for output in outputs:
            parts = torch.autograd.grad(output, trained, retain_graph=True, materialize_grads=True)
            found[-1].append(np.concatenate([reference.array(part).ravel() for part in parts]))
    return np.array(found)


def kernel(model, inputs):
    """(nC, nC), pair by pair."""
    rows = np.concatenate(gradients(model, inputs))
    return np.array([[float(a @ b) for b in rows] for a in rows])


def partial_trace(kernel, count):
    """(n, n): the sum of the entries that two samples have for the same output."""
    outputs = len(kernel) // count
    return sum(kernel[c::outputs, c::outputs] for c in range(outputs))


def expected(model, initial, inputs, outputs):
    kernels = [kernel(one, inputs) for one in (model, initial)]
    if outputs == "trace":
        kernels = [partial_trace(one, len(inputs)) for one in kernels]
    return 1 - reference.operator_cka(*kernels)


@pytest.mark.parametrize("outputs", ["all", "trace"])
@pytest.mark.parametrize("network", NETWORKS)
def test_equals_the_double_loop(device, network, outputs):
    given = pair(*NETWORKS[network], device=device)
    value = ntk_distance(*given, outputs=outputs)
    assert value.dtype == torch.float64 and value.shape == () and not value.requires_grad
    assert value.device.type == torch.device(device).type
    assert float(value) == pytest.approx(expected(*given, outputs), abs=1e-12)
    assert 0.001 < float(value) < 1


@pytest.mark.parametrize(("n", "width"), [(2, 8), (30, 2), (3, 1)])
def test_more_and_fewer_rows_than_parameters(device, n, width):
    model, initial, inputs = pair(lambda: perceptron(width), n=n, device=device)
    for outputs in ("all", "trace"):
        value = float(ntk_distance(model, initial, inputs, outputs=outputs))
        assert value == pytest.approx(expected(model, initial, inputs, outputs), abs=1e-12)


def test_two_linear_layers_in_closed_form():
    """f = u·Wx: K(x, x′) = ‖u‖² x·x′ + Wx·Wx′."""
    model, initial, inputs = pair(
        lambda: nn.Sequential(nn.Linear(D, 4, bias=False), nn.Linear(4, 1, bias=False))
    )
    kernels = []
    for network in (model, initial):
        inner, outer = (reference.array(layer.weight) for layer in network)
        x = reference.array(inputs)
        kernels.append((outer**2).sum() * x @ x.T + x @ inner.T @ inner @ x.T)
    wanted = 1 - reference.operator_cka(*kernels)
    assert float(ntk_distance(model, initial, inputs)) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("outputs", ["all", "trace"])
@pytest.mark.parametrize("offset", [0, 1e3])
def test_a_linear_model_does_not_move(device, outputs, offset):
    """f = Wx: K((x, c), (x′, c′)) = x·x′ δ_cc′, whatever W is."""
    model, initial, inputs = pair(lambda: nn.Linear(D, C, bias=False), device=device)
    value = float(ntk_distance(model, initial, inputs + offset, outputs=outputs))
    assert value == pytest.approx(0, abs=1e-12) and value >= 0


def test_a_factor_on_the_outputs_does_not_move_the_kernel(device):
    model, _, inputs = pair(device=device)
    assert float(ntk_distance(Scaled(model, 100), model, inputs)) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("outputs", ["all", "trace"])
@pytest.mark.parametrize("network", ["perceptron", "recurrent", "tied"])
def test_memory_does_not_change_the_value(device, network, outputs):
    model, initial, inputs = pair(*NETWORKS[network], device=device)
    value = float(ntk_distance(model, initial, inputs, outputs=outputs))
    size = 8 * sum(parameter.numel() for parameter in model.parameters())
    kernels = 3 * 8 * (N * (D if network == "tied" else C)) ** 2
    seen = 0
    for rows in (6, 9, 14, 25, 60):
        try:
            again = float(
                ntk_distance(model, initial, inputs, memory=kernels + rows * size, outputs=outputs)
            )
        except RichbookError:
            continue  # the activations of this model take more than that
        assert again == pytest.approx(value, abs=1e-10)
        seen += 1
    assert seen >= 2


@given(
    n=st.integers(2, 12),
    width=st.integers(1, 7),
    rows=st.integers(4, 200),
    running=st.integers(0, 30),
    outputs=st.sampled_from(["all", "trace"]),
)
def test_a_plan_covers_every_pair_once_and_stays_in_its_budget(n, width, rows, running, outputs):
    size = 100
    total = n * width if outputs == "all" else n
    needed = SimpleNamespace(name="model", count=n, width=width, size=size, running=running)
    memory = (24 * total**2 + rows * size) / (1 - COPIES)
    if rows * size < 4 * size + 2 * running - 1e-6:
        with pytest.raises(RichbookError, match="^memory: "):
            plan(needed, memory - 1, outputs)
        return
    groups = plan(needed, memory + 1, outputs)
    times = np.zeros((total, total), int)
    for group in groups:
        for k, left in enumerate(group):
            for right in group[: k + 1]:
                weight = left.outputs.stop - left.outputs.start if outputs == "trace" else 1
                times[left.rows, right.rows] += weight
                if right is not left:
                    times[right.rows, left.rows] += weight
        longest = max(
            (b.samples.stop - b.samples.start) * (b.outputs.stop - b.outputs.start) for b in group
        )
        first = 1 if outputs == "all" else group[0].outputs.stop - group[0].outputs.start
        held = first * size + longest * ((len(group) > 1) * size + 2 * (size + running))
        assert held <= rows * size + 2
    assert (times == (width if outputs == "trace" else 1)).all()


def test_too_little_memory_says_what_it_takes():
    model, initial, inputs = pair()
    with pytest.raises(RichbookError, match="^memory: the kernels and one row") as caught:
        ntk_distance(model, initial, inputs, memory=9000)
    message = str(caught.value)
    assert "got 0.00858 MiB" in message and "outputs='trace'" in message
    takes = float(message.partition("take ")[2].partition(" MiB")[0])
    enough = ntk_distance(model, initial, inputs, memory=1.01 * takes * 2**20)
    assert float(enough) == pytest.approx(float(ntk_distance(model, initial, inputs)), abs=1e-10)
    with pytest.raises(RichbookError, match="^memory: .*give more memory, fewer inputs$"):
        ntk_distance(model, initial, inputs, memory=100, outputs="trace")


def test_many_classes_by_the_trace():
    """The kernel of all outputs would take 3 × 29 MB, the Jacobian 9 MB."""
    model, initial, inputs = pair(lambda: perceptron(4, 200))
    budget = 400_000
    with pytest.raises(RichbookError, match="^memory"):
        ntk_distance(model, initial, inputs, memory=budget)
    value = ntk_distance(model, initial, inputs, memory=budget, outputs="trace")
    rows = [gradients(one, inputs) for one in (model, initial)]
    wanted = 1 - reference.operator_cka(*(np.einsum("icp,jcp->ij", one, one) for one in rows))
    assert float(value) == pytest.approx(wanted, abs=1e-10)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05), (torch.float16, 0.01)]
)
def test_lower_precision(device, dtype, tolerance):
    model, initial, inputs = pair(device=device, dtype=dtype)
    wanted = expected(*(one.cpu().double() for one in (model, initial, inputs)), "all")
    [one.to(device, dtype) for one in (model, initial)]
    assert float(ntk_distance(model, initial, inputs)) == pytest.approx(wanted, abs=tolerance)


def test_inputs_on_a_large_offset():
    """What the gradients share would swamp a float32 product of what they do not."""
    model, initial, inputs = pair(lambda: nn.Sequential(nn.Linear(D, 4), nn.Linear(4, 1)))
    wanted = expected(model, initial, inputs + 1e4, "all")
    value = float(ntk_distance(model, initial, inputs + 1e4))
    assert value == pytest.approx(wanted, abs=1e-8)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_inside_contexts(device, context):
    model, initial, inputs = pair(device=device, dtype=torch.float32)
    plain = float(ntk_distance(model, initial, inputs))
    with context(), torch.autocast(device, dtype=torch.bfloat16):
        assert float(ntk_distance(model, initial, inputs + 0)) == plain


def test_frozen_parameters_do_not_count():
    """With the body frozen the kernel is that of the features: it stays, however the head moves."""
    model, _, inputs = pair()
    initial = copy.deepcopy(model)
    with torch.no_grad():
        model[2].weight.add_(1)
    assert float(ntk_distance(model, initial, inputs)) > 0.01
    model[0].requires_grad_(False)
    assert float(ntk_distance(model, initial, inputs)) == pytest.approx(0, abs=1e-12)
    initial.requires_grad_(False)  # a copy that was put aside; the model says what was trained
    assert float(ntk_distance(model, initial, inputs)) == pytest.approx(0, abs=1e-12)
    model.requires_grad_(False)
    with pytest.raises(RichbookError, match="^model: none of its 4 parameters requires a gradient"):
        ntk_distance(model, initial, inputs)


def test_networks_of_different_architecture():
    model, _, inputs = pair()
    deeper, narrower, _ = pair(
        lambda: nn.Sequential(perceptron(4, 4), nn.Tanh(), nn.Linear(4, C)), seed=1
    )
    narrower[0].requires_grad_(False)
    for other in (deeper, narrower):
        for outputs in ("all", "trace"):
            value = float(ntk_distance(model, other, inputs, outputs=outputs))
            assert value == pytest.approx(expected(model, other, inputs, outputs), abs=1e-12)


def test_wrapped_networks_are_the_networks_in_them():
    model, initial, inputs = pair()
    plain = float(ntk_distance(model, initial, inputs))
    assert float(ntk_distance(nn.DataParallel(model), initial, inputs)) == plain
    initial.requires_grad_(False)
    assert float(ntk_distance(torch.compile(model), initial, inputs)) == plain


def test_the_models_stay_as_they_are(device):
    model, initial, inputs = pair(*NETWORKS["convolutional"], device=device)
    model[4].train()  # a part in train mode that does no harm
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = [copy.deepcopy(one.state_dict()) for one in (model, initial)]
    state = torch.get_rng_state()
    ntk_distance(model, initial, inputs)
    assert torch.equal(torch.get_rng_state(), state)
    for one, saved in zip((model, initial), before, strict=True):
        assert all(torch.equal(value, saved[name]) for name, value in one.state_dict().items())
        assert all(isinstance(parameter, nn.Parameter) for parameter in one.parameters())
    assert [name for name, part in model.named_modules() if part.training] == ["4"]
    assert all(bool((parameter.grad == 1).all()) for parameter in model.parameters())
    assert all(parameter.grad is None for parameter in initial.parameters())


def test_a_buffer_that_counts_calls():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = perceptron()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, inputs):
            self.calls += 1
            return self.inner(inputs)

    model, initial, inputs = pair(Counting)
    initial.calls.zero_(), model.calls.zero_()
    plain = ntk_distance(model.inner, initial.inner, inputs)
    assert float(ntk_distance(model, initial, inputs)) == pytest.approx(float(plain), abs=1e-12)
    assert model.calls == initial.calls == 0


def test_one_output_as_a_vector():
    model, initial, inputs = pair(lambda: perceptron(outputs=1))
    flat = [Shaped(one, lambda values: values.squeeze()) for one in (model, initial)]
    plain = float(ntk_distance(model, initial, inputs))
    assert float(ntk_distance(*flat, inputs)) == pytest.approx(plain, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rows_are_undefined(dtype):
    model, initial, inputs = pair(lambda: perceptron(outputs=1), dtype=dtype)
    copies = inputs[:1].repeat(N, 1)
    for outputs in ("all", "trace"):
        with pytest.warns(DegenerateWarning, match="all rows of the Jacobian of ") as said:
            assert math.isnan(float(ntk_distance(model, initial, copies, outputs=outputs)))
        assert [str(one.message).split()[6] for one in said] == ["model", "initial_model"]
        assert {one.filename for one in said} == {__file__}
    constant = Shaped(initial, torch.zeros_like)
    with pytest.warns(DegenerateWarning, match="all rows of the Jacobian of initial_model"):
        assert math.isnan(float(ntk_distance(model, constant, inputs)))


def _with(part, training=True):
    model, initial, inputs = pair(lambda: nn.Sequential(nn.Linear(D, 8), part, nn.Linear(8, C)))
    model[1].train(training)
    return model, initial, inputs


class Noisy(nn.Module):
    def forward(self, inputs):
        return inputs + torch.randn_like(inputs)


class Mixing(nn.Module):
    def forward(self, inputs):
        return inputs - inputs.mean(0)


@pytest.mark.parametrize(
    ("part", "training", "message"),
    [
        (nn.BatchNorm1d(8), True, r"^model: BatchNorm1d '1' is in train mode .* call model.eval"),
        (nn.BatchNorm1d(8, track_running_stats=False), False, "^model: .*has no running statist"),
        (nn.Dropout(0.5), True, r"^model: Dropout '1' drops units .* call model.eval\(\)"),
        (Noisy(), False, "^model: it draws random numbers .* call eval"),
        (Mixing(), False, "^model: the outputs for a sample change .* call eval"),
    ],
)
def test_models_that_mix_samples_or_throw_dice(part, training, message):
    model, initial, inputs = _with(part, training)
    with pytest.raises(RichbookError, match=message):
        ntk_distance(model, initial, inputs)
    with pytest.raises(RichbookError, match=message.replace("^model", "^initial_model")[:24]):
        ntk_distance(perceptron().double(), model, inputs)


def test_dropout_that_drops_nothing_may_be_in_train_mode():
    assert float(ntk_distance(*_with(nn.Dropout(0.0)))) > 0


def test_what_cannot_be_compared():
    model, initial, inputs = pair()
    bad = inputs.clone()
    bad[4, 1] = math.nan
    diverged = copy.deepcopy(model)
    with torch.no_grad():
        diverged[2].bias.fill_(math.inf)
    root = Shaped(model, lambda values: (0 * values).sqrt())
    lazy = nn.LazyLinear(C)
    wide = perceptron(outputs=C + 1).double()
    for arguments, message in [
        ((model.forward, initial, inputs), "^model: expected a torch.nn.Module, got method"),
        ((model, None, inputs), "^initial_model: expected a torch.nn.Module, got NoneType"),
        ((model, initial, "digits"), r"^inputs: expected a tensor of shape \(n, ...\), got str"),
        ((model, initial, inputs[:1]), "^inputs: expected at least 2 samples"),
        ((model, initial, inputs[0, 0]), r"^inputs: expected at least 2 samples .* got \(\)"),
        ((model, initial, bad), "^inputs: row 4 contains nan"),
        ((model, initial, inputs[:, :2]), r"^inputs: model cannot be called on .*\(6, 2\)"),
        ((model, initial, inputs.float()), "^inputs: model cannot be called on torch.float32"),
        ((model, wide, inputs), "^initial_model: expected 3 outputs, as model has, got 4"),
        ((diverged, initial, inputs), "^model: its outputs for sample 0 contain nan or an inf"),
        ((root, initial, inputs), "^model: its derivatives at sample . contain nan or an inf"),
        ((model, lazy, inputs), "^initial_model: it has lazy parameters"),
        ((nn.ReLU(), initial, inputs), "^model: none of its 0 parameters requires a gradient"),
    ]:
        with pytest.raises(RichbookError, match=message):
            ntk_distance(*arguments)
    for form, got in [
        (lambda values: (values, values), "got tuple"),
        (lambda values: values[:, None], r"got torch.float64 of shape \(6, 1, 3\)"),
        (lambda values: values[:3], r"of shape \(3, 3\)"),
        (lambda values: values.argmax(1), r"got torch.int64 of shape \(6,\)"),
    ]:
        with pytest.raises(RichbookError, match=rf"^model: expected outputs of shape .*{got}"):
            ntk_distance(Shaped(model, form), initial, inputs)
    for options, message in [
        ({"outputs": "some"}, "^outputs: expected 'all' or 'trace', got 'some'"),
        ({"memory": 0}, "^memory: expected a positive number of bytes, got 0"),
        ({"memory": "1GB"}, "^memory: expected a positive number"),
    ]:
        with pytest.raises(RichbookError, match=message):
            ntk_distance(model, initial, inputs, **options)
