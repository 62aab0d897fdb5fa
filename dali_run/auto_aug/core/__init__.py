"""Building blocks with which a program defines its own augmentations and policies."""

from ...pipelines.python.auto_aug.augmentation import Augmentation as _Augmentation
from ...pipelines.python.auto_aug.augmentation import augmentation, select, signed_bin
from ...pipelines.python.auto_aug.policy import Policy

__all__ = ["Policy", "_Augmentation", "augmentation", "select", "signed_bin"]
