"""Transforms that move pixels: resize, crops, pads, flips, rotations, affine and perspective maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ops.libraries.torchvision import MODES
from .base import ArgumentError, Device, InterpolationMode, RandomTransform, Transform, fill_of, mode_of, numbers, two
from .draws import Draws, logarithms, span
from .steps import Done, Resizes, Shape

BILINEAR, NEAREST = InterpolationMode.BILINEAR, InterpolationMode.NEAREST


def fitted(height: int, width: int, size: Any, max_size: int | None) -> tuple[int, int]:
    """Return (height, width) of an image after a resize to ``size``: (height, width), or the length of the shorter
    side.

    Raises ValueError.
    """
    if size is not None and not isinstance(size, int):
        if len(size) == 2:
            if max_size is not None:
                raise ArgumentError("max_size is allowed only if size is one number, the shorter side")
            return int(size[0]), int(size[1])
        size = size[0]
    short, long = min(height, width), max(height, width)
    if size is None:
        if max_size is None:
            raise ArgumentError("give size or max_size")
        shorter, longer = int(max_size * short / long), max_size
    else:
        shorter, longer = size, int(size * long / short)
        if max_size is not None:
            if max_size <= size:
                raise ArgumentError(f"max_size must be larger than size, {size}, got {max_size}")
            if longer > max_size:
                shorter, longer = int(max_size * shorter / longer), max_size
    return (longer, shorter) if width <= height else (shorter, longer)


def resize_step(region: Sequence[int], size: Sequence[int], interpolation: str, antialias: bool) -> Done:
    """Return the step that resizes ``region`` (top, left, height, width) to ``size``."""
    soft = interpolation in ("bilinear", "bicubic")
    return ("resize", *region, *size, interpolation, bool(antialias) if soft else True)


def crop_step(shape: Shape, top: int, left: int, height: int, width: int) -> list[Done]:
    """Return the step that crops a window. Pixels outside the image are 0."""
    whole = (top, left, height, width) == (0, 0, *shape[1:])
    return [] if whole else [("crop", top, left, height, width)]


def center_crop_steps(shape: Shape, height: int, width: int) -> list[Done]:
    """Return the steps that crop the centred window. An image that is smaller is padded with 0 first."""
    _, rows, columns = shape
    steps: list[Done] = []
    if height > rows or width > columns:
        across, down = max(width - columns, 0), max(height - rows, 0)
        steps.append(("pad", across // 2, down // 2, (across + 1) // 2, (down + 1) // 2, 0, "constant"))
        rows, columns = rows + down, columns + across
        if (rows, columns) == (height, width):
            return steps
    top, left = round((rows - height) / 2), round((columns - width) / 2)
    return steps + crop_step((shape[0], rows, columns), top, left, height, width)


def sides(padding: Any) -> tuple[int, int, int, int]:
    """Return (left, top, right, bottom) for one, two or four numbers. Raises ValueError."""
    values = [padding] if isinstance(padding, int) else padding
    if (
        not isinstance(values, (list, tuple)) or len(values) not in (1, 2, 4)
        or not all(isinstance(v, int) for v in values)
    ):  # fmt: skip
        raise ArgumentError(f"padding takes one, two or four integers (left, top, right, bottom), got {padding!r}")
    if len(values) == 4:
        return values[0], values[1], values[2], values[3]
    return values[0], values[-1], values[0], values[-1]


def _checked_mode(padding_mode: str) -> str:
    if padding_mode not in MODES:
        raise ArgumentError(f"padding_mode {padding_mode!r} is not one of {', '.join(MODES)}")
    return padding_mode


def _angles(value: Any, name: str, counts: Sequence[int] = (2,)) -> tuple[float, ...]:
    if isinstance(value, (int, float)):
        if value < 0:
            raise ArgumentError(f"{name} must not be negative if it is one number, got {value}")
        return -float(value), float(value)
    if not isinstance(value, (list, tuple)) or len(value) not in counts:
        raise ArgumentError(f"{name} takes a number, or {' or '.join(map(str, counts))} numbers, got {value!r}")
    return tuple(float(v) for v in value)


def _centre(center: Any) -> tuple[float, float] | None:
    if center is None:
        return None
    if not isinstance(center, (list, tuple)) or len(center) != 2:
        raise ArgumentError(f"center takes (x, y), got {center!r}")
    return float(center[0]), float(center[1])


class Resize(Transform):
    """Resize to ``size``: (height, width), or the length of the shorter side. If ``size`` is None, ``max_size`` is the
    length of the longer side."""

    def __init__(
        self, size: Any, interpolation: Any = BILINEAR, max_size: int | None = None, antialias: bool | None = True,
        device: Device = "cpu",
    ) -> None:  # fmt: skip
        if size is None and not isinstance(max_size, int):
            raise ArgumentError("max_size must be an integer if size is None")
        self.size = None if size is None else tuple(size) if isinstance(size, (list, tuple)) else size
        if self.size is not None:
            minimum = min(two(self.size, "size"))
            if max_size is not None and (max_size < minimum or (isinstance(self.size, tuple) and len(self.size) == 2)):
                raise ArgumentError(
                    f"max_size needs a size of one number, and must not be smaller than it, got {max_size} and {size!r}"
                )
        elif max_size is not None and max_size <= 0:
            raise ArgumentError(f"max_size must be positive, got {max_size}")
        self.interpolation = mode_of(interpolation)
        self.max_size, self.antialias, self.device = max_size, antialias, device

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        size = fitted(shape[1], shape[2], self.size, self.max_size)
        if size == shape[1:]:
            return []
        return [resize_step((0, 0, *shape[1:]), size, self.interpolation, bool(self.antialias))]


class CenterCrop(Transform):
    """Crop the window of ``size`` in the centre. Smaller images are padded with 0."""

    def __init__(self, size: Any, device: Device = "cpu") -> None:
        self.size, self.device = two(size, "size"), device

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        return center_crop_steps(shape, *self.size)


class RandomResizedCrop(Transform):
    """Crop a window of random area and aspect ratio and resize it to ``size``."""

    def __init__(
        self, size: Any, scale: Sequence[float] = (0.08, 1.0), ratio: Sequence[float] = (3 / 4, 4 / 3),
        interpolation: Any = BILINEAR, antialias: bool | None = True, device: Device = "cpu",
    ) -> None:  # fmt: skip
        self.size, self.device = two(size, "size"), device
        for name, pair in (("scale", scale), ("ratio", ratio)):
            if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not 0 <= numbers(pair, name)[0] <= pair[1]:
                raise ArgumentError(f"{name} takes non-negative numbers (minimum, maximum), got {pair!r}")
        self.scale, self.ratio = tuple(scale), tuple(ratio)
        self.interpolation, self.antialias = mode_of(interpolation), antialias
        self._logarithms = logarithms(self.ratio)
        self._ranges = np.array([*span(*self.scale), *span(*self._logarithms)])

    def window(self, draws: Draws, shape: Shape) -> tuple[int, int, int, int]:
        """Return a random window (top, left, height, width)."""
        _, height, width = shape
        drawn = draws.window(height, width, self._ranges)
        if drawn is not None and drawn[2]:
            return drawn
        for _ in range(10 if drawn is None else 0):
            area = height * width * draws.uniform(self.scale[0], self.scale[1])
            ratio = float(np.float32(math.exp(draws.uniform(self._logarithms[0], self._logarithms[1]))))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                return draws.integer(0, height - h + 1), draws.integer(0, width - w + 1), h, w
        minimum, maximum = min(self.ratio), max(self.ratio)
        w, h = width, height
        if width / height < minimum:
            h = round(w / minimum)
        elif width / height > maximum:
            w = round(h * maximum)
        return (height - h) // 2, (width - w) // 2, h, w

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        return self._steps_of(self.window(draws, shape), shape)

    def _steps_of(self, window: tuple[int, int, int, int], shape: Shape) -> list[Done]:
        if window[2:] == self.size:
            return crop_step(shape, *window)
        return [resize_step(window, self.size, self.interpolation, bool(self.antialias))]

    def _programs(self, draws: Draws, shapes: list[Shape]) -> Sequence[list[Done]]:
        shape, n = shapes[0], len(shapes)
        if n == 1 or shapes.count(shape) < n:
            return super()._programs(draws, shapes)
        numbers_, count = np.empty((n, 6), np.int64), 0
        numbers_[:, 4:] = self.size
        while count < n:
            count += draws.windows(shape[1], shape[2], self._ranges, numbers_[count:, :4])
            if count < n:  # no try succeeded, or the available random words are not enough
                numbers_[count, :4] = self.window(draws, shape)
                count += 1
        if (numbers_[:, 2:4] == numbers_[:, 4:]).all(axis=1).any():
            return [self._steps_of((y, x, h, w), shape) for y, x, h, w in numbers_[:, :4].tolist()]
        soft = self.interpolation in ("bilinear", "bicubic")
        return Resizes(numbers_, self.interpolation, bool(self.antialias) if soft else True)


class Pad(Transform):
    """Pad all sides: by one number, by (horizontal, vertical), or by (left, top, right, bottom)."""

    def __init__(self, padding: Any, fill: Any = 0, padding_mode: str = "constant", device: Device = "cpu") -> None:
        self.padding, self.fill = sides(padding), fill_of(fill)
        self.padding_mode, self.device = _checked_mode(padding_mode), device

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        return [("pad", *self.padding, self.fill, self.padding_mode)]


class RandomCrop(Transform):
    """Crop a window of ``size`` at a random position, after padding."""

    def __init__(
        self, size: Any, padding: Any = None, pad_if_needed: bool = False, fill: Any = 0,
        padding_mode: str = "constant", device: Device = "cpu",
    ) -> None:  # fmt: skip
        if not isinstance(pad_if_needed, bool):
            raise ArgumentError(f"pad_if_needed must be a bool, got {pad_if_needed!r}")
        self.size, self.pad_if_needed, self.device = two(size, "size"), pad_if_needed, device
        self.padding = None if padding is None else sides(padding)
        self.fill, self.padding_mode = fill_of(fill), _checked_mode(padding_mode)

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        channels, rows, columns = shape
        left, top, right, bottom = self.padding or (0, 0, 0, 0)
        rows, columns = rows + top + bottom, columns + left + right
        height, width = self.size
        if self.pad_if_needed:
            down, across = max(height - rows, 0), max(width - columns, 0)
            top, bottom, rows = top + down, bottom + down, rows + 2 * down
            left, right, columns = left + across, right + across, columns + 2 * across
        if rows < height or columns < width:
            raise ArgumentError(f"the window, {height} x {width}, is larger than the image, {rows} x {columns}")
        steps: list[Done] = []
        if left or top or right or bottom:
            steps.append(("pad", left, top, right, bottom, self.fill, self.padding_mode))
        y = draws.integer(0, rows - height + 1) if rows > height else 0
        x = draws.integer(0, columns - width + 1) if columns > width else 0
        return steps + crop_step((channels, rows, columns), y, x, height, width)


class RandomHorizontalFlip(RandomTransform):
    """Mirror left to right with probability ``p``."""

    same, turns = True, False

    def __init__(self, p: float = 0.5, device: Device = "cpu") -> None:
        super().__init__(p)
        self.device = device

    def chosen(self, draws: Draws, shape: Shape) -> list[Done]:
        return [("horizontal_flip",)]


class RandomVerticalFlip(RandomTransform):
    """Mirror upside down with probability ``p``."""

    same, turns = True, True

    def __init__(self, p: float = 0.5, device: Device = "cpu") -> None:
        super().__init__(p)
        self.device = device

    def chosen(self, draws: Draws, shape: Shape) -> list[Done]:
        return [("vertical_flip",)]


class RandomRotation(Transform):
    """Rotate counter-clockwise by a random angle from the range ``degrees``."""

    def __init__(
        self, degrees: Any, interpolation: Any = NEAREST, expand: bool = False, center: Any = None, fill: Any = 0
    ) -> None:
        self.degrees = _angles(degrees, "degrees")
        self.interpolation, self.expand = mode_of(interpolation), expand
        self.center, self.fill = _centre(center), fill_of(fill)

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        angle = draws.uniform(self.degrees[0], self.degrees[1])
        return [("rotate", angle, self.interpolation, self.expand, self.center, self.fill)]


class RandomAffine(Transform):
    """Rotate, shift, scale and shear by random amounts about the centre."""

    def __init__(
        self, degrees: Any, translate: Sequence[float] | None = None, scale: Sequence[float] | None = None,
        shear: Any = None, interpolation: Any = NEAREST, fill: Any = 0, center: Any = None,
    ) -> None:  # fmt: skip
        self.degrees = _angles(degrees, "degrees")
        if translate is not None and (len(translate) != 2 or not all(0 <= t <= 1 for t in translate)):
            raise ArgumentError(f"translate takes two fractions of the image between 0 and 1, got {translate}")
        if scale is not None and (len(scale) != 2 or min(scale) <= 0):
            raise ArgumentError(f"scale takes positive numbers (minimum, maximum), got {scale}")
        self.translate, self.scale = translate, scale
        self.shear = None if shear is None else _angles(shear, "shear", (2, 4))
        self.interpolation, self.fill, self.center = mode_of(interpolation), fill_of(fill), _centre(center)

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        angle = draws.uniform(self.degrees[0], self.degrees[1])
        move = (0, 0)
        if self.translate is not None:
            x, y = float(self.translate[0] * shape[2]), float(self.translate[1] * shape[1])
            move = round(draws.uniform(-x, x)), round(draws.uniform(-y, y))
        scale = 1.0 if self.scale is None else draws.uniform(self.scale[0], self.scale[1])
        across = down = 0.0
        if self.shear is not None:
            across = draws.uniform(self.shear[0], self.shear[1])
            down = draws.uniform(self.shear[2], self.shear[3]) if len(self.shear) == 4 else 0.0
        return [("affine", angle, move, scale, (across, down), self.interpolation, self.fill, self.center)]


def perspective_coefficients(start: Sequence[Sequence[float]], end: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return the eight coefficients, as float32, of the map that takes the four points ``end`` to ``start``."""
    rows = []
    for (x, y), (u, v) in zip(end, start, strict=True):
        rows.append([x, y, 1, 0, 0, 0, -u * x, -u * y])
        rows.append([0, 0, 0, x, y, 1, -v * x, -v * y])
    solved = np.linalg.lstsq(np.array(rows, np.float64), np.array(start, np.float64).reshape(8), rcond=None)[0]
    return tuple(solved.astype(np.float32).astype(np.float64).tolist())


class RandomPerspective(RandomTransform):
    """Move the corners inwards by random distances, at most half of ``distortion_scale`` of the image, with probability
    ``p``."""

    def __init__(
        self, distortion_scale: float = 0.5, p: float = 0.5, interpolation: Any = BILINEAR, fill: Any = 0
    ) -> None:
        super().__init__(p)
        if not 0 <= distortion_scale <= 1:
            raise ArgumentError(f"distortion_scale must be between 0 and 1, got {distortion_scale}")
        self.distortion_scale, self.interpolation = distortion_scale, mode_of(interpolation)
        self.fill = fill_of(fill)

    def chosen(self, draws: Draws, shape: Shape) -> list[Done]:
        _, height, width = shape
        down = int(self.distortion_scale * (height // 2)) + 1
        across = int(self.distortion_scale * (width // 2)) + 1
        end = []
        for right, low in ((False, False), (True, False), (True, True), (False, True)):
            x = draws.integer(width - across, width) if right else draws.integer(0, across)
            y = draws.integer(height - down, height) if low else draws.integer(0, down)
            end.append((x, y))
        start = [(0, 0), (width - 1, 0), (width - 1, height - 1), (0, height - 1)]
        return [("perspective", perspective_coefficients(start, end), self.interpolation, self.fill)]
