"""Warnings that point at the program's line, however deep in here they arise."""

from __future__ import annotations

import sys
import types
import warnings

_PACKAGE = __name__.partition(".")[0] + "."


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """As `warnings.warn`, at the line outside of this package that led here."""
    _, level = _user_frame()
    warnings.warn(message, category, stacklevel=level)


def user_line() -> tuple[str, int]:
    """File and line of the program that led here."""
    frame, _ = _user_frame()
    return frame.f_code.co_filename, frame.f_lineno


def is_ours(frame: types.FrameType) -> bool:
    """The frame is one of this package's."""
    return f"{frame.f_globals.get('__name__')}.".startswith(_PACKAGE)


def _user_frame() -> tuple[types.FrameType, int]:
    """The frame outside of this package that led here, and how many the caller of this is below it, plus 1."""
    frame, level = sys._getframe(2), 2
    while frame.f_back is not None and is_ours(frame):
        frame, level = frame.f_back, level + 1
    return frame, level
