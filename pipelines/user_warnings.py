"""Warnings that point at the program's line, however deep in here they arise."""

from __future__ import annotations

import sys
import warnings

_PACKAGE = __name__.partition(".")[0] + "."


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """As `warnings.warn`, at the line outside of this package that led here."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and f"{frame.f_globals.get('__name__')}.".startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
