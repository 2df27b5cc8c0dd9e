"""What the convolutional recipes share: pictures, training written out, what is recorded."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from richbook.experiments.recipes import pictures
from richbook.experiments.trial import Batches
from richbook.experiments.workplace import Workplace
from richbook.measure import RichbookError
from richbook.train.data import load_data
from richbook.train.vision import VGG
from tests.experiments import tiny_pictures

SCALARS = {
    "train_loss", "train_accuracy", "test_loss", "test_accuracy", "parameter_norm", "nc1", "s_init",
    "d_lr", "isotropic_d_lr", "feature_rank", "output_rank", "inside_share",
    "inside_cosine",
}  # fmt: skip
CPU = torch.device("cpu")


def config(**changes):
    settings = {"data": "digits", "width": 4, "steps": 6, "batch_size": 32, "train_images": 300}
    return pictures.PictureConfig(values=(0,), **settings | changes)


def network(seed=0):
    return VGG(1, 10, width=4, blocks=(1, 1), hidden=(16,), seed=seed)


def trained(steps, device=CPU, **changes):
    chosen = config(**changes)
    loaded = pictures.load_pictures(chosen, device)
    trial = pictures.picture_trial(chosen, network(), loaded, 0, device)
    for _ in trial.advance(steps):
        pass
    return trial


def weights(trial):
    return torch.cat([each.detach().cpu().flatten() for each in trial.model.parameters()])


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10", "cifar100"])
def test_pictures_lie_as_the_files_have_them(name, tmp_path, monkeypatch, device):
    grey = name == "fashion-mnist"
    folder = tiny_pictures.fashion(tmp_path) if grey else tiny_pictures.cifar(tmp_path, name)
    monkeypatch.setenv("RICHBOOK_DATA", str(folder))
    side, channels = (28, 1) if grey else (32, 3)
    raw = load_data(name).train_inputs.numpy()[:100].reshape(100, channels, side, side)
    for average in (1, 2):
        loaded = pictures.load_pictures(
            config(data=name, train_images=100, test_images=30, average=average),
            torch.device(device),
        )
        small = side // average
        expected = raw.reshape(100, channels, small, average, small, average).mean((3, 5))
        np.testing.assert_allclose(loaded.train.cpu(), expected, atol=1e-5)
        assert loaded.train.is_contiguous(memory_format=torch.channels_last)
        assert loaded.train.device.type == loaded.test_labels.device.type == device
        assert loaded.test.shape == (30, channels, small, small)
        assert loaded.channels == channels
        assert loaded.classes == (100 if name == "cifar100" else 10)
        assert loaded.train_labels.tolist() == load_data(name).train_labels[:100].tolist()


def test_what_has_no_pictures_is_an_error():
    with pytest.raises(RichbookError, match="expected the shape of a picture"):
        pictures.load_pictures(config(data="modular"), CPU)


def test_half_of_the_records_are_dense_at_the_end():
    steps = config(steps=1000, records=20).record_at()
    assert {0, 1, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000} <= set(steps)
    assert steps == sorted(set(steps)) and 10 <= len(steps) <= 22


def test_first_statistics_are_those_of_the_pictures():
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.BatchNorm2d(5))
    images = torch.randn(20, 3, 6, 6, generator=torch.Generator().manual_seed(0)) + 2
    pictures.start_statistics(model, images)
    seen = model[0](images).detach().transpose(0, 1).flatten(1).numpy()  # (channels, values)
    np.testing.assert_allclose(model[1].running_mean, seen.mean(1), rtol=1e-4)
    np.testing.assert_allclose(model[1].running_var, seen.var(1, ddof=1), rtol=1e-4)
    next_ = np.maximum((seen - seen.mean(1, keepdims=True)) / seen.std(1, keepdims=True), 0)
    np.testing.assert_allclose(model[3].running_mean, next_.mean(1), rtol=1e-3)
    assert model[1].momentum == model[3].momentum == nn.BatchNorm2d(1).momentum


def test_training_written_out():
    """Momentum, weight decay and a cosine, by hand on cross-entropy of the same batches."""
    chosen = config(learning_rate=0.1, weight_decay=0.01, momentum=0.8)
    loaded = pictures.load_pictures(chosen, CPU)
    model = network().to(memory_format=torch.channels_last)
    batches = Batches(300, 32, 0)
    velocity = [torch.zeros_like(each) for each in model.parameters()]
    for step in range(1, 5):
        index = batches(step)
        logits = model(loaded.train[index])
        chances = logits.exp() / logits.exp().sum(1, keepdim=True)
        loss = -chances[torch.arange(32), loaded.train_labels[index]].log().mean()
        slopes = torch.autograd.grad(loss, list(model.parameters()))
        rate = 0.1 * (1 + math.cos(math.pi * (step - 1) / chosen.steps)) / 2
        with torch.no_grad():
            for weight, slope, moved in zip(model.parameters(), slopes, velocity, strict=True):
                moved.mul_(0.8).add_(slope + 0.01 * weight)
                weight -= rate * moved
    found = weights(trained(4, learning_rate=0.1, weight_decay=0.01, momentum=0.8))
    expected = torch.cat([each.detach().flatten() for each in model.parameters()])
    assert torch.allclose(found, expected, atol=1e-5)


def test_a_stopped_trial_goes_on_with_the_same_numbers(tmp_path):
    whole, part = trained(6), trained(3)
    place = Workplace(tmp_path)
    place.save(0, 0, part.state())
    chosen = config()
    loaded = pictures.load_pictures(chosen, CPU)
    resumed = pictures.picture_trial(chosen, network(), loaded, 0, CPU)
    resumed.load_state(place.load(0, 0))
    for _ in resumed.advance(6):
        pass
    assert torch.equal(weights(resumed), weights(whole))
    found = resumed.record()
    for name, value in whole.record().items():
        assert torch.equal(found[name], value), name


def test_training_in_bfloat16_is_measured_in_float32(monkeypatch):
    """What a GPU does, on the CPU: the outputs of a step are rounded, the weights differ little."""
    monkeypatch.setattr(pictures, "BFLOAT16_DEVICES", ("cuda", "cpu"))
    trial, seen = trained(0), []
    trial.model.head.register_forward_hook(lambda module, given, result: seen.append(result.dtype))
    for _ in trial.advance(3):
        pass
    assert seen == [torch.bfloat16] * 3
    trial.record()
    assert set(seen[3:]) == {torch.float32}
    assert {each.dtype for each in trial.model.parameters()} == {torch.float32}
    monkeypatch.undo()
    moved = (weights(trained(3)) - weights(trained(0))).norm()
    assert (weights(trial) - weights(trained(3))).norm() < 0.3 * moved


def test_training_on_every_device(device):
    found, expected = weights(trained(3, torch.device(device))), weights(trained(3))
    assert (found - expected).norm() < 0.3 * (expected - weights(trained(0))).norm()


def test_what_is_recorded(device):
    trial = trained(6, torch.device(device), measured_images=250, test_images=200)
    record = trial.record()
    assert set(record) == SCALARS | set(pictures.CURVES)
    data, model = load_data("digits"), trial.model.cpu().eval()
    with torch.no_grad():
        train = model(data.train_inputs[:250].reshape(-1, 1, 8, 8))
        test = model(data.test_inputs[:200].reshape(-1, 1, 8, 8))
        features = model.features(data.train_inputs[:250].reshape(-1, 1, 8, 8)).double()
    expected = {
        "train_loss": functional.cross_entropy(train, data.train_labels[:250]),
        "train_accuracy": (train.argmax(1) == data.train_labels[:250]).double().mean(),
        "test_loss": functional.cross_entropy(test, data.test_labels[:200]),
        "test_accuracy": (test.argmax(1) == data.test_labels[:200]).double().mean(),
        "parameter_norm": sum(each.detach().square().sum() for each in model.parameters()),
    }
    for name, value in expected.items():
        assert float(record[name]) == pytest.approx(float(value), rel=1e-3), name
    moments = features.T @ features / len(features)
    spectrum = torch.linalg.eigvalsh(
        moments - features.mean(0)[:, None] * features.mean(0)[None]
    ).flip(0)
    curve = record["relative_eigenvalue"]
    assert torch.allclose(curve, (spectrum / spectrum[0]).clamp(min=0), atol=1e-3)
    assert float(record["utilization"][-1]) == pytest.approx(1, abs=1e-3)


def test_curves_are_cut(monkeypatch):
    monkeypatch.setattr(pictures, "LONGEST_CURVE", 7)
    assert all(trained(1).record()[name].shape == (7,) for name in pictures.CURVES)


def test_before_training_no_kernel_has_moved():
    assert abs(float(trained(0).record()["s_init"])) < 1e-6
