"""Alignments along a training run, from any loop."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from richbook.measure import RichbookError
from richbook.measure.alignment import AlignmentHistory, alignment
from tests.measure.capture.networks import drawn, mlp, seeded

cross_entropy = functional.cross_entropy


def data():
    return drawn(100, 3), torch.arange(100) % 4


def loader():
    return list(zip(*(tensor.split(50) for tensor in data()), strict=True))


def train(model, steps, record):
    inputs, targets = data()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        record(step)
        optimiser.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimiser.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_steps_are_log_spaced():
    history = AlignmentHistory(seeded(mlp), loader(), cross_entropy, "2")
    recorded = [step for step in range(1200) if history.record(step)]
    expected = {0} | {round(10 ** (k / 4)) for k in range(13)}
    assert recorded == sorted(step for step in expected if step < 1200)
    assert recorded == [0, 1, 2, 3, 6, 10, 18, 32, 56, 100, 178, 316, 562, 1000] == history.steps


def test_steps_can_be_chosen():
    history = AlignmentHistory(seeded(mlp), loader(), cross_entropy, at=[0, 7, 5])
    assert [step for step in range(10) if history.record(step)] == [0, 5, 7]
    assert history.record(9, always=True) and history.steps == [0, 5, 7, 9]


def test_the_record_is_that_of_each_step_and_training_does_not_notice():
    model, found = seeded(mlp), {}
    history = AlignmentHistory(model, loader(), cross_entropy, kind="pearson", at=[0, 3, 8],
                               interval=True)  # fmt: skip

    def record(step):
        if history.record(step):
            found[step] = alignment(model, loader(), cross_entropy, kind="pearson")

    torch.manual_seed(0)
    trained = train(model, 10, record)
    alone = train(seeded(mlp), 10, lambda step: None)
    assert all(torch.equal(a, b) for a, b in zip(trained, alone, strict=True))
    record_ = history.data
    assert record_.alignment.dims == ("step", "layer", "side", "relation")
    assert dict(record_.sizes) == {"step": 3, "layer": 3, "side": 2, "relation": 3}
    assert set(record_) == {"alignment", "low", "high", "null_mean", "null_std"}
    assert list(record_.step) == [0, 3, 8] and list(record_.layer) == ["0", "2", "4"]
    for step, table in found.items():
        for name in ("null_mean", "low", "high"):
            np.testing.assert_array_equal(record_[name].sel(step=step), table.array(name))
        one = record_.alignment.sel(step=step, layer="2", side="backward", relation="GWA")
        assert float(one) == table["2"].backward.GWA.value
    assert record_.attrs == {"kind": "pearson", "normalize": 0}


def test_without_intervals_and_to_a_file(tmp_path):
    import xarray

    history = AlignmentHistory(seeded(mlp), loader(), cross_entropy, ["0", "4"], normalize=True)
    history.record(0)
    history.record(torch.tensor(1))
    assert set(history.data) == {"alignment", "null_mean", "null_std"}
    path = tmp_path / "history.nc"
    history.data.to_netcdf(path, engine="h5netcdf")
    with xarray.open_dataset(path, engine="h5netcdf") as again:
        xarray.testing.assert_identical(again.load(), history.data)


def test_a_step_recorded_twice_is_the_later():
    model = seeded(mlp)
    history = AlignmentHistory(model, loader(), cross_entropy, "2", at=[0])
    history.record(0)
    first = history.data.alignment.values
    with torch.no_grad():
        model[2].weight.mul_(torch.linspace(0, 2, 16))
    history.record(0)
    assert history.data.sizes["step"] == 1 and (history.data.alignment.values != first).any()


def test_a_shuffling_loader_leaves_the_random_numbers_alone():
    history = AlignmentHistory(
        seeded(mlp), DataLoader(TensorDataset(*data()), 30, shuffle=True), cross_entropy
    )
    torch.manual_seed(3)
    wanted = torch.rand(2)
    torch.manual_seed(3)
    history.record(0)
    history.record(1)
    assert torch.equal(torch.rand(2), wanted)
    values = history.data.alignment.values
    np.testing.assert_allclose(values[0], values[1], atol=1e-5)  # the order does not matter


@pytest.mark.parametrize("at", ["linear", [-1], [0.5], [None], 3])
def test_steps_that_are_none(at):
    with pytest.raises(RichbookError, match='at: expected "log" or a list'):
        AlignmentHistory(seeded(mlp), loader(), cross_entropy, at=at)


def test_errors():
    with pytest.raises(RichbookError, match="history: nothing is recorded yet"):
        _ = AlignmentHistory(seeded(mlp), loader(), cross_entropy).data
    with pytest.raises(RichbookError, match="loader: expected a list of batches.*generator"):
        AlignmentHistory(seeded(mlp), (batch for batch in loader()), cross_entropy)
    model = nn.Sequential(seeded(mlp))
    history = AlignmentHistory(model, loader(), cross_entropy)
    history.record(0)
    model.append(nn.Linear(4, 4))
    history.record(1)
    with pytest.raises(RichbookError, match="history: expected the same layers at every step"):
        _ = history.data
