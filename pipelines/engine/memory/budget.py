"""Memory: how much a run may hold on the host and on a GPU, and the account by which work is let in."""

from __future__ import annotations

import os
import re
import resource
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.batch import host_empty
from ...wording import size
from ..channel import Closed
from .shared_outputs import Band

HOST_SHARE, GPU_SHARE = 0.5, 0.8
"""Parts of the host's memory and of the GPU's free memory that a run may hold by default."""

Limit = int | float | None
"""Bytes; or a share (a float) of what there is; None for the default share."""

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]i?B|B|%)?")
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}  # fmt: skip
ALLOWED = "auto, a number of bytes such as 512MiB or 4GiB, or a share such as 50%"


class OverBudgetError(MemoryError):
    """An allocation would take a run over its budget."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What a run may hold."""

    host: Limit = None
    """Of the memory that this process may use."""
    gpu: Limit = None
    """Of the memory that is free on the GPU when the run starts."""

    def host_bytes(self) -> int:
        """The budget on this machine."""
        return _resolve(self.host, HOST_SHARE, host_memory())

    def gpu_bytes(self, free: int) -> int:
        """The budget on a GPU with ``free`` bytes."""
        return _resolve(self.gpu, GPU_SHARE, free)

    def describe(self, device: str) -> dict[str, Any]:
        """For plans: the host's budget in bytes, the GPU's as it was given (what is free is known when it runs)."""
        found: dict[str, Any] = {"host": self.host_bytes()}
        if device != "cpu":
            share = GPU_SHARE if self.gpu is None else self.gpu
            found["gpu"] = f"{share:.0%} of what is free" if isinstance(share, float) else share
        return found


def _resolve(limit: Limit, default: float, whole: int) -> int:
    limit = default if limit is None else limit
    return max(1, int(limit * whole) if isinstance(limit, float) else limit)


def parse_limit(value: Any) -> Limit:
    """``auto``, ``4GiB``, ``50%`` or a number of bytes. Raises ValueError for anything else."""
    if value == "auto" or value is None:
        return None
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        found = _SIZE.fullmatch(str(value))
        if found and found[2] == "%" and 0 < float(found[1]) <= 100:
            return float(found[1]) / 100
        number = int(float(found[1]) * _UNITS[found[2] or "B"]) if found and found[2] != "%" else 0
        if 0 < number < 1 << 63:
            return number
    raise ValueError(f"must be {ALLOWED}, got {value!r}")


def memory_of(given: Mapping[str, Any] | None) -> Memory:
    """``{"host": "4GiB", "gpu": "50%"}`` as the Python API takes it. Raises ValueError."""
    unknown = set(given or {}) - {"host", "gpu"}
    if unknown:
        raise ValueError(f"memory has the keys host and gpu, got {', '.join(sorted(map(repr, unknown)))}")
    limits = {}
    for key, value in (given or {}).items():
        try:
            limits[key] = parse_limit(value)
        except ValueError as e:
            raise ValueError(f"memory[{key!r}] {e}") from None
    return Memory(**limits)


def host_memory() -> int:
    """Bytes that this process may use: the machine's, or the smallest limit of its control groups and ``ulimit -v``."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_space != resource.RLIM_INFINITY:
        found.append(address_space)
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in ("", "memory"):
                found += _group_limits(controllers, path)
    return min(found)


def _group_limits(controllers: str, path: str) -> Iterator[int]:
    """Limits of a control group and of all above it, version 2 (no controllers named) or 1."""
    root = Path("/sys/fs/cgroup") / controllers
    name = "memory.limit_in_bytes" if controllers else "memory.max"
    here = root / path.lstrip("/")
    for folder in (here, *here.parents):
        with suppress(OSError, ValueError):  # "max", or a group that cannot be seen from inside a container
            yield int((folder / name).read_text())
        if folder == root:
            return


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
    """What one piece of work may allocate: what was taken for it, and more as long as the account has room."""

    def __init__(self, ledger: Ledger, taken: int, band: Band | None = None) -> None:
        self._ledger = ledger
        self._taken = taken
        self._band = band
        self._grown = 0
        self._used = 0
        self._samples = 0

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
        placed = None if self._band is None else self._band.take(n, dtype)
        return host_empty(n, dtype) if placed is None else placed

    def close(self) -> None:
        """The work is done."""
        self._ledger.give_back(self._grown)
        self._grown = 0
