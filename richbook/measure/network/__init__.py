"""Measure a network that one already has: one pass over a loader, one report."""

from richbook.measure.network.measuring import measure
from richbook.measure.network.report import LayerRichness, Report

__all__ = ["LayerRichness", "Report", "measure"]
