"""Our CUDA JPEG decoder as a lane of the image decoders: it takes the baseline and progressive JPEGs of a batch, all at
once.

The kernels check every image themselves. An image that fails a check is run again by the engine with ``attempt`` 1, on
the CPU, which decides whether the file is damaged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..batch import I32, I64, Batch
from ..context import Context
from ..gpu.lane import Lane
from ..types import DALIImageType
from .jpeg import cuda as jpeg_gpu
from .jpeg import header as jpeg_header
from .jpeg.boundaries import Boundaries
from .on_host import CUDA, Headers, Rules

Mask = npt.NDArray[np.bool_]

OUTPUT_TYPES = {
    DALIImageType.RGB: jpeg_gpu.RGB,
    DALIImageType.BGR: jpeg_gpu.BGR,
    DALIImageType.GRAY: jpeg_gpu.GRAY,
}
"""The output types that the kernels make. ANY_DATA would give images of one batch different numbers of channels; YCbCr
is BT.601's studio swing in DALI, not the full swing of JPEG files."""


_NOBODY = np.empty(0, np.int64)


class CudaDecoder:
    """The decoder of one lane."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._decoder = jpeg_gpu.Decoder(jpeg_gpu.LaneRuntime(lane))

    def release(self) -> None:
        """Give back the memory that is kept between batches."""
        self._decoder.workspace = None

    def run(self, ctx: Context, files: Batch, plan: jpeg_gpu.DecodePlan, output: jpeg_gpu.Output, out: Any) -> None:
        """Enqueue all kernels; what fails a check is run again by the engine."""
        lane = self._lane
        taken = plan.status == 0
        boundaries, index, found = ctx.facts(Boundaries), files.samples.index, None
        if boundaries is not None and plan.unknowns and not boundaries.full:
            found = list[Any]()
        status = self._decoder.decode(lane.address(files.data), plan, output, lane.address(out), found=found)
        self._decoder.workspace = None  # for what this lane does next, and for other lanes once this is done

        def wrong() -> I64:
            # counting is the cheapest way to learn that all is well, as it nearly always is
            found_wrong = np.flatnonzero(taken & (status != 0)) if np.count_nonzero(status) else _NOBODY
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
    """Plan the images ``which`` of ``files``, which begin at ``places`` of an array on the device; the others are left
    out. ``stage`` gives the memory that travels. ``limited``: all blocks of an image are wanted, or, where false, those
    that the caller will name by `jpeg_gpu.limit`."""
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
    """The lane's decoder, made at its first use."""
    found = lane.cache.get("cuda jpeg")
    if found is None:
        found = lane.cache["cuda jpeg"] = CudaDecoder(lane)
    decoder: CudaDecoder = found
    return decoder


def makes(rules: Rules) -> bool:
    """Whether the kernels make what ``rules`` want."""
    return rules.output_type in OUTPUT_TYPES and rules.dtype == np.uint8


def makes_four(rules: Rules) -> bool:
    """Whether the kernels make what ``rules`` want of CMYK and YCCK, too."""
    return rules.output_type is not DALIImageType.GRAY


def takes(headers: Headers, rules: Rules) -> Mask:
    """The images whose headers say that the kernels can decode them as ``rules`` want."""
    if not makes(rules):
        return np.zeros(len(headers.good), np.bool_)
    status = headers.jpeg["status"]
    taken: Mask = headers.good & ((status == jpeg_header.OK) | (status == jpeg_header.MANY_SCANS))
    if makes_four(rules):
        taken |= headers.good & (status == jpeg_header.FOUR)
    taken &= ~headers.other
    return taken


@dataclass(slots=True)
class PixelPlan:
    """The plan for decoding some images of a batch to HWC, uint8."""

    decode: jpeg_gpu.DecodePlan
    output: jpeg_gpu.Output
    taken: Mask
    """[N] The images that it decodes."""

    @property
    def nbytes(self) -> int:
        """Bytes of host memory."""
        return self.decode.sheet.nbytes


def plan_pixels(
    ctx: Context, encoded: Batch, headers: Headers, rules: Rules, which: Mask, corners: I64 | None, shapes: I32,
    offsets: I64, places: I64, stage: Callable[[int], npt.NDArray[np.uint8]],
) -> PixelPlan | None:  # fmt: skip
    """Plan the images ``which`` of ``encoded``, whose files begin at ``places`` of an array on the device; None where
    there are none.

    The output has these ``shapes`` (HWC) at ``offsets``. ``corners`` [N, 2] (y, x): where each window begins in the
    image as it is shown. ``stage`` gives the memory that travels.
    """
    if not which.any():
        return None
    shown = stored = None
    if corners is not None:
        ends = corners + shapes[:, :2]
        shown = np.concatenate([corners[:, ::-1], ends[:, ::-1]], axis=1).astype(np.int32)
        stored = _stored(shown, headers)
    planned = plan(ctx, headers, encoded, which, places, stage, limited=stored is None)
    if stored is not None:
        jpeg_gpu.limit(planned, stored)
    output = jpeg_gpu.pixel_output(planned, OUTPUT_TYPES[rules.output_type], shown, offsets=offsets)
    return PixelPlan(planned, output, planned.status == 0)


def run_pixels(ctx: Context, files: Batch, planned: PixelPlan, out: Batch) -> None:
    """Enqueue what was planned, into ``out``; ``files`` are on the device."""
    if planned.taken.any():
        cuda_decoder(cast("Lane", ctx.device)).run(ctx, files, planned.decode, planned.output, out.data)
        ctx.device.keep(planned)  # what travels is on its way


def _stored(shown: I32, headers: Headers) -> I32:
    """Windows (x0, y0, x1, y1) of shown pictures, in the coordinates in which they are stored."""
    flip_x, flip_y, swap = jpeg_gpu.oriented(headers.orientation)
    x0, y0, x1, y1 = np.where(swap[:, None], shown[:, [1, 0, 3, 2]], shown).T
    width, height = headers.jpeg["width"], headers.jpeg["height"]
    x0, x1 = np.where(flip_x, width - x1, x0), np.where(flip_x, width - x0, x1)
    y0, y1 = np.where(flip_y, height - y1, y0), np.where(flip_y, height - y0, y1)
    return np.stack([x0, y0, x1, y1], axis=1).astype(np.int32)
