"""Threads of the CPU that work for a GPU: rows of the decoder table that run on the host, into page-locked memory that
is copied to the device, and the part that some rows of a GPU leave to the host (png/on_gpu.py, tiff/on_gpu.py,
jpeg2000/on_gpu.py).

The threads belong to the process: images of all batches in flight are in one queue, in the order in which the batches
were started, so that no core rests while a batch waits. A task is several images: one request to a decoder's process,
one call of a compiled loop, and one block of memory, which is taken when the task starts and returned when the device
has the pixels. So memory is held for images that are being decoded, not for all that wait.
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
from .decoder_table import NOBODY, DecodeJob, Decoder, Outcome, Target, run, thread_rows
from .library import window
from .pixels import Pixels

TASK = 8
"""Images of a task, at most: as many as a request to a decoder's process holds."""
BLOCK = 8 << 20
"""Bytes of page-locked memory that a task takes, at most, unless one image is larger."""
_SMALL, _STEP = 1 << 18, 1 << 20
RANGE = np.dtype([("source", np.int64), ("destination", np.int64), ("size", np.int64)])
_THREADS = 256


@dataclass(slots=True)
class Done:
    """The result of a task."""

    outcome: Outcome = field(default_factory=Outcome)
    """Findings about the images that rows of the host had."""
    pixels: Batch | None = None
    """Pixels of the images that rows of the host decoded, in page-locked memory."""
    images: I64 = field(default_factory=lambda: NOBODY)
    """The images of `pixels`."""
    prepared: Any = None
    """The host's part of a row of a GPU, for its `Part.enqueue`."""
    count: int = 0
    """Images of `prepared`."""
    seconds: float = 0.0


@dataclass(slots=True)
class Part:
    """The tasks of one row."""

    name: str
    """Name of the row in reports."""
    futures: list[Future[Done]]
    nbytes: int
    """Bytes of all pixels."""
    enqueue: Callable[[Any, Batch, Batch, list[Any]], None] | None
    """Function of the lane, the files, the output and what the tasks have `prepared`, which enqueues the work of a row
    of a GPU; None for rows of the host."""


class ThreadedDecode:
    """The images of a batch that threads decode or prepare. Created by `gpu_decode`, used by one thread at a time; its
    tasks end at once if nobody holds it any more."""

    def __init__(self, job: DecodeJob) -> None:
        self.job = job
        self._parts: list[Part] = []
        self.nbytes = 0
        """Bytes of page-locked memory, at most."""

    def place(self, images: dict[int, Pixels]) -> None:
        """Take whole images that are decoded already."""

        def task(self: ThreadedDecode, some: I64) -> Done:
            part = self._stage(some)
            for k, i in enumerate(some.tolist()):
                part.sample(k)[...] = window(self.job, i, images[i], part.sample(k).shape)
            return Done(Outcome(decoded={"other formats": (len(some), 0.0)}), part, some)

        which = np.array(sorted(images), np.int64)
        self.submit("other formats", which, task, sizes=self._sizes(which))

    def start(self, dealt: Sequence[I64]) -> None:
        """Decode the images that were ``dealt`` to `thread_rows`."""
        for row, some in zip(thread_rows(), dealt, strict=True):
            if len(some):
                self.submit(row.name, some, functools.partial(_by_rows, row=row), sizes=self._sizes(some))

    def submit(
        self, name: str, which: I64, task: Callable[[ThreadedDecode, I64], Done], *, sizes: I64 | None = None,
        enqueue: Callable[[Any, Batch, Batch, list[Any]], None] | None = None, size: int = TASK, shown: bool = True,
    ) -> None:  # fmt: skip
        """Give the threads tasks of ``size`` of the images ``which``, at most, whose pixels take ``sizes`` bytes. Tasks
        that do not have the bytes of files ``shown`` work with as much as the host sees of them."""
        if len(which) == 0:
            return
        wanted = weakref.ref(self)

        def timed(some: I64) -> Done:
            began, host = time.perf_counter(), wanted()
            if host is None:
                return Done()
            if shown:
                show(host.job.batch, some)
            done = task(host, some)
            done.seconds += time.perf_counter() - began
            return done

        nbytes = np.zeros(len(which), np.int64) if sizes is None else sizes
        cuts = _tasks(nbytes, size)
        self.nbytes += sum(_block(int(nbytes[a:b].sum())) for a, b in cuts) if nbytes.any() else 0
        futures = [threads().submit(timed, which[a:b]) for a, b in cuts]
        self._parts.append(Part(name, futures, int(nbytes.sum()), enqueue))

    @staticmethod
    def submit_call(call: Callable[..., Any], *args: Any) -> Future[Any]:
        """Have a thread call ``call(*args)``."""
        return threads().submit(call, *args)

    def by_host(self, which: I64) -> Done:
        """Decode the images ``which``, which a row of a GPU turned out not to take, by rows of the host."""
        if not len(which):
            return Done()
        show(self.job.batch, which)
        return _by_rows(self, which)

    def _sizes(self, which: I64) -> I64:
        """Bytes of the results of the images ``which``."""
        sizes: I64 = self.job.shapes[which].astype(np.int64).prod(axis=1) * self.job.rules.dtype.itemsize
        return sizes

    def _stage(self, which: I64) -> Batch:
        job = self.job
        return Batch.allocate(_page_locked, job.shapes[which], job.rules.dtype, "HWC", job.batch.samples.take(which))

    # -- to the device ---------------------------------------------------------------------------------------------

    def finish(self, lane: Lane, out: Batch, files: Batch) -> None:
        """Wait for the threads, report the images that they rejected, and enqueue the copies to the places of ``out``.
        ``files``: the encoded images, on the device if a row of a GPU needs them."""
        job, reshaped = self.job, list[int]()
        for part in self._parts:
            done, waited = list[Done](), 0.0
            for future in part.futures:
                began = time.perf_counter()
                done.append(future.result())
                waited += time.perf_counter() - began
            job.ctx.waited_for(part.name, waited)
            self._report(part, done)
            reshaped += [i for d in done for i in d.outcome.reshaped]
            together = Together(lane, part.nbytes)
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
        if reshaped:  # alone, and then by its true shape
            job.ctx.check_later(lambda: np.array(reshaped, np.int64))

    def _report(self, part: Part, done: list[Done]) -> None:
        ctx, headers, counts = self.job.ctx, self.job.headers, {part.name: sum(d.count for d in done)}
        for d in done:
            for i, problem in d.outcome.errors.items():
                headers.drop(i)
                ctx.reject(i, problem.code, str(problem))
            for name, (n, _) in d.outcome.decoded.items():
                counts[name] = counts.get(name, 0) + n
        for name, n in counts.items():
            ctx.decoded_by(name, n, sum(d.seconds for d in done) if name == part.name else 0.0)


def _by_rows(threads: ThreadedDecode, some: I64, row: Decoder | None = None) -> Done:
    """A task that decodes by ``row``, or any row of the host, and those after it."""
    rows = thread_rows()
    part, first = threads._stage(some), 0 if row is None else rows.index(row)
    dealt = [NOBODY] * len(rows)
    dealt[first] = some
    if row is None:
        from .decoder_table import deal

        dealt = deal(threads.job, some, rows)
    outcome = run(threads.job, dealt, Target(part, some), rows)
    lost = [*outcome.errors, *outcome.reshaped]
    if not lost:
        return Done(outcome, part, some)
    kept = ~np.isin(some, lost)
    return Done(outcome, part.take(kept), some[kept])


def _page_locked(n: int, dtype: Any) -> npt.NDArray[Any]:
    nbytes = n * np.dtype(dtype).itemsize
    return pinned_empty(_block(nbytes))[:nbytes].view(dtype)


def _block(nbytes: int) -> int:
    """Bytes of the block for ``nbytes``, of few sizes: the pool gives one out again only for the size that it was made
    for, and making one takes milliseconds."""
    return nbytes if nbytes > BLOCK else _SMALL if nbytes <= _SMALL else -(-nbytes // _STEP) * _STEP


def _tasks(sizes: I64, most: int) -> list[tuple[int, int]]:
    """The images [a, b) of each task, ``most`` of them at most, given their bytes."""
    found, a, room = [], 0, 0
    for k, nbytes in enumerate(sizes.tolist()):
        if k > a and (k - a == most or room + nbytes > BLOCK):
            found.append((a, k))
            a, room = k, 0
        room += nbytes
    return [*found, (a, len(sizes))]


class Together:
    """Samples of several host batches on their way into a device batch: one array there."""

    def __init__(self, lane: Lane, nbytes: int) -> None:
        """``nbytes`` of memory on the device."""
        self._lane, self._at = lane, 0
        self._data = lane.empty(nbytes, np.uint8)
        self._added: list[tuple[I64, I64, I64]] = []
        self._pieces: list[tuple[int, int, int]] = []

    def add(self, part: Batch, which: I64) -> None:
        """Take ``part``, in page-locked memory: the samples ``which`` of the batch it is bound for."""
        if int(part.sizes.sum()) == 0:
            return
        item, low = part.dtype.itemsize, int(part.offsets.min())
        host = part.data[low : int((part.offsets + part.sizes).max())]
        self._pieces.append((self._lane.address(self._data) + self._at, host.ctypes.data, host.nbytes))
        self._lane.keep(host)
        self._added.append((which, (part.offsets - low) * item + self._at, part.sizes * item))
        self._at += host.nbytes

    def scatter(self, out: Batch) -> None:
        """Enqueue the copies of all samples to the device, and there to their places in ``out``."""
        if not self._added:
            return
        to, host, nbytes = np.array(self._pieces, np.int64).T.copy()
        self._lane.copies_in(to, host, nbytes)
        which, starts, sizes = (np.concatenate(column) for column in zip(*self._added, strict=True))
        _scatter(self._lane, self._data, starts, sizes, out, which)
        self._lane.keep(self._data)


def scatter(lane: Lane, part: Batch, out: Batch, which: I64) -> None:
    """Copy the samples of ``part`` to places ``which`` of ``out``, both on the device and of the same shapes."""
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
    """Threads that decode for GPUs."""
    return max(1, len(os.sched_getaffinity(0)) - 2)


@functools.cache
def threads() -> ThreadPoolExecutor:
    """The threads that decode for GPUs; all lanes share them."""
    return ThreadPoolExecutor(thread_count(), thread_name_prefix="decode")
