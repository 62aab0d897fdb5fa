"""Compiled loops for audio features: filter banks, decibels, preemphasis, silence. One call per batch, without the
GIL."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np

OUTER, EXTENT, INNER = range(3)
"""Columns of ``rows``, one row per array: number of elements before the processed axis, along it, and after it."""
_TILE = 256

jit = numba.njit(nogil=True, cache=True)


@numba.njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def filter_bank(data, base, rows, filters, weights, out, out_base):
    """Apply M filters along an axis: each is a weighted sum of successive elements. ``filters`` [M, 3]: first element,
    number of elements, index of the first weight. The loop avoids array views, whose reference counting is slow."""
    many = len(filters)
    for i in range(len(base)):
        extent, inner = rows[i, EXTENT], rows[i, INNER]
        for outer in range(rows[i, OUTER]):
            source, target = base[i] + outer * extent * inner, out_base[i] + outer * many * inner
            if inner == 1:
                for m in range(many):
                    total, first = np.float32(0), source + filters[m, 0]
                    for k in range(filters[m, 1]):
                        total += weights[filters[m, 2] + k] * data[first + k]
                    out[target + m] = total
                continue
            for low in range(0, inner, _TILE):
                width = min(_TILE, inner - low)
                for m in range(many):
                    to, start = target + m * inner + low, source + filters[m, 0] * inner + low
                    count, at = filters[m, 1], filters[m, 2]
                    for x in range(width):
                        out[np.uint64(to + x)] = 0
                    for k in range(0, count - 1, 2):  # two lines at once: sums are loaded and stored half as often
                        a, b = weights[at + k], weights[at + k + 1]
                        for x in range(width):
                            both = a * data[np.uint64(start + x)] + b * data[np.uint64(start + inner + x)]
                            out[np.uint64(to + x)] += both
                        start += 2 * inner
                    if count % 2:
                        a = weights[at + count - 1]
                        for x in range(width):
                            out[np.uint64(to + x)] += a * data[np.uint64(start + x)]


@jit
def largest(data, base, sizes, out):
    """Write the largest value of each sample to ``out``, ignoring NaN; 0 for an empty sample."""
    for i in range(len(base)):
        values = data[base[i] : base[i] + sizes[i]]
        best = np.float32(-np.inf)
        for k in range(len(values)):
            best = max(best, values[k])
        out[i] = best if len(values) else np.float32(0)


@jit
def decibels(data, base, sizes, references, multiplier, least, out, out_base):
    """Compute multiplier log10(max(least, x / reference)); ``multiplier`` is scaled for binary logarithms.

    The logarithm is that of Cephes' logf: the exponent, plus a polynomial of the mantissa in [sqrt(1/2), sqrt(2)).
    """
    for i in range(len(base)):
        source, target = data[base[i] : base[i] + sizes[i]], out[out_base[i] : out_base[i] + sizes[i]]
        factor = np.float32(1) / references[i]
        for k in range(len(source)):
            target[k] = max(least, source[k] * factor)
        bits = target.view(np.int32)
        for k in range(len(target)):
            value = bits[k]
            exponent = (value >> 23) - 126
            # the mantissa in [1/2, 1)
            bits[k] = (value & 0x007FFFFF) | 0x3F000000
            m = target[k]
            small = m < np.float32(0.70710678)
            m = m + m - np.float32(1) if small else m - np.float32(1)
            e = np.float32(exponent - 1 if small else exponent)
            z = m * m
            y = np.float32(7.0376836292e-2)
            y = y * m - np.float32(1.1514610310e-1)
            y = y * m + np.float32(1.1676998740e-1)
            y = y * m - np.float32(1.2420140846e-1)
            y = y * m + np.float32(1.4249322787e-1)
            y = y * m - np.float32(1.6668057665e-1)
            y = y * m + np.float32(2.0000714765e-1)
            y = y * m - np.float32(2.4999993993e-1)
            y = y * m + np.float32(3.3333331174e-1)
            y = y * m * z - np.float32(0.5) * z + m
            target[k] = (e + y * np.float32(1.4426950408889634)) * multiplier


@jit
def floored(out, base, sizes, below):
    """Raise each value to at least the largest value of its sample minus ``below``."""
    for i in range(len(base)):
        values = out[base[i] : base[i] + sizes[i]]
        best = np.float32(-np.inf)
        for k in range(len(values)):
            best = max(best, values[k])
        least = np.float32(best - below)
        for k in range(len(values)):
            values[k] = max(values[k], least)


@jit
def preemphasis(data, base, sizes, coefficients, border, out, out_base):
    """Compute x[k] - c x[k - 1] with coefficient c per sample. The value before the first one depends on ``border``: 0:
    the first value, 1: zero, 2: the second value."""
    for i in range(len(base)):
        n, c = sizes[i], coefficients[i]
        if n == 0:
            continue
        first = np.float32(data[base[i]])
        before = first
        if border == 1:
            before = np.float32(0)
        elif border == 2:
            before = np.float32(data[base[i] + min(1, n - 1)])
        out[out_base[i]] = first - c * before
        source, target = data[base[i] : base[i] + n], out[out_base[i] : out_base[i] + n]
        for k in range(1, n):
            target[k] = np.float32(source[k]) - c * np.float32(source[k - 1])


@jit
def nonsilent(data, base, sizes, length, cutoff, reference, begin, count):
    """Find the range in which each signal's power is above ``cutoff`` times ``reference``, or times its own maximum if
    that is 0.

    The power at k is the mean square of the ``length`` samples up to k; samples before the first are 0.
    """
    for i in range(len(base)):
        n = sizes[i]
        begin[i], count[i] = 0, 0
        if n == 0:
            continue
        window = min(length, n)
        powers = np.empty(n, np.float64)
        total, best = 0.0, 0.0
        values = data[base[i] : base[i] + n]
        for k in range(n):
            if k % 8192 == 0:  # recomputed now and then, so that rounding errors do not accumulate
                total = 0.0
                for j in range(max(0, k - window), k):
                    total += np.float64(values[j]) * np.float64(values[j])
            x = np.float64(values[k])
            total += x * x
            if k >= window:
                old = np.float64(values[k - window])
                total -= old * old
            powers[k] = max(total, 0.0) / window
            best = max(best, powers[k])
        threshold = (best if reference == 0 else reference) * cutoff
        first, last = -1, -1
        for k in range(n):
            if powers[k] >= threshold:
                if first < 0:
                    first = k
                last = k
        if first < 0:
            continue
        begin[i] = max(first - (window - 1), 0) if first else 0
        count[i] = last + 1 - begin[i]
