"""CPU threads that decode while a GPU decodes: they run CPU decoders, and the host's part of some GPU decoders.

CPU decoders write to page-locked memory that is copied to the device. GPU decoders with a part on the host are in
png/on_gpu.py, tiff/on_gpu.py and jpeg2000/on_gpu.py.

The threads belong to the process: images of all batches in flight are in one queue, in the order in which the batches
were started, so that no core is idle while a batch waits. A task is several images: one request to a decoder process,
one call of a compiled loop, and one block of memory, which is allocated when the task starts and returned when the
device has the pixels. So memory is held only for images that are being decoded, not for all images in the queue.
"""

from __future__ import annotations

import functools
import os
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..batch import I64, Batch
from ..gpu.lane import Lane, pinned_empty
from ..gpu.readable_by_gpu import show
from .decoder_table import NO_IMAGES, DecodeJob, Decoder, Outcome, Target, run, thread_rows
from .library import window
from .pixels import Pixels

TASK = 8
"""Maximum number of images per decoding task of a CPU thread; also of one request to a worker process."""
BLOCK = 8 << 20
"""Maximum bytes of page-locked memory for the images of one task; a single image may need more."""
_SMALL, _STEP = 1 << 18, 1 << 20
RANGE = np.dtype([("source", np.int64), ("destination", np.int64), ("size", np.int64)])
_THREADS = 256


@dataclass(slots=True)
class TaskResult:
    """Result of one task of a CPU thread, which decodes images or prepares them for a GPU. Created by the task's
    thread."""

    outcome: Outcome = field(default_factory=Outcome)
    """Errors and counts of the images that this task decoded on the CPU."""
    pixels: Batch | None = None
    """Images that this task decoded on the CPU, in page-locked memory."""
    images: I64 = field(default_factory=lambda: NO_IMAGES)
    """Index in the batch of each image in `pixels`."""
    prepared: Any = None
    """Data with which a GPU decodes the other images, for `RowTasks.enqueue`. None if there are none."""
    count: int = 0
    """Number of images that a GPU decodes with `prepared`."""
    seconds: float = 0.0
    """Seconds that the task took in its thread."""


@dataclass(slots=True)
class RowTasks:
    """Tasks of CPU threads for images of one batch, all for the same decoder."""

    name: str
    """Name of the decoder in reports."""
    futures: list[Future[TaskResult]]
    nbytes: int
    """Total bytes of the decoded images of these tasks."""
    enqueue: Callable[[Any, Batch, Batch, list[Any]], None] | None
    """Function that enqueues the work of a GPU decoder; None for CPU decoders. Arguments: lane (CUDA stream), files,
    output, and the `TaskResult.prepared` of all tasks."""


class ThreadedDecode:
    """Decoding by CPU threads of some images of a batch, while a GPU decodes the others. Created by `gpu_decode`, used
    by one thread at a time. When it is released, tasks that have not started yet do nothing."""

    def __init__(self, job: DecodeJob) -> None:
        self.job = job
        self._parts: list[RowTasks] = []
        self.nbytes = 0
        """Maximum bytes of page-locked memory that the tasks use for decoded images."""

    def place(self, images: dict[int, Pixels]) -> None:
        """Queue copies of the decoded ``images`` (pixels by index in the batch) to the output."""

        def task(self: ThreadedDecode, some: I64) -> TaskResult:
            part = self._stage(some)
            for k, i in enumerate(some.tolist()):
                part.sample(k)[...] = window(self.job, i, images[i], part.sample(k).shape)
            return TaskResult(Outcome(decoded={"other formats": (len(some), 0.0)}), part, some)

        which = np.array(sorted(images), np.int64)
        self.submit("other formats", which, task, sizes=self._sizes(which))

    def start(self, dealt: Sequence[I64]) -> None:
        """Queue the decoding of images on the CPU. ``dealt``: for each decoder of `thread_rows`, the indices of its
        images."""
        for row, some in zip(thread_rows(), dealt, strict=True):
            if len(some):
                self.submit(row.name, some, functools.partial(_by_rows, row=row), sizes=self._sizes(some))

    def submit(
        self, name: str, which: I64, task: Callable[[ThreadedDecode, I64], TaskResult], *, sizes: I64 | None = None,
        enqueue: Callable[[Any, Batch, Batch, list[Any]], None] | None = None, size: int = TASK, shown: bool = True,
    ) -> None:  # fmt: skip
        """Queue tasks of at most ``size`` images each for the images ``which``. ``name``: decoder in reports;
        ``sizes``: bytes of each decoded image. ``shown``: whether bytes of files that are only on the device are first
        copied to host memory, because the task reads them."""
        if len(which) == 0:
            return
        wanted = weakref.ref(self)

        def timed(some: I64) -> TaskResult:
            began, host = time.perf_counter(), wanted()
            if host is None:
                return TaskResult()
            if shown:
                show(host.job.batch, some)
            done = task(host, some)
            done.seconds += time.perf_counter() - began
            return done

        nbytes = np.zeros(len(which), np.int64) if sizes is None else sizes
        cuts = _tasks(nbytes, size)
        self.nbytes += sum(_block(int(nbytes[a:b].sum())) for a, b in cuts) if nbytes.any() else 0
        futures = [threads().submit(timed, which[a:b]) for a, b in cuts]
        self._parts.append(RowTasks(name, futures, int(nbytes.sum()), enqueue))

    @staticmethod
    def submit_call(call: Callable[..., Any], *args: Any) -> Future[Any]:
        """Queue ``call(*args)`` for one of the CPU threads that decode while a GPU decodes other images."""
        return threads().submit(call, *args)

    def by_host(self, which: I64) -> TaskResult:
        """Decode on the CPU the images ``which`` that a GPU decoder could not decode."""
        if not len(which):
            return TaskResult()
        show(self.job.batch, which)
        return _by_rows(self, which)

    def _sizes(self, which: I64) -> I64:
        """Return the bytes of each of the decoded images ``which``."""
        sizes: I64 = self.job.shapes[which].astype(np.int64).prod(axis=1) * self.job.rules.dtype.itemsize
        return sizes

    def _stage(self, which: I64) -> Batch:
        job = self.job
        return Batch.allocate(_page_locked, job.shapes[which], job.rules.dtype, "HWC", job.batch.samples.take(which))

    # -- to the device ---------------------------------------------------------------------------------------------

    def finish(self, lane: Lane, out: Batch, files: Batch) -> None:
        """Wait for the tasks, report rejected images, and enqueue the copies of decoded images into ``out``. ``files``:
        the encoded images, on the device if a GPU decoder needs them."""
        job, reshaped = self.job, list[int]()
        for part in self._parts:
            done, waited = list[TaskResult](), 0.0
            for future in part.futures:
                began = time.perf_counter()
                done.append(future.result())
                waited += time.perf_counter() - began
            job.ctx.waited_for(part.name, waited)
            self._report(part, done)
            reshaped += [i for d in done for i in d.outcome.reshaped]
            together = ScatterCopy(lane, part.nbytes)
            for d in done:
                if d.pixels is None or not len(d.images):
                    continue
                if part.enqueue is None:
                    together.add(d.pixels, d.images)
                else:
                    scatter(lane, lane.to_device(d.pixels), out, d.images)
            together.scatter(out)
            prepared = [d.prepared for d in done if d.prepared is not None]
            if part.enqueue is not None and prepared:
                part.enqueue(lane, files, out, prepared)
        if reshaped:  # the engine retries each alone, with its true shape
            job.ctx.check_later(lambda: np.array(reshaped, np.int64))

    def _report(self, part: RowTasks, done: list[TaskResult]) -> None:
        ctx, headers, counts = self.job.ctx, self.job.headers, {part.name: sum(d.count for d in done)}
        for d in done:
            for i, problem in d.outcome.errors.items():
                headers.drop(i)
                ctx.reject(i, problem.code, str(problem))
            for name, (n, _) in d.outcome.decoded.items():
                counts[name] = counts.get(name, 0) + n
        for name, n in counts.items():
            ctx.decoded_by(name, n, sum(d.seconds for d in done) if name == part.name else 0.0)


def _by_rows(threads: ThreadedDecode, some: I64, row: Decoder | None = None) -> TaskResult:
    """Decode the images ``some`` as one task: with the decoder ``row`` or, if None, with the first decoder that
    supports each image. Images that a decoder could not decode go to the next ones."""
    rows = thread_rows()
    part, first = threads._stage(some), 0 if row is None else rows.index(row)
    dealt = [NO_IMAGES] * len(rows)
    dealt[first] = some
    if row is None:
        from .decoder_table import deal

        dealt = deal(threads.job, some, rows)
    outcome = run(threads.job, dealt, Target(part, some), rows)
    lost = [*outcome.errors, *outcome.reshaped]
    if not lost:
        return TaskResult(outcome, part, some)
    kept = ~np.isin(some, lost)
    return TaskResult(outcome, part.take(kept), some[kept])


def _page_locked(n: int, dtype: Any) -> npt.NDArray[Any]:
    nbytes = n * np.dtype(dtype).itemsize
    return pinned_empty(_block(nbytes))[:nbytes].view(dtype)


def _block(nbytes: int) -> int:
    """Return the size of the page-locked block to allocate for ``nbytes``. There are only a few sizes, because the pool
    reuses a block only for the same size, and a new block takes milliseconds."""
    return nbytes if nbytes > BLOCK else _SMALL if nbytes <= _SMALL else -(-nbytes // _STEP) * _STEP


def _tasks(sizes: I64, most: int) -> list[tuple[int, int]]:
    """Split images into tasks of at most ``most`` images and `BLOCK` bytes. ``sizes``: bytes of each image. Return each
    task's range [a, b) of images."""
    found, a, room = [], 0, 0
    for k, nbytes in enumerate(sizes.tolist()):
        if k > a and (k - a == most or room + nbytes > BLOCK):
            found.append((a, k))
            a, room = k, 0
        room += nbytes
    return [*found, (a, len(sizes))]


class ScatterCopy:
    """Copy of samples from several host batches into one device batch, by way of one device array for all samples."""

    def __init__(self, lane: Lane, nbytes: int) -> None:
        """Allocate the device array for all samples, which have ``nbytes`` in total."""
        self._lane, self._at = lane, 0
        self._data = lane.empty(nbytes, np.uint8)
        self._added: list[tuple[I64, I64, I64]] = []
        self._pieces: list[tuple[int, int, int]] = []

    def add(self, part: Batch, which: I64) -> None:
        """Add the samples of ``part``, a batch in page-locked memory. ``which``: their indices in the device batch."""
        if int(part.sizes.sum()) == 0:
            return
        item, low = part.dtype.itemsize, int(part.offsets.min())
        host = part.data[low : int((part.offsets + part.sizes).max())]
        self._pieces.append((self._lane.address(self._data) + self._at, host.ctypes.data, host.nbytes))
        self._lane.keep(host)
        self._added.append((which, (part.offsets - low) * item + self._at, part.sizes * item))
        self._at += host.nbytes

    def scatter(self, out: Batch) -> None:
        """Start copying all added samples to the device array, and from there into ``out``."""
        if not self._added:
            return
        to, host, nbytes = np.array(self._pieces, np.int64).T.copy()
        self._lane.copies_in(to, host, nbytes)
        which, starts, sizes = (np.concatenate(column) for column in zip(*self._added, strict=True))
        _scatter(self._lane, self._data, starts, sizes, out, which)
        self._lane.keep(self._data)


def scatter(lane: Lane, part: Batch, out: Batch, which: I64) -> None:
    """Copy the samples of ``part`` to the samples ``which`` of ``out``, on the device. Shapes must be equal."""
    item = out.dtype.itemsize
    _scatter(lane, part.data, part.offsets * item, part.sizes * item, out, which)


def _scatter(lane: Lane, data: Any, starts: I64, sizes: I64, out: Batch, which: I64) -> None:
    if len(which) == 0:
        return
    item, table = out.dtype.itemsize, np.zeros(len(which), RANGE)
    table["source"], table["destination"] = starts, out.offsets[which] * item
    table["size"] = np.minimum(sizes, out.sizes[which] * item)
    (ranges,) = lane.upload(table.view(np.uint8))
    lane.launch("image.cu", "scatter", (32, len(which)), _THREADS, data, ranges, out.data)


def thread_count() -> int:
    """Return the number of CPU threads that decode while a GPU decodes other images."""
    return max(1, len(os.sched_getaffinity(0)) - 2)


@functools.cache
def threads() -> ThreadPoolExecutor:
    """Return the pool of CPU threads that decode while a GPU decodes other images. There is one per process."""
    return ThreadPoolExecutor(thread_count(), thread_name_prefix="decode")
