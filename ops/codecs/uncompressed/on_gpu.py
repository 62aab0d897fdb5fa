"""Decoder for BMP and PNM on a GPU: a kernel (`gpu_streams.planes`) copies pixels out of the uploaded files."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...batch import I64, Batch
from ...gpu.lane import Lane
from ..decoder_table import NO_IMAGES, DecodeJob
from ..gpu_streams import planes
from ..gpu_table import GpuDecoder, GpuWork
from ..threaded_decode import ThreadedDecode
from .decoder import BACKWARDS, FIRST, PITCH, STEP, places

NAME = "cuda plain"
"""Name of this decoder in reports."""
_DEEP = (2, 6)
"""Bytes per pixel of images with 16 bits per channel: gray, RGB."""


class CudaCopy(GpuDecoder):
    """CUDA decoder for BMP and PNM files that need no conversion: kernels copy the pixels."""

    name = NAME

    def takes(self, job: DecodeJob, indices: I64) -> npt.NDArray[np.bool_]:
        return places(job, indices)[0] if job.headers.unusual else np.zeros(len(indices), np.bool_)

    def start(self, job: DecodeJob, indices: I64, threads: ThreadedDecode) -> GpuWork:
        return CopyWork(indices, places(job, indices)[1])


ROWS = (CudaCopy(),)


@dataclass(slots=True)
class CopyWork(GpuWork):
    """Work for the GPU: copying the pixels of BMP and PNM images out of their files, which are on the device."""

    indices: I64
    rows: I64
    """For each image, where its pixels are in the file: a row of `decoder.find`, [len(indices), 4]."""

    def launch(self, job: DecodeJob, lane: Lane, files: Batch, out: Batch) -> I64:
        which, rows = self.indices, self.rows
        shown, step, deep = np.zeros(len(which), planes.PLANE), rows[:, STEP], np.isin(rows[:, STEP], _DEEP)
        shown["rows"] = files.offsets[which] + rows[:, FIRST]
        if job.anchors is not None:
            shown["rows"] += job.anchors[which, 0] * rows[:, PITCH] + job.anchors[which, 1] * step
        shown["pitch"], shown["destination"] = rows[:, PITCH], out.offsets[which]
        shown["height"] = shown["shown_rows"] = out.shapes[which, 0]
        shown["width"] = shown["shown_columns"] = out.shapes[which, 1]
        shown["down"], shown["across"], shown["colours"] = 1, 1, -1
        shown["bits"], shown["samples"] = np.where(deep, 16, 8), np.where(deep, step // 2, step)
        shown["channels"] = out.shapes[which, 2]
        shown["bgr"] = rows[:, BACKWARDS] != job.bgr
        table, colours, bad = lane.upload(shown.view(np.uint8), np.zeros(1, np.uint32), np.zeros(1, np.int32))
        planes.make_pixels(lane, files.data, table, len(which), colours, out, bad)
        lane.keep(files.data, table, colours, bad)
        job.ctx.decoded_by(NAME, len(which))
        return NO_IMAGES
