"""richbook: tell rich from lazy training, by derivation, by experiment and on your own network."""

from richbook.course import Verdict as Verdict
from richbook.course import check as check
from richbook.experiments import *  # noqa: F403
from richbook.measure import *  # noqa: F403
from richbook.show import *  # noqa: F403
from richbook.train import *  # noqa: F403
