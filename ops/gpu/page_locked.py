"""Pool of large page-locked blocks of host memory, which are reused for any request that fits and is not much smaller.

CuPy's pool reuses a block only for the size that it was allocated for. Batches never have quite the same size, so that
blocks were allocated again and again: for 80 MB that takes the driver 50 to 65 ms, during which it copies and launches
nothing for other threads. `registered.Locked` takes 17 ms, most of them without the driver.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]

MIN_BLOCK = 1 << 20
"""Size in bytes of the smallest block of `PageLockedPool`. Smaller blocks come from CuPy's pool."""
MAX_CACHED = 4 << 30
"""Maximum bytes of unused blocks that the pool keeps when a new block is allocated. The pool keeps fewer if a running
job's memory budget is full."""


_RATE = 4e9
"""Assumed bytes per second at which new memory is page-locked. A request first waits, about as long as page-locking
would take, for a used block to be returned, which costs no additional memory."""
_PATIENCE = 0.03
_LOOK = 0.001
_RECENT = 0.1
"""Seconds for which a returned block counts as recent. After a recent return, requests wait for the next returned block
instead of allocating one."""
_pause = time.sleep


class RunBudget(Protocol):
    """Memory budget of a running job: the two members that this pool needs."""

    @property
    def limit(self) -> int:
        """Total bytes of the budget."""
        ...

    def has_room(self, nbytes: int) -> bool:
        """Return whether the budget has room for ``nbytes`` more of cached memory. Must take no lock, because
        destructors call this method."""
        ...


class PageLockedPool:
    """Pool of large page-locked blocks of host memory. One instance per process (`lane.page_locked_blocks`); any thread
    may use it."""

    def __init__(self) -> None:
        # appended to without the lock: a destructor may do it during garbage collection
        self._cached: deque[_Block] = deque()
        self._lock = threading.Lock()
        self._returned: deque[tuple[float, int]] = deque(maxlen=16)
        """Time (monotonic) and size in bytes of the last returned blocks."""
        self._budgets: tuple[RunBudget, ...] = ()

    @property
    def cached(self) -> int:
        """Bytes of blocks that are unused and kept for reuse."""
        return sum(len(b.data) for b in list(self._cached))

    @property
    def max_bytes(self) -> int:
        """Approximate limit on the bytes of unused blocks that the pool keeps."""
        return 2 * MAX_CACHED

    def add_budget(self, budget: RunBudget) -> None:
        """Count the pool's unused blocks against the memory budget of a starting job, until `remove_budget`."""
        with self._lock:
            self._budgets = (*self._budgets, budget)

    def remove_budget(self, budget: RunBudget) -> None:
        """Stop counting the pool's unused blocks against ``budget``. Does nothing if it was removed before."""
        with self._lock:
            self._budgets = tuple(r for r in self._budgets if r is not budget)

    @property
    def smallest_budget(self) -> int:
        """Return the bytes of the smallest memory budget of the running jobs; 1 << 62 if no job is running."""
        return min((r.limit for r in self._budgets), default=1 << 62)

    def empty(self, nbytes: int, make: Callable[[int], Any]) -> U8:
        """Return an uninitialised array of ``nbytes``, in a cached block or, if none fits, in memory allocated by
        ``make(bytes)``. When the last view of the array is released, its block returns to the pool."""
        block = self._take(nbytes) or self._wait_for_return(nbytes) or self._allocate(nbytes, make)
        return np.asarray(Lease(self, block))[:nbytes]

    def clear(self) -> None:
        """Free all blocks that are unused."""
        self._cached.clear()

    def put(self, block: _Block) -> None:
        """Take back a block that is no longer used: cache it if all memory budgets have room for it, otherwise free
        it."""
        self._returned.append((time.monotonic(), len(block.data)))
        if all(r.has_room(len(block.data)) for r in self._budgets):
            self._cached.append(block)

    def _take(self, nbytes: int) -> _Block | None:
        with self._lock:
            fitting = [b for b in list(self._cached) if nbytes <= len(b.data) <= 2 * nbytes]
            best = min(fitting, key=lambda b: len(b.data), default=None)
            if best is not None:
                self._cached.remove(best)
            return best

    def _wait_for_return(self, nbytes: int) -> _Block | None:
        """Wait until a block of at least ``nbytes`` is returned, at most for the time that allocating one would take,
        during which the driver could do no other work. Return None if no block is returned in that time, or at once if
        no block of that size was returned recently."""
        now = time.monotonic()
        until = now + min(_PATIENCE, nbytes / _RATE)
        if not any(now - at < _RECENT and nbytes <= size <= 2 * nbytes for at, size in list(self._returned)):
            return None
        while time.monotonic() < until:
            _pause(_LOOK)
            if (found := self._take(nbytes)) is not None:
                return found
        return None

    def _allocate(self, nbytes: int, make: Callable[[int], Any]) -> _Block:
        with self._lock:
            if self.cached > MAX_CACHED:
                self._cached.clear()  # their sizes are not those requested now
        size = nbytes + nbytes // 8  # the next batch may be larger
        try:
            return _Block(np.frombuffer(make(size), np.uint8, size))
        except Exception:  # too much memory is page-locked already
            self.clear()
            return _Block(np.frombuffer(make(nbytes), np.uint8, nbytes))


class _Block:
    """One block of page-locked memory of the pool; compared by identity."""

    __slots__ = ("data",)

    def __init__(self, data: U8) -> None:
        self.data = data


class Lease:
    """Owner of a page-locked block in use, to which every NumPy view of the block refers. When the last reference is
    dropped, in any thread, the block returns to the pool."""

    def __init__(self, blocks: PageLockedPool, block: _Block) -> None:
        self._blocks, self._block = blocks, block
        self.__array_interface__ = block.data.__array_interface__

    def __del__(self) -> None:
        self._blocks.put(self._block)
