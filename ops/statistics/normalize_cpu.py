"""The CPU kernels of normalize: sums over parts of samples, and their use. All samples in one call, without the GIL."""

# What Numba compiles carries no types.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np

SHAPE, STRIDE, _, _, STAT = range(5)  # columns of dims (strided.Loops)

jit = numba.njit(nogil=True, cache=True)


@jit
def _offset(i, dims, first, last, column):
    """Where the row-major index ``i`` over dimensions first ... last - 1 lies, in steps of ``column``."""
    at = 0
    for d in range(last - 1, first - 1, -1):
        n = dims[d, SHAPE]
        at += i % n * dims[d, column]
        i //= n
    return at


@jit
def _size(dims, first, last):
    size = 1
    for d in range(first, last):
        size *= dims[d, SHAPE]
    return size


@jit
def sums(src, dims, kept, base, start, center, square, out):
    """Add to ``out`` the sums of x, or of (x - center)^2, over the reduced dimensions, for each statistic."""
    ndim = dims.shape[1]
    for i in range(len(base)):
        own = dims[i]
        stats, rows = _size(own, 0, kept), _size(own, kept, max(ndim - 1, kept))
        width, step = (own[ndim - 1, SHAPE], own[ndim - 1, STRIDE]) if ndim > kept else (1, 0)
        for k in range(stats):
            at = base[i] + _offset(k, own, 0, kept, STRIDE)
            stat = start[i] + _offset(k, own, 0, kept, STAT)
            total = 0.0
            for r in range(rows):
                a = at + _offset(r, own, kept, max(ndim - 1, kept), STRIDE)
                if square:
                    c = center[stat]
                    for x in range(width):
                        v = np.float64(src[a + x * step]) - c
                        total += v * v
                else:
                    for x in range(width):
                        total += np.float64(src[a + x * step])
            out[stat] += total


@jit
def apply(src, dims, kept, base, start, mean, factor, shift, out, out_base):
    """(x - mean) * factor + shift of every element, at the same place in the packed float32 ``out``."""
    ndim = dims.shape[1]
    for i in range(len(base)):
        own = dims[i]
        stats, rows = _size(own, 0, kept), _size(own, kept, max(ndim - 1, kept))
        width, step = (own[ndim - 1, SHAPE], own[ndim - 1, STRIDE]) if ndim > kept else (1, 0)
        for k in range(stats):
            at = _offset(k, own, 0, kept, STRIDE)
            stat = start[i] + _offset(k, own, 0, kept, STAT)
            m, f = mean[stat], factor[stat]
            for r in range(rows):
                a = at + _offset(r, own, kept, max(ndim - 1, kept), STRIDE)
                s, o = base[i] + a, out_base[i] + a
                if step == 1:  # the compiler vectorises it
                    line, to = src[s : s + width], out[o : o + width]
                    for x in range(width):
                        to[x] = (np.float32(line[x]) - m) * f + shift
                    continue
                for x in range(width):
                    out[o + x * step] = (np.float32(src[s + x * step]) - m) * f + shift
