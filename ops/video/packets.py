"""Packets of videos as NVDEC takes them, read from files or from bytes without a GPU.

Packets, index and seeks are those of `Clip`. Threads of their own read them, before those that drive NVDEC begin.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ..kernels import Kernels
from .byte_streams import annexb, interlaced, parameter_sets
from .media import FAR, NO_FRAME, Glance, Index, Known, Table, group_of, number_of
from .relay import Ends

CODECS = {"h264": "H264", "hevc": "HEVC", "vp9": "VP9", "av1": "AV1"}
"""PyNvVideoCodec's names; VP8 has packets that show nothing, so that its frames are counted by decoding them."""
_BITS = {"yuv420p": 8, "yuvj420p": 8, "yuv420p10le": 10, "yuv420p12le": 12}
_READERS = 4
_LEAST = 96
"""Frames that a thread takes at once, unless there are fewer."""
_MORE = 24
"""Frames whose packets are read after the last one of a batch, where the next batch goes on there: NVDEC gives a frame
when it knows that none comes before it, and it may have up to 16 waiting."""
_APART = 4
"""How much larger than its packets the part of a file may be that is read with them: sound stands between them."""


_loops: Any = Kernels(".packets_cpu", __package__)


@dataclass(slots=True)
class Run:
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
    def fed(self) -> list[Packet]:
        """The packets by their addresses."""
        base = int(self.data.ctypes.data)
        return [(base + at, size, pts, self.data) for at, size, pts in self.packets]


Packet = tuple[int, int, int, npt.NDArray[np.uint8]]
"""Address, bytes, time, and the array that it lies in."""


@dataclass(slots=True)
class Rest:
    """A file that is read up to somewhere."""

    clip: Reading
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


class Reading(Glance):
    """A clip whose packets are read for NVDEC: `read` leaves them in `parts`."""

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
        self.parts: list[list[Run]] = []
        """The frames that were read, each part the work of one thread."""
        self.rest: Rest | None = None
        """Where the next batch reads on."""
        self.name = self.codec if known is None else known.codec
        self.bits = _BITS.get(self.facts.pixels, 0)

    @property
    def refused(self) -> str:
        """Why NVDEC is not asked; empty where it is."""
        if self.name not in CODECS or not self.bits:
            return f"{self.name}, {self.facts.pixels}"
        if self.height % 2 or self.width % 2:
            return "odd sizes"
        if interlaced(self.name, self._header):
            return f"{self.name}, interlaced"  # it would mix the fields of frames, which the CPU weaves
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
                self.parts[-1].append(Run(run, ends=shares) if self.refused else self._run(run, shares, rest))
        self._packets = None
        if self.rest is None or self.rest.clip is not self:
            self.close()
        if before is not None and before is not self.rest:
            before.clip.close()
        return self

    def _rest_before(self, ends: Ends) -> Rest | None:
        """Where the batch before stopped to read, which only this one may ask."""
        found = None if ends.before is None or ends.before.reading is None else ends.before.reading.result()
        if not isinstance(found, Reading):
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

    def _run(self, wanted: list[int], ends: Ends, rest: Rest | None) -> Run:
        """Read on from ``rest``, or from a key frame."""
        if not wanted:
            return Run([])
        times, keys = self.index
        run = Run(wanted, {times[number]: number for number in wanted}, ends=ends, continued=rest is not None)
        if self.table is not None and (rest is None or rest.at >= 0):
            if self._by_table(run, rest, self.table):
                return run
            rest, run.continued, self.table, run.packets = None, False, None, []
            if getattr(self, "container", None) is None:
                self._open()
        if rest is None:
            key = keys[max(bisect.bisect_right(keys, times[wanted[0]]) - 1, 0)]
            rest = Rest(self, self._from(key), key)
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
                if self.name == "hevc" and packet.pts is not None and packet.pts < rest.key:
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

    def _by_table(self, run: Run, rest: Rest | None, table: Table) -> bool:
        """`_run` without asking FFmpeg for each packet; False where the file is not what the table says."""
        (times, keys), wanted = self.index, run.wanted
        key = keys[max(bisect.bisect_right(keys, times[wanted[0]]) - 1, 0)] if rest is None else rest.key
        first = int(table.order[bisect.bisect_left(times, key)]) if rest is None else rest.at
        stop = 1 + int(table.order[[n for n in wanted if rest is None or n > rest.last]].max(initial=first - 1))
        if run.ends.after is not None:
            low = max(first, stop - _MORE)
            later = np.flatnonzero(table.times[low : stop + 2 * _MORE] > times[wanted[-1]])
            stop = max(stop, low + int(later[:_MORE].max(initial=-1)) + 1)
            self.rest = Rest(self, iter(()), key, wanted[-1], at=stop, complete=stop == len(times))
        run.complete = stop == len(times)
        which = np.arange(first, stop)
        if self.name == "hevc":  # of an open group: NVDEC leaves it out, and gives its time to a later frame
            which = which[table.times[which] >= key]
        if not len(which):
            return True
        starts, sizes, sets = table.starts[which], table.sizes[which], b""
        if byte_stream := self.name in ("h264", "hevc") and self._header[:1] == b"\1":
            found = parameter_sets(self.name, self._header)
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

    def anew(self, run: Run) -> list[Run]:
        """The frames of ``run``, from a key frame on. Raises SampleError."""
        with type(self)(self._source, self.index) as clip, reading:
            return [other for part in clip.read(run.wanted).parts for other in part]

    def _converter_of_packets(self) -> Callable[[Any, bool], bytes]:
        """Makes NVDEC's bytes of a packet, the first of a run or not."""
        if self.name not in ("h264", "hevc") or self._header[:1] != b"\1":
            return lambda packet, _first: bytes(packet)
        sets = parameter_sets(self.name, self._header)
        if sets is not None:  # FFmpeg's filter gives the same, and gives the GIL away several times for each packet
            return lambda packet, first: annexb(bytes(packet), sets if first else b"")
        made = self._av.bitstream.BitStreamFilterContext(f"{self.name}_mp4toannexb", self.stream)

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


reading = threading.Lock()
"""Held while packets are read. That is Python's work more than FFmpeg's: with several at it all wait for the GIL, those
that drive NVDEC, too."""


@cache
def readers() -> ThreadPoolExecutor:
    """The threads that open files for them, and read packets, one at a time (`reading`)."""
    return ThreadPoolExecutor(_READERS, "packets")
