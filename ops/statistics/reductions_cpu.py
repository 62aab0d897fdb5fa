"""The CPU kernel of reductions.*: all samples in one call, without the GIL."""

# What Numba compiles carries no types.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: ARG001

from __future__ import annotations

import numba
import numpy as np
from numba import types
from numba.extending import overload

from .normalize_cpu import _offset, _size

SHAPE, STRIDE, _, _, RESULT = range(5)  # columns of rows (strided.Loops)
SUM, SQUARES, DEVIATIONS, MIN, MAX = range(5)

jit = numba.njit(nogil=True, cache=True)


@jit
def reduce(src, rows, kept, base, kind, center, out):
    """``out``: for each result of each sample the sum (or what ``kind`` says) over the reduced dimensions. Extremes of
    floats that hold a NaN are NaN."""
    ndim, first = rows.shape[1], 0
    for i in range(len(base)):
        own = rows[i]
        results, lines = _size(own, 0, kept), _size(own, kept, max(ndim - 1, kept))
        width, step = (own[ndim - 1, SHAPE], own[ndim - 1, STRIDE]) if ndim > kept else (1, 0)
        for k in range(results):
            at = base[i] + _offset(k, own, 0, kept, STRIDE)
            place = first + _offset(k, own, 0, kept, RESULT)
            if lines * width == 0:
                continue
            if kind >= MIN:
                best = out.dtype.type(src[at])
                for r in range(lines):
                    a = at + _offset(r, own, kept, max(ndim - 1, kept), STRIDE)
                    best = _extreme(src, a, width, step, kind == MAX, best)
                out[place] = best
                continue
            total = out.dtype.type(0)
            for r in range(lines):
                a = at + _offset(r, own, kept, max(ndim - 1, kept), STRIDE)
                if kind == SUM:
                    total += _sum(src, a, width, step, out)
                else:
                    total += out.dtype.type(_squares(src, a, width, step, center[place] if kind == DEVIATIONS else 0.0))
            out[place] = total
        first += results


@jit
def _extreme(src, a, width, step, largest, best):
    for x in range(width):
        v = src[a + x * step]
        if largest:
            best = v if v > best or v != v else best
        else:
            best = v if v < best or v != v else best
    return best


@jit
def _squares(src, a, width, step, c):
    """The sum of (x - c)^2, in four parts, which a processor adds up at once."""
    t0 = t1 = t2 = t3 = 0.0
    x = 0
    while x + 4 <= width:
        v0, v1 = np.float64(src[a + x * step]) - c, np.float64(src[a + (x + 1) * step]) - c
        v2, v3 = np.float64(src[a + (x + 2) * step]) - c, np.float64(src[a + (x + 3) * step]) - c
        t0 += v0 * v0
        t1 += v1 * v1
        t2 += v2 * v2
        t3 += v3 * v3
        x += 4
    while x < width:
        v0 = np.float64(src[a + x * step]) - c
        t0 += v0 * v0
        x += 1
    return (t0 + t1) + (t2 + t3)


def _sum(src, a, width, step, out):
    """The sum of a line in the type of ``out`` (compiled below)."""


@overload(_sum)
def _sum_compiled(src, a, width, step, out):
    wide = {types.int64: np.int64, types.uint64: np.uint64}.get(out.dtype, np.float64)
    if wide is not np.float64:

        def whole(src, a, width, step, out):
            total = wide(0)
            for x in range(width):
                total += wide(src[a + x * step])
            return total

        return whole

    def real(src, a, width, step, out):
        t0 = t1 = t2 = t3 = 0.0
        x = 0
        while x + 4 <= width:
            t0 += src[a + x * step]
            t1 += src[a + (x + 1) * step]
            t2 += src[a + (x + 2) * step]
            t3 += src[a + (x + 3) * step]
            x += 4
        while x < width:
            t0 += src[a + x * step]
            x += 1
        return (t0 + t1) + (t2 + t3)

    return real
