"""Operator decoders.video: decode video files to sequences of frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec, Stage
from ..batch import I32, I64, Batch
from ..codecs.decoders import check_encoded
from ..context import Context
from ..errors import SampleError, SpecError
from ..types import DALIDataType
from . import nvdec, packets
from .media import NO_FRAME, Clip, Decoded, Glance, require

PadMode = Literal["none", "constant", "edge", "repeat", "reflect_1001", "symmetric", "reflect_101", "reflect"]
MAX_PIXELS = 1 << 31
"""Default limit on the pixels of all frames of a sequence together; 6 GiB of RGB."""
_RANGE = ("start_frame", "stride", "sequence_length", "end_frame")


def padded(numbers: Sequence[int], count: int, mode: PadMode) -> list[int]:
    """Return the frame ``numbers`` for a video of ``count`` frames. Numbers beyond its end are replaced by the rule
    ``mode``, or left out if ``mode`` is "none"."""
    period = {"reflect_1001": 2 * count, "symmetric": 2 * count, "reflect_101": 2 * count - 2, "reflect": 2 * count - 2}
    out = []
    for n in numbers:
        if n < count:
            out.append(n)
        elif mode == "constant":
            out.append(NO_FRAME)
        elif mode in ("edge", "repeat"):
            out.append(count - 1)
        elif mode in period:
            m = n % max(period[mode], 1)
            mirrored = 2 * count - 1 - m if mode in ("reflect_1001", "symmetric") else 2 * count - 2 - m
            out.append(m if m < count else mirrored)
    return out


def fill_of(values: Sequence[int]) -> npt.NDArray[np.uint8]:
    """Return the fill value, given as one value or one per channel, as uint8[3]."""
    return np.broadcast_to(np.array(values, np.uint8), (3,)).copy()


def decode_into(clip: Clip, numbers: Sequence[int], fill: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8]) -> None:
    """Decode the frames ``numbers`` of ``clip`` into ``out`` (F, height, width, 3), each frame only once. `NO_FRAME`
    gives an image of ``fill``. Raises SampleError."""
    places: dict[int, list[int]] = {}
    for k, n in enumerate(numbers):
        places.setdefault(n, []).append(k)
    for k in places.pop(NO_FRAME, ()):
        out[k] = fill

    clip.decode(sorted(places), lambda number: [out[k] for k in places[number]])


_cached_facts: dict[tuple[int, bytes, bytes], tuple[int, int, int]] = {}
"""Cache of (frames, height, width) by file, for memory estimates, so that the thread that launches kernels does not
open a file again."""
_MAX_CACHED_FACTS, _ENDS = 4096, 64


def _mark(encoded: npt.NDArray[np.uint8]) -> tuple[int, bytes, bytes]:
    """Return a key that distinguishes files well enough for an estimate: size, first bytes, last bytes."""
    return len(encoded), encoded[:_ENDS].tobytes(), encoded[-_ENDS:].tobytes()


def _facts_of(encoded: npt.NDArray[np.uint8]) -> tuple[int, int, int]:
    """Return (approximate number of frames, height, width) of a file. Raises SampleError."""
    if (found := _cached_facts.get(_mark(encoded))) is None:
        with Glance(encoded) as clip:
            found = _keep(encoded, clip.guess, clip)
    return found


def _keep(encoded: npt.NDArray[np.uint8], frames: int, clip: Clip) -> tuple[int, int, int]:
    if len(_cached_facts) >= _MAX_CACHED_FACTS:
        _cached_facts.clear()
    found = _cached_facts[_mark(encoded)] = frames, clip.height, clip.width
    return found


@dataclass(frozen=True, slots=True)
class _Ahead:
    """Reading of packets for NVDEC by threads, for the videos of one batch; result of the operator's `start_early`."""

    slot: I32
    """Slots of the batch's samples (`Samples.slot`), by which the batch is recognised."""
    nbytes: int
    """Size of the encoded files in bytes."""
    parts: list[Future[tuple[nvdec.NvClip, list[int]] | SampleError]]
    """Future for each sample. It yields the clip with its packets and the numbers of the needed frames, or the sample's
    error."""


class Video(Operator, name="decoders.video"):
    """Decode video files of any container and codec that FFmpeg reads, to frames (FHWC, RGB, UINT8).

    The output has all frames; or ``sequence_length`` frames from ``start_frame`` on, every ``stride``-th one; or the
    frames before ``end_frame``; or the frames that ``frames`` lists. Frames beyond the end follow ``pad_mode``. Frames
    are identified by the times of packets, so that seeks are exact; colours follow the matrix and the range that the
    stream declares.

    On a GPU, NVDEC decodes H.264, HEVC, VP9 and AV1 with 4:2:0 chroma if the package PyNvVideoCodec is installed, and
    CPU threads decode what NVDEC does not support. Without the package, CPU threads decode everything, and the frames
    are uploaded.
    """

    aliases = ("experimental.decoders.video",)
    bound = "exact if the CPU decodes; NVDEC's colours differ by up to 12 levels, by up to 40 for 10 and 12 bits"
    example = "{op: decoders.video, in: files, start_frame: 0, sequence_length: 16, stride: 2, out: frames}"

    start_frame: Annotated[int | None, Arg("number of the first frame; 0 by default", per_sample=True)] = None
    stride: Annotated[
        int | None, Arg("distance between frames of the sequence, in frames; 1 by default", per_sample=True)
    ] = None
    sequence_length: Annotated[int | None, Arg("number of frames in the output", per_sample=True)] = None
    end_frame: Annotated[int | None, Arg("number of the frame after the last one", per_sample=True)] = None
    frames: Annotated[tuple[int, ...] | None, Arg("numbers of the frames to decode, in any order", per_sample=True)] = (
        None
    )
    pad_mode: Annotated[
        PadMode,
        Arg("after the end: fill_value, the last frame, or frames mirrored with or without the last one; none"),
    ] = "constant"
    fill_value: Annotated[
        tuple[int, ...], Arg("value of pad_mode constant: one number, or R, G and B", ge=0, le=255)
    ] = (0,)
    max_pixels: Annotated[int, Arg("reject sequences of more pixels, all frames together", ge=1)] = MAX_PIXELS
    build_index: Annotated[bool, Arg("index frames first", ignored="packets are always indexed")] = True
    affine: Annotated[bool, Arg("pin threads to cores", ignored="threads are shared by all operators")] = True

    @property
    def waits(self) -> bool:
        return True

    def check(self) -> None:
        if self.is_set("frames") and any(map(self.is_set, _RANGE)):
            raise SpecError("frames excludes start_frame, stride, sequence_length and end_frame")
        if self.is_set("sequence_length") and self.is_set("end_frame"):
            raise SpecError("sequence_length and end_frame exclude each other")
        if len(self.fill_value) not in (1, 3):
            raise SpecError(f"fill_value takes 1 or 3 values, got {len(self.fill_value)}")
        require()

    def infer(self, *specs: Spec) -> Spec:
        check_encoded(specs[0])
        length = None if "sequence_length" in self.per_sample or self.pad_mode == "none" else self.sequence_length
        return Spec((length, None, None, 3), DALIDataType.UINT8, "FHWC")

    def estimate_memory(self, stage: Stage, *inputs: Batch) -> tuple[I64, I64]:
        elements = np.zeros(len(inputs[0]), np.int64)
        for i in range(len(inputs[0])):
            try:
                frames, height, width = _facts_of(inputs[0].sample(i))
                if self.is_set("frames"):
                    frames = 64 if self.frames is None else len(self.frames)
                elif self.sequence_length is not None:
                    frames = self.sequence_length
                elements[i] = min(max(frames, 0) * height * width, self.max_pixels) * 3
            except SampleError:
                continue
        return elements, np.full(len(elements), 1 << 24, np.int64)  # working memory of a decoder

    def cpu(self, ctx: Context, encoded: Batch) -> Batch:
        return self._decoded(ctx, encoded, map)

    def mixed(self, ctx: Context, encoded: Batch) -> Batch:
        from ..codecs.threaded_decode import threads

        if nvdec.module() is not None:
            return self._on_nvdec(ctx, encoded)
        found: Batch = ctx.device.to_device(self._decoded(ctx, encoded, threads().map))
        return found

    def start_early(self, ctx: Context, *inputs: Batch) -> _Ahead | None:
        return None if nvdec.module() is None else self._ahead(ctx, inputs[0])

    def _ahead(self, ctx: Context, encoded: Batch) -> _Ahead:
        asked = self._asked(ctx)

        def read(i: int) -> tuple[nvdec.NvClip, list[int]] | SampleError:
            try:
                with nvdec.NvClip(encoded.sample(i)) as clip, packets.reading:
                    wanted = self._wanted(clip, *asked(i))
                    _keep(encoded.sample(i), len(clip), clip)
                    return clip.read(wanted), wanted
            except SampleError as e:
                return e.bare()

        parts = [packets.readers().submit(read, i) for i in range(len(encoded))]
        return _Ahead(encoded.samples.slot, int(encoded.sizes.sum()), parts)

    def _on_nvdec(self, ctx: Context, encoded: Batch) -> Batch:
        """Decode frames with NVDEC. A thread that has a decoder decodes each sample; otherwise the calling thread
        does."""
        ready: _Ahead | None = ctx.started if not ctx.attempt else None
        if ready is None or not np.array_equal(ready.slot, encoded.samples.slot):
            ready = self._ahead(ctx, encoded)
        shapes = np.zeros((len(encoded), 4), np.int32)
        good: dict[int, tuple[nvdec.NvClip, list[int]]] = {}
        for i, part in enumerate(ready.parts):
            found = part.result()
            if isinstance(found, SampleError):
                ctx.reject(i, found.code, str(found))
            else:
                good[i] = found
                shapes[i] = len(found[1]), found[0].height, found[0].width, 3
        out = Batch.allocate(ctx.empty, shapes, np.uint8, "FHWC", encoded.samples)
        ctx.device.wait()  # the decoders' streams write into memory that this stream allocated
        base = ctx.device.address(out.data)

        def jobs() -> Iterator[tuple[nvdec.NvClip, dict[int, list[int]]]]:
            for i, (clip, wanted) in good.items():
                first, size, places = base + int(out.offsets[i]), clip.height * clip.width * 3, dict[int, list[int]]()
                for k, n in enumerate(wanted):
                    places.setdefault(n, []).append(first + k * size)
                yield clip, places

        done = nvdec.decode_all(ctx.device.index, jobs(), fill_of(self.fill_value))
        for i, (why, seconds) in zip(good, done, strict=True):
            if isinstance(why, SampleError):
                ctx.reject(i, why.code, str(why))
            else:
                nvdec.report(ctx, why, seconds)
        return out

    def _asked(self, ctx: Context) -> Callable[[int], tuple[dict[str, int], list[int] | None]]:
        """Return a function that takes a sample's index and returns two values: the arguments that define a range of
        frames, by name; and the list of frames, or None if that argument is not set."""
        numbers = {n: ctx.arg(n, np.int64) for n in _RANGE if self.is_set(n)}
        listed = ctx.arg("frames", np.int64) if self.is_set("frames") else None
        return lambda i: ({k: int(v[i]) for k, v in numbers.items()}, None if listed is None else listed[i].tolist())

    def _decoded(self, ctx: Context, encoded: Batch, run: Callable[..., Iterable[Any]]) -> Batch:
        asked = self._asked(ctx)

        def decode(i: int) -> npt.NDArray[np.uint8] | SampleError:
            try:
                with Decoded(encoded.sample(i)) as clip:
                    wanted = self._wanted(clip, *asked(i))
                    out = np.empty((len(wanted), clip.height, clip.width, 3), np.uint8)
                    decode_into(clip, wanted, fill_of(self.fill_value), out)
                    return out
            except SampleError as e:
                return e.bare()

        empty = np.zeros((0, 0, 0, 3), np.uint8)
        videos = list(run(decode, range(len(encoded))))
        for i, video in enumerate(videos):
            if isinstance(video, SampleError):
                ctx.reject(i, video.code, str(video))
                videos[i] = empty
        shapes = np.array([v.shape for v in videos], np.int32).reshape(-1, 4)
        out = Batch.allocate(ctx.empty if ctx.stage == "cpu" else np.empty, shapes, np.uint8, "FHWC", encoded.samples)
        for i, video in enumerate(videos):
            out.sample(i)[...] = video
            videos[i] = empty
        return out

    def _wanted(self, clip: Clip, arguments: dict[str, int], listed: list[int] | None) -> list[int]:
        """Return the numbers of the frames to decode, by the ``arguments`` that define a range, or by the frames
        ``listed``. Raises SampleError."""
        count = len(clip)
        if listed is None:
            start, stride = arguments.get("start_frame", 0), arguments.get("stride", 1)
            if start < 0 or stride < 1 or min(arguments.values(), default=0) < 0:
                raise SampleError("bad_argument", "start_frame, end_frame and sequence_length must not be negative, "
                                  f"and stride at least 1; got {arguments}")  # fmt: skip
            if start >= count:
                raise SampleError("out_of_bounds", f"start_frame is {start}, and the video has {count} frames")
            stop = (
                start + arguments["sequence_length"] * stride
                if "sequence_length" in arguments
                else arguments.get("end_frame", count)
            )
            numbers: Sequence[int] = range(start, min(stop, count) if self.pad_mode == "none" else stop, stride)
        elif min(listed, default=0) < 0:
            raise SampleError("bad_argument", f"frames are numbered from 0, got {min(listed)}")
        else:
            numbers = listed
        if len(numbers) * max(clip.height * clip.width, 1) > self.max_pixels:  # before their list is allocated
            raise SampleError("too_large", f"{len(numbers)} frames of {clip.width} x {clip.height} are more than "
                              f"max_pixels ({self.max_pixels}) allows")  # fmt: skip
        return padded(numbers, count, self.pad_mode)
