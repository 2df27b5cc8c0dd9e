"""The model, and everybody's random numbers, are as they were: after the pass, between its batches,
after an error, and after a loop that was left."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from richbook.measure import RichbookError
from richbook.measure.capture import ForwardPasses
from richbook.measure.capture.state import BufferKeeper, RandomStream, evaluating
from tests.measure.capture.networks import ConvNet, Hooked, Transformer, drawn, mlp, seeded


def random_numbers() -> list:
    """The states of all generators."""
    states = [torch.get_rng_state(), random.getstate(), repr(np.random.get_state())]
    if torch.cuda.is_available():
        states += torch.cuda.get_rng_state_all()
    return [state.tolist() if isinstance(state, torch.Tensor) else state for state in states]


def hooks(model) -> list:
    """How many hooks of each kind every module has."""
    kinds = [name for name in vars(nn.Module()) if name.endswith(("_hooks", "_with_kwargs"))]
    assert "_forward_hooks" in kinds and "_forward_pre_hooks_with_kwargs" in kinds
    return [[len(vars(module)[kind]) for kind in kinds] for module in model.modules()]


def snapshot(model) -> dict:
    """All that a pass must leave alone."""
    return {
        "modes": [module.training for module in model.modules()],
        "hooks": hooks(model),
        "gradients": [
            None if p.grad is None else (id(p.grad), p.grad.tolist()) for p in model.parameters()
        ],
        "frozen": [p.requires_grad for p in model.parameters()],
        "parameters": [(id(p), p.tolist(), p._version) for p in model.parameters()],
        "buffers": [(name, id(b), b.to_dense().tolist()) for name, b in model.named_buffers()],
        "keys": [sorted(vars(module)) for module in model.modules()],
        "random numbers": random_numbers(),
        "gradients are on": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "fused": torch.backends.mha.get_fastpath_enabled(),
    }


def prepared(device: str) -> nn.Module:
    """A convolutional network: modes mixed, a layer frozen, a gradient, a hook of its own."""
    model = seeded(ConvNet, device)
    model.train()
    model.norm2.eval()
    model.conv1.requires_grad_(False)
    model.head.weight.grad = torch.ones_like(model.head.weight)
    model.head.register_forward_hook(lambda module, args, output: None)
    return model


def images(count: int = 12) -> TensorDataset:
    """Images and labels."""
    return TensorDataset(drawn(count, 1, 6, 6), torch.arange(count) % 3)


def noise(x):
    """A draw from each of the three generators."""
    return x + torch.rand(()) + random.random() + np.random.rand()


@pytest.mark.parametrize("train_mode", [False, True])
@pytest.mark.parametrize("layers", [None, "all"])
def test_after_and_between(train_mode, layers, device):
    model = prepared(device)
    loader = DataLoader(images(), batch_size=5, shuffle=True)
    before = snapshot(model)
    for batch in ForwardPasses(model, loader, layers=layers, train_mode=train_mode):
        assert snapshot(model) == before
        assert batch.features.grad_fn is None and not batch.features.requires_grad
        model(drawn(2, 1, 6, 6).to(device)) if not train_mode else None
        before = snapshot(model)
    assert snapshot(model) == before


def test_a_model_that_raises(device):
    model = prepared(device)
    passes = ForwardPasses(model, [drawn(5, 1, 6, 6), drawn(5, 2, 6, 6)], layers="all")
    before = snapshot(model)
    with pytest.raises(RuntimeError, match="channels"):
        list(passes)
    assert snapshot(model) == before
    with pytest.raises(RuntimeError, match="channels"):
        list(ForwardPasses(model, [drawn(5, 2, 6, 6)], train_mode=True))
    assert snapshot(model) == before


def test_a_loader_that_raises(device):
    def loader():
        yield noise(drawn(5, 1, 6, 6))
        noise(0)
        raise OSError("the disk is gone")

    model = prepared(device)
    before = snapshot(model)
    with pytest.raises(OSError, match="the disk is gone"):
        list(ForwardPasses(model, loader()))
    assert snapshot(model) == before


def test_our_own_errors(device):
    """Errors found inside the forward pass, too."""
    model = seeded(Transformer, device).train()
    before = snapshot(model)
    tokens = torch.arange(20).reshape(4, 5) % 11
    for settings in ({}, {"layers": "all"}, {"head": "head"}, {"layers": ["norm"], "position": 9}):
        with pytest.raises(RichbookError, match="^position"):
            list(ForwardPasses(model, [tokens], **settings))
        assert snapshot(model) == before


def test_a_loop_that_is_left(device):
    """Also while somebody still holds the iterator: nothing is open between two batches."""
    model = prepared(device)
    before = snapshot(model)
    iterator = iter(ForwardPasses(model, DataLoader(images(), batch_size=5), layers="all"))
    next(iterator)
    assert snapshot(model) == before
    iterator.close()
    assert snapshot(model) == before


def test_evaluation_is_the_default(device):
    model = prepared(device)
    inputs = drawn(6, 1, 6, 6)
    (batch,) = ForwardPasses(model, [inputs])
    with torch.no_grad():
        wanted = seeded(ConvNet, device)(inputs.to(device))
    torch.testing.assert_close(batch.outputs, wanted)


def test_train_mode_takes_the_statistics_of_the_batch(device):
    """norm1 is in train mode and norm2 is not, as they were; the dropout drops."""
    model = prepared(device)
    inputs = drawn(6, 1, 6, 6)
    passes = ForwardPasses(model, [inputs, inputs], layers=["norm1", "norm2"], train_mode=True)
    first, second = passes
    with torch.no_grad():
        maps = model.conv1(inputs.to(device))
        normed = nn.functional.batch_norm(maps, None, None, training=True)
        torch.testing.assert_close(
            first.layers["norm1"], normed.mean((2, 3)), rtol=1e-4, atol=1e-5
        )
        second_maps = model.conv2(normed.relu())
        statistics = model.norm2.running_mean, model.norm2.running_var
        torch.testing.assert_close(
            first.layers["norm2"],
            nn.functional.batch_norm(second_maps, *statistics).mean((2, 3)),
            rtol=1e-4, atol=1e-5,
        )  # fmt: skip
    assert (first.features == 0).any() and not torch.equal(first.features, second.features)
    torch.testing.assert_close(first.layers["norm1"], second.layers["norm1"])


def test_a_pass_can_be_repeated_and_does_not_disturb():
    """The same seed gives the same pass, whatever is drawn between its batches."""
    model = prepared("cpu")
    loader = DataLoader(images(), batch_size=4, shuffle=True)

    def noisy():
        for x, y in loader:
            yield noise(x), y

    def run(disturb: bool) -> tuple[torch.Tensor, float]:
        torch.manual_seed(5)
        np.random.seed(5)
        random.seed(5)
        found = []
        for batch in ForwardPasses(model, noisy(), train_mode=True):
            found.append(batch.features)
            if disturb:
                noise(0)
        return torch.cat(found), float(noise(torch.zeros(())))

    (features, after), (again, later) = run(False), run(True)
    assert torch.equal(features, again)
    assert after != later  # the caller's own draws are kept
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    assert float(noise(torch.zeros(()))) == after


class Counter(nn.Module):
    """A module that changes its buffers in every way there is."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("added", torch.zeros(3))
        self.register_buffer("assigned", torch.zeros(()))
        self.register_buffer("behind", torch.zeros(2))
        self.register_buffer("nothing", None)
        self.register_buffer("table", torch.zeros(2), persistent=False)
        self.register_buffer("sparse", torch.eye(3).to_sparse())
        self.length = 2

    def forward(self, x):
        self.added.add_(1)
        self.assigned = self.assigned + 1
        self.behind.data.fill_(7)
        if len(x) > self.length:  # a longer table, and its length beside it
            self.table, self.length = torch.zeros(len(x)), len(x)
        if not hasattr(self, "lazy"):
            self.register_buffer("lazy", torch.ones(1))
        return x * self.sparse.sum() + self.added.sum() * self.assigned + self.table.sum()


def test_buffers_written_to_in_every_way(device):
    model = seeded(lambda: nn.Sequential(Counter(), nn.Linear(3, 2)), device)
    before = snapshot(model)
    wanted = {name: value for name, value in vars(model[0]).items() if name != "_buffers"}
    buffers = dict(model[0]._buffers)
    first, second, third = ForwardPasses(model, [drawn(4, 3)] * 3)
    # every batch meets the model as it is
    assert torch.equal(first.features, second.features)
    assert torch.equal(first.features, third.features)
    now = dict(model[0]._buffers)
    assert list(now) == list(buffers) and all(now[name] is buffers[name] for name in buffers)
    assert now["added"].tolist() == [0, 0, 0] and now["behind"].tolist() == [0, 0]
    assert {name: value for name, value in vars(model[0]).items() if name != "_buffers"} == wanted
    assert snapshot(model) == before


def test_an_untouched_buffer_is_not_written_to():
    """A pending backward pass may need it: torch would refuse after any write, even of the same."""
    model = seeded(ConvNet)
    loss = model(drawn(5, 1, 6, 6)).sum()
    versions = [buffer._version for buffer in model.buffers()]
    list(ForwardPasses(model, [drawn(5, 1, 6, 6)] * 3, layers="all"))
    assert [buffer._version for buffer in model.buffers()] == versions
    loss.backward()


def test_no_gradients_are_made_or_lost():
    model = seeded(mlp)
    model(drawn(5, 3)).sum().backward()
    before = [parameter.grad.clone() for parameter in model.parameters()]
    for batch in ForwardPasses(model, [drawn(5, 3)] * 2, layers="all"):
        tensors = [batch.features, batch.outputs, *batch.layers.values()]
        assert not any(tensor.requires_grad for tensor in tensors)
        assert torch.is_grad_enabled()
    for parameter, gradient in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter.grad, gradient)


def test_a_model_that_turns_gradients_on():
    def forward(m, x):
        with torch.enable_grad():
            return m.fc(x)

    (batch,) = ForwardPasses(seeded(lambda: Hooked(forward, fc=nn.Linear(3, 2))), [drawn(5, 3)])
    assert not batch.outputs.requires_grad and batch.outputs.grad_fn is None


def test_a_train_method_that_does_more_is_not_called():
    class Merging(nn.Linear):
        def train(self, mode=True):
            raise AssertionError("this one merges weights")

    model = seeded(lambda: nn.Linear(3, 2))
    model.inner = Merging(3, 3)
    model.inner.training = True
    list(ForwardPasses(model, [drawn(5, 3)]))
    assert model.inner.training


def test_blocks_that_raise():
    """The pieces put things back by themselves: other measures use them too."""
    model = prepared("cpu")
    before = snapshot(model)
    modules = list(model.modules())
    with pytest.raises(KeyError):
        with RandomStream([]).drawn(), BufferKeeper(modules).kept(), evaluating(modules):
            assert not any(module.training for module in modules)
            noise(0)
            model.norm1.running_mean.fill_(3)
            raise KeyError
    assert snapshot(model) == before


def test_numpys_newer_generators(monkeypatch):
    """numpy can be told to draw from another bit generator."""
    kept = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(3))
    try:
        stream, wanted = RandomStream([]), np.random.RandomState(np.random.PCG64(3)).rand(2)
        with stream.drawn():
            first = np.random.rand()
        with stream.drawn():
            second = np.random.rand()
        assert [first, second] == wanted.tolist() and np.random.rand() == first
    finally:
        np.random.set_bit_generator(kept)
