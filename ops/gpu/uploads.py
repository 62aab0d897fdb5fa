"""Uploads: bytes of a batch go to a GPU piece by piece, while the rest of it is read or copied.

A piece is page-locked memory that is used again as soon as the device has what was in it. There are a few for each
thread that reads, so that they stay in the processor's cache: what is read goes through the machine's memory once,
where a block as large as the batch would be written to it and read again; and little memory is to be page-locked, which
takes up to 0.7 s a gigabyte, in which the driver launches nothing.

Of files the host keeps what it always looks at (`readers.fetch.header_bytes_cpu`), and fetches the rest back where it
is asked for (`readable_by_gpu.show`). Records of containers it sees where they lie, in mapped files.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt

from ..batch import I64, Batch
from ..interfaces import Lane
from . import driver_calls
from .current import OnGpu
from .device_memory import pool_of
from .lane import borrow_stream, pinned_empty, return_stream
from .readable_by_gpu import Lease
from .watchdog import waiting

U8 = npt.NDArray[np.uint8]

PIECE = 4 << 20
"""Bytes of a piece. A copy of so much takes 80 us, a thread about 1 ms to fill it. Of smaller ones there are more, and
each takes some microseconds besides (one H200, 16 threads: 320,600 images/s; 290,800 of 2 MB, four for each thread)."""
PIECES = 2
"""Of each thread that reads: one is filled while the other is copied. More are more than the processor's cache likes
(on that machine with four: 283,200; on another, with three and two streams, 328,400 instead of 377,200)."""
STREAMS = 3
"""Of a GPU, which batches take in turns: while the copies of one are begun, those of others are under way (one H200, 16
threads, in turns: 365,400 and 369,700 images/s with one, 377,200 and 373,100 with two, 410,000 and 417,800)."""
LITTLE = PIECE // 8
"""Bytes of a batch below which it is read as a whole: labels, and the like."""
_PART = 1 / 3
"""Share of a device's budget for uploaded files that wait for a lane. Batches beyond it are read as a whole."""
_RING = 1 / 16
"""Part of the host's budget that pieces may take."""
_REFUSALS = 3
"""Failures in a row after which nothing more is tried."""
NEXT, STATUS, SENT = range(3)
"""Places of `Pieces.state`: the piece to fill next, the driver's status, bytes of a file that are on their way where
the rest of it is not."""


class Pieces:
    """The pieces of one thread that reads."""

    def __init__(self) -> None:
        import cupy

        self.memory: U8 = pinned_empty(PIECES * PIECE)
        self._events = [cupy.cuda.Event(block=True, disable_timing=True) for _ in range(PIECES)]
        self.events: I64 = np.array([event.ptr for event in self._events], np.int64)
        """Each tells when the copy of its piece is over."""
        self.busy = np.zeros(PIECES, np.uint8)
        """The piece may be being copied."""
        self.state = np.zeros(3, np.int64)

    def wait(self) -> None:
        """Wait until the next piece is free. Raises CUDARuntimeError."""
        self._events[int(self.state[NEXT])].synchronize()


class Uploads:
    """The uploads to one GPU. May be used by several threads."""

    def __init__(self, index: int, most: int, told: Callable[[str, int], None]) -> None:
        """Not more than ``most`` bytes wait there for lanes, or are on one; ``told(way, nbytes)`` gets how the bytes of
        a batch travel. Raises what CuPy raises where the GPU cannot be used."""
        self.index = index
        self._most = most
        self._told = told
        self.gpu = OnGpu(index)
        known, names = driver_calls.load(), (driver_calls.COPY_IN, driver_calls.RECORD, driver_calls.ASK)
        self.functions = [known[name] for name in names]
        """The driver's that copies take."""
        self._streams = [borrow_stream(index) for _ in range(STREAMS)]
        self._turns = cycle(self._streams)
        self._idle: deque[Pieces] = deque()
        self._lock = threading.Lock()
        self._there = 0
        self._gone: deque[tuple[int, Any, Any]] = deque()  # without the lock: a collection may append
        self._refusals = 0
        self._closed = False

    def begin(self, nbytes: int, sizes: I64 | None = None, why: str = "") -> Upload | None:
        """Memory on the device for a batch of ``nbytes``; None where it is to be read as a whole. ``sizes``: of files,
        which are read into pieces; ``why``: the host reads it, where others might."""
        obstacle = self._obstacle(nbytes, sizes)
        if not obstacle:
            return Upload(self, nbytes, why)
        self._told(_copied(why, obstacle), nbytes)
        return None

    def _obstacle(self, nbytes: int, sizes: I64 | None) -> str:
        """Why the batch is to be read as a whole; where it is not, its bytes count as there from now on."""
        if nbytes < LITTLE:
            return "a batch of few bytes"
        if sizes is not None and 2 * int(sizes[sizes >= PIECE].sum()) >= nbytes:  # the host would read and copy those
            return "most of it is files larger than a piece"
        with self._lock:
            self._release()
            if self._closed or self._refusals >= _REFUSALS:
                return "it failed before"
            if self._there + nbytes > self._most:
                return "no more files may wait on the GPU"
            self._there += nbytes
        return ""

    def ended(self, nbytes: int, why: str) -> None:
        """A batch of ``nbytes`` is on its way; ``why``: as of `begin`."""
        self._refusals = 0
        self._told(f"in pieces: {why}" if why else "in pieces", nbytes)

    def failed(self, problem: Exception, nbytes: int) -> None:
        """A batch could not be uploaded so."""
        self._refusals += 1
        self._told(f"copied: {problem}", nbytes)

    def gone(self, nbytes: int, block: Any, event: Any) -> None:
        """A batch of ``nbytes`` in ``block`` is needed no more once ``event`` says that its copies are over; None: it
        failed, and copies of it may be under way on any stream."""
        if not self._closed:  # after that there are no copies
            self._gone.append((nbytes, block, event))

    def _release(self) -> None:
        """Release batches whose copies are over. The lock is held."""
        for _ in range(len(self._gone)):
            nbytes, block, event = self._gone.popleft()
            if event is None:
                for stream in self._streams:
                    self.wait(stream.synchronize)
            elif not event.done:
                self._gone.append((nbytes, block, event))
                continue
            self._there -= nbytes

    @contextmanager
    def pieces(self) -> Iterator[Pieces]:
        """Pieces for one thread, in which the GPU is current meanwhile."""
        with self.gpu:
            try:
                found = self._idle.pop()
            except IndexError:
                found = Pieces()
            found.state[STATUS] = found.state[SENT] = 0
            try:
                yield found
            finally:
                if not self._closed:
                    self._idle.append(found)

    def stream(self) -> Any:
        """The one that the next batch takes."""
        return next(self._turns)  # which several threads may ask for, while another one closes

    def wait(self, wait: Callable[[], None]) -> None:
        """Wait for something on the device, by ``wait``."""
        with self.gpu, waiting(self.index):
            wait()

    def close(self) -> None:
        """Begin nothing more, and let go of the pieces once the device has them."""
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed:
            for stream in self._streams:
                self.wait(stream.synchronize)
                pool_of(self.index).settle(stream.ptr)
                return_stream(self.index, stream)
            self._idle.clear()
            self._gone.clear()


COPY, RECORD, ASK, STREAM = range(4)
"""Places of `Upload.calls`."""


class Upload:
    """A batch on its way."""

    def __init__(self, uploads: Uploads, nbytes: int, why: str) -> None:
        self._nbytes, self._why = nbytes, why
        self.uploads = uploads
        self._event: Any = None
        self._block: Any = None
        self._stream = uploads.stream()
        self.calls: I64 = np.array([*uploads.functions, self._stream.ptr], np.int64)
        """The driver's functions and the stream, for compiled loops (`COPY` and so on)."""
        self._block = self._empty(nbytes)
        self.address = int(self._block.data.ptr)

    def __del__(self) -> None:
        self.uploads.gone(self._nbytes, self._block, self._event)

    def _empty(self, nbytes: int) -> Any:
        """Memory on the device."""
        import cupy

        with self.uploads.gpu, self._stream:
            memory = pool_of(self.uploads.index).allocate(nbytes, self._stream.ptr, "files", held=True)
            return cupy.ndarray((nbytes,), np.uint8, memory)

    def _mark(self) -> Any:
        """An event after all copies so far."""
        import cupy

        with self.uploads.gpu:
            event = cupy.cuda.Event(block=True, disable_timing=True)
            driver_calls.call(driver_calls.RECORD, event.ptr, self._stream.ptr)
        self._event = event
        return event

    def wait(self, pieces: Pieces) -> None:
        """Wait until the next of the pieces is free, or raise what the driver says against it."""
        if status := int(pieces.state[STATUS]):
            pieces.state[STATUS] = 0
            driver_calls.refused(status)
        self.uploads.wait(pieces.wait)

    def ended(self, shown: U8, at: I64, sizes: I64, kept: I64) -> U8:
        """All is on its way: the host's array of files, of which ``shown`` lacks bytes from the ``kept`` one on of
        each, of ``sizes``; they begin ``at`` these places."""
        return self._lent(SentFiles(self, self._mark(), self._block, shown, at, sizes, kept))

    def ended_of(self, data: U8, offsets: I64, sizes: I64, at: I64) -> U8:
        """All is on its way: ``data``, of which what begins at ``offsets`` begins ``at`` these places there."""
        order = np.lexsort((sizes, offsets))  # of what begins at one place the last one is not empty
        there = SentExtents(self, self._mark(), self._block, data, offsets[order], at[order])
        return self._lent(there)

    def _lent(self, lease: Lease) -> U8:
        self.uploads.ended(self._nbytes, self._why)
        return lease.array()


class Sent(Lease):
    """Of a batch that went to a device while it was read."""

    on_device = True

    def __init__(self, upload: Upload, event: Any, block: Any, shown: U8) -> None:
        """``event``: all is there. ``shown``: what the host sees."""
        super().__init__(shown)
        self._upload, self._event, self._block = upload, event, block

    def places(self, batch: Batch) -> I64:
        item = batch.dtype.itemsize
        first = batch.data.ctypes.data - self.__array_interface__["data"][0]
        return (self.sources(batch.offsets * item + first) - self._upload.address) // item

    def bring(self, lane: Lane, batch: Batch) -> Any:
        lane.after(self._event)
        lane.keep(batch.data)
        item = batch.dtype.itemsize
        return self._block[: len(self._block) // item * item].view(batch.dtype)


class SentFiles(Sent):
    """Of files; the host sees beginnings of them, at the same places."""

    on_host = True

    def __init__(self, upload: Upload, event: Any, block: Any, shown: U8, at: I64, sizes: I64, kept: I64) -> None:
        """As of `Upload.ended`."""
        super().__init__(upload, event, block, shown)
        self._at, self._sizes, self._kept = at, sizes, kept
        self._showing = threading.Lock()

    def sources(self, starts: I64) -> I64:
        return starts + self._upload.address

    def show(self, starts: I64) -> None:
        samples = self._samples(starts)
        with self._showing:
            hidden = samples[self._kept[samples] < self._sizes[samples]]
            if not len(hidden):
                return
            uploads = self._upload.uploads
            uploads.wait(self._event.synchronize)
            with uploads.gpu:
                for k in hidden.tolist():
                    low, high = int(self._at[k]), int(self._at[k] + self._sizes[k])
                    self._shown[low:high] = self._block[low:high].get()
            self._kept[hidden] = self._sizes[hidden]

    def hidden(self, starts: I64) -> npt.NDArray[np.bool_]:
        samples = self._samples(starts)
        found: npt.NDArray[np.bool_] = self._kept[samples] < self._sizes[samples]
        return found

    def _samples(self, starts: I64) -> I64:
        # of samples that begin at one place all but the last one could not be read
        return np.searchsorted(self._at, starts, side="right") - 1


class SentExtents(Sent):
    """Of extents of mapped files, which the host sees as they are."""

    def __init__(self, upload: Upload, event: Any, block: Any, data: U8, offsets: I64, at: I64) -> None:
        """The bytes that begin at ``offsets`` of ``data``, which grow, begin ``at`` these places of ``block``."""
        super().__init__(upload, event, block, data)
        self._offsets, self._shifts = offsets, at - offsets + upload.address

    def sources(self, starts: I64) -> I64:
        return starts + self._shifts[np.searchsorted(self._offsets, starts, side="right") - 1]


def _copied(*why: str) -> str:
    return f"copied: {'; '.join(filter(None, why))}"


class AsAWhole:
    """Takes nothing to a device, and says why."""

    def __init__(self, why: str, told: Callable[[str, int], None]) -> None:
        self._why, self._told = why, told

    def begin(self, nbytes: int, sizes: I64 | None = None, why: str = "") -> None:
        """As of `Uploads`."""
        self._told(_copied(why, self._why), nbytes)


class UploadsOf:
    """The uploads of a run: to the GPU of each batch, once it is open."""

    def __init__(
        self, indices: Sequence[int], threads: int, host: int, account: Callable[[int], None],
        device: Callable[[], int | None], told: Callable[[str, int], None], *, containers: bool = False,
        why: str = "",
    ) -> None:  # fmt: skip
        """``host``: bytes of the host's budget; ``account(nbytes)`` gets how many pieces take, for so many ``threads``
        that read; ``device()``: bytes of the devices' budget, None until they are open; ``told``: as of `Uploads`.
        ``containers``: records of containers also go in pieces; else ``why`` they do not."""
        self._indices = indices
        self._ring = threads * PIECES * PIECE
        self._why_not = ""
        most = self._ring * len(indices)
        if most > host * _RING:
            self._why_not = f"pipeline.memory.host leaves less than the {most >> 20} MiB that pieces take"
        self._account, self._device, self._told = account, device, told
        self._containers, self._why_copied = containers, why
        self._of: dict[int, Uploads] = {}
        self._lock = threading.Lock()
        self._closed = False

    def of(self, number: int, *, container: bool = False) -> Uploads | AsAWhole:
        """For what batch ``number`` has of files, or of a ``container``."""
        if container and not self._containers:
            return AsAWhole(self._why_copied, self._told)
        most = self._device()
        if self._why_not or most is None:
            return AsAWhole(self._why_not or "the GPU was not open yet", self._told)
        index = self._indices[number % len(self._indices)]
        with self._lock:
            if index not in self._of and not self._closed:
                try:
                    self._of[index] = Uploads(index, int(most * _PART) // len(self._indices), self._told)
                except Exception as e:  # whatever it is, reading does without
                    self._why_not = str(e)
                else:
                    self._account(self._ring * len(self._of))
            found = self._of.get(index)
        return found or AsAWhole(self._why_not or "the run is over", self._told)

    def close(self) -> None:
        """Begin nothing more; wait for what was begun."""
        with self._lock:
            self._closed = True
            uploads, self._of = list(self._of.values()), {}
        for each in uploads:
            each.close()
