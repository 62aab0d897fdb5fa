"""Decode videos with NVDEC through the package PyNvVideoCodec: frames are converted from NVDEC's surfaces to tensors on
the GPU.

`NvClip` is a `Clip`: packets, index and seeks are those of the CPU path, and frames are identified in the index by
their times; only the decoder differs. CPU threads decode what NVDEC does not support.

The threads that drive NVDEC do nothing else, so that its engines never wait for Python: other threads have read the
packets before (`packets`). A frame takes one call that decodes it, without the GIL, and one with the GIL that launches
its conversion.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ..context import Context
from ..errors import SampleError
from ..gpu.lane import Lane
from .decoder_handoff import DecoderHandoff, SharedGroups
from .media import NO_FRAME, Clip, Decoded, Index, Known, number_of
from .packets import CODECS, Packet, Reading, Run

_WEIGHTS = {1: (0.2126, 0.0722), 4: (0.30, 0.11), 7: (0.212, 0.087), 9: (0.2627, 0.0593), 10: (0.2627, 0.0593)}
"""Weights of red and blue in luma, by the colour matrix's number in ITU-T H.273. Other matrices are treated as BT.601,
as in FFmpeg's converter."""
_BT601 = (0.299, 0.114)
_Matrix = tuple[float, float, float, float, float, float, bool]
_FULL = 2
"""FFmpeg's number for the full range of colour values, in which black is 0."""
_BLOCK = 256
_THREADS = 8
_MAX_PASSED_FRAMES = 64
"""Maximum number of decoded frames in GPU memory that a batch passes to the next batch."""


class RefusedError(Exception):
    """Raised if NVDEC does not support a stream, or fails to decode it; the CPU then decodes the stream."""


@cache
def module() -> Any:
    """Return the package PyNvVideoCodec; None if it is not installed, or finds no driver."""
    try:
        import PyNvVideoCodec
    except Exception:  # the import looks for libraries of the driver, and raises many kinds of errors
        return None
    return PyNvVideoCodec


@dataclass(slots=True)
class _CachedDecoder:
    """Cached NVDEC decoder, with the maximum height and width for which it was created, and height, width and header of
    the last stream."""

    decoder: Any
    max_size: tuple[int, int]
    last_stream: tuple[int, int, bytes]


@dataclass(slots=True)
class Decoders:
    """Set of NVDEC decoders with one CUDA stream; one thread at a time owns it (`borrowed`)."""

    lane: Lane
    cached: dict[tuple[str, int], _CachedDecoder] = field(default_factory=dict)
    """Cached decoders, by (codec, bits per colour sample)."""

    def of(self, codec: str, bits: int, height: int, width: int, header: bytes) -> Any:
        """Return a decoder without pending frames for a stream. A cached decoder is reconfigured for another size or
        ``header``. Raises RefusedError."""
        found, stream = self.cached.get((codec, bits)), (height, width, header)
        try:
            if found is not None and height <= found.max_size[0] and width <= found.max_size[1]:
                if found.last_stream != stream:
                    found.decoder.setReconfigParams(width, height)
                    found.last_stream = stream
                return found.decoder
            self.drop(codec, bits)
            decoder = module().CreateDecoder(
                gpuid=self.lane.index, codec=getattr(module().cudaVideoCodec, CODECS[codec]),
                cudacontext=_context(), cudastream=int(self.lane.stream.ptr), usedevicememory=True,
                maxwidth=width, maxheight=height,
            )  # fmt: skip
        except Exception as e:
            self.drop(codec, bits)
            raise RefusedError(f"{codec} of {bits} bits: {_reason(e)}") from None
        self.cached[codec, bits] = _CachedDecoder(decoder, (height, width), stream)
        return decoder

    def drop(self, codec: str, bits: int) -> None:
        """Remove a decoder from the cache because it failed or has pending frames."""
        self.cached.pop((codec, bits), None)


_idle: dict[tuple[int, bool], list[Decoders]] = {}
"""Sets of decoders that no thread uses, by GPU and by ``on_host`` of `borrowed`. A decoder takes long to create."""
_lock = threading.Lock()


@contextmanager
def borrowed(index: int, *, on_host: bool = False) -> Iterator[Decoders]:
    """Context manager: provide a set of decoders on GPU ``index`` for the calling thread. With ``on_host``, only its
    CUDA stream is used, for frames that the CPU decodes. There are as many sets as threads that decoded at the same
    time."""
    decoders = _borrow(index, on_host=on_host)
    try:
        with decoders.lane:
            yield decoders
    finally:
        _give_back(decoders, on_host=on_host)


def _borrow(index: int, *, on_host: bool = False) -> Decoders:
    with _lock:
        idle = _idle.setdefault((index, on_host), [])
        if idle:
            return idle.pop()
    return Decoders(Lane(index))


def _give_back(decoders: Decoders, *, on_host: bool = False) -> None:
    with _lock:
        _idle.setdefault((decoders.lane.index, on_host), []).append(decoders)


def forget() -> None:
    """Free all cached decoders that no thread uses."""
    with _lock:
        idle = [d for found in _idle.values() for d in found]
        _idle.clear()
        _unsupported.clear()
    for decoders in idle:
        decoders.cached.clear()
        decoders.lane.close()


def _context() -> int:
    import cupy

    return int(cupy.cuda.driver.ctxGetCurrent())


@dataclass(slots=True)
class _PausedDecoder:
    """Decoder, packets and frames that a batch passes to the next batch through a `decoder_handoff.DecoderHandoff`."""

    kind: tuple[str, int]
    """Codec and bits per colour sample."""
    frames: dict[int, Any] = field(default_factory=dict)
    """Decoded frames by number. They are in GPU memory, or in host memory if ``clip`` is set."""
    decoders: Decoders | None = None
    """Set of decoders, one of which has stopped in the middle of a group of pictures; None if no decoder is passed
    on."""
    packets: list[Packet] = field(default_factory=list)
    """Packets that follow those given to the stopped decoder; the next batch passes them to it."""
    clip: Clip | None = None
    """File opened for the CPU's decoder, for the reason ``why``; None if NVDEC decodes the file."""
    why: str = ""

    def close(self) -> None:
        """Free the decoders and close the file; called if no later batch continues from here."""
        if self.decoders is not None:
            self.decoders.drop(*self.kind)
            _give_back(self.decoders)
        if self.clip is not None:
            self.clip.close()


class NvClip(Reading):
    """Video file that NVDEC decodes: `read` reads its packets, then `show` decodes its frames. Reading needs no GPU,
    decoding needs no file."""

    def __init__(
        self, source: str | npt.NDArray[np.uint8], index: Index | None = None, known: Known | None = None
    ) -> None:
        super().__init__(source, index, known)
        self.repeated: dict[int, Any] = {}
        """Decoded frames, by number, that the next batch also needs."""
        self._unfinished, self._shares = 0, False
        self._leaves: tuple[DecoderHandoff[_PausedDecoder], _PausedDecoder] | None = None
        self._lock = threading.Lock()
        self._matrix = matrix_of(self.facts.space, self.facts.span, self.facts.pixels)

    def read(self, numbers: Iterable[int], shared: SharedGroups | None = None) -> Self:
        super().read(numbers, shared)
        self._unfinished, self._shares = (
            len(self.parts),
            shared is not None and bool(shared.repeated_frames),
        )
        return self

    def refused_by(self, index: int) -> str:
        """Return the reason why GPU ``index`` cannot decode this kind of stream; empty if it can, or if that is not
        known yet."""
        return self.refused or _unsupported.get((index, self.name, self.bits), "")

    def show(
        self,
        run: Run,
        decoders: Decoders,
        destinations: Mapping[int, Sequence[int]],
        paused: _PausedDecoder | None = None,
    ) -> _PausedDecoder | None:
        """Decode the packets of one ``run``, and write the frames to their ``destinations`` (device addresses), on the
        CUDA stream of ``decoders``. ``paused``: state of the previous batch, from which decoding continues, if any.
        Return the state for the next batch, if it continues from here. Raises RefusedError."""
        if known := self.refused_by(decoders.lane.index):
            raise RefusedError(known)
        if not run.wanted:
            return None
        try:
            return self._decode_run(decoders, run, destinations, paused)
        except RefusedError as e:
            if "not supported" in str(e) or "not available" in str(e):
                _unsupported[decoders.lane.index, self.name, self.bits] = str(e)
                raise
            if paused is not None:
                raise
            # The decoder may not have been created for this stream. A new decoder that was fed one stream may accept a
            # stream that begins in an open group; it stays cached if it did not fail.
            return self._decode_run(decoders, run, destinations, None)

    def _decode_run(
        self, decoders: Decoders, run: Run, destinations: Mapping[int, Sequence[int]], paused: _PausedDecoder | None
    ) -> _PausedDecoder | None:
        kind, lane, size = (self.name, self.bits), decoders.lane, self.height * self.width * 3
        passes, last, again = run.shared.after is not None, run.wanted[-1], run.shared.repeated_frames
        waiting, kept = dict(run.times), dict[int, Any]()
        fed = run.fed
        if paused is not None:
            fed = [*paused.packets, *fed]
            for number, frame in paused.frames.items():
                if waiting.pop(self.index[0][number], None) is not None:
                    for place in destinations[number]:
                        lane.copy(place, lane.address(frame), size)
                if number in again or (passes and number > last):
                    kept[number] = frame
        if not passes:  # later batches feed the remaining packets
            fed = fed[: 1 + max((k for k, (_, _, pts, _) in enumerate(fed) if pts in waiting), default=-1)]
        on = paused is not None and paused.decoders is not None
        self.repeated |= {n: frame for n, frame in kept.items() if n in again}
        if not on and not waiting:
            return _PausedDecoder(kind, kept) if passes else None
        was_there = kind in decoders.cached
        decoder = decoders.cached[kind].decoder if on else decoders.of(*kind, self.height, self.width, self._header)
        converter = _Converter(lane, self.height, self.width, self.bits, self._matrix)

        def came(surfaces: Iterable[Any]) -> None:
            for surface in surfaces:
                number = waiting.pop(surface.getPTS(), None)
                at = list(destinations[number]) if number is not None else []
                if (passes or again) and len(kept) < _MAX_PASSED_FRAMES:
                    number = number_of(self.index[0], surface.getPTS())
                    if number in again or (passes and number > last):
                        kept[number] = lane.empty(size, np.uint8)
                        at.append(lane.address(kept[number]))
                if at:
                    converter.convert(surface, at)

        packet, count = module().PacketData(), 0
        try:
            while count < len(fed) and waiting:
                packet.bsl_data, packet.bsl, packet.pts, _ = fed[count]
                count += 1
                came(decoder.Decode(packet))
            on = passes and not waiting and len(kept) < _MAX_PASSED_FRAMES
            while not on and (surfaces := decoder.Decode(module().PacketData())):
                came(surfaces)
        except RefusedError:
            raise
        except Exception as e:
            decoders.drop(*kind)
            raise RefusedError(f"{self.name}: {_reason(e)}") from None
        if waiting:
            if was_there:
                decoders.drop(*kind)
            raise RefusedError(f"{self.name}: frames did not come out")
        self.repeated |= {n: frame for n, frame in kept.items() if n in again}
        if on:
            return _PausedDecoder(kind, kept, decoders, fed[count:])
        return _PausedDecoder(kind, kept) if passes and run.complete and len(kept) < _MAX_PASSED_FRAMES else None

    def leave(self, after: DecoderHandoff[_PausedDecoder] | None, leaves: _PausedDecoder | None) -> None:
        """Record that one part of the file (the packets that one thread decodes) is complete. ``leaves``: state at
        the end of the last part, which is passed to the next batch as soon as all frames that it needs again are
        decoded."""
        with self._lock:
            self._unfinished -= 1
            if after is not None and leaves is not None:
                self._leaves = after, leaves
            if self._leaves is None or (self._unfinished and self._shares):
                return
            (after, leaves), self._leaves = self._leaves, None
        leaves.frames = self.repeated | leaves.frames
        after.give(leaves)

    def on_host(self) -> Clip:
        """Open the same file again, for decoding by the CPU."""
        return Decoded(self._source, self.index)


_SURFACE = np.dtype(
    [("planes", np.uint64, 2), ("out", np.uint64), ("pitch", np.int64), ("size", np.int32, 2), ("numbers", "f4", 7)],
    align=True,
)  # fmt: skip
"""Memory layout of the struct `Surface` in video.cu."""


class _Converter:
    """Converter of NVDEC's output frames (surfaces) of one size to RGB images."""

    def __init__(self, lane: Lane, height: int, width: int, bits: int, matrix: _Matrix) -> None:
        self._nbytes, self._height, self._width = (1 if bits == 8 else 2), height, width
        # samples of more than 8 bits are stored in the high bits of 16
        unit = 1.0 if bits == 8 else 2.0**-8
        if matrix[-1] and bits > 8:
            unit = 255 / ((2.0**bits - 1) * 2.0 ** (16 - bits))
        self._values = np.zeros(1, _SURFACE)
        self._values["size"], self._values["numbers"] = (height, width), (unit, *matrix[:-1])
        self._addresses = self._values.view(np.uint64)
        kernel = lane.handle("video.cu", f"rgb<{'unsigned char' if bits == 8 else 'unsigned short'}>")
        self._launch = lane.work().steady(kernel, -(-height * width // _BLOCK), _BLOCK, self._values)

    def convert(self, surface: Any, destinations: Sequence[int]) -> None:
        """Convert ``surface`` to RGB and write it to all ``destinations`` (device addresses). Raises RefusedError if
        the surface has another size than the file declares."""
        luma, chroma = surface.GetPtrToPlane(0), surface.GetPtrToPlane(1)
        pitch, rest = divmod(chroma - luma, self._height)
        if rest or pitch < self._width * self._nbytes:
            raise RefusedError(f"surfaces of another size than {self._width} x {self._height}")
        values = self._addresses
        values[0], values[1], values[3] = luma, chroma, pitch
        for place in destinations:
            values[2] = place
            self._launch()


_unsupported: dict[tuple[int, str, int], str] = {}
"""Error message for each (GPU, codec, bits) that a GPU does not support; cached, because finding out takes as long as
creating a decoder."""


def decode_all(
    index: int, jobs: Iterable[tuple[NvClip, Mapping[int, Sequence[int]]]], fill: npt.NDArray[np.uint8]
) -> Iterator[tuple[str | SampleError, float]]:
    """Decode frames of video files whose packets were read, on GPU ``index``. Each job is a file and, by frame number,
    the device addresses to write the frame to. Each frame is decoded once; `NO_FRAME` is an image of ``fill``. CPU
    threads decode what NVDEC does not support.

    Yield for each file, in order, the reason why the CPU decoded it (empty if NVDEC did) or its error, and the seconds
    that threads took."""
    begun: list[list[Future[_Pending]]] = []
    try:
        for clip, places in jobs:
            begun.append([_submit(index, clip, part, places, fill) for part in clip.parts])
        for parts in begun:
            found = [_outcome_of(p) for p in parts]
            bad = [what for what, _ in found if isinstance(what, SampleError)]
            whys = [what for what, _ in found if isinstance(what, str) and what]
            yield (bad or whys or [""])[0], sum(seconds for _, seconds in found)
    finally:
        for part in [p for parts in begun for p in parts]:  # they write into the caller's memory
            with suppress(Exception):
                _outcome_of(part)


_Outcome = tuple[str | SampleError, float]
_Pending = Any
"""Result of decoding one part of a video file: an `_Outcome`, a future of it, or a future of such a future."""


def _outcome_of(outcome_of_part: Future[_Pending]) -> _Outcome:
    found: Any = outcome_of_part
    while isinstance(found, Future):
        found = found.result()
    outcome: _Outcome = found
    return outcome


def _submit(
    index: int, clip: NvClip, runs: list[Run], destinations: Mapping[int, Sequence[int]], fill: npt.NDArray[np.uint8]
) -> Future[_Pending]:
    """Decode ``runs``, one part of a video file, in a thread, as soon as the decoder from which it continues is
    available; no thread waits for that. Return a future of the outcome."""
    before = runs[0].shared.before
    if before is None:
        return threads().submit(_decode, index, clip, runs, destinations, fill, None)
    later = Future[_Pending]()

    def go_on(left: Any) -> None:
        if left is not None and not isinstance(left, _PausedDecoder):  # the CPU decoded the previous batch
            left.close()
            left = None
        try:
            later.set_result(threads().submit(_decode, index, clip, runs, destinations, fill, left))
        except RuntimeError as e:  # the interpreter is shutting down
            later.set_exception(e)

    before.then(go_on)
    return later


def _decode(
    index: int, clip: NvClip, runs: list[Run], destinations: Mapping[int, Sequence[int]], fill: npt.NDArray[np.uint8],
    paused: _PausedDecoder | None,
) -> _Pending:  # fmt: skip
    """Decode ``runs``, one part of a video file, with NVDEC. If NVDEC fails, return the future of a CPU thread that
    decodes them."""
    from ..codecs.threaded_decode import threads as cpu_threads

    began, shared, leaves = time.perf_counter(), runs[-1].shared, None
    if paused is not None and paused.clip is None and not runs[0].continued:
        paused.close()
        paused = None
    decoders = _borrow(index) if paused is None or paused.decoders is None else paused.decoders
    try:
        with decoders.lane:
            try:
                for place in destinations.get(NO_FRAME, ()) if runs is clip.parts[0] else ():
                    _send(decoders.lane, place, np.tile(fill, clip.height * clip.width))
                if paused is not None and paused.clip is not None:
                    raise RefusedError(paused.why)
                for run in runs:
                    leaves = _decode_from(clip, run, decoders, destinations, paused if run is runs[0] else None)
            except RefusedError as e:  # only the CPU decides whether a file is damaged
                if shared.after is not None and not clip.refused_by(index):
                    shared.after.fail()
                wanted = [n for run in runs for n in run.wanted]
                return cpu_threads().submit(_by_cpu, index, clip, wanted, destinations, str(e), shared, paused)
            except SampleError as e:
                return e.bare(), time.perf_counter() - began
            finally:
                decoders.lane.synchronize()
                for run in runs:
                    run.packets, run.data = [], np.zeros(0, np.uint8)
    finally:
        if leaves is None or leaves.decoders is None:
            _give_back(decoders)
    clip.leave(shared.after, leaves)
    return "", time.perf_counter() - began


def _decode_from(
    clip: NvClip, run: Run, decoders: Decoders, destinations: Mapping[int, Sequence[int]], paused: _PausedDecoder | None
) -> _PausedDecoder | None:
    """Decode the packets ``run``, continuing from ``paused``. If there is no such state, or NVDEC cannot continue
    there, begin at the key frame before."""
    if not run.continued or paused is not None:
        try:
            return clip.show(run, decoders, destinations, paused)
        except RefusedError:
            if paused is None:
                raise
    for other in clip.anew(run):
        clip.show(other, decoders, destinations)
    return None


def _by_cpu(
    index: int, clip: NvClip, numbers: Sequence[int], destinations: Mapping[int, Sequence[int]], why: str,
    shared: SharedGroups, paused: _PausedDecoder | None,
) -> _Outcome:  # fmt: skip
    began, picture, kept = time.perf_counter(), np.empty((clip.height, clip.width, 3), np.uint8), dict[int, Any]()
    other = clip.on_host() if paused is None or paused.clip is None else paused.clip
    frames = {} if paused is None or paused.clip is None else paused.frames
    try:
        with borrowed(index, on_host=True) as decoders:
            for n in numbers:  # one frame at a time: host memory may be too small for a whole video
                if n in frames:
                    picture[...] = frames[n]
                else:
                    other.decode([n], lambda _: [picture])
                for place in destinations[n]:
                    _send(decoders.lane, place, picture)
                if n in shared.repeated_frames:
                    kept[n] = picture.copy()
                decoders.lane.synchronize()
        if clip.refused_by(index):
            clip.repeated |= kept
        if shared.after is None:
            other.close()
        clip.leave(shared.after, None if shared.after is None else _PausedDecoder(("", 0), kept, clip=other, why=why))
    except BaseException as e:
        other.close()
        if isinstance(e, SampleError):
            return e.bare(), time.perf_counter() - began
        raise
    return why, time.perf_counter() - began


def report(ctx: Context, why: str, seconds: float, count: int = 1) -> None:
    """Add ``count`` samples to the job's report. ``why``: reason why the CPU decoded them; empty if NVDEC did."""
    ctx.decoded_by("CPU threads" if why else "NVDEC", count, seconds)
    if why:
        ctx.fell_back(f"not for NVDEC: {why}", count)


@cache
def threads() -> ThreadPoolExecutor:
    """Return the pool of threads that drive NVDEC; more than `_THREADS` would wait for each other in the driver."""
    return ThreadPoolExecutor(_THREADS, "nvdec")


def _send(lane: Lane, address: int, host: npt.NDArray[np.uint8]) -> None:
    """Copy ``host`` to the device address ``address``, on the CUDA stream of ``lane``."""
    staged = lane.pinned(host.nbytes)
    staged[:] = host.reshape(-1)
    if host.nbytes:
        lane.copy_in(address, staged)


def _reason(e: Exception) -> str:
    """Return the line of PyNvVideoCodec's error message that names the problem, or the first line."""
    lines = [line.strip() for line in str(e).splitlines() if line.strip()] or [type(e).__name__]
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("Error Type")), lines[0])


def matrix_of(space: int, span: int, pixels: str) -> _Matrix:
    """Return the constants that convert 8-bit Y, Cb and Cr to RGB: luma factor, luma offset, Cr's factor for red, Cb's
    and Cr's for green, Cb's for blue, and whether the range is full. ``space``: matrix, by number in ITU-T H.273;
    ``span``: range, by FFmpeg's number. The constants invert Y = R r + G g + B b, Cb = (B - Y) / (2 - 2 b), Cr = (R -
    Y) / (2 - 2 r)."""
    r, b = _WEIGHTS.get(space, _BT601)
    g = 1 - r - b
    full = span == _FULL or pixels.startswith("yuvj")
    luma, offset, chroma = (1.0, 0.0, 1.0) if full else (255 / 219, 16.0, 255 / 224)
    red, blue = 2 * (1 - r) * chroma, 2 * (1 - b) * chroma
    return luma, offset, red, blue * b / g, red * r / g, blue, full
