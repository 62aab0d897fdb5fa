"""Clocks of worker threads: time that passes, time on a processor, and time spent waiting for one.

What is left of the time that passes is spent waiting for something else: for the interpreter's lock above all.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path

_BETWEEN = 0.25
"""Seconds between two looks at the kernel's count of a thread's waits: a look releases the interpreter's lock."""


class Clock:
    """The clock of one worker thread, which alone uses it."""

    def __init__(self) -> None:
        self._file = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        self._looked = time.perf_counter()
        self._waited = self._waits()

    def begin(self) -> tuple[float, float]:
        """The times at which a piece of work begins, for `end`."""
        return time.perf_counter(), time.thread_time()

    def end(self, began: tuple[float, float]) -> tuple[float, float, float]:
        """Seconds that the piece of work took, seconds of a processor in it, and seconds that the thread was ready and
        waited for a processor since that was last counted."""
        now = time.perf_counter()
        waited = 0.0
        if now - self._looked > _BETWEEN:
            self._looked, before = now, self._waited
            self._waited = self._waits()
            waited = self._waited - before
        return now - began[0], time.thread_time() - began[1], waited

    def _waits(self) -> float:
        with suppress(OSError, ValueError, IndexError):  # a kernel without the count
            return int(self._file.read_text().split()[1]) * 1e-9
        return 0.0
