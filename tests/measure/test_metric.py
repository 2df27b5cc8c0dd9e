"""LowRankMeasure as people use torchmetrics: loops, collections, checkpoints, processes."""

import datetime
import pickle

import pytest
import torch
import torch.multiprocessing as processes
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

import richbook
from richbook.measure import DegenerateWarning, RichbookError
from richbook.measure.metric import LowRankMeasure
from tests.measure import reference
from tests.measure.reference import put

FEATURES, OUTPUTS = reference.problem(0, n=120, p=9, c=4, offset=3.0)
EXPECTED = reference.d_lr(FEATURES, OUTPUTS, rank=4)


def batches(device="cpu", cuts=(0, 1, 30, 77, 120)):
    """Ragged batches; the first has one sample."""
    features, outputs = put(device, FEATURES), put(device, OUTPUTS)
    return [(features[a:b], outputs[a:b]) for a, b in zip(cuts, cuts[1:], strict=False)]


def fed(metric, parts):
    for features, outputs in parts:
        metric.update(features, outputs)
    return metric


def test_a_stream_has_the_value_of_the_whole(device):
    metric = fed(LowRankMeasure().to(device), batches(device))
    assert metric.compute().dtype == torch.float64
    assert float(metric.compute()) == pytest.approx(EXPECTED, abs=1e-9)
    assert metric.moments.count == 120


def test_the_public_name_is_this_class():
    assert richbook.LowRankMeasure is LowRankMeasure
    with pytest.raises(AttributeError, match="no attribute 'LowRankMeasures'"):
        richbook.LowRankMeasures  # noqa: B018


def test_reset_forgets():
    metric = fed(LowRankMeasure(), batches())
    metric.reset()
    fed(metric, batches()[2:])
    rows = slice(30, 120)
    expected = reference.d_lr(FEATURES[rows], OUTPUTS[rows], rank=4)
    assert float(metric.compute()) == pytest.approx(expected, abs=1e-9)


def test_calling_it_gives_the_batch_and_keeps_the_stream():
    metric = LowRankMeasure()
    with pytest.warns(DegenerateWarning, match="1 samples so far"):
        assert metric(*batches()[0]).isnan()
    value = [float(metric(*batch)) for batch in batches()[1:]][-1]
    rows = slice(77, 120)
    assert value == pytest.approx(reference.d_lr(FEATURES[rows], OUTPUTS[rows], 4), abs=1e-9)
    assert float(metric.compute()) == pytest.approx(EXPECTED, abs=1e-9)
    # one packet, not one a batch
    assert [len(packet) for packet in metric.packets] == [5 + 9 + 4 + 81 + 36 + 16]


def test_checkpoint_in_the_middle(tmp_path):
    metric = fed(LowRankMeasure(), batches()[:2])
    torch.save(metric.state_dict(), tmp_path / "metric.pt")
    resumed = LowRankMeasure()
    resumed.load_state_dict(torch.load(tmp_path / "metric.pt", weights_only=True))
    assert float(fed(resumed, batches()[2:]).compute()) == pytest.approx(EXPECTED, abs=1e-9)
    copied = pickle.loads(pickle.dumps(metric))
    assert float(fed(copied, batches()[2:]).compute()) == pytest.approx(EXPECTED, abs=1e-9)


def test_is_part_of_its_models_checkpoint():
    model = torch.nn.Linear(2, 2)
    model.richness = fed(LowRankMeasure(), batches())
    other = torch.nn.Linear(2, 2)
    other.richness = LowRankMeasure()
    other.load_state_dict(model.state_dict())
    assert float(other.richness.compute()) == pytest.approx(EXPECTED, abs=1e-9)
    assert model.half().richness.packets[0].dtype == torch.float64


def test_stays_exact_when_its_module_is_cast():
    metric = fed(LowRankMeasure(), batches()).to(torch.bfloat16)
    assert float(metric.compute()) == pytest.approx(EXPECTED, abs=1e-9)


def test_plots_like_other_metrics():
    figure, axes = fed(LowRankMeasure(), batches()).plot()
    assert axes.get_ylim()[0] <= 0 and figure is axes.figure


def test_in_a_collection():
    collection = MetricCollection({"d_lr": LowRankMeasure(), "again": LowRankMeasure()})
    for features, outputs in batches():
        collection.update(features=features, outputs=outputs)
    found = collection.compute()
    assert float(found["d_lr"]) == float(found["again"]) == pytest.approx(EXPECTED, abs=1e-9)
    collection.reset()
    assert collection["d_lr"].moments.count == 0


def test_beside_metrics_that_take_other_arguments():
    collection = MetricCollection(
        {"accuracy": MulticlassAccuracy(4, average="micro"), "d_lr": LowRankMeasure()}
    )
    labels = torch.tensor(OUTPUTS).argmax(1)
    collection.update(
        features=torch.tensor(FEATURES), outputs=torch.tensor(OUTPUTS), preds=labels, target=labels
    )
    found = collection.compute()
    assert float(found["accuracy"]) == 1 and float(found["d_lr"]) == pytest.approx(EXPECTED)


def test_the_coarsest_precision_counts():
    """Logits that sum to zero, rounded to bfloat16, have a rank of 3 and not of 4."""
    outputs = torch.tensor(reference.zero_sum(OUTPUTS)).bfloat16()
    metric = LowRankMeasure()
    metric.update(torch.tensor(FEATURES), outputs)
    expected = reference.d_lr(FEATURES, reference.zero_sum(outputs.double().numpy()), rank=3)
    assert float(metric.compute()) == pytest.approx(expected, abs=2e-3)
    told = LowRankMeasure(precision=torch.bfloat16)
    told.update(torch.tensor(FEATURES), outputs.double())
    assert float(told.compute()) == float(metric.compute())


def test_bad_batches_change_nothing():
    metric = fed(LowRankMeasure(), batches())
    before = metric.packets[0].clone()
    features, outputs = batches()[1]
    for bad, message in [
        ((features[:, :5], outputs), "expected 9 features and 4 outputs"),
        ((features, outputs[:3]), "expected the same samples"),
        ((features * torch.nan, outputs), "features: row 120 contains nan"),
        ((features[0, 0], outputs), r"features: expected shape \(n, d\)"),
    ]:
        with pytest.raises(RichbookError, match=message):
            metric.update(*bad)
    assert torch.equal(metric.packets[0], before)
    with pytest.raises(RichbookError, match="precision: expected a floating-point"):
        LowRankMeasure(precision="float32")


def test_degenerate_streams_warn():
    metric = LowRankMeasure()
    metric.update(torch.ones(10, 3), torch.rand(10, 2))
    with pytest.warns(DegenerateWarning, match="features are constant"):
        assert metric.compute().isnan()


def _one_process(rank, world, folder, cuts):
    """Feed this process's share, compute (which synchronises), and write what came out."""
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=60),
    )
    metric = LowRankMeasure()
    start, stop = cuts[rank], cuts[rank + 1]
    if stop > start:
        metric.update(torch.tensor(FEATURES[start:stop]), torch.tensor(OUTPUTS[start:stop]))
    together, alone = metric.compute(), metric.moments.count
    metric.update(torch.tensor(FEATURES[:1]), torch.tensor(OUTPUTS[:1]))  # still works after
    torch.save((together, alone), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("cuts", [(0, 50, 120), (0, 120, 120)], ids=["uneven", "one idle"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_two_processes_agree_with_one(tmp_path, cuts):
    if not torch.distributed.is_gloo_available():
        pytest.skip("this build of torch has no gloo")
    processes.spawn(_one_process, (2, str(tmp_path), cuts), nprocs=2)
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for rank, (together, alone) in enumerate(found):
        assert float(together) == pytest.approx(EXPECTED, abs=1e-9)
        assert alone == cuts[rank + 1] - cuts[rank]  # the process's own state is its own again
