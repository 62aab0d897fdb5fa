"""Decoder for baseline and progressive JPEGs on a GPU: the built-in CUDA kernels decode a whole batch at once.

The kernels check every image themselves. The engine runs an image that fails a check again with ``attempt`` 1, on the
CPU, which decides whether the file is damaged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...batch import I32, I64, Batch
from ...context import Context
from ...gpu.lane import Lane
from ...types import DALIImageType
from ..decoder_table import NO_IMAGES, DecodeJob, Mask
from ..gpu_table import GpuDecoder, GpuWork
from ..headers import Headers, Rules
from ..threaded_decode import ThreadedDecode
from . import cuda as jpeg_gpu
from . import header as jpeg_header
from . import nvjpeg
from .boundaries import Boundaries

CUDA = "cuda"
"""Name in reports of the CUDA decoder for JPEGs."""

OUTPUT_TYPES = {
    DALIImageType.RGB: jpeg_gpu.RGB,
    DALIImageType.BGR: jpeg_gpu.BGR,
    DALIImageType.GRAY: jpeg_gpu.GRAY,
}
"""Output types that the kernels support, with the kernels' numbers. Not supported are ANY_DATA, with which images of
a batch would differ in their channels, and YCbCr, which has BT.601's studio swing in DALI but full swing in JPEG
files."""


class CudaDecoder:
    """The CUDA decoder for JPEGs of one lane (CUDA stream). Stored in `Lane.cache`; used by the thread that launches
    kernels on the stream."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._decoder = jpeg_gpu.Decoder(jpeg_gpu.LaneRuntime(lane))

    def release(self) -> None:
        """Free the device memory that the decoder keeps between batches."""
        self._decoder.workspace = None

    def run(self, ctx: Context, files: Batch, plan: jpeg_gpu.DecodePlan, output: jpeg_gpu.Output, out: Any) -> None:
        """Enqueue all kernels that decode the batch ``plan``. The engine lets the CPU decode images again that fail a
        check on the GPU."""
        lane = self._lane
        boundaries, index, found = ctx.facts(Boundaries), files.samples.index, None
        if boundaries is not None and plan.unknowns and not boundaries.full:
            found = list[Any]()
        status = self._decoder.decode(lane.address(files.data), plan, output, lane.address(out), found=found)
        # its memory is free for later work of this lane, and for other lanes when this is done
        self._decoder.workspace = None

        def wrong() -> I64:
            # not earlier: for many images NumPy releases the GIL, and launches would wait for it
            taken = plan.status == 0
            # counting is the cheapest test for errors, of which there are nearly never any
            found_wrong = np.flatnonzero(taken & (status != 0)) if np.count_nonzero(status) else NO_IMAGES
            if boundaries is not None and len(found_wrong):
                stale = found_wrong[plan.images["known_count"][found_wrong] > 0]
                boundaries.forget(index[stale])
            if boundaries is not None and found is not None:
                boundaries.learn(index, taken & (status == 0), plan, found)
            ctx.decoded_by(CUDA, int(np.count_nonzero(taken)) - len(found_wrong))
            return found_wrong

        ctx.check_later(wrong)


def plan(
    ctx: Context, headers: Headers, files: Batch, which: Mask, places: I64,
    stage: Callable[[int], npt.NDArray[np.uint8]], *, limited: bool = True,
) -> jpeg_gpu.DecodePlan:  # fmt: skip
    """Plan the decoding of the images for which ``which`` is true. ``places``: offset of each of ``files`` in an array
    on the device. ``stage`` allocates the host memory for data to upload. ``limited``: whether all blocks of an image
    are needed; if not, the caller selects the needed ones by `cuda.limit`."""
    boundaries, known = ctx.facts(Boundaries), None
    if boundaries is not None:
        known = np.where(which, boundaries.counts(files.samples.index, files.sizes), 0)
    planned = jpeg_gpu.plan_decode(
        headers.jpeg, places, files.sizes, scans=headers.scans, which=which, orientation=headers.orientation,
        limited=limited, known=known, stage=stage,
    )  # fmt: skip
    if boundaries is not None and known is not None and len(planned.known):
        boundaries.fill(files.samples.index, known, planned.known)
    return planned


def cuda_decoder(lane: Lane) -> CudaDecoder:
    """Return the CUDA decoder for JPEGs of ``lane``, a CUDA stream, created at its first use."""
    found = lane.cache.get("cuda jpeg")
    if found is None:
        found = lane.cache["cuda jpeg"] = CudaDecoder(lane)
    decoder: CudaDecoder = found
    return decoder


def makes(rules: Rules) -> bool:
    """Return whether the kernels support the output type and dtype in ``rules``, the operator's arguments."""
    return rules.output_type in OUTPUT_TYPES and rules.dtype == np.uint8


def makes_four(rules: Rules) -> bool:
    """Return whether the kernels can also convert CMYK and YCCK images to the output type in ``rules``, the operator's
    arguments."""
    return rules.output_type is not DALIImageType.GRAY


def takes(headers: Headers, rules: Rules) -> Mask:
    """Return for each image whether the kernels can decode it as ``rules`` (the operator's arguments) require, by its
    header."""
    if not makes(rules):
        return np.zeros(len(headers.good), np.bool_)
    status = headers.jpeg["status"]
    taken: Mask = headers.good & ((status == jpeg_header.OK) | (status == jpeg_header.MANY_SCANS))
    if makes_four(rules):
        taken |= headers.good & (status == jpeg_header.FOUR)
    taken &= ~headers.other
    return taken


class CudaJpeg(GpuDecoder):
    """CUDA decoder for baseline and progressive JPEGs, also of four components, to RGB, BGR or GRAY of uint8."""

    name = CUDA

    def takes(self, job: DecodeJob, indices: I64) -> Mask:
        if job.rules.jpeg_decoder != "auto":
            return np.zeros(len(indices), np.bool_)
        return takes(job.headers, job.rules)[indices]

    def start(self, job: DecodeJob, indices: I64, threads: ThreadedDecode) -> GpuWork:
        which = np.zeros(len(job.batch), np.bool_)
        which[indices] = True
        shown = stored = None
        if job.anchors is not None:
            ends = job.anchors + job.shapes[:, :2]
            shown = np.concatenate([job.anchors[:, ::-1], ends[:, ::-1]], axis=1).astype(np.int32)
            stored = _stored(shown, job.headers)
        where = job.batch, which, job.places, job.staging
        planned = plan(job.ctx, job.headers, *where, limited=stored is None)
        if stored is not None:
            jpeg_gpu.limit(planned, stored)
        output = jpeg_gpu.pixel_output(planned, OUTPUT_TYPES[job.rules.output_type], shown, offsets=job.offsets)
        return CudaWork(planned, output, indices)


@dataclass(slots=True)
class CudaWork(GpuWork):
    """Work for the GPU: decoding some images of a batch to HWC, uint8, with the CUDA decoder for JPEGs."""

    decode: jpeg_gpu.DecodePlan
    output: jpeg_gpu.Output
    indices: I64
    """Indices in the batch of the images to decode. Unsupported ones are left to other decoders."""

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that the plan occupies."""
        return self.decode.sheet.nbytes

    def launch(self, job: DecodeJob, lane: Lane, files: Batch, out: Batch) -> I64:
        taken = self.decode.status[self.indices] == 0
        if taken.any():
            cuda_decoder(lane).run(job.ctx, files, self.decode, self.output, out.data)
            lane.keep(self)  # its memory is being copied to the device
        left: I64 = self.indices[~taken]
        return left


ROWS = (CudaJpeg(), nvjpeg.NvJpeg())


def _stored(shown: I32, headers: Headers) -> I32:
    """Convert windows (x0, y0, x1, y1) of oriented images to the coordinates in which the images are stored."""
    flip_x, flip_y, swap = jpeg_gpu.oriented(headers.orientation)
    x0, y0, x1, y1 = np.where(swap[:, None], shown[:, [1, 0, 3, 2]], shown).T
    width, height = headers.jpeg["width"], headers.jpeg["height"]
    x0, x1 = np.where(flip_x, width - x1, x0), np.where(flip_x, width - x0, x1)
    y0, y1 = np.where(flip_y, height - y1, y0), np.where(flip_y, height - y0, y1)
    return np.stack([x0, y0, x1, y1], axis=1).astype(np.int32)
