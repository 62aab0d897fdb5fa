"""Compiled loop that computes the matrices of colour operators: one call per batch, without the GIL."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import math

import numba


@numba.njit(nogil=True, cache=True)
def twist(hue, saturation, value, brightness, contrast, half, from_yiq, to_yiq, matrices, offsets):
    """Compute ``matrices`` [M, 3, 3] and ``offsets`` [M, 3] of colour changes (`linear.twist`) from [M] or [1]
    values."""
    for m in range(len(matrices)):
        angle = math.radians(float(hue[m if len(hue) > 1 else 0]))
        stretch = float(saturation[m if len(saturation) > 1 else 0])
        slope = float(contrast[m if len(contrast) > 1 else 0])
        light = float(brightness[m if len(brightness) > 1 else 0])
        gain = float(value[m if len(value) > 1 else 0]) * light * slope
        along, over = stretch * math.cos(angle), stretch * math.sin(angle)
        for c in range(3):
            i, q = to_yiq[1, c], to_yiq[2, c]
            y, i, q = to_yiq[0, c], along * i + over * q, along * q - over * i
            for r in range(3):
                matrices[m, r, c] = gain * (from_yiq[r, 0] * y + from_yiq[r, 1] * i + from_yiq[r, 2] * q)
        for r in range(3):
            offsets[m, r] = (half - half * slope) * light
