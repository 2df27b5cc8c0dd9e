"""D_LR of a language model's head: as many outputs as words, and no matrix of their square."""

import resource
import subprocess
import sys
import time

import torch

from richbook.measure import Moments, d_lr_from_head
from tests.bench.table import show

SAMPLES, WIDTH, VOCABULARY = 10_000, 768, 50_257
MEBIBYTE = 2**20


def problem():
    """Features with a falling spectrum, and a random head."""
    generator = torch.Generator().manual_seed(0)
    spectrum = torch.logspace(0, -1.5, WIDTH)
    features = torch.randn(SAMPLES, WIDTH, generator=generator) * spectrum
    weight = torch.randn(VOCABULARY, WIDTH, generator=generator)
    return features, weight, torch.randn(VOCABULARY, generator=generator)


def peak():
    """The largest resident memory of this process so far, in MiB (Linux counts in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def child():
    """Measure once, in a process of its own, whose memory is then the measure's."""
    features, *head = problem()
    before, started = peak(), time.perf_counter()
    value = float(d_lr_from_head(features, *head))
    seconds, extra = time.perf_counter() - started, peak() - before
    # Ĥ is all of span{Φ_k, 1}: D_LR is 1 − Tr Σ / (‖Σ‖ √p), which needs no head at all.
    eigenvalues = torch.linalg.eigvalsh(torch.cov(features.double().T))
    exact = 1 - float(eigenvalues.sum() / (eigenvalues.square().sum().sqrt() * WIDTH**0.5))
    stream = Moments()
    for block in features.split(1000):
        stream.update(block)
    streamed = abs(float(d_lr_from_head(stream, *head)) - value)
    print(value, seconds, extra, abs(value - exact), streamed)


def run():
    command = [sys.executable, "-W", "ignore", "-c", f"import {__name__} as b; b.child()"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    value, seconds, extra, error, streamed = map(float, printed.split())
    square = VOCABULARY**2 * 8 / MEBIBYTE
    show(
        f"d_lr_from_head, n = {SAMPLES}, p = {WIDTH}, C = {VOCABULARY}, float32",
        ["D_LR", "time", "memory beside the data", "error", "streamed"],
        [
            [
                f"{value:.4f}",
                f"{seconds:.1f} s",
                f"{extra:.0f} MiB",
                f"{error:.0e}",
                f"{streamed:.0e}",
            ]
        ],
        [
            f"The covariance of the outputs alone would take {square:,.0f} MiB.",
            "Error: against 1 − Tr Σ / (‖Σ‖ √p), which is what D_LR is when Ĥ holds all features.",
        ],
    )
