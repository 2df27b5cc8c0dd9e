"""Point a measure at somebody's network: run it over a loader and record what layers take and give.

`ForwardPasses` is the way in. `hooks` and `state` also serve measures that need gradients.
"""

from richbook.measure.capture.passes import Batch, ForwardPasses

__all__ = ["Batch", "ForwardPasses"]
