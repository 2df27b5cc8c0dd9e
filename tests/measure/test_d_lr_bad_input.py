"""What D_LR cannot measure: an error that names it, or a warning and nan, never a silent number."""

import math

import numpy as np
import pytest
import torch

from richbook.measure import DegenerateWarning, RichbookError, d_lr
from tests.measure import reference
from tests.measure.reference import put

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
GOOD = torch.arange(24.0).reshape(8, 3) % 5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("constant", [0.0, 1.0, 0.1, 1 / 3, -1234.567])
@pytest.mark.parametrize(("n", "p"), [(2, 1), (7, 3), (33, 1), (5000, 20), (9, 12)])
def test_constant_features(device, dtype, constant, n, p):
    features = put(device, np.full((n, p), constant), dtype)
    outputs = torch.randn(n, 1, generator=torch.Generator().manual_seed(0)).to(device)
    with pytest.warns(DegenerateWarning, match="features are constant .*returning nan"):
        assert math.isnan(float(d_lr(features, outputs)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("constant", [0.0, 1.0, 0.1, 1 / 3, -1234.567])
@pytest.mark.parametrize(("n", "c"), [(7, 1), (33, 3), (5000, 20)])
def test_constant_outputs(device, dtype, constant, n, c):
    features = torch.randn(n, 5, generator=torch.Generator().manual_seed(0)).to(device)
    outputs = put(device, np.full((n, c), constant), dtype)
    with pytest.warns(DegenerateWarning, match="outputs are constant .*returning nan"):
        assert math.isnan(float(d_lr(features, outputs)))


def test_network_whose_units_have_died(device):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(50, 6, generator=generator).to(device)
    layer, head = torch.nn.Linear(6, 4).to(device), torch.nn.Linear(4, 3).to(device)
    torch.nn.init.constant_(layer.bias, -100.0)
    features = layer(inputs).relu()
    with pytest.warns(DegenerateWarning, match="dead units"):
        assert d_lr(features, head(features)).isnan()


@pytest.mark.parametrize("n", [1000, 3])
def test_variation_within_one_rounding_step_is_constant(device, n):
    features = torch.ones(n, 1000 // n)
    features[0, 0] += torch.finfo(torch.float32).eps
    outputs = torch.randn(n, 1, generator=torch.Generator().manual_seed(0)).to(device)
    with pytest.warns(DegenerateWarning, match="features are constant"):
        assert math.isnan(float(d_lr(features.to(device), outputs)))


def test_identical_samples_through_a_network(device):
    """The same input in every row: what varies is at most the rounding of the network."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(1, 6, generator=generator).expand(64, 6).to(device)
    features = torch.tanh(inputs @ torch.randn(6, 4, generator=generator).to(device))
    with pytest.warns(DegenerateWarning, match="constant"):
        assert math.isnan(float(d_lr(features, features @ torch.ones(4, 2, device=device))))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["features", "outputs"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_and_infinity_name_the_tensor_and_the_row(device, name, bad, dtype):
    named = {"features": GOOD.clone(), "outputs": GOOD[:, :2].clone()}
    named[name][5, 1] = bad
    named[name][7, 0] = bad
    kind = "nan" if math.isnan(bad) else "infinity"
    with pytest.raises(RichbookError, match=rf"^{name}: row 5 contains .*{kind}.*2 of 8 rows"):
        d_lr(**{key: put(device, value, dtype) for key, value in named.items()})


def test_numbers_too_large_to_square(device):
    features = put(device, GOOD) * 1e80
    with pytest.raises(RichbookError, match=r"^features: the largest magnitude is 4\.0e\+80"):
        d_lr(features, GOOD.to(device))


@pytest.mark.parametrize(
    ("features", "outputs", "message"),
    [
        (GOOD[:1], GOOD[:1], r"^features: expected at least 2 samples \(rows\), got 1"),
        (GOOD[:0], GOOD[:0], r"^features: expected at least 2 samples \(rows\), got 0"),
        (GOOD, GOOD[:7], r"same samples .*features \(8, 3\), outputs \(7, 3\)"),
        (GOOD[None], GOOD, r"^features: expected shape \(n, d\).*got \(1, 8, 3\)"),
        (GOOD, GOOD[None], r"^outputs: expected shape \(n, d\).*got \(1, 8, 3\)"),
        (GOOD[:, 0], GOOD, r"^features: expected shape \(n, d\).*got \(8,\)"),
        (torch.tensor(1.0), GOOD, r"^features: expected shape \(n, d\).*got \(\)"),
        (GOOD, torch.arange(8) % 2, r"^outputs: .*class labels.*one-hot"),
        (GOOD, torch.arange(8) % 2 == 0, r"^outputs: .*class labels.*one-hot"),
        (
            GOOD.to(torch.complex64),
            GOOD,
            r"^features: expected a dense tensor of real numbers, got torch.complex64",
        ),
        (
            GOOD,
            GOOD.to(torch.complex64),
            r"^outputs: expected a dense tensor of real numbers, got torch.complex64",
        ),
        (GOOD[:, :0], GOOD, r"^features: expected at least one column, got shape \(8, 0\)"),
        (GOOD, GOOD[:, :0], r"^outputs: expected at least one column, got shape \(8, 0\)"),
        ("text", GOOD, r"^features: expected a tensor of shape \(n, d\), got str"),
        (GOOD, None, r"^outputs: expected a tensor of shape \(n, d\), got NoneType"),
        ([[1.0, 2.0], [3.0]], GOOD, r"^features: expected a tensor of shape \(n, d\), got list"),
    ],
)
def test_shapes_and_types(features, outputs, message):
    with pytest.raises(RichbookError, match=message):
        d_lr(features, outputs)


@pytest.mark.parametrize("precision", ["float32", torch.int32, float, 1e-3])
def test_precision_must_be_a_floating_dtype(precision):
    with pytest.raises(RichbookError, match="^precision: expected a floating-point torch.dtype"):
        d_lr(GOOD, GOOD, precision=precision)


def test_errors_are_value_errors():
    assert issubclass(RichbookError, ValueError)
    assert issubclass(DegenerateWarning, UserWarning)


def test_warnings_point_at_the_caller():
    features, _ = reference.problem(0, n=10, p=2)
    with pytest.warns(DegenerateWarning) as caught:
        d_lr(features, np.ones((10, 1)))
    assert caught[0].filename == __file__


def test_ordinary_input_gives_no_warning(recwarn):
    features, outputs = reference.problem(0)
    d_lr(features, outputs)
    assert not recwarn.list


def test_one_column_of_whole_numbers_passes_for_labels():
    with pytest.raises(RichbookError, match="outputs: .* look like class labels"):
        d_lr(torch.randn(9, 2), torch.arange(9)[:, None] % 3)
