"""Precisions, grad modes, compiled and wrapped models."""

import contextlib

import pytest
import torch
from torch import nn

from richbook.measure import RichbookError
from richbook.measure.capture import ForwardPasses
from richbook.measure.capture.hooks import hooked
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


def one(model, inputs, **settings):
    """The only batch of a loader."""
    (batch,) = ForwardPasses(model, [inputs], **settings)
    return batch


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_the_callers_grad_mode(context, device):
    model = seeded(ConvNet, device)
    wanted = one(model, drawn(6, 1, 6, 6), layers="all")
    with context():
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        inputs = drawn(6, 1, 6, 6) + 0  # an inference tensor in inference mode
        for batch in ForwardPasses(model, [inputs, inputs], layers="all"):
            assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == modes
            assert torch.equal(batch.features, wanted.features)
            assert not batch.features.is_inference()
            for name, values in batch.layers.items():
                assert torch.equal(values, wanted.layers[name])


def test_a_model_made_in_inference_mode(device):
    with torch.inference_mode():
        model = seeded(ConvNet, device)
    batch = one(model, drawn(6, 1, 6, 6))
    wanted = one(seeded(ConvNet, device), drawn(6, 1, 6, 6))
    torch.testing.assert_close(batch.outputs, wanted.outputs)


@pytest.mark.parametrize("wrap", [None, torch.relu_, lambda x: x.softmax(-1), lambda x: x.float()])
def test_autocast(wrap, device):
    model = seeded(mlp, device)
    net = model if wrap is None else Hooked(lambda m, x: wrap(m.net(x)), net=model).eval()
    with torch.autocast(device, dtype=torch.bfloat16):
        batch = one(net, drawn(10, 3), layers="all")
        assert torch.is_autocast_enabled(device)
        with torch.no_grad():
            wanted = model[:4](drawn(10, 3).to(device))
            outputs = model[4](wanted)
    assert batch.outputs.dtype == outputs.dtype == torch.bfloat16
    torch.testing.assert_close(batch.features, wanted)
    torch.testing.assert_close(batch.outputs, outputs)


def test_training_goes_on_under_autocast(device):
    """A pass inside the block leaves nothing behind that later gradients would miss."""
    model = seeded(mlp, device)
    with torch.autocast(device, dtype=torch.bfloat16):
        one(model, drawn(10, 3))
        model(drawn(10, 3).to(device)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_half_precision_weights(device):
    model = seeded(mlp, device).to(torch.bfloat16)
    batch = one(model, (drawn(10, 3).bfloat16(), torch.arange(10)))
    with torch.no_grad():
        wanted = model[:4](drawn(10, 3).bfloat16().to(device))
    assert torch.equal(batch.features, wanted) and batch.outputs.dtype == torch.bfloat16


def counting(compiled: list):
    """A compiler that compiles nothing and counts how often it is asked."""

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    return backend


@contextlib.contextmanager
def fresh_compiler():
    """What is compiled for a test does not count for the next."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("how", ["whole", "in place", "a part", "a part in place", "a function"])
def test_compiled_models(how, device):
    compiled, inputs = [], drawn(6, 3, 6, 6).to(device)
    wanted = one(seeded(ResNet, device), inputs, layers="all")
    backend = counting(compiled)
    with fresh_compiler():
        model = seeded(ResNet, device)
        if how == "whole":
            model = torch.compile(model, backend=backend)
        elif how == "in place":
            model.compile(backend=backend)
        elif how == "a part":
            model.blocks[1] = torch.compile(model.blocks[1], backend=backend)
        elif how == "a part in place":
            model.blocks[1].compile(backend=backend)
        else:
            model.body = torch.compile(model.body, backend=backend)
        with torch.no_grad():
            model(inputs)
        before = len(compiled)
        assert before > 0
        passes = ForwardPasses(model, [inputs, inputs], layers="all")
        for batch in passes:
            assert list(batch.layers) == list(wanted.layers)
            torch.testing.assert_close(batch.features, wanted.features)
            torch.testing.assert_close(batch.layers["blocks.1.bn2"], wanted.layers["blocks.1.bn2"])
        assert passes.head_name == "fc"
        with torch.no_grad():
            model(inputs)
        assert len(compiled) == before  # nothing was compiled again


def test_names_in_a_compiled_model():
    with fresh_compiler():
        model = torch.compile(seeded(mlp), backend="eager")
        for name in ("4", "_orig_mod.4"):
            passes = ForwardPasses(model, [drawn(5, 3)], head=name, layers=["_orig_mod.0", "1"])
            (batch,) = passes
            assert passes.head_name == "4" and list(batch.layers) == ["0", "1"]


def test_a_graph_module(device):
    model = seeded(ConvNet, device)
    graph = torch.fx.symbolic_trace(model)
    wanted, batch = (one(net, drawn(6, 1, 6, 6), layers=["conv1"]) for net in (model, graph))
    torch.testing.assert_close(batch.features, wanted.features)
    torch.testing.assert_close(batch.layers["conv1"], wanted.layers["conv1"])


def test_the_fused_encoder_stays_fused_where_nobody_looks():
    """Only the head is recorded: torch may fuse, and the features are those of a plain call."""
    model, calls = seeded(Encoder), []
    with torch.no_grad():
        wanted = model.body(drawn(4, 5, 8))
    batch = one(model, drawn(4, 5, 8))
    assert torch.equal(batch.features, wanted)
    with hooked([model.encoder.layers[0].linear1], after=lambda *_: calls.append(1)):
        torch.testing.assert_close(one(model, drawn(4, 5, 8)).features, wanted)
    assert calls == [1]  # a hook of the user's own keeps torch from fusing that layer


def _distributed(module):
    class Fake(nn.parallel.DistributedDataParallel):
        def __init__(self):
            nn.Module.__init__(self)
            self.module = module

    return Fake()


REFUSED = {
    "expected a torch.nn.Module, got function": lambda: (lambda x: x),
    "expected a torch.nn.Module, got NoneType": lambda: None,
    "expected a torch.nn.Module, got type .the class, not an instance.": lambda: nn.ReLU,
    "it is a DataParallel, .* pass the module inside it, model.module":
        lambda: nn.DataParallel(mlp()),
    "model.part is a DataParallel, .* model.part.module":
        lambda: Hooked(None, part=nn.DataParallel(mlp())),
    "it is a Fake, whose copies": lambda: _distributed(mlp()),
    "it is scripted or traced": lambda: torch.jit.trace(mlp(), drawn(2, 3)),
    "the parameter '0.weight' has no values yet; run one batch":
        lambda: nn.Sequential(nn.LazyLinear(3)),
    "the parameter '0.weight' has no values yet; load its weights": lambda: mlp().to("meta"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("told", REFUSED)
def test_what_is_refused(told):
    with pytest.raises(RichbookError, match=f"^model: {told}"):
        ForwardPasses(REFUSED[told](), [drawn(2, 3)])


def test_a_function_of_gradients_can_use_the_hooks():
    """Gradients flow through what the hooks record."""
    model, seen = seeded(Transformer), []
    tokens = torch.arange(20).reshape(4, 5) % 11
    with hooked([model.norm], after=lambda module, args, kwargs, output: seen.append(output)):
        model(tokens).sum().backward(inputs=[model.head.weight])
        (gradient,) = torch.autograd.grad(model.head(seen[0]).square().sum(), [seen[0]])
    assert gradient.shape == (4, 5, 8)
