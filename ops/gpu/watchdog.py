"""Watchdog of GPUs: detects a GPU that hangs, in contrast to one that works for long, by the time for which threads of
the process wait.

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
    """Registration of a running job with the watchdog: ``hung`` is called if a wait for one of the GPUs
    ``indices`` takes more than ``limit`` seconds. The engine creates it and passes it to `watch` and `unwatch`."""

    indices: tuple[int, ...]
    limit: float
    hung: Callable[[int], None]
    """Function that is called with the index of a hanging GPU, at most once, by the watchdog's thread."""


class _Watchdog:
    """The process's watchdog: the waits of all threads, and the jobs to inform. CUDA is one per process, and so is
    this."""

    def __init__(self) -> None:
        self.waits: dict[int, tuple[int, int]] = {}
        """GPU for which each waiting thread (by identity) waits, and number of checks that the watchdog had made when
        the wait began."""
        self.round = 0
        self.watches: list[Watch] = []
        self.hung: set[int] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, watch: Watch) -> None:
        """Add a watch, and start the watchdog's thread if it is not running."""
        with self._lock:
            self.watches.append(watch)
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="watchdog", daemon=True)
                self._thread.start()

    def remove(self, watch: Watch) -> None:
        """Remove a watch, if it is there."""
        with self._lock:
            if watch in self.watches:
                self.watches.remove(watch)

    def _look(self) -> None:
        while True:
            _pause(ROUND)
            self.round += 1
            with self._lock:
                if not self.watches:
                    self._thread = None
                    return
                late = [(w, i) for w in self.watches if (i := self._late(w)) is not None]
                for watch, index in late:
                    self.watches.remove(watch)
                    self.hung.add(index)
            for watch, index in late:
                watch.hung(index)

    def _late(self, watch: Watch) -> int | None:
        """Return the index of a GPU for which a thread has waited longer than ``watch`` allows, or None."""
        for index, began in list(self.waits.values()):
            if index in watch.indices and (self.round - began - 1) * ROUND > watch.limit:
                return index
        return None


_watchdog = _Watchdog()


class waiting:  # noqa: N801
    """Context manager around a call that waits for GPU ``index``, by which the watchdog notices if the GPU hangs. A
    thread waits for one GPU at a time."""

    __slots__ = ("_index",)

    def __init__(self, index: int) -> None:
        self._index = index

    def __enter__(self) -> None:
        _watchdog.waits[threading.get_ident()] = (self._index, _watchdog.round)

    def __exit__(self, *exc: object) -> None:
        _watchdog.waits.pop(threading.get_ident(), None)


def watch(watch: Watch) -> None:
    """Register ``watch``: its callback is called if a GPU hangs. Starts the watchdog's thread if it is not running."""
    _watchdog.add(watch)


def unwatch(watch: Watch) -> None:
    """Remove ``watch``; its callback is no longer called. Does nothing if ``watch`` is not registered."""
    _watchdog.remove(watch)


def any_hung() -> bool:
    """Return whether a GPU was found to hang in this process. Such a process cannot exit normally: CUDA would wait for
    the GPU."""
    return bool(_watchdog.hung)
