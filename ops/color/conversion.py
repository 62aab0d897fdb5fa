"""Operator color_space_conversion: convert images between RGB, BGR, YCbCr and gray."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec, Stage
from ..batch import Batch
from ..context import Context
from ..copies.strided import mirror, run, whole
from ..copies.windows import image_layout, known_layout
from ..errors import SampleError, SpecError
from ..types import DALIDataType, DALIImageType, Library

F32 = npt.NDArray[np.float32]
RGB, BGR, GRAY, YCBCR = DALIImageType.RGB, DALIImageType.BGR, DALIImageType.GRAY, DALIImageType.YCbCr
COLOURS = (RGB, BGR, GRAY, YCBCR)

# ITU-R BT.601, studio range (Y 16 ... 235, Cb and Cr 16 ... 240), for values of 0 ... 255.
_TO_YCBCR = ((0.25678824, 0.50412941, 0.09790588), (-0.14822290, -0.29099279, 0.43921569),
             (0.43921569, -0.36778831, -0.07142737))  # fmt: skip
_LUMA = ((0.299, 0.587, 0.114),)
_SCALE = 255 / 219
_TO_RGB = ((_SCALE, 0.0, 1.59602678), (_SCALE, -0.39176229, -0.81296765), (_SCALE, 2.01723214, 0.0))


class ColorSpaceConversion(Operator, name="color_space_conversion"):
    """Convert uint8 images between colour spaces. YCbCr is ITU-R BT.601's studio range (Y of 16 to 235), not JPEG's
    full range.

    GRAY to RGB repeats the value; RGB to GRAY is .299 R + .587 G + .114 B, computed in float32 and rounded half away
    from zero. With ``parity``, GRAY equals that library's exactly (torchvision's with the exception of 21 of all
    colours), and YCbCr is JFIF's full range as in Pillow and OpenCV (in the order Y, Cb, Cr).
    """

    replayable = True
    layouts = ("FDHWC", "FHWC", "DHWC", "HWC")
    bound = "1 level, if the result lies next to a tie"
    example = "{op: color_space_conversion, in: images, image_type: RGB, output_type: YCbCr, out: images}"

    image_type: Annotated[DALIImageType, Arg("colour space of the input: RGB, BGR, GRAY or YCbCr")]
    output_type: Annotated[DALIImageType, Arg("colour space of the output: RGB, BGR, GRAY or YCbCr")]

    parity: Annotated[
        Library, Arg("library whose formulas are used: dali, or on the CPU torchvision, opencv or pillow")
    ] = "dali"

    def runs_in(self) -> tuple[Stage, ...]:
        return self.stages if self.parity == "dali" else ("cpu",)

    def check(self) -> None:
        if self.parity == "torchvision" and YCBCR in (self.image_type, self.output_type):
            raise SpecError("torchvision has no YCbCr; give `parity:` as dali, opencv or pillow to this step")
        for name in ("image_type", "output_type"):
            if getattr(self, name) not in COLOURS:
                raise SpecError(f"{name} must be one of {', '.join(c.name for c in COLOURS)}")

    @property
    def _channels(self) -> tuple[int, int]:
        return (1 if self.image_type is GRAY else 3), (1 if self.output_type is GRAY else 3)

    def infer(self, *specs: Spec) -> Spec:
        data = specs[0]
        if data.dtype not in (None, DALIDataType.UINT8):
            raise SpecError(f"takes uint8 images, got {data}; cast them first")
        layout = image_layout(data.layout, data.ndim, self.layouts)
        if data.shape is None:
            return Spec(None, DALIDataType.UINT8, layout)
        before, after = self._channels
        if data.shape[-1] not in (None, before):
            raise SpecError(f"{self.image_type.name} images have {before} channels, got {data}")
        return Spec((*data.shape[:-1], after), DALIDataType.UINT8, layout)

    def cpu(self, ctx: Context, images: Batch) -> Batch:
        if images.dtype != np.uint8:
            raise SampleError("bad_shape", f"takes uint8 images, got {images.dtype}; cast them first")
        images = images.replace(layout=known_layout(images, self.layouts))
        images = self._with_channels(ctx, images)
        if self.image_type is self.output_type:
            return images
        plain = {self.image_type, self.output_type}
        if plain == {RGB, BGR}:
            return run(ctx, mirror(whole(images), images.ndim - 1, np.ones(len(images), np.bool_)), images)
        if self.image_type is GRAY and self.output_type is not YCBCR:
            plan = whole(images)
            three, stride = plan.shape.copy(), plan.stride.copy()
            three[:, -1] *= 3
            stride[:, -1] = 0
            return run(ctx, replace(plan, shape=three, extent=three, stride=stride), images)
        return self._mixed(ctx, images)

    gpu = cpu

    def _with_channels(self, ctx: Context, images: Batch) -> Batch:
        before = self._channels[0]
        wrong = images.shapes[:, -1] != before
        for i in np.flatnonzero(wrong).tolist():
            ctx.reject(
                i, "bad_shape", f"has {images.shapes[i, -1]} channels, {self.image_type.name} images have {before}"
            )
        return (
            images.replace(shapes=np.where(wrong[:, None], 0, images.shapes).astype(np.int32))
            if wrong.any()
            else images
        )

    def _mixed(self, ctx: Context, images: Batch) -> Batch:
        """Convert images with a matrix, by DALI's rule: every output channel is a weighted sum of the input's
        channels."""
        matrix, offset = self._matrix()
        after = self._channels[1]
        shapes = images.shapes.copy()
        shapes[:, -1] = np.where(shapes[:, -1] > 0, after, 0)
        out = Batch.allocate(ctx.empty, shapes, np.uint8, images.layout, images.samples)
        pixels = np.prod(images.shapes[:, :-1], axis=1, dtype=np.int64)
        if self.parity != "dali":
            self._convert(images, pixels, out)
        elif ctx.stage == "cpu":
            from .conversion_cpu import mix

            mix(images.data, images.offsets, pixels, self._channels[0], matrix, offset, out.data, out.offsets)
        elif len(images):
            starts, counts, to, factors, constants = ctx.device.upload(
                images.offsets, pixels, out.offsets, matrix, offset
            )
            ctx.device.launch(
                "color.cu", "mix", (-(-int(pixels.max()) // 256), len(images)), 256, images.data, starts, counts,
                np.int32(self._channels[0]), factors, constants, np.int32(after), out.data, to,
            )  # fmt: skip
        return out

    def _convert(self, images: Batch, pixels: npt.NDArray[np.int64], out: Batch) -> None:
        """Convert images into ``out`` with the formulas of the library in ``parity``, on the CPU."""
        from . import conversion_cpu as c

        pillow = self.parity == "pillow"
        if self.output_type is YCBCR:
            rule = c.NEUTRAL if self.image_type is GRAY else c.YCC_PILLOW if pillow else c.YCC_OPENCV
        elif self.image_type is YCBCR:
            rule = c.FIRST if self.output_type is GRAY else c.RGB_PILLOW if pillow else c.RGB_OPENCV
        else:
            rule = {"pillow": c.GRAY_PILLOW, "opencv": c.GRAY_OPENCV}.get(self.parity, c.GRAY_TORCHVISION)
        before, after = self._channels
        turned = self.image_type is BGR, self.output_type is BGR
        c.convert(images.data, images.offsets, pixels, before, *turned, rule, after, out.data, out.offsets)

    def _matrix(self) -> tuple[F32, F32]:
        """Return the factors [outputs, 3] and constants [outputs] of the conversion. Columns of factors are in the
        order of the input's channels."""
        source, target = self.image_type, self.output_type
        rows: Any
        offset: tuple[float, ...]
        if source is GRAY:  # to YCbCr
            rows, offset = ((1 / _SCALE, 0, 0), (0, 0, 0), (0, 0, 0)), (16.0, 128.0, 128.0)
        elif source is YCBCR:
            rows = _TO_RGB if target is not GRAY else ((_SCALE, 0, 0),)
            offset = tuple(-16 * r[0] - 128 * (r[1] + r[2]) for r in rows)
        else:
            rows, offset = (_LUMA, (0.0,)) if target is GRAY else (_TO_YCBCR, (16.0, 128.0, 128.0))
        matrix, constant = np.array(rows, np.float32), np.array(offset, np.float32)
        if source is BGR:
            matrix = matrix[:, ::-1]
        if target is BGR:
            matrix, constant = matrix[::-1], constant[::-1]
        return np.ascontiguousarray(matrix), np.ascontiguousarray(constant)
