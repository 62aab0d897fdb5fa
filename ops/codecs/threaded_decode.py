"""The images of a GPU's batch that the CPU decodes: on threads, into page-locked memory that is copied to the device.
Of PNG, TIFF and JPEG 2000 the threads may do a part only, and the GPU the rest (png/on_gpu.py, tiff/on_gpu.py,
jpeg2000/on_gpu.py).

The threads are the process's: images of all batches in flight are in one queue, in the order in which the batches were
begun, so that no core rests while a batch waits. A task is several images: one request to a decoder's process, one call
of a compiled loop, and one block of memory, which is taken when the task begins and given back when the device has the
pixels. So memory is held for what is decoded, not for all that waits to be.
"""

from __future__ import annotations

import functools
import os
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..batch import I32, I64, Batch
from ..context import Context
from ..errors import SampleError
from ..gpu.lane import Lane, pinned_empty
from ..gpu.readable_by_gpu import show
from ..types import DALIImageType
from .gpu_streams import streams
from .gpu_streams.planes import Packed, Where, join, place, restore, unpacking
from .jpeg2000 import on_gpu as jpeg2000
from .native_loops import need_no_colours
from .on_host import (
    CUDA_JPEG_2000,
    CUDA_PNG,
    CUDA_TIFF,
    OTHERS,
    PNG,
    TIFF,
    TURBO,
    Headers,
    Rules,
    decode_jpeg,
    decode_several,
    decode_straight,
)
from .others import encoded_bytes
from .pixels import recolour
from .png import on_gpu as png
from .tiff import on_gpu as tiff

TASK = 8
"""Images of a task, at most: as many as a request to a decoder's process holds."""
FILES = 128
"""Images of a task that only looks through files, at most: a millisecond or some, so that it costs more than handing it
to a thread."""
BLOCK = 8 << 20
"""Bytes of page-locked memory that a task takes, at most, unless one image is larger."""
_SMALL, _STEP = 1 << 18, 1 << 20

RANGE = np.dtype([("source", np.int64), ("destination", np.int64), ("size", np.int64)])
_THREADS = 256

Odd = tuple[int, SampleError | str]
"""An image that its task did not decode: the place in the batch, and the error or the next decoder."""
_AGAIN = "again"
_NOBODY = np.empty(0, np.int64)


@dataclass(slots=True)
class _Done:
    """A task's result."""

    odd: list[Odd]
    """Images that it did not decode."""
    pixels: Batch | None = None
    """Of all but `odd` ones, and of those that a next decoder made."""
    which: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    """The images of `pixels`."""
    packed: Packed | None = None
    """Images that are the GPU's from their streams on, or from their rows on."""
    coded: jpeg2000.Coded | None = None
    """Images that are the GPU's from their code blocks on."""
    rows: Batch | None = None
    """The rows of these, 1-D uint8,"""
    unpacking: streams.Unpacking | None = None
    """or what unpacks their streams."""
    seconds: float = 0.0


class HostPart:
    """The images of a batch that the CPU decodes."""

    def __init__(
        self, ctx: Context, batch: Batch, headers: Headers, rules: Rules, anchors: I64 | None, shapes: I32,
        offsets: I64,
    ) -> None:  # fmt: skip
        """``shapes`` [N, 3] of all images as they are wanted, at ``offsets`` [N] of the output; those whose pixels turn
        out of another shape are tried again. ``anchors`` [N, 2]: where each begins (y, x) in the decoded picture, if
        not at its corner."""
        self._where = Where(offsets, shapes, anchors, rules.output_type is DALIImageType.BGR)
        self._looking: png.Streams | None = None
        """The PNGs that are being looked through."""
        self._batch, self._headers, self._rules, self._anchors, self._shapes = batch, headers, rules, anchors, shapes
        self._isolation = ctx.isolation
        self._parts: list[tuple[str, list[I64], list[Future[_Done]], int]] = []
        self.nbytes = 0
        """Bytes of page-locked memory, at most."""
        self.wants_files = False
        """The device needs the files, too."""

    def keep(self, others: dict[int, Any]) -> None:
        """Take whole pictures that are decoded already."""

        def placed(host: HostPart, which: I64, part: Batch) -> list[Odd]:
            for k, i in enumerate(which.tolist()):
                host._place(part, k, i, others[i])
            return []

        self._start(OTHERS, np.array(sorted(others), np.int64), placed)

    def start(self, which: I64) -> None:
        """Decode the JPEGs ``which`` on the threads."""
        self._start(TURBO, which, HostPart._jpegs)

    def start_others(self, straight: Mapping[str, I64], elsewhere: npt.NDArray[np.bool_]) -> None:
        """Decode what is no JPEG on the threads; ``native_loops``: those that `decode_straight` takes, by its decoders'
        names, ``elsewhere`` [N]: those that the GPU does."""
        rest = self._headers.other & self._headers.good & ~elsewhere
        for taken in straight.values():
            rest[taken] = False
        coded = np.flatnonzero(rest & self._may_be_coded())
        rest[coded], self.wants_files = False, len(coded) > 0
        self._submit(CUDA_JPEG_2000, coded, np.zeros(len(coded), np.int64), HostPart._code_blocks)
        self._start(OTHERS, np.flatnonzero(rest), HostPart._others)
        ours = straight.get(TIFF, _NOBODY)
        unpacked = tiff.takes(self._batch, ours)
        self.wants_files |= bool(unpacked.any())
        self._submit(CUDA_TIFF, ours[unpacked], np.zeros(np.count_nonzero(unpacked), np.int64), HostPart._strips, -1)
        self._start(TIFF, ours[~unpacked], functools.partial(HostPart._straight, name=TIFF))
        ours = straight.get(PNG, _NOBODY)
        room = self._room(ours)
        by_gpu = (room > 0) & (room <= png.MOST)
        inflated = by_gpu.copy()
        inflated[by_gpu] = streams.for_warps(room[by_gpu])
        self.wants_files |= bool(inflated.any())
        self._look_through(ours[inflated])
        by_thread = by_gpu & ~inflated
        self._submit(PNG, ours[by_thread], room[by_thread], HostPart._filtered)
        self._start(PNG, ours[~by_gpu], functools.partial(HostPart._straight, name=PNG))

    def _may_be_coded(self) -> npt.NDArray[np.bool_]:
        """[N] Images that may be JPEG 2000 whose code blocks the GPU decodes, by their headers."""
        headers, rules, isolation = self._headers, self._rules, self._isolation
        if rules.dtype != np.uint8 or (isolation is not None and isolation.jpeg):
            return np.zeros(len(headers.rows), np.bool_)
        shown = need_no_colours(headers.rows, rules.output_type) & (headers.orientation == 1)
        coded: npt.NDArray[np.bool_] = jpeg2000.takes(headers.rows) & shown
        return coded

    def _start(self, name: str, which: I64, decode: Callable[[HostPart, I64, Batch], list[Odd]]) -> None:
        """Have tasks ``decode`` images to the samples of a batch."""

        def task(host: HostPart, some: I64) -> _Done:
            part = host._stage(some)
            odd = decode(host, some, part)
            left = [i for i, problem in odd if isinstance(problem, SampleError) or problem == _AGAIN]
            kept = ~np.isin(some, left)
            return _Done(odd, part.take(kept), some[kept]) if left else _Done(odd, part, some)

        sizes = self._shapes[which].astype(np.int64).prod(axis=1) * self._rules.dtype.itemsize
        self._submit(name, which, sizes, task)

    def _look_through(self, which: I64) -> None:
        """Have tasks look through the PNGs ``which``, and then one say what the GPU does with them."""
        if len(which) == 0:
            return
        self._looking = png.Streams(self._batch, which, *self._extents(which), self._where.bgr)
        wanted = weakref.ref(self)

        def look(some: slice) -> float:
            began, host = time.perf_counter(), wanted()
            if host is None or host._looking is None:
                return 0.0
            host._looking.look(some.start, some.stop)
            return time.perf_counter() - began

        cuts = [slice(a, min(a + FILES, len(which))) for a in range(0, len(which), FILES)]
        parts = [threads().submit(look, cut) for cut in cuts]

        def plan(host: HostPart, which: I64) -> _Done:
            began = time.perf_counter()
            seconds = sum(part.result() for part in parts)  # they were begun before this one
            waited = time.perf_counter() - began
            assert host._looking is not None
            done = host._planned(which, *host._looking.found())
            done.seconds, host._looking = seconds - waited, None
            return done

        self._submit(CUDA_PNG, which, np.zeros(len(which), np.int64), plan, -1)

    def _submit(self, name: str, which: I64, sizes: I64, task: Callable[[HostPart, I64], _Done], most: int = 0) -> None:
        """Give the threads tasks of images ``which``, at most so many (`TASK`; -1: all, of which as much as the host
        sees is enough), whose results take ``sizes`` bytes. Those that have not begun when nobody wants the batch any
        more end at once."""
        if len(which) == 0:
            return
        wanted = weakref.ref(self)

        def timed(some: I64) -> _Done:
            began, host = time.perf_counter(), wanted()
            if host is None:
                return _Done([])
            if most >= 0:
                show(host._batch, some)
            done = task(host, some)
            done.seconds += time.perf_counter() - began
            return done

        cuts = _tasks(sizes, most or TASK) if most >= 0 else [(0, len(which))]
        self.nbytes += sum(_block(int(sizes[a:b].sum())) for a, b in cuts) if sizes.any() else 0
        tasks = [which[a:b] for a, b in cuts]
        self._parts.append((name, tasks, [threads().submit(timed, some) for some in tasks], int(sizes.sum())))

    def _stage(self, which: I64) -> Batch:
        return Batch.allocate(
            _page_locked, self._shapes[which], self._rules.dtype, "HWC", self._batch.samples.take(which)
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
                bad.append((i, e.bare()))
        return bad

    def _straight(self, which: I64, part: Batch, name: str) -> list[Odd]:
        places = np.arange(len(which))
        left = places[decode_straight(name, self._batch, which, self._rules, self._anchors, part, places)]
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

    def _room(self, which: I64) -> I64:
        """Bytes of the filtered rows of PNGs."""
        return png.room(png.planes(self._batch, which, *self._extents(which)), len(which))

    def _extents(self, which: I64) -> tuple[I64, I64]:
        return self._headers.height[which], self._headers.width[which]

    def _filtered(self, which: I64) -> _Done:
        """Rows of PNGs, which the GPU makes pixels of; pixels of those that turn out odd."""
        room = self._room(which)
        shapes = room.astype(np.int32)[:, None]
        rows = Batch.allocate(_page_locked, shapes, np.uint8, "", self._batch.samples.take(which))
        sizes, places = self._extents(which), rows.offsets
        packed, taken = png.inflate(self._batch, which, *sizes, self._where.bgr, rows.data, places, room)
        done = self._whole(which[~taken])
        done.packed, done.rows = packed, rows if taken.all() else rows.take(taken)
        return done

    def _strips(self, which: I64) -> _Done:
        """Plan what the GPU does with strips and tiles of TIFFs."""
        return self._planned(which, *tiff.strips(self._batch, which))

    def _planned(self, which: I64, packed: Packed, taken: npt.NDArray[np.bool_]) -> _Done:
        """Plan what the GPU does with streams that are ``packed``, of the images ``which``; decode those that turn out
        odd and were not ``taken``."""
        done = self._whole(which[~taken])
        done.packed = packed
        done.unpacking = unpacking(packed, self._where)
        return done

    def _code_blocks(self, which: I64) -> _Done:
        """Where the code blocks of JPEG 2000 are, and what the GPU must know of them; pixels of what turns out odd."""
        coded, taken = jpeg2000.read(self._batch, which, *self._extents(which))
        done = self._whole(which[~taken])
        done.coded = coded
        return done

    def _whole(self, which: I64) -> _Done:
        """Pixels of the images ``which``, by the decoder of all formats."""
        if not len(which):
            return _Done([])
        show(self._batch, which)
        part = self._stage(which)
        found = dict(self._others(which, part))
        kept = np.array([not found.get(i) for i in which.tolist()], np.bool_)
        return _Done([(i, found.get(i, OTHERS)) for i in which.tolist()], part.take(kept), which[kept])

    # -- to the device ---------------------------------------------------------------------------------------------

    def finish(self, ctx: Context, lane: Lane, out: Batch, files: Batch) -> None:
        """Wait for the threads, report what they refused, and enqueue the copies to the places of ``out``. ``files``:
        the encoded images, on the device where it `wants_files`."""
        again: list[int] = []
        for name, tasks, futures, nbytes in self._parts:
            waited, seconds, odd, parts = 0.0, 0.0, list[Odd](), list[_Done]()
            for future in futures:
                began = time.perf_counter()
                done = future.result()
                waited += time.perf_counter() - began
                seconds += done.seconds
                odd += done.odd
                parts.append(done)
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
            found = [done.packed for done in parts if done.packed is not None]
            coded = [done.coded for done in parts if done.coded is not None]
            there = Together(lane, nbytes)
            for done in parts:
                if done.packed is not None and done.rows is not None:
                    there.add(done.rows, done.packed.owner)
                if done.pixels is not None and not found and not coded:
                    there.add(done.pixels, done.which)
                elif done.pixels is not None and len(done.which):
                    scatter(lane, lane.to_device(done.pixels), out, done.which)
            if coded:
                jpeg2000.decode(lane, files, coded, out, self._anchors, self._where.bgr)
            elif not found:
                there.scatter(out)
            elif parts[0].unpacking is None:
                packed = join(found)
                place(packed, there.copy()[1], self._where)
                restore(ctx, lane, packed, there.data, out, name)
            elif len(found[0].owner):
                rows, bad = streams.unpack(lane, files, parts[0].unpacking)
                restore(ctx, lane, found[0], rows, out, name, bad)
        if again:
            ctx.check_later(lambda: np.array(again, np.int64))


def _page_locked(n: int, dtype: Any) -> npt.NDArray[Any]:
    nbytes = n * np.dtype(dtype).itemsize
    return pinned_empty(_block(nbytes))[:nbytes].view(dtype)


def _block(nbytes: int) -> int:
    """Bytes of the block for ``nbytes``, of few sizes: the pool gives one out again only for the size that it was made
    for, and making one takes milliseconds."""
    return nbytes if nbytes > BLOCK else _SMALL if nbytes <= _SMALL else -(-nbytes // _STEP) * _STEP


def _tasks(sizes: I64, most: int) -> list[tuple[int, int]]:
    """Which images [a, b) make a task, ``most`` of them at most, given their bytes."""
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
        """Room for ``nbytes`` on the device."""
        self._lane, self._at = lane, 0
        self.data = lane.empty(nbytes, np.uint8)
        """The samples' bytes, on the device."""
        self._added: list[tuple[I64, I64, I64]] = []
        self._pieces: list[tuple[int, int, int]] = []

    def add(self, part: Batch, which: I64) -> None:
        """Take ``part``, in page-locked memory: the samples ``which`` of the batch it is bound for."""
        if int(part.sizes.sum()) == 0:
            return
        item, low = part.dtype.itemsize, int(part.offsets.min())
        host = part.data[low : int((part.offsets + part.sizes).max())]
        self._pieces.append((self._lane.address(self.data) + self._at, host.ctypes.data, host.nbytes))
        self._lane.keep(host)
        self._added.append((which, (part.offsets - low) * item + self._at, part.sizes * item))
        self._at += host.nbytes

    def copy(self) -> tuple[I64, I64, I64]:
        """Enqueue the copies to the device. Of all samples: which they are, where each begins in `data`, its bytes."""
        if not self._added:
            return (np.empty(0, np.int64),) * 3
        to, host, nbytes = np.array(self._pieces, np.int64).T.copy()
        self._lane.copies_in(to, host, nbytes)
        which, starts, sizes = (np.concatenate(column) for column in zip(*self._added, strict=True))
        return which, starts, sizes

    def scatter(self, out: Batch) -> None:
        """Copy all samples to their places in ``out``, on the device."""
        which, starts, sizes = self.copy()
        _scatter(self._lane, self.data, starts, sizes, out, which)
        self._lane.keep(self.data)


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
