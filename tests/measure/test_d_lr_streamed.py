"""D_LR of a stream: equal to the direct value, whatever surrounds the stream."""

import numpy as np
import pytest
import torch

from richbook.measure import DegenerateWarning, Moments, RichbookError, d_lr, d_lr_from_moments
from tests.measure import reference


def streamed(features, outputs, cuts=(0, 7, 40, 60)):
    moments = Moments()
    for start, stop in zip(cuts, cuts[1:], strict=False):
        moments.update(features[start:stop], outputs[start:stop])
    return moments


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_equals_the_direct_value(device, dtype):
    features, outputs = (
        torch.tensor(values, device=device).to(dtype) for values in reference.problem(3, offset=2)
    )
    value = d_lr_from_moments(streamed(features, outputs), precision=dtype)
    assert float(value) == pytest.approx(float(d_lr(features, outputs)), abs=1e-6)


def test_numpy_blocks():
    features, outputs = reference.problem(4)
    value = d_lr_from_moments(streamed(features, outputs), precision=torch.float64)
    assert float(value) == pytest.approx(reference.d_lr(features, outputs, rank=4), abs=1e-9)


def test_autocast_does_not_touch_a_stream():
    features, outputs = (torch.tensor(v, dtype=torch.float32) for v in reference.problem(5))
    plain = streamed(features, outputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = streamed(features, outputs)
    assert torch.equal(plain.feature_scatter, mixed.feature_scatter)
    assert torch.equal(plain.cross_scatter, mixed.cross_scatter)


def test_a_stream_keeps_no_graph_unless_asked():
    features, outputs = (torch.tensor(v, requires_grad=True) for v in reference.problem(6))
    assert not streamed(features, outputs).feature_scatter.requires_grad
    kept = Moments()
    kept.update(features, outputs, keep_graph=True)
    d_lr_from_moments(kept, torch.float64).backward()
    direct_features = features.detach().clone().requires_grad_()
    d_lr(direct_features, outputs.detach()).backward()
    assert torch.allclose(features.grad, direct_features.grad, atol=1e-9)


def test_constant_features_are_nan_with_a_warning():
    moments = streamed(torch.full((60, 3), 0.1), torch.randn(60, 2))
    with pytest.warns(DegenerateWarning, match="constant"):
        assert d_lr_from_moments(moments).isnan()


@pytest.mark.parametrize("precision", [torch.int64, "float32"])
def test_wrong_precision(precision):
    with pytest.raises(RichbookError, match="^precision: expected a floating-point"):
        d_lr_from_moments(streamed(*reference.problem(0)), precision)


def test_too_few_samples():
    with pytest.raises(RichbookError, match="at least 2 samples"):
        d_lr_from_moments(Moments())


def test_one_dimensional_blocks_are_an_error():
    with pytest.raises(RichbookError, match=r"features \(n, p\) and outputs \(n, C\)"):
        Moments().update(torch.zeros(5), torch.zeros(5))


def test_few_samples_warn_that_the_value_is_low():
    features, outputs = (torch.tensor(v) for v in reference.problem(7))
    with pytest.warns(DegenerateWarning, match="8 samples for 8 features: D_LR comes out too low"):
        low = d_lr(features[:8], outputs[:8])
    assert low < d_lr(features, outputs)


def test_arrays_that_torch_cannot_wrap():
    features, outputs = reference.problem(8)
    backwards = d_lr(np.asfortranarray(features)[::-1], outputs[::-1])
    assert float(backwards) == pytest.approx(float(d_lr(features, outputs)), abs=1e-12)
