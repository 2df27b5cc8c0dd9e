"""The decomposition of the centred kernel, and the identity that ties it to D_LR."""

import math

import numpy as np
import pytest
import torch

from richbook.measure import DegenerateWarning, RichbookError, d_lr, decompose
from tests.measure import reference
from tests.measure.reference import array, put

KINDS = {  # outputs made from those of a problem, and the dimension of their span
    "full": (lambda outputs: outputs, 4),
    "zero-sum": (lambda outputs: reference.zero_sum(outputs + 5 * np.arange(4)), 3),
    "probabilities": (reference.softmax, 4),
    "one": (lambda outputs: outputs[:, :1], 1),
}


@pytest.fixture(params=KINDS)
def case(request):
    """Features, outputs and the dimension of their span."""
    make, rank = KINDS[request.param]
    features, outputs = reference.problem(0)
    return features, make(outputs), rank


def test_eigenvalues_are_those_of_the_centred_kernel(device, case):
    features, outputs, _ = case
    result = decompose(put(device, features), put(device, outputs))
    wanted, _ = reference.eigenpairs(reference.centred(reference.kernel(features)), 8)
    np.testing.assert_allclose(array(result.eigenvalues), wanted, rtol=1e-9)
    np.testing.assert_allclose(array(result.relative_eigenvalues), wanted / wanted[0], rtol=1e-9)
    assert result.quality is None


def test_utilization_is_the_share_of_the_projector(device, case):
    features, outputs, rank = case
    result = decompose(put(device, features), put(device, outputs))
    used, total = reference.utilization(features, outputs, rank, count=8)
    np.testing.assert_allclose(array(result.utilization), used.cumsum() / total, atol=1e-9)
    assert (np.diff(array(result.utilization)) >= -1e-12).all()


def test_richness_is_the_spectrum_weighed_by_the_utilization(device, case):
    """D_LR = 1 − Σ ρ_k u_k / (‖ρ‖ ‖c(P)‖_F), u_k the increments of the curve times Tr c(P)."""
    features, outputs, rank = case
    result = decompose(put(device, features), put(device, outputs))
    projector = reference.centred(reference.span_projector(outputs, rank))
    used = np.diff(array(result.utilization), prepend=0) * np.trace(projector)
    spectrum = array(result.eigenvalues)
    identity = 1 - spectrum @ used / (np.linalg.norm(spectrum) * np.linalg.norm(projector))
    assert identity == pytest.approx(reference.d_lr(features, outputs, rank), abs=1e-9)
    assert float(d_lr(put(device, features), put(device, outputs))) == pytest.approx(
        identity, abs=1e-9
    )


@pytest.mark.parametrize("bias", [0.0, 2.0, 1e3])
def test_the_curve_ends_at_1_if_outputs_are_affine_in_the_features(device, bias):
    features, _ = reference.problem(1)
    rng = np.random.default_rng(1)
    outputs = features @ rng.normal(size=(8, 3)) + bias * rng.normal(size=3)
    curve = array(decompose(put(device, features), put(device, outputs)).utilization)
    assert curve[-1] == pytest.approx(1, abs=1e-9)
    assert curve[0] < 0.99


def test_the_curve_ends_below_1_if_the_features_cannot_express_the_outputs(device):
    features, outputs = reference.problem(2)
    used, total = reference.utilization(features, outputs, rank=4, count=8)
    curve = array(decompose(put(device, features), put(device, outputs)).utilization)
    assert curve[-1] == pytest.approx(used.sum() / total, abs=1e-9)
    assert curve[-1] < 0.9


def test_quality_is_the_same_for_the_targets(device):
    features, outputs = reference.problem(3)
    labels = np.arange(60) % 3
    targets = np.eye(3)[labels]
    result = decompose(
        put(device, features), put(device, outputs), put(device, targets, torch.float32)
    )
    used, total = reference.utilization(features, targets, rank=3, count=8)
    np.testing.assert_allclose(array(result.quality), used.cumsum() / total, atol=1e-9)
    used, total = reference.utilization(features, outputs, rank=4, count=8)
    np.testing.assert_allclose(array(result.utilization), used.cumsum() / total, atol=1e-9)


def test_rank_deficient_features(device):
    features, outputs = reference.problem(4, p=3)
    wide = np.column_stack([features, features[:, 0] - 2 * features[:, 1], np.full(60, 0.1)])
    result = decompose(put(device, wide), put(device, outputs))
    used, total = reference.utilization(wide, outputs, rank=4, count=3)
    wanted = used.cumsum() / total
    np.testing.assert_allclose(array(result.utilization)[:3], wanted, atol=1e-9)
    np.testing.assert_allclose(
        array(result.utilization)[3:], wanted[-1], atol=1e-9
    )  # nothing more comes
    assert (array(result.relative_eigenvalues)[3:] < 1e-13).all()


def test_orthogonal_features_by_hand(device):
    """Strengths 9, 4, 1; the output is the mean of the first and last function, in equal parts."""
    signs = np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])
    output = signs[:, 0] + signs[:, 2]
    with pytest.warns(DegenerateWarning, match="^4 samples for 4 features"):
        result = decompose(
            put(device, np.column_stack([signs * [3, 2, 1], np.ones(4)])),
            put(device, output[:, None]),
        )
    np.testing.assert_allclose(array(result.eigenvalues), [9, 4, 1, 0], atol=1e-12)
    np.testing.assert_allclose(array(result.utilization), [0.5, 0.5, 1, 1], atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision(device, dtype):
    features, outputs = reference.problem(5, n=400)
    logits = reference.zero_sum(outputs)
    low = put(device, features, dtype)
    curve = array(decompose(low, put(device, logits, dtype)).utilization)
    used, total = reference.utilization(low, logits, rank=3, count=8)
    tolerance = 1e-6 if dtype == torch.float32 else 3e-3
    np.testing.assert_allclose(curve, used.cumsum() / total, atol=tolerance)


def test_a_large_offset(device):
    features, outputs = reference.problem(6)
    shifted = put(device, features + 1e3, torch.float32)
    result = decompose(shifted, put(device, outputs))
    seen = array(shifted) - 1e3
    used, total = reference.utilization(seen, outputs, rank=4, count=8)
    np.testing.assert_allclose(array(result.utilization), used.cumsum() / total, atol=1e-7)


@pytest.mark.parametrize("constant", [0.0, 0.1])
@pytest.mark.parametrize("name", ["features", "outputs", "targets"])
def test_constant_input_gives_nan_and_a_warning(device, name, constant):
    features, outputs = reference.problem(7)
    named = {"features": features, "outputs": outputs, "targets": outputs[:, :2]}
    named[name] = np.full((60, 3), constant)
    with pytest.warns(DegenerateWarning, match=f"^{name}: constant over the samples"):
        result = decompose(*(put(device, values) for values in named.values()))
    lost = {
        "features": {"utilization", "quality", "relative_eigenvalues"},
        "outputs": {"utilization"},
        "targets": {"quality"},
    }[name]
    for curve in ("utilization", "quality", "relative_eigenvalues"):
        assert bool(getattr(result, curve).isnan().all()) == (curve in lost)
        assert bool(getattr(result, curve).isnan().any()) == (curve in lost)


def test_few_samples_warn(device):
    features, outputs = reference.problem(8, n=6)
    with pytest.warns(DegenerateWarning, match="^6 samples for 8 features"):
        decompose(put(device, features), put(device, outputs[:, :2]))


def test_inputs_that_require_gradients_or_hold_whole_numbers(device):
    features, outputs = reference.problem(9)
    leaf = put(device, features).requires_grad_()
    assert not decompose(leaf, put(device, outputs)).utilization.requires_grad
    whole = np.rint(10 * features)
    result = decompose(put(device, whole, torch.int32), put(device, outputs[:, 0]))
    used, total = reference.utilization(whole, outputs[:, :1], rank=1, count=8)
    np.testing.assert_allclose(array(result.utilization), used.cumsum() / total, atol=1e-9)


def test_what_cannot_be_decomposed():
    good = torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
    bad = good.clone()
    bad[5, 1] = math.nan
    for arguments, message in [
        ((good[:, 0], good), r"^features: expected shape \(n, d\)"),
        ((good, good[:8]), r"same samples .*features \(9, 3\), outputs \(8, 3\)"),
        ((good, good, good[:8]), r"same samples .*targets \(8, 3\)"),
        ((bad, good), "^features: row 5 contains nan"),
        ((good, bad), "^outputs: row 5 contains nan"),
        ((good, good, bad), "^targets: row 5 contains nan"),
        ((good, good, torch.arange(9) % 3), "^targets: .*class labels.*one-hot"),
    ]:
        with pytest.raises(RichbookError, match=message):
            decompose(*arguments)
