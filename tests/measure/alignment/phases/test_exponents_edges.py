"""Exponents where there are too few eigenvalues, and arguments that do not fit."""

import math
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from richbook.measure.alignment.phases.exponents import exponents
from richbook.measure.errors import DegenerateWarning, RichbookError
from tests.measure.alignment.phases.laws import layer, layer_of_powers

NAN = float("nan")


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_fewer_than_four_eigenvalues(count, device):
    rng = np.random.default_rng(count)
    sizes = np.geomspace(2, 1, count) if count else np.zeros(1)
    moments = layer_of_powers(rng, 6, 7, sizes, 1, 1, device=device)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = exponents(moments)
    assert [w.category for w in caught] == [DegenerateWarning]
    assert [w.filename for w in caught] == [__file__]
    said = str(caught[0].message)
    assert said.startswith(f"layer 'fc' has {count} different eigenvalues of Z in use (rank of Z")
    assert found.used == count == len(found.eigenvalues)
    for name in ("H_b", "G_b", "H_a", "G_a", "ratio_a", "HG_b"):
        law = getattr(found, name)
        assert all(math.isnan(value) for value in vars(law).values())
    assert "nan" in repr(found) and found.to_dict()["H_b"]["exponent"] is None


def test_the_warning_names_the_matrix_that_lacks_rank():
    one = np.diag([1.0, 0, 0, 0, 0])
    with pytest.warns(DegenerateWarning, match="rank of Z 5, of H 1, of G 5"):
        exponents(layer(np.diag(np.arange(1.0, 6)), one, np.eye(5)))
    with pytest.warns(DegenerateWarning, match="rank of Z 5, of H 5, of G 0"):
        exponents(layer(np.diag(np.arange(1.0, 6)), np.eye(5), np.zeros((5, 5))))


def test_each_layer_of_a_dictionary_warns_for_itself():
    few = layer(np.eye(3), np.eye(3), np.eye(3), name="head")
    many = layer_of_powers(np.random.default_rng(0), 6, 6, np.geomspace(2, 1, 6), 1, 1)
    with pytest.warns(DegenerateWarning, match="'head' has 1 different"):
        found = exponents({"fc": many, "head": few})
    assert found["fc"].x == pytest.approx(1) and math.isnan(found["head"].x)


def test_top_that_is_too_small_warns():
    moments = layer_of_powers(np.random.default_rng(0), 6, 6, np.geomspace(2, 1, 6), 1, 1)
    with pytest.warns(DegenerateWarning, match="3 different eigenvalues"):
        assert math.isnan(exponents(moments, top=3).x)
    assert exponents(moments, top=4).used == 4


def test_singular_blocks_have_no_purity_and_no_matter():
    """A top beyond the rank of H: all directions still have a diagonal entry."""
    ones = np.ones((5, 5))  # rank 1, nothing but leaks
    found = exponents(layer(np.diag(np.arange(1.0, 6)), ones, np.eye(5)), top=5)
    assert found.used == 5 and found.purity == {"H": 0.0, "G": pytest.approx(1.0)}
    assert found.x == pytest.approx(0) and found.diagonal["H_a"] == pytest.approx(1 / 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_other_dtypes(dtype, device):
    weight = np.diag([8, 4, 2, 1])
    found = exponents(layer(weight, weight**2, weight**4, device=device, dtype=dtype))
    assert (found.x, found.y) == pytest.approx((1, 2), rel=1e-6)
    assert found.eigenvalues.dtype == torch.float64 and found.eigenvalues.device.type == "cpu"


def test_gradients_are_neither_needed_nor_touched():
    moments = layer(np.diag([8.0, 4, 2, 1]), np.eye(4), np.eye(4))
    moments.weight.requires_grad_()
    assert not exponents(moments).eigenvalues.requires_grad and moments.weight.grad is None


GOOD = layer(np.diag([8.0, 4, 2, 1]), np.eye(4), np.eye(4))


def changed(**parts):
    return SimpleNamespace(**(vars(GOOD) | parts))


WRONG = {
    "a network": ((torch.nn.Linear(4, 4),), {}, "^moments: expected LayerMoments.*Linear wi"),
    "a number": ((3,), {}, "^moments: .*got int without weight"),
    "no G": ((SimpleNamespace(weight=np.eye(4), H_a=np.eye(4)),), {}, "without G_b"),
    "H of another width": (
        (changed(H_a=torch.eye(5)),),
        {},
        r"^moments.H_a: expected shape \(4, 4\) for a weight of shape \(4, 4\), got \(5, 5\)",
    ),
    "G not square": ((changed(G_b=torch.ones(4, 3)),), {}, "^moments.G_b: expected shape"),
    "weight of a convolution": (
        (changed(weight=torch.ones(4, 4, 1, 1)),),
        {},
        r"^moments.weight: expected shape \(n, d\)",
    ),
    "nan": ((changed(G_b=torch.eye(4) * NAN),), {}, "^moments.G_b: row 0 contains nan"),
    "top 0": ((GOOD,), {"top": 0}, "^top: expected a whole number of eigenvalues from 1, got 0"),
    "top real": ((GOOD,), {"top": 4.0}, "^top: "),
    "level": ((GOOD,), {"level": 95}, "^level: expected a share between 0 and 1, got 95"),
    "resolution": ((GOOD,), {"resolution": 0}, "^resolution: expected a share between 0 and 1"),
    "inside a dictionary": (({"fc": 1},), {}, "^moments: .*got int"),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors_name_the_argument(case):
    arguments, options, message = WRONG[case]
    with pytest.raises(RichbookError, match=message):
        exponents(*arguments, **options)
