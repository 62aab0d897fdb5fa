"""Containers on the way to a GPU without a copy on the host. Parts of mapped files are registered with CUDA as
a run touches them, and the GPU gathers records out of the page cache.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ...ops.gpu.readable_by_gpu import RegisteredLease
from ...ops.gpu.registered import register, unregister, why_not
from .extents import I64, U8, Mapped, Shared

Upload = Literal["auto", "copy", "registered", "pieces"]
"""How bytes come to a GPU. Single files in pieces, a few megabytes at a time while the rest is read
(`ops.gpu.uploads`), but for ``copy``: a batch at a time, into page-locked memory. Containers: ``copy``; ``pieces``; or
gathered by the GPU out of files that are ``registered``. ``auto``: by `way_for`."""
Way = Literal["copy", "registered", "pieces"]
"""Way of containers to a GPU."""

WINDOW = 256 << 20
"""Bytes that are registered at a time: some 10 ms where they are in the page cache."""
_AT_ONCE = 4
"""Windows that one batch may wait for. What else it needs comes with the next ones, so that the first batches of a
shuffled data set do not wait until all of it is registered."""
_RESIDENT = 0.9
"""Part of a window that must be in the page cache: to read the rest from a disk, for a few records, takes too long."""
_PATIENCE = 8
"""Batches after which a window counts as idle, and one that was not resident is looked at again."""
_SOON = 256
"""Batches within which a window that was given back must not be wanted again: else the order jumps about in more than
may be registered, and what is registered stays."""
_REFUSALS = 3
"""Windows in a row that CUDA refuses before nothing more is tried."""


@dataclass(slots=True)
class _Window:
    """A part of the files that is registered as a whole."""

    start: int
    size: int
    registered: bool = False
    refused: str = ""
    """Why it never will be."""
    last: int = -_PATIENCE
    """The batch that wanted it last, or, where it is not registered, when it was looked at."""
    given_back: int = -_SOON
    leases: weakref.WeakSet[RegisteredLease] = field(default_factory=weakref.WeakSet)


class _Area:
    """The windows of the files of one reader."""

    def __init__(self, mapped: Mapped) -> None:
        self.mapped = mapped
        self.shared: Shared | None = None
        self.why_not = ""
        self.windows: list[_Window] = []
        try:
            self.shared = mapped.share()
        except OSError as e:
            self.why_not = str(e)
            return
        length = self.shared.length
        self.windows = [_Window(at, min(WINDOW, length - at)) for at in range(0, length, WINDOW)]
        for low, high in self.shared.missing:
            for window in self.windows[low // WINDOW : (high - 1) // WINDOW + 1]:
                window.refused = "a file was unpacked, or replaced while the job ran"

    def wanted(self, offsets: I64, sizes: I64) -> list[_Window]:
        """The windows that hold the extents."""
        there = sizes > 0
        first, last = offsets[there] // WINDOW, (offsets[there] + sizes[there] - 1) // WINDOW
        if not len(first):
            return []
        numbers = set(np.unique(first).tolist())
        for a, b in zip(first[first != last].tolist(), last[first != last].tolist(), strict=True):
            numbers.update(range(a, b + 1))
        return [self.windows[k] for k in sorted(numbers)]


class RegisteredFiles:
    """Lends views of mapped files whose bytes the GPUs ``indices`` read out of the page cache.

    At most ``limit`` bytes are registered at a time; unused parts are given back for the next ones.
    ``account(nbytes)`` gets how much is registered, ``told(way, nbytes)`` how the bytes of a batch travel and why.
    May be used by several threads.
    """

    def __init__(
        self, indices: Sequence[int], limit: int, account: Callable[[int], None], told: Callable[[str, int], None],
        *, kept: bool = False,
    ) -> None:  # fmt: skip
        """``kept``: what is registered stays so when a run is over, for the next one."""
        self._device = indices[0]
        self._kept = kept
        self._limit = limit
        self._account = account
        self._told = told
        self._why_not = why_not(indices)
        self._areas: dict[int, _Area] = {}
        self._used = 0
        self._clock = 0
        self._refusals = 0
        self._scattered = False
        """Nothing is given back before the end."""
        self._lock = threading.Lock()

    def begin(self, account: Callable[[int], None], told: Callable[[str, int], None]) -> None:
        """Another run goes on with what is registered; ``account`` and ``told`` are its own."""
        with self._lock:
            self._account(0)
            self._account, self._told = account, told
            self._account(self._used)

    def of(self, number: int) -> RegisteredFiles:
        """Lends for batch ``number``: all GPUs read the same memory."""
        return self

    def holds(self, mapped: Mapped, offsets: I64, sizes: I64) -> bool:
        """The extents are registered, and therefore in memory."""
        with self._lock:
            area = self._areas.get(id(mapped))
            return area is not None and bool(area.windows) and all(w.registered for w in area.wanted(offsets, sizes))

    def lend(self, mapped: Mapped, offsets: I64, sizes: I64) -> U8 | str:
        """The files of ``mapped`` as an array whose extents a GPU can fetch, or why they are to be copied."""
        with self._lock:
            self._clock += 1
            lent = self._why_not or self._lent(mapped, offsets, sizes)
        if not isinstance(lent, str):
            self._told("registered", int(sizes.sum()))
        return lent

    def _lent(self, mapped: Mapped, offsets: I64, sizes: I64) -> U8 | str:
        area = self._areas.get(id(mapped))
        if area is None:
            area = self._areas[id(mapped)] = _Area(mapped)
        if area.shared is None:
            return area.why_not
        wanted = area.wanted(offsets, sizes)
        for window in wanted:
            window.last = self._clock if window.registered else window.last
        missing = [w for w in wanted if not w.registered]
        for window in missing[:_AT_ONCE]:
            why = self._obstacle(area.shared, window, local=len(wanted) <= _AT_ONCE)
            if why:
                return why
        if len(missing) > _AT_ONCE:
            return "being registered"
        lease = RegisteredLease(mapped.data, area.shared.base - mapped.data.ctypes.data, WINDOW)
        for window in wanted:
            window.leases.add(lease)
        return lease.array()

    def _obstacle(self, shared: Shared, window: _Window, *, local: bool) -> str:
        """Register ``window``, or say what keeps it from being registered."""
        if window.refused:
            return window.refused
        if self._clock - window.last < _PATIENCE:
            return "not in the page cache"
        if shared.resident(window.start, window.size) < _RESIDENT:
            window.last = self._clock
            return "not in the page cache"
        self._scattered |= self._clock - window.given_back < _SOON
        if not self._has_room(window.size, local and not self._scattered):
            return f"pipeline.memory.host leaves {self._limit >> 20} MiB for registered files"
        try:
            register(shared.base + window.start, window.size, self._device)
        except Exception as e:  # CUDARuntimeError; whatever it is, copying does without
            window.refused = f"cudaHostRegister: {e}"
            self._refusals += 1
            if self._refusals >= _REFUSALS:
                self._why_not = window.refused
            return window.refused
        self._refusals = 0
        window.registered, window.last = True, self._clock
        self._changed(window.size)
        return ""

    def _has_room(self, nbytes: int, may_give_back: bool) -> bool:
        """There is room for ``nbytes`` more, or was made."""
        if self._used + nbytes <= self._limit or nbytes > self._limit or not may_give_back:
            return self._used + nbytes <= self._limit
        idle = [(w.last, area, w) for area in self._areas.values() for w in area.windows
                if w.registered and self._clock - w.last >= _PATIENCE and not w.leases]  # fmt: skip
        for _, area, window in sorted(idle, key=lambda found: found[0]):
            if self._used + nbytes <= self._limit:
                break
            self._give_back(area, window)
        return self._used + nbytes <= self._limit

    def _give_back(self, area: _Area, window: _Window) -> None:
        assert area.shared is not None
        unregister(area.shared.base + window.start, self._device)
        window.registered = False
        window.last, window.given_back = self._clock - _PATIENCE, self._clock
        self._changed(-window.size)

    def _changed(self, nbytes: int) -> None:
        self._used += nbytes
        self._account(self._used)

    def close(self) -> None:
        """Lend no more, and begin to give everything back, beside whatever comes next (`settle`). The device must be
        done with all that was lent; the host may still look at it."""
        if self._kept:
            return
        with self._lock:
            self._why_not = "the run is over"
            areas, self._areas = list(self._areas.values()), {}
        if areas:
            _do_beside(lambda: self._give_all_back(areas))

    def _give_all_back(self, areas: Sequence[_Area]) -> None:
        for area in areas:
            for window in area.windows:
                if window.registered:
                    with contextlib.suppress(Exception):  # of a GPU that has failed: it ended the run already
                        self._give_back(area, window)
            if area.shared is not None:
                area.shared.close()


_giving: set[threading.Thread] = set()
_lock = threading.Lock()


def _do_beside(work: Callable[[], None]) -> None:
    """Do ``work`` in a thread of its own, which the process waits for when it ends. Unregistering and unmapping takes a
    tenth of a second for some gigabytes."""

    def body() -> None:
        try:
            work()
        finally:
            with _lock:
                _giving.discard(thread)

    thread = threading.Thread(target=body, name="give back")
    with _lock:
        _giving.add(thread)
    try:
        thread.start()
    except RuntimeError:  # the interpreter ends, and begins no threads any more
        body()


def settle() -> None:
    """Wait until all is given back of lenders that were closed."""
    with _lock:
        threads = list(_giving)
    for thread in threads:
        thread.join()


class Uploads:
    """Files that a run registers, and how its records are read. With ``keep`` they stay registered for the next run of
    the same graph over other records, in this process; then nothing is given back before the process ends."""

    def __init__(self, *, again: bool = True, keep: bool = False) -> None:
        self.again = again
        """Records may be read again and again, as programs and benchmarks do; jobs read each once."""
        self._keep = keep
        self._files: RegisteredFiles | None = None

    def files(
        self, indices: Sequence[int], limit: int, account: Callable[[int], None], told: Callable[[str, int], None]
    ) -> RegisteredFiles:
        """For a run, the only one at the time; the rest is as of `RegisteredFiles`."""
        if self._files is None or not self._keep:
            self._files = RegisteredFiles(indices, limit, account, told, kept=self._keep)
        else:
            self._files.begin(account, told)
        return self._files


COPIED_FASTER, PIECES_FASTER = 4, 12
"""Threads from which the host takes records of containers to a GPU faster than the GPU gathers them out of registered
files: if each is read once, and if they are read again and again.

Once: registering a gigabyte takes 55 ms, in which the driver keeps all other threads waiting (one H200, a job from
TFRecord to JPEGs with 16 threads: 126,000 images/s copied, 84,000 registered); copying 1,024 JPEGs takes 30 to 37 ms of
one core. Again, files registered before (the same machine, TFRecord): 16 threads
366,800 in pieces, 275,600 registered; 8 threads 214,200 in pieces, 294,700 registered."""


def way_for(upload: Upload, threads: int, *, again: bool) -> tuple[Way, str]:
    """The way of containers' records to a GPU, and why. ``again``: they may be read again and again."""
    if upload != "auto":
        return upload, f"upload: {upload}"
    if again:
        few = threads < PIECES_FASTER
        reason = f"{'fewer than' if few else 'at least'} {PIECES_FASTER} threads, records read again"
        return ("registered" if few else "pieces"), reason
    few = threads < COPIED_FASTER
    return ("registered" if few else "copy"), (
        f"{'fewer than' if few else 'at least'} {COPIED_FASTER} threads, each record read once"
    )


def lender_for(
    way: Way, indices: Sequence[int], limit: int, account: Callable[[int], None], told: Callable[[str, int], None],
    uploads: Uploads | None = None,
) -> RegisteredFiles | None:  # fmt: skip
    """The part that lends the GPUs ``indices`` views of containers; None if the host is to copy all of them.
    ``uploads`` has what earlier runs of the graph have left; the rest is as in `RegisteredFiles`."""
    return (uploads or Uploads()).files(indices, limit, account, told) if way == "registered" else None


def describe(upload: Upload, indices: Sequence[int], threads: int, *, again: bool) -> str:
    """How records of containers will come to the GPUs ``indices``, in words, and why."""
    way, reason = way_for(upload, threads, again=again)
    if way == "registered":
        obstacle = why_not(indices)
        if obstacle:
            return f"copied by the host: {obstacle}"
        return f"gathered by the GPU out of registered files ({reason})"
    return f"copied by the host{', in pieces' if way == 'pieces' else ''} ({reason})"
