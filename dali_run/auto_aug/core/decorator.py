"""The decorator that defines an augmentation; this module has the name of DALI's module."""

from __future__ import annotations

from ...pipelines.python.auto_aug.augmentation import augmentation

__all__ = ["augmentation"]
