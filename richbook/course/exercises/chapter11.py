"""Checks of chapter 11: D_LR of an aligned layer, an invariant AGOP, forgiving cosines."""

import warnings

import torch
from torch import Tensor

from richbook.course.checking import as_tensor, close, exercise, require
from richbook.measure import DegenerateWarning, d_lr

#: More samples than this would make the check slow.
MOST_SAMPLES = 20_000
#: Less than this of a matrix's size may be rounding in float32.
LEAST_CHANGE = 1e-3


def _drawer(generator: torch.Generator):
    return lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)


def _functions(draw, count: int, number: int) -> Tensor:
    """Functions (count, number) of mean zero with E[q qᵀ] = I."""
    values = draw(count, number)
    return torch.linalg.qr(values - values.mean(0))[0] * count**0.5


def _d_lr(features: Tensor, outputs: Tensor) -> Tensor:
    """D_LR without the warning that the outputs use all features: they are meant to."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateWarning)
        return d_lr(features, outputs)


@exercise("11.1", "d_lr_if_aligned(weight)")
def d_lr_if_aligned(answer, generator):
    """Equal to D_LR of features with H_a = WᵀW and mean zero, whatever the rank of W."""
    draw = _drawer(generator)
    for rows, rank, width in ((6, 6, 9), (7, 4, 12), (3, 1, 5), (10, 9, 10)):
        left, right = torch.linalg.qr(draw(rows, rank))[0], torch.linalg.qr(draw(width, rank))[0]
        sizes = 0.2 + draw(rank).abs()
        weight = left * sizes @ right.T
        features = _functions(draw, 400, rank) * sizes @ right.T
        expected = _d_lr(features, features @ weight.T)
        value = as_tensor(answer(weight), "D_LR", ())
        require(
            close(value, expected, 1e-6),
            f"features with H_a = WᵀW, for a W of shape ({rows}, {width}) and rank {rank}, have "
            f"D_LR {float(expected):.4f}; yours is {float(value):.4f}. The eigenvalues of the "
            "kernel are those of WᵀW, and the outputs span as many functions as W has rank",
        )


@exercise("11.2", "invariant_agop(jacobian)")
def invariant_agop(answer, generator):
    """Unchanged under f' = A f; the plain AGOP, up to a factor, where E[∇f_c·∇f_d] = δ_cd."""
    draw = _drawer(generator)
    for count, outputs, width in ((30, 3, 5), (50, 4, 7)):
        skew = torch.linspace(0.3, 3, width, dtype=torch.float64)
        jacobian = draw(count, outputs, width) * skew
        value = as_tensor(answer(jacobian), "the matrix", (width, width))
        left, right = (torch.linalg.qr(draw(outputs, outputs))[0] for _ in range(2))
        sizes = torch.linspace(0.3, 3, outputs, dtype=torch.float64)
        mixing = left * sizes @ right  # invertible, far from orthogonal
        mixed = as_tensor(answer(torch.einsum("dc,ncp->ndp", mixing, jacobian)), "the matrix")
        require(value.norm() > 0, "your matrix is zero for every jacobian")
        changed = float((mixed - value).norm() / value.norm())  # relative: any factor is allowed
        require(
            changed < LEAST_CHANGE,
            f"calling A f the outputs changes your matrix by {changed:.2%} of its size",
        )
        inner = torch.einsum("ncp,ndp->cd", jacobian, jacobian) / count
        root = torch.linalg.inv(torch.linalg.cholesky(inner))
        plain = torch.einsum("dc,ncp->ndp", root, jacobian)  # average inner products of I
        wanted = torch.einsum("ncp,ncq->pq", plain, plain) / count
        value = as_tensor(answer(plain), "the matrix", (width, width))
        cosine = float((value * wanted).sum() / (value.norm() * wanted.norm()).clamp_min(1e-300))
        require(
            cosine > 1 - 1e-6,
            "it is invariant, but for outputs whose gradients are orthonormal on average it should "
            f"be a multiple of the plain AGOP; the cosine of the two is {cosine:.4f}",
        )


@exercise("11.3", "forgiving(alignment, richness)")
def forgiving(answer, generator):
    """Both RWA cosines of the last layer are above ``alignment``, and D_LR above ``richness``."""
    spare = torch.rand(2, generator=generator).tolist()
    for alignment, richness in ((0.99, 0.7), (0.9 + 0.09 * spare[0], 0.3 + 0.4 * spare[1])):
        result = answer(alignment, richness)
        require(
            isinstance(result, tuple | list) and len(result) == 2,
            "expected two things, features and weight",
        )
        features, weight = as_tensor(result[0], "features"), as_tensor(result[1], "weight")
        require(
            features.ndim == 2 and weight.ndim == 2 and features.shape[1] == weight.shape[1],
            "expected features (n, p) and a weight (C, p), got "
            f"{tuple(features.shape)} and {tuple(weight.shape)}",
        )
        require(
            len(weight) < len(features) <= MOST_SAMPLES,
            f"expected more samples than outputs, and at most {MOST_SAMPLES}",
        )
        outputs = features @ weight.T
        require(outputs.std(0).any(), "these outputs are constant, so that they have no D_LR")
        sides = {"backward": (features, weight), "forward": (outputs, weight.T)}
        for name, (values, factor) in sides.items():
            moment, gram = values.T @ values, factor.T @ factor
            cosine = float((moment * gram).sum() / (moment.norm() * gram.norm()))
            require(
                cosine > alignment,
                f"the {name} RWA is {cosine:.4f} and should exceed {alignment:.4f}",
            )
        found = float(_d_lr(features, outputs))
        require(
            found > richness,
            f"D_LR is {found:.4f} and should exceed {richness:.4f}. How many of the directions "
            "that the outputs use does a cosine notice?",
        )
