"""Steps on Pillow images, computed by Pillow itself, because torchvision's results are those of Pillow."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from ..ops.libraries.torchvision import affine_matrix
from .steps import Done

_METHODS = {
    "nearest": Image.Resampling.NEAREST, "nearest-exact": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC, "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING, "lanczos": Image.Resampling.LANCZOS,
}  # fmt: skip
_GRAYS = ("1", "L", "I", "F")


def apply(image: Image.Image, step: Done) -> Image.Image:
    """Return ``image`` after ``step``."""
    result: Image.Image = globals()[f"_{step[0]}"](image, *step[1:])
    return result


def bands(image: Image.Image) -> int:
    """Return the number of channels of the tensor that the image becomes."""
    return len(image.getbands())


def _fill(image: Image.Image, fill: Any) -> Any:
    count = bands(image)
    values = list(fill) if isinstance(fill, (list, tuple)) else [fill or 0]
    if len(values) not in (1, count):
        raise ValueError(f"fill takes one number, or one per channel of the image, which has {count}, got {fill}")
    values = values * count if len(values) == 1 else values
    if image.mode != "F":
        values = [int(v) for v in values]
    return values[0] if count == 1 else tuple(values)


def _adjust_brightness(image: Image.Image, factor: float) -> Image.Image:
    return ImageEnhance.Brightness(image).enhance(factor)


def _adjust_contrast(image: Image.Image, factor: float) -> Image.Image:
    return ImageEnhance.Contrast(image).enhance(factor)


def _adjust_saturation(image: Image.Image, factor: float) -> Image.Image:
    return ImageEnhance.Color(image).enhance(factor)


def _adjust_sharpness(image: Image.Image, factor: float) -> Image.Image:
    return ImageEnhance.Sharpness(image).enhance(factor)


def _adjust_hue(image: Image.Image, factor: float) -> Image.Image:
    if image.mode in _GRAYS:
        return image
    hue, saturation, value = image.convert("HSV").split()
    turned = np.asarray(hue) + np.int32(factor * 255).astype(np.uint8)
    return Image.merge("HSV", (Image.fromarray(turned), saturation, value)).convert(image.mode)


def _posterize(image: Image.Image, bits: int) -> Image.Image:
    return ImageOps.posterize(image, bits)


def _solarize(image: Image.Image, threshold: Any) -> Image.Image:
    return ImageOps.solarize(image, threshold)


def _invert(image: Image.Image) -> Image.Image:
    return ImageOps.invert(image)


def _autocontrast(image: Image.Image) -> Image.Image:
    return ImageOps.autocontrast(image)


def _equalize(image: Image.Image) -> Image.Image:
    return ImageOps.equalize(image)


def _rgb_to_grayscale(image: Image.Image, channels: int) -> Image.Image:
    gray = image.convert("L")
    return gray if channels == 1 else Image.merge("RGB", (gray, gray, gray))


def _horizontal_flip(image: Image.Image) -> Image.Image:
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def _vertical_flip(image: Image.Image) -> Image.Image:
    return image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)


def _crop(image: Image.Image, top: int, left: int, height: int, width: int) -> Image.Image:
    return image.crop((left, top, left + width, top + height))


def _pad(image: Image.Image, left: int, top: int, right: int, bottom: int, fill: Any, mode: str) -> Image.Image:
    if min(left, top, right, bottom) < 0:
        image = image.crop((-min(left, 0), -min(top, 0), image.width + min(right, 0), image.height + min(bottom, 0)))
        left, top, right, bottom = (max(v, 0) for v in (left, top, right, bottom))
    if mode == "constant":
        return ImageOps.expand(image, (left, top, right, bottom), fill=_fill(image, fill))
    pixels = np.asarray(image)
    widths = [(top, bottom), (left, right)] + [(0, 0)] * (pixels.ndim - 2)
    kind: Any = mode
    return Image.fromarray(np.pad(pixels, widths, mode=kind))


def _resize(
    image: Image.Image, top: int, left: int, height: int, width: int, rows: int, columns: int, interpolation: str,
    _antialias: bool,
) -> Image.Image:  # fmt: skip
    if (height, width) != (image.height, image.width):
        image = image.crop((left, top, left + width, top + height))
    return image if image.size == (columns, rows) else image.resize((columns, rows), _METHODS[interpolation])


def _affine(
    image: Image.Image, angle: float, translate: Any, scale: float, shear: Any, mode: str, fill: Any, center: Any
) -> Image.Image:
    middle = (image.width * 0.5, image.height * 0.5) if center is None else center
    matrix = affine_matrix(angle, translate, scale, shear, middle)
    method: Any = _METHODS[mode]
    return image.transform(image.size, Image.Transform.AFFINE, matrix, method, fillcolor=_fill(image, fill))


def _rotate(image: Image.Image, angle: float, mode: str, expand: bool, center: Any, fill: Any) -> Image.Image:
    method: Any = _METHODS[mode]
    return image.rotate(angle, method, expand, center, fillcolor=_fill(image, fill))


def _perspective(image: Image.Image, coefficients: Any, mode: str, fill: Any) -> Image.Image:
    method: Any = _METHODS[mode]
    return image.transform(image.size, Image.Transform.PERSPECTIVE, coefficients, method, fillcolor=_fill(image, fill))


def array(image: Image.Image) -> Any:
    """Return the pixels as an array (channels, height, width): uint8, or the type of Pillow modes with 16 and 32
    bits."""
    pixels = np.asarray(image)
    if image.mode == "1":
        pixels = pixels.astype(np.uint8) * np.uint8(255)
    elif image.mode.startswith("I;16"):
        pixels = pixels.astype(np.int16)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def image(pixels: Any, mode: str | None) -> Image.Image:
    """Return a Pillow image of ``pixels`` (channels, height, width), uint8 or floats of 0 ... 1.

    Raises ValueError if Pillow has no such image.
    """
    if pixels.dtype.kind == "f" and mode != "F":
        pixels = (pixels * np.float32(255)).astype(np.uint8)
    count = len(pixels)
    if not 1 <= count <= 4 or (count > 1 and pixels.dtype != np.uint8):
        raise ValueError(f"Pillow has no images with {count} channels of {pixels.dtype}")
    result = Image.fromarray(pixels[0] if count == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    if mode is None or result.mode == mode:
        return result
    allowed = {1: (), 2: ("LA",), 3: ("RGB", "YCbCr", "HSV"), 4: ("RGBA", "CMYK", "RGBX")}[count]
    if mode not in allowed:
        raise ValueError(
            f"an image with {count} channels of {pixels.dtype} has mode {result.mode} in Pillow, not {mode}"
        )
    return Image.frombytes(mode, result.size, result.tobytes())
