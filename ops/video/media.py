"""Read videos with FFmpeg (package av, PyAV): the index of a file's frames, and the decoding of requested frames.

The frames of a file are numbered in the order in which they are shown. The index is made from packets alone, without
decoding. A seek goes to the last key frame before the requested frame; decoded frames are identified in the index by
their times.
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
from .mp4 import SampleTables, samples_of
from .swscale import Converter

Index = tuple[list[int], list[int]]
Places = Callable[[int], Sequence[Any]]
"""Function that returns the arrays to which a frame is written, by frame number: (height, width, 3) on the host, or
arrays in device memory."""
Colours = Literal["rgb24", "yuv444p"]

NO_FRAME = -1
"""Frame number of an image filled with the fill value, such as padding after the end of a video."""

FAR = 24
"""Maximum number of frames up to the next needed one over which the decoder continues, instead of seeking to a key
frame in between."""
_HIDDEN = frozenset(("vp8",))
"""Codecs, by FFmpeg's names, with packets that show no frame, so that packets do not count frames."""
_UNDECODED = {"codec_whitelist": "none"}
"""Options for opening files that forbid FFmpeg to decode frames only to detect their format; for H.264 and VP9 this
detection takes as long as decoding five frames."""
_MOST_KINDS = 256
_CONFIRM = 3
"""Number of packets that FFmpeg reads first, to check the file's own tables against them."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Format of a video stream's frames."""

    height: int
    width: int
    pixels: str
    """Pixel format, by FFmpeg's name."""
    space: int
    """Colour matrix of the stream, by its number in ITU-T H.273."""
    span: int
    """Range of the colour values, by FFmpeg's number (2: full range, black is 0)."""


@dataclass(frozen=True, slots=True)
class Table:
    """Positions of a stream's packets in a file that stores them unchanged (MP4), one element per packet in decoding
    order."""

    times: npt.NDArray[np.int64]
    """Display time of each packet's frame, in the stream's units of time."""
    starts: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]
    """Index of each frame's packet, for frames in the order in which they are shown."""


@dataclass(frozen=True, slots=True)
class Known:
    """Facts about a file with which a thread can read packets without opening the file with FFmpeg again. A frame index
    is also needed."""

    codec: str
    header: bytes
    """Configuration record of the decoder (FFmpeg's extradata), with the parameter sets of the codec."""
    facts: Facts
    table: Table | None


_facts: dict[tuple[Any, ...], Facts] = {}
"""Cache of frame formats, by everything that determines a format (see `Clip._kind`). Files from the same encoder share
an entry, so that only the first is decoded."""


def require() -> Any:
    """Return the package av. Raises SpecError if it is not installed."""
    try:
        import av
    except ImportError as e:
        raise SpecError(f"video needs the package av: pip install 'dali-run[media]' ({e})") from None
    return av


class Clip:
    """Video file, of which FFmpeg decodes the first video stream. Close it, or use it as a context manager; one thread
    at a time."""

    unprobed: ClassVar[frozenset[str]] = frozenset()
    """Codecs for which a file is opened without decoding a frame, if the format of its frames is cached."""

    def __init__(
        self, source: str | npt.NDArray[np.uint8], index: Index | None = None, colours: Colours = "rgb24",
        threads: int = 1, facts: Facts | None = None,
    ) -> None:  # fmt: skip
        """Open the file ``source``, a path or the file's bytes. ``index``: frame index of the same file, if already
        known. ``colours``: decode to RGB, or to the stream's own Y, Cb and Cr. ``threads``: decoding threads; use 1 if
        several files are decoded at the same time. ``facts``: frame format, if known; the file is then not opened.
        Raises SampleError."""
        self.container: Any
        """The open file, as a container of the package av."""
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
        """Packets that were read for the index, if `NvClip` needs them for decoding; else None."""
        self.table: Table | None = None
        """Positions of packets by the file's own tables, if it has them; set when `index` is computed."""
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
        """Number of the last frame that the decoder returned; -1 before the first."""

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
        """Size, pixel format and colours of the stream's frames."""
        if kind is not None and context.pix_fmt:
            if len(_facts) >= _MOST_KINDS:
                _facts.clear()
            _facts[kind] = self.facts

    def _kind(self) -> tuple[Any, ...] | None:
        """Return everything that determines the format of the frames, such as codec, size and configuration record, as
        a key of the cache of formats. None if it is not known."""
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
            raise SampleError(_code(e), f"not a video that FFmpeg can read: {reason(e)}") from None
        streams = self.container.streams.video
        if not streams:
            self.close()
            raise SampleError("unsupported", "the file has no video stream")
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
        """Close the file."""
        self._frames = None  # a suspended generator would keep the file open
        self._straight.close()
        with suppress(Exception):
            self.container.close()

    @property
    def codec(self) -> str:
        """FFmpeg's name of the stream's codec: h264, hevc, vp9, av1, ..."""
        return str(self.stream.codec_context.codec.canonical_name)

    @property
    def guess(self) -> int:
        """Return the approximate number of frames, from the file's header alone."""
        if self.stream.frames:
            return int(self.stream.frames)
        rate = float(self.stream.average_rate or 25)
        duration = self.container.duration
        return max(1, int(rate * duration / 1e6)) if duration else 250

    @cached_property
    def index(self) -> Index:
        """Times of all frames, and times of the key frames, in the stream's units of time. Both are empty if packets
        carry no times."""
        return self._indexed() if self._known is None else self._known

    def _indexed(self) -> Index:
        if (tabled := self._tabled()) is not None:
            return tabled
        if self.stream.codec_context.name in _HIDDEN or (packets := self._demuxed()) is None:
            return [], []
        times, keys, table = packets
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

    def _demuxed(self) -> tuple[list[int], list[int], list[tuple[int, int, int]]] | None:
        """Read all packets. Return the times of frames, those of key frames, and (time, offset, size) per packet; None
        if a packet has no time. Raises SampleError if no packet can be read."""
        times, keys, table = list[int](), list[int](), list[tuple[int, int, int]]()
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
                    return None
                times.append(time)
                if packet.is_keyframe:
                    keys.append(time)
                if self._packets is not None:
                    self._packets.append(packet)
        except self.errors as e:
            if not times:
                raise SampleError("corrupt_data", f"its packets cannot be read: {reason(e)}") from None
        return times, keys, table

    def _tabled(self) -> Index | None:
        """Return the index by the file's own tables, without reading all packets. None if FFmpeg's first packets
        contradict the tables, or if these cannot be used."""
        if "mp4" not in self.container.format.name.split(",") or self.stream.codec_context.name in _HIDDEN:
            return None
        found = samples_of(self._source, int(self.stream.id))
        if found is None or len(found.sizes) != self.stream.frames:
            return None
        if (index := self._confirmed(found)) is None:  # the demuxer starts again
            self.container.close()
            self._open()
        return index

    def _confirmed(self, samples: SampleTables) -> Index | None:
        self._untouched = False
        try:
            first = list(islice((p for p in self.container.demux(self.stream) if p.size), _CONFIRM))
        except self.errors:
            return None
        if not first or first[0].pts is None or len(first) < min(_CONFIRM, len(samples.sizes)):
            return None
        shown = samples.display_times + (first[0].pts - int(samples.display_times[0]))
        for k, packet in enumerate(first):
            told = packet.pts, packet.pos, packet.size, packet.is_keyframe, packet.is_discard
            if told != (int(shown[k]), int(samples.starts[k]), int(samples.sizes[k]), bool(samples.keys[k]), False):
                return None
        order = np.argsort(shown)
        times: list[int] = shown[order].tolist()
        if (np.diff(shown[order]) == 0).any() or not samples.keys.any():
            return None
        self.table = Table(shown, samples.starts, samples.sizes, order)
        return times, np.sort(shown[samples.keys]).tolist()

    @cached_property
    def _shown(self) -> list[float]:
        """Return the times of all frames in seconds, found by decoding. For files whose packets carry no times."""
        return [float(frame.time or 0.0) for frame in self._decoded(None)]

    @cached_property
    def times(self) -> npt.NDArray[np.float64]:
        """Times in seconds at which frames are shown, one per frame, never NaN. Raises SampleError."""
        times, _ = self.index
        found = [float(t * self.stream.time_base) for t in times] if times else self._shown
        if not found:
            raise SampleError("corrupt_data", "no frame of it can be decoded")
        return np.array(found, np.float64)

    def __len__(self) -> int:
        return len(self.times)

    def decode(self, numbers: Sequence[int], destinations: Places) -> None:
        """Decode the frames ``numbers`` (ascending), and write each to its ``destinations``. A later call continues
        after the last frame if possible. Raises SampleError."""
        times, keys = self.index
        if not times:
            self._count(numbers, destinations)
            return
        for number in numbers:
            target = times[number]
            key = keys[max(bisect.bisect_right(keys, target) - 1, 0)]
            jumps = number - self._at > FAR and number_of(times, key) > self._at + 1
            if self._frames is None or number <= self._at or jumps:
                self._frames, self._at = self._decoded(key), -1
            frame = self._next(number)
            if frame is None:  # the seek missed it: decode once from the start
                self._frames, self._at = self._decoded(None), -1
                while frame is None and self._at < number:
                    frame = self._next(number)
                if frame is None:
                    raise SampleError("corrupt_data", f"frame {number} cannot be decoded")
            self._check(frame, number)
            self._write(frame, destinations(number))

    def _next(self, number: int) -> Any:
        """Decode up to frame ``number``, and return it. Return None if the decoder returns a later frame or reaches the
        end."""
        assert self._frames is not None
        times = self.index[0]
        for frame in self._frames:
            self._at = number_of(times, frame.pts)
            if self._at >= number:
                return frame if self._at == number else None
        self._at = len(times)
        return None

    def _count(self, numbers: Sequence[int], destinations: Places) -> None:
        """Decode like `decode`, but count frames from the start. For files whose packets carry no times."""
        if self._frames is None or (len(numbers) and numbers[0] <= self._at):
            self._frames, self._at = self._decoded(None), -1
        for number in numbers:
            frame = None
            while self._at < number:
                if (frame := next(self._frames, None)) is None:
                    raise SampleError("corrupt_data", f"frame {number} cannot be decoded")
                self._at += 1
            self._check(frame, number)
            self._write(frame, destinations(number))

    def _decoded(self, start: int | None) -> Iterator[Any]:
        """Yield frames from the key frame at time ``start`` on; from the first frame if None."""
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
        """Yield decoded frames from the container's current position on, each with a pts (display time)."""
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

    def _write(self, frame: Any, destinations: Sequence[Any]) -> None:
        """Convert ``frame`` to an image, and write it to all arrays in ``destinations``."""
        first = destinations[0]
        if self._colours == "rgb24" and frame.width == self.width and self._straight.convert(frame, first):
            destinations, picture = destinations[1:], first
        else:
            picture = self._picture(frame)
        for place in destinations:
            place[...] = picture

    def _picture(self, frame: Any) -> npt.NDArray[np.uint8]:
        """Return ``frame`` as an image: RGB by the matrix and range that the stream declares (BT.601 if it declares
        none), or the stream's Y, Cb, Cr."""
        size = self.width, self.height
        if self._colours != "rgb24":
            planes: npt.NDArray[np.uint8] = frame.to_ndarray(format=self._colours, width=size[0], height=size[1])
            return np.moveaxis(planes, 0, 2)
        # one converter for all frames: `to_ndarray` creates a converter and a copy each time
        if self._converter is None:
            self._converter = self._av.video.reformatter.VideoReformatter()
            self._alone = {"threads": 1} if "threads" in (self._converter.reformat.__doc__ or "") else {}
        plane = self._converter.reformat(frame, *size, "rgb24", **self._alone).planes[0]
        rows = np.frombuffer(plane, np.uint8)[: plane.line_size * size[1]].reshape(size[1], plane.line_size)
        return rows[:, : 3 * size[0]].reshape(size[1], size[0], 3)


def number_of(times: Sequence[int], time: int | None) -> int:
    """Return the number of the frame that is shown at ``time``; `NO_FRAME` if there is none. ``times``: sorted times of
    all frames."""
    found = len(times) if time is None else bisect.bisect_left(times, time)
    return found if found < len(times) and times[found] == time else NO_FRAME


def group_of(index: Index, number: int) -> int:
    """Return the number of the group of pictures (GOP) that contains a frame: the count of key frames up to and
    including this frame. Without an index, all frames are in group 0."""
    times, keys = index
    return bisect.bisect_right(keys, times[number]) if times else 0


@dataclass(frozen=True, slots=True)
class Open:
    """Open video file, decoded up to some frame, with those of its decoded frames that the next batch needs again."""

    clip: Clip
    frames: Mapping[int, npt.NDArray[Any]]

    def close(self) -> None:
        """Close the file."""
        self.clip.close()


class Glance(Clip):
    """Video file that is opened for its facts and packets only; FFmpeg decodes no frames."""

    unprobed = frozenset(("h264", "hevc", "vp9", "av1"))

    @property
    def known(self) -> Known:
        """Return facts of the file. They include the table of packets only if `index` was read before."""
        return Known(self.codec, self.header, self.facts, self.table)

    @property
    def header(self) -> bytes:
        """Configuration record of the codec (FFmpeg's extradata), with parameter sets such as SPS and PPS."""
        return bytes(self.stream.codec_context.extradata or b"")


class Decoded(Clip):
    """Video file that is opened only to decode frames. H.264 is still probed at opening: the decoder must learn how far
    frames are reordered."""

    unprobed = Glance.unprobed - {"h264"}


_VP9_HEADER = 10
_START = -(1 << 40)
"""Time before all frames, in the stream's units of time, for seeking to the start of the file."""


def _has_sequence(codec: str, header: bytes) -> bool:
    """Return whether the decoder's configuration ``header`` of MP4 or Matroska contains the parameter sets that
    describe all frames."""
    if codec == "h264":
        return len(header) > 6 and header[0] == 1 and header[5] & 31 > 0
    if codec == "hevc":
        return len(header) > 23 and header[0] == 1 and header[22] > 0
    return codec == "av1" and len(header) > 4


def reason(e: BaseException) -> str:
    """Return the message of an FFmpeg error as a reason for users."""
    return str(getattr(e, "strerror", None) or e or type(e).__name__)


def _code(e: BaseException) -> RejectCode:
    return "read_failed" if isinstance(e, OSError) and not type(e).__module__.startswith("av") else "unsupported"
