"""One network against a loop written out, and its recorded numbers against the public measures."""

import numpy as np
import pytest
import torch

from richbook.measure import d_lr, decompose, kernel_distance, nc1, parameter_norm
from richbook.train import TrainingSettings, load_data, train
from richbook.train.single import batches
from tests.train import plain

VARIANTS = [
    {},
    {"activation": "tanh", "depth": 1},
    {"activation": "linear", "depth": 3, "zero_head": False},
    {"momentum": 0.0, "weight_decay": 0.0},
    {"batch_size": 1, "seed": 7},
    {"target_scale": 10.0, "learning_rate": 3e-3, "width": 10},
]


@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_a_plain_loop(device, variant):
    settings = TrainingSettings(**{"steps": 40, **plain.SMALL} | variant)
    history = train(settings, record_at=[1, 20], device=device, progress=False)
    for step, (_, network) in enumerate(plain.loop(settings, device), start=1):
        if step in (1, 20, 40):
            recorded = float(history.data.train_loss.sel(step=step))
            expected = plain.train_loss(network, settings)
            network.to(device)
            assert recorded == pytest.approx(expected, rel=1e-4)
    trained = [parameter.detach() for parameter in history.model.parameters()]
    for ours, theirs in zip(trained, network.parameters(), strict=True):
        assert torch.allclose(ours, theirs.detach().cpu(), atol=1e-5)


def test_batches_are_drawn_with_replacement_from_all_samples():
    settings = TrainingSettings(batch_size=50)
    stream = batches(settings, 20)
    drawn = torch.stack([next(stream) for _ in range(600)])
    assert drawn.shape == (600, 50)
    counts = torch.bincount(drawn.flatten(), minlength=20)
    assert len(counts) == 20 and float(counts.min()) > 0.9 * 1500
    assert all(len(set(row.tolist())) < 50 for row in drawn)
    assert (
        len({tuple(row.tolist()) for row in drawn}) == 600
    )  # the stream goes on, it does not loop
    again = batches(settings, 20)
    assert torch.equal(drawn, torch.stack([next(again) for _ in range(600)]))
    other = batches(settings.replace(seed=1), 20)
    assert not torch.equal(drawn[0], next(other))


@pytest.fixture(scope="module")
def history():
    return train(steps=150, width=24, target_scale=2.0, learning_rate=3e-3, progress=False)


@pytest.fixture(scope="module")
def last(history):
    return history.data.isel(step=-1)


@pytest.fixture(scope="module")
def evaluated(history):
    """Features and outputs of the trained network on the training inputs, and Φ_0."""
    inputs = load_data("digits").train_inputs
    with torch.no_grad():
        features = history.model.features(inputs)
        return features, history.model.head(features), history.initial_model.features(inputs)


def test_recorded_d_lr(last, evaluated):
    features, outputs, _ = evaluated
    assert float(last.d_lr) == pytest.approx(float(d_lr(features, outputs)), abs=1e-6)
    assert 0.05 < float(last.d_lr) < 0.6


def test_recorded_utilization(last, evaluated):
    expected = decompose(evaluated[0], evaluated[1]).utilization
    assert np.allclose(last.utilization, expected, atol=1e-5)
    assert float(last.utilization[-1]) == pytest.approx(1, abs=1e-5)


def test_recorded_s_init(last, evaluated):
    expected = float(kernel_distance(evaluated[0], evaluated[2]))
    assert float(last.s_init) == pytest.approx(expected, abs=1e-6)
    assert expected > 0.01


def test_recorded_nc1(last, evaluated):
    expected = float(nc1(evaluated[0], load_data("digits").train_labels))
    assert float(last.nc1) == pytest.approx(expected, rel=1e-6)


def test_recorded_parameter_norm(last, history):
    assert float(last.parameter_norm) == pytest.approx(
        float(parameter_norm(history.model)), rel=1e-6
    )


def test_recorded_loss(last, history, evaluated):
    wanted = plain.targets(history.settings).double()
    expected = float(((evaluated[1].double() - wanted) ** 2).sum(1).mean())
    assert float(last.train_loss) == pytest.approx(expected, rel=1e-5)


def test_recorded_accuracies(last, history, evaluated):
    data = load_data("digits")
    right = (evaluated[1].numpy().argmax(1) == data.train_labels.numpy()).mean()
    with torch.no_grad():
        guesses = history.model(data.test_inputs).numpy().argmax(1)
    assert float(last.train_accuracy) == pytest.approx(right, abs=1e-6)
    assert float(last.test_accuracy) == pytest.approx(
        (guesses == data.test_labels.numpy()).mean(), abs=1e-6
    )
    assert right > 0.8


def test_initial_model_is_where_the_run_started(history):
    start = plain.initial_network(history.settings).parameters()
    for ours, theirs in zip(history.initial_model.parameters(), start, strict=True):
        assert torch.equal(ours, theirs)
