"""Frozen layers, autocast, compiled models, modes; and the model is left as it was found."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from richbook.measure import DegenerateWarning, RichbookError
from richbook.measure.alignment import layer_moments
from richbook.measure.alignment.passes.gradients import GradientPasses
from tests.measure.alignment.one_at_a_time import distance
from tests.measure.capture.networks import ConvNet, Encoder, Hooked, Transformer, drawn, mlp, seeded
from tests.measure.capture.test_as_found import images, noise, prepared, snapshot

MATRICES = ("H_a", "H_b", "G_a", "G_b")
cross_entropy = functional.cross_entropy


def batches(*tensors, size=5):
    return list(zip(*(tensor.split(size) for tensor in tensors), strict=True))


def data(count=13):
    return drawn(count, 3), torch.arange(count) % 4


def same(found, expected, tolerance=1e-5):
    assert list(found) == list(expected)
    for name in found:
        for matrix in MATRICES:
            pair = getattr(found[name], matrix), getattr(expected[name], matrix)
            assert distance(*pair) < tolerance, (name, matrix)


@pytest.mark.parametrize("frozen", ["all", "first", "all but the last"])
@pytest.mark.parametrize("make, inputs", [
    (mlp, drawn(13, 3)), (ConvNet, drawn(13, 1, 6, 6)), (Encoder, drawn(13, 4, 8)),
], ids=["perceptron", "convolutional", "encoder"])  # fmt: skip
def test_frozen_layers(make, inputs, frozen, device):
    """Neither parameters nor inputs need gradients, and an activation may write in place."""
    model, targets = seeded(make, device), torch.arange(13) % 3
    expected = layer_moments(model, batches(inputs, targets), cross_entropy)
    parameters = list(model.parameters())
    some = {"all": parameters, "first": parameters[:2], "all but the last": parameters[:-2]}
    for parameter in some[frozen]:
        parameter.requires_grad_(False)
    same(layer_moments(model, batches(inputs, targets), cross_entropy), expected)
    assert inputs.grad is None and not inputs.requires_grad


def test_a_frozen_embedding():
    """Tokens are no real numbers: nothing before the first layer could carry a gradient."""
    model, tokens = seeded(Transformer), torch.arange(60).reshape(12, 5) % 11
    loss = lambda outputs, targets: cross_entropy(outputs[:, -1], targets)  # noqa: E731
    expected = layer_moments(model, [(tokens, tokens[:, 0])], loss)
    model.requires_grad_(False)
    same(layer_moments(model, [(tokens, tokens[:, 0])], loss), expected)


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_where_the_caller_has_gradients_off(around, device):
    model, loader = seeded(mlp, device), batches(*data())
    expected = layer_moments(model, loader, cross_entropy)
    with around():
        fresh = batches(*data())  # inference tensors in the second case
        same(layer_moments(model, fresh, cross_entropy), expected)


def half_frozen():
    """A backbone that runs without gradients, and a part that the output does not need."""

    def forward(self, x):
        with torch.no_grad():
            x = self.backbone(x)
        self.unused(x)
        return self.head(x)

    parts = {"backbone": nn.Linear(3, 6), "unused": nn.Linear(6, 2), "head": nn.Linear(6, 4)}
    return Hooked(forward, **parts)


def test_layers_that_no_gradient_reaches():
    model, loader = seeded(half_frozen), batches(*data())
    with pytest.warns(DegenerateWarning, match="is left out: no gradient reaches it") as caught:
        found = layer_moments(model, loader, cross_entropy)
    assert list(found) == ["head"] and len(caught) == 2
    assert all(warning.filename == __file__ for warning in caught)
    for name in ("backbone", "unused"):
        with pytest.raises(RichbookError, match=f"layers: '{name}' cannot be measured: no grad"):
            layer_moments(model, loader, cross_entropy, [name])


class Noisy(nn.Linear):
    """A subclass that is not linear."""

    def forward(self, x):
        return super().forward(x) + torch.sin(x).sum(-1, keepdim=True)


class Named(nn.Linear):
    """A subclass that is."""

    def forward(self, input, scale=None):
        return super().forward(input)


def test_subclasses_of_linear(device):
    def forward(self, x):
        x = torch.tanh(self.first(input=x, scale=1))
        return self.last(self.noisy(x))

    parts = {"first": Named(3, 6), "noisy": Noisy(6, 5), "last": nn.Linear(5, 4)}
    model = seeded(lambda: Hooked(forward, **parts), device)
    with pytest.warns(DegenerateWarning, match="'noisy' is left out: this Noisy does not give W h"):
        found = layer_moments(model, batches(*data()), cross_entropy)
    assert list(found) == ["first", "last"]
    with pytest.raises(RichbookError, match="'noisy' cannot be measured: this Noisy"):
        layer_moments(model, batches(*data()), cross_entropy, "noisy")


def test_parametrized_weights(device):
    model = seeded(mlp, device)
    nn.utils.parametrizations.weight_norm(model[0])
    nn.utils.parametrizations.spectral_norm(model[2])
    found = layer_moments(model, batches(*data()), cross_entropy)
    for name in ("0", "2"):
        assert torch.equal(found[name].weight, model[int(name)].weight.detach().double())


def test_chosen_layers():
    model, loader = seeded(mlp), batches(*data())
    expected = layer_moments(model, loader, cross_entropy)
    found = layer_moments(model, loader, cross_entropy, ["4", model[0]])
    assert list(found) == ["0", "4"]  # in the order of the forward pass
    same(found, {name: expected[name] for name in ("0", "4")}, tolerance=1e-12)
    same(layer_moments(model, loader, cross_entropy, "all"), expected, tolerance=1e-12)


WRONG_LAYERS = {
    "no such": ("body.0", r"layers: the model has no module 'body.0'"),
    "not linear": ("1", r"layers: '1' is of the class ReLU, expected .* are '0', '2', '4'$"),
    "none": ([], "layers: expected at least one layer, got none"),
    "a number": (3, "layers: expected None or a list of names"),
}


@pytest.mark.parametrize("case", WRONG_LAYERS)
def test_layers_that_cannot_be_chosen(case):
    layers, message = WRONG_LAYERS[case]
    with pytest.raises(RichbookError, match=message):
        layer_moments(seeded(mlp), batches(*data()), cross_entropy, layers)


def test_models_without_layers_to_measure():
    loader = batches(drawn(9, 4), torch.arange(9) % 4)
    with pytest.raises(RichbookError, match="model: it has no layer to measure: expected"):
        layer_moments(nn.Tanh(), loader, cross_entropy)
    idle = seeded(lambda: Hooked(lambda self, x: x * self.scale, spare=nn.Linear(4, 4)))
    idle.scale = nn.Parameter(torch.ones(4))
    with pytest.raises(RichbookError, match="calls none of its linear layers"):
        layer_moments(idle, loader, cross_entropy)
    with pytest.raises(RichbookError, match="layers: 'spare' was never called"):
        layer_moments(idle, loader, cross_entropy, "spare")


@pytest.mark.parametrize("loader, message", [
    ([], "loader: it gave no samples"),
    (drawn(5, 3), "loader: expected an iterable of batches"),
    ([(drawn(5, 3), torch.full((5,), -100))], "loader: it gave no samples"),
])  # fmt: skip
def test_loaders_that_give_nothing(loader, message):
    with pytest.raises(RichbookError, match=message):
        layer_moments(seeded(mlp), loader, cross_entropy)


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_gradients_of_any_size(scale):
    """float32 would lose their squares."""
    model, loader = seeded(mlp).double(), batches(data()[0].double(), data()[1])
    expected = layer_moments(model, loader, cross_entropy)
    found = layer_moments(
        model.float(), batches(*data()), lambda out, y: scale * cross_entropy(out, y)
    )
    for name in found:
        assert distance(found[name].G_b / scale**2, expected[name].G_b) < 1e-4


def test_autocast(device):
    """The model computes in bfloat16; moments are float64, and right to its three digits."""
    if device == "mps":
        pytest.skip("autocast to bfloat16 is tried on cpu and cuda")
    for make, inputs in ((mlp, drawn(40, 3)), (ConvNet, drawn(40, 1, 6, 6))):
        model, loader = seeded(make, device), batches(inputs, torch.arange(40) % 3)
        expected = layer_moments(model, loader, cross_entropy)
        with torch.autocast(device, torch.bfloat16):
            found = layer_moments(model, loader, cross_entropy)
            assert torch.is_autocast_enabled(device)
        same(found, expected, tolerance=0.05)
        assert all(getattr(found[n], m).dtype == torch.float64 for n in found for m in MATRICES)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    model, loader = seeded(mlp), batches(*data(40), size=40)
    expected = layer_moments(model, loader, cross_entropy)
    halves = [(inputs.to(dtype), targets) for inputs, targets in loader]
    same(layer_moments(model.to(dtype), halves, cross_entropy), expected, tolerance=0.05)


def test_small_gradients_do_not_vanish_in_half_precision():
    """They are those of a sample's loss, not divided by the size of the batch first."""
    model, (inputs, targets) = seeded(mlp).half(), data(2000)
    loss = lambda outputs, targets: 1e-5 * cross_entropy(outputs.float(), targets)  # noqa: E731
    found = layer_moments(model, [(inputs.half(), targets)], loss)["4"]
    assert (found.G_b.diagonal() > 0).all()


def test_a_compiled_model():
    model, loader = seeded(mlp), batches(*data())
    expected = layer_moments(model, loader, cross_entropy)
    compiled = torch.compile(model, backend="eager")
    compiled(data()[0])
    same(layer_moments(compiled, loader, cross_entropy), expected, tolerance=1e-12)
    inner = nn.Sequential(torch.compile(model, backend="eager"))
    inner(data()[0])
    found = layer_moments(inner, loader, cross_entropy)
    assert list(found) == ["0.0", "0.2", "0.4"]


def test_checkpointed_layers():
    """They run again in the backward pass, which is not counted."""
    from torch.utils.checkpoint import checkpoint

    def forward(self, x):
        if not self.training:
            return self.head(self.body(x))
        return self.head(checkpoint(self.body, x, use_reentrant=False))

    def make():
        return Hooked(forward, body=nn.Sequential(nn.Linear(3, 6), nn.ReLU(True), nn.Linear(6, 6)),
                      head=nn.Linear(6, 4))  # fmt: skip

    model, (inputs, targets) = seeded(make), data()
    expected = layer_moments(model, batches(inputs, targets), cross_entropy)
    found = layer_moments(model.train(), batches(inputs, targets), cross_entropy, train_mode=True)
    assert list(found) == ["body.0", "body.2", "head"]
    same(found, expected, tolerance=1e-6)


def test_evaluation_is_the_default(device):
    model, loader = prepared(device), batches(drawn(12, 1, 6, 6), torch.arange(12) % 3)
    expected = layer_moments(seeded(ConvNet, device), loader, cross_entropy)
    same(layer_moments(model, loader, cross_entropy), expected, tolerance=1e-6)


def test_train_mode_takes_the_statistics_of_the_batch(device):
    """−∂ℓ/∂h of a sample includes what it does to the others' normalisation."""
    model, inputs = seeded(ConvNet, device).train(), drawn(12, 1, 6, 6).to(device)
    model.dropout.eval()
    targets = (torch.arange(12) % 3).to(device)
    found = layer_moments(model, [(inputs, targets)], cross_entropy, "conv2", train_mode=True)
    ends = []
    handle = model.conv2.register_forward_hook(lambda *call: ends.append(call[-1]))
    (gradient,) = torch.autograd.grad(cross_entropy(model(inputs), targets, reduction="sum"), ends)
    handle.remove()
    rows = -gradient.movedim(1, -1).flatten(0, 2).double().cpu()
    assert distance(found["conv2"].G_b.cpu(), rows.T @ rows / len(rows)) < 1e-5
    calm = layer_moments(model, [(inputs, targets)], cross_entropy, "conv2")
    assert distance(calm["conv2"].G_b, found["conv2"].G_b) > 0.1


@pytest.mark.parametrize("train_mode", [False, True])
@pytest.mark.parametrize("settings", [{}, {"groups": True, "unit": True}])
def test_the_model_is_left_as_it_was(settings, train_mode, device):
    """Modes, hooks, gradients, buffers, random states; between batches and after the last one."""
    model = prepared(device)
    loader = DataLoader(images(), batch_size=5, shuffle=True)
    before = snapshot(model)
    for _ in GradientPasses(model, loader, cross_entropy, train_mode=train_mode):
        assert snapshot(model) == before
    layer_moments(model, loader, cross_entropy, train_mode=train_mode, **settings)
    assert snapshot(model) == before


def broken_loader():
    yield noise(drawn(5, 1, 6, 6)), torch.arange(5) % 3
    noise(0)
    raise OSError("the disk is gone")


def broken_loss(outputs, targets):
    raise OSError("no loss")


@pytest.mark.parametrize("loader, loss, error", [
    ([(drawn(5, 1, 6, 6), torch.arange(5) % 3), (drawn(5, 2, 6, 6), torch.arange(5))],
     cross_entropy, "channels"),
    (broken_loader, cross_entropy, "the disk is gone"),
    ([(drawn(5, 1, 6, 6), torch.arange(5))], broken_loss, "no loss"),
    ([(drawn(5, 1, 6, 6), torch.arange(5))], cross_entropy, "loss: called with"),
    ([(drawn(5, 1, 6, 6) * torch.nan, torch.arange(5) % 3)], cross_entropy, "contain nan"),
], ids=["model", "loader", "loss", "targets", "nan"])  # fmt: skip
def test_it_is_so_after_errors_too(loader, loss, error, device):
    model = prepared(device)
    before = snapshot(model)
    with pytest.raises((OSError, RuntimeError, RichbookError), match=error):
        layer_moments(model, loader() if callable(loader) else loader, loss)
    assert snapshot(model) == before


def test_gradients_that_were_there_stay():
    model, (inputs, targets) = seeded(mlp), data()
    cross_entropy(model(inputs), targets).backward()
    before = [(parameter.grad, parameter.grad.clone()) for parameter in model.parameters()]
    layer_moments(model, batches(inputs, targets), cross_entropy, groups=True)
    for parameter, (gradient, values) in zip(model.parameters(), before, strict=True):
        assert parameter.grad is gradient and torch.equal(gradient, values)


def tensors_alive() -> int:
    """How many numbers are in tensors that Python knows of."""
    gc.collect()
    return sum(t.numel() for t in gc.get_objects() if issubclass(type(t), torch.Tensor))


def test_neither_graphs_nor_samples_are_kept(monkeypatch):
    """What is alive while the loader makes a batch does not grow with the number of batches."""
    from richbook.measure.alignment.moments import accumulate

    monkeypatch.setattr(accumulate, "WAITING_BYTES", 50_000)
    model, alive, kept = seeded(mlp), [], []

    def loader():
        for k in range(40):
            if k in (14, 39):
                alive.append(tensors_alive())
            yield drawn(100, 3, seed=k), torch.arange(100) % 4

    model.register_forward_hook(lambda module, args, output: kept.append(weakref.ref(output)))
    assert layer_moments(model, loader(), cross_entropy, groups=True)["4"].count == 4000
    assert alive[1] - alive[0] < 100_000  # 25 batches are 240 000 numbers; some wait
    assert all(reference() is None for reference in kept)
