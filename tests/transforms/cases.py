"""Chains of transforms, written once for torchvision's and for ours, and the pictures that they are tried on.

``M`` is the module: torchvision.transforms.v2, or dali_run.transforms.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

SEED = 5
KINDS = ("tensors", "gray", "pictures")
"""Tensors of three channels and ragged sizes; of one channel and one size; Pillow's images."""
COLOURED = ("pad_each", "rotate_linear", "rand_augment_strong", "perspective_nearest", "train", "val", "permute")
"""Chains for images of three channels."""
NORM = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
OF_TORCH = ("choice", "erase_random")
"""Chains whose random numbers are torch's own, and others without it."""

CHAINS: dict[str, Callable[[Any], Any]] = {
    "resize": lambda M: M.Resize(50),
    "resize_both": lambda M: M.Resize((40, 70), interpolation=M.InterpolationMode.BICUBIC),
    "resize_nearest": lambda M: M.Resize(33, interpolation=M.InterpolationMode.NEAREST),
    "resize_nearest_exact": lambda M: M.Resize(45, interpolation="nearest-exact"),
    "resize_longer": lambda M: M.Resize(None, max_size=60),
    "resize_larger": lambda M: M.Resize(130, max_size=150),
    "center_crop": lambda M: M.CenterCrop(31),
    "center_crop_padded": lambda M: M.CenterCrop((91, 40)),
    "resized_crop": lambda M: M.RandomResizedCrop(32),
    "resized_crop_cubic": lambda M: M.RandomResizedCrop((32, 48), scale=(0.5, 1), interpolation="bicubic"),
    "crop": lambda M: M.RandomCrop(32, padding=4),
    "crop_reflect": lambda M: M.RandomCrop(32, padding=4, padding_mode="reflect"),
    "crop_needed": lambda M: M.RandomCrop(90, pad_if_needed=True, fill=3),
    "pad": lambda M: M.Pad((1, 2, 3, 4), fill=9),
    "pad_each": lambda M: M.Pad(2, fill=(1, 2, 3)),
    "pad_edge": lambda M: M.Pad(3, padding_mode="edge"),
    "pad_symmetric": lambda M: M.Pad((3, 5), padding_mode="symmetric"),
    "flip": lambda M: M.RandomHorizontalFlip(),
    "flip_vertical": lambda M: M.RandomVerticalFlip(),
    "rotate": lambda M: M.RandomRotation(40),
    "rotate_linear": lambda M: M.RandomRotation((10, 80), interpolation="bilinear", fill=(9, 8, 7)),
    "rotate_expand": lambda M: M.RandomRotation(180, expand=True),
    "rotate_center": lambda M: M.RandomRotation(180, center=(3, 4), fill=5),
    "rotate_90": lambda M: M.RandomRotation((90, 90), expand=True),
    "rotate_180": lambda M: M.RandomRotation((180, 180)),
    "affine": lambda M: M.RandomAffine(30, translate=(0.1, 0.2), scale=(0.6, 1.4), shear=10),
    "affine_linear": lambda M: M.RandomAffine(
        30, translate=(0.1, 0.2), scale=(0.6, 1.4), shear=(1, 2, 3, 9), interpolation="bilinear", fill=7, center=(5, 6)
    ),
    "perspective": lambda M: M.RandomPerspective(p=1),
    "perspective_nearest": lambda M: M.RandomPerspective(0.7, p=0.8, interpolation="nearest", fill=(4, 5, 6)),
    "jitter": lambda M: M.ColorJitter(0.4, 0.4, 0.4, 0.1),
    "jitter_hue": lambda M: M.ColorJitter(brightness=(0.2, 3), hue=0.5),
    "jitter_strong": lambda M: M.ColorJitter(contrast=0.9, saturation=(0, 3)),
    "gray": lambda M: M.Grayscale(),
    "gray_3": lambda M: M.Grayscale(3),
    "gray_random": lambda M: M.RandomGrayscale(0.5),
    "invert": lambda M: M.RandomInvert(),
    "posterize": lambda M: M.RandomPosterize(3),
    "solarize": lambda M: M.RandomSolarize(128),
    "autocontrast": lambda M: M.RandomAutocontrast(),
    "equalize": lambda M: M.RandomEqualize(),
    "sharpen": lambda M: M.RandomAdjustSharpness(2.3),
    "soften": lambda M: M.RandomAdjustSharpness(0, p=1),
    "permute": lambda M: M.RandomChannelPermutation(),
    "blur": lambda M: M.GaussianBlur(5),
    "blur_wide": lambda M: M.GaussianBlur((9, 23), sigma=(0.1, 5)),
    "rand_augment": lambda M: M.RandAugment(),
    "rand_augment_strong": lambda M: M.RandAugment(3, 14, interpolation="bilinear", fill=(1, 2, 3)),
    "trivial_augment": lambda M: M.TrivialAugmentWide(),
    "trivial_augment_linear": lambda M: M.TrivialAugmentWide(interpolation="bilinear"),
    "auto_augment": lambda M: M.AutoAugment(),
    "auto_augment_cifar": lambda M: M.AutoAugment(M.AutoAugmentPolicy.CIFAR10),
    "auto_augment_svhn": lambda M: M.AutoAugment(M.AutoAugmentPolicy.SVHN),
    "apply": lambda M: M.RandomApply([M.ColorJitter(0.4, 0.4, 0.4, 0.1), M.GaussianBlur(3)], p=0.6),
    "choice": lambda M: M.RandomChoice([M.RandomInvert(1), M.GaussianBlur(3), M.RandomPosterize(2, 1)]),
    "order": lambda M: M.RandomOrder([M.RandomInvert(), M.RandomSolarize(99), M.GaussianBlur(3)]),
    "train": lambda M: M.Compose([
        M.RandomResizedCrop(48), M.RandomHorizontalFlip(), M.RandAugment(), M.ToImage(),
        M.ToDtype(float32(M), scale=True), M.Normalize(*NORM), M.RandomErasing(p=0.5),
    ]),
    "contrastive": lambda M: M.Compose([
        M.RandomResizedCrop(48), M.RandomHorizontalFlip(), M.RandomApply([M.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
        M.RandomGrayscale(0.2), M.GaussianBlur(9), M.ToImage(), M.ToDtype(float32(M), scale=True),
    ]),
    "val": lambda M: M.Compose([
        M.Resize(60), M.CenterCrop(48), M.PILToTensor(), M.ConvertImageDtype(float32(M)), M.Normalize(*NORM),
    ]),
    "erase_random": lambda M: M.Compose([
        M.ToImage(), M.ToDtype(float32(M), scale=True), M.RandomErasing(p=0.7, value="random"),
    ]),
    "back": lambda M: M.Compose([M.ToImage(), M.ToPILImage(), M.Resize(20)]),
}  # fmt: skip
TENSORS_ONLY: dict[str, Callable[[Any], Any]] = {
    "resize_plain": lambda M: M.Resize(45, antialias=False),
    "resize_cubic_plain": lambda M: M.Resize(101, interpolation="bicubic", antialias=False),
}
"""Pillow always antialiases."""


def float32(module: Any) -> Any:
    """The type as ``module`` has it."""
    if module.__name__.startswith("torchvision"):
        import torch

        return torch.float32
    return np.float32


def cases() -> list[tuple[str, str]]:
    """Every chain with every kind of images that it takes."""
    found = [(name, kind) for name in CHAINS for kind in KINDS if not (kind == "gray" and name in COLOURED)]
    return found + [(name, kind) for name in TENSORS_ONLY for kind in ("tensors", "gray")]


def chain(name: str, module: Any) -> Any:
    return {**CHAINS, **TENSORS_ONLY}[name](module)


def arrays(kind: str) -> list[np.ndarray]:
    """Six images (C, H, W) with edges, slopes and noise, of integers alone."""
    rng = np.random.default_rng(11)
    channels = 1 if kind == "gray" else 3
    found = []
    for _ in range(6):
        rows, columns = (75, 83) if kind == "gray" else rng.integers(50, 110, 2).tolist()
        y, x = np.mgrid[:rows, :columns]
        planes = [30 + (x * (k + 1) + 2 * y) % 170 + 25 * ((x // 9 + y // 7 + k) % 2) for k in range(channels)]
        noise = rng.integers(-12, 13, (channels, rows, columns))
        found.append(np.clip(np.stack(planes) + noise, 5, 240).astype(np.uint8))
    return found


def pictures(kind: str) -> list[Any]:
    """`arrays`, as Pillow's images where the kind says so."""
    made = arrays(kind)
    return [Image.fromarray(a.transpose(1, 2, 0)) for a in made] if kind == "pictures" else list(made)


def digest(results: list[Any]) -> str:
    """Shapes, types and values in a few letters."""
    total = hashlib.sha256()
    for result in results:
        values = np.asarray(result)
        mode = result.mode if isinstance(result, Image.Image) else ""
        total.update(f"{mode} {values.shape} {values.dtype}".encode())
        total.update(np.ascontiguousarray(values).tobytes())
    return total.hexdigest()[:16]
