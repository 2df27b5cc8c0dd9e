"""The feature kernel T against the n×n matrix of its definition."""

import math

import numpy as np
import pytest
import torch

from richbook.measure import DegenerateWarning, FeatureKernel, RichbookError
from tests.measure import reference
from tests.measure.reference import array, put


@pytest.fixture(params=[False, True], ids=["as it is", "centred"])
def centred(request):
    return request.param


def _operator(features, centred):
    kernel = reference.kernel(features)
    return reference.centred(kernel) if centred else kernel


def test_eigenvalues_are_those_of_the_operator(device, centred):
    features, _ = reference.problem(0)
    kernel = FeatureKernel.from_features(put(device, features), centred=centred)
    wanted, _ = reference.eigenpairs(_operator(features, centred), 8)
    assert kernel.eigenvalues.dtype == torch.float64
    np.testing.assert_allclose(array(kernel.eigenvalues), wanted, rtol=1e-10)
    assert kernel.rank == 8


def test_eigenfunctions_are_those_of_the_operator(device, centred):
    features, _ = reference.problem(1)
    kernel = FeatureKernel.from_features(put(device, features), centred=centred)
    _, wanted = reference.eigenpairs(_operator(features, centred), 8)
    functions = array(kernel.eigenfunctions(put(device, features)))
    overlaps = functions.T @ wanted / 60  # the sign of an eigenfunction is free
    np.testing.assert_allclose(np.abs(overlaps), np.eye(8), atol=1e-8)


def test_eigen_equation_and_orthonormality(device, centred):
    features, _ = reference.problem(2)
    kernel = FeatureKernel.from_features(put(device, features), centred=centred)
    functions = kernel.eigenfunctions(put(device, features))
    np.testing.assert_allclose(array(functions).T @ array(functions) / 60, np.eye(8), atol=1e-9)
    image, scaled = array(kernel.apply(functions)), array(functions * kernel.eigenvalues)
    np.testing.assert_allclose(image, scaled, atol=1e-9 * scaled.max())
    by_definition = _operator(features, centred) @ array(functions)
    np.testing.assert_allclose(image, by_definition, atol=1e-9 * scaled.max())


def test_eigenfunctions_at_new_inputs(device, centred):
    """e(x') = (1/ρ) E_x[Φ(x')·Φ(x) e(x)], with Φ less its mean over the sample if centred."""
    features, _ = reference.problem(3)
    new = reference.problem(4, n=11)[0]
    kernel = FeatureKernel.from_features(put(device, features), centred=centred)
    mean = features.mean(0) if centred else np.zeros(8)
    np.testing.assert_allclose(array(kernel.mean), mean, atol=1e-12)
    at_sample = array(kernel.eigenfunctions(put(device, features)))
    values = array(kernel.eigenvalues)
    wanted = (new - mean) @ (features - mean).T @ at_sample / 60 / values
    np.testing.assert_allclose(
        array(kernel.eigenfunctions(put(device, new))), wanted, rtol=1e-7, atol=1e-7
    )
    one = array(kernel.eigenfunctions(put(device, new[:1])))
    np.testing.assert_allclose(one, wanted[:1], rtol=1e-7, atol=1e-7)


def test_applied_to_functions(device, centred):
    features, outputs = reference.problem(5)
    kernel = FeatureKernel.from_features(put(device, features), centred=centred)
    wanted = _operator(features, centred) @ outputs
    np.testing.assert_allclose(array(kernel.apply(put(device, outputs))), wanted, atol=1e-9)
    vector = kernel.apply(put(device, outputs[:, 0]))
    assert vector.shape == (60,)
    np.testing.assert_allclose(array(vector), wanted[:, 0], atol=1e-9)


def test_applied_at_new_inputs(device, centred):
    features, outputs = reference.problem(6)
    new = reference.problem(7, n=11)[0]
    kernel = FeatureKernel.from_features(put(device, features), centred=centred)
    mean = features.mean(0) if centred else np.zeros(8)
    wanted = (new - mean) @ (features - mean).T @ outputs / 60
    got = kernel.apply(put(device, outputs), features=put(device, new))
    np.testing.assert_allclose(array(got), wanted, atol=1e-9)


def test_float32_features_are_diagonalised_in_float64(device):
    features, _ = reference.problem(8)
    low = put(device, features, torch.float32)
    kernel = FeatureKernel.from_features(low)
    wanted, _ = reference.eigenpairs(reference.kernel(low), 8)
    assert kernel.eigenvalues.dtype == torch.float64
    np.testing.assert_allclose(array(kernel.eigenvalues), wanted, rtol=1e-10)


def test_directions_have_a_sign_that_one_can_rely_on(device):
    features, _ = reference.problem(9)
    directions = array(FeatureKernel.from_features(put(device, features)).directions)
    np.testing.assert_allclose(directions.T @ directions, np.eye(8), atol=1e-12)
    assert (directions[np.abs(directions).argmax(0), np.arange(8)] > 0).all()


def test_undefined_eigenfunctions_are_nan(device, centred):
    features, _ = reference.problem(10, p=3)
    wide = np.column_stack([features, features[:, 0] - 2 * features[:, 1], 0 * features[:, 0]])
    kernel = FeatureKernel.from_features(put(device, wide), centred=centred)
    assert kernel.rank == 3
    functions = array(kernel.eigenfunctions(put(device, wide)))
    assert np.isnan(functions).all(0).tolist() == [False] * 3 + [True] * 2
    assert np.isfinite(functions[:, :3]).all()


@pytest.mark.parametrize("constant", [0.0, 0.1])
def test_centred_kernel_of_constant_features_has_no_eigenfunction(device, constant):
    features = put(device, np.full((50, 3), constant))
    kernel = FeatureKernel.from_features(features, centred=True)
    assert kernel.rank == 0
    assert bool(kernel.eigenfunctions(features).isnan().all())


@pytest.mark.parametrize("n", [8, 5])
def test_too_few_samples_warn(device, n):
    features, _ = reference.problem(11, n=n)
    with pytest.warns(DegenerateWarning, match=f"^{n} samples for 8 features.*more than 8 samples"):
        kernel = FeatureKernel.from_features(put(device, features))
    wanted, _ = reference.eigenpairs(reference.kernel(features), n)
    np.testing.assert_allclose(array(kernel.eigenvalues)[:n], wanted, rtol=1e-7)
    np.testing.assert_allclose(array(kernel.eigenvalues)[n:], 0, atol=1e-12)


def test_features_are_neither_changed_nor_kept_in_a_graph(device):
    features, _ = reference.problem(12)
    leaf = put(device, features).requires_grad_()
    kernel = FeatureKernel.from_features(leaf)
    assert not kernel.eigenvalues.requires_grad
    assert not kernel.apply(put(device, features[:, 0])).requires_grad
    np.testing.assert_array_equal(array(leaf), features)


def test_what_cannot_be_diagonalised():
    features = torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
    bad = features.clone()
    bad[4, 2] = math.nan
    for wrong, message in [
        (features[0], r"^features: expected shape \(n, d\)"),
        (features[:1], "^features: expected at least 2 samples"),
        (bad, "^features: row 4 contains nan"),
        (features.to(torch.complex64), "^features: expected a dense tensor of real numbers"),
    ]:
        with pytest.raises(RichbookError, match=message):
            FeatureKernel.from_features(wrong)


def test_what_cannot_be_applied():
    features = torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
    kernel = FeatureKernel.from_features(features)
    with pytest.raises(RichbookError, match="^features: expected 3 columns"):
        kernel.eigenfunctions(features[:, :2])
    with pytest.raises(RichbookError, match="^features: row 0 contains nan"):
        kernel.eigenfunctions(features * math.nan)
    with pytest.raises(RichbookError, match="same samples .*values"):
        kernel.apply(features[:8])
    with pytest.raises(RichbookError, match="^values: row 0 contains nan"):
        kernel.apply(features * math.nan)
    with pytest.raises(RichbookError, match="^features: expected 3 columns"):
        kernel.apply(features, features=features[:, :2])
