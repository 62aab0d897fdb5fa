"""Operator debayer: convert raw images of sensors with a Bayer pattern to RGB."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from ..base import Arg, Operator, Spec, Stage
from ..batch import Batch
from ..context import Context
from ..copies.strided import CUDA_TYPES
from ..copies.windows import image_layout, known_layout
from ..errors import SampleError, SpecError
from ..images.frames import as_frames, image_parts
from ..kernels import Kernels
from ..types import DALIDataType

_kernels: Any = Kernels(".debayer_cpu", __package__)

_THREADS = 256


class Debayer(Operator, name="debayer"):
    """Convert raw images of a Bayer pattern to RGB: missing colours are the mean of their neighbours, as in OpenCV's
    cvtColor; the outermost rows and columns repeat their inner neighbours.

    ``edgeaware_ocv``, ``vng_ocv`` and ``gray_ocv`` call OpenCV, on the CPU; it must be installed.
    """

    aliases: ClassVar[tuple[str, ...]] = ("experimental.debayer",)
    replayable = True
    layouts = ("HW", "HWC", "FHW", "FHWC")
    example = "{op: debayer, in: raw, blue_position: [0, 1], out: images}"

    blue_position: Annotated[
        tuple[int, ...],
        Arg("(row, column), 0 or 1, of blue in the 2x2 tile that begins in the second row and column, as OpenCV names "
            "patterns: [0, 0] BG, [0, 1] GB, [1, 0] GR, [1, 1] RG", ge=0, le=1, per_sample=True, required=True),
    ] = (0, 0)  # fmt: skip
    algorithm: Annotated[
        Literal["bilinear_ocv", "edgeaware_ocv", "vng_ocv", "gray_ocv", "default_npp"],
        Arg("method for missing colours; default_npp (DALI's on a GPU) is bilinear in dali-run"),
    ] = "bilinear_ocv"

    @property
    def _bilinear(self) -> bool:
        return self.algorithm in ("bilinear_ocv", "default_npp")

    def runs_in(self) -> tuple[Stage, ...]:
        return self.stages if self._bilinear else ("cpu",)

    def check(self) -> None:
        if "blue_position" not in self.per_sample and len(self.blue_position) != 2:
            raise SpecError(f"blue_position takes (row, column), got {list(self.blue_position)}")
        if not self._bilinear:
            try:
                import cv2  # noqa: F401
            except ImportError:
                raise SpecError(f"{self.algorithm} needs OpenCV: pip install opencv-python-headless") from None

    def infer(self, *specs: Spec) -> Spec:
        data = specs[0]
        if data.dtype not in (None, DALIDataType.UINT8, DALIDataType.UINT16):
            raise SpecError(f"takes uint8 and uint16, got {data}")
        if self.algorithm == "vng_ocv" and data.dtype is DALIDataType.UINT16:
            raise SpecError("vng_ocv takes uint8 only")
        layout = image_layout(data.layout, data.ndim, self.layouts)
        if not layout:
            return Spec(None, data.dtype, "")
        if layout not in self.layouts:
            raise SpecError(f"takes layouts {', '.join(self.layouts)}, got {data}")
        named = layout.removesuffix("C") + "C"
        if data.shape is None:
            return Spec(None, data.dtype, named)
        if layout.endswith("C") and data.shape[-1] not in (None, 1):
            raise SpecError(f"takes one channel, got {data}")
        return Spec((*data.shape[: len(named) - 1], self._channels), data.dtype, named)

    @property
    def _channels(self) -> int:
        return 1 if self.algorithm == "gray_ocv" else 3

    def cpu(self, ctx: Context, images: Batch) -> Batch:
        layout = known_layout(images, self.layouts)
        flat = layout.removesuffix("C")
        if layout.endswith("C"):
            wrong = images.shapes[:, -1] != 1
            for i in np.flatnonzero(wrong).tolist():
                ctx.reject(i, "bad_shape", f"takes one channel, got {images.shapes[i, -1]}")
            images = images.replace(shapes=np.where(wrong[:, None], 0, images.shapes).astype(np.int32)[:, :-1])
        images = images.replace(layout=flat)
        parts = image_parts(ctx, images, ["blue_position"], np.int64)
        if parts.sample is None and flat == "FHW":
            parts = as_frames(images, parts)
        blue = parts.arguments["blue_position"].reshape(len(parts), -1)
        if blue.shape[1] != 2:
            raise SampleError("bad_argument", f"blue_position takes (row, column), got {blue.shape[1]} values")
        bad = np.any((blue < 0) | (blue > 1), axis=1)
        for m in np.flatnonzero(bad).tolist():
            i = m if parts.sample is None else int(parts.sample[m])
            ctx.reject(i, "bad_argument", f"blue_position must be 0 or 1, got {blue[m].tolist()}")
        shapes = np.concatenate([images.shapes, np.full((len(images), 1), self._channels, np.int32)], axis=1)
        out = Batch.allocate(ctx.empty, shapes, images.dtype, flat + "C", images.samples)
        sizes = np.ascontiguousarray(np.where(bad[:, None], 0, parts.shapes))
        counts = parts.shapes.prod(axis=1) * self._channels
        to = out.offsets if parts.sample is None else counts.cumsum() - counts
        if not self._bilinear:
            _kernels.opencv(images.data, parts.offsets, sizes, blue, self.algorithm, out.data, to)
        elif ctx.stage == "cpu":
            base = np.ascontiguousarray(parts.offsets)
            widest = max(int(sizes[:, 1].max(initial=0)), _kernels.PIXELS + 2)
            lines = np.empty((3, widest), f"u{2 * out.data.itemsize}")
            _kernels.bilinear(images.data, base, sizes, np.ascontiguousarray(blue), out.data, to, lines)
        elif int(counts.max(initial=0)):
            tiles = -(-int(sizes.prod(axis=1).max()) // _THREADS)
            base, extent, where, place = ctx.device.upload(parts.offsets, sizes, np.ascontiguousarray(blue), to)
            ctx.device.launch(
                "debayer.cu", f"bilinear<{CUDA_TYPES[images.dtype]}>", tiles * len(parts), _THREADS, images.data, base,
                extent, np.int32(tiles), where, out.data, place,
            )  # fmt: skip
        return out

    gpu = cpu
