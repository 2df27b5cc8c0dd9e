"""Centring, and the products that the moments and norms are made of."""

import numpy as np
import pytest
import torch

from richbook.measure.products import centre_in, cross_product, frobenius, symmetric_product
from tests.measure.reference import array, put


@pytest.mark.parametrize("width", [1, 255, 512, 700, 1025])
def test_symmetric_product_by_panels(device, width):
    values = put(device, np.random.default_rng(6).normal(size=(9, width)), torch.float32)
    product = symmetric_product(values)
    wanted = array(values).T @ array(values)
    np.testing.assert_allclose(array(product), wanted, atol=2e-6 * np.abs(wanted).max())
    assert torch.equal(product, product.T)


def test_symmetric_product_keeps_gradients_and_batches(device):
    values = put(
        device, np.random.default_rng(7).normal(size=(3, 600)), torch.float32
    ).requires_grad_()
    symmetric_product(values).sum().backward()
    wanted = 2 * array(values).sum(1, keepdims=True) * np.ones((1, 600))
    np.testing.assert_allclose(array(values.grad), wanted, rtol=1e-3, atol=1e-3)
    batch = symmetric_product(values.detach().expand(2, 3, 600))
    assert batch.shape == (2, 600, 600)


@pytest.mark.parametrize("count", [100, 511, 512, 3000])
def test_narrow_products_in_float32_lose_nothing(device, count):
    """Nine points, each many times: rounding errors that agree with each other add up."""
    points = np.random.default_rng(9).normal(size=(9, 5))
    values = put(device, points[np.arange(count) % 9] + 2, torch.float32)
    wanted = array(values).T @ array(values)
    several = torch.stack([values, 2 * values])
    products = [symmetric_product(values), cross_product(values, values)]
    products += [symmetric_product(several)[0], symmetric_product(several)[1] / 4]
    for product in products:
        assert product.dtype == torch.float64
        np.testing.assert_allclose(array(product), wanted, rtol=2e-6)


def test_frobenius_norm_is_exact_and_safe(device):
    matrix = np.random.default_rng(8).normal(size=(1024, 1024))
    norm = frobenius(put(device, matrix))
    assert float(norm) == pytest.approx(np.linalg.norm(matrix), rel=1e-12)
    for scale in (1e200, 1e-200):
        assert float(frobenius(put(device, matrix) * scale)) == pytest.approx(
            np.linalg.norm(matrix) * scale, rel=1e-12
        )
    assert frobenius(torch.zeros(2, 3, 3)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("offset", [0, 1e3, 1e6])
@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("count", [5, 300, 20_000])
def test_centring_in_float32_keeps_mean_and_products(device, count, repeated, offset):
    """Mean and scatter of what the rounded values are, whatever the offset."""
    values = np.random.default_rng(10).normal(size=(count, 70))
    values = values[np.arange(count) % 64] if repeated else values
    values = put(device, values + offset, torch.float32)
    exact = array(values).astype(np.float64)
    spread = exact.std(0).mean()
    centred, mean, rest = centre_in(values, torch.float32)
    assert centred.dtype == torch.float32
    np.testing.assert_allclose(array(mean), exact.mean(0), rtol=0, atol=2e-6 * spread)
    scatter = array(symmetric_product(centred)) - count * np.outer(array(rest), array(rest))
    wanted = (exact - exact.mean(0)).T @ (exact - exact.mean(0))
    assert np.linalg.norm(scatter - wanted) < 3e-6 * np.linalg.norm(wanted)


@pytest.mark.parametrize("count", [7, 5000])
def test_centring_leaves_nothing_of_constant_columns(device, count):
    values = put(device, np.full((count, 3), 0.1), torch.float32)
    centred, mean, rest = centre_in(values, torch.float32)
    assert not centred.any() and not rest.any()
    assert array(mean).tolist() == [float(np.float32(0.1))] * 3


def test_the_mean_of_centred_values_has_a_gradient(device):
    """Of the second moment, which takes the mean with it."""
    for count in (50, 1000):
        values = put(device, np.random.default_rng(11).normal(size=(count, 4)), torch.float32)
        values.requires_grad_()
        _, mean, _ = centre_in(values, torch.float32)
        mean.square().sum().backward()
        wanted = np.broadcast_to(2 * array(values.detach()).mean(0) / count, (count, 4))
        np.testing.assert_allclose(array(values.grad), wanted, rtol=1e-4, atol=1e-9)
