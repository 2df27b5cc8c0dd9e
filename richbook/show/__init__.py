"""Pictures of what the other rooms measured: plots, sliders over a sweep, sliders that train."""

from richbook.show.alignment_curves import plot_alignment_history
from richbook.show.alignment_explorer import AlignmentExplorer, explore_alignment
from richbook.show.curves import plot_comparison, plot_history, plot_sweep_lines
from richbook.show.eigenfunctions import plot_eigenfunctions
from richbook.show.explorer import Explorer, explore
from richbook.show.flipbook import flip_book
from richbook.show.live import LiveTraining, train_live
from richbook.show.live_run import LiveRun
from richbook.show.maps import plot_kernel, plot_sweep_map
from richbook.show.reports import plot_profile, plot_report
from richbook.show.result_explorer import ResultExplorer, explore_result
from richbook.show.richer_game import RicherGame, richer_game
from richbook.show.spectra import plot_spectrum, plot_utilization
from richbook.show.style import COLORS, book_style, use_style

__all__ = [
    "AlignmentExplorer",
    "COLORS",
    "Explorer",
    "LiveRun",
    "LiveTraining",
    "ResultExplorer",
    "RicherGame",
    "book_style",
    "explore",
    "explore_alignment",
    "explore_result",
    "flip_book",
    "plot_alignment_history",
    "plot_comparison",
    "plot_eigenfunctions",
    "plot_history",
    "plot_kernel",
    "plot_profile",
    "plot_report",
    "plot_spectrum",
    "plot_sweep_lines",
    "plot_sweep_map",
    "plot_utilization",
    "richer_game",
    "train_live",
    "use_style",
]
