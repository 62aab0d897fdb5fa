"""Decode images into GPU memory (the mixed stage), with the decoders of `decoder_table`.

GPU decoders take the images that they support; at the same time, CPU threads decode the others, and large images that
the GPU would decode serially (`costs`). All decoders are exact: neither pixels nor rejects depend on which one is used.
The engine runs images that fail a check on the GPU again, with ``attempt`` 1; CPU decoders then decode them, and decide
whether a file is damaged. CPU threads are started first, to work at the same time as the GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..batch import I64, Batch, packed_places
from ..context import Context
from ..errors import Reject
from ..gpu.lane import Lane, places_on_device
from ..gpu.readable_by_gpu import show
from .decoder_table import DecodeJob, deal, thread_rows
from .gpu_table import GpuWork, deal_to_gpu, gpu_rows
from .headers import Rules, Windows, cut, output_shapes, read_headers
from .jpeg import header as jpeg_header
from .jpeg.on_gpu import makes, takes
from .library import decode_first
from .threaded_decode import ThreadedDecode, threads


@dataclass(slots=True)
class Prepared:
    """Prepared batch: everything that the host does before a GPU decodes the images, such as reading headers, choosing
    windows and starting CPU threads. Created by `prepare`; used once, by the thread that launches kernels."""

    job: DecodeJob
    threads: ThreadedDecode
    work: list[GpuWork]
    """Prepared work of each GPU decoder, in the order in which decoders are launched."""
    needs_files: bool
    """Whether the encoded files must be copied to the device."""
    elements: int
    """Total number of elements of all decoded images."""
    rejects: list[Reject]
    """Samples that `prepare` has rejected, as reported to its Context."""

    @property
    def batch(self) -> Batch:
        """The batch of encoded images."""
        return self.job.batch

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that the prepared work occupies."""
        return self.threads.nbytes + sum(work.nbytes for work in self.work)

    def fits(self, batch: Batch) -> bool:
        """Return whether exactly the samples of ``batch`` were prepared."""
        return np.array_equal(self.batch.samples.slot, batch.samples.slot)


def prepare(
    ctx: Context, batch: Batch, rules: Rules, windows: Windows | None, staging: Callable[[int], npt.NDArray[np.uint8]],
    places: I64,
) -> Prepared:  # fmt: skip
    """Do the host's work before a GPU decodes a batch: read headers, choose windows, and assign images to decoders.
    ``staging`` allocates host memory for data to upload. ``places``: offset of each file in the batch on the device."""
    if ctx.attempt:  # CPU decoders decode these images
        show(batch)
    headers = read_headers(ctx, batch, rules)
    job = DecodeJob(ctx, batch, headers, rules, staging=staging)
    # Headers of other formats are trusted at the first attempt: an image for which that proves wrong is retried alone.
    first = decode_first(job, np.flatnonzero(headers.other).tolist(), threads().map) if ctx.attempt else {}
    heights, widths = headers.height, headers.width
    if windows is not None:
        job.anchors, sizes = cut(ctx, headers, windows)
        heights, widths = sizes[:, 0], sizes[:, 1]
    job.shapes, job.places = output_shapes(headers, rules, heights, widths), places
    job.offsets, elements = packed_places(job.shapes)
    helpers, left = ThreadedDecode(job), headers.good.copy()
    if first:
        left[list(first)] = False
        helpers.place({i: pixels for i, pixels in first.items() if headers.good[i]})
    rows = () if ctx.attempt else gpu_rows()
    dealt = deal_to_gpu(job, np.flatnonzero(left), rows)
    for some in dealt:
        left[some] = False
    if left.any():
        helpers.start(deal(job, np.flatnonzero(left), thread_rows()))
    work, needs_files = list[GpuWork](), False
    # work that runs concurrently with JPEG's kernels is launched before them
    for row, some in reversed(list(zip(rows, dealt, strict=True))):
        if len(some):
            needs_files |= row.needs_files
            started = row.start(job, some, helpers)
            work += [] if started is None else [started]
    return Prepared(job, helpers, work, needs_files, elements, ctx.rejects)


def start_early(ctx: Context, batch: Batch, rules: Rules, windows: Windows | None = None) -> Prepared | None:
    """Call `prepare` in a thread that reads files, to unburden the one that launches kernels. After an error, return
    None: `start` then calls `prepare` again and raises the error."""
    with suppress(Exception):  # `start` raises the error again, in a context that names the operator and its samples
        return prepare(ctx, batch, rules, windows, ctx.staging, places_on_device(batch))
    return None


def decode(ctx: Context, batch: Batch, rules: Rules, windows: Windows | None = None) -> Batch:
    """Decode the images of ``batch`` (host, 1-D uint8) on the device, as HWC. ``windows``: function that chooses the
    window of each image to decode; None for whole images."""
    return start(ctx, batch, rules, windows)()


def start(
    ctx: Context, batch: Batch, rules: Rules, windows: Windows | None = None, files: Batch | None = None
) -> Callable[[], Batch]:  # fmt: skip
    """Start decoding a batch like `decode`. Return a function that waits for CPU threads, completes the work and
    returns the images; work launched before its call runs at the same time on the device. ``files``: the same batch on
    the device, if it is already there."""
    lane = cast("Lane", ctx.device)
    ready: Prepared | None = (
        ctx.started if ctx.started is not None and not ctx.attempt and ctx.started.fits(batch) else None
    )
    if ready is None:
        places = places_on_device(batch) if files is None else files.offsets
        ready = prepare(ctx, batch, rules, windows, cast("Any", lane).pinned, places)
    elif ready.rejects is not ctx.rejects:
        known = {r.slot for r in ctx.rejects}
        ctx.rejects.extend(r for r in ready.rejects if r.slot not in known)
    job, helpers = ready.job, ready.threads
    job.ctx, batch = replace(ctx, started=None), ready.batch  # a started work in the context would refer to the job
    out = Batch.sized(ctx.empty(ready.elements, rules.dtype), job.offsets, job.shapes, "HWC", batch.samples,
                      ready.elements)  # fmt: skip
    if files is None:
        files = lane.to_device(batch) if ready.needs_files else batch
    refused = [work.launch(job, lane, files, out) for work in ready.work]
    for left in refused:
        if len(left):
            helpers.start(deal(job, left, thread_rows()))
    _count_reasons(job, refused)

    def finish() -> Batch:
        helpers.finish(lane, out, files)
        for work in ready.work:
            work.finish(job)
        lane.keep(batch.data)
        return out

    return finish


def _count_reasons(job: DecodeJob, refused: Sequence[I64]) -> None:
    """Count for the report why some JPEGs are not decoded by the CUDA decoder. ``refused``: images that it tried and
    left to other decoders."""
    ctx, headers = job.ctx, job.headers
    plain = makes(job.rules) and not headers.unusual and not any(map(len, refused))
    if ctx.services.count is None or ctx.attempt or job.rules.jpeg_decoder != "auto" or plain:
        return
    left = ~takes(headers, job.rules)
    for some in refused:
        left[some] = True
    left &= headers.good & ~headers.other
    if left.any():
        for reason, n in jpeg_header.why_not_plain(headers.jpeg[left]).items():
            ctx.fell_back(f"not for the CUDA JPEG decoder: {reason}", n)
