"""Checks of chapter 3: the span of the outputs and the projection onto it."""

import torch

from richbook.course.checking import as_tensor, close, exercise, require


@exercise("3.1", "output_rank(outputs)")
def output_rank(answer, generator):
    """Rounding does not count, small but real directions do, in float32 and bfloat16."""
    for dtype in (torch.float32, torch.bfloat16):
        for count, width in ((200, 5), (300, 9)):
            logits = torch.randn(count, width, generator=generator, dtype=torch.float64)
            zero_sum = (logits - logits.mean(1, keepdim=True)).to(dtype)
            name = str(dtype).removeprefix("torch.")
            for outputs, rank, what in (
                (logits.to(dtype), width, f"{width} independent outputs in {name}"),
                (zero_sum, width - 1, f"{width} outputs in {name} that sum to zero up to rounding"),
            ):
                found = as_tensor(answer(outputs), "the rank", ())
                require(
                    float(found) == rank, f"{what} have rank {rank}; yours says {float(found):g}"
                )
    small = torch.randn(200, 3, generator=generator, dtype=torch.float64)
    small[:, 2] = small[:, 0] + 1e-3 * small[:, 2]
    found = as_tensor(answer(small.float()), "the rank", ())
    require(
        float(found) == 3,
        "in float32 a direction of relative size 1e-3 is far above rounding; yours drops it",
    )


@exercise("3.2", "project(outputs, values)")
def project(answer, generator):
    """Idempotent, the identity on the span, orthogonal rest, blind to mixing and repetition."""

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    for count, width in ((30, 3), (50, 4)):
        outputs, values = draw(count, width) + 1, draw(count)
        shadow = as_tensor(answer(outputs, values), "the projection", (count,))
        again = as_tensor(answer(outputs, shadow), "the projection", (count,))
        require(close(again, shadow), "projecting twice should change nothing more; yours does")
        weights = torch.linalg.lstsq(outputs, shadow[:, None]).solution
        require(
            close((outputs @ weights)[:, 0], shadow),
            "your projection is not a combination of the outputs; did you add a constant?",
        )
        inside = outputs @ draw(width)
        require(
            close(as_tensor(answer(outputs, inside), "the projection", (count,)), inside),
            "a combination of the outputs should be its own projection",
        )
        require(
            close(outputs.T @ (values - shadow) / count, torch.zeros(width)),
            "what is left over should be orthogonal to every output: E[f_k (v − Pv)] = 0",
        )
        mixed = as_tensor(answer(outputs @ draw(width, width), values), "the projection", (count,))
        require(
            close(mixed, shadow, 1e-5),
            "mixing the outputs does not change their span; your projection changes",
        )
        doubled = torch.cat([outputs, outputs[:, :1]], dim=1)
        twice = as_tensor(answer(doubled, values), "the projection", (count,))
        require(
            close(twice, shadow, 1e-5),
            "an output that is there twice adds nothing to the span; your projection changes",
        )
