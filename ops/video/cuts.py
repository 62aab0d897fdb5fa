"""Operators video_cuts and cut_video: cut videos at key frames into clips, without decoding or encoding."""

from __future__ import annotations

import io
from fractions import Fraction
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec
from ..batch import Batch
from ..codecs.decoders import check_encoded
from ..context import Context
from ..errors import SampleError, SpecError
from ..types import DALIDataType
from .media import Clip, reason, require

Container = Literal["mp4", "mkv", "webm", "mov"]
_MUXERS = {"mkv": "matroska"}
"""FFmpeg's name of a container, by file extension, if the two differ."""
_MAX_SKEW = 1.0
"""Maximum distance in seconds, within a file, between audio packets and the video packets of the same time."""


def cuts_of(clip: Clip, seconds: float) -> list[tuple[float, float]]:
    """Return start and end in seconds of each clip into which the video is cut. Each clip is at least ``seconds`` long,
    except the last. Raises SampleError.

    A clip begins at a key frame, but not at one after which earlier frames are stored: these depend on frames before
    the key frame."""
    times: list[int] = []
    keys: list[int] = []
    try:
        for packet in clip.container.demux(clip.stream):
            if packet.size == 0 or packet.is_discard:
                continue
            if packet.pts is None:
                raise SampleError("unsupported", "the video has frames without times and cannot be cut")
            keys += [len(times)] if packet.is_keyframe else []
            times.append(packet.pts)
    except clip.errors as e:
        raise SampleError("corrupt_data", f"its packets cannot be read: {reason(e)}") from None
    if not keys:
        raise SampleError("corrupt_data", "the video has no key frame")
    oldest = np.minimum.accumulate(np.array(times, np.int64)[::-1])[::-1]
    base = Fraction(clip.stream.time_base)
    starts: list[int] = []
    for k in keys:
        if oldest[k] == times[k] and (not starts or (times[k] - starts[-1]) * base >= seconds):
            starts.append(times[k])
    if not starts:
        raise SampleError("unsupported", "the video cannot be cut at any of its key frames")
    ordered = sorted(times)
    last = ordered[-1] + (ordered[-1] - ordered[-2] if len(ordered) > 1 else 1)
    return [(float(a * base), float(b * base)) for a, b in zip(starts, [*starts[1:], last], strict=True)]


def remuxed(clip: Clip, start: float, end: float, container: str, sound: bool) -> bytes:
    """Return a file with the packets of ``clip`` from the key frame at ``start`` to the one at ``end`` (seconds). Times
    in the file begin at 0. Raises SampleError."""
    av, base = require(), Fraction(clip.stream.time_base)
    first, stop = (round(Fraction(s) / base) for s in (start, end))
    tracks = [clip.stream, *(clip.container.streams.audio if sound else ())]
    out = io.BytesIO()
    try:
        clip.container.seek(max(first - round(_MAX_SKEW / base), 0), stream=clip.stream, backward=True)
        with av.open(out, "w", format=_MUXERS.get(container, container), options={"fflags": "+bitexact"}) as made:
            into = {t.index: made.add_stream_from_template(t) for t in tracks}
            begun = done = False
            for packet in clip.container.demux(tracks):
                if packet.size == 0 or packet.pts is None:
                    continue
                track = packet.stream
                at = float(packet.pts * Fraction(track.time_base))
                if track.index == clip.stream.index:
                    begun |= packet.pts == first and packet.is_keyframe
                    done |= begun and packet.is_keyframe and packet.pts >= stop
                    if not begun or done:
                        if at > end + _MAX_SKEW:
                            break
                        continue
                elif not start <= at < end:
                    if at > end + _MAX_SKEW:
                        break
                    continue
                shift = round(Fraction(start) / Fraction(track.time_base))
                packet.pts -= shift
                packet.dts = None if packet.dts is None else packet.dts - shift
                packet.stream = into[track.index]
                made.mux(packet)
    except clip.errors as e:
        raise SampleError("unsupported", f"the video cannot be cut into {container} files: {reason(e)}") from None
    if not begun:
        raise SampleError("out_of_bounds", f"there is no key frame at {start} s")
    return out.getvalue()


class VideoCuts(Operator, name="video_cuts"):
    """Find where videos can be cut without encoding them again: at key frames. Output: FLOAT64 of shape (clips, 2),
    start and end of each clip in seconds.

    A clip is at least ``seconds`` long, except the last one of a video. Key frames across which later frames refer to
    earlier ones are skipped. The input is files of any container and codec that FFmpeg reads. `split_samples` turns
    each clip into a sample, and `cut_video` cuts out its file.
    """

    example = "{op: video_cuts, in: files, seconds: 10, out: cuts}"

    seconds: Annotated[
        float, Arg("minimum length of a clip in seconds; 0: one clip per key frame", ge=0, per_sample=True)
    ] = 0.0

    def check(self) -> None:
        require()

    def infer(self, *specs: Spec) -> Spec:
        check_encoded(specs[0])
        return Spec((None, 2), DALIDataType.FLOAT64)

    def cpu(self, ctx: Context, encoded: Batch) -> Batch:
        seconds, found = ctx.arg("seconds", np.float64), []
        for i in range(len(encoded)):
            try:
                with Clip(encoded.sample(i)) as clip:
                    cuts = cuts_of(clip, float(seconds[i]))
            except SampleError as e:
                ctx.reject(i, e.code, str(e))
                cuts = []
            found.append(np.array(cuts, np.float64).reshape(-1, 2))
        return Batch.from_list(found, "", encoded.samples)


class CutVideo(Operator, name="cut_video"):
    """Cut clips out of videos as files of their own, without encoding them again.

    Inputs: video files, and for each the start and end of a clip in seconds (FLOAT64 of shape (2,)), as `video_cuts`
    returns them. The output is the bytes of the clip's file, to be written with ``encode: keep``. Its times begin at 0,
    and its frames are exactly those of the whole video.
    """

    inputs = (2, 2)
    makes_files = True
    example = "{op: cut_video, in: [files, cut], container: mp4, out: clip}"

    container: Annotated[Container, Arg("container of the clip; it must support the video's codec")] = "mp4"
    sound: Annotated[bool, Arg("keep the audio tracks")] = True

    def check(self) -> None:
        require()

    def infer(self, *specs: Spec) -> Spec:
        check_encoded(specs[0])
        if specs[1].dtype not in (None, DALIDataType.FLOAT64) or specs[1].ndim not in (None, 1):
            raise SpecError(f"the second input is start and end of a clip (FLOAT64, shape (2,)), got {specs[1]}; put "
                            "video_cuts and split_samples before it")  # fmt: skip
        return Spec((None,), DALIDataType.UINT8)

    def cpu(self, ctx: Context, encoded: Batch, cuts: Batch) -> Batch:
        made: list[npt.NDArray[np.uint8]] = []
        for i in range(len(encoded)):
            data = b""
            try:
                where: Any = cuts.sample(i)
                if where.shape != (2,) or not 0 <= float(where[0]) < float(where[1]):
                    raise SampleError("bad_argument", f"start and end of a clip are two rising numbers, got {where}")
                with Clip(encoded.sample(i)) as clip:
                    data = remuxed(clip, float(where[0]), float(where[1]), self.container, self.sound)
            except SampleError as e:
                ctx.reject(i, e.code, str(e))
            made.append(np.frombuffer(data, np.uint8))
        return Batch.from_list(made, "", encoded.samples)
