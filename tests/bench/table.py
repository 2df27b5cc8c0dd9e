"""A table for the terminal, and clocks that a busy machine disturbs as little as possible."""

import time


def show(title, columns, rows, notes=()):
    """Print a titled table; every cell is text."""
    widths = [max(len(row[i]) for row in [columns, *rows]) for i in range(len(columns))]
    print(f"\n{title}")
    print("  ".join(name.ljust(width) for name, width in zip(columns, widths, strict=True)))
    print("  ".join("-" * width for width in widths))
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    for note in notes:
        print(note)


def best_times(calls, repeats):
    """The shortest wall time of each of several calls, taken in turns so that all see the same load."""
    best = [float("inf")] * len(calls)
    for _ in range(repeats):
        for position, call in enumerate(calls):
            started = time.perf_counter()
            call()
            best[position] = min(best[position], time.perf_counter() - started)
    return best


def verdict(value, target, better):
    """ "reached" or "missed", for a target that is a least ("≥") or a largest ("≤") value."""
    reached = value >= target if better == "≥" else value <= target
    return "reached" if reached else "missed"
