"""The images of a GPU's batch that the CPU decodes: on threads, into page-locked memory that is copied to the device.

The threads are the process's: images of all batches in flight are in one queue, in the order in which the batches were
begun, so that no core rests while a batch waits. A task is several images: one request to a decoder's process, one call
of a compiled loop, and one block of memory, which is taken when the task begins and given back when the device has the
pixels. So memory is held for what is decoded, not for all that waits to be.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..batch import I32, I64, Batch
from ..context import Context
from ..errors import SampleError
from ..gpu.lane import Lane, pinned_empty
from .on_host import (
    OTHERS,
    PNG,
    TURBO,
    Headers,
    Rules,
    decode_jpeg,
    decode_several,
    decode_straight,
    encoded_bytes,
)
from .pixels import recolour

TASK = 8
"""Images of a task, at most: as many as a request to a decoder's process holds."""
BLOCK = 8 << 20
"""Bytes of page-locked memory that a task takes, unless one image is larger: of one size, since the pool gives a block
out again only for the size that it was made for, and making one takes milliseconds."""

RANGE = np.dtype([("source", np.int64), ("destination", np.int64), ("size", np.int64)])
_THREADS = 256

Odd = tuple[int, SampleError | str]
"""An image that its task did not decode: the place in the batch, and the error or the next decoder."""
_AGAIN = "again"


@dataclass(slots=True)
class _Done:
    """A task's result: the images' pixels, where they have any, what is odd about some, and the seconds it took."""

    pixels: Batch
    odd: list[Odd]
    seconds: float


class HostPart:
    """The images of a batch that the CPU decodes."""

    def __init__(
        self, ctx: Context, batch: Batch, headers: Headers, rules: Rules, anchors: I64 | None, shapes: I32
    ) -> None:
        """``shapes`` [N, 3] of all images as they are wanted; those whose pixels turn out of another shape are tried
        again. ``anchors`` [N, 2]: where each begins (y, x) in the decoded picture, if not at its corner."""
        self._batch, self._headers, self._rules, self._anchors, self._shapes = batch, headers, rules, anchors, shapes
        self._isolation = ctx.isolation
        self._parts: list[tuple[str, list[I64], list[Future[_Done]]]] = []
        self.nbytes = 0
        """Bytes of page-locked memory, at most."""

    def keep(self, others: dict[int, Any]) -> None:
        """Take whole pictures that are decoded already."""

        def placed(which: I64, part: Batch) -> list[Odd]:
            for k, i in enumerate(which.tolist()):
                self._place(part, k, i, others[i])
            return []

        self._start(OTHERS, np.array(sorted(others), np.int64), placed)

    def start(self, which: I64) -> None:
        """Decode the JPEGs ``which`` on the threads."""
        self._start(TURBO, which, self._jpegs)

    def start_others(self, straight: Sequence[int]) -> None:
        """Decode what is no JPEG on the threads; ``straight``: those that `decode_straight` takes."""
        ours = np.array(straight, np.int64)
        rest = [i for i in self._headers.others if self._headers.good[i]]
        self._start(OTHERS, np.setdiff1d(np.array(rest, np.int64), ours), self._others)
        self._start(PNG, ours, self._straight)

    def _start(self, name: str, which: I64, decode: Callable[[I64, Batch], list[Odd]]) -> None:
        if len(which) == 0:
            return
        sizes = self._shapes[which].astype(np.int64).prod(axis=1) * self._rules.dtype.itemsize
        self.nbytes += int(sizes.sum())

        def timed(some: I64) -> _Done:
            began = time.perf_counter()
            part = self._stage(some)
            return _Done(part, decode(some, part), time.perf_counter() - began)

        tasks = [which[a:b] for a, b in _tasks(sizes)]
        self._parts.append((name, tasks, [threads().submit(timed, some) for some in tasks]))

    def _stage(self, which: I64) -> Batch:
        def page_locked(n: int, dtype: Any) -> npt.NDArray[Any]:
            nbytes = n * np.dtype(dtype).itemsize
            return pinned_empty(max(nbytes, BLOCK))[:nbytes].view(dtype)

        return Batch.allocate(
            page_locked, self._shapes[which], self._rules.dtype, "HWC", self._batch.samples.take(which)
        )

    def _place(self, part: Batch, k: int, i: int, image: Any) -> None:
        y, x = (0, 0) if self._anchors is None else self._anchors[i].tolist()
        rows, columns = part.shapes[k, 0], part.shapes[k, 1]
        part.sample(k)[...] = image[y : y + rows, x : x + columns]

    # -- decoders: images ``which`` to the samples of ``part`` -----------------------------------------------------

    def _jpegs(self, which: I64, part: Batch) -> list[Odd]:
        bad: list[Odd] = []
        for k, i in enumerate(which.tolist()):
            anchor = None if self._anchors is None else (int(self._anchors[i, 0]), int(self._anchors[i, 1]))
            row, orientation = self._headers.jpeg[i], int(self._headers.orientation[i])
            try:
                data = encoded_bytes(self._batch, i)
                decode_jpeg(data, row, orientation, self._rules, anchor, part, k, self._isolation)
            except SampleError as e:
                bad.append((i, e))
        return bad

    def _straight(self, which: I64, part: Batch) -> list[Odd]:
        places = np.arange(len(which))
        left = places[decode_straight(self._batch, which, self._rules, self._anchors, part, places)]
        if not len(left):
            return []
        odd = dict(self._others(which[left], part.take(left)))
        return [(i, odd.get(i, OTHERS)) for i in which[left].tolist()]

    def _others(self, which: I64, part: Batch) -> list[Odd]:
        headers, rules, images = self._headers, self._rules, which.tolist()
        places = {i: k for k, i in enumerate(images)}

        def use(i: int, pixels: Any) -> str:
            if pixels.shape != (headers.height[i], headers.width[i], headers.channels[i]):
                return _AGAIN
            self._place(part, places[i], i, recolour(pixels, rules.output_type, rules.dtype))
            return ""

        results = decode_several(self._batch, headers, rules, self._isolation, use, images)
        return [(i, result) for i, result in zip(images, results, strict=True) if result]

    # -- to the device ---------------------------------------------------------------------------------------------

    def finish(self, ctx: Context, lane: Lane, out: Batch) -> None:
        """Wait for the threads, report what they refused, and enqueue the copies to the places of ``out``."""
        again: list[int] = []
        for name, tasks, futures in self._parts:
            waited, seconds, odd = 0.0, 0.0, list[Odd]()
            there = Together(lane, sum(int(self._shapes[some].astype(np.int64).prod(axis=1).sum()) for some in tasks),
                             self._rules.dtype)  # fmt: skip
            for some, future in zip(tasks, futures, strict=True):
                began = time.perf_counter()
                done = future.result()
                waited += time.perf_counter() - began
                seconds += done.seconds
                bad = {i for i, problem in done.odd if isinstance(problem, SampleError) or problem == _AGAIN}
                odd += done.odd
                good = np.flatnonzero(~np.isin(some, list(bad))) if bad else slice(None)
                there.add(done.pixels.take(good) if bad else done.pixels, some[good])
            ctx.waited_for(name, waited)
            for i, problem in odd:
                if isinstance(problem, SampleError):
                    self._headers.drop(i)
                    ctx.reject(i, problem.code, str(problem))
                elif problem == _AGAIN:
                    again.append(i)
                else:
                    ctx.decoded_by(problem, 1)
            aside = len(odd) if name != TURBO else 0  # a JPEG counts where it was judged, good or bad
            ctx.decoded_by(name, sum(map(len, tasks)) - aside, seconds)
            there.scatter(out)
        if again:
            ctx.check_later(lambda: np.array(again, np.int64))


def _tasks(sizes: I64) -> list[tuple[int, int]]:
    """Which images [a, b) make a task, given their bytes."""
    found, a, room = [], 0, 0
    for k, nbytes in enumerate(sizes.tolist()):
        if k > a and (k - a == TASK or room + nbytes > BLOCK):
            found.append((a, k))
            a, room = k, 0
        room += nbytes
    return [*found, (a, len(sizes))]


class Together:
    """Samples of several host batches on their way into a device batch: one array there, and one kernel."""

    def __init__(self, lane: Lane, elements: int, dtype: Any) -> None:
        """Room for ``elements`` on the device."""
        self._lane, self._at = lane, 0
        self._data = lane.empty(elements, dtype)
        self._ranges: list[npt.NDArray[Any]] = []

    def add(self, part: Batch, where: I64) -> None:
        """Copy ``part``, in page-locked memory, to the device: the samples ``where`` of the batch it is bound for."""
        if len(where) == 0:
            return
        item, low = part.dtype.itemsize, int(part.offsets.min())
        count = int((part.offsets + part.sizes).max()) - low
        host = part.data[low : low + count]
        self._lane.copy_in(self._lane.address(self._data) + self._at * item, host)
        self._lane.keep(host)
        table = np.zeros(len(where), RANGE)
        table["source"] = (part.offsets - low + self._at) * item
        table["destination"], table["size"] = where, part.sizes * item
        self._ranges.append(table)
        self._at += count

    def scatter(self, out: Batch) -> None:
        """Copy all samples to their places in ``out``, on the device."""
        if not self._ranges:
            return
        item, table = out.dtype.itemsize, np.concatenate(self._ranges)
        where = table["destination"].copy()
        table["destination"] = out.offsets[where] * item
        table["size"] = np.minimum(table["size"], out.sizes[where] * item)
        (ranges,) = self._lane.upload(table.view(np.uint8))
        self._lane.launch("image.cu", "scatter", (32, len(table)), _THREADS, self._data, ranges, out.data)
        self._lane.keep(self._data)


def scatter(lane: Lane, part: Batch, out: Batch, where: I64) -> None:
    """Copy the samples of ``part`` to places ``where`` of ``out``, both on the device and of the same shapes."""
    item = out.dtype.itemsize
    table = np.zeros(len(where), RANGE)
    table["source"] = part.offsets * item
    table["destination"] = out.offsets[where] * item
    table["size"] = np.minimum(part.sizes, out.sizes[where]) * item
    (ranges,) = lane.upload(table.view(np.uint8))
    lane.launch("image.cu", "scatter", (32, len(where)), _THREADS, part.data, ranges, out.data)


def thread_count() -> int:
    """Threads that decode for GPUs."""
    return max(1, len(os.sched_getaffinity(0)) - 2)


@functools.cache
def threads() -> ThreadPoolExecutor:
    """The threads that decode for GPUs; all lanes share them."""
    return ThreadPoolExecutor(thread_count(), thread_name_prefix="decode")
