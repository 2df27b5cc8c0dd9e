"""What ``alignment`` costs beside forward and backward passes alone, and what memory it takes."""

import json
import subprocess
import sys

import torch
from torch.nn.functional import cross_entropy

from richbook.measure.alignment import alignment
from tests.bench.memory import MEBIBYTE, peak
from tests.bench.overhead import SAMPLES, problems
from tests.bench.table import best_times, show

TARGET = 2.0
COUNTS = (20_000, 400_000)
WIDTH, BATCH = 256, 100


def both_passes(model, loader):
    """What a step of training computes, without the step."""
    for inputs, labels in loader:
        cross_entropy(model(inputs), labels).backward()
        model.zero_grad()


def measured(model, loader, **settings):
    return alignment(model, loader, cross_entropy, **settings)


def speed(thread_counts):
    torch.manual_seed(0)
    rows = []
    for name, model, loader in problems():
        for threads in thread_counts:
            torch.set_num_threads(threads)
            ways = [{}, {"interval": False}, {"interval": True}]
            calls = [lambda m=model, batches=loader: both_passes(m, batches)]
            calls += [
                lambda m=model, batches=loader, way=way: measured(m, batches, **way) for way in ways
            ]
            plain, *found = best_times(calls, patience=20)
            ratios = [f"{value / plain:.2f}×" for value in found]
            rows.append([name, str(threads), f"{plain:.2f} s", *ratios])
    columns = ["", "threads", "both passes", "alignment", "no interval", "with intervals"]
    show(
        f"alignment of all layers against forward and backward alone, n = {SAMPLES}",
        columns,
        rows,
        [
            f"Target for alignment: under {TARGET:.0f}×. It includes the null and both passes, and",
            "intervals where there are no convolutions. Best of several, taken in turns.",
        ],
    )


def stream(count):
    """Measure ``count`` samples that exist a batch at a time; prints the memory it took."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 10)]
    model, generator = torch.nn.Sequential(*layers), torch.Generator().manual_seed(0)

    def batches(number):
        for _ in range(number):
            labels = torch.randint(10, (BATCH,), generator=generator)
            yield torch.randn(BATCH, WIDTH, generator=generator), labels

    measured(model, batches(5))  # loads what torch loads late
    before = peak()
    found = measured(model, batches(count // BATCH))
    print(json.dumps({"held": peak() - before, "gwa": found["0"].forward.GWA.value}))


def memory():
    rows = []
    for count in COUNTS:
        command = [sys.executable, "-m", "tests.bench.alignment", str(count)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        made = json.loads(done.stdout)
        rows.append([f"{count:,}", f"{made['held'] / MEBIBYTE:.0f} MiB", f"{made['gwa']:.4f}"])
    show(
        f"memory of alignment, two layers of width {WIDTH}, batches of {BATCH}",
        ["samples", "held at most", "forward GWA"],
        rows,
        ["Beyond what the process held before the first sample. Target: independent of n."],
    )


def run(thread_counts):
    speed(thread_counts)
    memory()


if __name__ == "__main__":
    stream(int(sys.argv[1]))
