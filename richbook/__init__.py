"""richbook: tell rich from lazy training, by derivation, by experiment and on your own network."""

from richbook.course import Verdict as Verdict
from richbook.course import check as check
from richbook.experiments import *  # noqa: F403
from richbook.measure import *  # noqa: F403
from richbook.show import *  # noqa: F403
from richbook.train import *  # noqa: F403


def __getattr__(name: str) -> object:
    """``LowRankMeasure`` is imported when it is asked for, see ``richbook.measure``."""
    if name == "LowRankMeasure":
        from richbook.measure.metric import LowRankMeasure

        return LowRankMeasure
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
