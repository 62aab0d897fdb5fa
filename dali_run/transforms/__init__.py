"""Transforms of torchvision v2 on this engine's operators, also for batches. On the CPU the results equal torchvision's
to the bit.

``nvidia.dali.experimental.torchvision`` of DALI is also this module.
"""

from __future__ import annotations

from . import functional
from .auto_augment import AutoAugment, AutoAugmentPolicy, RandAugment, TrivialAugmentWide
from .base import InterpolationMode, Transform
from .color import (
    RGB,
    ColorJitter,
    GaussianBlur,
    Grayscale,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomChannelPermutation,
    RandomEqualize,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from .containers import Compose, RandomApply, RandomChoice, RandomOrder
from .conversion import (
    ConvertImageDtype,
    Normalize,
    PILToTensor,
    RandomErasing,
    ToDtype,
    ToImage,
    ToPILImage,
    ToPureTensor,
    ToTensor,
)
from .draws import manual_seed
from .geometry import (
    CenterCrop,
    Pad,
    RandomAffine,
    RandomCrop,
    RandomHorizontalFlip,
    RandomPerspective,
    RandomResizedCrop,
    RandomRotation,
    RandomVerticalFlip,
    Resize,
)

__all__ = [
    "RGB", "AutoAugment", "AutoAugmentPolicy", "CenterCrop", "ColorJitter", "Compose", "ConvertImageDtype",
    "GaussianBlur", "Grayscale", "InterpolationMode", "Normalize", "PILToTensor", "Pad", "RandAugment",
    "RandomAdjustSharpness", "RandomAffine", "RandomApply", "RandomAutocontrast", "RandomChannelPermutation",
    "RandomChoice", "RandomCrop", "RandomEqualize", "RandomErasing", "RandomGrayscale", "RandomHorizontalFlip",
    "RandomInvert", "RandomOrder", "RandomPerspective", "RandomPosterize", "RandomResizedCrop", "RandomRotation",
    "RandomSolarize", "RandomVerticalFlip", "Resize", "ToDtype", "ToImage", "ToPILImage", "ToPureTensor", "ToTensor",
    "Transform", "TrivialAugmentWide", "functional", "manual_seed",
]  # fmt: skip
