"""Waits for GPUs, by all threads of the process, so that one that will never end can be told from a long one.

A kernel or copy that never ends raises nothing: whoever waits for it waits forever, and so does all that follows. Time
is counted in rounds of a thread of its own, so that a process that was stopped, or a machine that slept, is not
mistaken for that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

ROUND = 0.5
"""Seconds between two looks."""
_pause = time.sleep


@dataclass(eq=False, slots=True)
class Watch:
    """Something that is told when a wait for one of the GPUs ``indices`` takes more than ``limit`` seconds."""

    indices: tuple[int, ...]
    limit: float
    hung: Callable[[int], None]
    """Called once, with the GPU, by the thread that looks."""


_waits: dict[int, tuple[int, int]] = {}
"""The GPU and the round of its beginning, of each thread that waits."""
_round = 0
_watches: list[Watch] = []
_looking = threading.Lock()
_thread: threading.Thread | None = None
_hung: set[int] = set()


class waiting:  # noqa: N801
    """Around a call that waits for GPU ``index``. One thread waits for one GPU at a time."""

    __slots__ = ("_index",)

    def __init__(self, index: int) -> None:
        self._index = index

    def __enter__(self) -> None:
        _waits[threading.get_ident()] = (self._index, _round)

    def __exit__(self, *exc: object) -> None:
        _waits.pop(threading.get_ident(), None)


def watch(watch: Watch) -> None:
    """Begin to look after the waits."""
    global _thread
    with _looking:
        _watches.append(watch)
        if _thread is None:
            _thread = threading.Thread(target=_look, name="watchdog", daemon=True)
            _thread.start()


def unwatch(watch: Watch) -> None:
    """Look no more; a watch that is not there does no harm."""
    with _looking:
        if watch in _watches:
            _watches.remove(watch)


def any_hung() -> bool:
    """A GPU was found to hang in this process, which then cannot end in the usual way: CUDA would wait for it."""
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
    """The GPU that somebody has waited for longer than ``watch`` allows."""
    for index, began in list(_waits.values()):
        if index in watch.indices and (_round - began - 1) * ROUND > watch.limit:
            return index
    return None
