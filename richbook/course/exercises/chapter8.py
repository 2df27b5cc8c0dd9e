"""Checks of chapter 8: the two factors of D_LR, rank too low or too high, equal loss."""

import math

import numpy as np
import torch

from richbook.course.checking import Wrong, as_tensor, close, exercise, require


@exercise("8.1", "used_and_even(kernel, projection)")
def used_and_even(answer, generator):
    """Equal to both cosines computed in the eigenbasis, and 1 in the two special cases."""

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    for rank, width in ((2, 5), (4, 9)):
        basis = torch.linalg.qr(draw(30, width))[0]
        strengths = torch.rand(width, generator=generator, dtype=torch.float64) + 0.1
        kernel = basis * strengths @ basis.T
        mixed = torch.linalg.qr(draw(30, rank))[0]
        for used in (basis[:, :rank], mixed):
            share, even = _pair(answer(kernel, used @ used.T))
            small = used.T @ kernel @ used  # r × r
            sizes = torch.linalg.eigvalsh(small)
            expected = sizes.norm() / strengths.norm()
            require(
                close(share, expected, 1e-8),
                f"the used share should be {float(expected):.4f}, yours is {float(share):.4f}",
            )
            expected = sizes.sum() / (sizes.norm() * rank**0.5)
            require(
                close(even, expected, 1e-8),
                f"the evenness should be {float(expected):.4f}, yours is {float(even):.4f}",
            )


def _pair(found):
    if not (isinstance(found, tuple | list) and len(found) == 2):
        raise Wrong("expected two numbers, the used share and the evenness")
    return as_tensor(found[0], "the used share", ()), as_tensor(found[1], "the evenness", ())


@exercise("8.2", "few_and_many(rank, used, extra)")
def few_and_many(answer, generator):
    """Equal to 1 minus the cosine of two diagonal matrices."""
    for _ in range(5):
        rank = int(torch.randint(2, 30, (), generator=generator))
        used = int(torch.randint(1, rank + 1, (), generator=generator))
        extra = int(torch.randint(0, 40, (), generator=generator))
        projection = torch.zeros(rank + extra, dtype=torch.float64)
        projection[:rank] = 1
        kernel = torch.zeros_like(projection)
        kernel[:used] = 1
        kernel[rank:] = 1
        expected = 1 - kernel @ projection / (kernel.norm() * projection.norm())
        value = as_tensor(answer(rank, used, extra), "D_LR", ())
        require(
            close(value, expected, 1e-6),
            f"{used} of {rank} directions used and {extra} others give {float(expected):.4f}, you "
            f"say {float(value):.4f}",
        )


@exercise("8.3", "at_loss(losses, values, level)")
def at_loss(answer, generator):
    """Equal to interpolation in the logarithm, at the first crossing; nan without one."""

    def draw(low, high, count):
        return low + (high - low) * torch.rand(count, generator=generator, dtype=torch.float64)

    losses = draw(0.5, 0.8, 8).cumprod(0)  # each well below the one before
    values = draw(0.1, 0.4, 8) + torch.arange(8) % 2  # and no two neighbours alike
    share = float(draw(0.3, 0.7, 1))
    level = float(losses[3] ** (1 - share) * losses[4] ** share)
    again = torch.cat([losses, losses.flip(0), losses])  # rises and falls a second time
    more = torch.cat([values, values + 5, values - 5])
    logs = losses.log().numpy()
    expected = float(np.interp(math.log(level), logs[::-1], values.numpy()[::-1]))
    for given in ((losses, values), (again, more)):
        value = as_tensor(answer(*given, level), "the value", ())
        require(
            close(value, torch.tensor(expected), 1e-6),
            f"at the loss {level:.3f} the value is {expected:.4f}, you say {float(value):.4f}. Is "
            "it the first crossing, and the logarithm?",
        )
    never = answer(losses, values, float(losses[-1]) / 2)
    try:
        undefined = math.isnan(float(never))
    except (TypeError, ValueError, RuntimeError):
        undefined = False
    require(undefined, "a level that is never reached should give nan")
