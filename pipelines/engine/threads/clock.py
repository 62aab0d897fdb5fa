"""Measure how worker threads spend their time: in total, on a processor, and waiting for a processor.

The rest of the total is spent waiting for something else, mostly for the interpreter's lock.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path

_SECONDS_BETWEEN_READS = 0.25
"""Seconds between two reads of the operating system's count of how long a thread waited for a processor. Reading it
releases the GIL."""


class Clock:
    """Measures the time of one worker thread. That thread creates it and is the only one that uses it."""

    def __init__(self) -> None:
        self._file = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        self._read_at = time.perf_counter()
        self._waited = self._waits()

    def begin(self) -> tuple[float, float]:
        """Return the wall and processor time (seconds) at which a piece of work begins, for `end`."""
        return time.perf_counter(), time.thread_time()

    def end(self, began: tuple[float, float]) -> tuple[float, float, float]:
        """Return three times in seconds: elapsed time since `begin`; processor time of the thread since then; and the
        time for which the thread was ready but waited for a processor, since that was last read."""
        now = time.perf_counter()
        waited = 0.0
        if now - self._read_at > _SECONDS_BETWEEN_READS:
            self._read_at, before = now, self._waited
            self._waited = self._waits()
            waited = self._waited - before
        return now - began[0], time.thread_time() - began[1], waited

    def _waits(self) -> float:
        with suppress(OSError, ValueError, IndexError):  # this kernel does not count waits
            return int(self._file.read_text().split()[1]) * 1e-9
        return 0.0
