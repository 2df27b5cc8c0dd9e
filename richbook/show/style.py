"""One look for every figure: the colours that carry meaning, and the style file that sets the rest.

A colour means the same thing in every chapter, is told apart by colour-blind readers (the palette
is Okabe and Ito's) and has a lightness of its own, so that a grey print keeps the difference.
"""

from contextlib import contextmanager
from importlib.resources import files

import matplotlib
from matplotlib.colors import Colormap

#: What each colour means. `floor` is the isotropic floor, `ghost` what was drawn before.
COLORS = {
    "d_lr": "#D55E00",
    "H": "#0072B2",
    "G": "#E69F00",
    "Z": "#009E73",
    "accuracy": "#333333",
    "utilization": "#0072B2",
    "quality": "#CC79A7",
    "s_init": "#4D4D4D",
    "parameter_norm": "#7F7F7F",
    "nc1": "#A6A6A6",
    "floor": "#777777",
    "ghost": "#C4C4C4",
}

#: Train is solid, test is dashed, whatever is drawn.
LINE_STYLES = {"train": "-", "test": (0, (4, 2))}

#: The rich-lazy axis: small D_LR (rich) is dark, large D_LR (lazy) is light.
RICH_LAZY = "viridis"


def style_path() -> str:
    """Return the path of the book's Matplotlib style file.

    Example:
        >>> style_path().endswith("richbook.mplstyle")
        True
    """
    return str(files("richbook.show") / "richbook.mplstyle")


def _settings() -> dict:
    return dict(matplotlib.rc_params_from_file(style_path(), use_default_template=False))


def use_style() -> None:
    """Give every figure drawn from now on the look of the book.

    The first code cell of a chapter calls it. Plots of `richbook.show` that make their own figure
    have that look without it; this is for the figures you draw yourself.

    Example:
        >>> use_style()
        >>> matplotlib.rcParams["axes.spines.top"]
        False
    """
    matplotlib.rcParams.update(_settings())


@contextmanager
def book_style():
    """Give the figures made inside a `with` block the look of the book, and then put it back.

    It changes Matplotlib's global settings for as long as the block lasts, so it is for the main
    thread only.

    Example:
        >>> with book_style():
        ...     matplotlib.rcParams["figure.figsize"]
        [6.4, 3.6]
    """
    with matplotlib.rc_context(_settings()):
        yield
        # The first figure of a notebook loads the inline backend, which turns interactive mode on.
        # Restoring that too would hide every later figure.
        interactive = matplotlib.is_interactive()
    matplotlib.interactive(interactive)


def sequence_colors(count: int) -> list[tuple]:
    """Return `count` colours from light to dark for the ordered values of a hyperparameter.

    They come from the rich-lazy map without its palest part, which would not show on white paper.

    Args:
        count: how many colours, at least 1.

    Returns:
        RGBA tuples, the darkest one last: large values of all three hyperparameters lead to rich.

    Example:
        >>> len(sequence_colors(4))
        4
    """
    colormap = matplotlib.colormaps[RICH_LAZY]
    if count == 1:
        return [colormap(0.2)]
    return [colormap(0.8 * (1 - i / (count - 1))) for i in range(count)]


def rich_lazy_colormap() -> Colormap:
    """Return the map of the rich-lazy axis, dark for rich, with cells that are nan left white.

    Example:
        >>> rich_lazy_colormap().name
        'viridis'
    """
    return matplotlib.colormaps[RICH_LAZY].with_extremes(bad="white")
