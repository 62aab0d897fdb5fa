"""Decoding onto the GPU (the mixed stage): a JPEG goes to a decoder that takes its kind, and on failure to the next.

Our CUDA decoder takes the baseline images (of four components, too) and the progressive ones; threads of the CPU take
what it leaves or refuses. Both are exact: pixels and verdicts do not depend on which of them it was. Lossy WebPs have a
CUDA decoder, too, and so have PNGs and plain TIFFs where a batch holds enough of them; pixels of BMP and PNM are moved.

Where nvJPEG is asked for, or what is wanted is not what our decoder makes, the engines (or, on a GPU without any,
nvJPEG's batched decoding on its cores) take baseline images, as one call a batch; nvJPEG's hybrid decoders, on threads,
take progressive and other odd ones; threads of the CPU take the rest, what the others refused, and a share of the load.

The decoder of a JPEG follows from the sample alone. Threads are started first, to work while our kernels do.
"""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..batch import I32, I64, Batch, packed_places
from ..context import Context
from ..errors import DeviceError, Reject
from ..gpu.lane import Lane, places_on_device
from ..gpu.readable_by_gpu import show
from ..types import DALIImageType
from .jpeg import header as jpeg_header
from .jpeg import nvjpeg
from .jpeg.nvjpeg import Backend, Output
from .on_cuda import PixelPlan, makes, makes_four, plan_pixels, run_pixels, takes
from .on_host import Headers, Rules, Windows, copied, cut, decode_others, output_shapes, read_headers, straight
from .pixels import channels_of
from .threaded_decode import HostPart, thread_count, threads
from .uncompressed import on_gpu as plain
from .webp import on_gpu as webp

Mask = npt.NDArray[np.bool_]

ENGINE_RATE, THREAD_RATE = 2700, 350
"""Images a second of one JPEG engine and of one CPU thread on ImageNet files (H200 and its host): they set the share
of the engines, which must not depend on the clock, or results would."""

_engines: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)
"""One batch of a GPU at a time: several handles at once share the engines badly (one H200: 17.7k images/s with one,
12.2k with four)."""

PLACEMENT = np.dtype(
    [("source", np.int64), ("destination", np.int64)]
    + [(n, np.int32) for n in ("width", "height", "channels", "orientation", "y", "x", "rows", "columns")]
)
_BLOCK = 256


@dataclass(slots=True)
class DecodeJob:
    """One batch on its way: where every image is and where its pixels go."""

    ctx: Context
    lane: Lane
    batch: Batch
    headers: Headers
    rules: Rules
    anchors: I64 | None
    """[N, 2] corners (y, x) of the windows, in the oriented image."""
    out: Batch
    """The output, on the device."""
    scratch: Any = None
    """Device memory of the images that nvJPEG may not write straight into the output."""
    target: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    """[N] device address that nvJPEG writes image i to, as it is stored."""
    direct: Mask = field(default_factory=lambda: np.empty(0, np.bool_))
    """[N] that address is in the output."""

    def data(self, which: I64) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Host addresses and lengths of the encoded images."""
        address = self.batch.offsets[which] + self.batch.data.ctypes.data
        return address.astype(np.uint64), self.batch.shapes[which, 0].astype(np.uint64)

    def images(self, which: I64) -> npt.NDArray[np.uint64]:
        """nvJPEG's destinations."""
        pitch = self.headers.jpeg["width"][which].astype(np.int64) * stored_channels(self.headers, self.rules)[which]
        return nvjpeg.destinations(0, self.target[which], pitch)


def stored_channels(headers: Headers, rules: Rules) -> I64:
    """[N] channels that a JPEG is decoded to before its colour is converted."""
    if rules.output_type is DALIImageType.ANY_DATA:
        return headers.channels
    space = DALIImageType.RGB if rules.output_type is DALIImageType.YCbCr else rules.output_type
    return np.full(len(headers.good), channels_of(space, 3), np.int64)


def decode(
    ctx: Context, batch: Batch, rules: Rules, decoder: str = "auto", load: float = -1.0, windows: Windows | None = None
) -> Batch:
    """The images of ``batch`` (host, 1-D uint8) on the device, as HWC, or what ``windows`` cut out of them.

    ``decoder``: "nvjpeg" leaves out our CUDA decoder. ``load``: the engines' part of the images that they could take,
    and our decoder does not; -1 for a balance with the CPU's threads.
    """
    return start(ctx, batch, rules, decoder, load, windows)()


@dataclass(slots=True)
class Prepared:
    """The host's part of a batch before a device is asked: headers, windows, and formats other than JPEG."""

    batch: Batch
    headers: Headers
    anchors: I64 | None
    shapes: I32
    host: HostPart
    rejects: list[Reject]
    jpegs: Mask
    """[N] JPEGs that the threads have begun with."""
    webps: Mask
    """[N] WebPs that the GPU decodes."""
    plains: tuple[I64, I64]
    """Images that the GPU copies out of their files: `copied`."""
    offsets: I64
    """[N] of the output."""
    elements: int
    """Of the output."""
    pixels: PixelPlan | None = None
    """The plan of those that our CUDA decoder takes, if it was made ahead."""

    @property
    def nbytes(self) -> int:
        """Bytes of host memory."""
        return self.host.nbytes + (0 if self.pixels is None else self.pixels.nbytes)

    def fits(self, batch: Batch) -> bool:
        """It is about these samples."""
        return np.array_equal(self.batch.samples.slot, batch.samples.slot)


def prepare(
    ctx: Context, batch: Batch, rules: Rules, decoder: str = "auto", windows: Windows | None = None
) -> Prepared:
    """Read the headers, choose the windows, and start the threads on all that no decoder of the GPU takes."""
    if ctx.attempt:  # the host decodes them
        show(batch)
    headers = read_headers(ctx, batch, rules)
    # What headers say of other formats is believed once: where it turns out wrong, the image is tried again alone.
    other = headers.other
    others: dict[int, Any] = {}
    if ctx.attempt:
        others = decode_others(ctx, batch, headers, rules, np.flatnonzero(other).tolist(), threads().map)
    anchors, heights, widths = None, headers.height, headers.width
    if windows is not None:
        anchors, sizes = cut(ctx, headers, windows)
        heights, widths = sizes[:, 0], sizes[:, 1]
    shapes = output_shapes(headers, rules, heights, widths)
    offsets, elements = packed_places(shapes)
    host = HostPart(ctx, batch, headers, rules, anchors, shapes, offsets)
    webps = np.zeros(len(batch), np.bool_)
    plains = copied(batch, headers, rules, ctx.isolation) if not ctx.attempt else _NONE
    if others:
        host.keep(others)
    elif headers.odd:
        if not ctx.attempt:
            webps = webp.takes(batch, headers, rules)
        elsewhere = webps.copy()
        elsewhere[plains[0]] = True
        host.start_others(straight(batch, headers, rules, ctx.isolation), elsewhere)
    jpegs = np.zeros(len(batch), np.bool_)
    if exactly(rules, decoder) and not ctx.attempt and headers.odd:
        jpegs = headers.good & ~takes(headers, rules)
        jpegs &= ~other
        host.start(np.flatnonzero(jpegs))
    return Prepared(batch, headers, anchors, shapes, host, ctx.rejects, jpegs, webps, plains, offsets, elements)


_NONE = np.empty(0, np.int64), np.empty((0, 4), np.int64)


def exactly(rules: Rules, decoder: str) -> bool:
    """JPEGs that our CUDA decoder leaves go to the CPU, whose pixels are the same."""
    return decoder != "nvjpeg" and makes(rules)


def begin(
    ctx: Context, batch: Batch, rules: Rules, decoder: str = "auto", windows: Windows | None = None, *,
    planned: bool = False,
) -> Prepared | None:  # fmt: skip
    """`prepare` ahead of `start`, where there is anything for threads to do, or, with ``planned``, to plan: then our
    CUDA decoder's images are planned here, too, instead of by the thread that launches."""
    status = jpeg_header.rows_of(batch)["status"]
    theirs = status == jpeg_header.NOT_JPEG
    if exactly(rules, decoder):
        theirs |= (status != jpeg_header.OK) & (status != jpeg_header.MANY_SCANS) & (status != jpeg_header.FOUR)
        if not makes_four(rules):
            theirs |= status == jpeg_header.FOUR
    planned = planned and exactly(rules, decoder)
    if not planned and not theirs.any():
        return None
    ready = prepare(ctx, batch, rules, decoder, windows)
    if planned:
        with suppress(Exception):  # `start` meets it again, where it is told of the operator and its samples
            ready.pixels = _pixels(ctx, ready, rules, places_on_device(batch), ctx.staging)
    return ready


def _pixels(
    ctx: Context, ready: Prepared, rules: Rules, places: I64, stage: Callable[[int], npt.NDArray[np.uint8]]
) -> PixelPlan | None:
    which = takes(ready.headers, rules)
    return plan_pixels(
        ctx, ready.batch, ready.headers, rules, which, ready.anchors, ready.shapes, ready.offsets, places, stage
    )


def start(
    ctx: Context, batch: Batch, rules: Rules, decoder: str = "auto", load: float = -1.0,
    windows: Windows | None = None, files: Batch | None = None,
) -> Callable[[], Batch]:  # fmt: skip
    """Start what `decode` does; what is returned does the rest, and may wait for engines and threads. What is launched
    in between runs on the device at the same time. ``files``: the same batch on the device, where it is there."""
    lane = cast("Lane", ctx.device)
    ready: Prepared | None = ctx.begun if ctx.begun is not None and not ctx.attempt and ctx.begun.fits(batch) else None
    if ready is None:
        ready = prepare(ctx, batch, rules, decoder, windows)
    elif ready.rejects is not ctx.rejects:
        known = {r.slot for r in ctx.rejects}
        ctx.rejects.extend(r for r in ready.rejects if r.slot not in known)
    batch, headers, anchors, host = ready.batch, ready.headers, ready.anchors, ready.host
    out = Batch.sized(
        ctx.empty(ready.elements, rules.dtype), ready.offsets, ready.shapes, "HWC", batch.samples, ready.elements
    )
    left = headers.good & ~headers.other
    pixels, webps = None, np.flatnonzero(ready.webps & headers.good)
    if files is None:
        files = lane.to_device(batch) if len(webps) or len(ready.plains[0]) or host.wants_files else batch
    plain.copy(ctx, lane, files, rules, *ready.plains, anchors, out)
    finish_webps = webp.decode(ctx, lane, files, headers, rules, webps, anchors, out)
    if decoder != "nvjpeg" and ctx.attempt == 0:
        pixels = ready.pixels
        if pixels is not None or takes(headers, rules).any():
            files = lane.to_device(files)
        if pixels is None:
            pixels = _pixels(ctx, ready, rules, files.offsets, cast("Any", lane).pinned)
        if pixels is not None:
            left &= ~pixels.taken
        if ctx.count is not None and left.any():
            for reason, n in jpeg_header.why_not_plain(headers.jpeg[left]).items():
                ctx.count(f"not for the CUDA JPEG decoder: {reason}", n)
    left &= ~ready.jpegs
    none = ctx.attempt or exactly(rules, decoder) or not left.any()
    batched, hybrid = (None, None) if none else decoders(lane, rules.fancy_upsampling)
    by_engine = left & batched.takes(batch, headers) & _share(ctx, batched, load) if batched else np.zeros_like(left)
    by_hybrid = left & ~by_engine & hybrid.takes(batch, headers, rules) if hybrid else np.zeros_like(left)
    job = DecodeJob(ctx, lane, batch, headers, rules, anchors, out)
    if (by_engine | by_hybrid).any():
        _targets(job, by_engine | by_hybrid)
    host.start(np.flatnonzero(left & ~by_engine & ~by_hybrid))
    hybrids = hybrid.start(job, np.flatnonzero(by_hybrid)) if hybrid else []
    if pixels is not None:
        run_pixels(ctx, files, pixels, out)

    def finish() -> Batch:
        refused = batched.decode(job, np.flatnonzero(by_engine)) if batched else []
        failed = [i for future in hybrids for i in future.result()]
        if batched:
            ctx.decoded_by(batched.name, int(np.count_nonzero(by_engine)) - len(refused))
        ctx.decoded_by("nvjpeg hybrid", int(np.count_nonzero(by_hybrid)) - len(failed))
        failed += refused
        host.start(np.array(sorted(failed), np.int64))
        placed = by_engine | by_hybrid
        placed[failed] = False
        _place(job, np.flatnonzero(placed))
        host.finish(ctx, lane, out, files)
        finish_webps()
        lane.keep(batch.data)
        return out

    return finish


def _share(ctx: Context, batched: BatchedDecoder, load: float) -> Mask:
    """Which samples the engines may take: a fixed part, chosen by the sample, not by its place in the batch."""
    if load < 0:
        engines = batched.engines * ENGINE_RATE
        load = engines / (engines + THREAD_RATE * thread_count()) if engines else 1.0
    mixed = (ctx.samples.index.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    return (mixed >> np.uint64(40)).astype(np.float64) < load * 2**24


def _targets(job: DecodeJob, which: Mask) -> None:
    """Choose where nvJPEG writes the images ``which`` to: the output where nothing more is to be done, scratch memory
    else."""
    headers, rules = job.headers, job.rules
    direct = headers.orientation == 1
    if job.anchors is not None or rules.dtype != np.uint8 or rules.output_type is DALIImageType.YCbCr:
        direct = np.zeros_like(direct)
    jpeg = headers.jpeg
    sizes = jpeg["width"].astype(np.int64) * jpeg["height"] * stored_channels(headers, rules)
    sizes = np.where(which & ~direct, sizes, 0)
    starts = np.cumsum(sizes) - sizes
    scratch = job.ctx.empty(int(sizes.sum()), np.uint8)
    base = int(scratch.data.ptr) if int(sizes.sum()) else 0
    job.scratch, job.direct = scratch, direct
    job.target = np.where(direct, job.out.offsets + int(job.out.data.data.ptr), starts + base)


def _place(job: DecodeJob, which: I64) -> None:
    """Turn, cut and convert those of ``which`` that were decoded into scratch memory."""
    which = which[~job.direct[which]]
    if len(which) == 0:
        return
    jpeg = job.headers.jpeg
    table = np.zeros(len(which), PLACEMENT)
    table["source"] = job.target[which] - int(job.scratch.data.ptr)
    table["destination"] = job.out.offsets[which]
    table["width"], table["height"] = jpeg["width"][which], jpeg["height"][which]
    table["channels"] = stored_channels(job.headers, job.rules)[which]
    table["orientation"] = job.headers.orientation[which]
    if job.anchors is not None:
        table["y"], table["x"] = job.anchors[which, 0], job.anchors[which, 1]
    table["rows"], table["columns"] = job.out.shapes[which, 0], job.out.shapes[which, 1]
    (placements,) = job.lane.upload(table.view(np.uint8))
    to_ycbcr = np.int32(job.rules.output_type is DALIImageType.YCbCr)
    grid = (64, len(which))
    kernel = f"place_{job.rules.dtype.name}"
    job.lane.launch("image.cu", kernel, grid, _BLOCK, job.scratch, placements, job.out.data, to_ycbcr)


# -- nvJPEG -----------------------------------------------------------------------------------------------------------


def decoders(lane: Lane, fancy: bool) -> tuple[BatchedDecoder | None, HybridDecoder | None]:
    """The nvJPEG decoders of a lane, made at its first use; None where the library or the GPU has none."""
    key = f"nvjpeg {fancy}"
    if key not in lane.cache:
        lane.cache[key] = _open_batched(fancy), _open_hybrid(lane, fancy)
    found: tuple[BatchedDecoder | None, HybridDecoder | None] = lane.cache[key]
    return found


def _open_batched(fancy: bool) -> BatchedDecoder | None:
    for backend in (Backend.HARDWARE, Backend.GPU_HYBRID):
        try:
            decoder = nvjpeg.Decoder(backend, fancy)
        except (nvjpeg.NvJpegError, DeviceError):
            continue
        if backend is Backend.GPU_HYBRID or decoder.engines():
            return BatchedDecoder(decoder)
        decoder.close()
    return None


def _open_hybrid(lane: Lane, fancy: bool) -> HybridDecoder | None:
    try:
        nvjpeg.library()
    except DeviceError:
        return None
    return HybridDecoder(lane, fancy)


def _output(rules: Rules) -> Output:
    if rules.output_type is DALIImageType.GRAY:
        return Output.Y
    return Output.BGR if rules.output_type is DALIImageType.BGR else Output.RGB


def _whole(batch: Batch) -> Mask:
    """The file ends with EOI. What does not may be cut off; libjpeg-turbo knows, the engines do not say."""
    last = np.maximum(batch.offsets + batch.shapes[:, 0] - 1, 1)
    last = np.minimum(last, max(len(batch.data) - 1, 0))
    if len(batch.data) < 2:
        return np.zeros(len(batch), np.bool_)
    ends: Mask = (batch.data[last - 1] == 0xFF) & (batch.data[last] == 0xD9)
    return ends


class BatchedDecoder:
    """One nvJPEG call for all images: hardware engines, or the GPU's cores."""

    def __init__(self, decoder: nvjpeg.Decoder) -> None:
        self._decoder = decoder
        self.engines = decoder.engines()
        self.name = "engines" if self.engines else "nvjpeg"

    def takes(self, batch: Batch, headers: Headers) -> Mask:
        """Baseline YCbCr in one scan, of the common samplings."""
        jpeg = headers.jpeg
        plain: Mask = (jpeg["status"] == jpeg_header.OK) & (jpeg["sof"] == 0xC0) & (jpeg["quant_16bit"] == 0)
        plain &= (jpeg["scans"] == 1) & (jpeg["components"] == 3) & (jpeg["colour"] == jpeg_header.YCBCR)
        h, v = jpeg["h"], jpeg["v"]
        plain &= (h[:, 0] <= 2) & (v[:, 0] <= 2) & (h[:, 1:3] == 1).all(axis=1) & (v[:, 1:3] == 1).all(axis=1)
        plain &= (jpeg["width"] >= 16) & (jpeg["height"] >= 16) & (jpeg["width"] <= 16384) & (jpeg["height"] <= 16384)
        return plain & _whole(batch)

    def decode(self, job: DecodeJob, which: I64) -> list[int]:
        """Enqueue ``which`` on the lane's stream; returns those that nvJPEG refused."""
        if len(which) == 0:
            return []
        # The engines take images one after the other: the largest first, and none is still busy when the rest is idle.
        pixels = job.headers.height[which] * job.headers.width[which]
        return self._decode(job, which[np.argsort(-pixels, kind="stable")])

    def _decode(self, job: DecodeJob, which: I64) -> list[int]:
        """A refused batch is halved until the images at fault are found: the others' pixels must not depend on them."""
        data, lengths = job.data(which)
        images = job.images(which)
        job.lane.keep(data, lengths, images)
        try:
            with _engines[job.lane.index]:
                self._decoder.batch(data, lengths, images, _output(job.rules), job.lane.stream.ptr)
        except nvjpeg.NvJpegError:
            if len(which) == 1:
                return [int(which[0])]
            half = len(which) // 2
            return self._decode(job, which[:half]) + self._decode(job, which[half:])
        return []


class HybridDecoder:
    """nvJPEG with Huffman decoding on CPU threads, a decoder and a stream each."""

    def __init__(self, lane: Lane, fancy: bool) -> None:
        self._lane, self._fancy = lane, fancy
        self._idle: queue.SimpleQueue[tuple[nvjpeg.Decoder, Any]] = queue.SimpleQueue()

    def takes(self, batch: Batch, headers: Headers, rules: Rules) -> Mask:
        """8-bit Huffman-coded JPEGs, gray or YCbCr; gray ones where no colour is asked for."""
        jpeg = headers.jpeg
        taken: Mask = np.isin(jpeg["status"], (jpeg_header.OK, jpeg_header.UNSUPPORTED, jpeg_header.MANY_SCANS))
        taken &= (jpeg["sof"] == 0xC0) | (jpeg["sof"] == 0xC1) | (jpeg["sof"] == 0xC2)
        taken &= (jpeg["precision"] == 8) & (jpeg["junk"] == 0)
        gray_out = rules.output_type is DALIImageType.GRAY
        gray = (jpeg["components"] == 1) & gray_out
        taken &= gray | ((jpeg["components"] == 3) & (jpeg["colour"] == jpeg_header.YCBCR))
        # Small pictures are decoded by libjpeg-turbo in less time than a transfer and a launch take.
        taken &= jpeg["width"].astype(np.int64) * jpeg["height"] >= 1_000_000
        return taken & _whole(batch)

    def start(self, job: DecodeJob, which: I64) -> list[Future[list[int]]]:
        """Start ``which`` on the threads; the futures give those that nvJPEG refused."""
        if len(which) == 0:
            return []
        ready = job.lane.stream.record()
        parts = np.array_split(which, min(len(which), thread_count()))
        return [threads().submit(self._decode, job, part, ready) for part in parts]

    def _decode(self, job: DecodeJob, which: I64, ready: Any) -> list[int]:
        import cupy

        failed = []
        with job.lane.gpu:
            try:
                decoder, stream = self._idle.get_nowait()
            except queue.Empty:
                try:
                    decoder = nvjpeg.Decoder(Backend.HYBRID, self._fancy)
                except nvjpeg.NvJpegError:
                    return [int(i) for i in which]
                stream = cupy.cuda.Stream(non_blocking=True)
            stream.wait_event(ready)
            data, lengths = job.data(which)
            images = job.images(which)
            for k, i in enumerate(which.tolist()):
                try:
                    decoder.single(int(data[k]), int(lengths[k]), images[k], _output(job.rules), stream.ptr)
                    stream.synchronize()
                except nvjpeg.NvJpegError:
                    failed.append(i)
            self._idle.put((decoder, stream))
        return failed
