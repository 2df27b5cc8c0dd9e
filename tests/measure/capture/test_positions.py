"""Tokens and maps: one row a sample, of features, outputs, targets and layers alike."""

import pytest
import torch
from torch import nn

from richbook.measure import RichbookError
from richbook.measure.capture import ForwardPasses
from tests.measure.capture.networks import Encoder, Hooked, Transformer, drawn, seeded

TOKENS = torch.arange(20).reshape(4, 5) * 3 % 11


def conv_head(outputs: int = 3) -> nn.Module:
    """A fully convolutional network: the head is a 1×1 convolution."""
    return nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.Tanh(), nn.Conv2d(6, outputs, 1))


def one(model, inputs, **settings):
    """The only batch of a loader."""
    (batch,) = ForwardPasses(model, [inputs], **settings)
    return batch


@pytest.mark.parametrize("position", [-1, 0, 3, -5, "mean", "all"])
def test_tokens(position, device):
    model = seeded(Transformer, device)
    targets = drawn(4, 5, 2, seed=1)
    batch = one(model, (TOKENS, targets), position=position, layers=["norm", "blocks.1.up"])
    with torch.no_grad():
        features = model.body(TOKENS.to(device))  # (4, 5, 8)
        outputs = model.head(features)
    if position == "all":
        wanted = [features.reshape(20, 8), outputs.reshape(20, 11), targets.reshape(20, 2)]
    elif position == "mean":
        wanted = [features.mean(1), outputs.mean(1), targets.mean(1)]
    else:
        wanted = [features[:, position], outputs[:, position], targets[:, position]]
    found = (batch.features, batch.outputs, batch.targets)
    for values, expected in zip(found, wanted, strict=True):
        assert values.device.type == device
        torch.testing.assert_close(values, expected.to(device), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(batch.layers["norm"], batch.features, rtol=1e-5, atol=1e-6)
    assert batch.layers["blocks.1.up"].shape == (len(batch.features), 16)


def test_tokens_without_a_position():
    message = (
        r"^position: the input of the head 'head' has the shape \(4, 5, 8\), tokens \(n, T, d\); "
        r'pass -1 or another index, "mean" \(their average\) or "all" \(each is a sample\)'
    )
    for head in (None, "head"):
        with pytest.raises(RichbookError, match=message):
            one(seeded(Transformer), TOKENS, head=head)
    with pytest.raises(RichbookError, match="^position: the output of 'encoder.layers.0.norm1'"):
        one(seeded(Encoder), drawn(4, 5, 8), layers=["encoder.layers.0.norm1"])


@pytest.mark.parametrize("position", ["last", 1.5, True, [0], "ALL"])
def test_positions_that_are_none(position):
    with pytest.raises(RichbookError, match='^position: expected None, -1 or another index, "m'):
        ForwardPasses(seeded(Transformer), [], position=position)


@pytest.mark.parametrize("position", [5, -6])
def test_a_position_out_of_range(position):
    message = f"{position} is out of range, the input of the head 'head' has 5 positions, shape"
    with pytest.raises(RichbookError, match=f"^position: {message}"):
        one(seeded(Transformer), TOKENS, position=position)


def test_a_head_after_the_pooling_needs_no_position():
    batch = one(seeded(Encoder), (drawn(4, 5, 8), torch.arange(4)))
    assert batch.features.shape == (4, 8) and batch.targets.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("position", "labels", "wanted"),
    [
        (-1, torch.arange(20).reshape(4, 5), [4, 9, 14, 19]),
        (1, torch.arange(20).reshape(4, 5), [1, 6, 11, 16]),
        ("all", torch.arange(20).reshape(4, 5), list(range(20))),
        (-1, torch.arange(4), [0, 1, 2, 3]),
        ("mean", torch.arange(4), [0, 1, 2, 3]),
        ("mean", torch.arange(4)[:, None], [0, 1, 2, 3]),
    ],
)
def test_labels(position, labels, wanted):
    batch = one(seeded(Transformer), (TOKENS, labels), position=position)
    assert batch.targets.tolist() == wanted


def test_labels_that_cannot_be_averaged():
    """They are left out, −100 among them or not, and a note says so once."""
    labels = torch.arange(20).reshape(4, 5)
    ignored = torch.full((4, 5), -100)
    loader = [(TOKENS, labels), (TOKENS, ignored), (TOKENS, labels[:, :, None])]
    passes = ForwardPasses(seeded(Transformer), loader, position="mean")
    wanted = one(seeded(Transformer), TOKENS, position="mean")
    for batch in passes:
        assert batch.targets is None
        assert torch.equal(batch.features, wanted.features)
    (note,) = passes.notes
    assert note.startswith("targets at each position are labels, which cannot be averaged: they ar")
    passes = ForwardPasses(seeded(Transformer), [(TOKENS, torch.arange(4))], position="mean")
    assert list(passes) and passes.notes == []


@pytest.mark.parametrize(
    ("position", "shape"), [("all", (4,)), (-1, (5,)), (-1, (5, 4)), ("mean", (3, 5))]
)
def test_targets_with_other_rows(position, shape):
    rows = 20 if position == "all" else 4
    shown = str(shape).replace("(", r"\(").replace(")", r"\)")
    message = rf"shape {shown} for {rows} rows of features \(4 samples with the positions \(5,\)\)"
    with pytest.raises(RichbookError, match=f"^targets: {message}"):
        one(seeded(Transformer), (TOKENS, torch.zeros(shape)), position=position)


def test_labels_are_not_shifted():
    """With the tokens themselves for labels, a row's target is the token that was read there."""
    batch = one(seeded(Transformer), (TOKENS, TOKENS), position="all")
    assert batch.targets.tolist() == TOKENS.flatten().tolist()


def test_tokens_whose_label_is_ignored(device):
    """Rows with −100 are gone from everything; batches of nothing else are skipped."""
    model = seeded(Transformer, device)
    labels = torch.arange(20).reshape(4, 5)
    labels[1, 2:] = -100
    labels[3] = -100
    kept = (labels != -100).flatten().to(device)
    loader = [(TOKENS, labels), (TOKENS, torch.full((4, 5), -100)), (TOKENS, labels.to(device))]
    first, second = ForwardPasses(model, loader, position="all", layers=["norm"])
    everything = one(model, TOKENS, position="all", layers=["norm"])
    assert first.targets.tolist() == labels.flatten()[kept.cpu()].tolist()
    for batch in (first, second):
        torch.testing.assert_close(batch.features, everything.features[kept])
        torch.testing.assert_close(batch.outputs, everything.outputs[kept])
        torch.testing.assert_close(batch.layers["norm"], everything.layers["norm"][kept])
    with pytest.raises(RichbookError, match="^loader: it gave no samples; every label is -100"):
        one(model, (TOKENS, torch.full((4, 5), -100)), position="all")


def test_ignored_labels_at_one_position():
    labels = torch.tensor([[1, -100], [-100, 2], [3, 3], [4, 4]])
    batch = one(seeded(Transformer), (TOKENS[:, :2], labels), position=-1)
    assert batch.targets.tolist() == [2, 3, 4] and len(batch.features) == 3


@pytest.mark.parametrize("position", ["mean", "all"])
def test_a_convolution_as_the_head(position, device):
    model = seeded(conv_head, device)
    targets = torch.arange(60).reshape(2, 5, 6)
    dense = drawn(2, 4, 5, 6)
    with torch.no_grad():
        maps = model[:2](drawn(2, 1, 5, 6).to(device))
        outputs = model[2](maps)
    settings = {"head": "2", "position": position, "layers": ["0"]}
    batch = one(model, (drawn(2, 1, 5, 6), dense), **settings)
    if position == "all":
        features = maps.movedim(1, -1).reshape(60, 6)
        outputs = outputs.movedim(1, -1).reshape(60, 3)
        assert one(model, (drawn(2, 1, 5, 6), targets), **settings).targets.tolist() == [*range(60)]
        wanted = dense.movedim(1, -1).reshape(60, 4)
    else:
        features, outputs, wanted = (values.mean((2, 3)) for values in (maps, outputs, dense))
    torch.testing.assert_close(batch.features, features, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(batch.outputs, outputs, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(batch.targets, wanted.to(device), rtol=1e-5, atol=1e-6)
    assert batch.layers["0"].shape == features.shape


@pytest.mark.parametrize("position", [None, -1])
def test_a_map_has_no_index(position):
    message = r"has the shape \(2, 6, 5, 6\), maps \(n, c, h, w\); pass \"mean\" .* or \"all\""
    with pytest.raises(RichbookError, match=f"^position: the input of the head '2' {message}"):
        one(seeded(conv_head), drawn(2, 1, 5, 6), head="2", position=position)


def test_a_convolution_on_one_pixel_needs_no_position():
    def make():
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 3, 1), nn.Flatten())

    model = seeded(make)
    batch = one(model, (drawn(2, 4, 5, 6), torch.tensor([1, 0])), head="1")
    torch.testing.assert_close(batch.features, drawn(2, 4, 5, 6).mean((2, 3)))
    torch.testing.assert_close(batch.outputs, model(drawn(2, 4, 5, 6)).detach())
    assert batch.targets.tolist() == [1, 0]


def test_a_head_that_pools():
    """A map goes in and (n, C) comes out: averaged features fit, all positions do not."""
    top = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))
    model = seeded(lambda: nn.Sequential(nn.Conv2d(1, 6, 3), top))
    batch = one(model, drawn(2, 1, 5, 6), head="1", position="mean")
    assert batch.features.shape == (2, 6) and batch.outputs.shape == (2, 3)
    with pytest.raises(RichbookError, match="^head: '1' takes 24 rows and gives 2, expected as"):
        one(model, drawn(2, 1, 5, 6), head="1", position="all")


@pytest.mark.parametrize("position", ["mean", "all"])
def test_maps_with_the_features_last(position):
    """A linear layer over (n, h, w, c) is over c."""
    model = seeded(
        lambda: Hooked(lambda m, x: m.fc(m.norm(x)), norm=nn.LayerNorm(4), fc=nn.Linear(4, 3))
    )
    inputs, labels = drawn(2, 5, 6, 4), torch.arange(60).reshape(2, 5, 6)
    targets = labels if position == "all" else labels.double()
    batch = one(model, (inputs, targets), position=position, layers="all")
    with torch.no_grad():
        features = model.norm(inputs)
    wanted = features.mean((1, 2)) if position == "mean" else features.reshape(60, 4)
    torch.testing.assert_close(batch.features, wanted)
    torch.testing.assert_close(batch.layers["norm"], wanted)
    assert batch.targets.tolist() == (
        list(range(60)) if position == "all" else labels.double().mean((1, 2)).tolist()
    )


def test_targets_of_a_vector_each():
    model = seeded(lambda: nn.Linear(3, 4))
    for shape, wanted in (((10, 4), (10, 4)), ((10,), (10,)), ((10, 2, 3), (10, 6))):
        targets = drawn(*shape)
        batch = one(model, (drawn(10, 3), targets))
        assert torch.equal(batch.targets, targets.reshape(wanted))
    message = r"shape \(9,\) for 10 rows of features, expected one target a row"
    with pytest.raises(RichbookError, match=f"^targets: {message}"):
        one(model, (drawn(10, 3), torch.zeros(9)))
    with pytest.raises(RichbookError, match=r"^targets: shape \(2, 10\) .*batch first"):
        one(model, (drawn(10, 3), torch.zeros(2, 10)))
    with pytest.raises(RichbookError, match=r"^targets: shape \(\) for 10 rows"):
        one(model, (drawn(10, 3), 7))
