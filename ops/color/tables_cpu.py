"""Compiled loops of lookup_table and equalize: one call per batch, without the GIL."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np

jit = numba.njit(nogil=True, cache=True)


@jit
def equalized(counts, total, table):
    """Compute the look-up table of OpenCV's equalizeHist: the cumulative histogram from the first value that occurs,
    scaled to 0 ... 255."""
    first = 0
    while first < 255 and counts[first] == 0:
        first += 1
    if counts[first] == total:
        table[:] = first
        return
    scale = np.float32(255.0) / np.float32(total - counts[first])
    sum_ = 0
    table[: first + 1] = 0
    for v in range(first + 1, 256):
        sum_ += counts[v]
        table[v] = np.uint8(min(np.rint(np.float32(sum_) * scale), np.float32(255)))


@jit
def look_up(values, table, out):
    """Replace each value by the entry of ``table`` with that index, or by the last entry if there is none."""
    last = len(table) - 1
    for i in range(len(values)):
        v = np.int64(values[i])  # values beyond int64 become negative
        out[i] = table[v if 0 <= v < last else last]


@jit
def look_up_bytes(values, table, out):
    """Replace each byte by the entry of ``table`` with that index."""
    for i in range(len(values)):
        out[i] = table[values[i]]


@jit
def _equalize_colours(s, pixels, counts, table, o):
    """Equalise the histograms of three interleaved channels. Even and odd pixels are counted separately: counting one
    value twice in a row would wait for memory. Unsigned indices need no check for counting from the end."""
    apart, even = np.zeros(6 * 256, np.uint32), pixels & ~1
    for x in range(0, 3 * even, 6):
        k = np.uint64(x)
        for c in range(6):
            apart[np.uint64(s[k + np.uint64(c)]) + np.uint64(256 * c)] += np.uint32(1)
    if even < pixels:
        for c in range(3):
            apart[256 * c + s[3 * even + c]] += np.uint32(1)
    for c in range(3):
        for v in range(256):
            counts[c, v] = np.int64(apart[256 * c + v]) + np.int64(apart[256 * (3 + c) + v])
        equalized(counts[c], pixels, table[c])
    flat = table.reshape(-1)
    for x in range(pixels):
        k = np.uint64(3 * x)
        o[k] = flat[np.uint64(s[k])]
        o[k + np.uint64(1)] = flat[np.uint64(s[k + np.uint64(1)]) + np.uint64(256)]
        o[k + np.uint64(2)] = flat[np.uint64(s[k + np.uint64(2)]) + np.uint64(512)]


@jit
def equalize(src, base, geometry, dst, out_base):
    """Equalise each interleaved channel's histogram; ``geometry`` [N, 3]: images, pixels and channels per sample."""
    for i in range(len(base)):
        pictures, pixels, channels = geometry[i]
        if pictures == 0:
            continue
        counts, table = np.empty((channels, 256), np.int64), np.empty((channels, 256), np.uint8)
        for p in range(pictures):
            s = src[base[i] + p * pixels * channels : base[i] + (p + 1) * pixels * channels]
            o = dst[out_base[i] + p * pixels * channels : out_base[i] + (p + 1) * pixels * channels]
            counts[:] = 0
            if channels == 3:
                _equalize_colours(s, pixels, counts, table, o)
                continue
            for x in range(pixels):
                for c in range(channels):
                    counts[c, s[x * channels + c]] += 1
            for c in range(channels):
                equalized(counts[c], pixels, table[c])
            for x in range(pixels):
                for c in range(channels):
                    o[x * channels + c] = table[c, s[x * channels + c]]
