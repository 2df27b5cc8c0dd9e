"""Tensors in, numbers out: every measure of the book. Imports nothing else of the package."""

from richbook.measure.baselines import kernel_distance, parameter_norm
from richbook.measure.cka import cka
from richbook.measure.collapse import nc1
from richbook.measure.errors import DegenerateWarning, RichbookError
from richbook.measure.moments import Moments
from richbook.measure.operators import FeatureKernel, MinimumProjection
from richbook.measure.richness import d_lr, d_lr_from_moments, isotropic_d_lr
from richbook.measure.spectrum import Decomposition, decompose

__all__ = [
    "Decomposition",
    "DegenerateWarning",
    "FeatureKernel",
    "MinimumProjection",
    "Moments",
    "RichbookError",
    "cka",
    "d_lr",
    "d_lr_from_moments",
    "decompose",
    "isotropic_d_lr",
    "kernel_distance",
    "nc1",
    "parameter_norm",
]
