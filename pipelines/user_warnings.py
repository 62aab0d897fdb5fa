"""Warnings that point at the user's line, however deep in this package they arise."""

from __future__ import annotations

import sys
import types
import warnings

_PACKAGE = __name__.partition(".")[0] + "."


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning like `warnings.warn`, at the innermost line outside this package that led to this call."""
    _, level = _user_frame()
    warnings.warn(message, category, stacklevel=level)


def user_line() -> tuple[str, int]:
    """Return file and line number of the user's code that led to this call."""
    frame, _ = _user_frame()
    return frame.f_code.co_filename, frame.f_lineno


def is_ours(frame: types.FrameType) -> bool:
    """Return whether the code of the stack frame belongs to this package."""
    return f"{frame.f_globals.get('__name__')}.".startswith(_PACKAGE)


def _user_frame() -> tuple[types.FrameType, int]:
    """Return the innermost stack frame outside this package, and the ``stacklevel`` with which the caller's
    `warnings.warn` points at it."""
    frame, level = sys._getframe(2), 2
    while frame.f_back is not None and is_ours(frame):
        frame, level = frame.f_back, level + 1
    return frame, level
