"""MoreLanes: whether a run gets faster with one lane more, found out by trying it.

How many batches in flight are best depends on the data. Where all kernels fill the GPU, a fifth batch only keeps the
uploads of others waiting. Where a few pictures take a thread of the GPU long, whatever else there is (lossy WebP: 60 to
90 ms for one as for hundreds), a GPU that waits for them has room for more batches.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

MOST = 12
"""Lanes of a device, at most."""
WINDOW, BATCHES = 1.0, 16
"""Seconds, and batches, of which a rate is taken, at least."""
SETTLE = 0.5
"""Seconds, at least, until a lane more shows."""
WAITED = 0.25
"""Part of the time for which no lane was free, from which one more is tried."""
FASTER = 1.06
"""Times the rate before, from which it stays."""
AGAIN = 30.0
"""Seconds until the next try after one that failed; twice as many after each."""


class Change(Enum):
    """The next thing to do."""

    NOTHING = 0
    ONE_MORE = 1
    ONE_LESS = 2


class MoreLanes:
    """Counts what one thread launches on one device; it asks after each batch."""

    def __init__(self, lanes: int, clock: Callable[[], float]) -> None:
        self.lanes = lanes
        self._clock = clock
        self._trying = False
        self._rate = 0.0
        self._again = AGAIN
        self._not_before = 0.0
        self._begin(0.0)

    def _begin(self, pause: float) -> None:
        """A window begins after ``pause`` seconds."""
        self._from = self._clock() + pause
        self._batches = self._samples = 0
        self._waited = 0.0

    def launched(self, samples: int, waited: float, room: bool) -> Change:
        """A batch was launched, ``waited`` seconds after there was no lane for it. ``room``: the memory would do for
        another one."""
        now = self._clock()
        if now < self._from:
            return Change.NOTHING
        self._batches += 1
        self._samples += samples
        self._waited += waited
        took = now - self._from
        if took < WINDOW or self._batches < BATCHES:
            return Change.NOTHING
        rate, part = self._samples / took, self._waited / took
        if self._trying:
            self._trying = False
            if rate >= FASTER * self._rate:
                self._again = AGAIN
                self._begin(0.0)
                return Change.NOTHING
            self._one_less(now)
            return Change.ONE_LESS
        if part < WAITED or not room or self.lanes >= MOST or now < self._not_before:
            self._begin(0.0)
            return Change.NOTHING
        self._trying, self._rate = True, rate
        self.lanes += 1
        self._begin(SETTLE)
        return Change.ONE_MORE

    def refused(self) -> None:
        """The lane that was to be tried could not be opened."""
        self._trying = False
        self._one_less(self._clock())

    def _one_less(self, now: float) -> None:
        self._not_before, self._again = now + self._again, 2 * self._again
        self.lanes -= 1
        self._begin(SETTLE)
