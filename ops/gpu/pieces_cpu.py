"""Compiled loops for the staging pieces of one reading thread: test whether the next piece is free, and start its copy.

Called by the loops that read files and records (`readers.fetch`); see `uploads` for the pieces.
"""

from __future__ import annotations

from typing import Any

import numba

from .driver_calls_cpu import call as _call
from .uploads import ASK, COPY, NEXT, RECORD, STATUS, STREAM

_NOT_READY = 600


@numba.njit(nogil=True, cache=True)
def is_free(events: Any, busy: Any, state: Any, calls: Any) -> Any:
    """Return whether the next page-locked buffer can be filled, because the device has copied its earlier contents."""
    piece = state[NEXT]
    if busy[piece] and _ask(calls[ASK], events[piece], 0, 0, 0, state):
        return False
    busy[piece] = 0
    return True


@numba.njit(nogil=True, cache=True)
def send(pieces: Any, events: Any, busy: Any, state: Any, calls: Any, to: Any, nbytes: Any) -> Any:
    """Start copying the first ``nbytes`` of the page-locked buffer that was just filled to the device address ``to``.
    Return whether the driver accepted it."""
    piece = state[NEXT]
    busy[piece] = 1
    state[NEXT] = (piece + 1) % len(pieces)
    raise_error = _ask(calls[COPY], to, pieces[piece].ctypes.data, nbytes, calls[STREAM], state)
    return not (raise_error or _ask(calls[RECORD], events[piece], calls[STREAM], 0, 0, state))


@numba.njit(nogil=True, cache=True)
def _ask(function: Any, a: Any, b: Any, c: Any, d: Any, state: Any) -> Any:
    """Call a driver function with four arguments. Return whether it failed or is not ready: its status is not 0.
    Statuses other than "not ready" are also written to ``state``."""
    found = _call(function, (a, b, c, d, 0, 0, 0, 0, 0, 0, 0))
    if found != 0 and found != _NOT_READY:
        state[STATUS] = found
    return found != 0
