"""Let a GPU read containers without a copy on the host: windows of mapped files are registered with CUDA when a run
first needs them, and the GPU gathers records directly from the page cache.

The engine creates the lenders (`lender_for`) and closes them; `extents.payload` borrows from them.
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
"""Values of ``pipeline.upload``: how bytes that were read get to a GPU.

``copy`` uploads a batch at a time, through page-locked memory. ``pieces`` uploads pieces of a few megabytes while the
rest is read (`ops.gpu.uploads`). With ``registered`` the GPU gathers records of containers (such as TFRecord files)
from mapped files that are registered with CUDA; single files are uploaded as with ``pieces``. ``auto`` does the same
for single files, and chooses for records (`upload_method_for`).
"""
UploadMethod = Literal["copy", "registered", "pieces"]
"""How the records of containers get to a GPU: copied by the host, read by the GPU from registered files, or in pieces;
see `Upload`."""

WINDOW = 256 << 20
"""Size in bytes of a window: a range of a mapped file that is registered with CUDA as a whole. Registering takes about
10 ms if the window is in the page cache."""
_MAX_WINDOWS = 4
"""Largest number of windows that are registered with CUDA for one batch. If a batch needs more, it is copied, and later
batches register the others. So the first batches of a shuffled data set need not wait until all of it is registered."""
_MIN_RESIDENT = 0.9
"""Share of a window's pages that must be in the page cache before the window is registered with CUDA. Reading more
pages from a disk for a few records would take too long."""
_IDLE_BATCHES = 8
"""Number of batches after which a window (range of a mapped file) that none of them used counts as idle and may be
unregistered. A window that was not in the page cache is checked again after this many batches."""
_SOON_BATCHES = 256
"""Limit in batches. If a window is needed again so soon after it was unregistered, records are spread over more windows
than may be registered at once. From then on, registered windows stay."""
_MAX_FAILURES = 3
"""Number of consecutive windows that CUDA may refuse to register; then no more are tried."""


@dataclass(slots=True)
class _Window:
    """A window: a range of a reader's mapped files that is registered with CUDA as a unit."""

    start: int
    size: int
    registered: bool = False
    rejection: str = ""
    """Reason for which the window can never be registered; empty if it can."""
    last: int = -_IDLE_BATCHES
    """Number of the last batch that used the window. If the window is not registered: of the last batch that checked
    whether it can be."""
    unregistered_at: int = -_SOON_BATCHES
    leases: weakref.WeakSet[RegisteredLease] = field(default_factory=weakref.WeakSet)


class _ReaderWindows:
    """All windows (ranges to register with CUDA) of one reader's mapped files. Created and used by `RegisteredFiles`,
    under its lock."""

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
                window.rejection = "a file was unpacked, or replaced while the job ran"

    def windows_of(self, offsets: I64, sizes: I64) -> list[_Window]:
        """Return the windows that hold the extents (``offsets``, ``sizes``) of records."""
        there = sizes > 0
        first, last = offsets[there] // WINDOW, (offsets[there] + sizes[there] - 1) // WINDOW
        if not len(first):
            return []
        numbers = set(np.unique(first).tolist())
        for a, b in zip(first[first != last].tolist(), last[first != last].tolist(), strict=True):
            numbers.update(range(a, b + 1))
        return [self.windows[k] for k in sorted(numbers)]


class RegisteredFiles:
    """Provides arrays over mapped files whose bytes the GPUs ``indices`` read from the page cache, without a copy by
    the host. At most ``limit`` bytes are registered with CUDA at a time; unused ranges are unregistered to make space.
    ``account(nbytes)`` is called when the number of registered bytes changes, ``told(method, nbytes)`` for each batch
    for which an array is provided. Several threads may call all methods. `close` ends it."""

    def __init__(
        self, indices: Sequence[int], limit: int, account: Callable[[int], None], told: Callable[[str, int], None],
        *, kept: bool = False,
    ) -> None:  # fmt: skip
        """``kept``: files stay registered for the next run of the pipeline when this run calls `close`."""
        self._device = indices[0]
        self._kept = kept
        self._limit = limit
        self._account = account
        self._told = told
        self._why_not = why_not(indices)
        self._areas: dict[int, _ReaderWindows] = {}
        self._used = 0
        self._clock = 0
        self._failures = 0
        self._scattered = False
        """Whether registered ranges stay registered until the end, because records are spread over more ranges than may
        be registered."""
        self._lock = threading.Lock()

    def begin(self, account: Callable[[int], None], told: Callable[[str, int], None]) -> None:
        """Start another run of the pipeline with the files that are still registered; ``account`` and ``told`` are that
        run's callbacks."""
        with self._lock:
            self._account(0)
            self._account, self._told = account, told
            self._account(self._used)

    def of(self, number: int) -> RegisteredFiles:
        """Return the provider of arrays for batch ``number``: this one, because all GPUs read the same memory."""
        return self

    def holds(self, mapped: Mapped, offsets: I64, sizes: I64) -> bool:
        """Whether the extents (offset, size) of ``mapped`` are registered with CUDA, and therefore in memory."""
        with self._lock:
            area = self._areas.get(id(mapped))
            return (
                area is not None and bool(area.windows) and all(w.registered for w in area.windows_of(offsets, sizes))
            )

    def lend(self, mapped: Mapped, offsets: I64, sizes: I64) -> U8 | str:
        """Return the files of ``mapped`` as an array from which a GPU can read the extents (offset, size) itself. If it
        cannot, return the reason why the host must copy them."""
        with self._lock:
            self._clock += 1
            lent = self._why_not or self._lent(mapped, offsets, sizes)
        if not isinstance(lent, str):
            self._told("registered", int(sizes.sum()))
        return lent

    def _lent(self, mapped: Mapped, offsets: I64, sizes: I64) -> U8 | str:
        area = self._areas.get(id(mapped))
        if area is None:
            area = self._areas[id(mapped)] = _ReaderWindows(mapped)
        if area.shared is None:
            return area.why_not
        needed = area.windows_of(offsets, sizes)
        for window in needed:
            window.last = self._clock if window.registered else window.last
        missing = [w for w in needed if not w.registered]
        for window in missing[:_MAX_WINDOWS]:
            why = self._register_window(area.shared, window, local=len(needed) <= _MAX_WINDOWS)
            if why:
                return why
        if len(missing) > _MAX_WINDOWS:
            return "being registered"
        lease = RegisteredLease(mapped.data, area.shared.base - mapped.data.ctypes.data, WINDOW)
        for window in needed:
            window.leases.add(lease)
        return lease.array()

    def _register_window(self, shared: Shared, window: _Window, *, local: bool) -> str:
        """Register ``window`` (a range of a mapped file) with CUDA. Return the reason if that is not possible, else an
        empty text. ``local``: the batch needs few windows, so that others may be unregistered for it."""
        if window.rejection:
            return window.rejection
        if self._clock - window.last < _IDLE_BATCHES:
            return "not in the page cache"
        if shared.resident(window.start, window.size) < _MIN_RESIDENT:
            window.last = self._clock
            return "not in the page cache"
        self._scattered |= self._clock - window.unregistered_at < _SOON_BATCHES
        if not self._has_space(window.size, local and not self._scattered):
            return f"pipeline.memory.host leaves {self._limit >> 20} MiB for registered files"
        try:
            register(shared.base + window.start, window.size, self._device)
        except Exception as e:  # whatever the CUDA error is, the host can copy instead
            window.rejection = f"cudaHostRegister: {e}"
            self._failures += 1
            if self._failures >= _MAX_FAILURES:
                self._why_not = window.rejection
            return window.rejection
        self._failures = 0
        window.registered, window.last = True, self._clock
        self._changed(window.size)
        return ""

    def _has_space(self, nbytes: int, may_unregister: bool) -> bool:
        """Whether ``nbytes`` more may be registered within the limit. If ``may_unregister``, idle windows are
        unregistered to make space."""
        if self._used + nbytes <= self._limit or nbytes > self._limit or not may_unregister:
            return self._used + nbytes <= self._limit
        idle = [(w.last, area, w) for area in self._areas.values() for w in area.windows
                if w.registered and self._clock - w.last >= _IDLE_BATCHES and not w.leases]  # fmt: skip
        for _, area, window in sorted(idle, key=lambda found: found[0]):
            if self._used + nbytes <= self._limit:
                break
            self._unregister(area, window)
        return self._used + nbytes <= self._limit

    def _unregister(self, area: _ReaderWindows, window: _Window) -> None:
        assert area.shared is not None
        unregister(area.shared.base + window.start, self._device)
        window.registered = False
        window.last, window.unregistered_at = self._clock - _IDLE_BATCHES, self._clock
        self._changed(-window.size)

    def _changed(self, nbytes: int) -> None:
        self._used += nbytes
        self._account(self._used)

    def close(self) -> None:
        """Stop providing arrays, and start to unregister all files in a background thread (`wait_until_released`). The
        device must have finished with all arrays; the host may still read them."""
        if self._kept:
            return
        with self._lock:
            self._why_not = "the run is over"
            areas, self._areas = list(self._areas.values()), {}
        if areas:
            _do_in_background(lambda: self._unregister_all(areas))

    def _unregister_all(self, areas: Sequence[_ReaderWindows]) -> None:
        for area in areas:
            for window in area.windows:
                if window.registered:
                    with contextlib.suppress(Exception):  # the GPU has failed, which has ended the run already
                        self._unregister(area, window)
            if area.shared is not None:
                area.shared.close()


class _Release(threading.Thread):
    """Thread that unregisters and unmaps files, which takes a tenth of a second for some gigabytes. The process waits
    for it at its end."""


def _do_in_background(work: Callable[[], None]) -> None:
    """Do ``work`` in a thread of its own."""
    try:
        _Release(target=work, name="give back").start()
    except RuntimeError:  # the interpreter exits, and starts no more threads
        work()


def wait_until_released() -> None:
    """Wait until the files of all closed `RegisteredFiles` are unregistered."""
    for thread in threading.enumerate():
        if isinstance(thread, _Release):
            thread.join()


class RegistrationCache:
    """Files that stay registered with CUDA between runs of a graph in this process. The program or job that starts the
    runs creates it; one run at a time uses it. With ``keep``, files stay registered until the process ends, for runs
    over other records."""

    def __init__(self, *, repeatedly: bool = True, keep: bool = False) -> None:
        self.repeatedly = repeatedly
        """Whether records are read repeatedly, as in Python programs and benchmarks; a job reads each record once."""
        self._keep = keep
        self._files: RegisteredFiles | None = None

    def files(
        self, indices: Sequence[int], limit: int, account: Callable[[int], None], told: Callable[[str, int], None]
    ) -> RegisteredFiles:
        """Return the `RegisteredFiles` for one run, which must be the only run at the time. The parameters are those of
        `RegisteredFiles`."""
        if self._files is None or not self._keep:
            self._files = RegisteredFiles(indices, limit, account, told, kept=self._keep)
        else:
            self._files.begin(account, told)
        return self._files


COPIED_FASTER, PIECES_FASTER = 4, 12
"""Numbers of threads from which it is faster that the host uploads records of containers than that a GPU gathers them
from registered files: COPIED_FASTER if each record is read once, PIECES_FASTER if records are read repeatedly.

Once: registering a gigabyte takes 55 ms, during which the driver blocks all other threads (one H200, a job from
TFRecord to JPEGs with 16 threads: 126,000 images/s copied, 84,000 registered); copying 1,024 JPEGs takes 30 to 37 ms of
one core. Repeatedly, with files registered before (same machine, TFRecord): 16 threads 366,800 images/s in pieces,
275,600 registered; 8 threads 214,200 in pieces, 294,700 registered."""


def upload_method_for(upload: Upload, threads: int, *, repeatedly: bool) -> tuple[UploadMethod, str]:
    """Choose the upload method for records of containers. Return it with the reason. ``repeatedly``: records may be
    read more than once."""
    if upload != "auto":
        return upload, f"upload: {upload}"
    if repeatedly:
        few = threads < PIECES_FASTER
        reason = f"{'fewer than' if few else 'at least'} {PIECES_FASTER} threads, records read again"
        return ("registered" if few else "pieces"), reason
    few = threads < COPIED_FASTER
    return ("registered" if few else "copy"), (
        f"{'fewer than' if few else 'at least'} {COPIED_FASTER} threads, each record read once"
    )


def lender_for(
    method: UploadMethod, indices: Sequence[int], limit: int, account: Callable[[int], None],
    told: Callable[[str, int], None], registrations: RegistrationCache | None = None,
) -> RegisteredFiles | None:  # fmt: skip
    """Return the object through which the GPUs ``indices`` read records of containers; None if the host copies them.
    ``registrations`` holds files that earlier runs of the graph have registered; the other parameters are those of
    `RegisteredFiles`."""
    return (
        (registrations or RegistrationCache()).files(indices, limit, account, told) if method == "registered" else None
    )


def describe(upload: Upload, indices: Sequence[int], threads: int, *, repeatedly: bool) -> str:
    """Describe, for the report, how records of containers will be uploaded to the GPUs ``indices``, and why."""
    method, reason = upload_method_for(upload, threads, repeatedly=repeatedly)
    if method == "registered":
        obstacle = why_not(indices)
        if obstacle:
            return f"copied by the host: {obstacle}"
        return f"gathered by the GPU out of registered files ({reason})"
    return f"copied by the host{', in pieces' if method == 'pieces' else ''} ({reason})"
