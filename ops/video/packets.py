"""Read packets of videos from files or from bytes in the form that NVDEC takes; no GPU is needed.

Packets, index and seeks are those of `media.Clip`. Dedicated threads read them before the threads that drive NVDEC
start.
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
from .decoder_handoff import SharedGroups
from .media import FAR, NO_FRAME, Glance, Index, Known, Table, group_of, number_of

CODECS = {"h264": "H264", "hevc": "HEVC", "vp9": "VP9", "av1": "AV1"}
"""Codecs that NVDEC decodes, with their names in PyNvVideoCodec. VP8 is missing, because some of its packets show no
frame, so that frames cannot be counted without decoding."""
_BITS = {"yuv420p": 8, "yuvj420p": 8, "yuv420p10le": 10, "yuv420p12le": 12}
_READERS = 4
_MIN_FRAMES = 96
"""Minimum number of frames for which a thread is worth its cost; shorter videos are decoded by a single thread."""
_EXTRA_FRAMES = 24
"""Maximum number of frames, after a batch's last one, whose packets are also read if the next batch continues there.
NVDEC outputs a frame only when it knows that no earlier one follows, and may hold back 16."""
_MAX_GAPS = 4
"""Maximum ratio of a file range to the video packets in it (in bytes) for which the range is read at once. The
remaining bytes are audio packets."""


_loops: Any = Kernels(".packets_cpu", __package__)


@dataclass(slots=True)
class Run:
    """Consecutive packets of a video from a key frame on, as NVDEC takes them, and the frames that are needed from
    them."""

    wanted: list[int]
    """Numbers of the frames that are needed from these packets."""
    times: dict[int, int] = field(default_factory=dict)
    """Number of each needed frame, by display time."""
    data: npt.NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    packets: list[tuple[int, int, int]] = field(default_factory=list)
    """Packets, each as (offset in ``data``, size in bytes, time)."""
    shared: SharedGroups = field(default_factory=SharedGroups)
    continued: bool = False
    """Whether these packets follow those of the previous batch, and need not begin at a key frame."""
    complete: bool = False
    """Whether the packets extend to the end of the file."""

    @property
    def fed(self) -> list[Packet]:
        """Packets with their addresses in memory, as NVDEC takes them."""
        base = int(self.data.ctypes.data)
        return [(base + at, size, pts, self.data) for at, size, pts in self.packets]


Packet = tuple[int, int, int, npt.NDArray[np.uint8]]
"""Packet as NVDEC takes it: address, size in bytes, time, and the array that contains the bytes."""


@dataclass(slots=True)
class Rest:
    """Open video file whose packets were read up to some position, from which the next batch reads on."""

    clip: Reading
    """The open file."""
    packets: Iterator[Any]
    key: int
    """Time of the key frame at which reading began."""
    last: int = -1
    """Number of the last frame that the batch needed."""
    seen: set[int] = field(default_factory=set)
    """Times of the frames after ``last`` whose packets were already read."""
    at: int = -1
    """Index of the next packet in the file's table of packets; -1 if there is no such table."""
    complete: bool = False


class Reading(Glance):
    """Video file whose packets are read for NVDEC, by `read`, into `parts`."""

    def __init__(
        self, source: str | npt.NDArray[np.uint8], index: Index | None = None, known: Known | None = None
    ) -> None:
        """Open the file ``source``. ``known``: facts about the same file; if they include its table, the file is not
        opened. Raises SampleError as `Clip` does."""
        known = None if known is None or known.table is None else known
        super().__init__(source, index, facts=None if known is None else known.facts)
        if index is None and not isinstance(source, str):
            self._packets = []  # the index reads the file once; its packets need not be kept
        self._header = self.header if known is None else known.header
        self.table = None if known is None else known.table
        self.parts: list[list[Run]] = []
        """Packets that were read, in one list of runs per part of the file; one thread decodes a part."""
        self.rest: Rest | None = None
        """Open file at the position from which the next batch reads on; None if no batch does."""
        self.name = self.codec if known is None else known.codec
        self.bits = _BITS.get(self.facts.pixels, 0)

    @property
    def refused(self) -> str:
        """Reason why NVDEC does not decode this file, such as its codec; empty if NVDEC does."""
        if self.name not in CODECS or not self.bits:
            return f"{self.name}, {self.facts.pixels}"
        if self.height % 2 or self.width % 2:
            return "odd sizes"
        if interlaced(self.name, self._header):
            return f"{self.name}, interlaced"  # NVDEC would mix the fields of frames, which the CPU decoder interleaves
        return "" if self.index[0] else "packets without times"

    def read(self, numbers: Iterable[int], shared: SharedGroups | None = None) -> Self:
        """Read the packets from which the frames ``numbers`` are decoded, and close the file unless the next batch
        reads on. ``shared``: transfers of decoders from and to the neighbouring batches. Raises SampleError."""
        shared = shared or SharedGroups()
        wanted = sorted(set(numbers))
        if wanted[:1] == [NO_FRAME]:
            del wanted[0]
        first = [n for n in wanted if shared.before is not None and group_of(self.index, n) <= shared.before.group]
        parts = [[first]] if first else []
        if len(first) < len(wanted) or not parts:
            others = wanted[len(first) :]
            parts += self._cut(others) if self.index[0] else [[others]]
        before = self._rest_before(shared) if first and not self.refused else None
        self.parts = []
        for part in parts:
            self.parts.append([])
            for run in part:
                last = run is parts[-1][-1]
                shares = shared.of(first=run is first, last=last)
                rest = before if run is first else None
                self.parts[-1].append(Run(run, shared=shares) if self.refused else self._run(run, shares, rest))
        self._packets = None
        if self.rest is None or self.rest.clip is not self:
            self.close()
        if before is not None and before is not self.rest:
            before.clip.close()
        return self

    def _rest_before(self, shared: SharedGroups) -> Rest | None:
        """Take over the open file from the previous batch, at the position where that batch stopped. Return None if
        there is no previous batch, or if it failed. Called once."""
        found = None if shared.before is None or shared.before.reading is None else shared.before.reading.result()
        if not isinstance(found, Reading):
            return None
        rest, found.rest = found.rest, None
        return rest

    def _cut(self, numbers: list[int]) -> list[list[list[int]]]:
        """Divide the needed frames ``numbers`` into parts for several threads, each from a key frame on. Divide a part
        into runs if a key frame and many unneeded frames lie between two needed ones. Parts are not short, because an
        NVDEC engine is idle at the end of each."""
        times, keys = self.index
        parts: list[list[list[int]]] = [[numbers[:1]]]
        for last, number in pairwise(numbers):
            key = number_of(times, keys[max(bisect.bisect_right(keys, times[number]) - 1, 0)])
            if key > last and key - parts[-1][0][0] >= _MIN_FRAMES:
                parts.append([[]])
            elif key > last and number - last > FAR:
                parts[-1].append([])
            parts[-1][-1].append(number)
        return parts

    def _next_packet(self, state: Rest) -> Any:
        """Return the next packet that NVDEC decodes; None after the last one."""
        for packet in state.packets:
            # NVDEC drops a frame of an open group, and would assign its time to a later frame
            if self.name != "hevc" or packet.pts is None or packet.pts >= state.key:
                return packet
        state.complete = True
        return None

    def _run(self, numbers: list[int], shared: SharedGroups, state: Rest | None) -> Run:
        """Read the packets from which the frames ``numbers`` are decoded. Continue from ``state`` if there is one, else
        begin at a key frame."""
        if not numbers:
            return Run([])
        times, keys = self.index
        run = Run(
            numbers,
            {times[number]: number for number in numbers},
            shared=shared,
            continued=state is not None,
        )
        if self.table is not None and (state is None or state.at >= 0):
            if self._by_table(run, state, self.table):
                return run
            state, run.continued, self.table, run.packets = None, False, None, []
            if getattr(self, "container", None) is None:
                self._open()
        if state is None:
            key = keys[max(bisect.bisect_right(keys, times[numbers[0]]) - 1, 0)]
            state = Rest(self, self._from(key), key)
        left = {times[number] for number in numbers if number > state.last} - state.seen
        end, more = times[numbers[-1]], _EXTRA_FRAMES if shared.after is not None else 0
        state.seen = {t for t in state.seen if t > end}
        parts, at, unit_of = list[bytes](), 0, self._converter_of_packets()
        with suppress(*self.errors):  # missing frames are not decoded; only the CPU decides whether the file is damaged
            while left or len(state.seen) < more:
                packet = self._next_packet(state)
                if packet is None:
                    break
                left.discard(packet.pts)
                if more and packet.pts is not None and packet.pts > end:
                    state.seen.add(packet.pts)
                parts.append(unit_of(packet, not parts and not run.continued))
                run.packets.append((at, len(parts[-1]), packet.pts or 0))
                at += len(parts[-1])
        run.data, run.complete, state.last = np.frombuffer(b"".join(parts), np.uint8), state.complete, numbers[-1]
        if more:
            self.rest = state
        return run

    def _by_table(self, run: Run, state: Rest | None, table: Table) -> bool:
        """Read packets like `_run`, but at the positions in the file's own table, without calling FFmpeg for each.
        Return False if the file contradicts the table."""
        (times, keys), wanted = self.index, run.wanted
        key = keys[max(bisect.bisect_right(keys, times[wanted[0]]) - 1, 0)] if state is None else state.key
        first = int(table.order[bisect.bisect_left(times, key)]) if state is None else state.at
        stop = 1 + int(table.order[[n for n in wanted if state is None or n > state.last]].max(initial=first - 1))
        if run.shared.after is not None:
            low = max(first, stop - _EXTRA_FRAMES)
            later = np.flatnonzero(table.times[low : stop + 2 * _EXTRA_FRAMES] > times[wanted[-1]])
            stop = max(stop, low + int(later[:_EXTRA_FRAMES].max(initial=-1)) + 1)
            self.rest = Rest(self, iter(()), key, wanted[-1], at=stop, complete=stop == len(times))
        run.complete = stop == len(times)
        which = np.arange(first, stop)
        # frames of an open group: NVDEC drops them, and would assign their times to later frames
        if self.name == "hevc":
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
        if starts[0] != low or span > _MAX_GAPS * int(sizes.sum()):
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
        """Copy bytes of the file from ``start`` on into ``out``. Return False if the file is too short."""
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
        """Read the packets of ``run`` again, for a decoder that cannot continue from the previous batch. Return runs
        that begin at key frames. Raises SampleError."""
        with type(self)(self._source, self.index) as clip, reading:
            return [other for part in clip.read(run.wanted).parts for other in part]

    def _converter_of_packets(self) -> Callable[[Any, bool], bytes]:
        """Return a function that converts a packet to the bytes that NVDEC takes. Arguments: the packet, and whether it
        is the first of its run."""
        if self.name not in ("h264", "hevc") or self._header[:1] != b"\1":
            return lambda packet, _first: bytes(packet)
        sets = parameter_sets(self.name, self._header)
        # gives the same bytes as FFmpeg's filter, which releases and takes the GIL several times per packet
        if sets is not None:
            return lambda packet, first: annexb(bytes(packet), sets if first else b"")
        made = self._av.bitstream.BitStreamFilterContext(f"{self.name}_mp4toannexb", self.stream)

        def filtered(packet: Any, _first: bool) -> bytes:
            copy = self._av.Packet(bytes(packet))  # the filter takes the packet's data away
            copy.pts, copy.dts, copy.time_base, copy.is_keyframe = (
                packet.pts, packet.dts, packet.time_base, packet.is_keyframe,
            )  # fmt: skip
            return b"".join(bytes(unit) for unit in made.filter(copy))

        return filtered

    def _from(self, key: int) -> Iterator[Any]:
        """Yield packets from the key frame at time ``key`` on, or from the start if FFmpeg cannot seek."""
        if self._packets is not None:
            yield from self._packets[next(k for k, p in enumerate(self._packets) if p.pts == key) :]
            return
        if not (self._untouched and key == self.index[1][0]) and not self._sought(key):
            self.container.close()
            self._open()
        self._untouched = False
        yield from (p for p in self.container.demux(self.stream) if p.size)


reading = threading.Lock()
"""Lock that allows only one thread to read packets at a time. Reading is mostly Python code: more threads would only
wait for the GIL, and keep the threads that drive NVDEC waiting."""


@cache
def readers() -> ThreadPoolExecutor:
    """Return the pool of threads that open video files and read packets, one thread at a time (`reading`)."""
    return ThreadPoolExecutor(_READERS, "packets")
