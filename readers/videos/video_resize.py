"""readers.video_resize: read sequences of frames from video files, and resize them."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from ...ops.base import Arg, Spec, Stage
from ...ops.batch import Batch, concat
from ...ops.context import Context
from ...ops.errors import Reject
from ...ops.images.resize import Resampling, Sized
from ...ops.types import DALIDataType
from ..fetch.parallel import spread
from .reader import Video


class VideoResize(Video, Sized, name="readers.video_resize"):
    """Read sequences of frames (FHWC) from videos and resize them, as `readers.video` followed by `resize`, with the
    arguments of both.

    On a GPU, NVDEC decodes and a kernel resizes, as in readers.video; on the CPU, threads do both. Frames of a sequence
    have one size, so that a batch also holds its frames at their old size for a moment. All outputs but the first equal
    those of readers.video."""

    aliases = ("video_reader_resize",)
    layouts = ()
    bound = Video.bound
    replayable = False
    example = "{op: readers.video_resize, file_root: ./videos, sequence_length: 8, size: [112, 112], out: [x, labels]}"
    gpu = None  # type: ignore[assignment]

    dtype: Annotated[DALIDataType, Arg("dtype of the frames: UINT8 or FLOAT")] = DALIDataType.UINT8

    def check(self) -> None:
        Video.check(self)
        Sized.check(self)

    def runs_in(self) -> tuple[Stage, ...]:
        return Video.runs_in(self) if self.parity == "dali" else ("cpu",)

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        frames, *others = Video.infer(self)
        return self.resampled(frames, self._known_size(frames)), *others

    def mixed(self, ctx: Context) -> Any:
        frames, *others = Video.mixed(self, ctx)
        inner = replace(ctx, stage="gpu", rejects=[])
        resized = Resampling.cpu(self, inner, frames)
        known = {r.slot for r in ctx.rejects}
        ctx.rejects += [r for r in inner.rejects if r.slot not in known]
        return resized, *others

    def cpu(self, ctx: Context, *none: Batch) -> Any:
        frames, *others = Video.cpu(self, ctx)
        done: dict[int, tuple[Batch, list[Reject]]] = {}

        def resize(low: int, high: int) -> None:
            part = slice(low, high)
            some, args = frames.take(part), {k: v.take(part) for k, v in ctx.args.items()}
            inner = replace(ctx, samples=some.samples, args=args, rejects=[], allocate=None)
            done[low] = Resampling.cpu(self, inner, some), inner.rejects

        spread(ctx, len(frames), frames.nbytes, resize)
        parts = [done[low] for low in sorted(done)]
        known = {r.slot for r in ctx.rejects}
        ctx.rejects += [r for _, rejects in parts for r in rejects if r.slot not in known]
        return concat([resized for resized, _ in parts], frames.samples, ctx.empty), *others
