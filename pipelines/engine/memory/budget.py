"""Limit how much memory a run holds on the host and on its GPUs, by delaying batches and tasks until they fit.

The engine (`BatchBudget`) reserves memory for batches in flight, and the host's workers (`HostExecutor`) for the tasks
that they run. How much each of them needs is estimated by `estimate_memory`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ....ops.batch import host_empty
from ...wording import size
from ..threads.channel import Closed
from .output_slices import OutputSlice

FOR_WORK = 0.25
"""Share of the host's memory budget that batches in flight leave free for the chunks that worker threads compute."""


class OverBudgetError(MemoryError):
    """An allocation would exceed the memory budget of the run."""


class _Account:
    """Reservations and limits of one kind of memory (host or GPU), shared by `MemoryBudget`s of several runs."""

    def __init__(self, limit: int, for_work: float) -> None:
        self.limit = limit
        self.for_work = for_work
        self.used = 0
        """Bytes that batches and tasks have reserved together."""
        self.reserved: dict[tuple[int, ...], int] = {}
        """Bytes that each batch has reserved. The key is the number of the run, followed by the number of the batch and
        of its part."""
        self.by_batches = 0
        """Bytes that batches have reserved: the sum of `reserved`."""
        self.tasks = 0
        """Number of tasks (chunks of work) that run now."""
        self.exclusive = False
        """Whether a task runs now during which no other task may start."""
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.waiting: list[int] = []
        """The threads that wait for memory, each as the number of its run. Threads are only notified if this list is
        not empty, because notifying costs much more than taking the lock."""
        self.runs = 0
        """Number of runs so far that have used this account."""
        self.caches: list[tuple[int, CachedMemory]] = []
        """Caches that count against the budget, each with the number of the run that added it."""
        self.distinct_caches: tuple[CachedMemory, ...] = ()
        """The caches in `caches`, each only once."""
        self.max_cached = 0
        """Maximum bytes that all caches together may hold."""

    def cached_bytes(self) -> int:
        """Return the bytes that caches hold for reuse now."""
        return sum(c.cached for c in self.distinct_caches)


class CachedMemory(Protocol):
    """Memory that is cached for reuse and can be freed at any moment, such as a `BufferPool` or page-locked blocks."""

    @property
    def cached(self) -> int:
        """Bytes that are now cached for reuse."""
        ...

    @property
    def max_bytes(self) -> int:
        """Maximum number of bytes that may be cached for reuse."""
        ...

    def clear(self) -> None:
        """Free the cached memory."""
        ...


class MemoryBudget:
    """Limit on one kind of memory (host or GPU), which makes work wait until its memory is free. Thread-safe.

    Batches reserve bytes in the order in which they were requested; tasks (chunks of work) reserve bytes while they
    run. Both wait until their bytes fit, but not forever: the oldest batch is always admitted, and so is a task if no
    other task runs. Memory that is only cached for reuse is freed if a reservation needs it. Several runs can share one
    budget: batches of a run that started later count as younger than all batches of earlier runs.

    `BatchBudget` creates one per run and kind of memory; the engine closes it when the run has ended."""

    def __init__(self, limit: int, for_work: float = 0.0, *, beside: MemoryBudget | None = None) -> None:
        """Batches together may reserve ``limit`` bytes, minus the share ``for_work``; further batches wait. With
        ``beside``, this budget uses the account of that other budget, and ignores both arguments."""
        self._account: _Account = _Account(limit, for_work) if beside is None else beside._account
        self.peak = 0
        """Maximum number of bytes that all runs with this budget have reserved at a time. Sampled when this run
        reserves or releases bytes."""
        self.waited = 0.0
        """Seconds for which batches and tasks of this run waited for memory, added over threads."""
        self._own = 0
        """Bytes that this run alone has reserved."""
        self._stopped = self._closed = False
        with self._account.lock:
            self._run = self._account.runs
            self._account.runs += 1

    @property
    def limit(self) -> int:
        """Bytes that may be reserved, by all runs together."""
        return self._account.limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._account.limit = limit

    @property
    def used(self) -> int:
        """Bytes that all runs together have reserved now."""
        return self._account.used

    def reserve(self, owner: tuple[int, ...], nbytes: int, *, wait: bool = True) -> None:
        """Set the reservation of batch ``owner`` to ``nbytes``; with ``wait``, wait until they fit. ``owner``: number
        of the batch, and of its parts if it was cut. Raises Closed if the run was stopped."""
        account = self._account
        owner = self._run, *owner
        with account.lock:
            more = nbytes - account.reserved.get(owner, 0)
            room = account.limit - int(account.limit * account.for_work)
            if wait:
                self._wait(
                    lambda: (
                        min(account.reserved, default=owner) >= owner
                        or (self._is_first and account.by_batches + more <= room and self._fits(more))
                    )
                )
            if self._closed:
                return
            account.reserved[owner] = nbytes
            account.by_batches += more
            self._add(more)

    def release(self, owner: tuple[int, ...]) -> None:
        """Release the reservation of batch ``owner``, which has left the engine."""
        with self._account.lock:
            freed = self._account.reserved.pop((self._run, *owner), 0)
            self._account.by_batches -= freed
            self._add(-freed)

    def release_all(self, batch: tuple[int, ...]) -> None:
        """Release the reservations of a batch and of all parts into which it was cut."""
        with self._account.lock:
            prefix = (self._run, *batch)
            for owner in [o for o in self._account.reserved if o[: len(prefix)] == prefix]:
                self.release(owner[1:])

    @contextmanager
    def task(self, nbytes: int) -> Iterator[None]:
        """Context manager around one task (a chunk of work): wait until ``nbytes`` fit, and reserve them while the task
        runs. Raises Closed if the run was stopped."""
        account = self._account
        with account.lock:
            self._wait(
                lambda: not account.exclusive and (account.tasks == 0 or (self._is_first and self._fits(nbytes)))
            )
            account.tasks += 1
            self._add(nbytes)
        try:
            yield
        finally:
            with account.lock:
                account.tasks -= 1
                self._add(-nbytes)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Context manager inside `task`: wait until no other task runs, and let none start until it exits."""
        account = self._account
        with account.lock:
            account.tasks -= 1
            try:
                self._wait(lambda: not account.exclusive and account.tasks == 0)
            finally:
                account.tasks += 1
            account.exclusive = True
        try:
            yield
        finally:
            with account.lock:
                account.exclusive = False
                self._notify()

    def try_grow(self, nbytes: int, *, alone: bool) -> bool:
        """Reserve ``nbytes`` more for a running task that needs more than estimated. Never waits: returns False if they
        do not fit. A task for one sample (``alone``) may use the whole budget, whatever else is reserved."""
        with self._account.lock:
            if not self._fits(nbytes) and not alone:
                return False
            self._add(nbytes)
            return True

    def shrink(self, nbytes: int) -> None:
        """Release ``nbytes`` that `try_grow` has reserved for a task."""
        with self._account.lock:
            self._add(-nbytes)

    def add_cache(self, *caches: CachedMemory) -> None:
        """Let memory that is cached for reuse count against the budget until `close`. It is freed when a reservation
        needs the room."""
        with self._account.lock:
            self._set_caches([*self._account.caches, *((self._run, c) for c in caches)])

    def has_room(self, nbytes: int) -> bool:
        """Return whether ``nbytes`` more may be cached for reuse. Takes no lock, because destructors call it."""
        return self._account.used + self._account.cached_bytes() + nbytes <= self._account.limit

    def stop(self) -> None:
        """Make all threads of this run that wait for memory raise Closed, now and in future."""
        with self._account.lock:
            self._stopped = True
            self._account.changed.notify_all()

    def close(self) -> None:
        """End this run's use of the budget: release all its reservations, and remove its caches from the account."""
        account = self._account
        with account.lock:
            self._set_caches([(run, c) for run, c in account.caches if run != self._run])
            for owner in [o for o in account.reserved if o[0] == self._run]:
                account.by_batches -= account.reserved.pop(owner)
            self._add(-self._own)
            self._closed = True

    def _set_caches(self, caches: list[tuple[int, CachedMemory]]) -> None:
        self._account.caches = caches
        self._account.distinct_caches = tuple({id(c): c for _, c in caches}.values())
        self._account.max_cached = sum(c.max_bytes for c in self._account.distinct_caches)

    @property
    def _is_first(self) -> bool:
        """Whether no thread of an earlier run waits for memory."""
        return min(self._account.waiting, default=self._run) >= self._run

    def _fits(self, more: int) -> bool:
        return self._account.used + more <= self._account.limit

    def _add(self, nbytes: int) -> None:
        """Change the number of reserved bytes by ``nbytes``. Free caches if the limit would be exceeded."""
        if self._closed:
            return
        account = self._account
        self._own += nbytes
        account.used += nbytes
        self.peak = max(self.peak, account.used)
        if nbytes <= 0:
            self._notify()
        elif (
            account.used + account.max_cached > account.limit and account.used + account.cached_bytes() > account.limit
        ):
            for cache in account.distinct_caches:
                cache.clear()

    def _notify(self) -> None:
        if self._account.waiting:
            self._account.changed.notify_all()

    def _wait(self, ready: Callable[[], bool]) -> None:
        if not ready() and not self._stopped:
            began = time.perf_counter()
            self._account.waiting.append(self._run)
            try:
                self._account.changed.wait_for(lambda: self._stopped or ready())
            finally:
                self._account.waiting.remove(self._run)
            self.waited += time.perf_counter() - began
            self._notify()  # a later run may have waited until this thread was admitted
        if self._stopped:
            raise Closed


class SharedBudgets:
    """The memory budgets that the runs of one job in this process share; the runs may overlap. Each plan has budgets of
    its own: a job that splits samples has one plan before the split and one after it. Created by `SharedResources`;
    thread-safe."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, str], MemoryBudget] = {}
        self._lock = threading.Lock()

    def of(self, plan: object, name: str, limit: int, for_work: float = 0.0) -> MemoryBudget:
        """Return the budget of a new run for the memory ``name`` (host or device) of ``plan``. The plan must live as
        long as this object."""
        with self._lock:
            first = self._first.setdefault((id(plan), name), MemoryBudget(limit, for_work))
        return MemoryBudget(limit, for_work, beside=first)


class Reservation:
    """The memory that one task (a chunk of work) may allocate: what it reserved at the start, and more while the budget
    has room. Created and closed by the thread that runs the task. Kernels allocate through `empty`."""

    def __init__(
        self, budget: MemoryBudget, reserved: int, output: OutputSlice | None = None,
        fresh: Callable[[int, Any], npt.NDArray[Any]] = host_empty,
    ) -> None:  # fmt: skip
        """``reserved``: bytes that the task has already reserved. ``output``: the slice of the batch's output arrays
        that the task fills, if any. ``fresh(n, dtype)`` creates all other arrays."""
        self._budget = budget
        self._reserved = reserved
        self._output = output
        self._fresh = fresh
        self._grown = 0
        self._used = 0
        self._samples = 0
        self.for_output = True
        """Whether the running kernel computes an output of the step, which may go into the batch's output array."""

    def start_pass(self, samples: int) -> None:
        """Start counting the allocations of a new pass over ``samples`` samples, from zero."""
        self._samples = samples
        self._used = 0

    def keep_only(self, live: int) -> None:
        """Count only ``live`` bytes as allocated: a kernel has ended, and its other allocations were freed."""
        self._used = live

    def empty(self, n: int, dtype: Any) -> npt.NDArray[Any]:
        """Return an uninitialised array of ``n`` elements, whose bytes count against the task's reservation. Raises
        OverBudgetError if the array does not fit."""
        placed = self._output.take(n, dtype) if self._output is not None and self.for_output else None
        if placed is not None:  # the batch has reserved the memory of its outputs
            return placed
        needed = self._used + n * np.dtype(dtype).itemsize
        if needed > self._budget.limit:
            raise OverBudgetError(f"it needs {size(needed)}, the budget is {size(self._budget.limit)}")
        more = needed - self._reserved - self._grown
        if more > 0:
            if not self._budget.try_grow(more, alone=self._samples <= 1):
                raise OverBudgetError(f"it needs {size(needed)}, which does not fit next to the memory of other work")
            self._grown += more
        self._used = needed
        return self._fresh(n, dtype)

    def close(self) -> None:
        """Release what the task has reserved in addition to its initial reservation; the task has ended."""
        self._budget.shrink(self._grown)
        self._grown = 0
