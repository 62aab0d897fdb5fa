"""TrivialAugment; see the function `trivial_augment_wide`."""

from ..pipelines.python.auto_aug.schemes import (
    apply_trivial_augment,
    get_trivial_augment_wide_suite,
    trivial_augment_wide,
)

__all__ = ["apply_trivial_augment", "get_trivial_augment_wide_suite", "trivial_augment_wide"]
