"""The augmentations that the policies choose from. ``shear_x.augmentation(mag_range=(0, 0.5))`` returns a changed copy
of one."""

from ..ops.augment.suites import added as solarize_add_shift
from ..ops.augment.suites import along_x as warp_x_param
from ..ops.augment.suites import along_y as warp_y_param
from ..ops.augment.suites import from_one as shift_enhance_range
from ..ops.augment.suites import poster_mask as poster_mask_uint8
from ..ops.augment.suites import sharpening as sharpness_kernel
from ..ops.augment.suites import sharpening_from_one as sharpness_kernel_shifted
from ..pipelines.python.auto_aug.augmentation import augmentation
from ..pipelines.python.auto_aug.builtin import (
    auto_contrast,
    brightness,
    color,
    contrast,
    equalize,
    identity,
    invert,
    posterize,
    rotate,
    sharpness,
    shear_x,
    shear_y,
    solarize,
    solarize_add,
    translate_x,
    translate_x_no_shape,
    translate_y,
    translate_y_no_shape,
)

__all__ = [
    "augmentation",
    "auto_contrast",
    "brightness",
    "color",
    "contrast",
    "equalize",
    "identity",
    "invert",
    "poster_mask_uint8",
    "posterize",
    "rotate",
    "sharpness",
    "sharpness_kernel",
    "sharpness_kernel_shifted",
    "shear_x",
    "shear_y",
    "shift_enhance_range",
    "solarize",
    "solarize_add",
    "solarize_add_shift",
    "translate_x",
    "translate_x_no_shape",
    "translate_y",
    "translate_y_no_shape",
    "warp_x_param",
    "warp_y_param",
]
