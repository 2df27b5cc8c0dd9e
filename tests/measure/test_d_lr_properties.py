"""What must hold for every network: bounds, invariances, and 0 for the minimum projection."""

import functools
import warnings
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from richbook.measure import DegenerateWarning, d_lr
from richbook.measure import moments as moments_module
from tests.measure import reference
from tests.measure.reference import put

# The device is the same object in every example, so the fixture may be shared by them.
device_is_fixed = settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@st.composite
def problems(draw):
    """Features, outputs and the outputs' rank: full, zero-sum (rank c − 1) or probabilities."""
    n, p, c = draw(st.integers(8, 60)), draw(st.integers(1, 12)), draw(st.integers(2, 5))
    offset = draw(st.sampled_from([0.0, 0.5, 20.0]))
    features, outputs = reference.problem(draw(st.integers(0, 10**6)), n, p, c, offset)
    kind = draw(st.sampled_from(["full", "zero-sum", "probabilities"]))
    if kind == "zero-sum":
        shifts = offset * np.arange(c)
        return features, reference.zero_sum(outputs + shifts), c - 1
    if kind == "probabilities":
        return features, reference.softmax(0.3 * outputs / outputs.std()), c
    return features, outputs, c


seeds = st.integers(0, 10**6)
weights = st.floats(-3, 3).map(lambda power: 10.0**power)
scales = st.floats(-6, 6).map(lambda power: 10.0**power)


def value(device, features, outputs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateWarning)  # outputs may span all features
        return float(d_lr(put(device, features), put(device, outputs)))


def same(expected):
    return pytest.approx(expected, abs=1e-8)


@device_is_fixed
@given(problem=problems())
def test_equals_the_definition(device, problem):
    features, outputs, rank = problem
    assert value(device, features, outputs) == same(reference.d_lr(features, outputs, rank))


@device_is_fixed
@given(data=st.data(), dtype=st.sampled_from([np.float64, np.float32, np.int16]))
def test_lies_between_0_and_1_or_is_nan_with_a_warning(device, data, dtype):
    n = data.draw(st.integers(2, 12))
    elements = (
        st.integers(-3, 3)
        if dtype == np.int16
        else st.floats(-(2.0**20), 2.0**20, width=np.finfo(dtype).bits)
    )
    features = data.draw(arrays(dtype, (n, data.draw(st.integers(1, 5))), elements=elements))
    fewest = 2 if dtype == np.int16 else 1  # one column of whole numbers would pass for labels
    width = data.draw(st.integers(fewest, 4))
    outputs = data.draw(arrays(dtype, (n, width), elements=elements))
    kind = getattr(torch, np.dtype(dtype).name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = d_lr(put(device, features, kind), put(device, outputs, kind))
    assert 0 <= float(result) <= 1 or any("returning nan" in str(entry.message) for entry in caught)


@device_is_fixed
@given(problem=problems(), seed=seeds, scale=scales, shift=st.floats(-1e3, 1e3))
def test_rotating_scaling_and_shifting_the_features(device, problem, seed, scale, shift):
    features, outputs, _ = problem
    rotation = reference.orthogonal(np.random.default_rng(seed), features.shape[1])
    turned = scale * (features @ rotation + shift)
    assert value(device, turned, outputs) == same(value(device, features, outputs))


@device_is_fixed
@given(problem=problems(), seed=seeds, condition=st.floats(0, 4).map(lambda power: 10.0**power))
def test_mixing_the_outputs(device, problem, seed, condition):
    features, outputs, rank = problem
    mixing = reference.invertible(np.random.default_rng(seed), outputs.shape[1], condition)
    mixed = value(device, features, outputs @ mixing)
    assert mixed == pytest.approx(reference.d_lr(features, outputs, rank), abs=1e-6)


@device_is_fixed
@given(problem=problems(), data=st.data())
def test_scaling_each_output(device, problem, data):
    features, outputs, rank = problem
    factors = np.array(data.draw(st.lists(scales, min_size=5, max_size=5))[: outputs.shape[1]])
    scaled = value(device, features, outputs * factors)
    assert scaled == same(reference.d_lr(features, outputs, rank))


@device_is_fixed
@given(problem=problems(), seed=seeds)
def test_permuting_the_samples(device, problem, seed):
    features, outputs, _ = problem
    order = np.random.default_rng(seed).permutation(len(features))
    assert value(device, features[order], outputs[order]) == same(value(device, features, outputs))


@device_is_fixed
@given(problem=problems(), times=st.integers(2, 4))
def test_repeating_the_samples(device, problem, times):
    features, outputs, _ = problem
    repeated = value(device, np.tile(features, (times, 1)), np.tile(outputs, (times, 1)))
    assert repeated == same(value(device, features, outputs))


@device_is_fixed
@given(
    problem=problems(),
    rows=st.integers(1, 70),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
def test_the_size_of_a_block(device, problem, rows, dtype):
    features, outputs, _ = problem
    measure = functools.partial(d_lr, put(device, features, dtype), put(device, outputs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateWarning)
        whole = float(measure())
        with mock.patch.object(moments_module, "BLOCK_ROWS", rows):
            cut = float(measure())
    assert cut == pytest.approx(whole, abs=1e-9 if dtype == torch.float64 else 1e-6)


@device_is_fixed
@given(
    classes=st.integers(2, 8),
    size=st.integers(1, 6),
    a1=weights,
    a2=weights,
    seed=seeds,
    kind=st.sampled_from(["one-hot", "zero-sum"]),
)
def test_zero_for_the_minimum_projection_of_balanced_classes(
    device, classes, size, a1, a2, seed, kind
):
    """T = a1 |1⟩⟨1| + a2 P_Ĥ, whatever a1 and a2, the mixing of outputs, the basis of features."""
    rng = np.random.default_rng(seed)
    targets = np.repeat(np.eye(classes), size, axis=0)  # columns are orthogonal and equally long
    if kind == "zero-sum":
        targets = reference.zero_sum(targets)
    rank = classes - (kind == "zero-sum")
    values, functions = np.linalg.eigh(reference.minimum_projection(targets, rank, a1, a2))
    root = functions * np.sqrt(values.clip(0) * len(targets))  # root rootᵀ / n = T_MP
    features = root[:, values > 1e-9 * a2]
    features = features @ reference.orthogonal(rng, features.shape[1])
    outputs = targets @ reference.invertible(rng, classes, 10.0)
    assert value(device, features, outputs) == pytest.approx(0, abs=1e-12)
