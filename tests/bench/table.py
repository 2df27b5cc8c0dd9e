"""Tables for the terminal, and a clock that a busy machine disturbs as little as possible."""

import time


def show(title, columns, rows, notes=()):
    """Print a titled table; every cell is text."""
    widths = [max(len(row[i]) for row in [columns, *rows]) for i in range(len(columns))]
    print(f"\n{title}\n")
    for row in [columns, ["-" * width for width in widths], *rows]:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    for note in notes:
        print(f"  {note}")


def best_times(calls, patience=10.0, rounds=8):
    """The shortest wall time of each call, in seconds.

    They are called in turns, so that a load that comes and goes falls on all of them alike: two
    rounds at least, and more until ``patience`` seconds or all ``rounds`` are over.
    """
    best = [float("inf")] * len(calls)
    begun = time.perf_counter()
    for done in range(rounds):
        if done >= 2 and time.perf_counter() - begun > patience:
            break
        for position, call in enumerate(calls):
            started = time.perf_counter()
            call()
            best[position] = min(best[position], time.perf_counter() - started)
    return best
