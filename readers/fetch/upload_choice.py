"""Which way records of containers come to a GPU, found out by trying both in turns in the first seconds of a run.

A rule cannot know it: it depends on the host's memory and cores, on what else they do, and on the graph. The bytes that
come out are the same either way.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import Literal

Way = Literal["registered", "copy"]

_FIRST = 16
"""Batches before the first turn: kernels are compiled, buffers made."""
_SETTLE = 8
"""Batches of a turn that do not count: those in flight came by the other way."""
_BATCHES = 8
_SECONDS = 0.5
"""The least that a turn takes, beside those."""
_TURNS = 3
"""Of each way, in alternation, so that what grows or shrinks meanwhile touches both."""
_BETTER = 1.05
"""Times the rate of the way that was begun with that the other must reach: for less, nothing is changed."""
_CLEAR = 1.15
"""Times the best rate of the other way that every turn of the first one reaches: then more turns are not needed."""
_REFUSALS = 3
"""Turns without use, because files could not be registered, before no more are tried."""


class UploadChoice:
    """Says for each batch which way it takes; fed with nothing but times. Decides once, and then stays with it."""

    def __init__(self, first: Way) -> None:
        self.decided: Way | None = None
        self.first: Way = first
        self.rates: dict[Way, list[float]] = {"registered": [], "copy": []}
        """Batches a second, of each turn that counted."""
        self._way: Way = first
        self._to_skip = _FIRST + _SETTLE
        self._began = 0.0
        self._batches = self._refused = self._useless = 0

    def begin_anew(self) -> None:
        """Another run of the same graph over other records begins: its first batches do not count, what was measured
        before does."""
        self._to_skip = _FIRST + _SETTLE
        self._batches = self._refused = 0

    def next(self, now: float) -> Way:
        """The way of the batch that is begun at ``now`` (seconds of a clock that never goes back)."""
        if self.decided is not None:
            return self.decided
        if self._to_skip:
            self._to_skip -= 1
            self._began, self._refused = now, 0
            return self._way
        self._batches += 1
        if self._batches >= _BATCHES and now - self._began >= _SECONDS:
            self._end_turn(now)
        return self.decided or self._way

    def refused(self) -> None:
        """A batch that was to be registered is copied all the same."""
        self._refused += 1

    def _end_turn(self, now: float) -> None:
        if 2 * self._refused > self._batches:
            self._useless += 1
            if self._useless >= _REFUSALS:
                self.decided = "copy"
        else:
            self.rates[self._way].append(self._batches / (now - self._began))
        self._batches, self._to_skip = 0, _SETTLE
        other: Way = "copy" if self._way == "registered" else "registered"
        mine, theirs = self.rates[self.first], self.rates["copy" if self.first == "registered" else "registered"]
        if mine and theirs and min(mine) > _CLEAR * max(theirs):
            self.decided = self.first
        elif len(self.rates[other]) < _TURNS:
            self._way = other
        elif len(self.rates[self._way]) >= _TURNS:
            self._decide()

    def _decide(self) -> None:
        other: Way = "copy" if self.first == "registered" else "registered"
        mine, theirs = self.rates[self.first], self.rates[other]
        better = statistics.median(theirs) >= _BETTER * statistics.median(mine) and min(theirs) > min(mine)
        self.decided = other if better else self.first


class Chooser:
    """An `UploadChoice` with a clock, for several threads."""

    def __init__(self, choice: UploadChoice, clock: Callable[[], float] = time.monotonic) -> None:
        self.choice = choice
        choice.begin_anew()
        self._clock = clock
        self._lock = threading.Lock()

    def way(self) -> Way:
        """The way of the next batch."""
        with self._lock:
            return self.choice.next(self._clock())

    def refused(self) -> None:
        """As of `UploadChoice`."""
        with self._lock:
            self.choice.refused()
