"""Operator crop, and the cropping arguments that it shares with crop_mirror_normalize."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np

from ..base import Arg, Operator, Spec
from ..batch import I64, Batch, Samples
from ..context import Context
from ..copies.strided import CopyPlan, convert, pad, run, whole, window
from ..copies.windows import IMAGE_LAYOUTS, OutOfBounds, border, bounded, fill_along, image_layout, known_layout
from ..errors import SampleError, SpecError
from ..gpu.launch_recording import without_data
from ..kernels import Kernels
from ..streams import F32
from ..types import DALIDataType, DALIImageType, Library, to_numpy

_plans: Any = Kernels("..copies.windows_cpu", __package__)

_SIZES = {"D": "crop_d", "H": "crop_h", "W": "crop_w"}
_POSITIONS = {"D": "crop_pos_z", "H": "crop_pos_y", "W": "crop_pos_x"}


class CropWindow(Operator, abstract=True):
    """Base class of operators that use a window of the image. It defines the arguments for the window's size and
    position."""

    replayable = True
    layouts = IMAGE_LAYOUTS

    crop: Annotated[
        tuple[float, ...] | None,
        Arg("(height, width) or (depth, height, width); fractions are cut off, 0 is the whole extent", per_sample=True),
    ] = None
    crop_d: Annotated[float | None, Arg("depth of the window, 0 for the whole extent", per_sample=True)] = None
    crop_h: Annotated[float | None, Arg("height of the window, 0 for the whole extent", per_sample=True)] = None
    crop_w: Annotated[float | None, Arg("width of the window, 0 for the whole extent", per_sample=True)] = None
    crop_pos_x: Annotated[float, Arg("position of the window, 0 (left) to 1 (right)", ge=0, le=1, per_sample=True)] = (
        0.5
    )
    crop_pos_y: Annotated[float, Arg("position of the window, 0 (top) to 1 (bottom)", ge=0, le=1, per_sample=True)] = (
        0.5
    )
    crop_pos_z: Annotated[float, Arg("position of the window, 0 (front) to 1 (back)", ge=0, le=1, per_sample=True)] = (
        0.5
    )
    rounding: Annotated[
        Literal["round", "truncate"], Arg("rounding of the window's start: half away from zero, or towards zero")
    ] = "round"

    parity: Annotated[
        Library, Arg("torchvision, pillow: the start of the window is rounded as center_crop does, halves to even")
    ] = "dali"

    def check(self) -> None:
        apart = [n for n in _SIZES.values() if self.is_set(n)]
        if self.is_set("crop") and apart:
            raise SpecError(f"crop and {apart[0]} exclude each other: give the size in one way")
        if apart and not (self.is_set("crop_h") and self.is_set("crop_w")):
            raise SpecError("crop_h and crop_w go together: give both (0 for the whole extent)")
        sizes = [*(self.crop or ()), *(v for n in apart if n not in self.per_sample and (v := getattr(self, n)))]
        if not all(math.isfinite(v) for v in sizes):
            raise SpecError(f"crop must be numbers of pixels, got {sizes}")
        if self.crop is not None and len(self.crop) not in (2, 3):
            raise SpecError(f"crop takes (height, width) or (depth, height, width), got {len(self.crop)} values")

    def cropped(self, spec: Spec) -> Spec:
        """Return the spec of windows that are cut out of images with ``spec``. Lengths that are known only at run time
        are None."""
        layout = image_layout(spec.layout, spec.ndim, self.layouts)
        if spec.shape is None or not layout:
            return Spec(None if spec.shape is None else (None,) * len(spec.shape), spec.dtype, layout)
        shape = list(spec.shape)
        for letter, size in self._constant_sizes().items():
            at = _axis(layout, letter)
            if at >= 0 and size != 0:
                shape[at] = size
        return Spec(tuple(shape), spec.dtype, layout)

    @property
    def _rounding(self) -> str:
        even = self.parity in ("torchvision", "pillow") and self.rounding == "round"
        return "even" if even else self.rounding

    def _constant_sizes(self) -> dict[str, int | None]:
        """Length of the window along each axis, by the axis's letter: 0 for the whole axis, None if known only at run
        time."""
        if "crop" in self.per_sample:
            return {"D": None, "H": None, "W": None}
        if self.crop is not None:
            return {letter: max(int(v), 0) for letter, v in zip("WHD", reversed(self.crop), strict=False)}
        return {
            letter: None if a in self.per_sample else max(int(getattr(self, a) or 0), 0) for letter, a in _SIZES.items()
        }

    @cached_property
    def rounds(self) -> int:
        """Rule for rounding the start of a window, as the number that the loops of `plan_cpu` take."""
        return int(_plans.ROUNDINGS.index(self._rounding))

    @cached_property
    def _is_constant(self) -> bool:
        return self.per_sample.isdisjoint(("crop", *_SIZES.values(), *_POSITIONS.values()))

    @cached_property
    def _constant_rows(self) -> F32:
        """Result of `rows`, cached if all arguments are constants."""
        return self._rows(Context(self, "cpu", Samples.numbered(1)))

    @cached_property
    def _cuts(self) -> bool:
        """Return whether the arguments may cut off a part of the image."""
        sized = self.is_set("crop") or any(self.is_set(name) for name in _SIZES.values())
        return sized or not self.per_sample.isdisjoint(_POSITIONS.values())

    def windows(self, ctx: Context, batch: Batch, layout: str, policy: OutOfBounds) -> tuple[I64, I64]:
        """Return start (anchor) and shape of each sample's window, [N, D] each. ``policy``: DALI's rule for windows
        that extend beyond the image."""
        return self.windows_in(ctx, batch.shapes.astype(np.int64, order="C"), layout, policy)

    def windows_in(self, ctx: Context, extent: I64, layout: str, policy: OutOfBounds) -> tuple[I64, I64]:
        """Return start (anchor) and shape of windows, [N, D] each, in samples of shape ``extent`` [N, D]; see
        `windows`."""
        anchor, shape = np.zeros(extent.shape, np.int64), extent.copy()
        if not self._cuts:
            return anchor, shape
        for letter in _SIZES:
            at = _axis(layout, letter)
            if at >= 0:
                _plans.place(extent, at, *self._along(ctx, letter), self.rounds, anchor, shape)
        return bounded(ctx, policy, anchor, shape, extent)

    def rows(self, ctx: Context) -> F32:
        """Return each window's height, width and relative position (down and across), by the arguments, [N or 1, 4],
        for `plan_cpu.cut_out`."""
        return self._constant_rows if self._is_constant else self._rows(ctx)

    def _rows(self, ctx: Context) -> F32:
        (height, y), (width, x) = self._along(ctx, "H"), self._along(ctx, "W")
        return np.stack(np.broadcast_arrays(height, width, y, x), axis=1)

    def _along(self, ctx: Context, letter: str) -> tuple[F32, F32]:
        """Return length and relative position of windows along the axis ``letter``, [N or 1] each; length 0 for the
        whole axis."""
        length = self._length(ctx, letter)
        if length is None:
            return np.zeros(1, np.float32), np.zeros(1, np.float32)
        name = _POSITIONS[letter]
        position = ctx.rows(name)
        if name in ctx.args:
            wrong = ~((position >= 0) & (position <= 1))
            for i in np.flatnonzero(wrong).tolist():
                ctx.reject(i, "bad_argument", f"{name} must be between 0 and 1, got {position[i]:g}")
            position = np.where(wrong, np.float32(0), position)
        return length, position

    def _length(self, ctx: Context, letter: str) -> F32 | None:
        """Return the length of windows along the axis ``letter``, [N or 1]; None if the arguments do not restrict this
        axis."""
        if not self.is_set("crop"):
            return ctx.rows(_SIZES[letter]) if self.is_set(_SIZES[letter]) else None
        together, column = ctx.rows("crop"), "WHD".index(letter) + 1
        if together.shape[1] not in (2, 3):
            raise SampleError("bad_argument", "crop takes (height, width) or (depth, height, width), got "
                              f"{together.shape[1]} values")  # fmt: skip
        return together[:, -column] if column <= together.shape[1] else None


class Cropping(CropWindow, abstract=True):
    """Base class of operators whose window may extend beyond the image; pixels outside the image then get fill
    values."""

    fill_values: Annotated[
        tuple[float, ...], Arg("values outside the input, one or one per channel", or_default=True)
    ] = (0.0,)
    image_type: Annotated[
        DALIImageType | None, Arg("colour space", ignored="DALI no longer uses it", obsolete=True)
    ] = None


def _axis(layout: str, letter: str) -> int:
    """Return the index of the axis ``letter`` in ``layout``. D (depth) also finds the frames of a sequence, as in
    DALI."""
    at = layout.find(letter)
    return layout.find("F") if letter == "D" and at < 0 else at


class Crop(Cropping, name="crop"):
    """Cut a window out of images.

    With ``dtype``, values are rounded half away from zero and saturated (DALI truncates them here).
    """

    example = "{op: crop, in: images, crop: [224, 224], out: images}"

    out_of_bounds_policy: Annotated[OutOfBounds, Arg("what to do if the window reaches outside the input")] = "error"
    dtype: Annotated[DALIDataType | None, Arg("type of the output; by default that of the input")] = None
    output_dtype: Annotated[DALIDataType | None, Arg("type of the output", deprecated="dtype")] = None

    def infer(self, *specs: Spec) -> Spec:
        known = self.cropped(specs[0])
        shape = known.shape
        if self.out_of_bounds_policy == "trim_to_shape" and shape is not None:
            shape = (None,) * len(shape)
        return Spec(shape, self.dtype if self.dtype is not None else known.dtype, known.layout)

    def cpu(self, ctx: Context, images: Batch) -> Batch:
        layout = known_layout(images, self.layouts)
        images = images.replace(layout=layout)
        like = without_data(images)

        def plan(ctx: Context) -> CopyPlan:
            cut = window(whole(like), *self.windows(ctx, like, layout, self.out_of_bounds_policy))
            fill = fill_along(ctx, self.fill_values, like, layout.find("C"))
            cut = pad(cut, border(self.out_of_bounds_policy), *fill)
            return cut if self.dtype is None else convert(cut, to_numpy(self.dtype))

        return run(ctx, plan(ctx), images, plan)

    gpu = cpu
