"""Neural collapse by its definitions, class by class and sample by sample, without the package."""

import math

import numpy as np

from tests.measure import reference


def labelled(seed, n=90, p=6, classes=4, spread=0.3, offset=0.0):
    """Features (n, p) around random class means, and their labels; class sizes differ."""
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(classes), rng.integers(0, classes, n - classes)])
    means = rng.normal(size=(classes, p))
    return means[labels] + spread * rng.normal(size=(n, p)) + offset, labels


def simplex(classes, width, rng):
    """Vertices (C, p) of a regular simplex around 0 in a random orientation, of squared norm
    1 − 1/C."""
    corners = np.eye(classes) - 1 / classes
    return corners @ np.linalg.qr(rng.normal(size=(width, classes)))[0].T


def means_of(features, labels):
    """{class: mean}, for the classes that occur."""
    features, labels = reference.array(features), np.asarray(labels)
    return {c: features[labels == c].mean(0) for c in sorted(set(labels.tolist()))}


def centred_means(features, labels):
    means = np.array(list(means_of(features, labels).values()))
    return means - means.mean(0)


def nc2_norm(features, labels):
    norms = [math.sqrt(m @ m) for m in centred_means(features, labels)]
    middle = sum(norms) / len(norms)
    return math.sqrt(sum((norm - middle) ** 2 for norm in norms) / len(norms)) / middle


def nc2_angle(features, labels):
    centred = centred_means(features, labels)
    count, found = len(centred), []
    for a in range(count):
        for b in range(a + 1, count):
            cosine = (
                centred[a]
                @ centred[b]
                / math.sqrt((centred[a] @ centred[a]) * (centred[b] @ centred[b]))
            )
            found.append(abs(cosine + 1 / (count - 1)))
    return sum(found) / len(found)


def nc3(features, labels, weight):
    centred = centred_means(features, labels)
    rows = reference.array(weight)[sorted(set(np.asarray(labels).tolist()))]
    return np.linalg.norm(rows / np.linalg.norm(rows) - centred / np.linalg.norm(centred))


def nc4(features, labels, weight, bias):
    means, wrong = means_of(features, labels), 0
    features, weight, bias = (reference.array(v) for v in (features, weight, bias))
    for row in features:
        nearest = min(means, key=lambda c: np.linalg.norm(row - means[c]))
        scores = [w @ row + b for w, b in zip(weight, bias, strict=True)]
        wrong += nearest != scores.index(max(scores))
    return wrong / len(features)


def everything(features, labels, weight, bias):
    return {
        "nc1": reference.nc1(features, labels),
        "nc2_norm": nc2_norm(features, labels),
        "nc2_angle": nc2_angle(features, labels),
        "nc3": nc3(features, labels, weight),
        "nc4": nc4(features, labels, weight, bias),
    }
