"""Checks of chapter 4: D_LR from moments, its isotropic value, and a measure that can be fooled."""

import torch

from richbook.course.checking import as_tensor, close, exercise, require
from richbook.measure import kernel_distance


def _reference(features, outputs):
    """D_LR by its definition, with n×n matrices."""
    count = len(features)
    centring = torch.eye(count, dtype=torch.float64) - 1 / count
    left, sizes, _ = torch.linalg.svd(outputs, full_matrices=False)
    left = left[:, sizes > 1e-9 * sizes[0]]
    kernel = centring @ features @ features.T @ centring
    projection = centring @ left @ left.T @ centring
    return 1 - (kernel * projection).sum() / (kernel.norm() * projection.norm())


@exercise("4.1", "d_lr_from_moments(features, outputs)")
def d_lr_from_moments(answer, generator):
    """Equal to the definition with n×n matrices, blind to mixing, right at deficient rank."""

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    for count, width, classes in ((60, 5, 2), (200, 12, 4), (100, 7, 3)):
        features = draw(count, width) @ draw(width, width) + draw(width)
        outputs = features @ draw(width, classes) + draw(classes)
        expected = _reference(features, outputs)
        value = as_tensor(answer(features, outputs), "D_LR", ())
        require(
            close(value, expected, 1e-6),
            f"on random features (n={count}, p={width}, C={classes}) the definition gives "
            f"{float(expected):.6f}, "
            f"yours {float(value):.6f}. Is the projection taken before the centring?",
        )
        mixed = as_tensor(answer(features, outputs @ draw(classes, classes)), "D_LR", ())
        require(
            close(mixed, value, 1e-5),
            "mixing the outputs does not change their span; your value changes",
        )
    outputs = draw(80, 3)
    outputs = torch.cat([outputs, -outputs.sum(1, keepdim=True)], dim=1)
    features = draw(80, 6)
    value = as_tensor(answer(features, outputs), "D_LR", ())
    require(
        close(value, _reference(features, outputs), 1e-6),
        "outputs that sum to zero have one direction less; yours trips over it",
    )


@exercise("4.2", "isotropic(dim, rank)")
def isotropic(answer, generator):
    """Equal to the cosine of an identity and a random projector of that rank."""
    for _ in range(4):
        dim = int(torch.randint(4, 30, (), generator=generator))
        rank = int(torch.randint(1, dim + 1, (), generator=generator))
        basis, _ = torch.linalg.qr(torch.randn(dim, rank, generator=generator, dtype=torch.float64))
        projector, kernel = basis @ basis.T, torch.eye(dim, dtype=torch.float64)
        expected = 1 - (kernel * projector).sum() / (kernel.norm() * projector.norm())
        value = as_tensor(answer(dim, rank), "the value", ())
        require(
            close(value, expected, 1e-6),
            f"{dim} equal directions and a projector of rank {rank} give {float(expected):.4f}; "
            f"yours is {float(value):.4f}",
        )


@exercise("4.3", "misleading_start(features)")
def misleading_start(answer, generator):
    """S_init above 0.9 for trained features that did not change."""
    for width in (4, 8):
        features = torch.randn(300, width, generator=generator, dtype=torch.float64)
        initial = as_tensor(answer(features), "the initial features")
        require(
            initial.ndim == 2 and len(initial) == 300,
            "expected features of the same 300 samples, shape (300, p)",
        )
        require(
            initial.std(0).max() > 0,
            "initial features that are constant have no kernel to compare with",
        )
        moved = float(kernel_distance(features, initial))
        require(
            moved > 0.9,
            f"the trained features did not change, and S_init is {moved:.2f}; it should exceed 0.9",
        )
