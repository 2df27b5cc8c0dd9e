"""NC1 to NC4 against their definitions, closed forms, and what they must not depend on."""

import math

import numpy as np
import pytest
import torch

from richbook.measure.class_moments import ClassMoments
from richbook.measure.collapse import collapse_from_moments, disagreement, nc1, neural_collapse
from tests.measure import collapse_reference as definition
from tests.measure import reference
from tests.measure.collapse_reference import labelled, simplex
from tests.measure.reference import put

NAMES = ("nc1", "nc2_norm", "nc2_angle", "nc3", "nc4")


def problem(seed, **shape):
    """Labelled features and a head that has something to do with them."""
    features, labels = labelled(seed, **shape)
    rng = np.random.default_rng(seed + 100)
    centred = definition.centred_means(features, labels)
    weight = centred + 0.7 * rng.normal(size=centred.shape)
    return features, labels, weight, 0.3 * rng.normal(size=len(weight))


def measured(device, features, labels, weight=None, bias=None, dtype=torch.float64):
    head = [None if part is None else put(device, part, dtype) for part in (weight, bias)]
    return neural_collapse(
        put(device, features, dtype), put(device, labels, torch.int64), *head
    ).to_dict()


@pytest.mark.parametrize(("p", "classes"), [(6, 4), (2, 5), (1, 2), (12, 3), (4, 5), (20, 15)])
def test_equals_the_definitions(device, p, classes):
    case = problem(0, p=p, classes=classes)
    assert measured(device, *case) == pytest.approx(definition.everything(*case), rel=1e-9)


def test_returns_float64_scalars_where_the_features_are(device):
    features, labels, weight, _ = problem(1)
    found = neural_collapse(
        put(device, features, torch.float32),
        put(device, labels, torch.int64),
        put("cpu", weight, torch.float32),
    )
    home = "cpu" if torch.device(device).type == "mps" else torch.device(device).type
    for name in NAMES:
        value = getattr(found, name)
        assert value.dtype == torch.float64 and value.shape == () and value.device.type == home
    assert list(found.to_dict()) == list(NAMES)
    with pytest.raises(AttributeError):
        found.nc1 = torch.tensor(0.0)


def test_without_a_head_two_are_not_asked(device, recwarn):
    features, labels, weight, bias = problem(2)
    alone = measured(device, features, labels)
    assert math.isnan(alone["nc3"]) and math.isnan(alone["nc4"]) and not recwarn
    beside = measured(device, features, labels, weight, bias)
    assert all(alone[name] == beside[name] for name in NAMES[:3])


def test_nc1_alone_is_the_same_number(device):
    features, labels, *_ = problem(3)
    alone = float(nc1(put(device, features), put(device, labels, torch.int64)))
    assert measured(device, features, labels)["nc1"] == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("counts", [[5] * 4, [1, 40, 3, 7], [5] * 2, [3] * 11])
@pytest.mark.parametrize(("scale", "offset"), [(1, 0), (1e-6, 0), (1e3, 0.1), (1, 1e3)])
def test_perfect_collapse_is_zero_whatever_the_class_sizes(device, counts, scale, offset):
    """A simplex, its points alone, and a self-dual head; means of classes count once each."""
    rng = np.random.default_rng(4)
    corners = simplex(len(counts), 12, rng)
    labels = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    features = scale * corners[labels] + offset
    weight = 3 * corners
    bias = -weight @ np.full(12, offset)  # the boundary lies between the means, wherever they are
    found = measured(device, features, labels, weight, bias)
    assert found == pytest.approx(dict.fromkeys(NAMES, 0.0), abs=1e-12)


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_cosines_of_one_hot_means(device, classes):
    """−1/(C − 1) between any two, and a norm of √(1 − 1/C): from one-hot rows to the definition."""
    labels = np.arange(3 * classes) % classes
    found = measured(device, np.eye(classes)[labels], labels)
    assert found["nc2_norm"] == pytest.approx(0, abs=1e-12)
    assert found["nc2_angle"] == pytest.approx(0, abs=1e-12)


def test_angles_of_a_square(device):
    """Four classes at right angles: cosines 0 (four pairs) and −1 (two), where 1/3 is asked for."""
    square = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]])
    found = measured(device, np.repeat(square, 2, axis=0), np.repeat(np.arange(4), 2))
    assert found["nc2_norm"] == pytest.approx(0, abs=1e-12)
    assert found["nc2_angle"] == pytest.approx((4 * (1 / 3) + 2 * (2 / 3)) / 6, rel=1e-12)


def test_two_classes_are_always_opposite(device):
    """C = 2: the means lie at equal distances on both sides of their centre, cos = −1 exactly."""
    features, labels, weight, bias = problem(5, classes=2)
    found = measured(device, features, labels, weight, bias)
    assert abs(found["nc2_angle"]) < 1e-12 and abs(found["nc2_norm"]) < 1e-12
    assert found["nc1"] > 0.01 and found["nc3"] > 0.01


@pytest.mark.parametrize(("classes", "spread"), [(3, 0.5), (10, 0.1), (5, 3.0)])
def test_gaussian_clouds(device, classes, spread):
    """Σ_W = s² I around a simplex with Σ_B = 1/C on C − 1 directions: NC1 = s² (C − 1).

    The estimate averages m = (n − C)(C − 1) squares, so its relative error is about √(2/m); the
    class means are off by s²/n_c in each direction, which makes Σ_B larger by that share.
    """
    each, rng = 3000, np.random.default_rng(6)
    labels = np.repeat(np.arange(classes), each)
    features = simplex(classes, 12, rng)[labels] + spread * rng.normal(size=(len(labels), 12))
    error = 4 * math.sqrt(2 / (len(labels) * (classes - 1))) + 4 * spread * math.sqrt(1 / each)
    found = measured(device, features, labels)["nc1"]
    assert found == pytest.approx(spread**2 * (classes - 1), rel=error)


def test_nc3_of_a_head_at_a_known_angle(device):
    """‖Ŵ − M̂‖ = √(2 − 2 cos θ) for W = cos θ M̂ + sin θ R̂ with R orthogonal to M."""
    rng = np.random.default_rng(7)
    corners = simplex(4, 6, rng)
    labels = np.arange(12) % 4
    unit = corners / np.linalg.norm(corners)
    rest = rng.normal(size=corners.shape)
    rest -= (rest * unit).sum() * unit
    rest /= np.linalg.norm(rest)
    for angle in (0.1, 1.0, math.pi / 2, math.pi):
        head = 5 * (math.cos(angle) * unit + math.sin(angle) * rest)
        found = measured(device, corners[labels], labels, head)["nc3"]
        assert found == pytest.approx(math.sqrt(2 - 2 * math.cos(angle)), rel=1e-9)


def test_nc3_counts_what_all_rows_of_the_head_share(device):
    """A common vector changes no decision, but counts; without it the head is self-dual."""
    rng = np.random.default_rng(8)
    corners, labels = simplex(4, 6, rng), np.arange(12) % 4
    head = corners + rng.normal(size=6)
    found = measured(device, corners[labels], labels, head)
    share = np.linalg.norm(corners) / np.linalg.norm(head)
    assert found["nc3"] == pytest.approx(math.sqrt(2 - 2 * share), rel=1e-9)
    assert found["nc4"] == 0
    centred = measured(device, corners[labels], labels, head - head.mean(0))
    assert centred["nc3"] == pytest.approx(0, abs=1e-12)


def test_nc4_is_the_share_of_disagreements(device):
    """Means 0 and 4, so that the boundary is at 2; the head moves it to 3."""
    features = np.array([[-1.0], [1.0], [2.5], [5.5]])
    head, bias = np.array([[-1.0], [1.0]]), np.array([3.0, -3.0])
    assert measured(device, features, [0, 0, 1, 1], head, bias)["nc4"] == 0.25
    assert measured(device, features, [0, 0, 1, 1], head)["nc4"] == 0.25  # the boundary at 0
    shifted = measured(device, features, [0, 0, 1, 1], head, bias / 1.5)
    assert shifted["nc4"] == 0


@pytest.mark.parametrize("seed", range(3))
def test_rotating_scaling_and_shifting_the_features(device, seed):
    features, labels, weight, bias = problem(9 + seed)
    plain = measured(device, features, labels, weight, bias)
    turn = reference.orthogonal(np.random.default_rng(seed), 6)
    moved = 1e-4 * features @ turn + 3
    head = 1e4 * weight @ turn  # gives the same outputs, once the bias has taken up the shift
    same = measured(device, moved, labels, head, bias - head @ np.full(6, 3.0))
    assert same == pytest.approx(plain, rel=1e-6)


def test_order_of_samples_and_names_of_classes(device):
    features, labels, weight, bias = problem(12)
    rng = np.random.default_rng(12)
    order, names = rng.permutation(90), rng.permutation(4)
    places = np.argsort(names)  # class c is now called names[c]
    plain = measured(device, features, labels, weight, bias)
    renamed = measured(device, features[order], names[labels[order]], weight[places], bias[places])
    assert renamed == pytest.approx(plain, rel=1e-9)


def test_imbalance_does_not_weigh_the_class_means(device):
    """Repeating a class leaves its mean, and so NC2 and NC3, where they are."""
    features, labels, weight, bias = problem(13)
    often = labels == 2
    more = np.concatenate([features, *[features[often]] * 20])
    names = np.concatenate([labels, *[labels[often]] * 20])
    plain = measured(device, features, labels, weight, bias)
    skewed = measured(device, more, names, weight, bias)
    assert skewed == pytest.approx(definition.everything(more, names, weight, bias), rel=1e-9)
    for name in ("nc2_norm", "nc2_angle", "nc3"):
        assert skewed[name] == pytest.approx(plain[name], rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_lower_precision_is_measured_as_it_is(device, dtype):
    case = [put(device, values, dtype) for values in np.array(problem(14), dtype=object)[[0, 2, 3]]]
    labels = problem(14)[1]
    found = neural_collapse(case[0], put(device, labels, torch.int64), *case[1:]).to_dict()
    assert found == pytest.approx(definition.everything(case[0], labels, *case[1:]), rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_large_offset(device, dtype):
    features, labels, weight, bias = problem(15)
    moved = put(device, features + 1e3, dtype)
    exact = reference.array(moved) - 1e3
    found = neural_collapse(moved, put(device, labels, torch.int64), put(device, weight)).to_dict()
    wanted = definition.everything(exact, labels, weight, np.zeros(4))
    for name in NAMES[:4]:
        assert found[name] == pytest.approx(wanted[name], rel=1e-7)


def test_autocast_changes_nothing(device):
    case = problem(16)
    plain = measured(device, *case, dtype=torch.float32)
    with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
        assert measured(device, *case, dtype=torch.float32) == plain


@pytest.mark.parametrize("name", NAMES[:4])
def test_gradients_equal_finite_differences(device, name):
    case = problem(17, n=12, p=4, classes=3)
    features, weight = (put(device, case[i]).requires_grad_() for i in (0, 2))
    labels = put(device, case[1], torch.int64)

    def value(features, weight):
        return getattr(neural_collapse(features, labels, weight), name)

    assert torch.autograd.gradcheck(value, (features, weight))


def test_gradients_at_perfect_collapse_are_finite(device):
    """The singular values of a simplex coincide, where the gradient of an eigenvector is 0/0."""
    corners, labels = simplex(4, 6, np.random.default_rng(18)), np.arange(12) % 4
    features = put(device, corners[labels]).requires_grad_()
    weight = put(device, corners).requires_grad_()
    found = neural_collapse(features, put(device, labels, torch.int64), weight)
    for name in NAMES[:4]:
        grads = torch.autograd.grad(
            getattr(found, name), (features, weight), retain_graph=True, allow_unused=True
        )
        assert all(grad is None or bool(grad.isfinite().all()) for grad in grads), name
    assert not found.nc4.requires_grad


def test_descent_on_nc1_and_the_angles_collapses(device):
    """What the gradients are for: they lead to a simplex."""
    features, labels, *_ = problem(19)
    features = put(device, features).requires_grad_()
    labels = put(device, labels, torch.int64)
    optimiser = torch.optim.Adam([features], lr=0.05)
    for _ in range(300):
        found = neural_collapse(features, labels)
        optimiser.zero_grad()
        (found.nc1 + found.nc2_norm + found.nc2_angle).backward()
        optimiser.step()
    end = neural_collapse(features, labels).to_dict()
    assert end["nc1"] < 1e-2 and end["nc2_norm"] < 0.05 and end["nc2_angle"] < 0.05


@pytest.mark.parametrize("seed", range(4))
def test_streamed_equals_direct(device, seed):
    features, labels, weight, bias = problem(20 + seed, n=200, p=(3, 8)[seed % 2])
    stream = ClassMoments()
    tensors = put(device, features), put(device, labels, torch.int64)
    for rows, names in zip(*(t.split((7, 64)[seed // 2]) for t in tensors), strict=True):
        stream.update(rows, names)
    found = collapse_from_moments(stream, put(device, weight)).to_dict()
    direct = measured(device, features, labels, weight, bias)
    for name in NAMES[:4]:
        assert found[name] == pytest.approx(direct[name], rel=1e-10)
    assert math.isnan(found["nc4"])
    predicted = put(device, (features @ weight.T + bias).argmax(1), torch.int64)
    assert float(disagreement(tensors[0], stream.means, predicted)) == direct["nc4"]


def test_disagreement_in_blocks_with_an_empty_class(device):
    rng = np.random.default_rng(24)
    features, means = rng.normal(size=(5000, 3)) + 1e3, rng.normal(size=(6, 3)) + 1e3
    means[2] = np.nan
    predicted = rng.integers(0, 6, 5000)
    distances = np.linalg.norm(features[:, None] - means, axis=2)
    wanted = (np.nanargmin(distances, axis=1) != predicted).mean()
    found = disagreement(put(device, features), put(device, means), put(device, predicted, int))
    assert found.dtype == torch.float64 and float(found) == pytest.approx(wanted, rel=1e-12)
