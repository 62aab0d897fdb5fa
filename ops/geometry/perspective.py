"""Operators experimental.warp_perspective and experimental.remap: sample images along a perspective map, or at
coordinates from two maps."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec, Stage
from ..batch import I64, Batch
from ..context import Context
from ..copies.strided import Border, affordable
from ..copies.windows import image_layout, known_layout, round_half_away
from ..errors import SampleError, SpecError
from ..gpu.launch_recording import not_replayable
from ..libraries import presets
from ..sequences.unfold import by_frame, of_frame, of_sequence
from ..types import DALIDataType, DALIInterpType
from .sampling import FILTERS, Filter, Kind, PixelSources, sampled

F64 = npt.NDArray[np.float64]
Origin = Literal["corner", "center"]
_BORDERS = {"constant": Border.FILL, "replicate": Border.EDGE, "reflect": Border.REFLECT_1001,
            "reflect_101": Border.REFLECT_101, "wrap": Border.WRAP}  # fmt: skip
_HALF = np.array([[1, 0, -0.5], [0, 1, -0.5], [0, 0, 1]])
"""Matrix that converts coordinates whose origin is a pixel's corner to coordinates whose origin is its centre."""


def checked_filter(name: str, interp: DALIInterpType) -> None:
    """Raise SpecError unless the filter ``interp`` in argument ``name`` is supported here. Only resizing supports
    filters such as Lanczos."""
    if interp not in FILTERS:
        raise SpecError(f"{name} must be NN, LINEAR or CUBIC here, got {interp.name.removeprefix('INTERP_')}")


class WarpPerspective(Operator, name="experimental.warp_perspective"):
    """Sample images at a perspective map of the output's coordinates.

    ``matrix`` (three rows of three), or the second input, maps (x, y, 1) of the output to the input, up to a factor.
    With ``inverse_map: false`` it maps the input to the output. [0, 0] is the corner of the first pixel, or its centre,
    as in OpenCV; filters and borders are also OpenCV's. Images may have any number of channels and any type.
    """

    aliases = ("warp_perspective",)
    replayable = True
    layouts = ("HWC", "HW", "FHWC", "CHW", "FCHW")
    inputs = (1, 2)
    bound = "1 level; floats within 1e-4 of the range of the neighbours"
    example = "{op: experimental.warp_perspective, in: images, matrix: $matrix, size: [224, 224], out: images}"

    matrix: Annotated[
        tuple[float, ...], Arg("matrix as three rows of three; or use a second input", per_sample=True, rows=True)
    ] = ()
    inverse_map: Annotated[bool, Arg("matrix maps the output to the input; else the input to the output")] = True
    size: Annotated[
        tuple[float, ...],
        Arg("size of the output: (height, width); by default that of the input", ge=0, per_sample=True),
    ] = ()
    border_mode: Annotated[
        Literal["constant", "replicate", "reflect", "reflect_101", "wrap"], Arg("values outside the input")
    ] = "constant"
    fill_value: Annotated[
        tuple[float, ...], Arg("value of border_mode constant: one number, or one per channel; 0 by default")
    ] = ()
    interp_type: Annotated[DALIInterpType, Arg("filter: NN, LINEAR or CUBIC")] = DALIInterpType.INTERP_LINEAR
    pixel_origin: Annotated[Origin, Arg("point of the first pixel at coordinates [0, 0]")] = "corner"
    parity: Annotated[
        Literal["dali", "torchvision", "pillow", "opencv"],
        Arg("library whose results are reproduced, for uint8 images: docs/parity.md#single-operators"),
    ] = "dali"

    def runs_in(self) -> tuple[Stage, ...]:
        return self.stages if self.parity == "dali" else ("cpu",)

    def check(self) -> None:
        if self.parity != "dali":
            presets.check(self, self.parity, ("size",) if self.parity == "torchvision" else ())
            if self.border_mode not in ("constant", "replicate")[: 2 if self.parity == "opencv" else 1]:
                raise SpecError(f"border_mode: {self.border_mode} goes with parity: dali, give it to this step")
            if self.parity == "torchvision" and self.interp_type is DALIInterpType.INTERP_CUBIC:
                raise SpecError("torchvision's tensors are warped with NN or LINEAR")
            if len(self.fill_value) > presets.FILLS:
                raise SpecError(f"parity: {self.parity} takes up to {presets.FILLS} fill values")
        checked_filter("interp_type", self.interp_type)
        if self.matrix and len(self.matrix) != 9:
            raise SpecError(f"matrix takes 9 values, three rows of three, got {len(self.matrix)}")
        if self.size and len(self.size) != 2:
            raise SpecError(f"size takes (height, width), got {len(self.size)} values")

    def infer(self, *specs: Spec) -> Spec:
        if (len(specs) == 2) == self.is_set("matrix"):
            raise SpecError("needs a matrix: the argument, or a second input, not both")
        data = specs[0]
        layout = image_layout(data.layout, data.ndim, self.layouts)
        if layout and layout not in self.layouts:
            raise SpecError(f"takes layouts {', '.join(self.layouts)}, got {layout}")
        if self.parity != "dali":
            presets.check_input(self.parity, Spec(data.shape, data.dtype, layout))
        if data.shape is None or not layout:
            return Spec(None, data.dtype, layout)
        channels = data.shape[layout.index("C")] if "C" in layout else 1
        if len(self.fill_value) > 1 and channels not in (None, len(self.fill_value)):
            raise SpecError(f"fill_value needs 1 or {channels} values, got {len(self.fill_value)}")
        shape, at = list(data.shape), layout.index("H")
        if "size" in self.per_sample:
            shape[at : at + 2] = [None, None]
        elif self.size:
            shape[at : at + 2] = np.maximum(round_half_away(np.array(self.size)), 1).tolist()
        return Spec(tuple(shape), data.dtype, layout)

    @by_frame()
    def cpu(self, ctx: Context, images: Batch, *inputs: Batch) -> Batch:
        """Sample the images of the batch at the positions that their perspective maps give, and return the results."""
        images = images.replace(layout=known_layout(images, self.layouts))
        if inputs:
            not_replayable(ctx.device)
            rows = inputs[0].dense()
            values = rows if inputs[0].on_host else rows.get()  # matrices are checked on the host
        else:
            values = ctx.arg("matrix", np.float32 if self.parity == "dali" else np.float64)
        values = np.asarray(values, np.float64).reshape(len(images), -1)
        if values.shape[1] != 9:
            raise SampleError("bad_argument", f"a matrix holds 3 x 3 values, got {values.shape[1]}")
        matrices = values.reshape(-1, 3, 3)
        if not self.inverse_map:
            matrices = inverted(matrices)
        if self.parity != "dali":
            return self._preset(ctx, images, matrices)
        if self.pixel_origin == "corner":
            matrices = _HALF @ matrices @ np.linalg.inv(_HALF)
        wrong: npt.NDArray[np.bool_] = np.any(~np.isfinite(matrices), axis=(1, 2))
        for i in np.flatnonzero(wrong).tolist():
            ctx.reject(i, "bad_argument", "the transform is not finite, or cannot be inverted")
        params = np.where(wrong[:, None], 0, matrices.reshape(-1, 9))
        how = FILTERS[self.interp_type]
        how = Filter.NEAREST_EVEN if how is Filter.NEAREST else how
        fill, refused = self._fill(ctx, images)
        return sampled(ctx, images, self._sizes(ctx, images), PixelSources(Kind.PERSPECTIVE, params), how,
                       _BORDERS[self.border_mode], fill, wrong | refused)  # fmt: skip

    gpu = cpu

    def _preset(self, ctx: Context, images: Batch, matrices: F64) -> Batch:
        """Return the images as the library ``parity`` warps them. ``matrices`` use coordinates from pixel corners."""
        if self.pixel_origin == "center":
            matrices = np.linalg.inv(_HALF) @ matrices @ _HALF
        wrong = ~np.isfinite(matrices).all(axis=(1, 2)) | (matrices[:, 2, 2] == 0)
        for i in np.flatnonzero(wrong).tolist():
            ctx.reject(
                i, "bad_argument", "the transform is not finite, cannot be inverted, or has 0 as its last number"
            )
        matrices[wrong] = np.eye(3)
        values, refused = self._fill(ctx, images)
        matrices[refused] = np.eye(3)
        fills = np.resize(values[0], presets.FILLS) if values.shape[1] == 1 else np.zeros(presets.FILLS)
        fills[: values.shape[1]] = values[0]
        n, filled = len(images), bool(self.fill_value) or self.parity != "torchvision"
        sizes = affordable(ctx, np.column_stack([self._sizes(ctx, images), images.shapes[:, -1]]))[:, :2]
        filled = filled and self.border_mode == "constant"
        rows = [np.full((n, 1), presets.FILTERS[self.interp_type]), sizes, np.full((n, 1), filled),
                np.tile(fills, (n, 1)), matrices.reshape(-1, 9)]  # fmt: skip
        return presets.run(ctx, images, self.parity, [("perspective", np.concatenate(rows, axis=1).astype(np.float64))])

    def _sizes(self, ctx: Context, images: Batch) -> I64:
        at = images.layout.index("H")
        if not self.is_set("size"):
            return images.shapes[:, at : at + 2].astype(np.int64)
        size = ctx.arg("size")
        if size.shape[1] != 2:
            raise SampleError("bad_argument", f"size takes (height, width), got {size.shape[1]} values")
        wrong: npt.NDArray[np.bool_] = np.any(~(size >= 0), axis=1)
        for i in np.flatnonzero(wrong).tolist():
            ctx.reject(i, "bad_argument", f"size must not be negative, got {size[i].tolist()}")
        return np.where(wrong[:, None], 0, np.maximum(round_half_away(size), 1))

    def _fill(self, ctx: Context, images: Batch) -> tuple[F64, npt.NDArray[np.bool_]]:
        """Return the fill values for pixels outside of the images, [1, K or 1], and a mask of the samples that do not
        have K channels."""
        values = np.array([self.fill_value or (0.0,)])
        at = images.layout.find("C")
        channels = images.shapes[:, at] if at >= 0 else np.ones(len(images), np.int32)
        odd = (channels != values.shape[1]) & (values.shape[1] > 1)
        for i in np.flatnonzero(odd).tolist():
            ctx.reject(i, "bad_argument", f"fill_value has {values.shape[1]} values for {channels[i]} channels; give "
                       "one value, or one for each channel")  # fmt: skip
        if at >= 0 and images.layout[-1] != "C" and values.shape[1] > 1:
            raise SampleError("bad_argument", f"fill_value takes one value for images of the layout {images.layout}")
        return values, odd


def inverted(matrices: F64) -> F64:
    """Return the inverses of the matrices [N, d, d]; NaN for singular ones."""
    possible = np.isfinite(matrices).all(axis=(1, 2)) & (np.linalg.det(np.nan_to_num(matrices)) != 0)
    found: F64 = np.linalg.inv(np.where(possible[:, None, None], matrices, np.eye(matrices.shape[1])))
    found[~possible] = np.nan
    return found


class Remap(Operator, name="experimental.remap"):
    """Take each output pixel from the coordinates in two maps: output(x, y) = input(mapx(x, y), mapy(x, y)), or 0
    outside.

    The maps have the size of the output. Sequences take one map for all frames, or one per frame. [0, 0] is the corner
    of the first pixel, or its centre, as in OpenCV. Any number of channels and any type are supported on both devices
    (DALI: 1 or 3 channels, on a GPU).
    """

    aliases = ("remap",)
    layouts = ("HWC", "FHWC")
    inputs = (3, 3)
    bound = "1 level; floats within 1e-4 of the range of the neighbours"
    example = "{op: experimental.remap, in: [images, mapx, mapy], pixel_origin: center, out: images}"

    interp: Annotated[DALIInterpType, Arg("filter: NN, LINEAR or CUBIC")] = DALIInterpType.INTERP_LINEAR
    pixel_origin: Annotated[Origin, Arg("point of the first pixel at coordinates [0, 0]")] = "corner"

    def check(self) -> None:
        checked_filter("interp", self.interp)

    def infer(self, *specs: Spec) -> Spec:
        given = [of_frame(s) if s.layout[:1] == "F" else s for s in specs]
        frames = [s.shape[0] for s in specs if s.layout[:1] == "F" and s.shape is not None]
        image, maps = given[0], given[1:]
        if image.layout not in ("", "HWC") or image.ndim not in (None, 3):
            raise SpecError(f"takes layouts {', '.join(self.layouts)}, got {specs[0]}")
        size: tuple[int | None, ...] = (None, None)
        for spec in maps:
            if spec.dtype not in (None, DALIDataType.FLOAT):
                raise SpecError(f"takes maps of FLOAT, got {spec}; cast them first")
            if spec.shape is not None:
                if not (len(spec.shape) == 2 or (len(spec.shape) == 3 and spec.shape[2] in (None, 1))):
                    raise SpecError(f"takes maps with a number for each pixel (HW), got {spec}")
                size = spec.shape[:2]
        out = Spec(None if image.shape is None else (*size, image.shape[-1]), image.dtype, "HWC")
        return of_sequence(out, frames[0]) if frames else out

    @by_frame(always=True)
    def cpu(self, ctx: Context, images: Batch, mapx: Batch, mapy: Batch) -> Batch:
        """Sample the images of the batch at the positions in the two maps, and return the results."""
        images = images.replace(layout="HWC")
        if images.ndim != 3 or mapx.dtype != np.float32 or mapy.dtype != np.float32 or mapx.ndim not in (2, 3):
            raise SampleError("bad_shape", "takes images of the layout HWC and two maps of float32")
        sizes = mapx.shapes[:, :2].astype(np.int64)
        wrong = (mapy.shapes[:, :2] != sizes).any(axis=1) | (mapx.sizes != mapy.sizes)
        wrong |= mapx.sizes != sizes.prod(axis=1)
        for i in np.flatnonzero(wrong).tolist():
            ctx.reject(i, "bad_shape", f"the maps have shapes {mapx.shapes[i].tolist()} and {mapy.shapes[i].tolist()}; "
                       "they need the same, with one number for each pixel")  # fmt: skip
        params = np.zeros((len(images), 9))
        params[:, 0] = 0.5 if self.pixel_origin == "corner" else 0.0
        begins = np.column_stack([mapx.offsets, mapy.offsets])
        places = PixelSources(Kind.MAPS, params, mapx.data, mapy.data, begins)
        return sampled(ctx, images, sizes, places, FILTERS[self.interp], Border.FILL, np.zeros((1, 1)), wrong)

    gpu = cpu
