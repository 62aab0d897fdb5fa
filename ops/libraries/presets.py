"""Presets (``parity``) of single operators: compute what another library makes of an image. Called by the operators of
colour, geometry and filters.

A step is a name and [N, k] numbers, one row per sample. torchvision's steps are dali-run's own loops, equal to the bit;
the other libraries are called for one image after the other, without the GIL. All take uint8 images.

- brightness, contrast, saturation: [factor]; hue: [turns]; brightness_contrast: [factor of contrast, levels added]
- equalize: []
- gaussian_blur: [columns and rows of the window or 0, sigma of both or 0]
- rotate: [filter, degrees counter-clockwise, 1 to grow the canvas, 1 with fill values, 4 fill values]
- affine: [filter, height, width, 1 with fill values, 4 fill values, two rows of three], of the output's corners
- perspective: the same numbers with three rows of three
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from ..base import Operator, Spec
from ..batch import Batch, elements
from ..context import Context
from ..errors import SampleError, SpecError
from ..kernels import Kernels
from ..types import DALIDataType, DALIInterpType
from . import torchvision as tv

F64 = npt.NDArray[np.float64]
U8 = npt.NDArray[np.uint8]
Step = tuple[str, F64]

_loops: Any = Kernels(".torchvision_cpu", __package__)

LAYOUTS = ("HWC", "FHWC")
FILLS = 4
"""Number of fill values, one per channel, among the parameters of operations that move pixels."""
FILTERS = {DALIInterpType.INTERP_NN: 0, DALIInterpType.INTERP_LINEAR: 1, DALIInterpType.INTERP_CUBIC: 2}
"""Numbers of the filters in the parameters of an operation."""
_NEEDS = {"opencv": "cv2", "albumentations": "cv2"}
_CHANNELS = {"torchvision": (1, 3), "pillow": (1, 3)}


def check(op: Operator, library: str, alone: Sequence[str]) -> None:
    """Raise SpecError unless ``op`` can give the results of ``library``: the library must be installed, and no argument
    in ``alone`` may be set, because only DALI's operator has these."""
    for name in alone:
        if op.is_set(name):
            raise SpecError(
                f"{name} needs parity: dali; give that to this step, or remove {name}: {library} has nothing like it"
            )
    if library in _NEEDS:
        try:
            import_module(_NEEDS[library])
        except ImportError:
            raise SpecError(f"parity: {library} needs OpenCV: pip install opencv-python-headless") from None


def check_input(library: str, spec: Spec) -> None:
    """Raise SpecError unless data with ``spec`` is uint8 images, the only type that other libraries' functions support
    here."""
    if spec.dtype not in (None, DALIDataType.UINT8):
        raise SpecError(f"parity: {library} takes UINT8, got {spec}; cast it first, or give parity: dali to this step")
    if spec.layout and spec.layout not in LAYOUTS:
        raise SpecError(f"parity: {library} takes images (HWC, FHWC), got {spec}; give parity: dali to this step")


def run(ctx: Context, images: Batch, library: str, steps: Sequence[Step]) -> Batch:
    """Apply the functions of ``library`` that ``steps`` lists, in order, to ``images`` (HWC, or each frame of FHWC).
    Images that a function does not support are rejected."""
    if images.dtype != np.uint8:
        raise SampleError("bad_shape", f"parity: {library} takes uint8 images, got {images.dtype}; cast them first")
    framed = images.layout == "FHWC"
    frames = images.shapes[:, 0].astype(np.int64) if framed else np.ones(len(images), np.int64)
    sample = np.repeat(np.arange(len(images)), frames)
    shapes = images.shapes[:, -3:].astype(np.int64)[sample]
    sizes = elements(shapes)
    offsets = images.offsets[sample] + (np.arange(len(sample)) - np.repeat(frames.cumsum() - frames, frames)) * sizes
    rows = [(name, np.ascontiguousarray(values[sample])) for name, values in steps]
    wrong = np.zeros(len(sample), bool)
    if library in _CHANNELS:
        wrong = ~np.isin(shapes[:, 2], _CHANNELS[library]) & (sizes > 0)
        for m in np.flatnonzero(wrong).tolist():
            ctx.reject(int(sample[m]), "bad_shape", f"parity: {library} takes 1 or 3 channels, got {shapes[m, 2]}")
    shapes[wrong | (sizes == 0)] = 0
    made = _torchvision if library == "torchvision" else _one_by_one
    return made(ctx, images, sample, offsets, shapes, rows, library)


def _allocated(ctx: Context, images: Batch, sample: Any, ends: Any) -> tuple[Batch, Any]:
    """Return an output batch for images (or frames) of the sizes ``ends`` (height, width, channels), and each image's
    offset in it. ``sample``: index of each image's sample."""
    shapes = images.shapes.copy()
    shapes[:, -3:] = 0
    shapes[sample, -3:] = ends
    out = Batch.allocate(ctx.empty, shapes, np.uint8, images.layout, images.samples)
    sizes = elements(np.asarray(ends, np.int64).reshape(-1, 3))
    return out, sizes.cumsum() - sizes + (int(out.offsets[0]) if len(out) else 0)


# -- torchvision ------------------------------------------------------------------------------------------------------


def _torchvision(
    ctx: Context, images: Batch, sample: Any, offsets: Any, shapes: Any, steps: Sequence[Step], _library: str
) -> Batch:
    codes = np.zeros((len(sample), len(steps)), np.int32)
    numbers = np.zeros((len(sample), len(steps), tv.WIDTH))
    for k, (name, values) in enumerate(steps):
        codes[:, k] = _CODES[name]
        if name in _PREPARED:
            for m in range(len(sample)):
                found = _PREPARED[name](values[m].tolist(), *shapes[m, :2].tolist())
                numbers[m, k, : len(found)] = found
        else:
            numbers[:, k, : values.shape[1]] = values
    outline = tv.outline(np.ascontiguousarray(shapes[:, [2, 0, 1]]), codes, numbers)
    for m, problem in tv.problems(outline, codes, numbers).items():
        if elements(shapes[m : m + 1])[0]:
            ctx.reject(int(sample[m]), "bad_shape", problem)
        codes[m], outline[m] = 0, 0
    out, places = _allocated(ctx, images, sample, outline[:, -1][:, [1, 2, 0]])
    _loops.run(images.data, np.ascontiguousarray(offsets), outline, codes, numbers, True, out.data, places)
    return out


def _centred(row: Sequence[float], out: float, half_x: float, half_y: float) -> list[float]:
    """Convert a ``row`` of an affine map from output coordinates with their origin at the corner to ones with their
    origin at the centre (``half_x``, ``half_y``). ``out`` is subtracted from the mapped coordinate."""
    return [row[0], row[1], row[0] * half_x + row[1] * half_y + row[2] - out]


def _tv_affine(p: Sequence[float], rows: int, columns: int) -> list[float]:
    height, width = p[1], p[2]
    first = _centred(p[8:11], columns / 2, width / 2, height / 2)
    second = _centred(p[11:14], rows / 2, width / 2, height / 2)
    return [p[0], p[3], *first, *second, height, width, 0, 0, *p[4:8]]


def _tv_rotate(p: Sequence[float], rows: int, columns: int) -> list[float]:
    matrix = tv.affine_matrix(-p[1], (0.0, 0.0), 1.0, (0.0, 0.0))
    width, height = tv.expanded_size(matrix, columns, rows) if p[2] and rows * columns else (columns, rows)
    return [p[0], p[3], *matrix, height, width, 0, 0, *p[4:8]]


def _tv_perspective(p: Sequence[float], _rows: int, _columns: int) -> list[float]:
    m = [v / p[16] if p[16] else math.nan for v in p[8:16]]
    return [p[0], p[3], *m, 0, 0, *p[4:8]]


def _tv_blur(p: Sequence[float], _rows: int, _columns: int) -> list[float]:
    """Return the parameters of torchvision's gaussian_blur, window lengths and sigmas, with zeros replaced: a window
    length is computed from sigma as in the operator gaussian_blur, a sigma from the window as in torchvision."""
    windows = [int(n) or 2 * math.ceil(3 * s) + 1 for n, s in zip(p[:2], p[2:], strict=True)]
    return [*windows, *(s or n * 0.15 + 0.35 for n, s in zip(windows, p[2:], strict=True))]


_CODES = {
    "brightness": tv.Step.adjust_brightness, "contrast": tv.Step.adjust_contrast, "hue": tv.Step.adjust_hue,
    "saturation": tv.Step.adjust_saturation, "equalize": tv.Step.equalize, "gaussian_blur": tv.Step.gaussian_blur,
    "rotate": tv.Step.affine, "affine": tv.Step.affine, "perspective": tv.Step.perspective,
}  # fmt: skip
_PREPARED: Mapping[str, Callable[[Sequence[float], int, int], list[float]]] = {
    "affine": _tv_affine, "rotate": _tv_rotate, "perspective": _tv_perspective, "gaussian_blur": _tv_blur,
}  # fmt: skip


# -- libraries that are called ---------------------------------------------------------------------------------------


def _one_by_one(
    ctx: Context, images: Batch, sample: Any, offsets: Any, shapes: Any, steps: Sequence[Step], library: str
) -> Batch:
    done = import_module(f".by_{library}", __package__).STEPS
    made: list[U8] = []
    for m, (at, shape) in enumerate(zip(offsets.tolist(), shapes.tolist(), strict=True)):
        pixels: U8 = images.data[at : at + math.prod(shape)].reshape(shape)
        for name, values in steps:
            pixels = done[name](pixels, *values[m].tolist()) if pixels.size else pixels
        made.append(pixels.reshape(*pixels.shape[:2], -1) if pixels.size else pixels)
    out, places = _allocated(ctx, images, sample, np.array([a.shape for a in made]).reshape(-1, 3))
    for at, pixels in zip(places.tolist(), made, strict=True):
        out.data[at : at + pixels.size] = pixels.reshape(-1)
    return out
