"""Errors in functions that were rewritten: which line of the program they come from."""

from __future__ import annotations

import contextlib
import traceback
import types
from collections.abc import Iterator

from ...user_warnings import is_ours


@contextlib.contextmanager
def in_user_code() -> Iterator[None]:
    """Exceptions that pass through begin with "in user code:" and the lines of the program that led to them.

    They keep their type, and are the cause of the new one. One whose type takes more than a text is raised as it is,
    with the lines as a note.
    """
    try:
        yield
    except Exception as e:
        said = _lines(e)
        if said is None or "in user code:" in str(e):
            raise
        plain = isinstance(type(e).__init__, types.WrapperDescriptorType)  # none that a program wrote
        if not plain or len(e.args) != 1 or not isinstance(e.args[0], str):
            e.add_note(said)
            raise
        raise _like(e, f"{said}\n    {type(e).__name__}: {e.args[0]}\n") from e


def _like(e: Exception, text: str) -> Exception:
    made = type(e)(text)
    if str(made) != text:  # KeyError shows its text in quotes
        kind = type(e)
        made = type(kind.__name__, (kind,), {"__str__": BaseException.__str__, "__module__": kind.__module__})(text)
    return made


def _lines(e: Exception) -> str | None:
    """The frames of the program, from the outermost; None where there is none."""
    frames = [f for f, _ in traceback.walk_tb(e.__traceback__) if not is_ours(f)]
    shown = [
        s for s in traceback.extract_tb(e.__traceback__) if any(s.filename == f.f_code.co_filename for f in frames)
    ]
    if not shown:
        return None
    lines = [f'    File "{s.filename}", line {s.lineno}, in {s.name}\n        {s.line}' for s in shown]
    return "in user code:\n\n" + "\n".join(lines) + "\n"
