"""D_LR against the one matrix product it cannot avoid, ΦᵀΦ."""

import torch

from richbook.measure import Moments, d_lr
from richbook.measure.richness import d_lr_from_moments
from tests.bench.table import best_times, show

SAMPLES, FEATURES, OUTPUTS = 20_000, 1024, 100
BLOCK = 4096
TARGET, TOLERANCE = 1.5, 1e-6


def problem():
    """Features with a falling spectrum and a mean, and outputs that are affine in them."""
    generator = torch.Generator().manual_seed(0)
    spectrum = torch.logspace(0, -1, FEATURES)
    features = torch.randn(SAMPLES, FEATURES, generator=generator) * spectrum + 0.3
    head = torch.randn(FEATURES, OUTPUTS, generator=generator) / FEATURES**0.5
    return features, features @ head + 0.1


def reference(features, outputs):
    """The definition in float64, with an orthonormal basis of the outputs by QR."""
    features, outputs = features.double(), outputs.double()
    basis = torch.linalg.qr(outputs)[0]
    features, basis = features - features.mean(0), basis - basis.mean(0)
    overlap = (basis.T @ features).square().sum()
    kernel = torch.linalg.matrix_norm(features.T @ features)
    return float(1 - overlap / (kernel * torch.linalg.matrix_norm(basis.T @ basis)))


def streamed(features, outputs):
    moments = Moments()
    for block, values in zip(features.split(BLOCK), outputs.split(BLOCK), strict=True):
        moments.update(block, values)
    return d_lr_from_moments(moments)


def run(thread_counts):
    features, outputs = problem()
    expected = reference(features, outputs)
    ways = {
        "ΦᵀΦ alone": lambda: features.T @ features,
        "d_lr(Φ, f̂)": lambda: d_lr(features, outputs),
        f"Moments, blocks of {BLOCK}": lambda: streamed(features, outputs),
    }
    rows = []
    for threads in thread_counts:
        torch.set_num_threads(threads)
        seconds = best_times(list(ways.values()))
        for (name, call), value in zip(ways.items(), seconds, strict=True):
            error = "" if call is ways["ΦᵀΦ alone"] else f"{abs(float(call()) - expected):.1e}"
            ratio = f"{value / seconds[0]:.2f}×"
            rows.append([name, str(threads), f"{value:.3f} s", ratio, error])
    show(
        f"D_LR = {expected:.4f}, n = {SAMPLES}, p = {FEATURES}, C = {OUTPUTS}, float32",
        ["", "threads", "time", "of the product", "error"],
        rows,
        [
            f"Target: at most {TARGET}× the product, with an error below {TOLERANCE:.0e}.",
            "Error: against the definition in float64. Best of several, taken in turns.",
        ],
    )
