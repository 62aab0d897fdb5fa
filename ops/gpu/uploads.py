"""Upload a batch to a GPU in pieces, while the rest of it is being read or copied.

A piece is a page-locked block that is reused as soon as the device has copied it. Each reading thread has a few, so
that they stay in the processor's cache: the data crosses main memory once, whereas a block as large as the batch is
written to main memory and read back. It also keeps little memory page-locked: page-locking takes up to 0.7 s per
gigabyte, during which the driver launches nothing.

Of each file, the host keeps the bytes that it always inspects (`readers.fetch.header_bytes_cpu`) and fetches the others
from the device on demand (`readable_by_gpu.show`). Records of containers stay visible to the host in their mapped
files.
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
"""Bytes of a piece. Copying one takes 80 us; a thread takes about 1 ms to fill it. Smaller pieces are more in number,
and each costs some microseconds (one H200, 16 threads: 320,600 images/s; 290,800 with four pieces of 2 MB per
thread)."""
PIECES = 2
"""Pieces per reading thread: one is filled while the other is copied. More overflow the processor's cache (same
machine, four: 283,200 images/s; another machine, three pieces and two streams: 328,400 instead of 377,200)."""
STREAMS = 3
"""Copy streams per GPU, assigned to batches in turn: while the copies of one batch are being enqueued, those of others
run (one H200, 16 threads, alternately: 365,400 and 369,700 images/s with one stream, 377,200 and 373,100 with two,
410,000 and 417,800 with three)."""
MIN_BYTES = PIECE // 8
"""Batches of fewer bytes, such as labels, are read as a whole."""
_MAX_WAITING_SHARE = 1 / 3
"""Share of a device's budget for uploaded files that wait for a lane. Batches beyond it are read as a whole."""
_MAX_PIECES_SHARE = 1 / 16
"""Share of the host's memory budget that pieces may take."""
_MAX_FAILURES = 3
"""Consecutive failed uploads after which batches are read as a whole."""
NEXT, STATUS, SENT = range(3)
"""Indices in `StagingPieces.state`: number of the piece to fill next; status that the driver returned; bytes already
copied of a file that is larger than the remaining piece."""


class StagingPieces:
    """The page-locked pieces of one reading thread; created and cached by `Uploader.pieces`."""

    def __init__(self) -> None:
        import cupy

        self.memory: U8 = pinned_empty(PIECES * PIECE)
        self._events = [cupy.cuda.Event(block=True, disable_timing=True) for _ in range(PIECES)]
        self.events: I64 = np.array([event.ptr for event in self._events], np.int64)
        """Handle of one CUDA event per piece, recorded after the piece's copy."""
        self.busy = np.zeros(PIECES, np.uint8)
        """Per piece: 1 if its copy may still be running."""
        self.state = np.zeros(3, np.int64)
        """Values at the indices `NEXT`, `STATUS` and `SENT`."""

    def wait(self) -> None:
        """Wait until the next piece is free. Raises CUDARuntimeError."""
        self._events[int(self.state[NEXT])].synchronize()


class Uploader:
    """Uploads to one GPU, over a few copy streams. Created and closed by `UploaderByGpu`; any thread may use it."""

    def __init__(self, index: int, max_bytes: int, report_route: Callable[[str, int], None]) -> None:
        """``max_bytes``: bytes of uploaded batches that may be on the device without a lane having taken them.
        ``report_route(route, nbytes)`` is called per batch with the way in which its bytes travel. Raises CuPy's
        exception if the GPU cannot be used."""
        self.index = index
        self._max_bytes = max_bytes
        self._report_route = report_route
        self.gpu = OnGpu(index)
        known, names = driver_calls.load(), (driver_calls.COPY_IN, driver_calls.RECORD, driver_calls.ASK)
        self.functions = [known[name] for name in names]
        """Addresses of the driver functions that compiled loops call: copy, record event, query event."""
        self._streams = [borrow_stream(index) for _ in range(STREAMS)]
        self._next_stream = cycle(self._streams)
        self._cached: deque[StagingPieces] = deque()
        self._lock = threading.Lock()
        self._waiting_bytes = 0
        # appended to without the lock: a destructor may do it during garbage collection
        self._finished: deque[tuple[int, Any, Any]] = deque()
        self._failures = 0
        self._closed = False

    def begin(self, nbytes: int, sizes: I64 | None = None, reason: str = "") -> Upload | None:
        """Return an upload with device memory for a batch of ``nbytes``, or None if the batch is to be read as a whole.

        ``sizes``: sizes of the batch's files, which are read into pieces. ``reason``: why the host reads the batch
        although the GPU could; shown in the report."""
        obstacle = self._obstacle(nbytes, sizes)
        if not obstacle:
            return Upload(self, nbytes, reason)
        self._report_route(_copied(reason, obstacle), nbytes)
        return None

    def _obstacle(self, nbytes: int, sizes: I64 | None) -> str:
        """Return why the batch is to be read as a whole; if empty, its bytes now count as waiting on the device."""
        if nbytes < MIN_BYTES:
            return "a batch of few bytes"
        # files above the size of a piece are read and copied as a whole anyway
        if sizes is not None and 2 * int(sizes[sizes >= PIECE].sum()) >= nbytes:
            return "most of it is files larger than a piece"
        with self._lock:
            self._release()
            if self._closed or self._failures >= _MAX_FAILURES:
                return "it failed before"
            if self._waiting_bytes + nbytes > self._max_bytes:
                return "no more files may wait on the GPU"
            self._waiting_bytes += nbytes
        return ""

    def finish_files(self, nbytes: int, reason: str) -> None:
        """Report that all copies of a batch of ``nbytes`` are enqueued; ``reason``: see `begin`."""
        self._failures = 0
        self._report_route(f"in pieces: {reason}" if reason else "in pieces", nbytes)

    def failed(self, problem: Exception, nbytes: int) -> None:
        """Count and report a failed upload of a batch of ``nbytes``."""
        self._failures += 1
        self._report_route(f"copied: {problem}", nbytes)

    def release(self, nbytes: int, block: Any, event: Any) -> None:
        """Take back the device memory ``block`` of a batch of ``nbytes``, once ``event`` shows that its copies are
        complete.

        An ``event`` of None means that the upload failed: its copies may still run on any of the streams."""
        if not self._closed:  # closing waits for all copies
            self._finished.append((nbytes, block, event))

    def _release(self) -> None:
        """Subtract batches whose copies are complete from the waiting bytes. The caller holds the lock."""
        for _ in range(len(self._finished)):
            nbytes, block, event = self._finished.popleft()
            if event is None:
                for stream in self._streams:
                    self.wait(stream.synchronize)
            elif not event.done:
                self._finished.append((nbytes, block, event))
                continue
            self._waiting_bytes -= nbytes

    @contextmanager
    def pieces(self) -> Iterator[StagingPieces]:
        """Context manager: provide pieces for the calling thread, and make the GPU current in it."""
        with self.gpu:
            try:
                found = self._cached.pop()
            except IndexError:
                found = StagingPieces()
            found.state[STATUS] = found.state[SENT] = 0
            try:
                yield found
            finally:
                if not self._closed:
                    self._cached.append(found)

    def stream(self) -> Any:
        """Return the copy stream for the next batch."""
        return next(self._next_stream)  # safe in several threads, and while another one closes

    def wait(self, wait: Callable[[], None]) -> None:
        """Call ``wait``, which waits for the device, with the GPU current and watched for hangs."""
        with self.gpu, waiting(self.index):
            wait()

    def close(self) -> None:
        """Refuse further uploads; free the pieces once the device has copied them."""
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed:
            for stream in self._streams:
                self.wait(stream.synchronize)
                pool_of(self.index).mark_done(stream.ptr)
                return_stream(self.index, stream)
            self._cached.clear()
            self._finished.clear()


COPY, RECORD, ASK, STREAM = range(4)
"""Indices in `Upload.calls`."""


class Upload:
    """The upload of one batch, and the owner of its device memory. Created by `Uploader.begin`; reading threads share
    it."""

    def __init__(self, uploads: Uploader, nbytes: int, reason: str) -> None:
        self._nbytes, self._reason = nbytes, reason
        self.uploads = uploads
        self._event: Any = None
        self._block: Any = None
        self._stream = uploads.stream()
        self.calls: I64 = np.array([*uploads.functions, self._stream.ptr], np.int64)
        """Addresses of driver functions, and the stream, for compiled loops; see `COPY`, `RECORD`, `ASK`, `STREAM`."""
        self._block = self._empty(nbytes)
        self.address = int(self._block.data.ptr)

    def __del__(self) -> None:
        self.uploads.release(self._nbytes, self._block, self._event)

    def _empty(self, nbytes: int) -> Any:
        """Return uninitialised device memory that is private to this upload."""
        import cupy

        with self.uploads.gpu, self._stream:
            memory = pool_of(self.uploads.index).allocate(nbytes, self._stream.ptr, "files", held=True)
            return cupy.ndarray((nbytes,), np.uint8, memory)

    def _mark(self) -> Any:
        """Return an event that completes after all copies so far."""
        import cupy

        with self.uploads.gpu:
            event = cupy.cuda.Event(block=True, disable_timing=True)
            driver_calls.call(driver_calls.RECORD, event.ptr, self._stream.ptr)
        self._event = event
        return event

    def wait(self, pieces: StagingPieces) -> None:
        """Wait until the next piece is free. Raises CUDADriverError if the driver rejected a copy."""
        if status := int(pieces.state[STATUS]):
            pieces.state[STATUS] = 0
            driver_calls.raise_error(status)
        self.uploads.wait(pieces.wait)

    def finish_files(self, shown: U8, at: I64, sizes: I64, kept: I64) -> U8:
        """All copies are enqueued. Return the host array of the files: file i is ``sizes[i]`` bytes long and begins at
        ``at[i]``; ``shown`` holds its first ``kept[i]`` bytes, the others are on the device only."""
        return self._finish_lease(UploadedFiles(self, self._mark(), self._block, shown, at, sizes, kept))

    def finish_extents(self, data: U8, offsets: I64, sizes: I64, at: I64) -> U8:
        """All copies are enqueued. Return an array over the mapped file ``data``; its extent at ``offsets[i]`` was
        copied to ``at[i]`` on the device."""
        order = np.lexsort((sizes, offsets))  # if extents have equal offsets, only the last one may have bytes
        there = UploadedExtents(self, self._mark(), self._block, data, offsets[order], at[order])
        return self._finish_lease(there)

    def _finish_lease(self, lease: Lease) -> U8:
        self.uploads.finish_files(self._nbytes, self._reason)
        return lease.array()


class UploadedLease(Lease):
    """Lease of a batch that was uploaded while it was read."""

    on_device = True

    def __init__(self, upload: Upload, event: Any, block: Any, shown: U8) -> None:
        """``event``: completes when the device has all bytes. ``shown``: the bytes that the host sees."""
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


class UploadedFiles(UploadedLease):
    """Lease of uploaded files, of which the host has the first bytes, at the same offsets."""

    on_host = True

    def __init__(self, upload: Upload, event: Any, block: Any, shown: U8, at: I64, sizes: I64, kept: I64) -> None:
        """See `Upload.finish_files` for the arguments."""
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
        # if samples have equal offsets, only the last one has bytes; the others could not be read
        return np.searchsorted(self._at, starts, side="right") - 1


class UploadedExtents(UploadedLease):
    """Lease of uploaded extents of a mapped file, which the host sees as a whole."""

    def __init__(self, upload: Upload, event: Any, block: Any, data: U8, offsets: I64, at: I64) -> None:
        """``offsets`` in ``data``, ascending; the bytes from offsets[i] on begin at ``at[i]`` of ``block``."""
        super().__init__(upload, event, block, data)
        self._offsets, self._shifts = offsets, at - offsets + upload.address

    def sources(self, starts: I64) -> I64:
        return starts + self._shifts[np.searchsorted(self._offsets, starts, side="right") - 1]


def _copied(*reason: str) -> str:
    return f"copied: {'; '.join(filter(None, reason))}"


class DisabledUploader:
    """Stand-in for an `Uploader` that uploads nothing, and reports why."""

    def __init__(self, reason: str, report_route: Callable[[str, int], None]) -> None:
        self._reason, self._report_route = reason, report_route

    def begin(self, nbytes: int, sizes: I64 | None = None, reason: str = "") -> None:
        """Report that the batch is read as a whole; see `Uploader.begin`."""
        self._report_route(_copied(reason, self._reason), nbytes)


class UploaderByGpu:
    """Uploaders of a run, one per GPU, created when the GPU is open. Owned by the engine; any thread may use it."""

    def __init__(
        self, indices: Sequence[int], threads: int, host: int, report_pieces: Callable[[int], None],
        device: Callable[[], int | None], report_route: Callable[[str, int], None], *, containers: bool = False,
        disabled_reason: str = "",
    ) -> None:  # fmt: skip
        """``host``: bytes of the host's memory budget. ``threads``: number of threads that read.
        ``report_pieces(nbytes)`` is called with the bytes that all pieces take. ``device()`` returns the bytes of the
        devices' memory budget, or None until the devices are open. ``report_route``: see `Uploader`. ``containers``:
        whether records of containers are also uploaded in pieces; if not, ``disabled_reason`` says why."""
        self._indices = indices
        self._ring = threads * PIECES * PIECE
        self._unavailable_reason = ""
        max_bytes = self._ring * len(indices)
        if max_bytes > host * _MAX_PIECES_SHARE:
            self._unavailable_reason = (
                f"pipeline.memory.host leaves less than the {max_bytes >> 20} MiB that pieces take"
            )
        self._report_pieces, self._device, self._report_route = report_pieces, device, report_route
        self._containers, self._disabled_reason = containers, disabled_reason
        self._of: dict[int, Uploader] = {}
        self._lock = threading.Lock()
        self._closed = False

    def of(self, number: int, *, container: bool = False) -> Uploader | DisabledUploader:
        """Return the uploader for the files, or the records of a ``container``, of batch ``number``."""
        if container and not self._containers:
            return DisabledUploader(self._disabled_reason, self._report_route)
        max_bytes = self._device()
        if self._unavailable_reason or max_bytes is None:
            return DisabledUploader(self._unavailable_reason or "the GPU was not open yet", self._report_route)
        index = self._indices[number % len(self._indices)]
        with self._lock:
            if index not in self._of and not self._closed:
                try:
                    self._of[index] = Uploader(
                        index, int(max_bytes * _MAX_WAITING_SHARE) // len(self._indices), self._report_route
                    )
                except Exception as e:  # whatever fails, batches can be read as a whole
                    self._unavailable_reason = str(e)
                else:
                    self._report_pieces(self._ring * len(self._of))
            found = self._of.get(index)
        return found or DisabledUploader(self._unavailable_reason or "the run is over", self._report_route)

    def close(self) -> None:
        """Refuse further uploads, and wait for those that were started."""
        with self._lock:
            self._closed = True
            uploads, self._of = list(self._of.values()), {}
        for each in uploads:
            each.close()
