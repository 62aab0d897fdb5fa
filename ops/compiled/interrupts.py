"""Delay signals while Numba compiles. An exception that a signal handler raises during it (Ctrl-C) leaves Numba's
tables and libraries incomplete, and every later call fails. Called by `numba_cache.install`."""

from __future__ import annotations

import signal
import threading
from functools import cache
from types import FrameType
from typing import Any

_KINDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)


class _State:
    """State of the main thread, in which Python runs signal handlers."""

    depth = 0
    """Number of times that the main thread holds Numba's recursive compiler lock."""

    def __init__(self) -> None:
        self.handlers: dict[int, Any] = {}
        """The program's own signal handlers, by signal number, while `_wait` is installed in their place."""
        self.arrived: list[tuple[int, FrameType | None]] = []
        """Signals to handle when compiling is done."""


_state = _State()


def _wait(number: int, frame: FrameType | None) -> None:
    """Replace a signal's handler while Numba compiles: remember the signal, and handle it when compiling is done.
    Should an exception leave this handler installed, it calls the program's handler immediately."""
    if _state.depth:
        _state.arrived.append((number, frame))
    else:
        _state.handlers[number](number, frame)


def _hold() -> None:
    for kind in _KINDS:
        handler = signal.getsignal(kind)
        if callable(handler) and handler is not _wait and not getattr(handler, "ends_the_process", False):
            _state.handlers[kind] = handler
            signal.signal(kind, _wait)


def _let_go() -> None:
    try:
        for kind, handler in _state.handlers.items():
            if signal.getsignal(kind) is _wait:
                signal.signal(kind, handler)
    finally:
        _deliver()


def _deliver() -> None:
    if _state.arrived:
        number, frame = _state.arrived.pop(0)
        try:
            _state.handlers[number](number, frame)
        finally:
            _deliver()


@cache
def hold_interrupts() -> None:
    """From now on, delay signals that arrive while Numba compiles until it is done. Handlers with the attribute
    ``ends_the_process`` are still called immediately, because the process will not use the compiler again."""
    from numba.core.compiler_lock import global_compiler_lock

    lock: Any = type(global_compiler_lock)
    acquire, release = lock.acquire, lock.release

    # Python runs handlers after calls and at backward jumps: never between `depth += 1` and the `try` that follows it.
    def held_acquire(self: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            acquire(self)
            return
        _state.depth += 1
        try:
            if _state.depth == 1:
                _hold()
            acquire(self)
        except BaseException:
            _state.depth -= 1
            if not _state.depth:
                _let_go()
            raise

    def held_release(self: Any) -> None:
        release(self)
        if threading.current_thread() is threading.main_thread():
            _state.depth -= 1
            if not _state.depth:
                _let_go()

    lock.acquire, lock.release = held_acquire, held_release
