"""DALI's augmentations as functions, each one operation of the operator `auto_aug.augment`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....ops.augment import suites
from ....ops.augment.suites import added, along_x, along_y, from_one, poster_mask, sharpening
from ..data_node import DataNode, apply
from .augmentation import Augmentation, augmentation


def _augment(data: DataNode, operation: str, parameters: Any = None, **more: Any) -> Any:
    arguments = {"operation": operation, **more}
    if parameters is not None:
        is_node = isinstance(parameters, DataNode)
        arguments["parameters"] = parameters if is_node else np.ravel(parameters).tolist()
    return apply("auto_aug.augment", [data], arguments)


def _moved(data: DataNode, operation: str, parameters: Any, fill_value: Any, interp_type: Any, **more: Any) -> Any:
    return _augment(data, operation, parameters, fill_value=fill_value, interp_type=interp_type, **more)


@augmentation(mag_range=(0, 0.3), randomly_negate=True, mag_to_param=along_x)
def shear_x(data: Any, shear: Any, fill_value: Any = 128, interp_type: Any = None) -> Any:
    """Shear along rows: each row moves by ``shear`` times its index."""
    return _moved(data, "shear", shear, fill_value, interp_type)


@augmentation(mag_range=(0, 0.3), randomly_negate=True, mag_to_param=along_y)
def shear_y(data: Any, shear: Any, fill_value: Any = 128, interp_type: Any = None) -> Any:
    """Shear along columns: each column moves by ``shear`` times its index."""
    return _moved(data, "shear", shear, fill_value, interp_type)


@augmentation(mag_range=(0.0, 1.0), randomly_negate=True, mag_to_param=along_x)
def translate_x(data: Any, rel_offset: Any, shape: Any, fill_value: Any = 128, interp_type: Any = None) -> Any:
    """Translate horizontally by ``rel_offset``, a fraction of the width in ``shape``."""
    return _moved(data, "translate_relative", rel_offset, fill_value, interp_type, shape=shape)


@augmentation(mag_range=(0, 250), randomly_negate=True, mag_to_param=along_x, name="translate_x")
def translate_x_no_shape(data: Any, offset: Any, fill_value: Any = 128, interp_type: Any = None) -> Any:
    """Translate horizontally by ``offset`` pixels."""
    return _moved(data, "translate", offset, fill_value, interp_type)


@augmentation(mag_range=(0.0, 1.0), randomly_negate=True, mag_to_param=along_y)
def translate_y(data: Any, rel_offset: Any, shape: Any, fill_value: Any = 128, interp_type: Any = None) -> Any:
    """Translate vertically by ``rel_offset``, a fraction of the height in ``shape``."""
    return _moved(data, "translate_relative", rel_offset, fill_value, interp_type, shape=shape)


@augmentation(mag_range=(0, 250), randomly_negate=True, mag_to_param=along_y, name="translate_y")
def translate_y_no_shape(data: Any, offset: Any, fill_value: Any = 128, interp_type: Any = None) -> Any:
    """Translate vertically by ``offset`` pixels."""
    return _moved(data, "translate", offset, fill_value, interp_type)


@augmentation(mag_range=(0, 30), randomly_negate=True)
def rotate(data: Any, angle: Any, fill_value: Any = 128, interp_type: Any = None, rotate_keep_size: bool = True) -> Any:
    """Rotate counter-clockwise by ``angle`` degrees."""
    if rotate_keep_size:
        return _moved(data, "rotate", angle, fill_value, interp_type)
    arguments = {"angle": angle, "fill_value": fill_value, "keep_size": False}
    if interp_type is not None:
        arguments["interp_type"] = interp_type
    return apply("rotate", [data], arguments)


@augmentation(mag_range=(0, 0.9), randomly_negate=True, mag_to_param=from_one)
def brightness(data: Any, parameter: Any) -> Any:
    """Multiply all values by ``parameter``."""
    return _augment(data, "brightness", parameter)


@augmentation(mag_range=(0, 0.9), randomly_negate=True, mag_to_param=from_one)
def contrast(data: Any, parameter: Any) -> Any:
    """Multiply the difference between each value and the mean of the image by ``parameter``. The mean weights the
    channels as for luma."""
    return _augment(data, "contrast", parameter)


@augmentation(mag_range=(0, 0.9), randomly_negate=True, mag_to_param=from_one)
def color(data: Any, parameter: Any) -> Any:
    """Multiply the saturation by ``parameter``."""
    return _augment(data, "color", parameter)


@augmentation(mag_range=(0, 0.9), randomly_negate=True, mag_to_param=sharpening)
def sharpness(data: Any, kernel: Any) -> Any:
    """Sharpen or blur with a 3x3 filter; at the borders the image is mirrored, whereas Pillow leaves border pixels
    unchanged."""
    return _augment(data, "sharpness", kernel)


@augmentation(mag_range=(0, 4), mag_to_param=poster_mask)
def posterize(data: Any, mask: Any) -> Any:
    """Apply a bitwise AND with ``mask`` to all values."""
    return _augment(data, "posterize", mask)


@augmentation(mag_range=(256, 0))
def solarize(data: Any, threshold: Any) -> Any:
    """Invert (255 minus value) all values from ``threshold`` on."""
    return _augment(data, "solarize", threshold)


@augmentation(mag_range=(0, 110), mag_to_param=added)
def solarize_add(data: Any, shift: Any) -> Any:
    """Add ``shift`` to the values below 128."""
    return _augment(data, "solarize_add", shift)


@augmentation
def invert(data: Any, _: Any) -> Any:
    """Invert all values: 255 minus the value."""
    return _augment(data, "invert")


@augmentation
def equalize(data: Any, _: Any) -> Any:
    """Equalize the histogram of each channel, with OpenCV's algorithm."""
    return _augment(data, "equalize")


@augmentation
def auto_contrast(data: Any, _: Any) -> Any:
    """Stretch the values of each channel to the full range 0 to 255."""
    return _augment(data, "auto_contrast")


@augmentation
def identity(data: Any, _: Any) -> Any:
    """Return the data unchanged."""
    return data


BY_NAME: dict[str, Augmentation] = {
    name: value for name, value in list(globals().items()) if isinstance(value, Augmentation)
}
_OPERATIONS = {a.op: suites.Augmentation(name).operation for name, a in BY_NAME.items()}
"""For the function of each built-in augmentation, the name of the native operation, such as ``solarize``."""
_KEYWORDS = ("fill_value", "interp_type", "shape")


def of(entry: suites.Augmentation) -> Augmentation:
    """Return the built-in augmentation for ``entry``, an augmentation in the list of a published paper."""
    function = BY_NAME[entry.function]
    if entry.ends is None:
        return function
    plain = entry.parameter is suites.unchanged
    return function.augmentation(entry.ends, entry.negated, None if plain else entry.parameter)


def as_operations(augmentations: Sequence[Augmentation], bins: int, argument_names: Sequence[str]) -> list[Any] | None:
    """Return ``augmentations`` as the argument ``operations`` of the operator that applies built-in augmentations; None
    if one of them is defined by the user.

    ``argument_names`` are the names of the arguments that the program passed.
    """
    rows = []
    if any(name not in _KEYWORDS for name in argument_names):
        return None
    for a in augmentations:
        if type(a) is not Augmentation or a.op not in _OPERATIONS:
            return None
        name = _OPERATIONS[a.op]
        if name == "translate_relative" and "shape" not in argument_names:
            return None
        magnitudes, width = a.magnitudes(bins), suites.WIDTHS[name]
        if (magnitudes is None) != (width == 0):
            return None
        numbers: Any = []
        if width:
            signs = (1, -1) if a.randomly_negate else (1, 1)
            both = np.stack([s * magnitudes for s in signs], axis=1).reshape(-1)
            values = a.parameters(both)
            if values.size != bins * 2 * width:
                return None
            numbers = values.astype(np.float64).reshape(-1).tolist()
        rows.append([name, a.randomly_negate, numbers])
    return rows
