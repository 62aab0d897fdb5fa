"""Videos through NVDEC, as the package PyNvVideoCodec drives it: frames go from its surfaces to tensors on the GPU.

`NvClip` is a `Clip`: packets, index and seeks are those of the CPU, and frames are compared with the index by their
times. Only what decodes is another. Whatever NVDEC refuses is the CPU's.

The threads that drive NVDEC do nothing else, so that its engines never wait for Python: others have read the packets
before, and a frame takes one call without the GIL, to decode it, and one that keeps it, to launch its conversion.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ..context import Context
from ..errors import SampleError
from ..gpu.lane import Lane
from ..kernels import Kernels
from .byte_streams import annexb, interlaced, parameter_sets
from .media import FAR, NO_FRAME, Clip, Decoded, Glance, Index, Known, Table, group_of, number_of
from .relay import Ends, Relay

_CODECS = {"h264": "H264", "hevc": "HEVC", "vp9": "VP9", "av1": "AV1"}
"""PyNvVideoCodec's names; VP8 has packets that show nothing, so that its frames are counted by decoding them."""
_BITS = {"yuv420p": 8, "yuvj420p": 8, "yuv420p10le": 10, "yuv420p12le": 12}
_WEIGHTS = {1: (0.2126, 0.0722), 4: (0.30, 0.11), 7: (0.212, 0.087), 9: (0.2627, 0.0593), 10: (0.2627, 0.0593)}
"""Of red and blue in luma, by the number of the matrix in ITU-T H.273; all others are taken for BT.601, as FFmpeg's
converter does."""
_BT601 = (0.299, 0.114)
_Matrix = tuple[float, float, float, float, float, float, bool]
_FULL = 2
"""The range of values in which black is 0, as FFmpeg numbers it."""
_BLOCK = 256
_THREADS, _READERS = 8, 4
_LEAST = 96
"""Frames that a thread takes at once, unless there are fewer."""
_MORE = 24
"""Frames whose packets are read after the last one of a batch, where the next batch goes on there: NVDEC gives a frame
when it knows that none comes before it, and it may have up to 16 waiting."""
_APART = 4
"""How much larger than its packets the part of a file may be that is read with them: sound stands between them."""
_MOST_KEPT = 64
"""Frames that a batch keeps for the next, at most."""


_loops: Any = Kernels(".packets_cpu", __package__)


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
                gpuid=self.lane.index, codec=getattr(module().cudaVideoCodec, _CODECS[codec]),
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
class _Run:
    """Packets that follow each other from a key frame on, as NVDEC takes them, and the frames wanted of them."""

    wanted: list[int]
    """Numbers of the frames."""
    times: dict[int, int] = field(default_factory=dict)
    """The numbers by the frames' times."""
    data: npt.NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    packets: list[tuple[int, int, int]] = field(default_factory=list)
    """Where in the data each begins, its bytes, and its time."""
    ends: Ends = field(default_factory=Ends)
    continued: bool = False
    """The packets follow those of the batch before."""
    complete: bool = False
    """They go to the end of the file."""

    @property
    def fed(self) -> list[_Packet]:
        """The packets by their addresses."""
        base = int(self.data.ctypes.data)
        return [(base + at, size, pts, self.data) for at, size, pts in self.packets]


_Packet = tuple[int, int, int, npt.NDArray[np.uint8]]
"""Address, bytes, time, and the array that it lies in."""


@dataclass(slots=True)
class _Rest:
    """A file that is read up to somewhere."""

    clip: NvClip
    """Has it open."""
    packets: Iterator[Any]
    key: int
    """The time of the key frame that they begin with."""
    last: int = -1
    """The last frame that was wanted."""
    seen: set[int] = field(default_factory=set)
    """Times of later frames whose packets were read."""
    at: int = -1
    """The next packet of the file's table, where that is used."""
    complete: bool = False


@dataclass(slots=True)
class _Left:
    """A decoder, packets and frames that a batch leaves to the next one; see `relay`."""

    kind: tuple[str, int]
    """Codec and bits of a sample."""
    frames: dict[int, Any] = field(default_factory=dict)
    """By number; on the device, or on the host with ``clip``."""
    decoders: Decoders | None = None
    """With one in the middle of a group."""
    packets: list[_Packet] = field(default_factory=list)
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


class NvClip(Glance):
    """A clip whose pictures are surfaces of NVDEC: `read`, then `show`. Reading needs no GPU, and showing no file."""

    def __init__(
        self, source: str | npt.NDArray[np.uint8], index: Index | None = None, known: Known | None = None
    ) -> None:
        """``known``: of the same file; if it has a table, the file is not opened. Raises SampleError as `Clip` does."""
        known = None if known is None or known.table is None else known
        super().__init__(source, index, facts=None if known is None else known.facts)
        if index is None and not isinstance(source, str):
            self._packets = []  # the index reads the file once, and once is enough
        self._header = self.header if known is None else known.header
        self.table = None if known is None else known.table
        self.parts: list[list[_Run]] = []
        """The frames that were read, each part the work of one thread."""
        self.rest: _Rest | None = None
        """Where the next batch reads on."""
        self.kept: dict[int, Any] = {}
        """Frames that the next batch wants, too."""
        self._unfinished, self._shares = 0, False
        self._leaves: tuple[Relay[_Left], _Left] | None = None
        self._lock = threading.Lock()
        self._name = self.codec if known is None else known.codec
        self._bits = _BITS.get(self.facts.pixels, 0)
        self._matrix = matrix_of(self.facts.space, self.facts.span, self.facts.pixels)

    @property
    def refused(self) -> str:
        """Why NVDEC is not asked; empty where it is."""
        if self._name not in _CODECS or not self._bits:
            return f"{self._name}, {self.facts.pixels}"
        if self.height % 2 or self.width % 2:
            return "odd sizes"
        if interlaced(self._name, self._header):
            return f"{self._name}, interlaced"  # it would mix the fields of frames, which the CPU weaves
        return "" if self.index[0] else "packets without times"

    def read(self, numbers: Iterable[int], ends: Ends | None = None) -> Self:
        """Read what frames ``numbers`` need, and let go of the file, unless the next batch reads on. ``ends``: what
        this one shares with its neighbours. Raises SampleError."""
        ends = ends or Ends()
        wanted = sorted(set(numbers))
        if wanted[:1] == [NO_FRAME]:
            del wanted[0]
        first = [n for n in wanted if ends.before is not None and group_of(self.index, n) <= ends.before.group]
        parts = [[first]] if first else []
        if len(first) < len(wanted) or not parts:
            others = wanted[len(first) :]
            parts += self._cut(others) if self.index[0] else [[others]]
        before = self._rest_before(ends) if first and not self.refused else None
        self.parts = []
        for part in parts:
            self.parts.append([])
            for run in part:
                last = run is parts[-1][-1]
                shares = ends.of(first=run is first, last=last)
                rest = before if run is first else None
                self.parts[-1].append(_Run(run, ends=shares) if self.refused else self._run(run, shares, rest))
        self._packets = None
        self._unfinished, self._shares = len(self.parts), bool(ends.again)
        if self.rest is None or self.rest.clip is not self:
            self.close()
        if before is not None and before is not self.rest:
            before.clip.close()
        return self

    def _rest_before(self, ends: Ends) -> _Rest | None:
        """Where the batch before stopped to read, which only this one may ask."""
        found = None if ends.before is None or ends.before.reading is None else ends.before.reading.result()
        if not isinstance(found, NvClip):
            return None
        rest, found.rest = found.rest, None
        return rest

    def _cut(self, wanted: list[int]) -> list[list[list[int]]]:
        """``wanted`` in parts for several threads, that begin at key frames of their own; and these where there is much
        between two frames, and a key frame. Parts are not too short: at its end each leaves an engine idle."""
        times, keys = self.index
        parts: list[list[list[int]]] = [[wanted[:1]]]
        for last, number in pairwise(wanted):
            key = number_of(times, keys[max(bisect.bisect_right(keys, times[number]) - 1, 0)])
            if key > last and key - parts[-1][0][0] >= _LEAST:
                parts.append([[]])
            elif key > last and number - last > FAR:
                parts[-1].append([])
            parts[-1][-1].append(number)
        return parts

    def _run(self, wanted: list[int], ends: Ends, rest: _Rest | None) -> _Run:
        """Read on from ``rest``, or from a key frame."""
        if not wanted:
            return _Run([])
        times, keys = self.index
        run = _Run(wanted, {times[number]: number for number in wanted}, ends=ends, continued=rest is not None)
        if self.table is not None and (rest is None or rest.at >= 0):
            if self._by_table(run, rest, self.table):
                return run
            rest, run.continued, self.table, run.packets = None, False, None, []
            if getattr(self, "container", None) is None:
                self._open()
        if rest is None:
            key = keys[max(bisect.bisect_right(keys, times[wanted[0]]) - 1, 0)]
            rest = _Rest(self, self._from(key), key)
        left = {times[number] for number in wanted if number > rest.last} - rest.seen
        end, more = times[wanted[-1]], _MORE if ends.after is not None else 0
        rest.seen = {t for t in rest.seen if t > end}
        parts, at, unit_of = list[bytes](), 0, self._converter_of_packets()
        with suppress(*self.errors):  # what is missing will not come out, and the CPU has the last word on damage
            while left or len(rest.seen) < more:
                packet = next(rest.packets, None)
                if packet is None:
                    rest.complete = True
                    break
                if self._name == "hevc" and packet.pts is not None and packet.pts < rest.key:
                    continue  # of an open group: NVDEC leaves it out, and gives its time to a later frame
                left.discard(packet.pts)
                if more and packet.pts is not None and packet.pts > end:
                    rest.seen.add(packet.pts)
                parts.append(unit_of(packet, not parts and not run.continued))
                run.packets.append((at, len(parts[-1]), packet.pts or 0))
                at += len(parts[-1])
        run.data, run.complete, rest.last = np.frombuffer(b"".join(parts), np.uint8), rest.complete, wanted[-1]
        if more:
            self.rest = rest
        return run

    def _by_table(self, run: _Run, rest: _Rest | None, table: Table) -> bool:
        """`_run` without asking FFmpeg for each packet; False where the file is not what the table says."""
        (times, keys), wanted = self.index, run.wanted
        key = keys[max(bisect.bisect_right(keys, times[wanted[0]]) - 1, 0)] if rest is None else rest.key
        first = int(table.order[bisect.bisect_left(times, key)]) if rest is None else rest.at
        stop = 1 + int(table.order[[n for n in wanted if rest is None or n > rest.last]].max(initial=first - 1))
        if run.ends.after is not None:
            low = max(first, stop - _MORE)
            later = np.flatnonzero(table.times[low : stop + 2 * _MORE] > times[wanted[-1]])
            stop = max(stop, low + int(later[:_MORE].max(initial=-1)) + 1)
            self.rest = _Rest(self, iter(()), key, wanted[-1], at=stop, complete=stop == len(times))
        run.complete = stop == len(times)
        which = np.arange(first, stop)
        if self._name == "hevc":  # of an open group: NVDEC leaves it out, and gives its time to a later frame
            which = which[table.times[which] >= key]
        if not len(which):
            return True
        starts, sizes, sets = table.starts[which], table.sizes[which], b""
        if byte_stream := self._name in ("h264", "hevc") and self._header[:1] == b"\1":
            found = parameter_sets(self._name, self._header)
            if found is None:
                return False
            sets = b"" if run.continued else found
        low, span = int(starts.min()), int((starts + sizes).max() - starts.min())
        if starts[0] != low or span > _APART * int(sizes.sum()):
            return False
        run.data = np.empty(len(sets) + span, np.uint8)
        run.data[: len(sets)] = np.frombuffer(sets, np.uint8)
        starts += len(sets) - low
        if not self._copied(low, run.data[len(sets) :]) or (
            byte_stream and _loops.start_codes(run.data, starts, sizes)
        ):
            return False
        starts[0], sizes[0] = 0, sizes[0] + len(sets)
        run.packets = list(zip(starts.tolist(), sizes.tolist(), table.times[which].tolist(), strict=True))
        return True

    def _copied(self, start: int, out: npt.NDArray[np.uint8]) -> bool:
        """Bytes of the file from ``start`` on, if it has as many."""
        if not isinstance(self._source, str):
            part = self._source[start : start + len(out)]
            if len(part) == len(out):
                out[:] = part
            return len(part) == len(out)
        try:
            with open(self._source, "rb", buffering=0) as file:
                file.seek(start)
                return file.readinto(out.data) == len(out)
        except OSError:
            return False

    def anew(self, run: _Run) -> list[_Run]:
        """The frames of ``run``, from a key frame on. Raises SampleError."""
        with NvClip(self._source, self.index) as clip, reading:
            return [other for part in clip.read(run.wanted).parts for other in part]

    def _converter_of_packets(self) -> Callable[[Any, bool], bytes]:
        """Makes NVDEC's bytes of a packet, the first of a run or not."""
        if self._name not in ("h264", "hevc") or self._header[:1] != b"\1":
            return lambda packet, _first: bytes(packet)
        sets = parameter_sets(self._name, self._header)
        if sets is not None:  # FFmpeg's filter gives the same, and gives the GIL away several times for each packet
            return lambda packet, first: annexb(bytes(packet), sets if first else b"")
        made = self._av.bitstream.BitStreamFilterContext(f"{self._name}_mp4toannexb", self.stream)

        def filtered(packet: Any, _first: bool) -> bytes:
            copy = self._av.Packet(bytes(packet))  # the filter takes it away
            copy.pts, copy.dts, copy.time_base, copy.is_keyframe = (
                packet.pts, packet.dts, packet.time_base, packet.is_keyframe,
            )  # fmt: skip
            return b"".join(bytes(unit) for unit in made.filter(copy))

        return filtered

    def _from(self, key: int) -> Iterator[Any]:
        """Packets from the key frame at ``key`` on, or from the start where that cannot be found."""
        if self._packets is not None:
            yield from self._packets[next(k for k, p in enumerate(self._packets) if p.pts == key) :]
            return
        if not (self._untouched and key == self.index[1][0]) and not self._sought(key):
            self.container.close()
            self._open()
        self._untouched = False
        yield from (p for p in self.container.demux(self.stream) if p.size)

    def refused_by(self, index: int) -> str:
        """Why GPU ``index`` decodes nothing of this kind, where that is known."""
        return self.refused or _unsupported.get((index, self._name, self._bits), "")

    def show(
        self, run: _Run, decoders: Decoders, places: Mapping[int, Sequence[int]], left: _Left | None = None
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
                _unsupported[decoders.lane.index, self._name, self._bits] = str(e)
                raise
            if left is not None:
                raise
            # Maybe it was not made for this stream. A new one that was fed a stream may take one that begins in an open
            # group; it stays, if it did not fail.
            return self._shown_by(decoders, run, places, None)

    def _shown_by(
        self, decoders: Decoders, run: _Run, places: Mapping[int, Sequence[int]], left: _Left | None
    ) -> _Left | None:
        kind, lane, size = (self._name, self._bits), decoders.lane, self.height * self.width * 3
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
        converter = _Converter(lane, self.height, self.width, self._bits, self._matrix)

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
            raise RefusedError(f"{self._name}: {_reason(e)}") from None
        if waiting:
            if was_there:
                decoders.drop(*kind)
            raise RefusedError(f"{self._name}: frames did not come out")
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
    index: int, clip: NvClip, part: list[_Run], places: Mapping[int, Sequence[int]], fill: npt.NDArray[np.uint8]
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
    index: int, clip: NvClip, part: list[_Run], places: Mapping[int, Sequence[int]], fill: npt.NDArray[np.uint8],
    left: _Left | None,
) -> _Found:  # fmt: skip
    """One part, by NVDEC; or what a thread of the CPU begins with, and this one does not wait for."""
    from ..codecs.on_threads import threads as cpu_threads

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
    clip: NvClip, run: _Run, decoders: Decoders, places: Mapping[int, Sequence[int]], left: _Left | None
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
    except SampleError as e:
        other.close()
        return e.bare(), time.perf_counter() - began
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


reading = threading.Lock()
"""Held while packets are read. That is Python's work more than FFmpeg's: with several at it all wait for the GIL, those
that drive NVDEC, too."""


@cache
def readers() -> ThreadPoolExecutor:
    """The threads that open files for them, and read packets, one at a time (`reading`)."""
    return ThreadPoolExecutor(_READERS, "packets")


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
