"""The two products that the moments and norms are made of."""

import numpy as np
import pytest
import torch

from richbook.measure.products import cross_product, frobenius, symmetric_product
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
    for product in (symmetric_product(values), cross_product(values, values)):
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
