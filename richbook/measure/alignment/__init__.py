"""How representations, weights and gradients of linear layers align (Ziyin et al. 2025)."""

from richbook.measure.alignment.balance.balance import Balance, balance
from richbook.measure.alignment.balance.result import LayerBalance, SideBalance
from richbook.measure.alignment.diagnostics.effective_rank import effective_rank
from richbook.measure.alignment.diagnostics.layer_similarity import (
    LayerSimilarity,
    layer_similarity,
)
from richbook.measure.alignment.diagnostics.nfa import FeatureAnsatz, nfa
from richbook.measure.alignment.diagnostics.regularizer import AlignmentRegularizer
from richbook.measure.alignment.diagnostics.sharpness import sharpness
from richbook.measure.alignment.moments.layer import LayerMoments, UnitMoments
from richbook.measure.alignment.moments.layer_moments import layer_moments
from richbook.measure.alignment.phases.exponents import Exponents, exponents
from richbook.measure.alignment.phases.phases import (
    Phase,
    PredictedExponents,
    classify_phase,
    predicted_exponents,
)
from richbook.measure.alignment.phases.power_law import PowerLaw
from richbook.measure.alignment.relations.alignment import alignment, alignment_of
from richbook.measure.alignment.relations.history import AlignmentHistory
from richbook.measure.alignment.relations.table import Alignment, LayerAlignment, Relation, Side

__all__ = [
    "Alignment",
    "AlignmentHistory",
    "AlignmentRegularizer",
    "Balance",
    "Exponents",
    "FeatureAnsatz",
    "LayerAlignment",
    "LayerBalance",
    "LayerMoments",
    "LayerSimilarity",
    "Phase",
    "PowerLaw",
    "PredictedExponents",
    "Relation",
    "Side",
    "SideBalance",
    "UnitMoments",
    "alignment",
    "alignment_of",
    "balance",
    "classify_phase",
    "effective_rank",
    "exponents",
    "layer_moments",
    "layer_similarity",
    "nfa",
    "predicted_exponents",
    "sharpness",
]
