"""RandAugment; see the function `rand_augment`."""

from ..pipelines.python.auto_aug.schemes import (
    apply_rand_augment,
    get_rand_augment_non_monotonic_suite,
    get_rand_augment_suite,
    rand_augment,
)

__all__ = ["apply_rand_augment", "get_rand_augment_non_monotonic_suite", "get_rand_augment_suite", "rand_augment"]
