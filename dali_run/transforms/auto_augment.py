"""AutoAugment, RandAugment and TrivialAugmentWide of torchvision."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ..ops.augment.policies import published
from .base import ArgumentError, InterpolationMode, Transform, fill_of, mode_of
from .draws import Draws
from .steps import Done, Shape


class AutoAugmentPolicy(enum.Enum):
    """The data sets for which AutoAugment's policies were found."""

    IMAGENET = "imagenet"
    CIFAR10 = "cifar10"
    SVHN = "svhn"


_SIGNED = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast", "Sharpness")
_PLAIN = ("Identity", "AutoContrast", "Equalize", "Invert")
_RAND = ("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast",
         "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize")  # fmt: skip
_NARROW = {"ShearX": 0.3, "ShearY": 0.3, "Rotate": 30.0, "Brightness": 0.9, "Color": 0.9, "Contrast": 0.9,
           "Sharpness": 0.9}  # fmt: skip
_WIDE = {"ShearX": 0.99, "ShearY": 0.99, "Rotate": 135.0, "Brightness": 0.99, "Color": 0.99, "Contrast": 0.99,
         "Sharpness": 0.99, "TranslateX": 32.0, "TranslateY": 32.0}  # fmt: skip


@cache
def _between(first: float, last: float, bins: int) -> tuple[float, ...]:
    """Return the values of ``torch.linspace(first, last, bins)``."""
    a, b = np.float32(first), np.float32(last)
    if bins == 1:
        return (float(a),)
    step = float((b - a) / np.float32(bins - 1))
    values = [
        float(a) + step * k if k < bins // 2 else float(b) - step * (bins - 1 - k) for k in range(bins)
    ]  # the rounding of torch: product and sum are rounded once
    return tuple(float(np.float32(v)) for v in values)


@cache
def _bits(bins: int, dropped: int) -> tuple[int, ...]:
    """Return for each bin the number of bits that Posterize keeps; halves are rounded to even."""
    by = np.float32((bins - 1) / dropped)
    return tuple(int(np.rint(np.float32(8) - np.float32(k) / by)) for k in range(bins))


def _magnitudes(name: str, bins: int, shape: Shape, wide: bool) -> tuple[float, ...]:
    if name == "Posterize":
        return _bits(bins, 6 if wide else 4)
    if name == "Solarize":
        return _between(1.0, 0.0, bins)
    if name in ("TranslateX", "TranslateY") and not wide:
        return _between(0.0, 150.0 / 331.0 * shape[2 if name == "TranslateX" else 1], bins)
    return _between(0.0, (_WIDE if wide else _NARROW)[name], bins)


class _Augmenting(Transform):
    interpolation: str
    fill: Any

    def _set(self, interpolation: Any, fill: Any) -> None:
        self.interpolation, self.fill = mode_of(interpolation), fill_of(fill)

    def _affine(self, move: Sequence[int], shear: Sequence[float], center: Any) -> Done:
        return ("affine", 0.0, tuple(move), 1.0, tuple(shear), self.interpolation, self.fill, center)

    def _step(self, name: str, m: float) -> list[Done]:
        """Return the steps of operation ``name`` with magnitude ``m``."""
        if name == "Identity":
            return []
        if name in ("ShearX", "ShearY"):
            angle = math.degrees(math.atan(m))
            return [self._affine((0, 0), (angle, 0.0) if name == "ShearX" else (0.0, angle), (0.0, 0.0))]
        if name in ("TranslateX", "TranslateY"):
            return [self._affine((int(m), 0) if name == "TranslateX" else (0, int(m)), (0.0, 0.0), None)]
        if name == "Rotate":
            return [("rotate", m, self.interpolation, False, None, self.fill)]
        if name in ("Brightness", "Color", "Contrast", "Sharpness"):
            kind = {"Color": "saturation"}.get(name, name.lower())
            return [(f"adjust_{kind}", 1.0 + m)]
        if name == "Posterize":
            return [("posterize", int(m))]
        if name == "Solarize":
            return [("solarize", 255.0 * m)]
        return [(name.lower(),)]


class RandAugment(_Augmenting):
    """Apply ``num_ops`` operations in a row, each chosen at random from 14, with magnitude ``magnitude`` of
    ``num_magnitude_bins``."""

    def __init__(
        self, num_ops: int = 2, magnitude: int = 9, num_magnitude_bins: int = 31,
        interpolation: Any = InterpolationMode.NEAREST, fill: Any = None,
    ) -> None:  # fmt: skip
        if not isinstance(num_ops, int) or num_ops < 0:
            raise ArgumentError(f"num_ops must be a non-negative integer, got {num_ops!r}")
        if not 0 <= magnitude < num_magnitude_bins:
            raise ArgumentError(f"magnitude must be below num_magnitude_bins, got {magnitude} of {num_magnitude_bins}")
        self.num_ops, self.magnitude, self.num_magnitude_bins = num_ops, magnitude, num_magnitude_bins
        self._set(interpolation, fill)

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        steps: list[Done] = []
        for _ in range(self.num_ops):
            name = _RAND[draws.integer(0, len(_RAND))]
            m = 0.0 if name in _PLAIN else _magnitudes(name, self.num_magnitude_bins, shape, False)[self.magnitude]
            m = -m if name in _SIGNED and draws.rand() <= 0.5 else m
            steps += self._step(name, m)
        return steps


class TrivialAugmentWide(_Augmenting):
    """Apply one operation, chosen at random from 14, with a random magnitude of ``num_magnitude_bins``."""

    def __init__(
        self, num_magnitude_bins: int = 31, interpolation: Any = InterpolationMode.NEAREST, fill: Any = None
    ) -> None:
        self.num_magnitude_bins = num_magnitude_bins
        self._set(interpolation, fill)

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        name, m = _RAND[draws.integer(0, len(_RAND))], 0.0
        if name not in _PLAIN:
            m = _magnitudes(name, self.num_magnitude_bins, shape, True)[draws.integer(0, self.num_magnitude_bins)]
            m = -m if name in _SIGNED and draws.rand() <= 0.5 else m
        return self._step(name, m)


_POLICIES = {"imagenet": "reduced_image_net", "cifar10": "reduced_cifar10", "svhn": "svhn"}
"""torchvision's names of policies, mapped to the names in `ops.augment.policies`."""


@cache
def policy_of(name: str) -> tuple[tuple[tuple[str, float, int], ...], ...]:
    """Return the sub-policies of a policy. Each has two operations (name, probability, bin of the magnitude); bin -1
    means that the operation has no magnitude."""
    return tuple(
        tuple((_camel(n), p, -1 if m is None else m) for n, p, m in steps) for steps in published(_POLICIES[name])
    )


def _camel(name: str) -> str:
    return "".join(word.title() for word in name.split("_"))


class AutoAugment(_Augmenting):
    """Apply a random sub-policy of a policy. Each of its two operations is applied with its own probability."""

    def __init__(
        self, policy: Any = AutoAugmentPolicy.IMAGENET, interpolation: Any = InterpolationMode.NEAREST, fill: Any = None
    ) -> None:
        name = getattr(policy, "value", policy)
        if name not in _POLICIES:
            raise ArgumentError(f"policy {policy!r} is not one of {', '.join(_POLICIES)}")
        self.policy = AutoAugmentPolicy(name)
        self._set(interpolation, fill)

    def steps(self, draws: Draws, shape: Shape) -> list[Done]:
        sub_policies = policy_of(self.policy.value)
        steps: list[Done] = []
        for name, probability, magnitude in sub_policies[draws.integer(0, len(sub_policies))]:
            if draws.rand() > float(np.float32(probability)):
                continue
            m = 0.0
            if name not in _PLAIN:
                m = _magnitudes(name, 10, shape, False)[magnitude]
                m = -m if name in _SIGNED and draws.rand() <= 0.5 else m
            steps += self._step(name, m)
        return steps
