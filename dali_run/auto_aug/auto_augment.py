"""AutoAugment; see the function `auto_augment`."""

from ..pipelines.python.auto_aug.schemes import (
    apply_auto_augment,
    auto_augment,
    auto_augment_image_net,
    get_image_net_policy,
    get_reduced_cifar10_policy,
    get_reduced_image_net_policy,
    get_svhn_policy,
)

__all__ = [
    "apply_auto_augment",
    "auto_augment",
    "auto_augment_image_net",
    "get_image_net_policy",
    "get_reduced_cifar10_policy",
    "get_reduced_image_net_policy",
    "get_svhn_policy",
]
