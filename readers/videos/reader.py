"""experimental.readers.video, readers.video: read sequences of frames from video files."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from ...ops.base import Arg, Spec, Stage
from ...ops.batch import Batch, Origin
from ...ops.context import Context
from ...ops.errors import JobError, SampleError, SpecError
from ...ops.storage.inventory import InventoryEntries
from ...ops.storage.urls import is_url
from ...ops.types import DALIDataType, DALIImageType, to_numpy
from ...ops.video import nvdec, packets
from ...ops.video.decoder_handoff import DecoderHandoff, SharedGroups
from ...ops.video.decoders import PadMode, fill_of, padded
from ...ops.video.media import NO_FRAME, Clip, Colours, Decoded, Glance, Index, Known, Open, group_of, require
from ..base import Reader
from ..fetch.parallel import spread
from ..fetch.remote import local_copy
from ..file import FileSet, list_folder, scalars, subdirectories

I64 = npt.NDArray[np.int64]
Rounding = Literal["start_down_end_up", "start_up_end_down", "all_up", "all_down"]

_WORK = 64 << 20  # bytes of one file's frames that are worth a task of their own
_MAX_SHARED_FRAMES = 64
"""Largest number of decoded frames that a batch keeps for the next batch, if their sequences overlap."""
_MAX_HANDOFFS = 16
"""Largest number of batches in flight between which a video decoder is passed on. With more, waiting for an earlier
batch would gain nothing."""


@dataclass(frozen=True, slots=True)
class VideoSegment:
    """A video file to read, or a segment of one, as a line of the file list names it."""

    path: str
    label: int
    start: float | None = None
    end: float | None = None


@dataclass(frozen=True, slots=True)
class FrameFormat:
    """Format of the frames that the reader outputs."""

    dtype: DALIDataType = DALIDataType.UINT8
    normalized: bool = False
    """Whether the frames' values are divided by 255."""
    colours: Colours = "rgb24"

    @property
    def numpy(self) -> npt.DTypeLike:
        """NumPy dtype of the frames' values."""
        return to_numpy(self.dtype)


@dataclass(frozen=True, slots=True)
class SequenceCutting:
    """How videos are cut into sequences: the numbers of frames, step and stride."""

    length: int
    step: int
    stride: int
    pads: bool
    uniform: bool

    def starts(self, first: int, end: int) -> list[int]:
        """Return the numbers of the first frames of the sequences that are within frames [first, end). A sequence is
        complete if it ends, including one stride after its last frame, by ``end``. If sequences are padded, one more
        follows."""
        if end <= first:
            return []
        if self.uniform:
            return [first]
        whole = range(first, max(end - self.stride * self.length + 1, first), self.step)
        behind = first + len(whole) * self.step
        return [*whole, *([behind] if self.pads and behind < end else [])]


def boundary(times: npt.NDArray[np.float64], second: float, up: bool) -> int:
    """Return the number of the frame that begins at ``second``. If none begins then, return the next frame if ``up``,
    else the frame before."""
    close = 1e-9 * max(1.0, abs(second))
    if up:
        return int(np.searchsorted(times, second - close, side="left"))
    return max(int(np.searchsorted(times, second + close, side="right")) - 1, 0)


@dataclass(frozen=True, slots=True)
class _StartedBatch:
    """A batch of sequences whose compressed packets threads are reading for NVDEC. Created by `start_early`, completed
    by `fetch_by_nvdec`."""

    index: I64
    """Number of each sample's sequence in the data set."""
    rows: I64
    numbers: list[list[int]]
    shapes: npt.NDArray[np.int32]
    which: dict[int, list[int]]
    """For each file, by its number: the indices in the batch of its sequences."""
    parts: list[Future[nvdec.NvClip | SampleError]]
    """For each file, the future of reading its packets."""
    nbytes: int
    """Approximate size of all packets in bytes."""
    shared: SharedGroups


class _Videos:
    """Data set of a video reader, opened: frame sequences by number, each with its file, first frame and end frame."""

    groups: I64 | None = None

    def __init__(self, reader: VideoReader, parts: Sequence[VideoSegment]) -> None:
        self._reader, self._parts = reader, parts
        self._files = FileSet(None, [os.fsencode(p.path) for p in parts])
        self._problems: dict[int, SampleError] = {}
        self._times: list[npt.NDArray[np.float64]] = []
        self._extents: list[tuple[int, int]] = []
        self._indexes: list[Index | None] = []
        self._known: list[Known | None] = []
        self._relays: dict[int, DecoderHandoff[Any]] = {}
        """Video decoders that one batch passes on to the next batch, which continues in the same file. Keys are the
        next batch's first sequence."""
        self._lock = threading.Lock()
        rows = []
        for number, part in enumerate(parts):
            times, extent, index, known = np.empty(0), (0, 0), None, None
            try:
                with Glance(local_copy(part.path)) as clip:
                    times, extent, index, known = clip.times, (clip.height, clip.width), clip.index, clip.known
            except SampleError as e:
                self._problems[number] = e.bare()
                rows.append((number, 0, 0))  # one sample, which is rejected with the file's problem
            self._times.append(times)
            self._extents.append(extent)
            self._indexes.append(index)
            self._known.append(known)
            if number not in self._problems:
                first, end = self._bounds(part, times)
                rows += [(number, start, end) for start in reader.cut.starts(first, end)]
        self._rows: I64 = np.array(rows, np.int64).reshape(-1, 3)
        if not len(self._rows):
            raise JobError(f"none of {len(parts)} videos has a sequence of {reader.sequence_length} frames; give a "
                           "shorter sequence_length, or pad")  # fmt: skip

    def _bounds(self, part: VideoSegment, times: npt.NDArray[np.float64]) -> tuple[int, int]:
        """Number of the first frame of ``part``, and of the frame after its last."""
        count = len(times)
        if part.start is None:
            return 0, count
        if self._reader.by_frames:
            first, end = (None if v is None else int(v) for v in (part.start, part.end))
            first = first + count if first is not None and first < 0 else first
            end = end + count if end is not None and end < 0 else end
        else:
            rounding = self._reader.rounding
            first = boundary(times, part.start, rounding in ("start_up_end_down", "all_up"))
            end = None if part.end is None else boundary(times, part.end, rounding in ("start_down_end_up", "all_up"))
        return max(first or 0, 0), count if end is None else min(end, count)

    def __len__(self) -> int:
        return len(self._rows)

    def origin(self, index: int) -> Origin:
        """Origin of a sequence, for reports. Its key is its file's key, with the number of the first frame."""
        file, start, _ = (int(v) for v in self._rows[index])
        whole = self._files.origin(file)
        return Origin(f"{whole.key}#{start:06d}", whole.source, start, named=whole.named)

    def fingerprint(self) -> str:
        labels = np.array([p.label for p in self._parts], np.int64)
        return hashlib.sha256(self._files.fingerprint().encode() + self._rows.tobytes() + labels.tobytes()).hexdigest()

    def inventory(self) -> InventoryEntries:
        files = self._files.inventory()
        counts = np.bincount(self._rows[:, 0], minlength=len(self._parts)).astype(np.int64)
        labels = np.array([p.label for p in self._parts], np.int64)
        return InventoryEntries(files.blob, {**files.state, "label": labels}, counts)

    def sequences(self) -> list[tuple[str, list[int], list[float], int]]:
        """For each readable sequence: its file, the numbers of its frames, their times in seconds, its label."""
        found = []
        for file, start, end in self._rows.tolist():
            if file not in self._problems:
                numbers, part = self._numbers(file, start, end), self._parts[file]
                found.append((part.path, numbers, self._times[file][numbers].tolist(), part.label))
        return found

    def close(self) -> None:
        with self._lock:
            relays, self._relays = self._relays, {}
        for relay in relays.values():
            relay.drop()
        self._files.close()

    def _shared_groups(self, index: I64, numbers: list[list[int]]) -> SharedGroups:
        """Return the groups of frames that a batch shares with the batches before and after it; a group is decoded from
        one key frame on. ``index`` are the batch's sequences, ``numbers`` their frames. Called once per batch, in the
        order of batches if possible. If an earlier batch calls later, both batches decode the shared frames."""
        if not self._reader.in_order or not len(index) or (np.diff(index) < 0).any():
            return SharedGroups()
        first, following = int(index[0]), int(index[-1]) + 1
        file = int(self._rows[index[-1], 0])
        after, again = None, frozenset[int]()
        if following < len(self._rows) and self._rows[following, 0] == file and file not in self._problems:
            frames = self._indexes[file] or ([], [])
            last = max(n for i in np.flatnonzero(self._rows[index, 0] == file).tolist() for n in numbers[i])
            soon = self._frames_needed_again(following, last)
            group = group_of(frames, last)
            if len(soon) <= _MAX_SHARED_FRAMES and (soon or group_of(frames, self._first(following)) == group):
                after, again = DecoderHandoff[Any](group), soon
        with self._lock:
            before = self._relays.pop(first, None)
            if after is not None:
                self._relays[following] = after
            stale = list(self._relays)[:-_MAX_HANDOFFS]
            dropped = [self._relays.pop(row) for row in stale]
        for relay in dropped:
            relay.drop()
        return SharedGroups(None if before is None or before.is_over else before, after, again)

    def _first(self, row: int) -> int:
        return min(n for n in self._numbers(*self._rows[row].tolist()) if n != NO_FRAME)

    def _frames_needed_again(self, row: int, last: int) -> frozenset[int]:
        """Return which frames up to number ``last`` are needed again, by sequences from ``row`` on of the same file."""
        file, found = int(self._rows[row, 0]), set[int]()
        while row < len(self._rows) and self._rows[row, 0] == file and self._first(row) <= last:
            found |= {n for n in self._numbers(*self._rows[row].tolist()) if NO_FRAME < n <= last}
            row += 1
            if len(found) > _MAX_SHARED_FRAMES:
                break
        return frozenset(found)

    def fetch(self, ctx: Context) -> tuple[Batch, ...]:
        rows, numbers, shapes = self._requested(ctx)
        out = Batch.allocate(ctx.empty, shapes, self._reader.output.numpy, "FHWC", ctx.samples)
        problems: dict[int, SampleError] = {}
        shared = self._shared_groups(ctx.samples.index, numbers)
        shared.claim()
        # the file that continues from the batch before comes last: that batch may still decode it
        files = np.roll(np.unique(rows[:, 0]), 0 if shared.before is None else -1)

        def decode(low: int, high: int) -> None:
            for k in range(low, high):
                which = np.flatnonzero(rows[:, 0] == files[k]).tolist()
                mine = shared.of(first=files[k] == rows[0, 0], last=files[k] == rows[-1, 0])
                self._decode(int(files[k]), which, numbers, out, problems, mine)

        try:
            spread(ctx, len(files), len(files) * _WORK, decode)
        finally:
            shared.end()
        if self._reader.output.normalized:
            with np.errstate(all="ignore"):  # rejected samples hold any values
                np.divide(out.data, np.float32(255), out=out.data)
        self._reject(ctx, rows, problems)
        return (out, *self._other_outputs(ctx, rows, numbers))

    def fetch_by_nvdec(self, ctx: Context) -> tuple[Batch, ...]:
        """Like `fetch`, but NVDEC decodes into device memory, each file in a thread of its own; that thread decodes
        files that NVDEC does not support. All outputs are on the device."""
        ready: _StartedBatch | None = None if ctx.attempt else ctx.started
        if ready is None or not np.array_equal(ready.index, ctx.samples.index):
            if ready is not None:
                ready.shared.end()
            ready = self.start_early(ctx, alone=True)
        ready.shared.claim()
        try:
            return self._fetched(ctx, ready)
        finally:
            ready.shared.end()

    def _fetched(self, ctx: Context, ready: _StartedBatch) -> tuple[Batch, ...]:
        rows, numbers, shapes, which = ready.rows, ready.numbers, ready.shapes, ready.which
        out = Batch.allocate(ctx.empty, shapes, np.uint8, "FHWC", ctx.samples)
        ctx.device.wait()  # the other streams write into memory that this stream allocated
        base, problems = ctx.device.address(out.data), dict[int, SampleError]()

        def job(clip: nvdec.NvClip, some: Sequence[int]) -> tuple[nvdec.NvClip, dict[int, list[int]]]:
            size, places = clip.height * clip.width * 3, dict[int, list[int]]()
            for i, low in zip(some, out.offsets[some].tolist(), strict=True):
                for f, n in enumerate(numbers[i]):
                    places.setdefault(n, []).append(base + low + f * size)
            return clip, places

        def decoded(tasks: Iterable[tuple[int, list[int], nvdec.NvClip | SampleError]], *, alone: bool) -> None:
            good, bad = list[tuple[int, list[int]]](), list[tuple[int, list[int], SampleError]]()

            def jobs() -> Iterator[tuple[nvdec.NvClip, dict[int, list[int]]]]:
                for file, some, clip in tasks:
                    if isinstance(clip, SampleError):
                        bad.append((file, some, clip))
                    else:
                        good.append((file, some))
                        yield job(clip, some)

            for at, (why, seconds) in enumerate(nvdec.decode_all(ctx.device.index, jobs(), fill_of(self._reader.fill))):
                file, some = good[at]
                if isinstance(why, SampleError):
                    bad.append((file, some, why))
                else:
                    nvdec.report(ctx, why, seconds, len(some))
            for file, some, problem in bad:
                if alone or file in self._problems:
                    problems.update(dict.fromkeys(some, problem))
                else:  # frames before the damage are valid, and each sequence is decoded alone
                    decoded(((file, [i], self._read(file, [i], numbers)) for i in some), alone=True)

        tasks = zip(which.items(), ready.parts, strict=True)
        decoded(((file, some, part.result()) for (file, some), part in tasks), alone=False)
        self._reject(ctx, rows, problems)
        return (out, *(ctx.device.to_device(b) for b in self._other_outputs(ctx, rows, numbers)))

    def start_early(self, ctx: Context, *, alone: bool = False) -> _StartedBatch:
        """Start to read the packets that `fetch_by_nvdec` needs, in threads. With ``alone``, only this batch's packets
        are read, without sharing a decoder with other batches."""
        rows, numbers, shapes = self._requested(ctx)
        which, nbytes = dict[int, list[int]](), 0.0
        for i, file in enumerate(rows[:, 0].tolist()):
            which.setdefault(file, []).append(i)
        for file, some in which.items():
            frames = sum(len(numbers[i]) for i in some)
            nbytes += max(0, int(self._files.sizes[file])) * min(1.0, frames / max(1, len(self._times[file])))
        shared, parts = SharedGroups() if alone else self._shared_groups(ctx.samples.index, numbers), []
        for file, some in which.items():
            mine = shared.of(first=file == rows[0, 0], last=file == rows[-1, 0])
            parts.append(packets.readers().submit(self._read, file, some, numbers, mine))
        if shared.after is not None:
            shared.after.reading = parts[-1]
        return _StartedBatch(ctx.samples.index, rows, numbers, shapes, which, parts, int(nbytes), shared)

    def _read(
        self, file: int, some: Sequence[int], numbers: list[list[int]], shared: SharedGroups | None = None
    ) -> nvdec.NvClip | SampleError:
        """Read the packets of the sequences ``some``, which are all from ``file``, for NVDEC. Return an error instead
        of raising it."""
        try:
            if file in self._problems:
                raise self._problems[file]
            if shared is not None and shared.before is not None and shared.before.reading is not None:
                shared.before.reading.exception()  # the earlier read is already running, so the wait ends
            clip = nvdec.NvClip(local_copy(self._parts[file].path), self._indexes[file], self._known[file])
            try:
                with packets.reading:
                    return clip.read((n for i in some for n in numbers[i]), shared)
            except BaseException:
                clip.close()
                raise
        except SampleError as e:
            return e.bare()

    def _requested(self, ctx: Context) -> tuple[I64, list[list[int]], npt.NDArray[np.int32]]:
        """Return (file, first frame, end) of the sequences of ``ctx``, their frames' numbers, and their shapes."""
        rows = self._rows[ctx.samples.index]
        numbers = [self._numbers(*row) for row in rows.tolist()]
        shapes = np.full((len(rows), 4), 3, np.int32)
        shapes[:, 0] = [len(own) for own in numbers]
        shapes[:, 1:3] = np.array(self._extents, np.int32).reshape(-1, 2)[rows[:, 0]]
        return rows, numbers, shapes

    def _reject(self, ctx: Context, rows: I64, problems: dict[int, SampleError]) -> None:
        for i, problem in sorted(problems.items()):
            ctx.reject(i, problem.code, f"{self._parts[int(rows[i, 0])].path}: {problem}")

    def _other_outputs(self, ctx: Context, rows: I64, numbers: list[list[int]]) -> list[Batch]:
        """Return the requested outputs of the reader besides the frames: labels, frame numbers and times."""
        results = []
        if self._reader.has_labels:
            labels = np.array([self._parts[f].label for f in rows[:, 0].tolist()], np.int32)
            results.append(scalars(labels, ctx))
        if self._reader.enable_frame_num == "sequence":
            results.append(_lists([np.array(n, np.int32) for n in numbers], np.int32, ctx))
        elif self._reader.enable_frame_num not in ("none", False):
            results.append(scalars(rows[:, 1].astype(np.int32), ctx))
        if self._reader.enable_timestamps:
            times = [
                np.array([self._times[f][n] if n != NO_FRAME else -1.0 for n in own], np.float64)
                for f, own in zip(rows[:, 0].tolist(), numbers, strict=True)
            ]
            results.append(_lists(times, np.float64, ctx))
        return results

    def _numbers(self, file: int, start: int, end: int) -> list[int]:
        cut, count = self._reader.cut, len(self._times[file])
        if file in self._problems:
            return []
        if cut.uniform:
            return [int(n) for n in np.floor(np.linspace(start, end - 1, cut.length) + 0.5)]
        wanted = [start + k * cut.stride for k in range(cut.length)]
        mode = self._reader.padding
        return wanted if mode == "none" and wanted[-1] < count else padded(wanted, end, mode)

    def _decode(self, file: int, which: list[int], numbers: list[list[int]], out: Batch,
                problems: dict[int, SampleError], shared: SharedGroups | None = None) -> None:  # fmt: skip
        """Decode the sequences ``which`` of the batch, which are all from ``file``, into ``out``. If they follow each
        other, one pass decodes all."""
        if file in self._problems:
            problems.update(dict.fromkeys(which, self._problems[file]))
            return
        views, places = [out.sample(i) for i in which], dict[int, list[npt.NDArray[np.generic]]]()
        for view, i in zip(views, which, strict=True):
            for f, n in enumerate(numbers[i]):
                places.setdefault(n, []).append(view[f])
        for place in places.pop(NO_FRAME, ()):
            place[...] = fill_of(self._reader.fill)
        try:
            self._show(file, places, shared or SharedGroups())
        except SampleError as e:
            if shared is None:
                problems[which[0]] = e.bare()
                return
            for i in which:  # frames before the damage are valid, and each sequence is decoded alone
                self._decode(file, [i], numbers, out, problems)

    def _clip(
        self, file: int, places: Mapping[int, list[npt.NDArray[np.generic]]], wanted: list[int], left: Open | None
    ) -> Clip:
        """Decode the frames ``wanted`` of a file to their ``places``, and continue with the frames that an earlier
        batch has ``left``. Return the clip, which is open."""
        there = {} if left is None else left.frames
        path, colours = local_copy(self._parts[file].path), self._reader.output.colours
        clip: Clip = Decoded(path, self._indexes[file], colours) if left is None else left.clip
        try:
            for n in wanted:
                for place in places[n] if n in there else ():
                    place[...] = there[n]
            clip.decode([n for n in wanted if n not in there], lambda number: places[number])
        except BaseException:
            clip.close()
            raise
        return clip

    def _show(self, file: int, places: dict[int, list[npt.NDArray[np.generic]]], shared: SharedGroups) -> None:
        """Decode frames of a file into arrays. ``places``: by number of the frame, the arrays that get it. Raises
        SampleError."""
        index, before, after = self._indexes[file], shared.before, shared.after
        like = next((there[0] for there in places.values()), None)
        kept = (
            {n: np.empty_like(like) for n in shared.repeated_frames} if after is not None and like is not None else {}
        )
        for n, copy in kept.items():
            places.setdefault(n, []).append(copy)  # including frames that a stride of this batch skips

        wanted = sorted(places)
        first = [n for n in wanted if before is not None and group_of(index or ([], []), n) <= before.group]
        others = wanted[len(first) :]
        last = None
        try:
            if others:
                last = self._clip(file, places, others, None)
                if after is not None and not kept:  # as soon as possible: the next batch may be waiting
                    after.give(Open(last, kept))
                    last = after = None
            if first and before is not None:
                left = before.wait()
                if left is not None and not isinstance(left, Open):  # NVDEC's, while this batch is the CPU's
                    left.close()
                    left = None
                clip = self._clip(file, places, first, left)
                if last is None and not others:
                    last = clip
                else:
                    clip.close()
            if after is not None and last is not None:
                after.give(Open(last, kept))
                last = None
        finally:
            if last is not None:
                last.close()


def _lists(values: Sequence[npt.NDArray[np.generic]], dtype: npt.DTypeLike, ctx: Context) -> Batch:
    if not values:
        return Batch(np.empty(0, dtype), np.zeros(0, np.int64), np.zeros((0, 1), np.int32), "", ctx.samples)
    return Batch.from_list(list(values), "", ctx.samples)


class VideoReader(Reader, abstract=True):
    """Base class of both readers of videos, `readers.video` and `experimental.readers.video`."""

    bound = "exact where the CPU decodes; NVDEC's colours are as far away as in decoders.video"
    shuffles_list: ClassVar[bool] = True
    reads_slowly = True
    locations: ClassVar[tuple[str, ...]] = (*Reader.locations, "filenames")

    sequence_length: Annotated[int, Arg("frames per sequence", ge=1)]
    filenames: Annotated[tuple[str, ...], Arg("paths of the videos")] = ()
    file_root: Annotated[str, Arg("folder of class folders, or the base of relative names")] = ""
    file_list: Annotated[str, Arg("text file; each line: name, label, optionally start and end")] = ""
    labels: Annotated[tuple[int, ...] | None, Arg("labels of filenames; an empty list numbers them")] = None
    step: Annotated[int, Arg("frames from one sequence to the next; below 1: sequence_length")] = -1
    stride: Annotated[int, Arg("frames between two frames of a sequence", ge=1)] = 1
    enable_frame_num: Annotated[
        Literal["none", "scalar", "sequence"] | bool, Arg("also output the number of the first frame, or of each")
    ] = "none"
    enable_timestamps: Annotated[bool, Arg("also output the time of each frame in seconds")] = False
    image_type: Annotated[DALIImageType, Arg("RGB, or YCbCr: the stream's own values")] = DALIImageType.RGB

    @property
    def output(self) -> FrameFormat:
        """Format of the frames that the reader outputs."""
        return FrameFormat(colours="yuv444p" if self.image_type is DALIImageType.YCbCr else "rgb24")

    @property
    def in_order(self) -> bool:
        """Whether the reader returns the sequences of a file one after the other, without shuffling."""
        return not self.random_shuffle and not self.shuffle_after_epoch and self.shuffle in (None, "none")

    @property
    def cut(self) -> SequenceCutting:
        """How files are cut into sequences."""
        raise NotImplementedError

    @property
    def padding(self) -> PadMode:
        """Kind of frames that pad a sequence beyond the end of its video."""
        raise NotImplementedError

    @property
    def fill(self) -> tuple[int, ...]:
        """Values of the channels in padding frames."""
        return (0,)

    @property
    def by_frames(self) -> bool:
        """Whether file_list holds numbers of frames instead of seconds."""
        raise NotImplementedError

    @property
    def rounding(self) -> Rounding:
        """How times in seconds, in file_list, are rounded to frames."""
        raise NotImplementedError

    @property
    def has_labels(self) -> bool:
        """Whether the reader has an output for labels."""
        return bool(self.file_list) or self.labels is not None or not self.filenames

    @property
    def num_outputs(self) -> int:
        return 1 + self.has_labels + (self.enable_frame_num not in ("none", False)) + self.enable_timestamps

    def check(self) -> None:
        super().check()
        if (self.filenames and self.file_list) or not (self.filenames or self.file_list or self.file_root):
            raise SpecError("give one of filenames, file_list and file_root")
        if self.labels and len(self.labels) != len(self.filenames):
            raise SpecError(f"{len(self.labels)} labels for {len(self.filenames)} files")
        if self.image_type not in (DALIImageType.RGB, DALIImageType.YCbCr):
            raise SpecError("image_type must be RGB or YCbCr; convert the frames with color_space_conversion")
        require()

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        out = [Spec((self.sequence_length, None, None, 3), self.output.dtype, "FHWC")]
        out += [Spec((1,), DALIDataType.INT32)] if self.has_labels else []
        if self.enable_frame_num not in ("none", False):
            one = self.enable_frame_num != "sequence"
            out.append(Spec((1 if one else self.sequence_length,), DALIDataType.INT32))
        return (*out, *([Spec((self.sequence_length,), DALIDataType.FLOAT64)] if self.enable_timestamps else []))

    @property
    def waits(self) -> bool:
        return True

    def runs_in(self) -> tuple[Stage, ...]:
        plain = self.output == FrameFormat()
        return self.stages if plain and nvdec.module() is not None else ("cpu",)

    def start_early(self, ctx: Context, *none: Batch) -> _StartedBatch | None:
        source: _Videos = ctx.source
        return None if nvdec.module() is None else source.start_early(ctx)

    def mixed(self, ctx: Context) -> tuple[Batch, ...]:
        source: _Videos = ctx.source
        return source.fetch_by_nvdec(ctx)

    def open(self) -> _Videos:
        return _Videos(self, self.parts())

    def parts(self) -> list[VideoSegment]:
        """Video files, or segments of them, that the reader reads. Raises JobError if there are none."""
        if self.filenames:
            labels = self.labels or range(len(self.filenames))
            names = [os.path.join(self.file_root, n) for n in self.filenames]
            return [VideoSegment(name, label) for name, label in zip(names, labels, strict=True)]
        if self.file_list:
            return read_video_list(self.file_list, self.file_root)
        found = []
        for label, folder in enumerate(subdirectories(self.file_root, lambda name: True)):  # noqa: ARG005
            inside = os.path.join(self.file_root, os.fsdecode(folder))
            names = sorted(os.fsdecode(n) for n in list_folder(os.fsencode(inside)))
            paths = [os.path.join(inside, n) for n in names]
            found += [VideoSegment(p, label) for p in paths if is_url(p) or os.path.isfile(p)]
        if not found:
            raise JobError(f"file_root {self.file_root} has no files <folder>/<file>")
        return found


def read_video_list(path: str, root: str) -> list[VideoSegment]:
    """Parse a text file with lines ``name label [start [end]]``. Names are relative to ``root``. Raises JobError that
    names a malformed line."""
    try:
        lines = Path(local_copy(path)).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise JobError(f"{path} cannot be read: {e}") from None
    parts = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words:
            continue
        try:
            if not 2 <= len(words) <= 4:
                raise ValueError
            start, end = ([float(w) for w in words[2:]] + [None, None])[:2]
            parts.append(VideoSegment(os.path.join(root, words[0]), int(words[1]), start, end))
        except ValueError:
            raise JobError(
                f"{path}:{number}: needs a name, a label, and maybe a start and an end, got {line[:200]!r}"
            ) from None
    if not parts:
        raise JobError(f"{path} lists no videos")
    return parts


class ExperimentalVideo(VideoReader, name="experimental.readers.video"):
    """Read sequences of frames (FHWC, RGB, UINT8) from videos of any container and codec that FFmpeg supports.

    A sequence begins at every ``step``-th frame, and takes every ``stride``-th frame from there; it needs stride x
    sequence_length frames. With a ``pad_mode``, one more sequence begins if fewer frames remain. Outputs: the frames,
    their label (INT32, shape (1,)) if there are labels, the number of the first frame or of each (-1 for padding), and
    their times in seconds.

    On a GPU, NVDEC decodes the formats that `decoders.video` lists, and frames stay on the GPU; CPU threads decode
    others. In ``file_list`` the end is exclusive; a time between two frames is rounded according to
    ``file_list_rounding``, a time at which a frame begins denotes that frame.
    """

    example = "{op: experimental.readers.video, file_root: ./videos, sequence_length: 16, out: [frames, labels]}"

    pad_mode: Annotated[PadMode, Arg("padding of the last sequence, as in decoders.video")] = "none"
    fill_value: Annotated[tuple[int, ...], Arg("value for pad_mode constant: one, or R, G and B", ge=0, le=255)] = (0,)
    uniform_sample: Annotated[bool, Arg("one sequence per file, its frames spread over the whole file")] = False
    file_list_format: Annotated[Literal["timestamps", "frames"], Arg("unit of starts and ends")] = "timestamps"
    file_list_rounding: Annotated[Rounding, Arg("rounding of times between two frames")] = "start_down_end_up"
    file_list_include_end: Annotated[bool, Arg("include the end", ignored="it has no effect in DALI either")] = True

    @property
    def cut(self) -> SequenceCutting:
        step = self.step if self.step > 0 else self.sequence_length
        return SequenceCutting(self.sequence_length, step, self.stride, self.pad_mode != "none", self.uniform_sample)

    @property
    def padding(self) -> PadMode:
        return self.pad_mode

    @property
    def fill(self) -> tuple[int, ...]:
        return self.fill_value

    @property
    def by_frames(self) -> bool:
        return self.file_list_format == "frames"

    @property
    def rounding(self) -> Rounding:
        return self.file_list_rounding

    def check(self) -> None:
        super().check()
        if len(self.fill_value) not in (1, 3):
            raise SpecError(f"fill_value takes 1 or 3 values, got {len(self.fill_value)}")


class Video(VideoReader, name="readers.video"):
    """Read sequences of frames (FHWC, RGB, UINT8) from videos, as `experimental.readers.video` does, with the arguments
    of DALI's older reader."""

    aliases = ("video_reader",)
    example = "{op: readers.video, file_root: ./videos, sequence_length: 16, out: [frames, labels]}"

    pad_sequences: Annotated[bool, Arg("one more sequence at the end, padded with black frames")] = False
    file_list_frame_num: Annotated[bool, Arg("starts and ends of file_list are numbers of frames, not seconds")] = False
    file_list_include_preceding_frame: Annotated[bool, Arg("round a start between two frames down")] = False
    channels: Annotated[int, Arg("colour channels", ge=3, le=3)] = 3
    dtype: Annotated[DALIDataType, Arg("dtype of the frames: UINT8 or FLOAT")] = DALIDataType.UINT8
    normalized: Annotated[bool, Arg("with dtype FLOAT: values from 0 to 1 instead of 0 to 255")] = False
    skip_vfr_check: Annotated[bool, Arg("check frame rates", ignored="frames have their own times")] = False
    additional_decode_surfaces: Annotated[int, Arg("surfaces of NVDEC", ignored="frames are copied as they come")] = 2

    @property
    def cut(self) -> SequenceCutting:
        step = self.step if self.step > 0 else self.sequence_length
        return SequenceCutting(self.sequence_length, step, self.stride, self.pad_sequences, False)

    @property
    def padding(self) -> PadMode:
        return "constant" if self.pad_sequences else "none"

    @property
    def by_frames(self) -> bool:
        return self.file_list_frame_num

    @property
    def rounding(self) -> Rounding:
        return "all_down" if self.file_list_include_preceding_frame else "start_up_end_down"

    @property
    def output(self) -> FrameFormat:
        return replace(super().output, dtype=self.dtype, normalized=self.normalized)

    def check(self) -> None:
        super().check()
        if self.dtype not in (DALIDataType.UINT8, DALIDataType.FLOAT):
            raise SpecError(f"dtype must be UINT8 or FLOAT, got {self.dtype.name}; put a cast after the reader")
        if self.normalized and self.dtype is not DALIDataType.FLOAT:
            raise SpecError("normalized needs dtype: FLOAT")
