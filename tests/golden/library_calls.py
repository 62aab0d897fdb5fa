"""Calls of other libraries, and the steps with `parity` that give the same pixels.

For tests/ops/libraries/test_presets.py, for make_library_presets.py and for tests/parity_presets.py, which run some of
them in environments of their own: imports nothing but NumPy until a library is called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

AFFINE = (0.9, 0.2, -3.0, -0.15, 1.1, 2.5)
"""From corners of the output to those of the input."""
PERSPECTIVE = (1.1, 0.2, -4.0, -0.1, 1.2, 1.5, 0.001, 0.002, 1.0)
_HALF = np.array([[1, 0, -0.5], [0, 1, -0.5], [0, 0, 1]])


@dataclass(frozen=True)
class Case:
    library: str
    step: str
    """Ours, without `in`, `out` and `parity`."""
    call: Callable[[Any, Any], Any]
    """Of the library's functions (`functions`) and an image as it takes them; of albumentations the transform."""

    @property
    def name(self) -> str:
        return f"{self.library} {self.step}"


def functions(library: str) -> Any:
    """The first argument of calls: the functions of the library."""
    if library == "torchvision":
        from torchvision.transforms.v2 import functional

        return functional
    if library == "pillow":
        import PIL.Image
        import PIL.ImageEnhance
        import PIL.ImageFilter
        import PIL.ImageOps

        return PIL
    if library == "opencv":
        import cv2

        return cv2
    import albumentations

    return albumentations


def called(case: Case, image: np.ndarray) -> np.ndarray:
    """The library's result for an HWC image."""
    given: Any = image
    if case.library == "torchvision":
        import torch

        given = torch.from_numpy(image).permute(2, 0, 1)
    elif case.library == "pillow":
        from PIL import Image

        given = Image.fromarray(image)
    found = case.call(functions(case.library), given)
    if case.library == "albumentations":
        found = found(image=image)["image"]
    return found.permute(1, 2, 0).numpy() if case.library == "torchvision" else np.asarray(found)


def _bilinear() -> Any:
    from torchvision.transforms import InterpolationMode

    return InterpolationMode.BILINEAR


def _grid(image: Any, matrix: Any, fill: Any) -> Any:
    """torchvision's warp by a map, which `affine` and `rotate` are calls of; its map counts from the middle."""
    import torch
    from torchvision.transforms.v2.functional import _geometry

    rows, columns = image.shape[-2:]
    middle = np.array([[1, 0, columns / 2], [0, 1, rows / 2], [0, 0, 1]])
    centred = np.linalg.inv(middle) @ np.array([*matrix, 0, 0, 1]).reshape(3, 3) @ middle
    theta = torch.tensor(centred[:2].reshape(1, 2, 3).tolist(), dtype=torch.float32)
    grid = _geometry._affine_grid(theta, w=columns, h=rows, ow=columns, oh=rows)
    return _geometry._apply_grid_transform(image, grid, "bilinear", fill=fill)


def _jitter(a: Any, **given: float) -> Any:
    """One step of ColorJitter, the others doing nothing."""
    values = {"brightness": 1.0, "contrast": 1.0, "saturation": 1.0, "hue": 0.0, **given}
    return a.ColorJitter(**{k: (v, v) for k, v in values.items()}, p=1)


def _centres(matrix: tuple[float, ...]) -> np.ndarray:
    """A map of corners as one of pixels' middles, 3 x 3."""
    whole = np.array(matrix if len(matrix) == 9 else [*matrix, 0, 0, 1]).reshape(3, 3)
    return _HALF @ whole @ np.linalg.inv(_HALF)


_M, _P = list(AFFINE), list(PERSPECTIVE)
CASES = [
    Case("torchvision", "{op: brightness, brightness: 1.4}", lambda f, x: f.adjust_brightness(x, 1.4)),
    Case("torchvision", "{op: contrast, contrast: 0.6}", lambda f, x: f.adjust_contrast(x, 0.6)),
    Case("torchvision", "{op: contrast, contrast: 1.7}", lambda f, x: f.adjust_contrast(x, 1.7)),
    Case("torchvision", "{op: saturation, saturation: 1.6}", lambda f, x: f.adjust_saturation(x, 1.6)),
    Case("torchvision", "{op: hue, hue: 72}", lambda f, x: f.adjust_hue(x, 0.2)),
    Case("torchvision", "{op: hsv, hue: -36, saturation: 0.7, value: 1.2}",
         lambda f, x: f.adjust_brightness(f.adjust_saturation(f.adjust_hue(x, -0.1), 0.7), 1.2)),
    Case("torchvision", "{op: brightness_contrast, brightness: 0.8, contrast: 1.3}",
         lambda f, x: f.adjust_brightness(f.adjust_contrast(x, 1.3), 0.8)),
    Case("torchvision", "{op: color_twist, brightness: 1.2, contrast: 0.8, saturation: 1.3, hue: 18}",
         lambda f, x: f.adjust_hue(
             f.adjust_saturation(f.adjust_contrast(f.adjust_brightness(x, 1.2), 0.8), 1.3), 0.05)),
    Case("torchvision", "{op: equalize}", lambda f, x: f.equalize(x)),
    Case("torchvision", "{op: gaussian_blur, window_size: 7, sigma: 1.3}",
         lambda f, x: f.gaussian_blur(x, [7, 7], [1.3, 1.3])),
    Case("torchvision", "{op: gaussian_blur, window_size: [3, 9], sigma: [0.7, 2.0]}",
         lambda f, x: f.gaussian_blur(x, [9, 3], [2.0, 0.7])),
    Case("torchvision", "{op: gaussian_blur, window_size: 5}", lambda f, x: f.gaussian_blur(x, [5, 5])),
    Case("torchvision", "{op: rotate, angle: 20, keep_size: true}",
         lambda f, x: f.rotate(x, 20, interpolation=_bilinear())),
    Case("torchvision", "{op: rotate, angle: -35, fill_value: 90}",
         lambda f, x: f.rotate(x, -35, interpolation=_bilinear(), expand=True, fill=[90.0])),
    Case("torchvision", "{op: rotate, angle: 20, keep_size: true, interp_type: NN}", lambda f, x: f.rotate(x, 20)),
    Case("torchvision", f"{{op: warp_affine, matrix: {_M}}}", lambda _f, x: _grid(x, _M, None)),
    Case("torchvision", f"{{op: warp_affine, matrix: {_M}, fill_value: 128}}", lambda _f, x: _grid(x, _M, [128.0])),
    Case("torchvision", f"{{op: experimental.warp_perspective, matrix: {_P}}}",
         lambda f, x: f.perspective(x, None, None, interpolation=_bilinear(), coefficients=_P[:8])),
    Case("torchvision", f"{{op: experimental.warp_perspective, matrix: {_P}, fill_value: [9, 80, 200]}}",
         lambda f, x: f.perspective(x, None, None, interpolation=_bilinear(), coefficients=_P[:8],
                                    fill=[9.0, 80.0, 200.0])),
    Case("pillow", "{op: brightness, brightness: 1.4}", lambda f, x: f.ImageEnhance.Brightness(x).enhance(1.4)),
    Case("pillow", "{op: contrast, contrast: 0.6}", lambda f, x: f.ImageEnhance.Contrast(x).enhance(0.6)),
    Case("pillow", "{op: saturation, saturation: 1.6}", lambda f, x: f.ImageEnhance.Color(x).enhance(1.6)),
    Case("pillow", "{op: hue, hue: 72}", lambda f, x: _pillow_hue(f, x, 0.2)),
    Case("pillow", "{op: brightness_contrast, brightness: 0.8, contrast: 1.3}",
         lambda f, x: f.ImageEnhance.Brightness(f.ImageEnhance.Contrast(x).enhance(1.3)).enhance(0.8)),
    Case("pillow", "{op: color_twist, brightness: 1.2, contrast: 0.8, saturation: 1.3}",
         lambda f, x: f.ImageEnhance.Color(
             f.ImageEnhance.Contrast(f.ImageEnhance.Brightness(x).enhance(1.2)).enhance(0.8)).enhance(1.3)),
    Case("pillow", "{op: equalize}", lambda f, x: f.ImageOps.equalize(x)),
    Case("pillow", "{op: gaussian_blur, sigma: 1.3}", lambda f, x: x.filter(f.ImageFilter.GaussianBlur(1.3))),
    Case("pillow", "{op: gaussian_blur, sigma: [0.7, 2.0]}",
         lambda f, x: x.filter(f.ImageFilter.GaussianBlur((2.0, 0.7)))),
    Case("pillow", "{op: experimental.median_blur, window_size: 5}",
         lambda f, x: x.filter(f.ImageFilter.MedianFilter(5))),
    Case("pillow", "{op: rotate, angle: 20, keep_size: true}",
         lambda f, x: x.rotate(20, f.Image.Resampling.BILINEAR)),
    Case("pillow", "{op: rotate, angle: -35, fill_value: 90}",
         lambda f, x: x.rotate(-35, f.Image.Resampling.BILINEAR, expand=True, fillcolor=(90, 90, 90))),
    Case("pillow", f"{{op: warp_affine, matrix: {_M}, fill_value: 128, size: [30, 50]}}",
         lambda f, x: x.transform((50, 30), f.Image.Transform.AFFINE, _M, f.Image.Resampling.BILINEAR,
                                  fillcolor=(128, 128, 128))),
    Case("pillow", f"{{op: experimental.warp_perspective, matrix: {_P}, interp_type: CUBIC, fill_value: [9, 80, 200]}}",
         lambda f, x: x.transform(x.size, f.Image.Transform.PERSPECTIVE, _P[:8], f.Image.Resampling.BICUBIC,
                                  fillcolor=(9, 80, 200))),
    Case("opencv", "{op: equalize}",
         lambda f, x: np.stack([f.equalizeHist(np.ascontiguousarray(x[:, :, c])) for c in range(3)], axis=2)),
    Case("opencv", "{op: gaussian_blur, sigma: 1.3}", lambda f, x: f.GaussianBlur(x, (0, 0), 1.3)),
    Case("opencv", "{op: gaussian_blur, window_size: [3, 9], sigma: [0.7, 2.0]}",
         lambda f, x: f.GaussianBlur(x, (9, 3), 2.0, sigmaY=0.7)),
    Case("opencv", "{op: experimental.median_blur, window_size: 5}", lambda f, x: f.medianBlur(x, 5)),
    Case("opencv", f"{{op: warp_affine, matrix: {_M}, fill_value: 128, size: [30, 50]}}",
         lambda f, x: f.warpAffine(x, _centres(AFFINE)[:2], (50, 30), flags=f.INTER_LINEAR | f.WARP_INVERSE_MAP,
                                   borderMode=f.BORDER_CONSTANT, borderValue=(128, 128, 128))),
    Case("opencv", f"{{op: warp_affine, matrix: {_M}}}",
         lambda f, x: f.warpAffine(x, _centres(AFFINE)[:2], x.shape[1::-1], flags=f.INTER_LINEAR | f.WARP_INVERSE_MAP,
                                   borderMode=f.BORDER_REPLICATE)),
    Case("opencv", f"{{op: experimental.warp_perspective, matrix: {_P}, fill_value: [9, 80, 200]}}",
         lambda f, x: f.warpPerspective(x, _centres(PERSPECTIVE), x.shape[1::-1],
                                        flags=f.INTER_LINEAR | f.WARP_INVERSE_MAP, borderValue=(9, 80, 200))),
    Case("albumentations", "{op: brightness, brightness: 1.4}", lambda a, _x: _jitter(a, brightness=1.4)),
    Case("albumentations", "{op: contrast, contrast: 0.6}", lambda a, _x: _jitter(a, contrast=0.6)),
    Case("albumentations", "{op: saturation, saturation: 1.6}", lambda a, _x: _jitter(a, saturation=1.6)),
    Case("albumentations", "{op: hue, hue: 72}", lambda a, _x: _jitter(a, hue=0.2)),
    Case("albumentations", "{op: brightness_contrast, contrast: 1.3, brightness_shift: -0.1}",
         lambda a, _x: a.RandomBrightnessContrast((-0.1, -0.1), (0.3, 0.3), ensure_safe_range=False, p=1)),
    Case("albumentations", "{op: gaussian_blur, sigma: 1.3}",
         lambda a, _x: a.GaussianBlur(blur_limit=0, sigma_limit=(1.3, 1.3), p=1)),
    Case("albumentations", "{op: gaussian_blur, window_size: 7, sigma: 2.0}",
         lambda a, _x: a.GaussianBlur(blur_limit=(7, 7), sigma_limit=(2.0, 2.0), p=1)),
    Case("albumentations", "{op: rotate, angle: 20, keep_size: true, fill_value: 0}",
         lambda a, _x: a.Rotate((20, 20), p=1)),
]  # fmt: skip


def _pillow_hue(f: Any, image: Any, turns: float) -> Any:
    """torchvision's definition for Pillow's images."""
    h, s, v = image.convert("HSV").split()
    turned = f.Image.fromarray((np.asarray(h).astype(np.int32) + int(turns * 255)).astype(np.uint8))
    return f.Image.merge("HSV", (turned, s, v)).convert("RGB")


def image(rows: int = 24, columns: int = 32) -> np.ndarray:
    """Smooth colours, an edge, and noise."""
    random = np.random.default_rng(4)
    y, x = np.mgrid[:rows, :columns]
    smooth = np.stack([x * 4, y * 5, 255 - x * 2 - y * 2], axis=2) % 256
    smooth[rows // 3 : rows // 2, columns // 4 : columns // 2] = (250, 20, 120)
    return np.clip(smooth + random.integers(-20, 21, smooth.shape), 0, 255).astype(np.uint8)
