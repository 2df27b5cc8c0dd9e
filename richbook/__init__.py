"""richbook: tell rich from lazy training, by derivation, by experiment and on your own network."""

from richbook.measure import *  # noqa: F403
