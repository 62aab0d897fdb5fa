"""Operator jpeg_compression_distortion: apply the losses of JPEG compression."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec
from ..batch import Batch
from ..codecs.jpeg.tables import ZIGZAG, quantisation
from ..context import Context
from ..copies.windows import image_layout, known_layout
from ..errors import SampleError, SpecError
from ..gpu.launch_recording import Recompute, fixed_and_changing
from ..images.frames import as_frames, image_parts
from ..kernels import Kernels
from ..types import DALIDataType

_kernels: Any = Kernels(".jpeg_cpu", __package__)


class JpegCompressionDistortion(Operator, name="jpeg_compression_distortion"):
    """Compress uint8 RGB images (or frames) as JPEG and decompress them: libjpeg's accurate DCT, chroma of half the
    size.

    The arithmetic is libjpeg's; no files are encoded, because entropy coding is lossless.
    """

    replayable = True
    layouts = ("HWC", "FHWC")
    example = "{op: jpeg_compression_distortion, in: images, quality: $quality, out: images}"

    quality: Annotated[int, Arg("JPEG quality, 1 (worst) to 100; other values are clipped", per_sample=True)] = 50

    def infer(self, *specs: Spec) -> Spec:
        data = specs[0]
        if data.dtype not in (None, DALIDataType.UINT8):
            raise SpecError(f"takes uint8 images, got {data}; cast them first")
        if data.shape is not None and data.shape[-1] not in (None, 3):
            raise SpecError(f"takes images of 3 channels, got {data}")
        return Spec(data.shape, DALIDataType.UINT8, image_layout(data.layout, data.ndim, self.layouts))

    def cpu(self, ctx: Context, images: Batch) -> Batch:
        if images.dtype != np.uint8:
            raise SampleError("bad_shape", f"takes uint8 images, got {images.dtype}; cast them first")
        images = images.replace(layout=known_layout(images, self.layouts))
        wrong = (images.shapes[:, -1] != 3) | (images.shapes[:, -3:-1] > 65500).any(axis=1)
        if wrong.any():
            for i in np.flatnonzero(wrong).tolist():
                ctx.reject(
                    i, "bad_shape", f"takes 3 channels and sides of up to 65500, got {images.shapes[i].tolist()}"
                )
            images = images.replace(shapes=np.where(wrong[:, None], 0, images.shapes).astype(np.int32))
        parts = image_parts(ctx, images, ["quality"], np.int64)
        if parts.sample is None and images.layout == "FHWC":
            parts = as_frames(images, parts)
        quality = _within(parts.arguments["quality"])
        out = Batch.allocate(ctx.empty, images.shapes, np.uint8, images.layout, images.samples)
        sizes = parts.shapes[:, :2]
        if ctx.stage == "cpu":
            _kernels.distort(
                images.data, parts.offsets, sizes.astype(np.int64), quality, _factors(), out.data, parts.places(out)
            )
            return out
        recompute = None if parts.sample is not None else lambda c: (_within(c.arg("quality", np.int64)),)
        return self._on_gpu(ctx, images, parts.offsets, parts.places(out), sizes, quality, out, recompute)

    gpu = cpu

    @staticmethod
    def _on_gpu(
        ctx: Context,
        images: Batch,
        base: Any,
        to: Any,
        sizes: Any,
        quality: Any,
        out: Batch,
        recompute: Recompute | None,
    ) -> Batch:
        units = -(-sizes // 16)  # units of 16 x 16 pixels
        count = units.prod(axis=1)
        if not count.any():
            return out
        planes = 384 * count  # bytes: luma, then both chroma planes, complete units
        starts = planes.cumsum() - planes
        between = ctx.device.empty(int(planes.sum()) + 16, np.uint8)  # words are read that begin within the planes
        (begin, place, extent, steps, scratch), (which,) = fixed_and_changing(
            ctx.device, (base, to, np.ascontiguousarray(sizes), _tables(), starts), recompute, quality
        )
        pairs, cells = -(-units[:, 1] // 2) * units[:, 0], -(-sizes[:, 1] // 4) * -(-sizes[:, 0] // 2)
        tiles = -(-int(pairs.max()) // _WARPS)
        ctx.device.launch(
            "jpeg_distortion.cu", "compress", tiles * len(sizes), 32 * _WARPS, images.data, begin, extent,
            np.int32(tiles), steps, which, between, scratch,
        )  # fmt: skip
        tiles = -(-int(cells.max()) // 256)
        ctx.device.launch(
            "jpeg_distortion.cu", "decompress", tiles * len(sizes), 256, between, scratch, extent, np.int32(tiles),
            out.data, place,
        )  # fmt: skip
        return out


def _within(quality: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.minimum(np.maximum(quality, 1), 100)


_WARPS = 4
"""Warps per block of threads; each warp computes two units of 16 x 16 pixels, as in cuda/jpeg_distortion.cu."""


def _steps() -> npt.NDArray[np.int64]:
    """Return the quantisation steps for each quality, [101, 2, 64]: luma, then chroma, row by row. All steps are 1 for
    quality 0."""
    steps = np.ones((101, 2, 64), np.int64)
    for q in range(1, 101):
        for k in range(2):
            steps[q, k, ZIGZAG] = quantisation(q)[k]
    return steps


@cache
def _factors() -> npt.NDArray[np.uint16]:
    """Return tables for `jpeg_simd_cpu.there_and_back` on two blocks, [101, 2, 8, 3, 16]: for each quality, for luma
    and chroma, the quantisation steps s, and two factors that divide numbers below 2^15 by 8 s. With 2^b < 8 s <= 2^(b
    + 1), these are 2^(16 + b) / 8 s rounded up, and 2^(16 - b)."""
    steps = _steps()
    bits = np.ceil(np.log2(8 * steps)).astype(np.int64) - 1
    found = np.stack([steps, -(-(1 << 16 + bits) // (8 * steps)), 1 << 16 - bits], axis=-1)
    lines = found.reshape(101, 2, 8, 8, 3).swapaxes(3, 4)
    return np.ascontiguousarray(np.concatenate([lines, lines], axis=-1), np.uint16)


@cache
def _tables() -> npt.NDArray[np.uint32]:
    """Return tables for the GPU kernel, [101, 2, 64, 2]: for each quality, for luma and chroma, the quantisation steps
    row by row, each with a factor that divides by eight times the step: the high 32 bits of the product are the
    quotient, for numbers below 2^20."""
    steps = _steps()
    return np.stack([steps, 2**32 // (8 * steps) + 1], axis=-1).astype(np.uint32)
