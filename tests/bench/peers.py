"""Linear CKA and D_LR beside other packages, on the same tensors: `make bench-peers`.

Every call runs in a process of its own, once for its peak memory and then in turns with ours: a
ratio is that of the shortest times of one process. The other packages have no D_LR. It is
1 − CKA(Φ, Q) with an orthonormal basis Q of the outputs, and that is what they are asked for.
"""

import json
import math
import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import torch

from richbook.measure import cka, d_lr
from tests.bench import product
from tests.bench.memory import MEBIBYTE, peak
from tests.bench.table import show

SAMPLES, FEATURES, OUTPUTS = 10_000, 1024, 10
OFFSET = 1e3
#: Two of the calls are made for batches; their time grows with the square of this.
BATCH = 1000
SECONDS, BYTES = 300, 8 * 2**30
#: A call that takes longer is timed once, and so long the turns of shorter ones go on.
PATIENCE = 20
TARGET = 10


def problem(pair, offset):
    """Features with a falling spectrum, and what they are compared with: outputs that are affine
    in them ("outputs"), or as many features that half agree with them ("features")."""
    generator = torch.Generator().manual_seed(0)
    spectrum = torch.logspace(0, -1, FEATURES)
    features = torch.randn(SAMPLES, FEATURES, generator=generator) * spectrum
    head = torch.randn(FEATURES, OUTPUTS, generator=generator) / FEATURES**0.5
    if pair == "outputs":
        return features + offset, features @ head + 0.1
    other = torch.randn(SAMPLES, FEATURES, generator=generator) * spectrum + features
    return features + offset, other + offset


def by_pytorch_cka(a, b):
    from cka import cka_from_features

    return cka_from_features(a, b)


def by_ckatorch(a, b):
    from ckatorch import cka_base

    return cka_base(a, b)


def by_ckatorch_in_batches(a, b):
    from ckatorch import cka_batch

    rows = min(BATCH, len(a))
    return cka_batch(*(values.reshape(-1, rows, values.shape[1]) for values in (a, b)))


class Given(torch.nn.Module):
    """A model that looks its features up: torch-cka takes models and a loader, and no tensors."""

    def __init__(self, values):
        super().__init__()
        self.values, self.out = values, torch.nn.Identity()

    def forward(self, index):
        return self.out(self.values[index])


def by_torch_cka(a, b):
    from torch_cka import CKA

    names = {"model1_name": "a", "model2_name": "b"}
    layers = {"model1_layers": ["out"], "model2_layers": ["out"]}
    comparison = CKA(Given(a), Given(b), **names, **layers)
    samples = torch.utils.data.TensorDataset(torch.arange(len(a)))
    comparison.compare(torch.utils.data.DataLoader(samples, batch_size=BATCH))
    return comparison.export()["CKA"]


def by_rsatoolbox(a, b):
    from rsatoolbox.data import Dataset
    from rsatoolbox.rdm import calc_rdm, compare

    distances = [calc_rdm(Dataset(values.numpy())) for values in (a, b)]
    return compare(*distances, method="cosine_cov")


#: What is called, by package: which CKA that is, and how it is called.
CALLS = {
    ("richbook", "cka"): ("linear", cka),
    ("pytorch-cka", "cka_from_features"): ("unbiased", by_pytorch_cka),
    ("ckatorch", "cka_base"): ("linear", by_ckatorch),
    ("ckatorch", "cka_batch"): ("in batches", by_ckatorch_in_batches),
    ("torch-cka", "CKA.compare"): ("in batches", by_torch_cka),
    ("rsatoolbox", "compare"): ("linear", by_rsatoolbox),
}
OURS = ("richbook", "cka")


def asked(which, measure):
    """A function of features and what they are compared with, giving a float."""
    _, call = CALLS[which]
    if measure == "cka":
        return lambda a, b: float(call(a, b).squeeze())
    if which == OURS:
        return lambda features, outputs: float(d_lr(features, outputs))
    return lambda features, outputs: 1 - float(call(features, basis(outputs)).squeeze())


def basis(outputs):
    """Q with QᵀQ = n, an orthonormal basis of the outputs as functions on the samples."""
    return (torch.linalg.qr(outputs.double())[0] * len(outputs) ** 0.5).to(outputs.dtype)


def definition(measure, kind, a, b):
    """What a call should give, in float64, without an n×n kernel."""
    if measure == "d_lr":
        return product.reference(a, b)
    a, b = a.double(), b.double()
    if kind == "linear":
        a, b = a - a.mean(0), b - b.mean(0)
        size = math.prod(float(torch.linalg.matrix_norm(x.T @ x)) for x in (a, b))
        return float((a.T @ b).square().sum()) / size
    rows = BATCH if kind == "in batches" else len(a)
    parts = list(zip(a.split(rows), b.split(rows), strict=True))
    cross = sum(hsic(part_a, part_b) for part_a, part_b in parts)
    own_a, own_b = (sum(hsic(part, part) for part in x.split(rows)) for x in (a, b))
    return cross / math.sqrt(own_a * own_b)


def hsic(a, b):
    """The unbiased estimate of HSIC for linear kernels (Song et al. 2012, eq. 5), up to a factor
    that CKA does not see. The mean does not enter it, and may go first."""
    n, a, b = len(a), a - a.mean(0), b - b.mean(0)
    diagonal_a, diagonal_b = a.square().sum(1), b.square().sum(1)
    sums_a, sums_b = a @ a.sum(0) - diagonal_a, b @ b.sum(0) - diagonal_b
    trace = (a.T @ b).square().sum() - diagonal_a @ diagonal_b
    means = sums_a.sum() * sums_b.sum() / ((n - 1) * (n - 2))
    return float(trace + means - 2 / (n - 2) * (sums_a @ sums_b))


def child(package, name, measure, pair, offset, threads):
    """One call, then more of it in turns with ours; prints what came out as JSON."""
    torch.set_num_threads(int(threads))
    data = problem(pair, float(offset))
    call, ours = asked((package, name), measure), asked(OURS, measure)
    attempt(call, [values[:50] for values in data])  # imports what it needs
    # One thread's processor time is what an idle machine would take, however busy this one is.
    clock = time.process_time if int(threads) == 1 else time.perf_counter
    forget_peak()
    before, started = peak(), clock()
    value, said = attempt(call, data)
    seconds, after = clock() - started, peak()
    calls = [lambda: ours(*data)]
    if value is not None and seconds < PATIENCE:
        calls.append(lambda: call(*data))
    best, *again = shortest(calls, clock)
    found = {"value": value, "said": said, "seconds": min([seconds, *again]), "ours": best}
    print(json.dumps(found | {"held": after - before}))


def shortest(calls, clock):
    """The shortest time of each call, taken in turns: three of each, more while patience lasts."""
    times, begun = [[] for _ in calls], time.perf_counter()
    while len(times[0]) < 3 or (len(times[0]) < 20 and time.perf_counter() - begun < PATIENCE):
        for call, taken in zip(calls, times, strict=True):
            started = clock()
            call()
            taken.append(clock() - started)
    return [min(taken) for taken in times]


def forget_peak():
    """Let the mark of most memory start again from what is held now, where the system can."""
    mark = Path("/proc/self/clear_refs")
    if mark.exists():
        mark.write_text("5")


def attempt(call, data):
    """The value, or None and what the call said instead."""
    try:
        return call(*data), ""
    except (AssertionError, ArithmeticError, ValueError, RuntimeError, MemoryError) as error:
        return None, f"{type(error).__name__}: {error}".partition("\n")[0]


def measured(which, measure, pair, offset, threads):
    """What ``child`` found, or what stopped it."""
    given = [*which, measure, pair, str(offset), str(threads)]
    variables = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    environment = os.environ | dict.fromkeys(variables, str(threads))
    command = [sys.executable, "-m", "tests.bench.peers", *given]
    options = {"capture_output": True, "text": True, "env": environment, "timeout": SECONDS}
    try:
        done = subprocess.run(command, preexec_fn=bounded, **options)
    except subprocess.TimeoutExpired:
        return {"said": f"stopped after {SECONDS} s"}
    if done.returncode:
        return {"said": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def bounded():
    """Let the process ask for no more data than this; a call that does fails, and says so."""
    import resource

    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))


def error_of(found, expected):
    if found.get("value") is None:
        return found["said"][:40]
    value = found["value"]
    if not math.isfinite(value):
        return str(value)
    error = abs(value - expected)
    return f"{error:.0e}" if error < 0.01 else f"{value:.3f}, not {expected:.3f}"


def times_of(found):
    if found.get("value") is None:
        return ["", ""]
    return [f"{found['seconds']:.2f} s", f"{found['seconds'] / found['ours']:.1f}×"]


def compare(title, measure, pair, thread_counts, offsets, notes):
    """One table: a row a call; times at every number of threads, errors at every offset."""
    rows = []
    for which, (kind, _) in CALLS.items():
        package, name = which
        row = [package, "d_lr" if (which, measure) == (OURS, "d_lr") else name, kind]
        for threads in thread_counts:
            found = measured(which, measure, pair, offsets[0], threads)
            row += times_of(found)
        row.append(f"{found['held'] / MEBIBYTE:.0f} MiB" if "held" in found else "")
        for offset in offsets:
            if offset != offsets[0]:
                found = measured(which, measure, pair, offset, thread_counts[-1])
            row.append(error_of(found, definition(measure, kind, *problem(pair, offset))))
        rows.append(row)
    columns = ["package", "call", "CKA"]
    for threads in thread_counts:
        columns += ["1 thread" if threads == 1 else f"{threads} threads", "of ours"]
    columns += ["held at most", "error", *(f"at offset {offset:g}" for offset in offsets[1:])]
    show(title, columns, rows, notes)


def main():
    if len(sys.argv) > 1:
        return child(*sys.argv[1:])
    packages = dict.fromkeys(package for package, _ in CALLS)
    print(", ".join(f"{package} {metadata.version(package)}" for package in packages))
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    print(f"{versions}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    shape = f"n = {SAMPLES}, p = {FEATURES}, C = {OUTPUTS}, float32"
    threads = [1, 2] if (os.cpu_count() or 1) > 1 else [1]
    kinds = [
        "Error: against the definition of that CKA in float64. linear: that of Kornblith et al.;",
        "unbiased: with the estimate of HSIC by Song et al.; in batches: the same, in sums over",
        f"batches of {BATCH}, which is how the call is meant. At an offset: Φ + {OFFSET:g}.",
        "1 thread: processor time. 2 threads: wall time, which wants an idle machine.",
        f"Target: others take at least {TARGET}× our time, and ours is right at the offset.",
    ]
    compare(f"CKA(Φ, f̂), {shape}", "cka", "outputs", threads, [0.0, OFFSET], kinds)
    d_lr_notes = ["Theirs: 1 − CKA(Φ, Q). Error: against D_LR itself, whichever CKA a call has."]
    compare(f"D_LR(Φ, f̂), {shape}", "d_lr", "outputs", threads[-1:], [0.0, OFFSET], d_lr_notes)
    wide = f"CKA(Φ, Φ′) with Φ′ of p = {FEATURES} as well"
    compare(wide, "cka", "features", threads[-1:], [0.0, OFFSET], [])


if __name__ == "__main__":
    main()
