import matplotlib
import numpy as np
from matplotlib.colors import to_rgb

from richbook.show import COLORS, book_style, use_style
from richbook.show.style import rich_lazy_colormap, sequence_colors


def lightness(color):
    return np.dot(to_rgb(color), [0.299, 0.587, 0.114])


def test_colours_with_a_meaning_differ_in_grey():
    """H, G and Z are drawn together, and so are the baselines."""
    for names in (("H", "G", "Z"), ("s_init", "parameter_norm", "nc1")):
        grey = sorted(lightness(COLORS[name]) for name in names)
        assert np.diff(grey).min() > 0.05, names


def test_dark_is_rich_and_large_values_are_dark():
    assert lightness(rich_lazy_colormap()(0.0)) < lightness(rich_lazy_colormap()(1.0))
    shades = [lightness(color[:3]) for color in sequence_colors(5)]
    assert shades == sorted(shades, reverse=True) and shades[0] < 0.75


def test_style_is_put_back_after_the_block_and_stays_after_use_style():
    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context():
        matplotlib.rcParams["figure.figsize"] = (1, 1)
        with book_style():
            assert list(matplotlib.rcParams["figure.figsize"]) == [6.4, 3.6]
        assert list(matplotlib.rcParams["figure.figsize"]) == [1, 1]
        use_style()
        assert list(matplotlib.rcParams["figure.figsize"]) == [6.4, 3.6]
    assert dict(matplotlib.rcParams) == before
