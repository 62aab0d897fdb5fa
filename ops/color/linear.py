"""Operators brightness, contrast, hsv, color_twist and related ones: every pixel times a matrix, plus an offset, per
sample.

Brightness and contrast are a factor and an offset for all values; hue and saturation a 3x3 matrix for RGB pixels. All
of them share two loops on the CPU and two kernels on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec, Stage
from ..batch import Batch
from ..context import Context
from ..conversion import saturate
from ..copies.strided import CUDA_TYPES
from ..copies.windows import image_layout, known_layout
from ..errors import SpecError
from ..gpu.launch_recording import changing, fixed, without_data
from ..images.frames import ImageParts, image_parts
from ..kernels import Kernels
from ..libraries import presets
from ..types import DALIDataType, DALIImageType, to_numpy

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

_kernels: Any = Kernels(".linear_cpu", __package__)
_twists: Any = Kernels(".twist_cpu", __package__)

_TO_YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.321], [0.211, -0.523, 0.311]])
"""Matrix from RGB to luma and two axes of chroma, with three digits as in DALI."""
_FROM_YIQ = np.linalg.inv(_TO_YIQ)
_THREADS, _EACH = 256, 16
"""Threads per block of the GPU kernels, and values that each thread computes (a quarter as many if it computes
pixels)."""


class Linear(Operator, abstract=True):
    """Base class of brightness, contrast, hue and the other operators that are linear in the pixels' values."""

    replayable = True
    layouts = ("FHWC", "DHWC", "HWC")
    bound = "1 level; floats within 1e-5 of the largest value"

    dali_only: ClassVar[tuple[str, ...]] = ()
    """Names of the arguments that only DALI's definition of the operator has; they cannot be combined with another
    library's ``parity``."""
    order: ClassVar[tuple[str, ...]] = ()
    """Names of the arguments, in the order in which another library's functions for them are applied."""

    dtype: Annotated[DALIDataType | None, Arg("data type of the output; by default that of the input")] = None
    parity: Annotated[
        Literal["dali", "torchvision", "pillow", "albumentations"],
        Arg("library whose results are reproduced, for uint8 images: docs/parity.md#single-operators"),
    ] = "dali"

    def runs_in(self) -> tuple[Stage, ...]:
        return self.stages if self.parity == "dali" else ("cpu",)

    def check(self) -> None:
        if self.parity != "dali":
            presets.check(self, self.parity, self._alone())
            if self.dtype not in (None, DALIDataType.UINT8):
                raise SpecError(f"parity: {self.parity} gives UINT8; cast the result")
        kind = None if self.dtype is None else to_numpy(self.dtype).kind
        if kind == "b":
            raise SpecError("dtype must be a number's, got BOOL")

    def infer(self, *specs: Spec) -> Spec:
        data = specs[0]
        layout = image_layout(data.layout, data.ndim, self.layouts)
        if self.parity != "dali":
            presets.check_input(self.parity, Spec(data.shape, data.dtype, layout))
        return Spec(data.shape, data.dtype if self.dtype is None else self.dtype, layout)

    def _alone(self) -> tuple[str, ...]:
        return self.dali_only

    def steps(self, ctx: Context) -> list[presets.Step]:
        """Return the functions of the library in ``parity`` to apply, one per argument that is set, with their
        parameters."""
        found = []
        for name in filter(self.is_set, self.order):
            values = ctx.arg(name, np.float64).reshape(-1, 1)
            if name == "hue":
                values = values / 360
                values -= np.round(values)
            found.append(("brightness" if name == "value" else name, values))
        return found

    def cpu(self, ctx: Context, images: Batch) -> Batch:
        images = images.replace(layout=known_layout(images, self.layouts))
        if self.parity != "dali":
            return presets.run(ctx, images, self.parity, self.steps(ctx))
        dtype = images.dtype if self.dtype is None else np.dtype(to_numpy(self.dtype))
        return self.mapped(ctx, images, dtype)

    gpu = cpu

    def mapped(self, ctx: Context, images: Batch, dtype: np.dtype[Any]) -> Batch:
        """Return the images after the linear map of this operator, with type ``dtype``."""
        raise NotImplementedError

    def maps(self, ctx: Context, images: Batch, dtype: np.dtype[Any]) -> tuple[ImageParts, F32, F32]:
        """Return the images or frames of ``images``, all of 3 channels, with the matrix [M, 3, 3] and the offset [M, 3]
        for each one's pixels."""
        raise NotImplementedError


class Scaling(Linear, abstract=True):
    """Base class of operators with one factor and one offset for all values of an image, with any number of
    channels."""

    names = ("brightness", "brightness_shift", "contrast", "contrast_center")

    def mapped(self, ctx: Context, images: Batch, dtype: np.dtype[Any]) -> Batch:
        like = without_data(images)
        return scale(ctx, images, *self._factors(ctx, images, dtype), dtype, lambda c: self._factors(c, like, dtype))

    def maps(self, ctx: Context, images: Batch, dtype: np.dtype[Any]) -> tuple[ImageParts, F32, F32]:
        parts, factor, offset = self._factors(ctx, images, dtype)
        matrices = factor[:, None, None] * np.eye(3, dtype=np.float32)
        return parts, matrices, np.repeat(offset[:, None], 3, axis=1)

    def _factors(self, ctx: Context, images: Batch, dtype: np.dtype[Any]) -> tuple[ImageParts, F32, F32]:
        """Return the images or frames of ``images``, with the factor and the offset for each one's values, [M] each."""
        names = [n for n in self.names if hasattr(self, n)]
        if not ctx.args:
            parts = ImageParts(images.offsets, images.shapes.astype(np.int64), None, {})
            slope, added = self._constant(images.dtype, dtype)
            return parts, np.full(len(parts), slope, np.float32), np.full(len(parts), added, np.float32)
        parts = image_parts(ctx, images, names)
        given = parts.arguments
        brightness = given.get("brightness", np.float32(1)).astype(np.float64)
        shift = given.get("brightness_shift", np.float32(0)).astype(np.float64)
        contrast = given.get("contrast", np.float32(1)).astype(np.float64)
        center: Any = half_range(images.dtype)
        if "contrast_center" in given and self.is_set("contrast_center"):
            center = given["contrast_center"].astype(np.float64)
        factor = np.broadcast_to(brightness * contrast, len(parts))
        offset = np.broadcast_to(shift * full_range(dtype) + brightness * (center - contrast * center), len(parts))
        return parts, factor.astype(np.float32), offset.astype(np.float32)

    def _constant(self, before: np.dtype[Any], after: np.dtype[Any]) -> tuple[float, float]:
        """Return the factor and offset of `_factors` for all images, if arguments do not differ by sample. ``before``,
        ``after``: types of input and output."""

        def value(name: str, default: float) -> float:
            given = getattr(self, name, None)
            return default if given is None else float(np.float32(given))

        brightness, contrast = value("brightness", 1.0), value("contrast", 1.0)
        center = value("contrast_center", half_range(before))
        added = value("brightness_shift", 0.0) * full_range(after) + brightness * (center - contrast * center)
        return brightness * contrast, added


class Brightness(Scaling, name="brightness"):
    """Multiply by ``brightness`` and add ``brightness_shift``: out = shift * range + brightness * in.

    The range is the largest value of the output's type, 1 for floats.
    """

    dali_only = ("brightness_shift",)
    order = ("brightness",)
    example = "{op: brightness, in: images, brightness: 1.2, out: images}"

    brightness: Annotated[float, Arg("factor; 1 changes nothing", per_sample=True)] = 1.0
    brightness_shift: Annotated[
        float, Arg("value to add, as a fraction of the range of the output's type", per_sample=True)
    ] = 0.0


class Contrast(Scaling, name="contrast"):
    """Stretch values away from a centre: out = center + contrast * (in - center)."""

    dali_only = ("contrast_center",)
    order = ("contrast",)
    example = "{op: contrast, in: images, contrast: $contrast, out: images}"

    contrast: Annotated[float, Arg("factor; 0 yields uniform gray, 1 changes nothing", per_sample=True)] = 1.0
    contrast_center: Annotated[
        float | None,
        Arg("value that does not change; by default the middle of the positive range of the input's type, 0.5 for "
            "floats", per_sample=True),
    ] = None  # fmt: skip


class BrightnessContrast(Scaling, name="brightness_contrast"):
    """Apply contrast, then brightness: out = shift * range + brightness * (center + contrast * (in - center)).

    The range is the largest value of the output's type, 1 for floats. With ``parity: albumentations`` the result is
    that of its RandomBrightnessContrast: contrast * in + 255 * shift.
    """

    order = ("contrast", "brightness")
    example = "{op: brightness_contrast, in: images, brightness: 1.2, contrast: 0.8, out: images}"

    brightness: Annotated[float, Arg("factor; 1 changes nothing", per_sample=True)] = 1.0
    brightness_shift: Annotated[
        float, Arg("value to add, as a fraction of the range of the output's type", per_sample=True)
    ] = 0.0
    contrast: Annotated[float, Arg("factor; 0 yields uniform gray, 1 changes nothing", per_sample=True)] = 1.0
    contrast_center: Annotated[
        float | None,
        Arg("value that does not change; by default the middle of the positive range of the input's type, 0.5 for "
            "floats", per_sample=True),
    ] = None  # fmt: skip

    def _alone(self) -> tuple[str, ...]:
        mixed = self.parity == "albumentations"
        return ("contrast_center", "brightness" if mixed else "brightness_shift")

    def steps(self, ctx: Context) -> list[presets.Step]:
        """Return the functions of another library to apply: contrast and brightness, or one function for both."""
        if self.parity != "albumentations":
            return Scaling.steps(self, ctx)
        added = ctx.arg("brightness_shift", np.float64) * 255
        return [("brightness_contrast", np.stack([ctx.arg("contrast", np.float64), added], axis=1))]


class Twisting(Linear, abstract=True):
    """Base class of operators with a 3x3 matrix and an offset for the RGB pixels of an image.

    Hue rotates the chroma plane of YIQ, saturation scales it; this is DALI's approximation, not the HSV colour model:
    for example, a hue of 90 degrees turns (200, 100, 50) into (172, 82, 0).
    """

    names = ("hue", "saturation", "value", "brightness", "contrast")
    dali_only: ClassVar[tuple[str, ...]] = ("image_type",)

    def check(self) -> None:
        Linear.check(self)
        if getattr(self, "image_type", DALIImageType.RGB) not in (DALIImageType.RGB, DALIImageType.BGR):
            raise SpecError("image_type must be RGB or BGR: gray has neither hue nor saturation")

    def infer(self, *specs: Spec) -> Spec:
        known = Linear.infer(self, *specs)
        if known.shape is not None and known.shape[-1] not in (None, 3):
            raise SpecError(f"takes pixels of 3 channels, got {specs[0]}")
        return known

    def mapped(self, ctx: Context, images: Batch, dtype: np.dtype[Any]) -> Batch:
        wrong = images.shapes[:, -1] != 3
        if wrong.any():
            for i in np.flatnonzero(wrong).tolist():
                ctx.reject(i, "bad_shape", f"has {images.shapes[i, -1]} channels, takes pixels of 3")
            images = images.replace(shapes=np.where(wrong[:, None], 0, images.shapes).astype(np.int32))
        like = without_data(images)
        return mix(ctx, images, *self.maps(ctx, images, dtype), dtype, lambda c: self.maps(c, like, dtype))

    def maps(self, ctx: Context, images: Batch, dtype: np.dtype[Any]) -> tuple[ImageParts, F32, F32]:
        parts = image_parts(ctx, images, [n for n in self.names if hasattr(self, n)])
        matrices, offsets = twist(len(parts), half=0.5 if images.dtype.kind == "f" else 128.0, **parts.arguments)
        if getattr(self, "image_type", None) is DALIImageType.BGR:
            matrices = np.ascontiguousarray(matrices[:, ::-1, ::-1])
        return parts, matrices, offsets


class Hsv(Twisting, name="hsv"):
    """Rotate the hue, and multiply saturation and value of RGB images, by a linear map of RGB.

    In contrast to the related operators, the output is UINT8 unless ``dtype`` is set, as in DALI.
    """

    dali_only = ()
    order = ("hue", "saturation", "value")
    example = "{op: hsv, in: images, hue: $degrees, saturation: 1.3, out: images}"

    dtype: Annotated[DALIDataType | None, Arg("data type of the output")] = DALIDataType.UINT8
    hue: Annotated[float, Arg("rotation of the hue in degrees", per_sample=True)] = 0.0
    saturation: Annotated[float, Arg("factor; 0 yields gray", per_sample=True)] = 1.0
    value: Annotated[float, Arg("factor for all channels", per_sample=True)] = 1.0


class Hue(Twisting, name="hue"):
    """Rotate the hue of RGB images, by a linear map of RGB."""

    order = ("hue",)
    example = "{op: hue, in: images, hue: 30.0, out: images}"

    hue: Annotated[float, Arg("rotation of the hue in degrees", per_sample=True)] = 0.0
    image_type: Annotated[DALIImageType, Arg("order of the channels: RGB or BGR")] = DALIImageType.RGB


class Saturation(Twisting, name="saturation"):
    """Multiply the saturation of RGB images, by a linear map of RGB."""

    order = ("saturation",)
    example = "{op: saturation, in: images, saturation: 0.5, out: images}"

    saturation: Annotated[float, Arg("factor; 0 yields gray, 1 changes nothing", per_sample=True)] = 1.0
    image_type: Annotated[DALIImageType, Arg("order of the channels: RGB or BGR")] = DALIImageType.RGB


class ColorTwist(Twisting, name="color_twist"):
    """Change hue, saturation, contrast and brightness of RGB images in one linear map; the centre of contrast is 128,
    0.5 for float images.

    With another library's ``parity``, its functions are applied one after the other: brightness, contrast, saturation,
    hue.
    """

    order = ("brightness", "contrast", "saturation", "hue")
    example = "{op: color_twist, in: images, hue: $hue, saturation: $saturation, contrast: 1.1, out: images}"

    hue: Annotated[float, Arg("rotation of the hue in degrees", per_sample=True)] = 0.0
    saturation: Annotated[float, Arg("factor; 0 yields gray, 1 changes nothing", per_sample=True)] = 1.0
    contrast: Annotated[float, Arg("factor; 0 yields uniform gray, 1 changes nothing", per_sample=True)] = 1.0
    brightness: Annotated[float, Arg("factor; 0 yields black, 1 changes nothing", per_sample=True)] = 1.0
    image_type: Annotated[DALIImageType, Arg("order of the channels: RGB or BGR")] = DALIImageType.RGB


def full_range(dtype: np.dtype[Any]) -> float:
    """Return the largest value of a type; 1 for floats."""
    return 1.0 if dtype.kind == "f" else float(np.iinfo(dtype).max)


def half_range(dtype: np.dtype[Any]) -> float:
    """Return the middle of the positive range of a type; 0.5 for floats."""
    if dtype.kind == "f":
        return 0.5
    return float(1 << (8 * dtype.itemsize - (2 if dtype.kind == "i" else 1)))


def twist(
    count: int, half: float, hue: Any = None, saturation: Any = None, value: Any = None, brightness: Any = None,
    contrast: Any = None,
) -> tuple[F32, F32]:  # fmt: skip
    """Return matrices [M, 3, 3] and offsets [M, 3] that convert a pixel to YIQ, rotate and scale its chroma, convert it
    back, and apply contrast about ``half``, then brightness. Each argument is [M], or None to leave it out."""
    matrices, offsets = np.empty((count, 3, 3), np.float32), np.empty((count, 3), np.float32)
    given = [(hue, _ZERO), (saturation, _ONE), (value, _ONE), (brightness, _ONE), (contrast, _ONE)]
    arrays = (none if a is None else np.ascontiguousarray(a, np.float32) for a, none in given)
    _twists.twist(*arrays, half, _FROM_YIQ, _TO_YIQ, matrices, offsets)
    return matrices, offsets


_ZERO, _ONE = np.zeros(1, np.float32), np.ones(1, np.float32)


Maps = Callable[[Context], tuple[ImageParts, F32, F32]]
"""Function that returns images or frames with their matrices and offsets, for replays of recorded launches."""


def scale(
    ctx: Context, images: Batch, items: ImageParts, factor: F32, offset: F32, dtype: np.dtype[Any], recompute: Maps
) -> Batch:
    """Return a batch of type ``dtype``, with every value of image (or frame) i multiplied by ``factor[i]`` and
    increased by ``offset[i]``."""
    return _run(ctx, images, items, items.sizes, (factor, offset), dtype, "scale", _THREADS * _EACH, recompute)


def mix(
    ctx: Context, images: Batch, items: ImageParts, matrices: F32, offsets: F32, dtype: np.dtype[Any], recompute: Maps
) -> Batch:
    """Return a batch of type ``dtype``, with every pixel of image (or frame) i multiplied by the matrix
    ``matrices[i]``, [3, 3], and increased by ``offsets[i]``, [3]."""
    return _run(
        ctx, images, items, items.sizes // 3, (matrices, offsets), dtype, "mix", _THREADS * _EACH // 4, recompute
    )


def chain(ctx: Context, images: Batch, items: ImageParts, matrices: F32, offsets: F32, recompute: Maps) -> Batch:
    """Apply K linear maps one after the other to each of M uint8 images of 3 channels: matrices [M, K, 3, 3], then
    offsets [M, K, 3]. Values are rounded after each map."""
    return _run(ctx, images, items, items.sizes // 3, (matrices, offsets), images.dtype, "chain", _THREADS * _EACH // 4,
                recompute, np.int32(matrices.shape[1]))  # fmt: skip


def _run(
    ctx: Context, images: Batch, items: ImageParts, counts: Any, maps: tuple[F32, F32], dtype: np.dtype[Any],
    kernel: str, tile: int, recompute: Maps, *more: np.int32,
) -> Batch:  # fmt: skip
    if ctx.stage == "cpu":
        return _on_host(ctx, images, items, counts, maps, dtype, getattr(_kernels, kernel))
    out = Batch.allocate(ctx.empty, images.shapes, dtype, images.layout, images.samples)
    most = int(counts.max(initial=0))
    if most == 0:
        return out
    tiles = -(-most // tile)

    def other(ctx: Context) -> tuple[F32, F32] | None:
        pieces, *found = recompute(ctx)
        return (found[0], found[1]) if pieces.sample is None else None

    # if items are frames, their number may follow from arguments
    base, sizes, to = fixed(ctx.device, items.offsets, counts, items.places(out))
    a, b = changing(ctx.device, other if items.sample is None else None, *maps)
    name = kernel if more else f"{kernel}<{CUDA_TYPES[images.dtype]}, {CUDA_TYPES[dtype]}>"
    ctx.device.launch(
        "linear.cu", name, tiles * len(items), _THREADS, images.data, base, sizes, np.int32(tiles), *more, a, b,
        out.data, to,
    )  # fmt: skip
    return out


def _on_host(
    ctx: Context,
    images: Batch,
    items: ImageParts,
    counts: Any,
    maps: tuple[F32, F32],
    dtype: np.dtype[Any],
    kernel: Any,
) -> Batch:
    source, base = images.data, items.offsets
    if source.dtype not in (np.uint8, np.float32):
        ends = images.offsets + images.sizes
        low, high = (int(images.offsets.min()), int(ends.max())) if len(images) else (0, 0)
        source, base = saturate(source[low:high], np.float32), base - low
    own = dtype if dtype in (np.uint8, np.float32) else np.dtype(np.float32)
    empty = ctx.empty if own == dtype else np.empty
    out = Batch.allocate(empty, images.shapes, own, images.layout, images.samples)
    kernel(source, np.ascontiguousarray(base), counts, *maps, out.data, items.places(out))
    return out if own == dtype else out.replace(data=saturate(out.data, dtype))
