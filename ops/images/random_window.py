"""Random crop windows, for random_resized_crop, random_crop_generator and decoders.image_random_crop."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ..batch import I64
from ..errors import SpecError
from ..kernels import Kernels
from ..streams import F32, Streams

_kernels: Any = Kernels(".random_window_cpu", __package__)

WINDOW_SALT = 0x12345678ABCDEFE
"""Number that DALI 2.4 XORs into the key of the generators of its random windows: ``ctx.streams(WINDOW_SALT)``."""


def check_window_ranges(aspect: tuple[float, ...], area: tuple[float, ...]) -> None:
    """Raise SpecError if no window can have these ranges of aspect ratio (width/height) and area (fraction)."""
    for name, values, positive in (("random_aspect_ratio", aspect, True), ("random_area", area, False)):
        if len(values) != 2 or not 0 <= values[0] <= values[1] or (positive and values[0] == 0):
            raise SpecError(f"{name} needs two positive numbers, the smaller first, got {list(values)}")


@lru_cache(64)
def _range(ends: tuple[float, float]) -> F32:
    return np.array(ends, np.float32)


def random_windows(
    streams: Streams,
    heights: I64,
    widths: I64,
    aspect: tuple[float, float] = (3 / 4, 4 / 3),
    area: tuple[float, float] = (0.08, 1.0),
    attempts: int = 10,
) -> tuple[I64, I64]:
    """Draw one window in each image: return anchors int64[N, 2] (y, x) and shapes int64[N, 2] (h, w).

    ``aspect`` is the range of width/height, ``area`` the range of the window's share of the image. The algorithm and
    its float32 arithmetic are DALI 2.4's, so that equal streams give equal windows. Images without pixels get windows
    without pixels.
    """
    anchors, shapes = np.empty((2, len(heights), 2), np.int64)
    _kernels.windows(
        streams.handle, streams.sequence, np.asarray(heights, np.int64), np.asarray(widths, np.int64),
        _range(aspect), _range(area), attempts, anchors, shapes,
    )  # fmt: skip
    return anchors, shapes
