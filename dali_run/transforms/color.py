"""Transforms that change colours: jitter, grayscale, equalisation and similar ones, blur."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .base import ArgumentError, Device, RandomTransform, Transform, numbers, two
from .draws import Draws
from .steps import Done, Shape


def _range(value: Any, name: str, center: float, low: float, high: float) -> tuple[float, float] | None:
    if value is None:
        return None
    if isinstance(value, (int, float)):
        if value < 0:
            raise ArgumentError(f"{name} must not be negative if it is one number, got {value}")
        minimum = center - value
        value = (max(minimum, 0.0) if center else minimum, center + value)
    if not isinstance(value, (list, tuple)) or len(value) != 2 or not low <= value[0] <= value[1] <= high:
        raise ArgumentError(f"{name} takes a number, or (minimum, maximum) between {low:g} and {high:g}, got {value!r}")
    return None if value[0] == value[1] == center else (float(value[0]), float(value[1]))


class ColorJitter(Transform):
    """Change brightness, contrast, saturation and hue by random amounts, in a random order."""

    _KINDS = ("adjust_brightness", "adjust_contrast", "adjust_saturation", "adjust_hue")

    def __init__(
        self, brightness: Any = None, contrast: Any = None, saturation: Any = None, hue: Any = None,
        device: Device = "cpu",
    ) -> None:  # fmt: skip
        endless = float("inf")
        self.brightness = _range(brightness, "brightness", 1.0, 0, endless)
        self.contrast = _range(contrast, "contrast", 1.0, 0, endless)
        self.saturation = _range(saturation, "saturation", 1.0, 0, endless)
        self.hue = _range(hue, "hue", 0.0, -0.5, 0.5)
        self.device = device

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        order = draws.permutation(4)
        ranges = (self.brightness, self.contrast, self.saturation, self.hue)
        drawn = [None if r is None else draws.uniform(r[0], r[1]) for r in ranges]
        return [(self._KINDS[k], drawn[k]) for k in order if drawn[k] is not None]


class Grayscale(Transform):
    """Convert images to gray, with ``num_output_channels`` (1 or 3) equal channels."""

    def __init__(self, num_output_channels: int = 1, device: Device = "cpu") -> None:
        if num_output_channels not in (1, 3):
            raise ArgumentError(f"num_output_channels must be 1 or 3, got {num_output_channels}")
        self.num_output_channels, self.device = num_output_channels, device

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        return [("rgb_to_grayscale", self.num_output_channels)]


class RGB(Transform):
    """Give gray images three equal channels; leave other images unchanged."""

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        return [("rgb_to_grayscale", 3)] if shape[0] == 1 else []


class RandomGrayscale(RandomTransform):
    """Convert images to gray with probability ``p``; the number of channels stays the same."""

    same = True

    def __init__(self, p: float = 0.1, device: Device = "cpu") -> None:
        super().__init__(p)
        self.device = device

    def chosen(self, draws: Draws, shape: Shape) -> list[Done]:
        return [("rgb_to_grayscale", shape[0])]


class RandomChannelPermutation(Transform):
    """Put the channels in a random order."""

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        return [("permute_channels", *draws.permutation(shape[0]))]


class RandomInvert(RandomTransform):
    """Replace each value by 255 minus the value, with probability ``p``."""

    same = True

    def chosen(self, draws: Draws, shape: Shape) -> list[Done]:
        return [("invert",)]


class RandomPosterize(RandomTransform):
    """Keep only the highest ``bits`` bits of each value, with probability ``p``."""

    same = True

    def __init__(self, bits: int, p: float = 0.5) -> None:
        super().__init__(p)
        if not isinstance(bits, int) or not 0 <= bits <= 8:
            raise ArgumentError(f"bits must be an integer between 0 and 8, got {bits!r}")
        self.bits = bits

    def chosen(self, draws: Draws, shape: Shape) -> list[Done]:
        return [("posterize", self.bits)]


class RandomSolarize(RandomTransform):
    """Invert all values that are at least ``threshold``, with probability ``p``."""

    same = True

    def __init__(self, threshold: float, p: float = 0.5) -> None:
        super().__init__(p)
        self.threshold = threshold

    def chosen(self, draws: Draws, shape: Shape) -> list[Done]:
        return [("solarize", self.threshold)]


class RandomAutocontrast(RandomTransform):
    """Stretch the values of each channel to the range 0 ... 255, with probability ``p``."""

    same = True

    def chosen(self, draws: Draws, shape: Shape) -> list[Done]:
        return [("autocontrast",)]


class RandomEqualize(RandomTransform):
    """Equalise the histogram of each channel, with probability ``p``."""

    same = True

    def chosen(self, draws: Draws, shape: Shape) -> list[Done]:
        return [("equalize",)]


class RandomAdjustSharpness(RandomTransform):
    """Change the sharpness with probability ``p``: factor 0 blurs, 1 leaves the image unchanged, 2 doubles its
    sharpness."""

    same = True

    def __init__(self, sharpness_factor: float, p: float = 0.5) -> None:
        super().__init__(p)
        if sharpness_factor < 0:
            raise ArgumentError(f"sharpness_factor must not be negative, got {sharpness_factor}")
        self.sharpness_factor = sharpness_factor

    def chosen(self, draws: Draws, shape: Shape) -> list[Done]:
        return [("adjust_sharpness", self.sharpness_factor)]


class GaussianBlur(Transform):
    """Blur with a window of ``kernel_size`` (one number, or columns and rows) and a random sigma from the range
    ``sigma``."""

    def __init__(self, kernel_size: Any, sigma: float | Sequence[float] = (0.1, 2.0), device: Device = "cpu") -> None:
        self.kernel_size, self.sigma, self.device = two(kernel_size, "kernel_size"), numbers(sigma, "sigma"), device
        if any(k <= 0 or k % 2 == 0 for k in self.kernel_size):
            raise ArgumentError(f"kernel_size must be odd and positive, got {kernel_size}")
        if not 0 < self.sigma[0] <= self.sigma[1]:
            raise ArgumentError(f"sigma takes positive numbers (minimum, maximum), got {sigma}")

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        sigma = draws.uniform(self.sigma[0], self.sigma[1])
        return [("gaussian_blur", *self.kernel_size, sigma, sigma)]
