"""Second moments of patches by displacements, against the patches themselves."""

import itertools

import pytest
import torch
from torch import nn

from richbook.measure.alignment.layers.patches import has_displacements, patch_sums, place_sums
from tests.measure.alignment.one_at_a_time import distance, patches
from tests.measure.capture.networks import drawn

KERNELS = [(3, 3), (1, 3), (5, 2), (2, 2), (1, 1)]
PADDINGS = [(0, 0), (1, 1), (2, 0), "same"]
DILATIONS = [(1, 1), (2, 1), (2, 2)]
MODES = ["zeros", "reflect", "circular", "replicate"]


def moments_of(rows):
    rows = rows.double()
    centred = rows - rows.mean(0)
    return len(rows), rows.mean(0), centred.T @ centred


def check(found, expected, tolerance):
    assert found[0] == expected[0]
    assert (found[1] - expected[1]).abs().max() <= tolerance * expected[1].abs().max()
    assert distance(found[2], expected[2]) < tolerance


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_every_kind_of_convolution(kernel, mode):
    """In float64, with an offset, in two parts, whether it would be chosen or not."""
    images = drawn(7, 3, 9, 8).double() + torch.tensor([0.0, 5.0, -50.0])[:, None, None]
    for padding, dilation in itertools.product(PADDINGS, DILATIONS):
        layer = nn.Conv2d(3, 4, kernel, padding=padding, dilation=dilation, padding_mode=mode)
        sums = patch_sums(layer, 9, 8)
        assert sums.update(images[:4]) and sums.update(images[4:])
        check(sums.finish(), moments_of(patches(layer, images)), 1e-9)


@pytest.mark.parametrize("offset", [0.0, 1.0, 1e3])
@pytest.mark.parametrize("size", [28, 14, 7])
def test_single_precision(offset, size):
    """Rectified features of many images, and an offset, cost less than 1e-6."""
    layer = nn.Conv2d(16, 4, 3, padding=1)
    images = drawn(60, 16, size, size).relu() + offset
    sums = patch_sums(layer, size, size)
    for part in images.split(25):
        assert sums.update(part)
    check(sums.finish(), moments_of(patches(layer, images)), 1e-6)


def test_places():
    images = drawn(60, 8, 15, 16) + 1e3
    sums = place_sums(15, 16)
    assert sums.update(images)
    check(sums.finish(), moments_of(images.movedim(1, -1).flatten(0, 2)), 2e-6)


@pytest.mark.parametrize("settings, size, expected", [
    ({"kernel_size": 3, "padding": 1}, (28, 28), True),
    ({"kernel_size": 3, "padding": 1}, (7, 7), True),
    ({"kernel_size": 3, "padding": 1}, (2, 2), False),
    ({"kernel_size": 3, "padding": 1, "stride": 2}, (28, 28), False),
    ({"kernel_size": 7, "padding": 3}, (6, 6), False),
    ({"kernel_size": 1}, (3, 3), True),
], ids=str)  # fmt: skip
def test_when_it_is_the_shorter_way(settings, size, expected):
    assert has_displacements(nn.Conv2d(16, 2, **settings), *size) is expected
    assert not has_displacements(nn.Conv2d(15, 2, **settings), *size)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_is_not_added(bad):
    layer = nn.Conv2d(2, 2, 3, padding=1)
    sums = patch_sums(layer, 6, 6)
    images, broken = drawn(5, 2, 6, 6), drawn(5, 2, 6, 6)
    broken[2, 1, 3, 3] = bad
    assert not sums.update(broken) and sums.update(images) and not sums.update(broken)
    check(sums.finish(), moments_of(patches(layer, images)), 1e-5)
