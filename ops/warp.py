"""rotate, warp_affine: images sampled along an affine map.

Coordinates are computed in float64 from float32 matrices: each pixel for itself, where DALI's CPU backend adds up steps
in float32 along a row, and so takes the other of two neighbours at some ties.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from .base import Arg, Operator, Spec
from .batch import I64, Batch
from .context import Context
from .convert import saturate
from .crop import known_layout
from .errors import SpecError
from .strided import CUDA_TYPES, affordable
from .types import DALIDataType, DALIInterpType, to_numpy
from .window import image_layout, refused, round_half_away

F64 = npt.NDArray[np.float64]


class Warping(Operator, abstract=True):
    """What rotate and warp_affine share."""

    layouts = ("HWC", "FHWC")
    bound = "1 level; floats within 1e-4 of the range of the neighbours"

    size: Annotated[tuple[float, ...], Arg("(height, width) of the output", ge=0, per_sample=True)] = ()
    fill_value: Annotated[
        float | None, Arg("value outside the input, of its type; by default its border pixels are repeated")
    ] = None
    interp_type: Annotated[DALIInterpType, Arg("NN or LINEAR")] = DALIInterpType.INTERP_LINEAR
    dtype: Annotated[DALIDataType | None, Arg("type of the output; by default that of the input")] = None
    output_dtype: Annotated[DALIDataType | None, Arg("type of the output", deprecated="dtype")] = None

    def check(self) -> None:
        if self.interp_type not in (DALIInterpType.INTERP_NN, DALIInterpType.INTERP_LINEAR):
            raise SpecError(
                f"interp_type must be NN or LINEAR here, got {self.interp_type.name.removeprefix('INTERP_')}"
            )
        if self.size and len(self.size) != 2:
            raise SpecError(f"size takes (height, width), got {len(self.size)} values; volumes are not supported")

    def infer(self, *specs: Spec) -> Spec:
        data = specs[0]
        dtype = self.dtype if self.dtype is not None else data.dtype
        layout = image_layout(data.layout, data.ndim)
        if layout and layout not in self.layouts:
            raise SpecError(f"takes layouts {', '.join(self.layouts)}, got {layout}; volumes are not supported")
        if data.shape is None:
            return Spec(None, dtype, layout)
        extents: tuple[int | None, ...] = (None, None)
        if self.size and "size" not in self.per_sample:
            extents = tuple(round_half_away(np.array(self.size)).tolist())
        elif self.keeps_size() and "size" not in self.per_sample:
            extents = data.shape[-3:-1]
        return Spec((*data.shape[:-3], *extents, data.shape[-1]), dtype, layout)

    def keeps_size(self) -> bool:
        """The output has the size of the input where no size is given."""
        return True

    def given_sizes(self, ctx: Context, images: Batch) -> I64:
        """[N, 2] height and width of the outputs: ``size``, else those of the inputs."""
        if not self.given("size"):
            sizes: I64 = images.shapes[:, -3:-1].astype(np.int64)
            return sizes
        size = round_half_away(ctx.arg("size"))
        if size.shape[1] != 2:
            raise SpecError(f"size takes (height, width), got {size.shape[1]} values")
        for i in np.flatnonzero(np.any(size < 0, axis=1)).tolist():
            ctx.reject(i, "bad_argument", f"size must not be negative, got {size[i].tolist()}")
        return np.maximum(size, 0)

    def warped(self, ctx: Context, images: Batch, sizes: I64, matrices: F64) -> Batch:
        """``images`` sampled at matrices [N, 2, 3] times the output's pixel centres (x, y, 1)."""
        shape = images.shapes.astype(np.int64)
        shape[:, -3:-1] = sizes
        wrong = np.any(~np.isfinite(matrices), axis=(1, 2))
        for i in np.flatnonzero(wrong).tolist():
            ctx.reject(i, "bad_argument", "the transform is not finite, or cannot be inverted")
        shape = affordable(ctx, refused(shape, wrong | (images.sizes == 0)))
        maps = np.where(np.reshape(wrong, (-1, 1, 1)), 0, matrices).astype(np.float64, order="C")
        dtype = images.dtype if self.dtype is None else to_numpy(self.dtype)
        frames = images.shapes[:, :-3].prod(axis=1, dtype=np.int64)
        geometry = np.stack(
            [frames, images.shapes[:, -3], images.shapes[:, -2], images.shapes[:, -1], shape[:, -3], shape[:, -2]],
            axis=1,
        ).astype(np.int64)
        geometry[shape.prod(axis=1) == 0, 0] = 0
        linear = self.interp_type is DALIInterpType.INTERP_LINEAR
        # The fill is a value of the input's type, as in DALI: 300 is 255 among uint8.
        fill = np.float32(saturate(np.array([self.fill_value or 0.0]), images.dtype)[0])
        run = self._cpu if ctx.stage == "cpu" else self._gpu
        return run(ctx, images, shape, np.dtype(dtype), geometry, maps, linear, fill)

    def _cpu(
        self, ctx: Context, images: Batch, shape: I64, dtype: np.dtype[Any], geometry: I64, matrices: Any, linear: bool,
        fill: np.float32,
    ) -> Batch:  # fmt: skip
        from .warp_cpu import warp

        source, base = images.data, images.offsets
        if source.dtype not in (np.uint8, np.float32):
            lo, hi = (int(base.min()), int((base + images.sizes).max())) if len(images) else (0, 0)
            source, base = saturate(source[lo:hi], np.float32), base - lo
        own = dtype if dtype in (np.uint8, np.float32) else np.dtype(np.float32)
        out = Batch.allocate(np.empty, shape.astype(np.int32), own, images.layout, images.samples)
        filled = self.fill_value is not None
        base = np.ascontiguousarray(base)
        warp(source, base, geometry, matrices, linear, filled, fill, out.data, out.offsets)
        return out if own == dtype else out.replace(data=saturate(out.data, dtype))

    def _gpu(
        self, ctx: Context, images: Batch, shape: I64, dtype: np.dtype[Any], geometry: I64, matrices: Any, linear: bool,
        fill: np.float32,
    ) -> Batch:  # fmt: skip
        out = Batch.allocate(ctx.empty, shape.astype(np.int32), dtype, images.layout, images.samples)
        if out.data.size == 0:
            return out
        base, sizes, maps, to = ctx.device.upload(images.offsets, geometry, matrices, out.offsets)
        pixels = int((geometry[:, 0] * geometry[:, 4] * geometry[:, 5]).max())
        ctx.device.launch(
            "warp.cu", f"warp<{CUDA_TYPES[images.dtype]}, {CUDA_TYPES[dtype]}>", (-(-pixels // 256), len(images)), 256,
            images.data, base, sizes, maps, np.int32(linear), np.int32(self.fill_value is not None), fill, out.data, to,
        )  # fmt: skip
        return out


class Rotate(Warping, name="rotate"):
    """Rotate images counter-clockwise around their centre; the canvas grows to hold them.

    Its size is that of DALI: ceil(|cos| w + |sin| h - .01) and the same for the height, one more where its parity is
    not that of the side it comes from.
    """

    example = "{op: rotate, in: images, angle: $angle, fill_value: 0, out: images}"

    angle: Annotated[float, Arg("degrees, counter-clockwise", per_sample=True, required=True)] = 0.0
    keep_size: Annotated[bool, Arg("keep the canvas of the input")] = False
    axis: Annotated[
        tuple[float, ...] | None, Arg("axis in a volume", ignored="images have only one to turn around")
    ] = None

    def keeps_size(self) -> bool:
        return self.keep_size

    def cpu(self, ctx: Context, images: Batch) -> Batch:
        images = images.replace(layout=known_layout(images, self.layouts))
        # As DALI, radians in float32: 45 degrees counts as |sin| > |cos|.
        radians = (ctx.arg("angle") * np.float32(np.pi / 180)).astype(np.float64)
        height, width = images.shapes[:, -3].astype(np.int64), images.shapes[:, -2].astype(np.int64)
        cos, sin = np.cos(radians), np.sin(radians)
        sizes = self.given_sizes(ctx, images)
        if not self.given("size") and not self.keep_size:
            sizes = canvas(height, width, np.abs(cos), np.abs(sin))
        x, y = sizes[:, 1] / 2, sizes[:, 0] / 2
        rows = [[cos, -sin, width / 2 - cos * x + sin * y], [sin, cos, height / 2 - sin * x - cos * y]]
        return self.warped(ctx, images, sizes, np.array(rows).transpose(2, 0, 1))

    gpu = cpu


def canvas(height: I64, width: I64, cos: F64, sin: F64) -> I64:
    """[N, 2] height and width of the canvas that holds rotated images, by DALI's rule."""
    turned = sin > cos
    with np.errstate(invalid="ignore"):
        sides = np.stack([cos * height + sin * width, cos * width + sin * height], axis=1)
    out = np.ceil(np.nan_to_num(sides, posinf=0) - 0.01).astype(np.int64)
    parity = np.where(turned[:, None], np.stack([width, height], axis=1), np.stack([height, width], axis=1)) % 2
    grown: I64 = out + (out % 2 != parity)
    return grown


class WarpAffine(Warping, name="warp_affine"):
    """Sample images at an affine map of the output's coordinates; [0, 0] is the corner of the first pixel.

    ``matrix`` (M11, M12, M13, M21, M22, M23), or the second input, maps the output to the input:
    dst(x, y) = src(M11 x + M12 y + M13, M21 x + M22 y + M23); with ``inverse_map: false`` the input to the output.
    """

    inputs = (1, 2)
    example = "{op: warp_affine, in: images, matrix: [0.5, 0, 0, 0, 0.5, 0], out: images}"

    matrix: Annotated[tuple[float, ...], Arg("two rows of three, or a second input", per_sample=True)] = ()
    inverse_map: Annotated[bool, Arg("matrix maps output to input")] = True

    def check(self) -> None:
        Warping.check(self)
        if self.matrix and len(self.matrix) != 6:
            raise SpecError(f"matrix takes 6 values, got {len(self.matrix)}; volumes are not supported")

    def infer(self, *specs: Spec) -> Spec:
        if (len(specs) == 2) == self.given("matrix"):
            raise SpecError("needs a matrix: the argument, or a second input, not both")
        return Warping.infer(self, *specs)

    def cpu(self, ctx: Context, images: Batch, *inputs: Batch) -> Batch:
        images = images.replace(layout=known_layout(images, self.layouts))
        if inputs:
            rows = inputs[0].dense()
            values = rows if inputs[0].on_host else rows.get()  # matrices are checked on the host
        else:
            values = ctx.arg("matrix")
        values = values.reshape(len(images), -1)
        if values.shape[1] not in (0, 6):
            raise SpecError(f"a matrix holds 2 x 3 values, got {values.shape[1]}")
        matrices = values.reshape(len(images), 2, 3).astype(np.float64)
        if not self.inverse_map:
            matrices = inverted(matrices)
        return self.warped(ctx, images, self.given_sizes(ctx, images), matrices)

    gpu = cpu


def inverted(matrices: F64) -> F64:
    """The inverse maps of [N, 2, 3]; NaN where there is none."""
    (a, b, c), (d, e, f) = matrices.transpose(1, 2, 0)
    det = a * e - b * d
    with np.errstate(divide="ignore", invalid="ignore"):
        rows = np.array([[e, -b, b * f - c * e], [-d, a, c * d - a * f]]) / np.where(det == 0, np.nan, det)
    return rows.transpose(2, 0, 1)
