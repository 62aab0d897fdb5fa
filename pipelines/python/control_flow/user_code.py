"""Errors in rewritten functions, with the lines of the program that led to them."""

from __future__ import annotations

import contextlib
import traceback
import types
from collections.abc import Iterator

from ...user_warnings import is_ours


@contextlib.contextmanager
def in_user_code() -> Iterator[None]:
    """Return a context manager for running the program's code. Exceptions that pass through are raised again, with a
    message that begins with "in user code:" and the program's lines that led to them.

    They keep their type, and are the cause of the new exception. An exception whose type needs more than a text is
    raised unchanged, with the lines as a note.
    """
    try:
        yield
    except Exception as e:
        lines = _lines(e)
        if lines is None or "in user code:" in str(e):
            raise
        plain = isinstance(type(e).__init__, types.WrapperDescriptorType)  # not a constructor that the program defined
        if not plain or len(e.args) != 1 or not isinstance(e.args[0], str):
            e.add_note(lines)
            raise
        raise _like(e, f"{lines}\n    {type(e).__name__}: {e.args[0]}\n") from e


def _like(e: Exception, text: str) -> Exception:
    error = type(e)(text)
    if str(error) != text:  # KeyError displays its text in quotes
        kind = type(e)
        error = type(kind.__name__, (kind,), {"__str__": BaseException.__str__, "__module__": kind.__module__})(text)
    return error


def _lines(e: Exception) -> str | None:
    """Return the stack frames of ``e`` in the program's own code as text, outermost first; None if there are none."""
    frames = [f for f, _ in traceback.walk_tb(e.__traceback__) if not is_ours(f)]
    shown = [
        s for s in traceback.extract_tb(e.__traceback__) if any(s.filename == f.f_code.co_filename for f in frames)
    ]
    if not shown:
        return None
    lines = [f'    File "{s.filename}", line {s.lineno}, in {s.name}\n        {s.line}' for s in shown]
    return "in user code:\n\n" + "\n".join(lines) + "\n"
