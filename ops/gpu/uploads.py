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
from functools import cached_property
from itertools import cycle
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..batch import I64, Batch
from ..interfaces import Lane
from . import direct_storage, driver_calls
from .current import OnGpu
from .device_memory import pool_of
from .lane import borrow_stream, pinned_empty, return_stream
from .readable_by_gpu import Lease
from .watchdog import waiting

U8 = npt.NDArray[np.uint8]

PIECE = 4 << 20
"""Size in bytes of one page-locked buffer (piece) through which files are uploaded while they are read. A thread takes
about 1 ms to fill it; the copy to the device takes 80 us. Smaller buffers are slower, because each costs some
microseconds (one H200, 16 threads: 320,600 images/s; with four pieces of 2 MB per thread, 290,800)."""
PIECES = 2
"""Number of page-locked buffers (pieces) per reading thread: one is filled while the other is copied to the device.
More buffers overflow the processor's cache (same machine, four: 283,200 images/s; another machine, three pieces and two
streams: 328,400 instead of 377,200)."""
STREAMS = 3
"""Number of CUDA streams per GPU for uploads. Batches use them in turn: while the copies of one batch are being
enqueued, those of others run (one H200, 16 threads, alternately: 365,400 and 369,700 images/s with one stream, 377,200
and 373,100 with two, 410,000 and 417,800 with three)."""
MIN_BYTES = PIECE // 8
"""Minimum size in bytes of a batch that is uploaded while it is read. Smaller ones, such as labels, are read first and
uploaded then."""
_MAX_WAITING_SHARE = 1 / 3
"""Fraction of a GPU's memory budget for uploaded files that operators do not use yet. If it is full, further batches
are read into host memory."""
_MAX_PIECES_SHARE = 1 / 16
"""Fraction of the host's memory budget that the page-locked buffers for uploads may take."""
_MAX_FAILURES = 3
"""Number of consecutive failed uploads after which batches are no longer uploaded while they are read."""
NEXT, STATUS, SENT = range(3)
"""Indices in `StagingPieces.state`: number of the buffer to fill next; last error status of the driver; and bytes
already copied of a file that is larger than a buffer."""


class StagingPieces:
    """The page-locked buffers (pieces) of one reading thread, through which it uploads files. Created and cached by
    `Uploader.pieces`."""

    def __init__(self) -> None:
        import cupy

        self.memory: U8 = pinned_empty(PIECES * PIECE)
        self._events = [cupy.cuda.Event(block=True, disable_timing=True) for _ in range(PIECES)]
        self.events: I64 = np.array([event.ptr for event in self._events], np.int64)
        """Handle of one CUDA event per buffer, recorded after the buffer's copy to the device."""
        self.busy = np.zeros(PIECES, np.uint8)
        """For each buffer, 1 if its copy to the device may still be running."""
        self.state = np.zeros(3, np.int64)
        """State that compiled loops share with this class; the indices are `NEXT`, `STATUS` and `SENT`."""

    def wait(self) -> None:
        """Wait until the next buffer can be filled, because its contents are on the device. Raises CUDARuntimeError."""
        self._events[int(self.state[NEXT])].synchronize()


class Uploader:
    """Uploads files and records to one GPU while they are read, over a few copy streams. Created and closed by
    `UploaderByGpu`; any thread may use it."""

    enabled = True

    def __init__(self, index: int, max_bytes: int, report_route: Callable[[str, int], None]) -> None:
        """``max_bytes``: limit on the bytes of uploaded batches that operators do not use yet. ``report_route(route,
        nbytes)``: function that is called once per batch, with the route by which its bytes reach the GPU. Raises
        CuPy's exception if the GPU cannot be used."""
        self.index = index
        self._max_bytes = max_bytes
        self._report_route = report_route
        self.gpu = OnGpu(index)
        known, names = driver_calls.load(), (driver_calls.COPY_IN, driver_calls.RECORD, driver_calls.ASK)
        self.functions = [known[name] for name in names]
        """Addresses of the driver functions that compiled loops call: copy to the device, record an event, query an
        event."""
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
        """Start uploading a batch of ``nbytes``. Return the upload with its device memory, or None if the batch has to
        be read into host memory first. ``sizes``: sizes of the batch's files, if files are read into page-locked
        buffers. ``reason``: text for the report, why the GPU does not read the mapped files itself."""
        obstacle = self._obstacle(nbytes, sizes)
        if not obstacle:
            return Upload(self, nbytes, reason)
        self._report_route(_copied(reason, obstacle), nbytes)
        return None

    def _obstacle(self, nbytes: int, sizes: I64 | None) -> str:
        """Return the reason why a batch has to be read into host memory first. If there is none, return an empty text,
        and count ``nbytes`` as uploaded but not used yet."""
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

    def decline(self, nbytes: int, reason: str) -> None:
        """Report that a batch of ``nbytes`` is read into host memory first, and why."""
        self._report_route(_copied(reason), nbytes)

    def finish(self, nbytes: int, route: str) -> None:
        """Report that a batch of ``nbytes`` is on its way to the device: all copies are enqueued. ``route``: text for
        the report."""
        self._failures = 0
        self._report_route(route, nbytes)

    def failed(self, problem: Exception, nbytes: int) -> None:
        """Count and report the failed upload of a batch of ``nbytes``. ``problem``: the exception."""
        self._failures += 1
        self._report_route(f"copied: {problem}", nbytes)

    def release(self, nbytes: int, block: Any, event: Any) -> None:
        """Take back ``block``, the device memory of a batch of ``nbytes`` that is no longer used. The block is freed
        when ``event`` shows that the copies into it are complete. After a failed upload ``event`` is None, because
        copies may still run on any stream."""
        if not self._closed:  # closing waits for all copies
            self._finished.append((nbytes, block, event))

    def _release(self) -> None:
        """Free device memory of batches whose copies are complete, and stop counting its bytes. The caller holds the
        lock."""
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
        """Context manager: provide page-locked buffers for the calling thread, and make the GPU current in it."""
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
        """Return the CUDA stream on which to copy the next batch."""
        return next(self._next_stream)  # safe in several threads, and while another one closes

    def wait(self, wait: Callable[[], None]) -> None:
        """Call ``wait``, a function that waits for the device, with the GPU current. The watchdog checks meanwhile
        whether the GPU hangs."""
        with self.gpu, waiting(self.index):
            wait()

    def close(self) -> None:
        """Refuse further uploads. Free the page-locked buffers when the device has copied their contents."""
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
"""Indices in the array `Upload.calls`: addresses of the driver functions that copy, record an event and query an event;
then the handle of the stream."""


class Upload:
    """The upload of one batch while it is read; it also owns the batch's device memory. Created by `Uploader.begin`;
    reading threads share it."""

    def __init__(self, uploads: Uploader, nbytes: int, reason: str) -> None:
        self._nbytes, self._reason = nbytes, reason
        self.uploads = uploads
        self._event: Any = None
        self._block: Any = None
        self._stream = uploads.stream()
        self.calls: I64 = np.array([*uploads.functions, self._stream.ptr], np.int64)
        """Addresses of driver functions, and the handle of the stream, for compiled loops. The indices are `COPY`,
        `RECORD`, `ASK` and `STREAM`."""
        self._block = self._empty(nbytes)
        self.address = int(self._block.data.ptr)

    def __del__(self) -> None:
        self.uploads.release(self._nbytes, self._block, self._event)

    def _empty(self, nbytes: int) -> Any:
        """Return ``nbytes`` of uninitialised device memory that no other upload uses."""
        import cupy

        with self.uploads.gpu, self._stream:
            memory = pool_of(self.uploads.index).allocate(nbytes, self._stream.ptr, "files", held=True)
            return cupy.ndarray((nbytes,), np.uint8, memory)

    def _mark(self) -> Any:
        """Return a CUDA event that completes when all copies enqueued so far are done."""
        import cupy

        with self.uploads.gpu:
            event = cupy.cuda.Event(block=True, disable_timing=True)
            driver_calls.call(driver_calls.RECORD, event.ptr, self._stream.ptr)
        self._event = event
        return event

    def wait(self, pieces: StagingPieces) -> None:
        """Wait until the next buffer of ``pieces`` is free: its contents are on the device. Raises CUDADriverError if
        the driver rejected a copy."""
        if status := int(pieces.state[STATUS]):
            pieces.state[STATUS] = 0
            driver_calls.raise_error(status)
        self.uploads.wait(pieces.wait)

    def finish_files(self, shown: U8, at: I64, sizes: I64, kept: I64) -> U8:
        """Finish an upload of files, after all copies are enqueued. Return the host array of the files: file i has
        ``sizes[i]`` bytes and begins at ``at[i]``. Only its first ``kept[i]`` bytes are in host memory, in
        ``shown``."""
        return self._finish_lease(UploadedFiles(self, self._mark(), self._block, shown, at, sizes, kept))

    def finish_extents(self, data: U8, offsets: I64, sizes: I64, at: I64) -> U8:
        """Finish an upload of byte ranges of the mapped file ``data``, after all copies are enqueued. Return an array
        over the file. The range that begins at byte ``offsets[i]`` of the file was copied to byte ``at[i]`` on the
        device."""
        order = np.lexsort((sizes, offsets))  # if extents have equal offsets, only the last one may have bytes
        there = UploadedExtents(self, self._mark(), self._block, data, offsets[order], at[order])
        return self._finish_lease(there)

    def writable_block(self) -> Any:
        """Return the device memory as an array, uint8, after waiting until work on any stream may write to it."""
        self.uploads.wait(self._stream.synchronize)  # the pool may have allocated it for this stream
        return self._block

    def finish_arrays(self, lease: Callable[[Upload, Any, Any], Lease]) -> U8:
        """Finish an upload whose bytes kvikio has already read into the device memory. Return the array of the lease
        that ``lease(upload, event, block)`` returns. ``event`` is a completed CUDA event, ``block`` the memory."""
        return self._finish_lease(lease(self, self._mark(), self._block), f"by kvikio, {direct_storage.mode()}")

    def _finish_lease(self, lease: Lease, route: str = "") -> U8:
        self.uploads.finish(self._nbytes, route or (f"in pieces: {self._reason}" if self._reason else "in pieces"))
        return lease.array()


class UploadedLease(Lease):
    """Owner of the memory of a batch that was uploaded to a GPU while it was read."""

    on_device = True

    def __init__(self, upload: Upload, event: Any, block: Any, shown: U8) -> None:
        """``event``: CUDA event that completes when the device has all bytes. ``block``: the device memory. ``shown``:
        host array with those bytes that are also in host memory."""
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
    """Owner of the memory of files that were uploaded to a GPU while they were read. Host memory has only the first
    bytes of each file, at the same offsets."""

    on_host = True

    def __init__(self, upload: Upload, event: Any, block: Any, shown: U8, at: I64, sizes: I64, kept: I64) -> None:
        """Arguments after ``block`` are as in `Upload.finish_files`."""
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
    """Owner of byte ranges of a mapped file that were uploaded to a GPU. The host still reads these bytes in the mapped
    file."""

    def __init__(self, upload: Upload, event: Any, block: Any, data: U8, offsets: I64, at: I64) -> None:
        """``offsets``: byte at which each range begins in the mapped file ``data``, ascending. ``at``: byte at which
        the range begins in the device memory ``block``."""
        super().__init__(upload, event, block, data)
        self._offsets, self._shifts = offsets, at - offsets + upload.address

    def sources(self, starts: I64) -> I64:
        return starts + self._shifts[np.searchsorted(self._offsets, starts, side="right") - 1]


def _copied(*reason: str) -> str:
    return f"copied: {'; '.join(filter(None, reason))}"


class DisabledUploader:
    """Stand-in for an `Uploader` if uploads are disabled. It uploads nothing, and reports the reason."""

    enabled = False

    def __init__(self, reason: str, report_route: Callable[[str, int], None]) -> None:
        self._reason, self._report_route = reason, report_route

    def begin(self, nbytes: int, sizes: I64 | None = None, reason: str = "") -> None:
        """Report that the batch is read into host memory first, and return None; see `Uploader.begin`."""
        self._report_route(_copied(reason, self._reason), nbytes)

    def decline(self, nbytes: int, reason: str) -> None:
        """Report that a batch of ``nbytes`` is read into host memory first, and why."""
        self._report_route(_copied(reason), nbytes)


Content = Literal["files", "records", "arrays"]
"""Data that a reader uploads: single files that the GPU decodes; records of containers, such as TFRecord files; arrays
that kvikio reads into GPU memory."""


class UploaderByGpu:
    """The uploaders of a running job, one per GPU, each created when its GPU is open. Owned by the engine; any thread
    may use it."""

    def __init__(
        self, indices: Sequence[int], threads: int, host: int, report_pieces: Callable[[int], None],
        device: Callable[[], int | None], report_route: Callable[[str, int], None], *, containers: bool = False,
        disabled_reason: str = "",
    ) -> None:  # fmt: skip
        """``host``: bytes of the host's memory budget. ``threads``: number of reading threads.
        ``report_pieces(nbytes)``: called with the bytes of all page-locked buffers. ``device()``: returns the bytes of
        the GPUs' memory budget, or None until GPUs are open. ``report_route``: see `Uploader`. ``containers``: whether
        records of containers, such as TFRecord files, are uploaded while they are read; if not, ``disabled_reason``
        says why."""
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

    @cached_property
    def _no_direct_storage(self) -> str:
        """Reason why kvikio cannot be used, or empty. Cached, because Python searches anew for a missing package."""
        return direct_storage.unavailable_reason()

    def of(self, number: int, content: Content = "files") -> Uploader | DisabledUploader:
        """Return the uploader of ``content`` for batch number ``number``."""
        if content == "records" and not self._containers:
            return DisabledUploader(self._disabled_reason, self._report_route)
        if content == "arrays" and self._no_direct_storage:
            return DisabledUploader(self._no_direct_storage, self._report_route)
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
        """Refuse further uploads, and wait for uploads that were started."""
        with self._lock:
            self._closed = True
            uploads, self._of = list(self._of.values()), {}
        for each in uploads:
            each.close()
