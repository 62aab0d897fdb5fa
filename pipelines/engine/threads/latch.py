"""Latch: the parts of one batch that worker threads are busy with."""

from __future__ import annotations

import threading
import time
from typing import Generic, TypeVar

T = TypeVar("T")


class Latch(Generic[T]):
    """Collects ``n`` parts from any threads. The thread that finishes the last part joins them and calls `done`."""

    def __init__(self, n: int) -> None:
        self.parts: list[T | None] = [None] * n
        self.ended = 0.0
        """When it was done (perf_counter); 0 before."""
        self._left = n
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._busy = threading.Lock()  # held until all is done: it costs a fraction of an Event
        self._busy.acquire()

    def add(self, k: int, part: T) -> bool:
        """Part ``k`` is there; True for the last one."""
        with self._lock:
            self.parts[k] = part
            self._left -= 1
            return self._left == 0

    def take(self) -> list[T]:
        """The parts that came, to be joined. They are forgotten here: the engine keeps a step's last latch."""
        taken, self.parts = self.parts, []
        return [part for part in taken if part is not None]

    def done(self) -> None:
        """The parts are joined: threads that wait may go on."""
        self.ended = time.perf_counter()
        self._busy.release()

    def fail(self, error: BaseException) -> None:
        """A part will not come: threads that wait get ``error``."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error
        self.done()

    def wait_done(self) -> None:
        """Wait until it is done, or has failed."""
        self._busy.acquire()
        self._busy.release()

    def wait(self) -> None:
        """As `settle`. Raises what the first part that failed raised."""
        self.wait_done()
        if self._error is not None:
            raise self._error
