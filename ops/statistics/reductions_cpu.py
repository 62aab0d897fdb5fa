"""Compiled loops of reductions.* and of normalize's statistics: one call per batch, without the GIL."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np

from .lanes_cpu import (
    BLOCKS,
    LANES,
    deviation_blocks,
    fold_largest,
    fold_least,
    fold_sum,
    largest_blocks,
    least_blocks,
    square_blocks,
    sum_blocks,
)

SHAPE, STRIDE, _, _, RESULT = range(5)  # columns of rows (strided.Loops)
SUM, SQUARES, DEVIATIONS, MIN, MAX = range(5)
NARROW = 16
"""Maximum number of adjacent results, such as those of channels, that are computed together, pixel by pixel."""

_FIRST = np.int64(0)
"""The constant 0 as a variable: Numba gives a literal in a call a type of its own, and would compile the function
twice."""

jit = numba.njit(nogil=True, cache=True)


@jit
def _offset(i, dims, first, last, column):
    """Return the offset of row-major index ``i`` over dimensions first ... last - 1, whose strides are in
    ``column``."""
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
def _take(src, at, count, kind, center, out, place):
    """Add each of ``count`` adjacent values (or combine it by ``kind``) to a separate result, from ``place`` on."""
    line, to = src[at : at + count], out[place : place + count]
    if kind == SUM:
        for j in range(count):
            to[j] += line[j]
    elif kind == SQUARES:
        for j in range(count):
            v = np.float64(line[j])
            to[j] += v * v
    elif kind == DEVIATIONS:
        middle = center[place : place + count]
        for j in range(count):
            v = np.float64(line[j]) - middle[j]
            to[j] += v * v
    elif kind == MIN:
        for j in range(count):
            v, best = line[j], to[j]
            to[j] = v if (v < best) | (v != v) else best
    else:
        for j in range(count):
            v, best = line[j], to[j]
            to[j] = v if (v > best) | (v != v) else best


@jit
def _take_one(src, at, count, step, kind, center, out, place):
    """Add ``count`` values that are ``step`` elements apart to one result, or combine them by ``kind``."""
    total = out[place]
    c = center[place] if kind == DEVIATIONS else 0.0
    for x in range(count):
        value = src[at + x * step]
        if kind == SUM:
            total += value
        elif kind <= DEVIATIONS:
            v = np.float64(value) - c
            total += out.dtype.type(v * v)
        elif kind == MIN:
            total = value if (value < total) | (value != value) else total
        else:
            total = value if (value > total) | (value != value) else total
    out[place] = total


@jit
def _take_threes(src, at, results, kind, out, place):
    """Add groups of three adjacent values to ``results`` results from ``place`` on, or combine them by ``kind``;
    deviations are not supported."""
    to, s = out[place : place + results], src[at : at + 3 * results]
    if kind == SUM:
        for k in range(results):
            to[k] += (out.dtype.type(s[3 * k]) + out.dtype.type(s[3 * k + 1])) + out.dtype.type(s[3 * k + 2])
    elif kind == SQUARES:
        for k in range(results):
            u, v, w = np.float64(s[3 * k]), np.float64(s[3 * k + 1]), np.float64(s[3 * k + 2])
            to[k] += (u * u + v * v) + w * w
    elif kind == MIN:
        for k in range(results):
            u, v, w, best = s[3 * k], s[3 * k + 1], s[3 * k + 2], to[k]
            best = u if (u < best) | (u != u) else best
            best = v if (v < best) | (v != v) else best
            to[k] = w if (w < best) | (w != w) else best
    else:
        for k in range(results):
            u, v, w, best = s[3 * k], s[3 * k + 1], s[3 * k + 2], to[k]
            best = u if (u > best) | (u != u) else best
            best = v if (v > best) | (v != v) else best
            to[k] = w if (w > best) | (w != w) else best


@jit
def _take_narrow(src, at, results, apart, width, kind, center, out, place):
    """Add groups of a few adjacent values, ``apart`` from group to group, to ``results`` results from ``place`` on, or
    combine them by ``kind``."""
    if width == 3 and apart == 3 and kind != DEVIATIONS:
        _take_threes(src, at, results, kind, out, place)
        return
    to = out[place : place + results]
    for x in range(width):
        if kind == SUM:
            for k in range(results):
                to[k] += src[at + k * apart + x]
        elif kind == SQUARES:
            for k in range(results):
                v = np.float64(src[at + k * apart + x])
                to[k] += v * v
        elif kind == DEVIATIONS:
            middle = center[place : place + results]
            for k in range(results):
                v = np.float64(src[at + k * apart + x]) - middle[k]
                to[k] += v * v
        elif kind == MIN:
            for k in range(results):
                v, best = src[at + k * apart + x], to[k]
                to[k] = v if (v < best) | (v != v) else best
        else:
            for k in range(results):
                v, best = src[at + k * apart + x], to[k]
                to[k] = v if (v > best) | (v != v) else best


@jit
def _take_blocks(src, at, blocks, apart, kind, lanes, middle):
    """Add ``blocks`` of LANES values, ``apart`` from each other, to the partial results, or combine them by
    ``kind``."""
    while blocks > 0:
        some = min(blocks, BLOCKS)
        if kind == SUM:
            sum_blocks(src, at, some, apart, lanes, middle)
        elif kind == SQUARES:
            square_blocks(src, at, some, apart, lanes, middle)
        elif kind == DEVIATIONS:
            deviation_blocks(src, at, some, apart, lanes, middle)
        elif kind == MIN:
            least_blocks(src, at, some, apart, lanes, middle)
        else:
            largest_blocks(src, at, some, apart, lanes, middle)
        at += some * apart
        blocks -= some


@jit
def _take_period(src, at, count, period, kind, center, out, place, lanes, middle):
    """Add ``count`` times ``period`` adjacent values to ``period`` results, or combine them by ``kind``. ``lanes`` and
    ``middle`` are working memory."""
    width, total = LANES // period * period, count * period
    blocks = min(total // width, (len(src) - at - LANES) // width + 1)  # only blocks whose excess values can be read
    if blocks < 4:
        for k in range(period):
            _take_one(src, at + k, count, period, kind, center, out, place + k)
        return
    for j in range(LANES):
        lanes[j] = out[place + j % period] if kind >= MIN else 0
        if kind == DEVIATIONS:
            middle[j] = center[place + j % period]
    _take_blocks(src, at, blocks, width, kind, lanes, middle)
    for first in range(blocks * width, total, width):
        _take(src, at + first, min(width, total - first), kind, middle, lanes, _FIRST)
    if period > 1:
        for j in range(width):
            value, best = lanes[j], out[place + j % period]
            if kind < MIN:
                best += value
            elif (value != value) | (value < best if kind == MIN else value > best):
                best = value
            out[place + j % period] = best
    elif kind < MIN:
        out[place] += fold_sum(lanes)
    else:
        out[place] = fold_least(lanes) if kind == MIN else fold_largest(lanes)


@jit
def gather(src, own, kept, base, start, kind, center, out, lanes, middle):
    """Add the sums (or another quantity ``kind``) over the reduced dimensions of one sample, which begins at ``base``,
    to ``out`` from ``start`` on. ``own`` [D, 5]: the ``kept`` dimensions of its results, then the reduced ones."""
    ndim = own.shape[0]
    outer, k_size, k_step, k_result = 0, 1, 0, 0
    if kept:
        outer = kept - 1
        k_size, k_step, k_result = own[outer, SHAPE], own[outer, STRIDE], own[outer, RESULT]
    last, width, step = ndim, 1, 0
    if ndim > kept:
        last = ndim - 1
        width, step = own[last, SHAPE], own[last, STRIDE]
    if width == 0 or k_size == 0:
        return
    for o in range(_size(own, 0, outer)):
        for r in range(_size(own, kept, last)):
            at = base + _offset(o, own, 0, outer, STRIDE) + _offset(r, own, kept, last, STRIDE)
            place = start + _offset(o, own, 0, outer, RESULT)
            beside = k_step == 1 and k_result == 1
            if (k_size == 1 and step == 1) or (beside and k_size <= NARROW and step == k_size):
                runs, period = 1, k_size
            elif step == 1 and width >= 4 * LANES:
                runs, period = k_size, 1
            else:
                runs, period = 0, 1
            for k in range(runs):
                _take_period(
                    src, at + k * k_step, width, period, kind, center, out, place + k * k_result, lanes, middle
                )
            if runs:
                continue
            if beside and k_size > NARROW:
                for x in range(width):
                    _take(src, at + x * step, k_size, kind, center, out, place)
            elif step == 1 and width <= NARROW and k_result == 1:
                _take_narrow(src, at, k_size, k_step, width, kind, center, out, place)
            else:
                for k in range(k_size):
                    _take_one(src, at + k * k_step, width, step, kind, center, out, place + k * k_result)


@jit
def _begin(src, own, kept, base, out):
    """Initialise each minimum or maximum of a sample with the first element that it is computed from."""
    outer, n, step, result = 0, 1, 0, 0
    if kept:
        outer = kept - 1
        n, step, result = own[outer, SHAPE], own[outer, STRIDE], own[outer, RESULT]
    for o in range(_size(own, 0, outer)):
        at, place = base + _offset(o, own, 0, outer, STRIDE), _offset(o, own, 0, outer, RESULT)
        for k in range(n):
            out[np.uint64(place + k * result)] = src[np.uint64(at + k * step)]


@jit
def reduce(src, rows, kept, base, kind, center, work, divisor, root, out):
    """Compute ``out``: per sample and result the sum (or another quantity ``kind``) over the reduced dimensions,
    divided by the sample's ``divisor`` [N] (0: the result is 0; -1: not divided), and with ``root`` its square root.
    Extremes of floats that include NaN are NaN. ``work`` has space for the results of the largest sample."""
    lanes, middle, first = np.empty(LANES, work.dtype), np.empty(LANES, np.float64), 0
    for i in range(len(base)):
        own = rows[i]
        results, elements = _size(own, 0, kept), _size(own, kept, own.shape[0])
        found, to = work[:results], out[first : first + results]
        found[:] = 0
        if elements:
            if kind >= MIN:
                _begin(src, own, kept, base[i], found)
            about = center[first : first + results] if kind == DEVIATIONS else center
            gather(src, own, kept, base[i], 0, kind, about, found, lanes, middle)
        d = divisor[i]
        if d < 0:
            for k in range(results):
                to[k] = found[k]
        else:
            for k in range(results):
                value = found[k] / d if d > 0 else 0.0
                to[k] = np.sqrt(value) if root else value
        first += results
