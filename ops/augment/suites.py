"""Operations of the published augmentation schemes, and the strength of each.

RandAugment: Cubuk et al., arXiv 1909.13719; TrivialAugment: Mueller and Hutter, arXiv 2103.10158; AutoAugment and its
policies: Cubuk et al., arXiv 1805.09501. Ranges, orders and formulas are those of DALI 2.4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import SpecError

F32 = npt.NDArray[np.float32]

OPERATIONS = (
    "identity", "brightness", "posterize", "solarize", "solarize_add", "invert", "contrast", "equalize",
    "auto_contrast", "color", "sharpness", "rotate", "shear", "translate", "translate_relative",
)  # fmt: skip
"""Names of the operations on an image. An operation's index here is its code (see `augment_cpu`)."""
WIDTHS = {
    **dict.fromkeys(OPERATIONS, 1),
    **dict.fromkeys(("identity", "invert", "equalize", "auto_contrast"), 0),
    **dict.fromkeys(("shear", "translate", "translate_relative"), 2),
    "sharpness": 9,
}
"""Number of parameters of each operation."""
WIDTH = max(WIDTHS.values())

Relative = float | tuple[float, float] | None


def along_x(magnitude: Any) -> list[Any]:
    """Return the parameters of shear_x and translate_x for the magnitude x: (x, 0)."""
    return [magnitude, 0]


def along_y(magnitude: Any) -> list[Any]:
    """Return the parameters of shear_y and translate_y for the magnitude y: (0, y)."""
    return [0, magnitude]


def from_one(magnitude: Any) -> Any:
    """Return the factor of an enhancement, such as brightness: 1 + magnitude. A factor of 1 changes nothing."""
    return 1 + magnitude


def sharpening(magnitude: Any) -> F32:
    """Return a 3x3 filter that sharpens (``magnitude`` up to 1), changes nothing (0), or blurs (-1). The blur has
    weight 5 in the centre and 1 elsewhere; other filters are extrapolated from these two."""
    blur = np.ones((3, 3), np.float32)
    blur[1, 1] = 5
    alone = np.zeros((3, 3), np.float32)
    alone[1, 1] = 1
    mixed: F32 = -magnitude * (blur / np.float32(13)) + (1 + magnitude) * alone
    return mixed


def sharpening_from_one(magnitude: Any) -> F32:
    """Return the filter `sharpening` for magnitudes from 0 (blur) to 2 (sharpest); 1 changes nothing."""
    return sharpening(magnitude - 1)


def poster_mask(magnitude: Any) -> npt.NDArray[np.uint8]:
    """Return the mask of bits for posterize, which keeps the ``magnitude`` upper bits of each value. At least one bit
    is kept, so that no image becomes blank."""
    bits = min(max(int(np.round(magnitude)), 1), 8)
    return np.array(256 - (1 << (8 - bits)), np.uint8)


def added(magnitude: Any) -> np.uint8:
    """Return the number that solarize_add adds to dark values: up to 127. Raises SpecError."""
    if magnitude >= 128:
        raise SpecError(f"solarize_add adds 0 to 127, got {magnitude}")
    return np.uint8(magnitude)


def unchanged(magnitude: Any) -> Any:
    """Return the magnitude itself as the operation's parameter."""
    return np.array(magnitude)


MAX_BINS = 4096
"""Maximum number of bins into which magnitudes are divided: parameters are computed for each bin of each operation."""


@dataclass(frozen=True)
class Augmentation:
    """One operation of an augmentation scheme (suite), with the range of its magnitudes, which is divided into bins."""

    function: str
    """Name of the function in `dali_run.auto_aug.augmentations` that defines the operation."""
    ends: tuple[float, float] | None = None
    """Magnitudes of the first and the last bin; None if the operation has no magnitude."""
    negated: bool = False
    """Whether the magnitude gets a random sign, so that for example rotations go in both directions."""
    parameter: Callable[[Any], Any] = unchanged

    @property
    def operation(self) -> str:
        """Name of the operation, one of `OPERATIONS`."""
        if self.function.startswith("translate"):
            return "translate" if self.function.endswith("_no_shape") else "translate_relative"
        return "shear" if self.function.startswith("shear") else self.function

    def rows(self, bins: int) -> F32:
        """Return the operation's parameters for the magnitude of each bin, and for the negated magnitude: [bins, 2,
        WIDTH]."""
        out = np.zeros((bins, 2, WIDTH), np.float32)
        if self.ends is not None:
            for i, magnitude in enumerate(np.linspace(*self.ends, bins, dtype=np.float32)):
                for sign in (0, 1):
                    value = np.ravel(self.parameter(-magnitude if sign and self.negated else magnitude))
                    out[i, sign, : len(value)] = value
        return out


@dataclass(frozen=True)
class Suite:
    """Operations of an augmentation scheme, from which one is drawn for each image, with the parameters of each."""

    codes: npt.NDArray[np.int32]
    """Codes of the A operations, [A]: indices in `OPERATIONS`."""
    rows: F32
    """Parameters of the operations for each bin and sign, [A, bins, 2, WIDTH]; see `Augmentation.rows`."""
    negated: bool
    """Whether the magnitude of any operation is negated at random."""

    @staticmethod
    def of(augmentations: Sequence[Augmentation], bins: int) -> Suite:
        codes = np.array([OPERATIONS.index(a.operation) for a in augmentations], np.int32)
        rows = np.stack([a.rows(bins) for a in augmentations])
        return Suite(codes, rows, any(a.negated for a in augmentations))

    @staticmethod
    def from_argument(operations: Sequence[Any], bins: int) -> Suite:
        """Return the suite for the argument ``operations``, a list of (name, negated, parameters for each bin and
        sign). Raises SpecError."""
        codes, rows = [], np.zeros((len(operations), bins, 2, WIDTH), np.float32)
        for i, entry in enumerate(operations):
            if not isinstance(entry, (list, tuple)) or len(entry) != 3 or entry[0] not in OPERATIONS:
                raise SpecError(f"operations takes [name, negated, numbers] each, name one of {', '.join(OPERATIONS)}")
            name, _, numbers = entry
            codes.append(OPERATIONS.index(name))
            values = np.asarray(numbers, np.float32)
            if values.size != bins * 2 * WIDTHS[name]:
                raise SpecError(f"operation {name} takes {WIDTHS[name]} numbers for each of {bins} bins and 2 signs")
            rows[i, :, :, : WIDTHS[name]] = values.reshape(bins, 2, WIDTHS[name])
        return Suite(np.array(codes, np.int32), rows, any(bool(e[1]) for e in operations))


def translations(relative: bool, by_default: tuple[float, float], absolute: Relative, share: Relative) -> list[
    Augmentation
]:  # fmt: skip
    """Return the operations translate_x and translate_y, which move images by up to a number of pixels or, with
    ``relative``, by up to a fraction of width and height."""
    if relative and absolute is not None:
        raise SpecError("max_translate_abs is for translations without shape; with shape, give max_translate_rel")
    if not relative and share is not None:
        raise SpecError("max_translate_rel needs shape; without it, give max_translate_abs")
    most: Any = share if relative else absolute
    most = by_default[relative] if most is None else most
    height, width = numbers = most if isinstance(most, (tuple, list)) and len(most) == 2 else (most, most)
    if not all(isinstance(n, (int, float)) for n in numbers):
        what = "max_translate_rel" if relative else "max_translate_abs"
        raise SpecError(f"{what} takes a number, or (height, width), got {most!r}")
    end = "" if relative else "_no_shape"
    return [
        Augmentation("translate_x" + end, (0, width), True, along_x),
        Augmentation("translate_y" + end, (0, height), True, along_y),
    ]


_POINTWISE = (Augmentation("equalize"), Augmentation("auto_contrast"), Augmentation("identity"))


def rand_augment(
    relative: bool = False, absolute: Relative = None, share: Relative = None, monotonic: bool = True
) -> list[Augmentation]:
    """Return the 14 operations of RandAugment. Without ``monotonic``, some operations grow weaker in higher bins, as in
    AutoAugment."""
    moved = translations(relative, (100, 100 / 224), absolute, share)
    turned = [
        Augmentation("shear_x", (0, 0.3), True, along_x),
        Augmentation("shear_y", (0, 0.3), True, along_y),
        Augmentation("rotate", (0, 30), True),
    ]
    if monotonic:
        enhanced = [Augmentation(n, (0, 0.9), True, from_one) for n in ("brightness", "contrast", "color")]
        enhanced += [
            Augmentation("sharpness", (0, 0.9), True, sharpening),
            Augmentation("posterize", (8, 4), False, poster_mask),
            Augmentation("solarize", (256, 0)),
        ]
    else:
        enhanced = [Augmentation(n, (0.1, 1.9)) for n in ("brightness", "contrast", "color")]
        enhanced += [
            Augmentation("sharpness", (0.1, 1.9), False, sharpening_from_one),
            Augmentation("posterize", (0, 4), False, poster_mask),
            Augmentation("solarize", (0, 256)),
        ]
    return [*moved, *turned, *enhanced, *_POINTWISE]


def trivial_augment_wide(
    relative: bool = False, absolute: Relative = None, share: Relative = None
) -> list[Augmentation]:
    """Return the 14 operations of TrivialAugment's wide space."""
    return [
        *translations(relative, (32, 1.0), absolute, share),
        Augmentation("shear_x", (0, 0.99), True, along_x),
        Augmentation("shear_y", (0, 0.99), True, along_y),
        Augmentation("rotate", (0, 135), True),
        *(Augmentation(n, (0.01, 0.99), True, from_one) for n in ("brightness", "contrast", "color")),
        Augmentation("sharpness", (0.01, 0.99), True, sharpening),
        Augmentation("posterize", (8, 2), False, poster_mask),
        Augmentation("solarize", (256, 0)),
        *_POINTWISE,
    ]
