"""Warnings that point at the line of the caller, however deep they arise."""

from __future__ import annotations

import sys
import warnings

from richbook.measure.errors import DegenerateWarning


def warn_caller(message: str) -> None:
    """Give a ``DegenerateWarning`` at the line outside ``richbook.measure`` that led here.

    Example:
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     warn_caller("a layer is left out")
        >>> str(caught[0].message), caught[0].category.__name__
        ('a layer is left out', 'DegenerateWarning')
    """
    frame, level = sys._getframe(1), 2
    while frame is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, DegenerateWarning, stacklevel=level)


def _is_ours(module: str) -> bool:
    return module.startswith("richbook.measure.")
