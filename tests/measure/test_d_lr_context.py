"""D_LR does not depend on the state of torch around it, and leaves that state as it was."""

import contextlib

import numpy as np
import pytest
import torch

from richbook.measure import d_lr
from richbook.measure.inputs import exact_arithmetic
from tests.measure import reference
from tests.measure.reference import put


def _float32_problem(device):
    features, outputs = reference.problem(0, n=300)
    return put(device, features, torch.float32), put(device, outputs, torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_inside_autocast(device, dtype):
    features, outputs = _float32_problem(device)
    plain = d_lr(features, outputs)
    with torch.autocast(device, dtype=dtype):
        inside = d_lr(features, outputs)
        assert torch.is_autocast_enabled(torch.device(device).type)
        assert (features @ features.T).dtype == dtype  # autocast is on again
    assert inside == plain


def _matmul_settings():
    backends = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    return torch.get_float32_matmul_precision(), *(each.fp32_precision for each in backends)


@pytest.mark.parametrize("setting", ["highest", "high", "medium"])
def test_float32_matmul_precision_is_overruled_and_restored(device, setting):
    features, outputs = _float32_problem(device)
    before = torch.get_float32_matmul_precision()
    plain = d_lr(features, outputs)
    try:
        torch.set_float32_matmul_precision(setting)
        settings = _matmul_settings()
        assert settings[0] == setting
        assert d_lr(features, outputs) == plain
        assert _matmul_settings() == settings
        with pytest.raises(InterruptedError), exact_arithmetic(features.device):
            raise InterruptedError
        assert _matmul_settings() == settings
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, contextlib.nullcontext])
def test_gradient_modes(device, context):
    features, outputs = reference.problem(1)
    expected = reference.d_lr(features, outputs, rank=4)
    with context():
        value = d_lr(put(device, features).requires_grad_(), put(device, outputs))
        assert value.requires_grad == (context is contextlib.nullcontext)
    assert float(value.detach()) == pytest.approx(expected, abs=1e-12)


def test_inference_tensors(device):
    features, outputs = reference.problem(1)
    with torch.inference_mode():
        frozen = put(device, features) + 0, put(device, outputs) + 0
    expected = reference.d_lr(features, outputs, rank=4)
    assert float(d_lr(*frozen)) == pytest.approx(expected, abs=1e-12)


def test_value_of_inputs_that_require_gradients(device):
    features, outputs = _float32_problem(device)
    plain = d_lr(features, outputs)
    value = d_lr(features.requires_grad_(), outputs.requires_grad_())
    value.backward()
    assert value.detach() == plain
    assert features.grad.dtype == outputs.grad.dtype == torch.float32
    assert features.grad.isfinite().all() and outputs.grad.isfinite().all()


def _layouts(values):
    rows, columns = values.shape
    padded = values.new_full((2 * rows, 3 * columns), float("nan"))
    padded[::2, 1::3] = values
    yield "transposed", values.T.contiguous().T
    yield "strided", padded[::2, 1::3]
    yield "reversed", values.flip(0).flip(0)
    yield "offset", torch.cat([values[:1], values])[1:]


@pytest.mark.parametrize("layout", ["transposed", "strided", "reversed", "offset"])
@pytest.mark.parametrize("n", [300, 5])
def test_memory_layout(device, layout, n):
    features, outputs = reference.problem(2, n=n, c=2)
    expected = reference.d_lr(features, outputs, rank=2)
    features = dict(_layouts(put(device, features)))[layout]
    outputs = dict(_layouts(put(device, outputs)))[layout]
    assert float(d_lr(features, outputs)) == pytest.approx(expected, abs=1e-12)


def test_expanded_inputs(device):
    features, outputs = reference.problem(3, p=1, c=1)
    wide = put(device, features).expand(-1, 5)
    value = float(d_lr(wide, put(device, outputs).expand(-1, 3)))
    assert value == pytest.approx(reference.d_lr(features, outputs, rank=1), abs=1e-12)
    column = put(device, np.ones((1, 2))).expand(60, 2)  # a constant, in memory once
    with pytest.warns(UserWarning, match="features are constant"):
        assert d_lr(column, put(device, outputs)).isnan()


def test_random_state_and_inputs_stay_as_they_were(device):
    features, outputs = (put(device, values) for values in reference.problem(4))
    copies = features.clone(), outputs.clone()
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    d_lr(features, outputs)
    d_lr(features[:5], outputs[:5, :2])
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)
    assert torch.equal(features, copies[0]) and torch.equal(outputs, copies[1])
    assert not features.requires_grad and features.grad is None


def test_other_default_dtype(device):
    features, outputs = reference.problem(5)
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float16)
        value = d_lr(put(device, features), put(device, outputs))
    finally:
        torch.set_default_dtype(before)
    assert value.dtype == torch.float64
    assert float(value) == pytest.approx(reference.d_lr(features, outputs, rank=4), abs=1e-12)
