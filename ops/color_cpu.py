"""The CPU kernel of color_space_conversion: a matrix for every pixel of every sample, without the GIL."""

# What Numba compiles carries no types.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np

jit = numba.njit(nogil=True, cache=True)


@jit
def _level(value):
    """A float32 as uint8: rounded half away from zero and saturated."""
    v = min(max(value, np.float32(0)), np.float32(255))
    t = np.int32(v)
    return np.uint8(t + np.int32(v - np.float32(t) >= np.float32(0.5)))


@jit
def mix(src, base, pixels, channels, matrix, offset, out, out_base):
    """``matrix`` [outputs, 3] times the pixel's channels (1 or 3) plus ``offset`` [outputs], for 1 or 3 outputs."""
    outputs = len(offset)
    for k in range(outputs):
        a, b, c, d = matrix[k, 0], matrix[k, 1], matrix[k, 2], offset[k]
        for i in range(len(base)):
            n = pixels[i]
            o = out[out_base[i] : out_base[i] + n * outputs]
            if channels == 1:
                s = src[base[i] : base[i] + n]
                for x in range(n):
                    o[x * outputs + k] = _level(a * np.float32(s[x]) + d)
            else:
                s = src[base[i] : base[i] + 3 * n]
                for x in range(n):
                    v = a * np.float32(s[3 * x]) + b * np.float32(s[3 * x + 1]) + c * np.float32(s[3 * x + 2])
                    o[x * outputs + k] = _level(v + d)
