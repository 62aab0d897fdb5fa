"""Memory that was freed, back to the system."""

from __future__ import annotations

import contextlib
import ctypes
from functools import cache


def trim() -> None:
    """Give back what glibc's malloc keeps for later, in all threads' arenas. Threads of the next job get other arenas,
    and free parts of old ones stay resident: 100 jobs in one process grew by half. Takes milliseconds; does nothing
    where the C library has no such call."""
    with contextlib.suppress(AttributeError, OSError):
        _libc().malloc_trim(0)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
