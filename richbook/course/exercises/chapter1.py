"""Checks of chapter 1: linearisation, and how far training moves a network."""

import torch

from richbook.course.checking import as_tensor, close, exercise, require


@exercise("1.1", "linearised(function, parameters, direction)")
def linearised(answer, generator):
    """Exact on affine functions, and an error that falls fourfold when the step is halved."""

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    matrix, start, direction = draw(4, 6), draw(6), draw(6)

    def affine(parameters):
        return matrix @ parameters + 1

    exact = affine(start + direction)
    value = as_tensor(answer(affine, start, direction), "the linearised output", (4,))
    require(
        close(value, exact, 1e-8),
        "a function that is already linear should come back unchanged; yours differs",
    )

    def curved(parameters):
        return torch.tanh(matrix @ parameters) + parameters[:4] ** 2

    size = 1e-3
    errors = []
    for step in (size, size / 2):
        value = as_tensor(answer(curved, start, step * direction), "the linearised output", (4,))
        errors.append(float((curved(start + step * direction) - value).abs().max()))
    require(
        errors[0] > 0,
        "on a curved function yours gives the function itself, not its first-order expansion",
    )
    ratio = errors[0] / max(errors[1], 1e-300)
    require(
        3 < ratio < 5,
        "halving the step should divide the error by 4, as a first-order expansion does; "
        f"yours divides it by {ratio:.2f}",
    )


@exercise("1.2", "relative_movement(initial, final)")
def relative_movement(answer, generator):
    """Zero at rest, one when doubled, blind to common scale and to how parameters are cut."""

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    initial = [draw(5, 3), draw(5)]
    change = [draw(5, 3), draw(5)]
    final = [before + step for before, step in zip(initial, change, strict=True)]
    still = as_tensor(answer(initial, initial), "the movement", ())
    require(
        close(still, 0.0, 1e-12),
        f"a network that did not move should give 0; yours gives {float(still):.3g}",
    )
    doubled = as_tensor(answer(initial, [2 * before for before in initial]), "the movement", ())
    require(
        close(doubled, 1.0, 1e-6),
        f"doubling every parameter is a movement of 1; yours gives {float(doubled):.3g}",
    )
    once = as_tensor(answer(initial, final), "the movement", ())
    halfway = [before + step / 2 for before, step in zip(initial, change, strict=True)]
    half = as_tensor(answer(initial, halfway), "the movement", ())
    require(
        close(2 * half, once, 1e-6),
        "half the movement should give half the value; did you forget the root?",
    )
    turned = as_tensor(answer(initial, [-before for before in initial]), "the movement", ())
    require(
        close(turned, 2.0, 1e-6),
        "parameters that changed sign have moved by 2, though their norm is the same; "
        f"yours gives {float(turned):.3g}",
    )
    side = as_tensor(answer([torch.tensor([3.0, 4.0])], [torch.tensor([3.0, 9.0])]), "it", ())
    require(
        close(side, 1.0, 1e-6),
        "from (3, 4) to (3, 9) is a movement of 5 for a vector of length 5, so 1; "
        f"yours gives {float(side):.3g}. Is it the Euclidean norm?",
    )
    scaled = as_tensor(answer([7 * t for t in initial], [7 * t for t in final]), "the movement", ())
    require(
        close(scaled, once, 1e-6),
        "the movement should not change when both networks are scaled alike",
    )
    split = as_tensor(
        answer(
            [torch.cat([initial[0].flatten(), initial[1]])],
            [torch.cat([final[0].flatten(), final[1]])],
        ),
        "the movement",
        (),
    )
    require(
        close(split, once, 1e-6),
        "the movement should not depend on how the parameters are cut into tensors",
    )
