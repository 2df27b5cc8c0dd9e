"""Tensors in, numbers out: every measure of the book. Imports nothing else of the package."""

from richbook.measure.alignment import (
    Alignment,
    AlignmentHistory,
    AlignmentRegularizer,
    Balance,
    Exponents,
    FeatureAnsatz,
    LayerAlignment,
    LayerBalance,
    LayerMoments,
    LayerSimilarity,
    Phase,
    PowerLaw,
    PredictedExponents,
    Relation,
    Side,
    SideBalance,
    UnitMoments,
    alignment,
    alignment_of,
    balance,
    classify_phase,
    effective_rank,
    exponents,
    layer_moments,
    layer_similarity,
    nfa,
    predicted_exponents,
    sharpness,
)
from richbook.measure.baselines import kernel_distance, parameter_norm
from richbook.measure.cka import cka
from richbook.measure.class_geometry import NeuralCollapse
from richbook.measure.class_moments import ClassMoments
from richbook.measure.collapse import nc1, neural_collapse
from richbook.measure.errors import DegenerateWarning, RichbookError
from richbook.measure.head import d_lr_from_head
from richbook.measure.interval import Interval, d_lr_interval
from richbook.measure.moments import Moments
from richbook.measure.network import Report, measure
from richbook.measure.operators import FeatureKernel, MinimumProjection
from richbook.measure.richness import d_lr, d_lr_from_moments, isotropic_d_lr
from richbook.measure.spectrum import Decomposition, decompose
from richbook.measure.tangent import ntk_distance

__all__ = [
    "Alignment",
    "AlignmentHistory",
    "AlignmentRegularizer",
    "Balance",
    "ClassMoments",
    "Decomposition",
    "DegenerateWarning",
    "Exponents",
    "FeatureAnsatz",
    "FeatureKernel",
    "Interval",
    "LayerAlignment",
    "LayerBalance",
    "LayerMoments",
    "LayerSimilarity",
    "MinimumProjection",
    "Moments",
    "NeuralCollapse",
    "Phase",
    "PowerLaw",
    "PredictedExponents",
    "Relation",
    "Report",
    "RichbookError",
    "Side",
    "SideBalance",
    "UnitMoments",
    "alignment",
    "alignment_of",
    "balance",
    "cka",
    "classify_phase",
    "d_lr",
    "d_lr_from_head",
    "d_lr_from_moments",
    "d_lr_interval",
    "decompose",
    "effective_rank",
    "exponents",
    "isotropic_d_lr",
    "kernel_distance",
    "layer_moments",
    "layer_similarity",
    "measure",
    "nc1",
    "neural_collapse",
    "nfa",
    "ntk_distance",
    "parameter_norm",
    "predicted_exponents",
    "sharpness",
]


def __getattr__(name: str) -> object:
    """``LowRankMeasure`` is imported when it is asked for: torchmetrics takes a second to load."""
    if name == "LowRankMeasure":
        from richbook.measure.metric import LowRankMeasure

        return LowRankMeasure
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
