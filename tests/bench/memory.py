"""Peak memory of streaming many samples, in a process of its own for each number of samples."""

import json
import resource
import subprocess
import sys
from pathlib import Path

from tests.bench.table import show

FEATURES, OUTPUTS, BLOCK = 1024, 100, 4096
COUNTS = (50_000, 200_000)
MEBIBYTE = 2**20


def peak():
    """The most memory that this process has held, in bytes.

    Linux counts what the parent held into a child's ``ru_maxrss``; its own mark starts afresh.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


def stream(count):
    """Measure D_LR of ``count`` samples that exist a block at a time; prints what it took."""
    import torch

    from richbook.measure import Moments, d_lr_from_moments

    torch.set_num_threads(1)
    before = peak()
    generator = torch.Generator().manual_seed(0)
    head = torch.randn(FEATURES, OUTPUTS, generator=generator) / FEATURES**0.5
    moments = Moments()
    for start in range(0, count, BLOCK):
        rows = min(BLOCK, count - start)
        features = torch.randn(rows, FEATURES, generator=generator)
        moments.update(features, features @ head)
    value = float(d_lr_from_moments(moments))
    print(json.dumps({"d_lr": value, "before": before, "after": peak()}))


def run():
    rows = []
    for count in COUNTS:
        command = [sys.executable, "-m", "tests.bench.memory", str(count)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        made = json.loads(done.stdout)
        held = (made["after"] - made["before"]) / MEBIBYTE
        data = 4 * count * (FEATURES + OUTPUTS) / MEBIBYTE
        rows.append([f"{count:,}", f"{data:.0f} MiB", f"{held:.0f} MiB", f"{made['d_lr']:.4f}"])
    show(
        f"memory of streaming, p = {FEATURES}, C = {OUTPUTS}, blocks of {BLOCK}",
        ["samples", "data in all", "held at most", "D_LR"],
        rows,
        ["Held beyond what the process held before the first block. Target: independent of n."],
    )


if __name__ == "__main__":
    stream(int(sys.argv[1]))
