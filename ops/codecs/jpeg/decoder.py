"""Decoders for JPEGs on the CPU: compiled loops, and libjpeg-turbo."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...batch import I64
from ...compiled.background import awaited
from ...errors import SampleError
from ...kernels import Kernels
from ...types import DALIImageType
from ..decoder_table import NO_IMAGES, DecodeJob, Decoder, Mask, Outcome, Target
from ..headers import encoded_bytes, readonly
from ..library import DAMAGE, window
from ..pixels import channels_of, orient, recolour
from . import header as jpeg_header
from .anchors import MODE, NO_STATES, Anchors

_baseline: Any = Kernels(".baseline_cpu", __package__)
_progressive: Any = Kernels(".progressive_cpu", __package__)
_turbo: Any = Kernels(".turbo", __package__)
_NO_CORNERS, _ALL = np.empty((0, 2), np.int64), np.empty((0, 4), np.int64)


class NativeJpeg(Decoder):
    """Decoder for baseline and progressive JPEGs whose stored pixels need no conversion: compiled loops decode whole
    batches on the CPU. Its `Target` must have one sample per image of the batch."""

    name = "cpu"
    on_threads = False
    sure = True

    @property
    def ready(self) -> bool:
        return not awaited("ops.codecs.jpeg.baseline_cpu", "ops.codecs.jpeg.progressive_cpu")

    def takes(self, job: DecodeJob, indices: I64) -> Mask:
        rules = job.rules
        if rules.dtype != np.uint8 or rules.output_type is DALIImageType.YCbCr or rules.fast_idct:
            return np.zeros(len(indices), np.bool_)
        if not job.headers.unusual:
            return np.ones(len(indices), np.bool_)
        status = job.headers.jpeg["status"][indices]
        taken: Mask = (status == jpeg_header.OK) | (status == jpeg_header.MANY_SCANS)
        return taken

    def decode(self, job: DecodeJob, indices: I64, target: Target, outcome: Outcome) -> I64:
        n, batch, headers, out = len(indices), job.batch, job.headers, target.out
        index, offsets, sizes, jpeg = batch.samples.index, batch.offsets, batch.shapes[:, 0], headers.jpeg
        good, orientation, shapes, starts = headers.good, headers.orientation, out.shapes, out.offsets
        corners = _NO_CORNERS if job.anchors is None else job.anchors
        seen = _ALL if job.needed is None else job.needed(shapes)
        if n < len(batch):
            rows: list[Any] = [index, offsets, sizes, jpeg, good, orientation, shapes, starts, corners, seen]
            rows = [a[indices] if len(a) else a for a in rows]
            index, offsets, sizes, jpeg, good, orientation, shapes, starts, corners, seen = rows
        windows, status = np.empty((n, 4), np.int64), np.empty(n, np.int32)
        channels, origins, pitches = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
        _baseline.regions(shapes, starts, good, orientation, corners, seen, windows, channels, origins, pitches)
        files = readonly(batch.data), np.ascontiguousarray(offsets), sizes.astype(np.int64), jpeg
        pixels = windows, channels, job.bgr, out.data, origins, pitches, status
        ctx = job.facts or job.ctx
        facts = ctx.facts(Anchors) if ctx.stage == "cpu" and (len(corners) or len(seen)) else None
        known = np.zeros((n, 3), np.int64) if facts is None else facts.begin(index, jpeg, windows)
        wanted = known[:, MODE].copy()
        _baseline.decode_images(*files, *pixels, NO_STATES if facts is None else facts.states, known)
        if facts is not None:
            facts.end(index, known, wanted)
        if len(headers.scans):
            _progressive.decode_images(*files, headers.scans, *pixels)
        left: I64 = indices[status != _baseline.DONE]
        return left


class TurboJpeg(Decoder):
    """Decoder for all JPEGs: libjpeg-turbo decodes one image at a time, and says what is wrong with damaged images."""

    name = "libjpeg-turbo"
    judges = True

    def takes(self, job: DecodeJob, indices: I64) -> Mask:
        taken: Mask = ~job.headers.other[indices]
        return taken

    def decode(self, job: DecodeJob, indices: I64, target: Target, outcome: Outcome) -> I64:
        for i in indices.tolist():
            try:
                decode_jpeg(job, i, target)
            except SampleError as e:
                if job.rules.on_damage == "reject" or e.code not in DAMAGE or not _guessed(job, i, target):
                    outcome.errors[i] = e.bare()
                else:
                    job.headers.damaged[i] = e.bare()
        return NO_IMAGES


def _guessed(job: DecodeJob, i: int, target: Target) -> bool:
    """Decode the damaged image ``i``; libjpeg guesses pixels. Return False if the image cannot be decoded at all."""
    try:
        decode_jpeg(job, i, target, lenient=True)
    except SampleError:
        return False
    return True


def decode_jpeg(job: DecodeJob, i: int, target: Target, lenient: bool = False) -> None:
    """Decode the JPEG with index ``i`` into its sample of ``target``: oriented, cut to its window, and converted.
    Raises SampleError."""
    rules, out, place, isolation = job.rules, target.out, target.sample(i), job.isolation
    data, row, orientation = encoded_bytes(job.batch, i), job.headers.jpeg[i], int(job.headers.orientation[i])
    decode_into = _turbo.decode_into if isolation is None or not isolation.jpeg else isolation.decode_into
    how = {"lenient": True} if lenient else {}
    converts = rules.dtype != np.uint8 or rules.output_type is DALIImageType.YCbCr
    if orientation == 1 and job.anchors is None and not converts:
        start = int(out.offsets[place])
        memory = memoryview(out.data[start : start + int(np.prod(out.shapes[place], dtype=np.int64))])
        decode_into(data, row, rules.output_type, rules.fast_idct, memory, **how)
        return
    space = DALIImageType.RGB if rules.output_type is DALIImageType.YCbCr else rules.output_type
    shape = (int(row["height"]), int(row["width"]), channels_of(space, _turbo.stored_channels(row)))
    whole = np.empty(shape, np.uint8)
    decode_into(data, row, space, rules.fast_idct, whole.reshape(-1).data, **how)
    part = window(job, i, orient(whole, orientation), out.shapes[place])
    if converts:
        # The decoder has already produced BGR or GRAY; only the type is to be changed.
        to = rules.output_type if rules.output_type is DALIImageType.YCbCr else DALIImageType.ANY_DATA
        part = recolour(part, to, rules.dtype)
    out.sample(place)[...] = part


ROWS = (NativeJpeg(), TurboJpeg())
