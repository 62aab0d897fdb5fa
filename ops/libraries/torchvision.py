"""Operator torchvision: operations of torchvision's transforms v2 on uint8 tensors, one after the other, equal to the
bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec
from ..batch import I64, Batch
from ..context import Context
from ..copies.windows import image_layout, known_layout
from ..errors import SampleError, SpecError
from ..kernels import Kernels
from ..types import DALIDataType
from . import torchvision_on_gpu as on_gpu

I32 = npt.NDArray[np.int32]
F64 = npt.NDArray[np.float64]

_kernels: Any = Kernels(".torchvision_cpu", __package__)

WIDTH = 16
"""Maximum number of parameters of one operation: the row length of parameter arrays."""
CHANNELS = 4
"""Maximum number of channels for which an operation can have separate fill values."""
MODES = ("constant", "edge", "reflect", "symmetric")


class Step(IntEnum):
    """Operations that the operator can apply, by torchvision's names. Values are codes for the compiled loop."""

    adjust_brightness = 1
    adjust_contrast = 2
    adjust_saturation = 3
    adjust_hue = 4
    posterize = 5
    solarize = 6
    invert = 7
    autocontrast = 8
    equalize = 9
    adjust_sharpness = 10
    rgb_to_grayscale = 11
    permute_channels = 12
    gaussian_blur = 13
    flip = 14
    turn = 15
    window = 16
    affine = 17
    perspective = 18


_TAKES = {
    Step.adjust_brightness: (1, 1), Step.adjust_contrast: (1, 1), Step.adjust_saturation: (1, 1),
    Step.adjust_hue: (1, 1), Step.posterize: (1, 1), Step.solarize: (1, 1), Step.invert: (0, 0),
    Step.autocontrast: (0, 0), Step.equalize: (0, 0), Step.adjust_sharpness: (1, 1), Step.rgb_to_grayscale: (1, 1),
    Step.permute_channels: (1, CHANNELS), Step.gaussian_blur: (4, 4), Step.flip: (1, 1), Step.turn: (1, 1),
    Step.window: (4, 9), Step.affine: (10, WIDTH), Step.perspective: (10, WIDTH),
}  # fmt: skip
_COLOURED = (Step.adjust_brightness, Step.adjust_contrast, Step.adjust_saturation, Step.adjust_hue, Step.autocontrast,
             Step.adjust_sharpness)  # fmt: skip
"""Operations that support only images of 1 or 3 channels."""


def _among(*steps: Step) -> npt.NDArray[np.bool_]:
    """Return a mask of the operations ``steps``, with one entry per operation code."""
    return np.isin(np.arange(len(Step) + 1), steps)


_RESHAPING = _among(Step.turn, Step.window, Step.rgb_to_grayscale, Step.affine)
_PARTICULAR = _among(*_COLOURED, Step.rgb_to_grayscale, Step.gaussian_blur, Step.permute_channels)
"""Mask, by operation code, of the operations that support only some images, such as images of 1 or 3 channels."""


def affine_matrix(
    angle: float, translate: Sequence[float], scale: float, shear: Sequence[float], center: Sequence[float] = (0, 0)
) -> list[float]:
    """Return the map of torchvision's ``affine`` from output pixels to input pixels: two rows of three, with the origin
    in the centre of the image, or at the origin of ``center``. Angles are in degrees. It is the inverse of T C R S H
    C^-1: rotation, scale and shears about the centre, then a translation."""
    turn, across, down = math.radians(angle), math.radians(shear[0]), math.radians(shear[1])
    x, y = center
    to_x, to_y = x + translate[0], y + translate[1]
    # The matrix of rotation and shears, with determinant 1. Sums and products in torchvision's order, for equal last
    # bits.
    a = math.cos(turn - down) / math.cos(down)
    b = -(a * math.tan(across) + math.sin(turn))
    c = math.sin(turn - down) / math.cos(down)
    d = math.cos(turn) - c * math.tan(across)
    first = [d / scale, -b / scale, 0.0]
    second = [-c / scale, a / scale, 0.0]
    first[2] += x - first[0] * to_x - first[1] * to_y
    second[2] += y - second[0] * to_x - second[1] * to_y
    return first + second


def expanded_size(matrix: Sequence[float], width: int, height: int) -> tuple[int, int]:
    """Return (width, height) of the canvas that contains an image of ``width`` x ``height`` after the map ``matrix``,
    as torchvision's ``rotate`` with expand computes it, in float32."""
    half_w, half_h = np.float32(0.5 * width), np.float32(0.5 * height)
    x = np.array([-half_w, -half_w, half_w, half_w], np.float32)
    y = np.array([-half_h, half_h, half_h, -half_h], np.float32)
    m = np.array(matrix, np.float32)
    sizes = []
    for k, half in ((0, half_w), (3, half_h)):
        values = x * m[k] + y * m[k + 1] + m[k + 2]
        low, top = values.min() + half, values.max() + half
        finer, back = np.float32(1.0 / 1e-4), np.float32(1e-4)  # so that an excess of 1e-15 does not add a pixel
        top, low = np.ceil(np.trunc(top * finer) * back), np.floor(np.trunc(low * finer) * back)
        sizes.append(int(top - low))
    return sizes[0], sizes[1]


class Torchvision(Operator, name="torchvision"):
    """Apply operations of torchvision's transforms v2, one after the other. Results equal torchvision's for tensors to
    the bit.

    ``steps`` lists them as [name, number, ...]: adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue and
    adjust_sharpness [factor], posterize [bits], solarize [threshold], invert, autocontrast, equalize, rgb_to_grayscale
    [channels], permute_channels [channel, ...], gaussian_blur [columns and rows of the window, sigma of both], flip [1
    left to right, 2 upside down, 3 both], turn [quarter turns, counter-clockwise], window [top, left, height, width, 0
    constant 1 edge 2 reflect 3 symmetric, fill values], affine [1 bilinear, 1 with fill values, two rows of three from
    output to input pixels around the centre, height and width or 0 0, 0, 0, fill values], perspective [the same two
    flags, torchvision's eight coefficients, 0, 0, fill values].

    ``codes`` and ``numbers`` define the steps per sample: the positions of the names in this list, from 1 (0: no step),
    and 16 numbers for each code.
    """

    layouts = ("CHW", "HWC")
    example = "{op: torchvision, in: images, steps: [[adjust_contrast, 1.3], [equalize]], out: images}"

    steps: Annotated[tuple[Any, ...], Arg("operations in order, each [name, number, ...]")] = ()
    codes: Annotated[
        tuple[int, ...], Arg("codes of the operations, instead of steps", ge=0, le=18, per_sample=True)
    ] = ()
    numbers: Annotated[tuple[float, ...], Arg("parameters of the operations, 16 per code", per_sample=True)] = ()

    def check(self) -> None:
        if self.steps and (self.is_set("codes") or self.is_set("numbers")):
            raise SpecError("steps and codes exclude each other")
        if self.is_set("codes") != self.is_set("numbers"):
            raise SpecError("codes and numbers go together: give both")
        if not self.per_sample and len(self.numbers) != WIDTH * len(self.codes):
            raise SpecError(f"numbers needs {WIDTH} for each of codes, got {len(self.numbers)} for {len(self.codes)}")
        self._constant()

    def _constant(self) -> tuple[I32, F64]:
        """Return the argument ``steps`` as arrays: codes of the operations [K], and their parameters [K, WIDTH]."""
        codes, numbers = np.zeros(len(self.steps), np.int32), np.zeros((len(self.steps), WIDTH))
        for k, step in enumerate(self.steps):
            name, *given = step if isinstance(step, (list, tuple)) else (step,)
            if not isinstance(name, str) or name not in Step.__members__:
                raise SpecError(f"steps: {name!r} is not one of {', '.join(Step.__members__)}")
            least, most = _TAKES[Step[name]]
            if not least <= len(given) <= most or not all(isinstance(v, (int, float)) for v in given):
                count = str(least) if least == most else f"{least} to {most}"
                raise SpecError(f"steps: {name} takes {count} {'number' if count == '1' else 'numbers'}, got {given}")
            codes[k] = Step[name]
            numbers[k, : len(given)] = given
        return codes, numbers

    def infer(self, *specs: Spec) -> Spec:
        data = specs[0]
        if data.dtype not in (None, DALIDataType.UINT8):
            raise SpecError(f"takes uint8 images, got {data}; cast them first")
        layout = image_layout(data.layout, data.ndim, self.layouts)
        return Spec(None if data.shape is None else (None,) * len(data.shape), DALIDataType.UINT8, layout)

    def both(self, ctx: Context, images: Batch) -> Batch:
        if images.dtype != np.uint8:
            raise SampleError("bad_shape", f"takes uint8 images, got {images.dtype}; cast them first")
        images = images.replace(layout=known_layout(images, self.layouts))
        if self.is_set("codes"):
            codes = ctx.arg("codes", np.int32)
            numbers = ctx.arg("numbers", np.float64).reshape(len(images), -1, WIDTH)
            if numbers.shape[1] != codes.shape[1]:
                raise SampleError("bad_argument", f"numbers needs {WIDTH} for each of codes")
        else:
            codes, numbers = (np.repeat(a[None], len(images), axis=0) for a in self._constant())
        interleaved = images.layout == "HWC"
        begin = images.shapes.astype(np.int64)
        shapes = outline(begin[:, [2, 0, 1]] if interleaved else begin, codes, numbers)
        for i, problem in problems(shapes, codes, numbers).items():
            ctx.reject(i, "bad_shape", problem)
            codes[i], shapes[i] = 0, 0
        end = shapes[:, -1][:, [1, 2, 0]] if interleaved else shapes[:, -1]
        out = Batch.allocate(ctx.empty, end.astype(np.int32), np.uint8, images.layout, images.samples)
        if ctx.stage == "cpu":
            offsets = np.ascontiguousarray(images.offsets)
            _kernels.run(images.data, offsets, shapes, codes, numbers, interleaved, out.data, out.offsets)
        else:
            on_gpu.steps(ctx.device, images, shapes, codes, numbers, interleaved, out)
        return out

    cpu = gpu = both


def outline(begin: I64, codes: I32, numbers: F64) -> I64:
    """Return the shape (channels, rows, columns) of each image before each of its K operations, and after the last one:
    [N, K + 1, 3]. ``begin`` [N, 3]: shapes of the input."""
    shapes = np.repeat(begin[:, None], codes.shape[1] + 1, axis=1)
    if not _RESHAPING[codes].any():
        return shapes
    for k in range(codes.shape[1]):
        code, p, shape = codes[:, k], numbers[:, k], shapes[:, k].copy()
        turned = (code == Step.turn) & (p[:, 0] % 2 == 1)
        shape[turned] = shape[turned][:, [0, 2, 1]]
        cut = code == Step.window
        shape[cut, 1:] = p[cut, 2:4]
        gray = code == Step.rgb_to_grayscale
        shape[gray, 0] = p[gray, 0]
        sized = (code == Step.affine) & (p[:, 8] > 0)
        shape[sized, 1:] = p[sized, 8:10]
        shapes[:, k + 1] = shape
    return shapes


def problems(shapes: I64, codes: I32, numbers: F64) -> dict[int, str]:
    """Return the images to which one of their operations cannot be applied: the reason, by index of the image."""
    found: dict[int, str] = {}
    if not _PARTICULAR[codes].any():
        return found
    channels, rows, columns = shapes[:, :-1, 0], shapes[:, :-1, 1], shapes[:, :-1, 2]
    coloured = np.isin(codes, _COLOURED) & (channels != 1) & (channels != 3)
    gray = (codes == Step.rgb_to_grayscale) & (channels != 1) & (channels != 3)
    least = np.minimum(rows, columns)
    wide = (codes == Step.gaussian_blur) & (
        (numbers[:, :, 0] // 2 >= columns) | (numbers[:, :, 1] // 2 >= rows) | (least < 1)
    )
    wrong = (codes == Step.permute_channels) & (
        (numbers[:, :, :CHANNELS].max(axis=2) >= channels) | (channels > CHANNELS)
    )
    for mask, text in (
        (coloured, "takes images of 1 or 3 channels, got {0}"),
        (gray, "takes images of 1 or 3 channels, got {0}"),
        (wide, "needs a window whose half is smaller than the image, which is {1} x {2}"),
        (wrong, "names channels that the image of {0} has not"),
    ):
        for i, k in np.argwhere(mask).tolist():
            found.setdefault(i, f"{Step(int(codes[i, k])).name} " + text.format(*shapes[i, k].tolist()))
    return found
