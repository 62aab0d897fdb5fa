"""The transforms as functions, with fixed instead of random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from . import pillow
from .base import Device, Transform, fill_of, mode_of, two
from .conversion import Normalize, PILToTensor, ToDtype, ToPILImage, ToTensor
from .draws import Draws
from .geometry import (
    BILINEAR,
    NEAREST,
    CenterCrop,
    Pad,
    Resize,
    crop_step,
    perspective_coefficients,
    resize_step,
)
from .images import is_image
from .steps import Done, Shape

__all__ = [
    "adjust_brightness",
    "adjust_contrast",
    "adjust_hue",
    "adjust_saturation",
    "adjust_sharpness",
    "affine",
    "autocontrast",
    "center_crop",
    "crop",
    "equalize",
    "erase",
    "gaussian_blur",
    "get_dimensions",
    "get_image_size",
    "get_size",
    "hflip",
    "horizontal_flip",
    "invert",
    "normalize",
    "pad",
    "permute_channels",
    "perspective",
    "pil_to_tensor",
    "posterize",
    "resize",
    "resized_crop",
    "rgb_to_grayscale",
    "rotate",
    "solarize",
    "to_dtype",
    "to_grayscale",
    "to_image",
    "to_pil_image",
    "to_tensor",
    "vertical_flip",
    "vflip",
]  # fmt: skip


class _Fixed(Transform):
    """Transform whose steps do not depend on the image."""

    def __init__(self, *steps: Done, device: Device = "cpu") -> None:
        self._steps, self.device = list(steps), device

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        return self._steps


def adjust_brightness(inpt: Any, brightness_factor: float) -> Any:
    """Multiply the values by ``brightness_factor``, which must not be negative."""
    return _Fixed(("adjust_brightness", _factor(brightness_factor)))(inpt)


def adjust_contrast(inpt: Any, contrast_factor: float) -> Any:
    """Change the contrast: factor 0 returns the mean gray, 1 the image itself, 2 twice the contrast."""
    return _Fixed(("adjust_contrast", _factor(contrast_factor)))(inpt)


def adjust_saturation(inpt: Any, saturation_factor: float) -> Any:
    """Change the saturation: factor 0 returns a gray image, 1 the image itself, 2 twice the saturation."""
    return _Fixed(("adjust_saturation", _factor(saturation_factor)))(inpt)


def adjust_sharpness(inpt: Any, sharpness_factor: float) -> Any:
    """Change the sharpness: factor 0 returns a blurred image, 1 the image itself, 2 twice the sharpness."""
    return _Fixed(("adjust_sharpness", _factor(sharpness_factor)))(inpt)


def _factor(value: float) -> float:
    if value < 0:
        raise ValueError(f"the factor must not be negative, got {value}")
    return float(value)


def adjust_hue(inpt: Any, hue_factor: float) -> Any:
    """Rotate the hue by ``hue_factor`` turns, between -0.5 and 0.5."""
    if not -0.5 <= hue_factor <= 0.5:
        raise ValueError(f"hue_factor must be between -0.5 and 0.5, got {hue_factor}")
    return _Fixed(("adjust_hue", float(hue_factor)))(inpt)


def posterize(inpt: Any, bits: int) -> Any:
    """Keep only the highest ``bits`` bits of each value."""
    if not isinstance(bits, int) or not 0 <= bits <= 8:
        raise ValueError(f"bits must be an integer between 0 and 8, got {bits!r}")
    return _Fixed(("posterize", bits))(inpt)


def solarize(inpt: Any, threshold: float) -> Any:
    """Invert all values that are at least ``threshold``."""
    return _Fixed(("solarize", threshold))(inpt)


def invert(inpt: Any) -> Any:
    """Replace each value by 255 minus the value; for floats, by 1 minus the value."""
    return _Fixed(("invert",))(inpt)


def autocontrast(inpt: Any) -> Any:
    """Stretch the values of each channel to the range 0 ... 255."""
    return _Fixed(("autocontrast",))(inpt)


def equalize(inpt: Any) -> Any:
    """Equalise the histogram of each channel."""
    return _Fixed(("equalize",))(inpt)


def rgb_to_grayscale(inpt: Any, num_output_channels: int = 1, device: Device = "cpu") -> Any:
    """Convert to gray, with 1 or 3 equal channels."""
    if num_output_channels not in (1, 3):
        raise ValueError(f"num_output_channels must be 1 or 3, got {num_output_channels}")
    return _Fixed(("rgb_to_grayscale", num_output_channels), device=device)(inpt)


to_grayscale = rgb_to_grayscale


def permute_channels(inpt: Any, permutation: Sequence[int]) -> Any:
    """Reorder the channels: channel k of the result is channel permutation[k] of the input."""
    if sorted(permutation) != list(range(len(permutation))) or len(permutation) != get_dimensions(inpt)[0]:
        raise ValueError(f"permutation must contain each channel once, got {list(permutation)}")
    return _Fixed(("permute_channels", *permutation))(inpt)


def gaussian_blur(inpt: Any, kernel_size: Any, sigma: Any = None, device: Device = "cpu") -> Any:
    """Blur with a window of ``kernel_size`` (one odd number, or columns and rows).

    ``sigma`` is one number, or two (horizontal, vertical), by default 0.15 * kernel_size + 0.35.
    """
    size = two(kernel_size, "kernel_size")
    if any(k <= 0 or k % 2 == 0 for k in size):
        raise ValueError(f"kernel_size must be odd and positive, got {kernel_size}")
    sigmas = [0.15 * k + 0.35 for k in size] if sigma is None else sigma
    sigmas = [sigmas] if isinstance(sigmas, (int, float)) else list(sigmas)
    if len(sigmas) not in (1, 2) or min(sigmas) <= 0:
        raise ValueError(f"sigma takes one or two positive numbers, got {sigma}")
    return _Fixed(("gaussian_blur", *size, float(sigmas[0]), float(sigmas[-1])), device=device)(inpt)


def horizontal_flip(inpt: Any, device: Device = "cpu") -> Any:
    """Mirror left to right."""
    return _Fixed(("horizontal_flip",), device=device)(inpt)


def vertical_flip(inpt: Any, device: Device = "cpu") -> Any:
    """Mirror upside down."""
    return _Fixed(("vertical_flip",), device=device)(inpt)


hflip, vflip = horizontal_flip, vertical_flip


class _Window(Transform):
    def __init__(self, window: tuple[int, int, int, int], device: Device) -> None:
        self._window, self.device = window, device

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        return crop_step(shape, *self._window)


def crop(inpt: Any, top: int, left: int, height: int, width: int, device: Device = "cpu") -> Any:
    """Return a window of the image; pixels outside the image are 0."""
    return _Window((top, left, height, width), device)(inpt)


def center_crop(inpt: Any, output_size: Any, device: Device = "cpu") -> Any:
    """Return the window of ``output_size`` in the centre of the image."""
    return CenterCrop(output_size, device)(inpt)


def pad(
    inpt: Any, padding: Any, fill: Any = 0, padding_mode: str = "constant", device: Device = "cpu"
) -> Any:  # fmt: skip
    """Pad all sides: by one number, by (horizontal, vertical), or by (left, top, right, bottom)."""
    return Pad(padding, fill, padding_mode, device)(inpt)


def resize(
    inpt: Any, size: Any, interpolation: Any = BILINEAR, max_size: int | None = None, antialias: bool | None = True,
    device: Device = "cpu",
) -> Any:  # fmt: skip
    """Resize to ``size``: (height, width), or the length of the shorter side."""
    return Resize(size, interpolation, max_size, antialias, device)(inpt)


class _ResizedCrop(Transform):
    def __init__(self, window: tuple[int, int, int, int], resized: Resize) -> None:
        self._window, self._resized, self.device = window, resized, resized.device

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        top, left, height, width = self._window
        cut = crop_step(shape, *self._window)
        inside = top >= 0 and left >= 0 and top + height <= shape[1] and left + width <= shape[2]
        steps = self._resized.steps(draws, (shape[0], height, width))
        if not steps or not inside:
            return cut + steps
        how = self._resized
        return [resize_step(self._window, steps[0][5:7], how.interpolation, bool(how.antialias))]


def resized_crop(
    inpt: Any, top: int, left: int, height: int, width: int, size: Any, interpolation: Any = BILINEAR,
    antialias: bool | None = True, device: Device = "cpu",
) -> Any:  # fmt: skip
    """Return a window of the image, resized to ``size``."""
    return _ResizedCrop((top, left, height, width), Resize(size, interpolation, None, antialias, device))(inpt)


def affine(
    inpt: Any, angle: float, translate: Sequence[float], scale: float, shear: Any, interpolation: Any = NEAREST,
    fill: Any = None, center: Any = None,
) -> Any:  # fmt: skip
    """Rotate by ``angle`` degrees clockwise, scale and shear about the centre, and shift by ``translate``."""
    if scale <= 0:
        raise ValueError(f"scale must be positive, got {scale}")
    shears = [shear, 0.0] if isinstance(shear, (int, float)) else list(shear)
    shears = shears * 2 if len(shears) == 1 else shears
    if len(translate) != 2 or len(shears) != 2:
        raise ValueError(f"translate and shear take two numbers, got {translate} and {shear}")
    middle = None if center is None else tuple(map(float, center))
    how = mode_of(interpolation), fill_of(fill), middle
    return _Fixed(("affine", float(angle), tuple(translate), float(scale), tuple(shears), *how))(inpt)


def rotate(
    inpt: Any, angle: float, interpolation: Any = NEAREST, expand: bool = False, center: Any = None, fill: Any = None
) -> Any:
    """Rotate by ``angle`` degrees counter-clockwise. With ``expand`` the result is large enough for the corners."""
    middle = None if center is None else tuple(map(float, center))
    return _Fixed(("rotate", float(angle), mode_of(interpolation), expand, middle, fill_of(fill)))(inpt)


def perspective(
    inpt: Any, startpoints: Any = None, endpoints: Any = None, interpolation: Any = BILINEAR, fill: Any = None,
    coefficients: Sequence[float] | None = None,
) -> Any:  # fmt: skip
    """Apply the perspective map that moves the four points (x, y) ``startpoints`` to ``endpoints``, or that has eight
    ``coefficients``."""
    if (coefficients is None) == (startpoints is None or endpoints is None):
        raise ValueError("give either startpoints and endpoints, or coefficients")
    if coefficients is None:
        coefficients = perspective_coefficients(startpoints, endpoints)
    if len(coefficients) != 8:
        raise ValueError(f"coefficients takes eight numbers, got {len(coefficients)}")
    return _Fixed(("perspective", tuple(coefficients), mode_of(interpolation), fill_of(fill)))(inpt)


def erase(inpt: Any, i: int, j: int, h: int, w: int, v: Any, inplace: bool = False) -> Any:
    """Fill ``h`` x ``w`` pixels, from row ``i`` and column ``j`` on, with ``v``: one value per channel, or an array (C,
    h, w)."""
    del inplace
    values = np.asarray(v, np.float32)
    if values.ndim == 3 and values.shape[1:] == (1, 1):
        values = values.reshape(-1)
    return _Fixed(("erase", i, j, h, w, np.atleast_1d(values)))(inpt)


def normalize(
    inpt: Any, mean: Sequence[float], std: Sequence[float], inplace: bool = False, device: Device = "cpu"
) -> Any:
    """Return (value - mean) / std for each channel of a float image."""
    return Normalize(mean, std, inplace, device)(inpt)


def to_dtype(inpt: Any, dtype: Any = "float32", scale: bool = False) -> Any:
    """Convert to ``dtype``. With ``scale``, the whole range of an integer type is scaled to 0 ... 1 of a float type,
    and the other way round."""
    return ToDtype(dtype, scale)(inpt)


def to_image(inpt: Any) -> Any:
    """Return a Pillow image, or an array (H, W, C), as a tensor (C, H, W); tensors are returned unchanged."""
    return PILToTensor()(_planes(inpt))


def _planes(inpt: Any) -> Any:
    """Return a NumPy image (H, W, C) or (H, W) as a tensor (C, H, W) of torch; other inputs are returned unchanged."""
    if not isinstance(inpt, np.ndarray):
        return inpt
    if inpt.ndim not in (2, 3):
        raise ValueError(f"an array must be (H, W) or (H, W, C), got {inpt.ndim} dimensions")
    planes = np.ascontiguousarray(np.atleast_3d(inpt).transpose(2, 0, 1))
    try:
        import torch
    except ImportError:
        return planes
    return torch.from_numpy(planes)


def pil_to_tensor(inpt: Any, device: Device = "cpu") -> Any:
    """Return a Pillow image as a tensor (C, H, W)."""
    return PILToTensor(device)(inpt)


def to_tensor(inpt: Any) -> Any:
    """Return a Pillow image, or an array (H, W, C), as a tensor (C, H, W) of float32, with bytes divided by 255."""
    return ToTensor()(_planes(inpt))


def to_pil_image(inpt: Any, mode: str | None = None) -> Any:
    """Return a tensor (C, H, W), or an array (H, W, C), as a Pillow image."""
    return ToPILImage(mode)(_planes(inpt))


def get_dimensions(inpt: Any) -> list[int]:
    """Return [channels, height, width] of an image. Raises TypeError if ``inpt`` is not an image."""
    if isinstance(inpt, Image.Image):
        return [pillow.bands(inpt), inpt.height, inpt.width]
    if not is_image(inpt) or inpt.ndim < 2:
        raise TypeError(f"an image is needed, got {type(inpt).__name__}")
    return [1, *inpt.shape] if inpt.ndim == 2 else list(inpt.shape[-3:])


def get_size(inpt: Any) -> list[int]:
    """Return [height, width] of an image."""
    return get_dimensions(inpt)[1:]


def get_image_size(inpt: Any) -> list[int]:
    """Return [width, height] of an image."""
    return get_dimensions(inpt)[:0:-1]
