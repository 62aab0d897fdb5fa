"""Memory: how much a run may hold on the host and on a GPU, and the account by which work is let in."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.batch import host_empty
from ...wording import size
from ..channel import Closed
from .shared_outputs import Band


class OverBudgetError(MemoryError):
    """An allocation would take a run over its budget."""


class Ledger:
    """The account of one kind of memory. Batches in flight hold bytes in the order in which they came; chunks of work
    take bytes for as long as they run. Both wait until there is room, but never for ever: the oldest batch is always
    let in, and so is a piece of work when no other is running."""

    def __init__(self, limit: int, for_work: float = 0.0) -> None:
        """Batches wait while they hold all of ``limit`` but the share ``for_work``."""
        self.limit = limit
        self._for_work = for_work
        self.used = self.peak = 0
        """Bytes on the account, now and at most."""
        self.waited = 0.0
        """Seconds that work was held back."""
        self._held: dict[tuple[int, ...], int] = {}
        self._holding = 0
        self._running = 0
        self._alone = False
        self._stopped = False
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        """Threads that wait for room. Mostly there are none, and a condition costs much more than its lock."""

    def hold(self, owner: tuple[int, ...], nbytes: int, *, wait: bool = True) -> None:
        """Batch ``owner`` (its number and part) holds ``nbytes`` from now on, instead of what it held. Raises Closed
        when the run was stopped."""
        with self._lock:
            more = nbytes - self._held.get(owner, 0)
            room = self.limit - int(self.limit * self._for_work)
            if wait:
                self._wait(
                    lambda: (
                        min(self._held, default=owner) >= owner or (self._holding + more <= room and self._fits(more))
                    )
                )
            self._held[owner] = nbytes
            self._holding += more
            self._add(more)

    def release(self, owner: tuple[int, ...]) -> None:
        """Batch ``owner`` is gone."""
        with self._lock:
            freed = self._held.pop(owner, 0)
            self._holding -= freed
            self._add(-freed)

    @contextmanager
    def work(self, nbytes: int) -> Iterator[None]:
        """Take ``nbytes`` while a piece of work runs. Raises Closed when the run was stopped."""
        with self._lock:
            self._wait(lambda: not self._alone and (self._running == 0 or self._fits(nbytes)))
            self._running += 1
            self._add(nbytes)
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                self._add(-nbytes)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Inside of `work`: once more, while no other piece of work runs."""
        with self._lock:
            self._running -= 1
            try:
                self._wait(lambda: not self._alone and self._running == 0)
            finally:
                self._running += 1
            self._alone = True
        try:
            yield
        finally:
            with self._lock:
                self._alone = False
                self._notify()

    def grow(self, nbytes: int, *, alone: bool) -> bool:
        """Take ``nbytes`` more for a piece of work that turns out larger than foreseen, without waiting; False where
        they do not fit. A sample ``alone`` may have all of the budget, whatever else is held."""
        with self._lock:
            if not self._fits(nbytes) and not alone:
                return False
            self._add(nbytes)
            return True

    def give_back(self, nbytes: int) -> None:
        """The opposite of `grow`."""
        with self._lock:
            self._add(-nbytes)

    def stop(self) -> None:
        """Wake everybody with Closed."""
        with self._lock:
            self._stopped = True
            self._changed.notify_all()

    def _fits(self, more: int) -> bool:
        return self.used + more <= self.limit

    def _add(self, nbytes: int) -> None:
        self.used += nbytes
        self.peak = max(self.peak, self.used)
        if nbytes <= 0:
            self._notify()

    def _notify(self) -> None:
        if self._waiting:
            self._changed.notify_all()

    def _wait(self, ready: Any) -> None:
        if not ready() and not self._stopped:
            began = time.perf_counter()
            self._waiting += 1
            self._changed.wait_for(lambda: self._stopped or ready())
            self._waiting -= 1
            self.waited += time.perf_counter() - began
        if self._stopped:
            raise Closed


class Allowance:
    """The memory that one piece of work may allocate: its share, and more as long as the account has room."""

    def __init__(
        self, ledger: Ledger, taken: int, band: Band | None = None,
        fresh: Callable[[int, Any], npt.NDArray[Any]] = host_empty,
    ) -> None:  # fmt: skip
        """``fresh(n, dtype)`` makes arrays that have no place in ``band``."""
        self._ledger = ledger
        self._taken = taken
        self._band = band
        self._fresh = fresh
        self._grown = 0
        self._used = 0
        self._samples = 0
        self.lasting = True
        """The kernel that runs makes something that leaves the step: it has its place in the batch."""

    def begin(self, samples: int) -> None:
        """A pass over ``samples`` begins; nothing is held yet."""
        self._samples = samples
        self._used = 0

    def settle(self, live: int) -> None:
        """A kernel is done: ``live`` bytes are held, the rest of what it allocated is free again."""
        self._used = live

    def empty(self, n: int, dtype: Any) -> npt.NDArray[Any]:
        """An uninitialised array of ``n`` elements. Raises OverBudgetError."""
        wanted = self._used + n * np.dtype(dtype).itemsize
        if wanted > self._ledger.limit:
            raise OverBudgetError(f"it needs {size(wanted)}, the budget is {size(self._ledger.limit)}")
        more = wanted - self._taken - self._grown
        if more > 0:
            if not self._ledger.grow(more, alone=self._samples <= 1):
                raise OverBudgetError(f"{size(wanted)} do not fit beside what else is in memory")
            self._grown += more
        self._used = wanted
        placed = self._band.take(n, dtype) if self._band is not None and self.lasting else None
        return self._fresh(n, dtype) if placed is None else placed

    def close(self) -> None:
        """The work is done."""
        self._ledger.give_back(self._grown)
        self._grown = 0
