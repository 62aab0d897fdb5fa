"""experimental.inputs.video: sequences of frames from videos that the user's program provides as bytes."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from ...ops.base import Arg, Spec
from ...ops.batch import Batch
from ...ops.context import Context
from ...ops.errors import SampleError
from ...ops.types import DALIDataType
from ...ops.video.decoders import decode_into, fill_of, padded
from ...ops.video.media import Clip, Index, require
from ..external_source import ProgramInput

_RETAINED = 8
"""Number of used batches that are kept, because samples may be retried."""
_MOST_THREADS = 16


class FedVideo:
    """One encoded video and its decoder, which continues where the last sequence ended. Several threads may call it."""

    def __init__(self, encoded: npt.NDArray[np.uint8], length: int, pads: bool) -> None:
        """``encoded``: bytes of a video file; ``length``: frames per sequence; ``pads``: the last sequence is padded.
        Raises SampleError if it is not a video."""
        self._encoded, self._length, self._pads = encoded, length, pads
        self._lock = threading.Lock()
        self._clip: Clip | None = None
        with Clip(encoded) as clip:
            self.height, self.width = clip.height, clip.width
            self._count = len(clip)
            self._index: Index = clip.index
        self.sequences = -(-self._count // length)

    def frames(self, sequence: int) -> list[int]:
        """Numbers of the video's frames in sequence number ``sequence``; NO_FRAME for frames after the end, if
        sequences are padded."""
        first = sequence * self._length
        end = first + self._length
        if not self._pads:
            return list(range(first, min(end, self._count)))
        return padded(range(first, end), self._count, "constant")

    def decode(self, sequence: int, out: npt.NDArray[np.uint8], threads: int) -> None:
        """Decode the frames of ``sequence`` into ``out`` (F, height, width, 3), with ``threads`` threads. Raises
        SampleError."""
        with self._lock:
            if self._clip is None:
                self._clip = Clip(self._encoded, self._index, threads=threads)
            try:
                decode_into(self._clip, self.frames(sequence), fill_of((0,)), out)
            except SampleError:
                self._close()  # the next sequence starts with a new decoder, unaffected by the damage
                raise
            if sequence == self.sequences - 1:
                self._close()

    def _close(self) -> None:
        if self._clip is not None:
            self._clip.close()
            self._clip = None

    def close(self) -> None:
        """Close the decoder of the video."""
        with self._lock:
            self._close()


@dataclass(frozen=True, slots=True)
class VideoBatch:
    """Consecutive sequences of one video that make up one batch."""

    video: FedVideo
    first: int
    count: int

    def __len__(self) -> int:
        return self.count


@dataclass(slots=True)
class FedSequences:
    """Queue of one video input operator: batches of sequences from the program that the engine has not taken yet."""

    parts: deque[tuple[int, VideoBatch]] = field(default_factory=deque)
    """Batches by the position of their first sample; the last few are kept after they were used, for retries."""
    _lock: Any = field(default_factory=threading.Lock)

    def put(self, start: int, outputs: tuple[VideoBatch, ...]) -> None:
        """Append a batch to the queue. Its first sample has position ``start`` in the run; positions must ascend."""
        with self._lock:
            self.parts.append((start, outputs[0]))

    def of(self, position: int) -> tuple[int, VideoBatch]:
        """Return the batch that holds the sample at ``position``, and the position of its first sample."""
        with self._lock:
            while len(self.parts) > _RETAINED and self.parts[_RETAINED][0] <= position:
                self.parts.popleft()
            return next((s, part) for s, part in self.parts if s <= position < s + part.count)

    def close(self) -> None:
        """Close all videos and discard the batches that were not taken."""
        with self._lock:
            for _, part in self.parts:
                part.video.close()
            self.parts.clear()


class VideoInput(ProgramInput, name="experimental.inputs.video"):
    """Sequences of frames (FHWC, RGB, UINT8) from videos that `Pipeline.feed_input` provides, one at a time, as the
    bytes of their files; only in Python.

    It is for videos that are too long to be decoded at once. A batch has as many sequences as the pipeline's
    batch_size; the last batch of a video may have fewer. After the end of a video the next one in the queue follows.
    """

    aliases = ("inputs.video",)
    example = "{op: experimental.inputs.video, name: video, sequence_length: 16, out: frames}"

    sequence_length: Annotated[int, Arg("frames per sequence", ge=1)]
    last_sequence_policy: Annotated[
        Literal["partial", "pad"], Arg("the last sequence of a video has fewer frames, or is padded with black ones")
    ] = "partial"
    no_copy: Annotated[bool, Arg("do not copy the data: the program leaves it unchanged until it was used")] = False
    blocking: Annotated[bool, Arg("wait for feed_input instead of raising")] = False
    affine: Annotated[bool, Arg("pin threads to cores", ignored="threads are shared by all operators")] = True

    @property
    def waits(self) -> bool:
        return True

    def check(self) -> None:
        require()

    def infer(self, *specs: Spec) -> Spec:
        length = self.sequence_length if self.last_sequence_policy == "pad" else None
        return Spec((length, None, None, 3), DALIDataType.UINT8, "FHWC")

    def state(self) -> FedSequences:
        return FedSequences()

    def split(self, encoded: npt.NDArray[np.uint8], batch_size: int) -> list[VideoBatch]:
        """Split the video ``encoded`` into batches. Raises SampleError if it has no frames."""
        video = FedVideo(encoded, self.sequence_length, self.last_sequence_policy == "pad")
        firsts = range(0, video.sequences, batch_size)
        return [VideoBatch(video, first, min(batch_size, video.sequences - first)) for first in firsts]

    def cpu(self, ctx: Context) -> Batch:
        state: FedSequences = ctx.source
        threads = 1 if ctx.services.pool is None else min(ctx.services.pool.count, _MOST_THREADS)
        positions = ctx.samples.position.tolist()
        found = [state.of(p) for p in positions]
        wanted = [(part.video, part.first + p - start) for p, (start, part) in zip(positions, found, strict=True)]
        shapes = [(len(v.frames(k)), v.height, v.width, 3) for v, k in wanted]
        empty = ctx.empty if ctx.stage == "cpu" else np.empty
        out = Batch.allocate(empty, np.array(shapes, np.int32).reshape(-1, 4), np.uint8, "FHWC", ctx.samples)
        for i, (video, sequence) in enumerate(wanted):
            try:
                video.decode(sequence, out.sample(i), threads)
            except SampleError as e:
                ctx.reject(i, e.code, f"sequence {sequence}: {e}")
        return out

    def mixed(self, ctx: Context) -> Batch:
        found: Batch = ctx.device.to_device(self.cpu(ctx))
        return found
