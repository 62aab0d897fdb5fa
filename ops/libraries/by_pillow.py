"""Steps of `presets` that call Pillow. Angles, maps and filters are Pillow's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

U8 = npt.NDArray[np.uint8]
_METHODS = (Image.Resampling.NEAREST, Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)


def _on_images(change: Callable[..., Image.Image]) -> Callable[..., U8]:
    """Convert ``change``, a function of Pillow images, to a function of arrays [H, W, 1 or 3]."""

    def on_arrays(pixels: U8, *numbers: float) -> U8:
        image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
        return np.asarray(change(image, *numbers))

    return on_arrays


def turned_hue(image: Image.Image, turns: float) -> Image.Image:
    """Return ``image`` with its hue shifted by ``turns`` of the colour circle, in Pillow's HSV, whose H has 256 steps,
    as torchvision does for Pillow images."""
    if image.mode != "RGB":
        return image
    hue, saturation, value = image.convert("HSV").split()
    turned = np.asarray(hue) + np.int32(turns * 255).astype(np.uint8)
    return Image.merge("HSV", (Image.fromarray(turned), saturation, value)).convert("RGB")


def _blur(image: Image.Image, _columns: float, _rows: float, x: float, y: float) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur((x, y)))


def _fill(image: Image.Image, fills: tuple[float, ...]) -> Any:
    values = [int(v) for v in fills]
    return values[0] if image.mode == "L" else tuple(values[:3])


def _rotate(
    image: Image.Image, filter_code: float, angle: float, grows: float, _filled: float, *fills: float
) -> Image.Image:
    return image.rotate(angle, _METHODS[int(filter_code)], bool(grows), fillcolor=_fill(image, fills))


def _mapped(
    image: Image.Image, filter_code: float, height: float, width: float, _filled: float, *more: float
) -> Image.Image:
    affine = len(more) == 10
    data = more[4:] if affine else tuple(v / more[12] for v in more[4:12])
    kind = Image.Transform.AFFINE if affine else Image.Transform.PERSPECTIVE
    size = int(width), int(height)
    return image.transform(size, kind, data, _METHODS[int(filter_code)], fillcolor=_fill(image, more[:4]))


STEPS: Mapping[str, Callable[..., U8]] = {
    "brightness": _on_images(lambda image, factor: ImageEnhance.Brightness(image).enhance(factor)),
    "contrast": _on_images(lambda image, factor: ImageEnhance.Contrast(image).enhance(factor)),
    "saturation": _on_images(lambda image, factor: ImageEnhance.Color(image).enhance(factor)),
    "hue": _on_images(turned_hue),
    "equalize": _on_images(ImageOps.equalize),
    "gaussian_blur": _on_images(_blur),
    "rotate": _on_images(_rotate),
    "affine": _on_images(_mapped),
    "perspective": _on_images(_mapped),
}
