"""Memory: how much a run may hold on the host and on a GPU, and the account by which work is let in."""

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
from .output_slices import Band

FOR_WORK = 0.25
"""Share of the host's budget that is kept free for chunks while workers are busy with them."""


class OverBudgetError(MemoryError):
    """An allocation would take a run over its budget."""


class _Account:
    """The part of ledgers that several runs have in common."""

    def __init__(self, limit: int, for_work: float) -> None:
        self.limit = limit
        self.for_work = for_work
        self.used = 0
        self.held: dict[tuple[int, ...], int] = {}
        """By run, and by its owners."""
        self.holding = 0
        self.running = 0
        self.alone = False
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.waiting: list[int] = []
        """The runs of threads that wait for room. Mostly there are none, and a condition costs much more than its
        lock."""
        self.runs = 0
        self.kept: list[tuple[int, Idle]] = []
        """Memory that is kept to be used again, by run."""
        self.idle: tuple[Idle, ...] = ()
        """The same, each once."""
        self.most_idle = 0

    def idle_bytes(self) -> int:
        """Bytes that are only kept to be used again."""
        return sum(i.idle for i in self.idle)


class Idle(Protocol):
    """Memory that waits to be used again."""

    @property
    def idle(self) -> int:
        """Bytes."""
        ...

    @property
    def most(self) -> int:
        """Bytes that it may come to."""
        ...

    def clear(self) -> None:
        """Let go of it."""
        ...


class Ledger:
    """The account of one kind of memory. Batches in flight hold bytes in the order in which they came; chunks of work
    take bytes for as long as they run. Both wait until there is room, but never for ever: the oldest batch is always
    let in, and so is a piece of work when no other is running. What is only kept to be used again is let go of when
    there is no room.

    Several runs may have ledgers of one account: batches of one that began later are younger than all of it."""

    def __init__(self, limit: int, for_work: float = 0.0, *, beside: Ledger | None = None) -> None:
        """Batches wait while they hold all of ``limit`` but the share ``for_work``; both are those of ``beside``, a
        ledger of the same account, if there is one."""
        self._account: _Account = _Account(limit, for_work) if beside is None else beside._account
        self.peak = 0
        """Bytes on the account, at most while this run put some there."""
        self.waited = 0.0
        """Seconds that work was held back."""
        self._own = 0
        """Bytes of this run."""
        self._stopped = self._closed = False
        with self._account.lock:
            self._run = self._account.runs
            self._account.runs += 1

    @property
    def limit(self) -> int:
        """Bytes that there may be."""
        return self._account.limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._account.limit = limit

    @property
    def used(self) -> int:
        """Bytes on the account now."""
        return self._account.used

    def hold(self, owner: tuple[int, ...], nbytes: int, *, wait: bool = True) -> None:
        """Batch ``owner`` (its number and part) holds ``nbytes`` from now on, instead of what it held. Raises Closed
        when the run was stopped."""
        account = self._account
        owner = self._run, *owner
        with account.lock:
            more = nbytes - account.held.get(owner, 0)
            room = account.limit - int(account.limit * account.for_work)
            if wait:
                self._wait(
                    lambda: (
                        min(account.held, default=owner) >= owner
                        or (self._first and account.holding + more <= room and self._fits(more))
                    )
                )
            if self._closed:
                return
            account.held[owner] = nbytes
            account.holding += more
            self._add(more)

    def release(self, owner: tuple[int, ...]) -> None:
        """Batch ``owner`` is gone."""
        with self._account.lock:
            freed = self._account.held.pop((self._run, *owner), 0)
            self._account.holding -= freed
            self._add(-freed)

    def release_all(self, batch: tuple[int, ...]) -> None:
        """The batch is gone with all parts that it was cut into."""
        with self._account.lock:
            whole = (self._run, *batch)
            for owner in [o for o in self._account.held if o[: len(whole)] == whole]:
                self.release(owner[1:])

    @contextmanager
    def work(self, nbytes: int) -> Iterator[None]:
        """Take ``nbytes`` while a piece of work runs. Raises Closed when the run was stopped."""
        account = self._account
        with account.lock:
            self._wait(lambda: not account.alone and (account.running == 0 or (self._first and self._fits(nbytes))))
            account.running += 1
            self._add(nbytes)
        try:
            yield
        finally:
            with account.lock:
                account.running -= 1
                self._add(-nbytes)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Inside of `work`: once more, while no other piece of work runs."""
        account = self._account
        with account.lock:
            account.running -= 1
            try:
                self._wait(lambda: not account.alone and account.running == 0)
            finally:
                account.running += 1
            account.alone = True
        try:
            yield
        finally:
            with account.lock:
                account.alone = False
                self._notify()

    def grow(self, nbytes: int, *, alone: bool) -> bool:
        """Take ``nbytes`` more for a piece of work that turns out larger than foreseen, without waiting; False where
        they do not fit. A sample ``alone`` may have all of the budget, whatever else is held."""
        with self._account.lock:
            if not self._fits(nbytes) and not alone:
                return False
            self._add(nbytes)
            return True

    def give_back(self, nbytes: int) -> None:
        """The opposite of `grow`."""
        with self._account.lock:
            self._add(-nbytes)

    def keeps(self, *idle: Idle) -> None:
        """Memory that waits to be used again is on the account, too, as long as there is room: until `close`."""
        with self._account.lock:
            self._keep([*self._account.kept, *((self._run, i) for i in idle)])

    def spare(self, nbytes: int) -> bool:
        """There is room for ``nbytes`` more that wait to be used again. Takes no lock, as destructors ask."""
        return self._account.used + self._account.idle_bytes() + nbytes <= self._account.limit

    def stop(self) -> None:
        """Wake everybody of this run with Closed."""
        with self._account.lock:
            self._stopped = True
            self._account.changed.notify_all()

    def close(self) -> None:
        """The run is over: nothing of it is on the account any more, nor what it `keeps`."""
        account = self._account
        with account.lock:
            self._keep([(run, i) for run, i in account.kept if run != self._run])
            for owner in [o for o in account.held if o[0] == self._run]:
                account.holding -= account.held.pop(owner)
            self._add(-self._own)
            self._closed = True

    def _keep(self, kept: list[tuple[int, Idle]]) -> None:
        self._account.kept = kept
        self._account.idle = tuple({id(i): i for _, i in kept}.values())
        self._account.most_idle = sum(i.most for i in self._account.idle)

    @property
    def _first(self) -> bool:
        """Nothing of an earlier run waits."""
        return min(self._account.waiting, default=self._run) >= self._run

    def _fits(self, more: int) -> bool:
        return self._account.used + more <= self._account.limit

    def _add(self, nbytes: int) -> None:
        if self._closed:
            return
        account = self._account
        self._own += nbytes
        account.used += nbytes
        self.peak = max(self.peak, account.used)
        if nbytes <= 0:
            self._notify()
        elif account.used + account.most_idle > account.limit and account.used + account.idle_bytes() > account.limit:
            for kept in account.idle:
                kept.clear()

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
            self._notify()  # a later run may have waited for this
        if self._stopped:
            raise Closed


class Accounts:
    """The accounts of the runs of one job in this process, which may overlap: each plan has one, as what comes before
    samples are split and what comes after it do."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, str], Ledger] = {}
        self._lock = threading.Lock()

    def of(self, plan: object, name: str, limit: int, for_work: float = 0.0) -> Ledger:
        """A ledger of the account ``name`` of ``plan``, which must live as long as this."""
        with self._lock:
            first = self._first.setdefault((id(plan), name), Ledger(limit, for_work))
        return Ledger(limit, for_work, beside=first)


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
