"""Compiled kernels by name, imported when they are first used: declaring an operator must not load a compiler."""

from __future__ import annotations

import signal
import sys
import threading
from functools import cache
from importlib import import_module
from types import FrameType
from typing import Any


class Kernels:
    """The module ``name``, relative to ``package`` (``Kernels(".color_cpu", __package__)``).

    Its members are looked up once; an import statement in a function takes a microsecond at every call, and a batch of
    one image makes dozens.
    """

    def __init__(self, name: str, package: str | None) -> None:
        self._name, self._package = name, package

    def __getattr__(self, member: str) -> Any:
        found = getattr(import_module(self._name, self._package), member)
        if "numba" in sys.modules:  # some of these modules are plain Python, and asked while a spec is only checked
            hold_interrupts()
        setattr(self, member, found)
        return found


@cache
def hold_interrupts() -> None:
    """From here on a signal that arrives while Numba compiles is handled when that is done. An exception that a handler
    raises in the midst of it (Ctrl-C) leaves unfinished libraries, and every later call of the
    function fails. Handlers that have ``ends_the_process`` are called at once: there will be no later call."""
    from numba.core.compiler_lock import global_compiler_lock

    lock: Any = type(global_compiler_lock)
    acquire, release = lock.acquire, lock.release
    held: dict[int, Any] = {}
    """Handlers of signals, while the main thread compiles."""
    arrived: list[tuple[int, FrameType | None]] = []
    depth = 0

    def held_acquire(self: Any) -> None:
        nonlocal depth
        if threading.current_thread() is threading.main_thread():
            depth += 1
            if depth == 1:
                for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
                    handler = signal.getsignal(kind)
                    if callable(handler) and not getattr(handler, "ends_the_process", False):
                        held[kind] = handler
                        signal.signal(kind, lambda number, frame: arrived.append((number, frame)))
        acquire(self)

    def held_release(self: Any) -> None:
        nonlocal depth
        release(self)
        if threading.current_thread() is threading.main_thread():
            depth -= 1
            if depth == 0:
                handlers = dict(held)
                held.clear()
                for kind, handler in handlers.items():
                    signal.signal(kind, handler)
                waiting, arrived[:] = list(arrived), []
                for number, frame in waiting:
                    handlers[number](number, frame)

    lock.acquire, lock.release = held_acquire, held_release
