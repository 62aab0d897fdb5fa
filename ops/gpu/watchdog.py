"""Watchdog of GPUs: tells a GPU that hangs from one that works for long, by the waits of all threads of the process.

A kernel or copy that never ends raises nothing: the thread that waits for it waits forever, and so does all later work.
The watchdog's thread counts time in rounds of its own, so that a process that was stopped, or a machine that slept, is
not mistaken for a hang. The engine registers a `Watch` per run; lanes wrap their waits in `waiting`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

ROUND = 0.5
"""Seconds between two checks of the threads that wait for a GPU."""
_pause = time.sleep


@dataclass(eq=False, slots=True)
class Watch:
    """Registration of a running job with the watchdog, which calls `hung` if a wait for one of the GPUs ``indices``
    takes more than ``limit`` seconds. Created by the engine, which passes it to `watch` and `unwatch`."""

    indices: tuple[int, ...]
    limit: float
    hung: Callable[[int], None]
    """Callback that gets the index of a GPU that hangs; called at most once, by the watchdog's thread."""


_waits: dict[int, tuple[int, int]] = {}
"""For each waiting thread (its identity), the GPU for which it waits, and how many checks the watchdog had made when
the wait began."""
_round = 0
_watches: list[Watch] = []
_looking = threading.Lock()
_thread: threading.Thread | None = None
_hung: set[int] = set()


class waiting:  # noqa: N801
    """Context manager around a call that waits for GPU ``index``, so that the watchdog notices a hanging GPU. A thread
    waits for one GPU at a time."""

    __slots__ = ("_index",)

    def __init__(self, index: int) -> None:
        self._index = index

    def __enter__(self) -> None:
        _waits[threading.get_ident()] = (self._index, _round)

    def __exit__(self, *exc: object) -> None:
        _waits.pop(threading.get_ident(), None)


def watch(watch: Watch) -> None:
    """Register ``watch``, so that its callback is called if a GPU hangs. Starts the watchdog's thread if it does not
    run."""
    global _thread
    with _looking:
        _watches.append(watch)
        if _thread is None:
            _thread = threading.Thread(target=_look, name="watchdog", daemon=True)
            _thread.start()


def unwatch(watch: Watch) -> None:
    """Remove ``watch``, whose callback is no longer called. Does nothing if it is not registered."""
    with _looking:
        if watch in _watches:
            _watches.remove(watch)


def any_hung() -> bool:
    """Return whether a GPU was found to hang in this process, which then cannot exit normally: CUDA would wait for the
    GPU."""
    return bool(_hung)


def _look() -> None:
    global _round, _thread
    while True:
        _pause(ROUND)
        _round += 1
        with _looking:
            if not _watches:
                _thread = None
                return
            late = [(w, i) for w in _watches if (i := _late(w)) is not None]
            for watch, index in late:
                _watches.remove(watch)
                _hung.add(index)
        for watch, index in late:
            watch.hung(index)


def _late(watch: Watch) -> int | None:
    """Return the GPU for which a thread has waited longer than ``watch`` allows, or None."""
    for index, began in list(_waits.values()):
        if index in watch.indices and (_round - began - 1) * ROUND > watch.limit:
            return index
    return None
