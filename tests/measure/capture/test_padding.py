"""An attention mask says what the last token is, and what counts: padding right, left, anywhere."""

import collections

import pytest
import torch
from torch import nn

from richbook.measure import RichbookError
from richbook.measure.capture import ForwardPasses
from tests.measure.capture.networks import Hooked, drawn, seeded

IDS = torch.arange(20).reshape(4, 5) * 3 % 11
MASKS = {
    "right": [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0], [1, 1, 0, 0, 0]],
    "left": [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1], [0, 0, 0, 1, 1]],
    "between": [[1, 0, 1, 1, 0], [1, 1, 1, 1, 1], [0, 0, 1, 0, 0], [0, 1, 0, 1, 0]],
}
MASKS = {name: torch.tensor(mask) for name, mask in MASKS.items()}
POSITIONS = [-1, 0, 2, -5, "mean", "all"]


def language_model(device: str = "cpu") -> nn.Module:
    """Takes tokens and a mask by name; an ``encoder`` sees other tokens, if there are any."""

    def forward(m, input_ids, attention_mask=None, source=None, **others):
        if source is not None:
            m.encoder(source)
        return {"logits": m.head(m.norm(m.embed(input_ids)))}

    def make():
        embed, encoder = nn.Embedding(11, 6), nn.Embedding(11, 6)
        norm, head = nn.LayerNorm(6), nn.Linear(6, 11)
        return Hooked(forward, embed=embed, encoder=encoder, norm=norm, head=head)

    return seeded(make, device)


def one(model, batch, **settings):
    """The only batch of a loader."""
    (found,) = ForwardPasses(model, [batch], **settings)
    return found


def by_hand(values, mask, position):
    """The rows of (n, T, ...), sample by sample."""
    rows = []
    for sample, attended in zip(values, mask.bool(), strict=True):
        tokens = sample[attended.to(sample.device)]
        if position == "all":
            rows.extend(tokens)
        elif position == "mean":
            rows.append(tokens.mean(0))
        else:
            rows.append(tokens[position] if position < 0 else sample[position])
    return torch.stack(rows)


@pytest.mark.parametrize("side", MASKS)
@pytest.mark.parametrize("position", [-1, 0, 2, "mean", "all"])
@pytest.mark.parametrize("head", [None, "head"])
def test_tokens_and_padding(side, position, head, device):
    model, mask, targets = language_model(device), MASKS[side], drawn(4, 5, 2)
    batch = {"input_ids": IDS, "attention_mask": mask, "targets": targets}
    found = one(model, batch, position=position, head=head, layers=["embed", "norm"])
    with torch.no_grad():
        embedded = model.embed(IDS.to(device))
        features = model.norm(embedded)
        outputs = model.head(features)
    for values, expected in (
        (found.features, features), (found.outputs, outputs), (found.layers["embed"], embedded),
        (found.layers["norm"], features), (found.targets, targets.to(device)),
    ):  # fmt: skip
        wanted = by_hand(expected, mask, position)
        torch.testing.assert_close(values, wanted, rtol=1e-5, atol=1e-6)
        assert values.device.type == device


@pytest.mark.parametrize("position", [-1, -2, "mean", "all"])
def test_padding_does_not_count(position):
    """Whatever lies under the padding, nan too, the rows are the same."""
    model, mask = language_model(), MASKS["left"]
    if position == -2:
        mask = mask.clone()
        mask[2, 0] = 1  # two tokens at least
    batch = {"input_ids": IDS, "attention_mask": mask}
    found = one(model, batch, position=position, layers="all")
    with torch.no_grad():
        model.embed.weight[10] = torch.nan
    batch["input_ids"] = torch.where(mask.bool(), IDS.clamp(max=9), 10)
    other = one(model, batch, position=position, layers="all", head="head")
    assert not other.features.isnan().any() and not other.layers["embed"].isnan().any()
    same = (IDS < 10) | ~mask.bool()
    if position != "all" and bool(same.all()):
        torch.testing.assert_close(other.features, found.features)


def test_labels_and_padding(device):
    """One filter: padding, and labels of −100, of which padding often has one."""
    model, mask, labels = language_model(device), MASKS["right"], torch.arange(20).reshape(4, 5)
    batch = {"input_ids": IDS, "attention_mask": mask, "labels": labels}
    wanted = [0, 1, 2, 5, 6, 7, 8, 9, 10, 15, 16]
    assert one(model, batch, position="all").targets.tolist() == wanted
    assert one(model, batch, position=-1).targets.tolist() == [2, 9, 10, 16]
    assert one(model, batch, position=2).targets.tolist() == [2, 7, 12, 17]
    batch["labels"] = torch.where((labels % 5 == 0) | (mask == 0), -100, labels)
    assert one(model, batch, position="all").targets.tolist() == [1, 2, 6, 7, 8, 9, 16]
    assert one(model, batch, position=-1).targets.tolist() == [2, 9, 16]
    assert one(model, batch, position="mean").targets is None
    batch["labels"] = torch.arange(4)
    assert one(model, batch, position=-1).targets.tolist() == [0, 1, 2, 3]


def test_samples_that_are_all_padding():
    model, mask = language_model(), MASKS["right"].clone()
    mask[1] = 0
    batch = {"input_ids": IDS, "attention_mask": mask, "labels": torch.arange(4)}
    for position in (-1, "mean"):
        found = one(model, batch, position=position, layers=["norm"])
        assert found.targets.tolist() == [0, 2, 3]
        assert len(found.features) == len(found.outputs) == len(found.layers["norm"]) == 3
    assert len(one(model, batch, position=0).features) == 4
    batch["attention_mask"] = torch.zeros(4, 5)
    with pytest.raises(RichbookError, match="^loader: it gave no samples; .* or all is padding"):
        one(model, batch, position=-1)


def test_too_few_tokens():
    batch = {"input_ids": IDS, "attention_mask": MASKS["right"]}
    told = "-2 is out of range, by its attention mask sample 2 has 1 tokens"
    with pytest.raises(RichbookError, match=f"^position: {told}"):
        one(language_model(), batch, position=-2)
    with pytest.raises(RichbookError, match="^position: -6 is out of range, .* has 5 positions"):
        one(language_model(), batch, position=-6)


@pytest.mark.parametrize(
    "mask",
    [MASKS["right"].bool(), MASKS["right"].float(), MASKS["right"].numpy(), 2 * MASKS["right"]],
)
def test_kinds_of_masks(mask):
    batch = collections.UserDict(input_ids=IDS, attention_mask=mask)
    found = one(language_model(), batch, position=-1)
    batch = {"input_ids": IDS, "attention_mask": MASKS["right"]}
    wanted = one(language_model(), batch, position=-1)
    assert torch.equal(found.features, wanted.features)


def test_masks_that_are_added():
    batch = {"input_ids": IDS, "attention_mask": (MASKS["right"] - 1) * 1e9}
    with pytest.raises(RichbookError, match="^loader: 'attention_mask' has negative numbers, exp"):
        one(language_model(), batch, position=-1)


def test_masks_between_positions_are_the_models_business():
    """(n, T, T) and (n, 1, T, T) say who sees whom."""
    for shape in ((4, 5, 5), (4, 1, 5, 5), (5,)):
        batch = {"input_ids": IDS, "attention_mask": torch.zeros(shape)}
        found = one(language_model(), batch, position="all")
        assert len(found.features) == 20


def test_no_padding_is_as_no_mask():
    model = language_model()
    for position in POSITIONS:
        found = one(model, {"input_ids": IDS}, position=position, layers="all")
        batch = {"input_ids": IDS, "attention_mask": torch.ones(4, 5)}
        masked = one(model, batch, position=position, layers="all")
        torch.testing.assert_close(masked.features, found.features)
        torch.testing.assert_close(masked.layers, found.layers)


def test_a_dictionary_in_a_tuple():
    model = seeded(lambda: Hooked(lambda m, batch: m.head(m.embed(batch["input_ids"])),
                                  embed=nn.Embedding(11, 6), head=nn.Linear(6, 3)))  # fmt: skip
    inputs = {"input_ids": IDS, "attention_mask": MASKS["right"]}
    found = one(model, (inputs, torch.arange(4)), position=-1)
    with torch.no_grad():
        wanted = by_hand(model.embed(IDS), MASKS["right"], -1)
    assert torch.equal(found.features, wanted) and found.targets.tolist() == [0, 1, 2, 3]


def test_a_mask_of_other_positions():
    """It is about other sequences: nothing is guessed."""
    batch = {"input_ids": IDS[:, :3], "attention_mask": MASKS["right"]}
    told = r"the input of the head 'head' has the shape \(4, 3, 6\), .* an attention mask"
    for position in (-1, "mean", "all"):
        with pytest.raises(RichbookError, match=rf"^position: {told} \(4, 5\), expected the same"):
            one(language_model(), batch, position=position)
    assert len(one(language_model(), batch, position=2).features) == 4


def test_sequences_of_an_encoder():
    """The mask of the decoder counts: "all" leaves the encoder out, and naming it is an error."""
    batch = {"source": IDS, "attention_mask": MASKS["right"], "input_ids": IDS[:, :3],
             "decoder_attention_mask": MASKS["right"][:, :3]}  # fmt: skip
    model = language_model()
    found = one(model, batch, position=-1, layers="all")
    with torch.no_grad():
        wanted = by_hand(model.norm(model.embed(IDS[:, :3])), MASKS["right"][:, :3], -1)
    assert torch.equal(found.features, wanted) and list(found.layers) == ["embed", "norm"]
    with pytest.raises(RichbookError, match="^position: the output of 'encoder' has the shape"):
        one(model, batch, position=-1, layers=["encoder"])
    del batch["decoder_attention_mask"]
    batch["decoder_input_ids"] = IDS  # without a mask of theirs, all tokens of the decoder count
    assert len(one(model, batch, position="all").features) == 12


def test_a_head_over_tokens_in_rows():
    """(n T, d): every row is a token, or padding."""

    def forward(m, input_ids, attention_mask):
        return m.head(m.embed(input_ids).flatten(0, 1))

    model = seeded(lambda: Hooked(forward, embed=nn.Embedding(11, 6), head=nn.Linear(6, 3)))
    batch = {"input_ids": IDS, "attention_mask": MASKS["left"], "labels": torch.arange(20)}
    found = one(model, batch)
    kept = MASKS["left"].flatten().bool()
    assert found.targets.tolist() == torch.arange(20)[kept].tolist()
    assert torch.equal(found.features, model.embed(IDS).flatten(0, 1)[kept].detach())


def classifier(device: str = "cpu", outputs: int = 4) -> nn.Module:
    """Scores every token and returns the score of the last that is not 0, as GPT-2 does."""

    def forward(m, input_ids, attention_mask=None):
        scores = m.score(m.embed(input_ids))  # (n, T, C)
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        last = (places * (input_ids != 0)).argmax(1)
        return {"logits": scores[torch.arange(len(scores), device=scores.device), last]}

    def make():
        embed, score = nn.Embedding(11, 6), nn.Linear(6, outputs, bias=False)
        return Hooked(forward, embed=embed, score=score)

    return seeded(make, device)


@pytest.mark.parametrize("outputs", [1, 4])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_model_that_picks_the_last_token(side, outputs, device):
    model, mask = classifier(device, outputs), MASKS[side]
    ids = (IDS % 10 + 1) * mask
    batch = {"input_ids": ids, "attention_mask": mask, "labels": torch.arange(4)}
    passes = ForwardPasses(model, [batch, batch], position=-1)
    for found in passes:
        with torch.no_grad():
            wanted = model(ids.to(device))["logits"]
            features = by_hand(model.embed(ids.to(device)), mask, -1)
        torch.testing.assert_close(found.outputs, wanted)
        torch.testing.assert_close(found.features, features)
    assert passes.head_name == "score"


def test_a_model_that_picks_other_tokens_than_the_position():
    """Without the mask, −1 would be padding: the model's own choice tells."""
    model, ids = classifier(), (IDS % 10 + 1) * MASKS["right"]
    told = r"the output of 'score' at other positions than -1; .*with an attention_mask; .*'score'"
    with pytest.raises(RichbookError, match=f"^position: the model returns {told}"):
        one(model, {"input_ids": ids}, position=-1)
    found = one(model, {"input_ids": ids}, position=-1, head="score")
    assert torch.equal(found.features, model.embed(ids)[:, -1].detach())
    assert len(one(model, {"input_ids": ids}, position="all").features) == 20
    assert len(one(model, {"input_ids": IDS % 10 + 1}, position=-1).features) == 4
    with pytest.raises(RichbookError, match="^position: the input of the head 'score' has the sh"):
        one(model, {"input_ids": ids})


def test_half_precision_averages():
    """A sum over many tokens would be too large."""
    model = seeded(lambda: Hooked(lambda m, x, attention_mask: m.fc(m.norm(x)),
                                  norm=nn.Identity(), fc=nn.Linear(1, 1))).half()  # fmt: skip
    mask = torch.ones(2, 100)
    mask[0, 50:] = 0
    found = one(model, {"x": torch.full((2, 100, 1), 2000.0).half(), "attention_mask": mask},
                position="mean")  # fmt: skip
    assert found.features.dtype == torch.float16 and found.features.flatten().tolist() == [2000] * 2
