"""Pieces of a thread that reads, in compiled loops: whether the next one is free, and sending it; see `uploads`."""

from __future__ import annotations

from typing import Any

import numba

from .driver_calls_cpu import call as _call
from .uploads import ASK, COPY, NEXT, RECORD, STATUS, STREAM

_NOT_READY = 600


@numba.njit(nogil=True, cache=True)
def is_free(events: Any, busy: Any, state: Any, calls: Any) -> Any:
    """Whether the device has what was in the next piece."""
    piece = state[NEXT]
    if busy[piece] and _ask(calls[ASK], events[piece], 0, 0, 0, state):
        return False
    busy[piece] = 0
    return True


@numba.njit(nogil=True, cache=True)
def send(pieces: Any, events: Any, busy: Any, state: Any, calls: Any, to: Any, nbytes: Any) -> Any:
    """Have the first bytes of the next piece copied to the address ``to``. Whether the driver takes that."""
    piece = state[NEXT]
    busy[piece] = 1
    state[NEXT] = (piece + 1) % len(pieces)
    refused = _ask(calls[COPY], to, pieces[piece].ctypes.data, nbytes, calls[STREAM], state)
    return not (refused or _ask(calls[RECORD], events[piece], calls[STREAM], 0, 0, state))


@numba.njit(nogil=True, cache=True)
def _ask(function: Any, a: Any, b: Any, c: Any, d: Any, state: Any) -> Any:
    """Call a function of the driver. Whether that is not done: ``state`` says why, unless it is only not done yet."""
    found = _call(function, (a, b, c, d, 0, 0, 0, 0, 0, 0, 0))
    if found != 0 and found != _NOT_READY:
        state[STATUS] = found
    return found != 0
