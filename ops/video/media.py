"""Videos through FFmpeg, as the package av (PyAV) carries it: which frames there are, and the ones that are asked for.

The frames of a file are numbered in the order in which they are shown. An index comes from the packets alone, nothing
is decoded for it; a seek goes to the key frame before a frame, and what comes out is compared with the index by its
time.
"""

from __future__ import annotations

import bisect
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from ..errors import RejectCode, SampleError, SpecError
from .mp4 import Samples, samples_of
from .swscale import Converter

Index = tuple[list[int], list[int]]
Places = Callable[[int], Sequence[Any]]
"""Where the frame with a number goes: arrays (height, width, 3), or of a device's memory."""
Colours = Literal["rgb24", "yuv444p"]

NO_FRAME = -1
"""In place of a frame's number: a picture of the fill value."""

FAR = 24
"""Frames that are rather decoded than jumped over, where there is no key frame between."""
_HIDDEN = frozenset(("vp8",))
"""Codecs with packets that show nothing, so that packets do not count frames."""
_UNDECODED = {"codec_whitelist": "none"}
"""Options to open files with, so that FFmpeg does not decode frames only to find out what they are; for H.264 and VP9
that takes as long as decoding five."""
_MOST_KINDS = 256
_CONFIRM = 3
"""Packets that FFmpeg and a file's tables must agree on."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The form of a stream's frames."""

    height: int
    width: int
    pixels: str
    """FFmpeg's name of the format."""
    space: int
    """The matrix, by its number in ITU-T H.273."""
    span: int
    """The range of values, as FFmpeg numbers it."""


@dataclass(frozen=True, slots=True)
class Table:
    """Where the packets of a stream lie in a file that holds them as they are (MP4), in the order of decoding."""

    times: npt.NDArray[np.int64]
    """In the stream's units."""
    starts: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]
    """The number of each frame's packet."""


@dataclass(frozen=True, slots=True)
class Known:
    """The facts of a file besides its index: with them its packets can be read without opening it again."""

    codec: str
    header: bytes
    """The decoder's configuration."""
    facts: Facts
    table: Table | None


_facts: dict[tuple[Any, ...], Facts] = {}
"""By all that they follow from: files of one encoder are told by its header, without decoding."""


def require() -> Any:
    """The package av. Raises SpecError where it is not installed."""
    try:
        import av
    except ImportError as e:
        raise SpecError(f"video needs the package av: pip install 'dali-run[media]' ({e})") from None
    return av


class Clip:
    """The first video stream of a file. Close it, or use it as a context."""

    unprobed: ClassVar[frozenset[str]] = frozenset()
    """Codecs of which no frame is decoded when a file is opened, where the form of its frames is known already."""

    def __init__(
        self, source: str | npt.NDArray[np.uint8], index: Index | None = None, colours: Colours = "rgb24",
        threads: int = 1, facts: Facts | None = None,
    ) -> None:  # fmt: skip
        """``source``: a path, or the file's bytes. ``index``: of the same file, if it is known. ``colours``: of the
        pictures, RGB, or the stream's own Y, Cb and Cr. ``threads``: that decode it; one, where files are decoded
        beside each other. ``facts``: where they are known, the file is not opened. Raises SampleError."""
        self.container: Any
        """The file, as av has it."""
        self.stream: Any
        self._known, self._colours, self._threads = index, colours, threads
        self._av = av = require()
        self._converter: Any = None
        self._straight = Converter()
        self.errors: tuple[type[Exception], ...] = (av.error.FFmpegError, ValueError, EOFError)
        self._source = source
        if not isinstance(source, str) and not len(source):
            raise SampleError("truncated", "the file is empty")
        self._packets: list[Any] | None = None
        """Where the index keeps the packets that it sees."""
        self.table: Table | None = None
        """Known once the index was made, of files that have one."""
        if facts is None:
            self._open()
        else:
            self.facts = facts
        self.height, self.width = self.facts.height, self.facts.width
        if self.height < 1 or self.width < 1:
            self.close()
            raise SampleError("corrupt_data", "its video has no size")
        self._frames: Iterator[Any] | None = None
        self._at = -1
        """The last frame that came out of them."""

    def _open(self) -> None:
        kind = None
        if self.unprobed:
            self._begin(_UNDECODED)
            kind = self._kind() if self.codec in self.unprobed else None
            if kind is not None and (known := _facts.get(kind)) is not None:
                self.facts = known
                return
            self.container.close()
        self._begin({})
        context = self.stream.codec_context
        self.facts = Facts(int(context.height), int(context.width), str(context.pix_fmt), int(context.colorspace),
                           int(context.color_range))  # fmt: skip
        """The form of the frames."""
        if kind is not None and context.pix_fmt:
            if len(_facts) >= _MOST_KINDS:
                _facts.clear()
            _facts[kind] = self.facts

    def _kind(self) -> tuple[Any, ...] | None:
        """All that the form of the frames follows from, without decoding; None where that is not known."""
        context = self.stream.codec_context
        header = bytes(context.extradata or b"")
        if self.codec == "vp9":  # the header of the first frame: profile, bits, colours, size
            try:
                first = next((p for p in self.container.demux(self.stream) if p.size), b"")
            except self.errors:
                return None
            header = bytes(first)[:_VP9_HEADER]
            if not self._sought(_START):
                return None
            if len(header) < _VP9_HEADER or header[0] & 0b11001100 != 0b10000000:  # a key frame
                return None
        elif not _has_sequence(self.codec, header):
            return None
        return (
            self.codec, header, self.container.format.name, int(context.height), int(context.width),
            int(context.colorspace), int(context.color_range),
        )  # fmt: skip

    def _begin(self, options: dict[str, str]) -> None:
        source, self._untouched = self._source, True
        opened = source if isinstance(source, str) else io.BytesIO(source.data)
        try:
            self.container = require().open(opened, options=options)
        except self.errors as e:
            raise SampleError(_code(e), f"no video that FFmpeg reads: {reason(e)}") from None
        streams = self.container.streams.video
        if not streams:
            self.close()
            raise SampleError("unsupported", "there is no video stream in it")
        self.stream = streams[0]
        context = self.stream.codec_context
        if context is None:
            self.close()
            raise SampleError("unsupported", "there is no decoder for its video stream")
        context.thread_count = self._threads
        if self._threads > 1:
            context.thread_type = "AUTO"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._frames = None  # a generator would hold it
        self._straight.close()
        with suppress(Exception):
            self.container.close()

    @property
    def codec(self) -> str:
        """FFmpeg's name of the stream's codec: h264, hevc, vp9, av1, ..."""
        return str(self.stream.codec_context.codec.canonical_name)

    @property
    def guess(self) -> int:
        """About how many frames there are, by the header alone."""
        if self.stream.frames:
            return int(self.stream.frames)
        rate = float(self.stream.average_rate or 25)
        duration = self.container.duration
        return max(1, int(rate * duration / 1e6)) if duration else 250

    @cached_property
    def index(self) -> Index:
        """Times of all frames and of the key frames, in the stream's units; empty where packets do not tell."""
        return self._indexed() if self._known is None else self._known

    def _indexed(self) -> Index:
        if (found := self._tabled()) is not None:
            return found
        times, keys, table = list[int](), list[int](), list[tuple[int, int, int]]()
        if self.stream.codec_context.name in _HIDDEN:
            return [], []
        try:
            self._untouched = False
            for packet in self.container.demux(self.stream):
                if packet.size == 0:
                    continue
                time = packet.pts
                table.append((-1 if time is None else time, packet.pos, packet.size))
                if packet.is_discard:
                    continue
                if time is None:
                    return [], []
                times.append(time)
                if packet.is_keyframe:
                    keys.append(time)
                if self._packets is not None:
                    self._packets.append(packet)
        except self.errors as e:
            if not times:
                raise SampleError("corrupt_data", f"its packets cannot be read: {reason(e)}") from None
        declared = int(self.stream.frames)
        if len(times) < declared:
            raise SampleError("truncated", f"{len(times)} of {declared} frames are there")
        if len(set(times)) != len(times) or not keys:
            return [], []
        if "mp4" in self.container.format.name.split(",") and len(set(table)) == len(table) == len(times):
            shown, starts, sizes = np.array(table, np.int64).T.copy()
            if (starts >= 0).all():
                self.table = Table(shown, starts, sizes, np.argsort(shown))
        return sorted(times), sorted(keys)

    def _tabled(self) -> Index | None:
        """The index by the file's own tables, which FFmpeg's first packets must confirm; so no file is read for it."""
        if "mp4" not in self.container.format.name.split(",") or self.stream.codec_context.name in _HIDDEN:
            return None
        found = samples_of(self._source, int(self.stream.id))
        if found is None or len(found.sizes) != self.stream.frames:
            return None
        if (index := self._confirmed(found)) is None:  # FFmpeg begins once more
            self.container.close()
            self._open()
        return index

    def _confirmed(self, found: Samples) -> Index | None:
        self._untouched = False
        try:
            first = list(islice((p for p in self.container.demux(self.stream) if p.size), _CONFIRM))
        except self.errors:
            return None
        if not first or first[0].pts is None or len(first) < min(_CONFIRM, len(found.sizes)):
            return None
        shown = found.shown + (first[0].pts - int(found.shown[0]))
        for k, packet in enumerate(first):
            told = packet.pts, packet.pos, packet.size, packet.is_keyframe, packet.is_discard
            if told != (int(shown[k]), int(found.starts[k]), int(found.sizes[k]), bool(found.keys[k]), False):
                return None
        order = np.argsort(shown)
        times: list[int] = shown[order].tolist()
        if (np.diff(shown[order]) == 0).any() or not found.keys.any():
            return None
        self.table = Table(shown, found.starts, found.sizes, order)
        return times, np.sort(shown[found.keys]).tolist()

    @cached_property
    def _shown(self) -> list[float]:
        """Times of all frames by decoding them, for files whose packets do not tell; seconds."""
        return [float(frame.time or 0.0) for frame in self._decoded(None)]

    @cached_property
    def times(self) -> npt.NDArray[np.float64]:
        """Seconds at which each frame is shown; NaN-free, one for each frame. Raises SampleError."""
        times, _ = self.index
        found = [float(t * self.stream.time_base) for t in times] if times else self._shown
        if not found:
            raise SampleError("corrupt_data", "no frame of it can be decoded")
        return np.array(found, np.float64)

    def __len__(self) -> int:
        return len(self.times)

    def decode(self, wanted: Sequence[int], places: Places) -> None:
        """Frames ``wanted`` (rising) into their ``places``. A later call goes on from there, where it can. Raises
        SampleError."""
        times, keys = self.index
        if not times:
            self._count(wanted, places)
            return
        for number in wanted:
            target = times[number]
            key = keys[max(bisect.bisect_right(keys, target) - 1, 0)]
            jumps = number - self._at > FAR and number_of(times, key) > self._at + 1
            if self._frames is None or number <= self._at or jumps:
                self._frames, self._at = self._decoded(key), -1
            frame = self._next(number)
            if frame is None:  # the seek missed it: from the start, once
                self._frames, self._at = self._decoded(None), -1
                while frame is None and self._at < number:
                    frame = self._next(number)
                if frame is None:
                    raise SampleError("corrupt_data", f"frame {number} cannot be decoded")
            self._check(frame, number)
            self._write(frame, places(number))

    def _next(self, number: int) -> Any:
        """Frame ``number``; None where the decoder gives a later one or ends."""
        assert self._frames is not None
        times = self.index[0]
        for frame in self._frames:
            self._at = number_of(times, frame.pts)
            if self._at >= number:
                return frame if self._at == number else None
        self._at = len(times)
        return None

    def _count(self, wanted: Sequence[int], places: Places) -> None:
        """`decode` for files whose packets do not tell which frames there are."""
        if self._frames is None or (len(wanted) and wanted[0] <= self._at):
            self._frames, self._at = self._decoded(None), -1
        for number in wanted:
            frame = None
            while self._at < number:
                if (frame := next(self._frames, None)) is None:
                    raise SampleError("corrupt_data", f"frame {number} cannot be decoded")
                self._at += 1
            self._check(frame, number)
            self._write(frame, places(number))

    def _decoded(self, start: int | None) -> Iterator[Any]:
        """Frames from the key frame at ``start`` on, or all of them."""
        try:
            if self._untouched and start in (None, *self.index[1][:1]):
                pass
            elif start is None or not self._sought(start):
                self.container.close()  # streams without an index cannot be rewound
                self._open()
            self._untouched = False
            yield from self._pictures()
        except self.errors as e:
            if isinstance(e, EOFError):
                return
            raise SampleError("corrupt_data", f"damaged: {reason(e)}") from None

    def _pictures(self) -> Iterator[Any]:
        """Frames from where the container is: each has a pts, and `_write` makes a picture of it."""
        yield from self.container.decode(self.stream)

    def _sought(self, start: int) -> bool:
        try:
            self.container.seek(start, stream=self.stream, backward=True)
        except self.errors:
            return False
        return True

    def _check(self, frame: Any, number: int) -> None:
        if frame.is_corrupt:
            raise SampleError("corrupt_data", f"frame {number} is damaged")

    def _write(self, frame: Any, places: Sequence[Any]) -> None:
        """The picture of ``frame`` in its ``places``."""
        first = places[0]
        if self._colours == "rgb24" and frame.width == self.width and self._straight.convert(frame, first):
            places, picture = places[1:], first
        else:
            picture = self._picture(frame)
        for place in places:
            place[...] = picture

    def _picture(self, frame: Any) -> npt.NDArray[np.uint8]:
        """RGB by the matrix and range that the stream names (BT.601 where it names none), or Y, Cb, Cr as they are."""
        size = self.width, self.height
        if self._colours != "rgb24":
            planes: npt.NDArray[np.uint8] = frame.to_ndarray(format=self._colours, width=size[0], height=size[1])
            return np.moveaxis(planes, 0, 2)
        if self._converter is None:  # one for all frames: `to_ndarray` makes another each time, and a copy
            self._converter = self._av.video.reformatter.VideoReformatter()
            self._alone = {"threads": 1} if "threads" in (self._converter.reformat.__doc__ or "") else {}
        plane = self._converter.reformat(frame, *size, "rgb24", **self._alone).planes[0]
        rows = np.frombuffer(plane, np.uint8)[: plane.line_size * size[1]].reshape(size[1], plane.line_size)
        return rows[:, : 3 * size[0]].reshape(size[1], size[0], 3)


def number_of(times: Sequence[int], time: int | None) -> int:
    """The frame that is shown at ``time``, of all frames' ``times``; `NO_FRAME` where there is none."""
    found = len(times) if time is None else bisect.bisect_left(times, time)
    return found if found < len(times) and times[found] == time else NO_FRAME


def group_of(index: Index, number: int) -> int:
    """Which group of pictures a frame is in: how many key frames come before it, with its own. Without an index, all
    are in one."""
    times, keys = index
    return bisect.bisect_right(keys, times[number]) if times else 0


@dataclass(frozen=True, slots=True)
class Open:
    """A clip that is decoded up to some frame, and those of its frames that are wanted again."""

    clip: Clip
    frames: Mapping[int, npt.NDArray[Any]]

    def close(self) -> None:
        """Let go of the file."""
        self.clip.close()


class Glance(Clip):
    """A clip of which nothing will be decoded by FFmpeg."""

    unprobed = frozenset(("h264", "hevc", "vp9", "av1"))

    @property
    def known(self) -> Known:
        """The facts of the file; its table only once its index was asked for."""
        return Known(self.codec, self.header, self.facts, self.table)

    @property
    def header(self) -> bytes:
        """The decoder's configuration."""
        return bytes(self.stream.codec_context.extradata or b"")


class Decoded(Clip):
    """A clip of which frames will be decoded, and no more. H.264's decoder wants to know first how far frames are out
    of order."""

    unprobed = Glance.unprobed - {"h264"}


_VP9_HEADER = 10
_START = -(1 << 40)
"""A time before all frames."""


def _has_sequence(codec: str, header: bytes) -> bool:
    """The decoder's configuration ``header`` of MP4 or Matroska holds what describes all frames."""
    if codec == "h264":
        return len(header) > 6 and header[0] == 1 and header[5] & 31 > 0
    if codec == "hevc":
        return len(header) > 23 and header[0] == 1 and header[22] > 0
    return codec == "av1" and len(header) > 4


def reason(e: BaseException) -> str:
    """The words of an error of FFmpeg's."""
    return str(getattr(e, "strerror", None) or e or type(e).__name__)


def _code(e: BaseException) -> RejectCode:
    return "read_failed" if isinstance(e, OSError) and not type(e).__module__.startswith("av") else "unsupported"
