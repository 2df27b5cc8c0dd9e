"""Checks of chapter 6: NC1, a collapsed network that is not rich, and the regular simplex."""

import torch
from torch.nn.functional import one_hot

from richbook.course.checking import as_tensor, close, exercise, require
from richbook.measure import d_lr, neural_collapse

#: More samples than this would make the check slow.
MOST_SAMPLES = 50_000


def _reference(features, labels):
    """NC1 by loops over samples and classes."""
    names = labels.unique().tolist()
    means = {name: features[labels == name].mean(0) for name in names}
    centre = sum(means.values()) / len(names)
    rest = [row - means[name] for row, name in zip(features, labels.tolist(), strict=True)]
    within = sum(torch.outer(row, row) for row in rest) / len(features)
    steps = [mean - centre for mean in means.values()]
    between = sum(torch.outer(step, step) for step in steps) / len(names)
    inverse = torch.linalg.pinv(between, rtol=1e-9, hermitian=True)
    return torch.trace(within @ inverse) / len(names)


@exercise("6.1", "nc1(features, labels)")
def nc1(answer, generator):
    """Equal to the definition for equal and unequal classes, and 0 for points."""
    for counts, width in (((9, 9, 9), 5), ((25, 2, 3, 6), 7), ((4, 30), 3), ((5, 6, 3, 9, 8), 2)):
        labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        labels = labels[torch.randperm(len(labels), generator=generator)]
        corners = torch.randn(len(counts), width, generator=generator, dtype=torch.float64)
        noise = torch.randn(len(labels), width, generator=generator, dtype=torch.float64)
        features = corners[labels] + 0.4 * noise
        expected = _reference(features, labels)
        value = as_tensor(answer(features, labels), "NC1", ())
        require(
            close(value, expected, 1e-5),
            f"{len(counts)} classes of {counts} samples with {width} features have an NC1 of "
            f"{float(expected):.6f}, yours is {float(value):.6f}. Does Σ_W average over samples, "
            "and Σ_B over classes around the mean of the class means?",
        )
        value = as_tensor(answer(corners[labels], labels), "NC1", ())
        require(close(value, 0.0, 1e-9), "classes that are points have NC1 = 0; yours do not")


@exercise("6.2", "collapsed(threshold)")
def collapsed(answer, generator):
    """NC1 and NC2 are 0 and D_LR is above the threshold."""
    for threshold in (0.3, 0.3 + 0.4 * float(torch.rand((), generator=generator)), 0.7):
        result = answer(threshold)
        require(
            isinstance(result, tuple | list) and len(result) == 2,
            "expected two things, features and labels",
        )
        features, labels = as_tensor(result[0], "features"), as_tensor(result[1], "labels")
        require(
            features.ndim == 2 and labels.shape == features.shape[:1],
            f"expected features (n, p) and labels (n,), got {tuple(features.shape)} "
            f"and {tuple(labels.shape)}",
        )
        require(len(labels) <= MOST_SAMPLES, f"expected at most {MOST_SAMPLES} samples")
        require((labels == labels.round()).all(), "expected whole numbers for labels")
        _, labels, counts = labels.unique(return_inverse=True, return_counts=True)
        require(
            len(counts) > 1 and int(counts.min()) > 1,
            "expected two classes or more, with at least two samples each",
        )
        found = neural_collapse(features, labels).to_dict()
        for name in ("nc1", "nc2_norm", "nc2_angle"):
            require(
                found[name] < 1e-6, f"not collapsed: {name} is {found[name]:.2g} and should be 0"
            )
        richness = float(d_lr(features, one_hot(labels).double()))
        require(
            richness > threshold,
            f"D_LR is {richness:.3f} and should exceed {threshold:.3f}. A simplex of balanced "
            "classes is rich: what if they are not?",
        )


@exercise("6.3", "simplex(classes, width)")
def simplex(answer, generator):
    """Unit rows with cosines −1/(C − 1), in the smallest width and in larger ones."""
    for spare in (0, 1, int(torch.randint(2, 9, (), generator=generator))):
        classes = int(torch.randint(3, 9, (), generator=generator))
        width = classes - 1 + spare
        rows = as_tensor(answer(classes, width), "the vectors", (classes, width))
        gram = rows @ rows.T
        require(
            close(gram.diagonal(), torch.ones(classes)),
            f"expected unit vectors; your norms are {gram.diagonal().sqrt().numpy().round(3)}",
        )
        apart = gram[~torch.eye(classes, dtype=torch.bool)]
        require(
            close(apart, torch.full_like(apart, -1 / (classes - 1))),
            f"any two of {classes} should have the cosine {-1 / (classes - 1):.3f}; yours lie "
            f"between {float(apart.min()):.3f} and {float(apart.max()):.3f}",
        )
