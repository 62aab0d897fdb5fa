"""Videos through NVDEC, as the package PyNvVideoCodec drives it: frames go from its surfaces to tensors on the GPU.

`NvClip` is a `Clip`: packets, index and seeks are those of the CPU, and frames are compared with the index by their
times. Only what decodes is another. Whatever NVDEC refuses is the CPU's.

The threads that drive NVDEC do nothing else, so that its engines never wait for Python: others have read the packets
before (`packets`), and a frame takes one call without the GIL, to decode it, and one that keeps it, to launch its
conversion.
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
from .media import NO_FRAME, Clip, Decoded, Index, Known, number_of
from .packets import CODECS, Packet, Reading, Run
from .relay import Ends, Relay

_WEIGHTS = {1: (0.2126, 0.0722), 4: (0.30, 0.11), 7: (0.212, 0.087), 9: (0.2627, 0.0593), 10: (0.2627, 0.0593)}
"""Of red and blue in luma, by the number of the matrix in ITU-T H.273; all others are taken for BT.601, as FFmpeg's
converter does."""
_BT601 = (0.299, 0.114)
_Matrix = tuple[float, float, float, float, float, float, bool]
_FULL = 2
"""The range of values in which black is 0, as FFmpeg numbers it."""
_BLOCK = 256
_THREADS = 8
_MOST_KEPT = 64
"""Frames that a batch keeps for the next, at most."""


class RefusedError(Exception):
    """NVDEC does not take this, or gave up; the CPU is next."""


@cache
def module() -> Any:
    """The package PyNvVideoCodec; None where it is not installed, or finds no driver."""
    try:
        import PyNvVideoCodec
    except Exception:  # it looks for libraries of the driver while it is imported, and raises many kinds
        return None
    return PyNvVideoCodec


@dataclass(slots=True)
class _Kept:
    """A decoder, the height and width that it was made for, and those and the header of its last stream."""

    decoder: Any
    most: tuple[int, int]
    last: tuple[int, int, bytes]


@dataclass(slots=True)
class Decoders:
    """The decoders of one thread at a time, with a stream of their own."""

    lane: Lane
    kept: dict[tuple[str, int], _Kept] = field(default_factory=dict)
    """By codec and bits of a sample."""

    def of(self, codec: str, bits: int, height: int, width: int, header: bytes) -> Any:
        """A decoder with nothing in it, reconfigured where one is there for another size or ``header``. Raises
        RefusedError."""
        found, stream = self.kept.get((codec, bits)), (height, width, header)
        try:
            if found is not None and height <= found.most[0] and width <= found.most[1]:
                if found.last != stream:
                    found.decoder.setReconfigParams(width, height)
                    found.last = stream
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
        self.kept[codec, bits] = _Kept(decoder, (height, width), stream)
        return decoder

    def drop(self, codec: str, bits: int) -> None:
        """Forget a decoder that failed, or has frames left in it."""
        self.kept.pop((codec, bits), None)


_idle: dict[tuple[int, bool], list[Decoders]] = {}
_lock = threading.Lock()


@contextmanager
def borrowed(index: int, *, on_host: bool = False) -> Iterator[Decoders]:
    """Decoders on GPU ``index`` for this thread, or only their stream, where the CPU decodes; there are as many as
    threads ever decoded at once."""
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
    """Let go of all decoders that are idle."""
    with _lock:
        idle = [d for found in _idle.values() for d in found]
        _idle.clear()
        _unsupported.clear()
    for decoders in idle:
        decoders.kept.clear()
        decoders.lane.close()


def _context() -> int:
    import cupy

    return int(cupy.cuda.driver.ctxGetCurrent())


@dataclass(slots=True)
class _Left:
    """A decoder, packets and frames that a batch leaves to the next one; see `relay`."""

    kind: tuple[str, int]
    """Codec and bits of a sample."""
    frames: dict[int, Any] = field(default_factory=dict)
    """By number; on the device, or on the host with ``clip``."""
    decoders: Decoders | None = None
    """With one in the middle of a group."""
    packets: list[Packet] = field(default_factory=list)
    """Which it was not fed yet."""
    clip: Clip | None = None
    """The file as the CPU decodes it, because of ``why``."""
    why: str = ""

    def close(self) -> None:
        """Nobody goes on from here."""
        if self.decoders is not None:
            self.decoders.drop(*self.kind)
            _give_back(self.decoders)
        if self.clip is not None:
            self.clip.close()


class NvClip(Reading):
    """A clip whose pictures are surfaces of NVDEC: `read`, then `show`. Reading needs no GPU, and showing no file."""

    def __init__(
        self, source: str | npt.NDArray[np.uint8], index: Index | None = None, known: Known | None = None
    ) -> None:
        super().__init__(source, index, known)
        self.kept: dict[int, Any] = {}
        """Frames that the next batch wants, too."""
        self._unfinished, self._shares = 0, False
        self._leaves: tuple[Relay[_Left], _Left] | None = None
        self._lock = threading.Lock()
        self._matrix = matrix_of(self.facts.space, self.facts.span, self.facts.pixels)

    def read(self, numbers: Iterable[int], ends: Ends | None = None) -> Self:
        super().read(numbers, ends)
        self._unfinished, self._shares = len(self.parts), ends is not None and bool(ends.again)
        return self

    def refused_by(self, index: int) -> str:
        """Why GPU ``index`` decodes nothing of this kind, where that is known."""
        return self.refused or _unsupported.get((index, self.name, self.bits), "")

    def show(
        self, run: Run, decoders: Decoders, places: Mapping[int, Sequence[int]], left: _Left | None = None
    ) -> _Left | None:
        """The frames of one run at their ``places``, addresses on the device, on the stream of ``decoders``, with what
        the batch before has ``left``; what this one leaves. Raises RefusedError."""
        if known := self.refused_by(decoders.lane.index):
            raise RefusedError(known)
        if not run.wanted:
            return None
        try:
            return self._shown_by(decoders, run, places, left)
        except RefusedError as e:
            if "not supported" in str(e) or "not available" in str(e):
                _unsupported[decoders.lane.index, self.name, self.bits] = str(e)
                raise
            if left is not None:
                raise
            # Maybe it was not made for this stream. A new one that was fed a stream may take one that begins in an open
            # group; it stays, if it did not fail.
            return self._shown_by(decoders, run, places, None)

    def _shown_by(
        self, decoders: Decoders, run: Run, places: Mapping[int, Sequence[int]], left: _Left | None
    ) -> _Left | None:
        kind, lane, size = (self.name, self.bits), decoders.lane, self.height * self.width * 3
        passes, last, again = run.ends.after is not None, run.wanted[-1], run.ends.again
        waiting, kept = dict(run.times), dict[int, Any]()
        fed = run.fed
        if left is not None:
            fed = [*left.packets, *fed]
            for number, frame in left.frames.items():
                if waiting.pop(self.index[0][number], None) is not None:
                    for place in places[number]:
                        lane.copy(place, lane.address(frame), size)
                if number in again or (passes and number > last):
                    kept[number] = frame
        if not passes:  # others begin with what follows
            fed = fed[: 1 + max((k for k, (_, _, pts, _) in enumerate(fed) if pts in waiting), default=-1)]
        on = left is not None and left.decoders is not None
        self.kept |= {n: frame for n, frame in kept.items() if n in again}
        if not on and not waiting:
            return _Left(kind, kept) if passes else None
        was_there = kind in decoders.kept
        decoder = decoders.kept[kind].decoder if on else decoders.of(*kind, self.height, self.width, self._header)
        converter = _Converter(lane, self.height, self.width, self.bits, self._matrix)

        def came(surfaces: Iterable[Any]) -> None:
            for surface in surfaces:
                number = waiting.pop(surface.getPTS(), None)
                at = list(places[number]) if number is not None else []
                if (passes or again) and len(kept) < _MOST_KEPT:
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
            on = passes and not waiting and len(kept) < _MOST_KEPT
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
        self.kept |= {n: frame for n, frame in kept.items() if n in again}
        if on:
            return _Left(kind, kept, decoders, fed[count:])
        return _Left(kind, kept) if passes and run.complete and len(kept) < _MOST_KEPT else None

    def leave(self, after: Relay[_Left] | None, leaves: _Left | None) -> None:
        """A part is done. The last one hands on what it ``leaves``, once all frames that are wanted again are there."""
        with self._lock:
            self._unfinished -= 1
            if after is not None and leaves is not None:
                self._leaves = after, leaves
            if self._leaves is None or (self._unfinished and self._shares):
                return
            (after, leaves), self._leaves = self._leaves, None
        leaves.frames = self.kept | leaves.frames
        after.give(leaves)

    def on_host(self) -> Clip:
        """The same clip, decoded by the CPU."""
        return Decoded(self._source, self.index)


_SURFACE = np.dtype(
    [("planes", np.uint64, 2), ("out", np.uint64), ("pitch", np.int64), ("size", np.int32, 2), ("numbers", "f4", 7)],
    align=True,
)  # fmt: skip
"""Surface of video.cu."""


class _Converter:
    """RGB of surfaces of one size."""

    def __init__(self, lane: Lane, height: int, width: int, bits: int, matrix: _Matrix) -> None:
        self._nbytes, self._height, self._width = (1 if bits == 8 else 2), height, width
        # samples of more than 8 bits stand in the high bits of 16
        unit = 1.0 if bits == 8 else 2.0**-8
        if matrix[-1] and bits > 8:
            unit = 255 / ((2.0**bits - 1) * 2.0 ** (16 - bits))
        self._values = np.zeros(1, _SURFACE)
        self._values["size"], self._values["numbers"] = (height, width), (unit, *matrix[:-1])
        self._addresses = self._values.view(np.uint64)
        kernel = lane.handle("video.cu", f"rgb<{'unsigned char' if bits == 8 else 'unsigned short'}>")
        self._launch = lane.work().steady(kernel, -(-height * width // _BLOCK), _BLOCK, self._values)

    def convert(self, surface: Any, places: Sequence[int]) -> None:
        """RGB of ``surface`` at ``places``, addresses on the device. Raises RefusedError where the surface is not what
        the file promised."""
        luma, chroma = surface.GetPtrToPlane(0), surface.GetPtrToPlane(1)
        pitch, rest = divmod(chroma - luma, self._height)
        if rest or pitch < self._width * self._nbytes:
            raise RefusedError(f"surfaces of another size than {self._width} x {self._height}")
        values = self._addresses
        values[0], values[1], values[3] = luma, chroma, pitch
        for place in places:
            values[2] = place
            self._launch()


_unsupported: dict[tuple[int, str, int], str] = {}
"""Codecs that a GPU has refused with so many bits, and its words: that takes a decoder's time to make."""


def decode_all(
    index: int, jobs: Iterable[tuple[NvClip, Mapping[int, Sequence[int]]]], fill: npt.NDArray[np.uint8]
) -> Iterator[tuple[str | SampleError, float]]:
    """Frames of clips, which were read, at places by their numbers: addresses on GPU ``index``. Each frame is decoded
    once, those without a number are of the value ``fill``; the CPU does what NVDEC refuses. For each clip the reason,
    where it did, or what is wrong with it, and the seconds of the threads."""
    begun: list[list[Future[_Found]]] = []
    try:
        for clip, places in jobs:
            begun.append([_begun(index, clip, part, places, fill) for part in clip.parts])
        for parts in begun:
            found = [_settled(p) for p in parts]
            bad = [what for what, _ in found if isinstance(what, SampleError)]
            whys = [what for what, _ in found if isinstance(what, str) and what]
            yield (bad or whys or [""])[0], sum(seconds for _, seconds in found)
    finally:
        for part in [p for parts in begun for p in parts]:  # they write into memory of the caller's
            with suppress(Exception):
                _settled(part)


_Outcome = tuple[str | SampleError, float]
_Found = Any
"""An outcome, or the future of one, or of such a future."""


def _settled(part: Future[_Found]) -> _Outcome:
    found: Any = part
    while isinstance(found, Future):
        found = found.result()
    outcome: _Outcome = found
    return outcome


def _begun(
    index: int, clip: NvClip, part: list[Run], places: Mapping[int, Sequence[int]], fill: npt.NDArray[np.uint8]
) -> Future[_Found]:
    """Have a thread decode one part, once what it goes on from is there: threads do not wait for each other."""
    before = part[0].ends.before
    if before is None:
        return threads().submit(_decode, index, clip, part, places, fill, None)
    later = Future[_Found]()

    def go_on(left: Any) -> None:
        if left is not None and not isinstance(left, _Left):  # the CPU's, where the batch before was
            left.close()
            left = None
        try:
            later.set_result(threads().submit(_decode, index, clip, part, places, fill, left))
        except RuntimeError as e:  # the interpreter ends
            later.set_exception(e)

    before.then(go_on)
    return later


def _decode(
    index: int, clip: NvClip, part: list[Run], places: Mapping[int, Sequence[int]], fill: npt.NDArray[np.uint8],
    left: _Left | None,
) -> _Found:  # fmt: skip
    """One part, by NVDEC; or what a thread of the CPU begins with, and this one does not wait for."""
    from ..codecs.threaded_decode import threads as cpu_threads

    began, ends, leaves = time.perf_counter(), part[-1].ends, None
    if left is not None and left.clip is None and not part[0].continued:
        left.close()
        left = None
    decoders = _borrow(index) if left is None or left.decoders is None else left.decoders
    try:
        with decoders.lane:
            try:
                for place in places.get(NO_FRAME, ()) if part is clip.parts[0] else ():
                    _send(decoders.lane, place, np.tile(fill, clip.height * clip.width))
                if left is not None and left.clip is not None:
                    raise RefusedError(left.why)
                for run in part:
                    leaves = _shown(clip, run, decoders, places, left if run is part[0] else None)
            except RefusedError as e:  # the CPU has the last word on damage
                if ends.after is not None and not clip.refused_by(index):
                    ends.after.fail()
                wanted = [n for run in part for n in run.wanted]
                return cpu_threads().submit(_by_cpu, index, clip, wanted, places, str(e), ends, left)
            except SampleError as e:
                return e.bare(), time.perf_counter() - began
            finally:
                decoders.lane.synchronize()
                for run in part:
                    run.packets, run.data = [], np.zeros(0, np.uint8)
    finally:
        if leaves is None or leaves.decoders is None:
            _give_back(decoders)
    clip.leave(ends.after, leaves)
    return "", time.perf_counter() - began


def _shown(
    clip: NvClip, run: Run, decoders: Decoders, places: Mapping[int, Sequence[int]], left: _Left | None
) -> _Left | None:
    """One run, from what was ``left``; where there is nothing, or it does not go on from there, from its key frame."""
    if not run.continued or left is not None:
        try:
            return clip.show(run, decoders, places, left)
        except RefusedError:
            if left is None:
                raise
    for other in clip.anew(run):
        clip.show(other, decoders, places)
    return None


def _by_cpu(
    index: int, clip: NvClip, wanted: Sequence[int], places: Mapping[int, Sequence[int]], why: str, ends: Ends,
    left: _Left | None,
) -> _Outcome:  # fmt: skip
    began, picture, kept = time.perf_counter(), np.empty((clip.height, clip.width, 3), np.uint8), dict[int, Any]()
    other = clip.on_host() if left is None or left.clip is None else left.clip
    frames = {} if left is None or left.clip is None else left.frames
    try:
        with borrowed(index, on_host=True) as decoders:
            for n in wanted:  # one at a time: the host may not have room for a whole video
                if n in frames:
                    picture[...] = frames[n]
                else:
                    other.decode([n], lambda _: [picture])
                for place in places[n]:
                    _send(decoders.lane, place, picture)
                if n in ends.again:
                    kept[n] = picture.copy()
                decoders.lane.synchronize()
        if clip.refused_by(index):
            clip.kept |= kept
        if ends.after is None:
            other.close()
        clip.leave(ends.after, None if ends.after is None else _Left(("", 0), kept, clip=other, why=why))
    except BaseException as e:
        other.close()
        if isinstance(e, SampleError):
            return e.bare(), time.perf_counter() - began
        raise
    return why, time.perf_counter() - began


def report(ctx: Context, why: str, seconds: float, count: int = 1) -> None:
    """Tell what decoded ``count`` samples, and ``why`` it was the CPU."""
    ctx.decoded_by("CPU threads" if why else "NVDEC", count, seconds)
    if why and ctx.count is not None:
        ctx.count(f"not for NVDEC: {why}", count)


@cache
def threads() -> ThreadPoolExecutor:
    """The threads that drive NVDEC: more of them wait for each other in the driver."""
    return ThreadPoolExecutor(_THREADS, "nvdec")


def _send(lane: Lane, address: int, host: npt.NDArray[np.uint8]) -> None:
    """Copy ``host`` to the device, on the lane's stream."""
    staged = lane.pinned(host.nbytes)
    staged[:] = host.reshape(-1)
    if host.nbytes:
        lane.copy_in(address, staged)


def _reason(e: Exception) -> str:
    """The one line of the package's messages that says what is wrong, else the first."""
    lines = [line.strip() for line in str(e).splitlines() if line.strip()] or [type(e).__name__]
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("Error Type")), lines[0])


def matrix_of(space: int, span: int, pixels: str) -> _Matrix:
    """Factor and offset of luma, Cr's part of red, Cb's and Cr's of green, Cb's of blue, and whether the range is full,
    of a matrix and a range by their numbers in ITU-T H.273 and FFmpeg. It is the inverse of Y = R r + G g + B b, Cb =
    (B - Y) / (2 - 2 b), Cr = (R - Y) / (2 - 2 r), for values as 8 bits have them."""
    r, b = _WEIGHTS.get(space, _BT601)
    g = 1 - r - b
    full = span == _FULL or pixels.startswith("yuvj")
    luma, offset, chroma = (1.0, 0.0, 1.0) if full else (255 / 219, 16.0, 255 / 224)
    red, blue = 2 * (1 - r) * chroma, 2 * (1 - b) * chroma
    return luma, offset, red, blue * b / g, red * r / g, blue, full
