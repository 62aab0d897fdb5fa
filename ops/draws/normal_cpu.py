"""Compiled loops for normal numbers by the Box-Muller transform, in float32 without fused multiply-adds:
cuda/normal.cuh performs the same operations, so that CPU and GPU, and processors with and without vector instructions,
draw the same bits."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .philox_cpu import VECTOR, WORDS, draw, line

F, N = np.float32, np.int32

_UNIT, _TINY = F(2.0**-32), F(np.finfo(np.float32).tiny)
_HALF_ROOT = N(0x3F3504F3)
"""Bit pattern of sqrt(1/2)."""


@njit(error_model="numpy")
def standard_normal(first: Any, second: Any) -> Any:
    """Return a standard normal number from two 32-bit random words. The logarithm is taken of the one that is not 0.

    Logarithm, sine and cosine are Cephes' logf, sinf and cosf; angles are reduced to a quarter circle before rounding.
    """
    a, b = F(first) * _UNIT, F(second) * _UNIT
    v = a if a == 0 else b
    u = b if a == 0 else a
    bits = np.float32(max(u, _TINY)).view(np.int32)
    exponent = N(N(bits - _HALF_ROOT) >> N(23))
    m = np.int32(bits - N(exponent << N(23))).view(np.float32) - F(1)  # the mantissa is in [sqrt(1/2), sqrt(2))
    e, z = F(exponent), m * m
    y = F(7.0376836292e-2)
    y = y * m - F(1.1514610310e-1)
    y = y * m + F(1.1676998740e-1)
    y = y * m - F(1.2420140846e-1)
    y = y * m + F(1.4249322787e-1)
    y = y * m - F(1.6668057665e-1)
    y = y * m + F(2.0000714765e-1)
    y = y * m - F(2.4999993993e-1)
    y = y * m + F(3.3333331174e-1)
    y = (y * m) * z
    y = y - e * F(2.12194440e-4)
    y = (m + (y - F(0.5) * z)) + e * F(0.693359375)
    radius = np.sqrt(F(-2) * y)
    quarters = v * F(4)
    quarter = N(quarters + F(0.5))
    x = (quarters - F(quarter)) * F(1.5707963267948966)
    z = x * x
    sine = ((F(8.3321608736e-3) - F(1.9515295891e-4) * z) * z - F(1.6666654611e-1)) * z * x + x
    cosine = ((F(2.443315711809948e-5) * z - F(1.388731625493765e-3)) * z + F(4.166664568298827e-2)) * z * z
    cosine = cosine - F(0.5) * z + F(1)
    found = sine if quarter & N(1) else cosine
    found = -found if N(quarter + N(1)) & N(2) else found
    return radius * found


@njit(nogil=True, cache=True, error_model="numpy")
def many_normal(key: Any, sequences: Any, counts: Any, skip: Any, numbers: Any) -> Any:
    """Return normally distributed numbers; ``numbers`` [N, 3]: mean, standard deviation and an unused number."""
    out, at = np.empty(counts.sum(), np.float32), 0
    a, b = np.empty(WORDS, np.uint32), np.empty(WORDS, np.uint32)
    for i in range(len(counts)):
        mean, stddev = numbers[i, 0], numbers[i, 1]
        for low in range(0, counts[i], WORDS):
            n = min(WORDS, counts[i] - low)
            if n < VECTOR:
                for j in range(n):
                    a[j] = draw(key, sequences[i], (low + j) * skip)
                    b[j] = draw(key, sequences[i], (low + j) * skip + 1)
            else:
                line(key, sequences[i], np.int64(low * skip), np.int64(skip), a[:n])
                line(key, sequences[i], np.int64(low * skip + 1), np.int64(skip), b[:n])
            to = out[at : at + n]
            for j in range(n):
                to[j] = F(np.float64(standard_normal(a[j], b[j])) * stddev + mean)
            at += n
    return out
