"""``measure`` against the measures it gathers, called by hand on the whole sample."""

import json
import math
import warnings

import pytest
import torch
from torch import nn

import richbook
from richbook.measure import DegenerateWarning, RichbookError

CLASSES = 4


def network(width=12, outputs=CLASSES, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, width), nn.Tanh(),
                         nn.Linear(width, outputs))


def samples(count=500, classes=CLASSES, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=generator)
    inputs = torch.randn(count, 6, generator=generator)
    inputs[:, 0] += labels
    return inputs, labels


def loader(*tensors, block=64):
    """Batches with a ragged last one."""
    return list(zip(*(tensor.split(block) for tensor in tensors), strict=True))


def inside(model, inputs):
    """Features and outputs of the last layer."""
    with torch.no_grad():
        features = model[:-1](inputs)
        return features, model[-1](features)


def test_equals_the_measures_called_by_hand():
    model, (inputs, labels) = network(), samples()
    report = richbook.measure(model, loader(inputs, labels))
    features, outputs = inside(model, inputs)
    assert report.d_lr == pytest.approx(float(richbook.d_lr(features, outputs)), abs=1e-6)
    targets = nn.functional.one_hot(labels).double()
    by_hand = richbook.decompose(features, outputs, targets)
    for name in ("relative_eigenvalues", "utilization", "quality"):
        found, expected = getattr(report.decomposition, name), getattr(by_hand, name)
        assert torch.allclose(found, expected, atol=1e-5), name
    head = model[-1]
    collapse = richbook.neural_collapse(features, labels, head.weight, head.bias).to_dict()
    assert report.collapse.to_dict() == pytest.approx(collapse, rel=1e-5)
    interval = richbook.d_lr_interval(features, outputs)
    assert report.interval.low == pytest.approx(interval.low, abs=0.02)
    assert report.interval.low < report.d_lr - report.interval.bias < report.interval.high
    assert (report.rank, report.samples, report.width, report.outputs) == (4, 500, 12, 4)
    assert report.isotropic_d_lr == richbook.isotropic_d_lr(12, 4)
    size = by_hand.eigenvalues
    assert report.effective_rank == pytest.approx(float(size.sum() ** 2 / size.square().sum()))
    assert (report.head, report.precision, report.warnings) == ("4", "float32", ())


def test_how_the_stream_is_cut_does_not_matter():
    model, (inputs, labels) = network(), samples(3000)
    reports = [
        richbook.measure(model, loader(inputs, labels, block=block)).to_dict()
        for block in (3000, 64, 7)
    ]
    plain = [
        {key: value for key, value in report.items() if not isinstance(value, (list, str))}
        for report in reports
    ]
    assert plain[0] == pytest.approx(plain[1], rel=1e-5)
    assert plain[0] == pytest.approx(plain[2], rel=1e-5)


def test_regression_and_multilabel_targets_have_quality_but_no_collapse():
    model, (inputs, _) = network(), samples()
    features, outputs = inside(model, inputs)
    for targets in (inputs[:, 0], inputs[:, :2].double(), (inputs[:, :3] > 0).long()):
        report = richbook.measure(model, loader(inputs, targets))
        shaped = targets.double().reshape(500, -1)
        expected = richbook.decompose(features, outputs, shaped).quality
        assert torch.allclose(report.decomposition.quality, expected, atol=1e-4)
        assert report.collapse is None


def test_without_targets():
    model, (inputs, _) = network(), samples()
    report = richbook.measure(model, list(inputs.split(100)))
    assert report.decomposition.quality is None and report.collapse is None
    assert report.to_dict()["nc1"] is None and report.to_dict()["quality"] is None
    assert "quality" not in str(report)


def test_labels_beyond_the_outputs_are_left_out_and_said():
    """Also when they come in a late batch, after good ones have been counted."""
    model, (inputs, labels) = network(), samples(3000)
    labels[-1] = 7
    report = richbook.measure(model, loader(inputs, labels))
    assert report.decomposition.quality is None and report.collapse is None
    assert any("labels reach from 0 to 7, beyond the 4 outputs" in w for w in report.warnings)
    plain = richbook.measure(model, loader(inputs))
    assert report.d_lr == pytest.approx(plain.d_lr, abs=1e-9)


def test_one_output_for_two_classes():
    model, (inputs, labels) = network(outputs=1), samples(classes=2)
    report = richbook.measure(model, loader(inputs, labels))
    features, _ = inside(model, inputs)
    assert float(report.collapse.nc1) == pytest.approx(float(richbook.nc1(features, labels)))
    assert math.isnan(float(report.collapse.nc3)) and report.rank == 1


def test_profile_through_depth():
    model, (inputs, labels) = network(), samples()
    report = richbook.measure(model, loader(inputs, labels), layers=["0", "1", "3"])
    _, outputs = inside(model, inputs)
    with torch.no_grad():
        expected = {
            name: float(richbook.d_lr(model[: int(name) + 1](inputs), outputs))
            for name in ("0", "1", "3")
        }
    assert {row.name: row.d_lr for row in report.layers} == pytest.approx(expected, abs=1e-6)
    assert [row.width for row in report.layers] == [20, 20, 12]
    assert report.layers[0].isotropic_d_lr == richbook.isotropic_d_lr(20, 4)
    assert report.layers[2].d_lr == pytest.approx(report.d_lr, abs=1e-6)  # the head's own input


@pytest.mark.filterwarnings("ignore::richbook.measure.DegenerateWarning")
def test_profile_with_more_outputs_than_features():
    model, (inputs, _) = network(width=8, outputs=30), samples()
    report = richbook.measure(model, loader(inputs), layers=["1", "3"])
    features, outputs = inside(model, inputs)
    outputs = outputs.double()
    with torch.no_grad():
        hidden = model[:2](inputs)
    head = model[-1]
    exact = features.double() @ head.weight.detach().double().T + head.bias.detach().double()
    assert report.d_lr == pytest.approx(float(richbook.d_lr(features, exact)), abs=1e-5)
    expected = [float(richbook.d_lr(values, exact)) for values in (hidden, features)]
    assert [row.d_lr for row in report.layers] == pytest.approx(expected, abs=1e-5)
    assert any("isotropic" in warning for warning in report.warnings)
    assert report.collapse is None and report.rank == 8


def test_a_layer_too_wide_for_moments(monkeypatch):
    from richbook.measure.network import accumulate

    model, (inputs, _) = network(), samples(600)
    narrow = richbook.measure(model, loader(inputs), layers=["1", "3"])
    monkeypatch.setattr(accumulate, "WIDEST_LAYER", 15)
    monkeypatch.setattr(accumulate, "MOST_SAMPLES", 300)
    wide = richbook.measure(model, loader(inputs), layers=["1", "3"])
    assert [row.samples for row in wide.layers] == [300, 600]
    assert wide.layers[0].d_lr == pytest.approx(narrow.layers[0].d_lr, abs=0.05)
    assert wide.layers[1].d_lr == narrow.layers[1].d_lr
    assert "300 samples" in str(wide)


def test_nc4_of_a_part_is_said_to_be_one(monkeypatch):
    from richbook.measure.network import accumulate

    monkeypatch.setattr(accumulate, "MOST_SAMPLES", 100)
    report = richbook.measure(network(), loader(*samples()))
    assert any("NC4 and the interval are from 100 samples" in text for text in report.warnings)


def test_constant_features_warn_and_are_nan():
    model, (inputs, labels) = network(), samples()
    with torch.no_grad():
        model[2].weight.zero_()
    with pytest.warns(DegenerateWarning, match="features are constant") as caught:
        report = richbook.measure(model, loader(inputs, labels))
    assert caught[0].filename == __file__
    assert math.isnan(report.d_lr) and report.to_dict()["d_lr"] is None
    assert any("features are constant" in text for text in report.warnings)
    assert "nan" in str(report) and "nan" in report._repr_html_()


def test_tokens():
    """Each position is a sample, or one of them; of all, the interval is said to be too narrow."""
    torch.manual_seed(0)
    embedding, body, head = nn.Embedding(9, 16), nn.Linear(16, 12), nn.Linear(12, 5)
    model = nn.Sequential(embedding, body, nn.Tanh(), head)
    tokens, labels = torch.randint(9, (300, 7)), torch.randint(5, (300, 7))
    every = richbook.measure(model, loader(tokens, labels), position="all")
    last = richbook.measure(model, loader(tokens, labels), position=-1)
    features, outputs = inside(model, tokens)
    expected = float(richbook.d_lr(features.flatten(0, 1), outputs.flatten(0, 1)))
    assert every.samples == 2100 and every.d_lr == pytest.approx(expected, abs=1e-6)
    assert last.d_lr == pytest.approx(float(richbook.d_lr(features[:, -1], outputs[:, -1])))
    assert any("not independent" in text for text in every.warnings) and not last.warnings
    with pytest.raises(RichbookError, match="position"):
        richbook.measure(model, loader(tokens, labels))


def test_few_samples():
    model, (inputs, labels) = network(), samples(30)
    report = richbook.measure(model, loader(inputs, labels, block=8))
    assert report.interval is None and report.to_dict()["d_lr_low"] is None
    report = richbook.measure(model, loader(inputs[:10], labels[:10], block=8))
    assert any("10 samples for 12 features" in text for text in report.warnings)


def test_a_diverged_network_is_an_error_that_says_where():
    model, (inputs, labels) = network(), samples()
    inputs[130] = torch.nan
    with pytest.raises(RichbookError, match="features: row 130 contains nan"):
        richbook.measure(model, loader(inputs, labels))
    with pytest.raises(RichbookError, match="precision: expected a floating-point"):
        richbook.measure(model, loader(inputs, labels), precision=torch.int32)


def test_targets_that_are_not_numbers_are_named():
    model, (inputs, _) = network(), samples()
    targets = inputs[:, :2].clone()
    targets[70, 1] = torch.nan
    with pytest.raises(RichbookError, match="targets: row 70 contains nan"):
        richbook.measure(model, loader(inputs, targets))


@pytest.mark.parametrize("second", [torch.zeros(50, 3), torch.zeros(50, 2, dtype=torch.long)])
def test_targets_that_change_their_shape_or_kind(second):
    inputs = torch.randn(50, 6)
    batches = [(inputs, torch.zeros(50, 2)), (inputs, second)]
    with pytest.raises(RichbookError, match="targets: expected the same shape and kind"):
        richbook.measure(network(), batches)


def test_batches_without_targets_among_others_are_said():
    inputs, labels = samples()
    report = richbook.measure(network(), [(inputs, labels), (inputs,)])
    assert report.decomposition.quality is None and report.collapse is None
    assert any("some batches have no targets" in text for text in report.warnings)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.uint16])
def test_labels_of_every_kind_of_integer(dtype):
    inputs, labels = samples()
    report = richbook.measure(network(), loader(inputs, labels.to(dtype)))
    expected = richbook.measure(network(), loader(inputs, labels))
    assert float(report.collapse.nc1) == float(expected.collapse.nc1)


def test_feature_rank_is_not_made_of_rounding():
    model, (inputs, _) = network(width=40), samples(2000)
    with torch.no_grad():  # 20 hidden units feed 40: a bottleneck once the units are linear
        model[3] = nn.Identity()
        assert richbook.measure(model, loader(inputs)).feature_rank == 20
        assert richbook.measure(model, loader(inputs[:10])).feature_rank == 9
        labels = torch.arange(2000) % 5
        collapsed = nn.Sequential(nn.Embedding(5, 40), nn.Linear(40, 5))
        assert richbook.measure(collapsed, loader(labels)).feature_rank == 4


def test_identical_class_means_are_seen_in_any_order():
    model, (inputs, _) = network(), samples(1000)
    order = torch.randperm(2000, generator=torch.Generator().manual_seed(1))
    twice, labels = torch.cat([inputs, inputs])[order], (torch.arange(2000) // 1000)[order]
    report = richbook.measure(model, loader(twice, labels, block=100))
    assert math.isnan(float(report.collapse.nc1))
    assert any("class means" in text for text in report.warnings)


def test_one_sample():
    with pytest.raises(RichbookError, match="loader: expected at least 2 samples, got 1"):
        richbook.measure(network(), [torch.randn(1, 6)])


def test_dictionary_is_plain_json_and_complete():
    report = richbook.measure(network(), loader(*samples()), layers=["1"])
    found = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    keys = "d_lr isotropic_d_lr d_lr_low d_lr_high nc1 nc2_norm nc2_angle nc3 nc4 rank samples"
    assert set(keys.split()) <= set(found)
    assert len(found["utilization"]) == 12 and found["layers"][0]["name"] == "1"


def test_tables():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = richbook.measure(network(), loader(*samples(10)), layers=["1"])
    text, page = str(report), report._repr_html_()
    for label, _, _ in report.rows():
        assert label in text and f"<td>{label}</td>" in page
    assert "warning: 10 samples for 12 features" in text
    assert page.count("<tr>") == len(report.rows()) + 1 and "&lt;" not in page


def test_random_states_and_the_model_are_left_alone():
    model, (inputs, labels) = network(), samples()
    model.train()
    state = torch.get_rng_state()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    richbook.measure(model, loader(inputs, labels), layers="all")
    assert torch.equal(state, torch.get_rng_state()) and model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(len(module._forward_hooks) for module in model.modules())
