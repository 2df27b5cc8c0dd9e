"""What the default sweep took when it was recorded."""

import math

from richbook.experiments import load_sweep
from tests.bench.table import show


def run():
    recorded = load_sweep()
    networks = math.prod(recorded.diverged_at.shape)
    steps = int(recorded.step[-1])
    seconds = float(recorded.attrs["wall_seconds"])
    each = 1e6 * seconds / (networks * steps)
    show(
        "the default sweep, as recorded",
        ["networks", "steps", "time", "for a step of one", "device", "threads", "made"],
        [
            [
                str(networks),
                str(steps),
                f"{seconds:.0f} s",
                f"{each:.0f} µs",
                str(recorded.attrs["device"]),
                str(recorded.attrs["threads"]),
                str(recorded.attrs["made"]),
            ]
        ],
    )
