"""The speeds and sizes that the project promises: `make bench`, or a part of it by name.

A benchmark and not a test: it prints each figure beside its target and fails only if something
breaks. Run it on an idle machine. Where others compute too, threads wait for each other, and what
two threads take says little.
"""

import argparse
import os
import platform
import time

import torch

from tests.bench import alignment, ensemble, memory, overhead, product, recorded, vocabulary


def main():
    processors = os.cpu_count() or 1
    thread_counts = [1] if processors == 1 else [1, 2]
    parts = {
        "sweep": lambda: ensemble.run(thread_counts),
        "d_lr": lambda: product.run(thread_counts),
        "measure": lambda: overhead.run(thread_counts),
        "alignment": lambda: alignment.run(thread_counts),
        "head": vocabulary.run,
        "memory": memory.run,
        "recorded": recorded.run,
    }
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(parts)}; all unless named")
    wanted = parser.parse_args().parts or list(parts)
    unknown = sorted(set(wanted) - set(parts))
    if unknown:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(parts)}")
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    print(f"{versions}, {processors} processors{load}")
    started = time.perf_counter()
    for name in wanted:
        parts[name]()
    print(f"\n{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
