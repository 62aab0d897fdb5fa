"""Compiled loops of `linear`: one call per batch, without the GIL."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np

from ..copies.strided_cpu import put

jit = numba.njit(nogil=True, cache=True)


@jit
def scale(src, base, sizes, factor, offset, dst, out_base):
    """Write ``factor`` times every value plus ``offset``."""
    for i in range(len(base)):
        a, b, n = factor[i], offset[i], sizes[i]
        s, o = src[base[i] : base[i] + n], dst[out_base[i] : out_base[i] + n]
        for x in range(n):
            o[x] = put(a * np.float32(s[x]) + b, dst)


@jit
def mix(src, base, pixels, matrices, offsets, dst, out_base):
    """Write each pixel, three values, times the matrix of its image, plus the offsets of its image."""
    for i in range(len(base)):
        m, d, n = matrices[i], offsets[i], pixels[i]
        s, o = src[base[i] : base[i] + 3 * n], dst[out_base[i] : out_base[i] + 3 * n]
        a, b, c = m[0, 0], m[0, 1], m[0, 2]
        e, f, g = m[1, 0], m[1, 1], m[1, 2]
        h, k, l = m[2, 0], m[2, 1], m[2, 2]  # noqa: E741 - the ninth
        p, q, r = d[0], d[1], d[2]
        for x in range(n):
            u, v, w = np.float32(s[3 * x]), np.float32(s[3 * x + 1]), np.float32(s[3 * x + 2])
            o[3 * x] = put(a * u + b * v + c * w + p, dst)
            o[3 * x + 1] = put(e * u + f * v + g * w + q, dst)
            o[3 * x + 2] = put(h * u + k * v + l * w + r, dst)


@jit
def chain(src, base, pixels, matrices, offsets, dst, out_base):
    """Apply K ``matrices`` [M, K, 3, 3] with ``offsets`` to every pixel, one after the other; values are rounded after
    each. Each image gets all of them while it is in the cache."""
    for i in range(len(base)):
        n = 3 * pixels[i]
        one = out_base[i : i + 1]
        mix(src, base[i : i + 1], pixels[i : i + 1], matrices[i : i + 1, 0], offsets[i : i + 1, 0], dst, one)
        for k in range(1, matrices.shape[1] if n else 0):
            mix(dst, one, pixels[i : i + 1], matrices[i : i + 1, k], offsets[i : i + 1, k], dst, one)
