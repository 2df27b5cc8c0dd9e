"""Every kind of loader and of batch, and what to say about those that are none."""

import collections
import dataclasses

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from richbook.measure import RichbookError
from richbook.measure.capture import ForwardPasses
from tests.measure.capture.networks import Hooked, drawn, mlp, seeded

INPUTS, LABELS = drawn(23, 3), torch.arange(23) % 4
Pair = collections.namedtuple("Pair", "inputs targets")


def joined(batches):
    """All batches' features, outputs and targets in one."""
    batches = list(batches)
    targets = [batch.targets for batch in batches if batch.targets is not None]
    return (
        torch.cat([batch.features for batch in batches]),
        torch.cat([batch.outputs for batch in batches]),
        torch.cat(targets) if targets else None,
    )


def keyword_model() -> nn.Module:
    """A model whose input has a name."""
    return Hooked(lambda m, *, pixels, scale=1.0: m.net(pixels * scale), net=mlp())


DataSet = TensorDataset(INPUTS, LABELS)
LOADERS = {
    "DataLoader with a ragged last batch": lambda: DataLoader(DataSet, batch_size=5),
    "batches of one": lambda: DataLoader(DataSet, batch_size=1),
    "one batch": lambda: DataLoader(DataSet, batch_size=99),
    "list of tuples": lambda: [(INPUTS[:20], LABELS[:20]), (INPUTS[20:], LABELS[20:])],
    "list of lists": lambda: [[INPUTS, LABELS]],
    "named tuples": lambda: [Pair(INPUTS, LABELS)],
    "tuple of tuples": lambda: ((INPUTS[:20], LABELS[:20]), (INPUTS[20:], LABELS[20:])),
    "generator": lambda: ((INPUTS[k::3], LABELS[k::3]) for k in range(3)),
    "iterator": lambda: iter([(INPUTS, LABELS)]),
    "numpy": lambda: [(INPUTS.numpy(), LABELS.numpy())],
    "labels in a list": lambda: [(INPUTS, LABELS.tolist())],
    "labels in a column": lambda: [(INPUTS, LABELS[:, None])],
    "with more targets": lambda: [(INPUTS, LABELS.to(torch.int16))],
}


@pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)
def test_inputs_and_targets(loader, device):
    model = seeded(mlp, device)
    order = torch.cat([torch.arange(k, 23, 3) for k in range(3)])
    features, outputs, targets = joined(ForwardPasses(model, loader()))
    order = order if isinstance(loader(), collections.abc.Generator) else torch.arange(23)
    with torch.no_grad():
        wanted = model[:4](INPUTS[order].to(device))
        torch.testing.assert_close(features, wanted, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(outputs, model[4](wanted), rtol=1e-5, atol=1e-6)
    assert targets.device.type == device
    assert targets.tolist() == LABELS[order].tolist()


@pytest.mark.parametrize("batch", [INPUTS, (INPUTS,), [INPUTS], INPUTS.numpy()])
def test_inputs_alone(batch, device):
    model = seeded(mlp, device)
    found = list(ForwardPasses(model, [batch, batch]))
    assert [batch.targets for batch in found] == [None, None]
    assert found[0].features.shape == (23, 16)


@pytest.mark.parametrize("key", ["labels", "label", "targets", "target", "y"])
def test_dictionaries(key, device):
    model = seeded(keyword_model, device)
    batch = {"pixels": INPUTS, key: LABELS, "scale": torch.tensor(2.0)}
    passes = ForwardPasses(model, [batch, collections.UserDict(batch)])
    for found in passes:
        with torch.no_grad():
            torch.testing.assert_close(found.outputs, model.net(2 * INPUTS.to(device)))
        assert found.targets.tolist() == LABELS.tolist()
    assert passes.head_name == "net.4"
    assert key in batch  # the loader's own dictionary is as it was
    (found,) = ForwardPasses(model, [{"pixels": INPUTS}])
    assert found.targets is None


def test_several_inputs(device):
    """Of more than two the last is the targets; what is nested moves too."""

    def forward(m, first, second, more):
        return m.net(first * second + more["part"][0])

    model = seeded(lambda: Hooked(forward, net=mlp()), device)
    more = {"part": [INPUTS, "text"], "none": None}
    (batch,) = ForwardPasses(model, [(INPUTS, INPUTS, more, LABELS)])
    with torch.no_grad():
        wanted = model.net((INPUTS * INPUTS + INPUTS).to(device))
    torch.testing.assert_close(batch.outputs, wanted)
    assert batch.targets.tolist() == LABELS.tolist()


def test_objects_that_move_themselves():
    @dataclasses.dataclass
    class Graph:
        x: torch.Tensor
        moved_to: object = None

        def to(self, device):
            return Graph(self.x.to(device), device)

    seen = []
    model = seeded(lambda: Hooked(lambda m, graph: (seen.append(graph), m.net(graph.x))[1],
                                  net=mlp()))  # fmt: skip
    for batch in (Graph(INPUTS), (Graph(INPUTS), LABELS)):
        list(ForwardPasses(model, [batch]))
    assert [graph.moved_to for graph in seen] == [torch.device("cpu")] * 2


def test_models_without_parameters_or_with_buffers_only():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("factor", torch.tensor(2.0))

        def forward(self, x):
            return x * self.factor

    for model in (nn.ReLU(), Scale()):
        (batch,) = ForwardPasses(model, [INPUTS], head=model)
        assert torch.equal(batch.features, INPUTS)


def test_the_same_passes_again(device):
    passes = ForwardPasses(seeded(mlp, device), [(INPUTS, LABELS)], layers=["0"])
    first, second = joined(passes), joined(passes)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


TOKENS = torch.arange(24).reshape(4, 6)
PIECES = {
    "some of other lengths": lambda: (INPUTS[:20], INPUTS[20:].clone()),
    "three and a rest": lambda: INPUTS.split(7),
    "two alike": lambda: INPUTS[:22].split(11),
    "four alike": lambda: INPUTS[1:21].chunk(4),
    "numpy": lambda: (INPUTS.numpy()[:20], INPUTS.numpy()[20:]),
    "one": lambda: INPUTS.split(64),
}


@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES)
def test_a_tensor_in_pieces(pieces):
    found = list(ForwardPasses(seeded(mlp), pieces()))
    assert [len(batch.features) for batch in found] == [len(piece) for piece in pieces()]
    assert all(batch.targets is None for batch in found)
    wanted = torch.cat([torch.as_tensor(piece) for piece in pieces()])
    (whole,) = ForwardPasses(seeded(mlp), [wanted])
    torch.testing.assert_close(torch.cat([batch.features for batch in found]), whole.features)


@pytest.mark.parametrize(
    "tensors",
    [
        (INPUTS, INPUTS.clone()),  # inputs and what to reconstruct
        (TOKENS, torch.ones_like(TOKENS), TOKENS.clone()),  # tokens, mask, labels
        (drawn(9, 6)[:, :3], drawn(9, 6)[:, 3:]),
        drawn(9, 6).split(3, dim=1),  # columns: of one memory, but not row after row
        (INPUTS[:9], drawn(23, 3)[9:18]),
        (INPUTS.numpy(), INPUTS.numpy().copy()),
        (INPUTS, INPUTS.double()[:9]),
        (INPUTS, drawn(9, 4)),
        (np.array(["a", "b"], dtype=object), np.array(["c"], dtype=object)),
    ],
)
def test_tensors_that_may_be_inputs_and_targets(tensors):
    told = f"^loader: expected an iterable of batches, got a tuple of {len(tensors)} tensors; wrap"
    with pytest.raises(RichbookError, match=told):
        ForwardPasses(seeded(mlp), tensors)


NOT_LOADERS = {
    "a Tensor of shape (23, 3); wrap a single batch in a list: [(inputs, targets)]": INPUTS,
    "a ndarray of shape (23, 3); wrap": INPUTS.numpy(),
    "a tuple of 2 tensors; wrap": (INPUTS, LABELS),
    "a tuple of 3 tensors; wrap": (LABELS[:9], LABELS[9:18], LABELS[18:]),
    "a list of inputs and targets; wrap": [INPUTS, LABELS],
    "a dict; wrap": {"x": INPUTS},
    "a str; wrap": "digits",
    "a int; wrap": 3,
    "a NoneType; wrap": None,
    "a TensorDataset, which yields single samples; wrap it: torch.utils.data.DataLoader": DataSet,
}


@pytest.mark.parametrize("told", NOT_LOADERS)
def test_what_is_no_loader(told):
    with pytest.raises(RichbookError) as caught:
        ForwardPasses(seeded(mlp), NOT_LOADERS[told])
    assert str(caught.value).startswith(f"loader: expected an iterable of batches, got {told}")


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ("text", "loader: expected batches that are .inputs, targets., a tensor, .* got str"),
        ((), "loader: expected batches .* got an empty tuple"),
        (3, "loader: expected batches .* got int"),
        ((INPUTS, ["cat"] * 23), "targets: expected a tensor or numbers, got list; leave out"),
        ((INPUTS, {"boxes": 3}), "targets: expected a tensor or numbers, got dict"),
        ({"pixels": INPUTS, "label": 1, "y": 2}, "loader: a batch has 'label' and 'y'; keep one"),
    ],
)
def test_what_is_no_batch(batch, message):
    with pytest.raises(RichbookError, match=f"^{message}"):
        list(ForwardPasses(seeded(mlp), [batch]))


@pytest.mark.parametrize("loader", [[], (), iter([]), DataLoader([], batch_size=2)])
def test_an_empty_loader(loader):
    with pytest.raises(RichbookError, match=r"^loader: it gave no batch \(a generator is used up"):
        list(ForwardPasses(seeded(mlp), loader))


def test_a_used_up_generator():
    passes = ForwardPasses(seeded(mlp), (INPUTS for _ in range(2)))
    assert len(list(passes)) == 2
    with pytest.raises(RichbookError, match="^loader: it gave no batch"):
        list(passes)


def test_batches_without_samples():
    """They are skipped: the model does not see them, and nothing is learnt from them."""
    sizes = []
    model = seeded(
        lambda: Hooked(lambda m, x: (sizes.append(len(x)), m.net(x).softmax(-1))[1], net=mlp())
    )
    empty = INPUTS[:0], LABELS[:0]
    found = list(ForwardPasses(model, [empty, (INPUTS, LABELS), empty], layers="all"))
    assert sizes == [23] and [len(batch.features) for batch in found] == [23]
    for loader in ([empty], [{"x": INPUTS[:0], "scale": torch.tensor(1.0)}], [INPUTS[:0]] * 2):
        with pytest.raises(RichbookError, match="^loader: it gave no samples; every batch is empt"):
            list(ForwardPasses(model, loader))


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_wide_unsigned_labels(dtype, device):
    """torch stores them, and can do little else with them."""
    for labels in (LABELS.to(dtype), LABELS.to(dtype).numpy()):
        (batch,) = ForwardPasses(seeded(mlp, device), [(INPUTS, labels)])
        assert batch.targets.dtype == torch.int64 and batch.targets.tolist() == LABELS.tolist()


def test_ignored_among_several_labels(device):
    """A row that lacks one of its labels is left out: −100 is no value."""
    labels = (torch.arange(46).reshape(23, 2) % 3) // 2
    labels[4, 1] = labels[9] = -100
    kept = [k for k in range(23) if k not in (4, 9)]
    model = seeded(mlp, device)
    (batch,) = ForwardPasses(model, [(INPUTS, labels)], layers=["0"])
    (whole,) = ForwardPasses(model, [INPUTS], layers=["0"])
    assert batch.targets.tolist() == labels[kept].tolist()
    assert torch.equal(batch.features, whole.features[kept])
    assert torch.equal(batch.layers["0"], whole.layers["0"][kept])
    (batch,) = ForwardPasses(model, [(INPUTS, labels.double())])  # of real numbers none is ignored
    assert len(batch.targets) == 23


def test_numbers_that_are_kept_as_they_are():
    """Nothing is cast: the measures decide about precision."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        model = seeded(mlp).to(dtype)
        (batch,) = ForwardPasses(model, [INPUTS.to(dtype)], layers=["1"])
        kept = {batch.features.dtype, batch.outputs.dtype, batch.layers["1"].dtype}
        assert kept == {dtype}


def test_a_numpy_array_of_objects_is_left_alone():
    names = np.array(["a", None], dtype=object)
    seen = []
    model = seeded(lambda: Hooked(lambda m, x, names: (seen.append(names), m.net(x))[1], net=mlp()))
    list(ForwardPasses(model, [(INPUTS, names, LABELS)]))
    assert seen[0] is names
