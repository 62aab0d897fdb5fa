"""Compiled loops of normalize: sums over parts of samples, and their application. One call per batch, without the
GIL."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np

from .lanes_cpu import LANES
from .reductions_cpu import DEVIATIONS, NARROW, SHAPE, STRIDE, SUM, _offset, _size, gather
from .reductions_cpu import RESULT as STAT

jit = numba.njit(nogil=True, cache=True)


@jit
def sums(src, dims, kept, base, start, center, square, out):
    """Add to ``out``, for each statistic, the sum over reduced dimensions of x, or of (x - center)^2 if ``square``."""
    lanes, middle = np.empty(LANES, np.float64), np.empty(LANES, np.float64)
    for i in range(len(base)):
        gather(src, dims[i], kept, base[i], start[i], DEVIATIONS if square else SUM, center, out, lanes, middle)


@jit
def _apply_period(line, to, period, mean, factor, shift):
    """Normalise a line of values whose means and factors repeat every ``period`` values."""
    width = max(LANES // period, 1) * period
    m, f = np.empty(width, np.float32), np.empty(width, np.float32)
    for j in range(width):
        m[j], f[j] = mean[j % period], factor[j % period]
    at = 0
    while at < len(line):
        n = min(width, len(line) - at)
        s, o = line[at : at + n], to[at : at + n]
        for j in range(n):
            o[j] = (np.float32(s[j]) - m[j]) * f[j] + shift
        at += n


@jit
def apply(src, dims, kept, base, start, mean, factor, shift, out, out_base):
    """Write (x - mean) * factor + shift of every element to the same position in ``out``, float32 without gaps."""
    ndim = dims.shape[1]
    for i in range(len(base)):
        own = dims[i]
        stats, rows = _size(own, 0, kept), _size(own, kept, max(ndim - 1, kept))
        width, step = (own[ndim - 1, SHAPE], own[ndim - 1, STRIDE]) if ndim > kept else (1, 0)
        if kept == 1 and rows == 1 and own[0, STRIDE] == 1 and own[0, STAT] == 1 and 0 < stats == step <= NARROW:
            n, s = stats * width, start[i]
            line, to = src[base[i] : base[i] + n], out[out_base[i] : out_base[i] + n]
            _apply_period(line, to, stats, mean[s : s + stats], factor[s : s + stats], shift)
            continue
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
