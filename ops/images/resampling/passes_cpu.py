"""Compiled loops that compute the tables of the GPU's resampling passes: all samples in one call, without the GIL."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import math

import numba

from .resample import NEAREST


@numba.njit(nogil=True, cache=True)
def planes(
    lo, hi, size, kind, support, anchor, shape, flip, across, shapes, first, offsets, out, axes, regions, passes
):
    """Fill the tables that describe a resize to resample.cu: ``axes`` [N, 2, 9] and ``regions`` [N, 2, 3] for its
    filter weights, ``passes`` [2, N, 12]. The first pass computes only what the window of the second reads.

    Return the maximum outputs of an axis, the sums of outputs and of weights, the values between the passes, and the
    maximum values of a sample in each pass.
    """
    starts = weights = between = widest = 0
    most_first = most_second = 0
    begin, length = [0, 0], [0, 0]
    for i in range(len(offsets)):
        frames = channels = 1
        for d in range(shapes.shape[1]):
            if d < first:
                frames *= shapes[i, d]
            elif d >= first + 2:
                channels *= shapes[i, d]
        for a in range(2):
            extent = shapes[i, first + a]
            taps = 1 if kind[i, a] == NEAREST else min(extent, max(1, math.ceil(support[i, a])))
            row = axes[i, a]
            row[0], row[1], row[2], row[3] = extent, size[i, a], anchor[i, a], shape[i, a]
            row[4], row[5], row[6], row[7], row[8] = kind[i, a], flip[i, a], taps, starts, weights
            regions[i, a, 0], regions[i, a, 1], regions[i, a, 2] = lo[i, a], hi[i, a], support[i, a]
            starts += shape[i, a]
            weights += shape[i, a] * taps
            widest = max(widest, shape[i, a])
            # source pixels that taps can reach, and up to a few more
            low, high = float(lo[i, a]), float(hi[i, a])
            scale = (high - low) / max(size[i, a], 1)
            one, other = low + anchor[i, a] * scale, low + (anchor[i, a] + shape[i, a]) * scale
            margin = math.ceil(support[i, a] / 2.0) + 2
            begin[a] = min(max(math.floor(min(one, other) - margin), 0), extent - taps)
            length[a] = min(max(math.ceil(max(one, other) + margin), begin[a] + taps), extent) - begin[a]
        height, width = shapes[i, first], shapes[i, first + 1]
        top, left, rows, columns = begin[0], begin[1], length[0], length[1]
        oh, ow, stride = shape[i, 0], shape[i, 1], width * channels
        a, b = passes[0, i], passes[1, i]
        if across[i]:
            made = frames * channels * rows * ow
            a[0], a[3], a[4], a[5], a[7], a[8] = offsets[i] + top * stride, channels, ow, rows, stride, channels
            b[0], b[3], b[4], b[5], b[7], b[8] = between - top * ow * channels, ow * channels, oh, 1, 0, ow * channels
            b[6] = channels * rows * ow
        else:
            made = frames * channels * oh * columns
            a[0], a[3], a[4], a[5], a[7], a[8] = offsets[i] + left * channels, columns * channels, oh, 1, 0, stride
            b[0], b[3], b[4], b[5], b[7], b[8] = (
                between - left * channels,
                channels,
                ow,
                oh,
                columns * channels,
                channels,
            )
            b[6] = channels * oh * columns
        a[1], a[2], a[6] = between, made, height * stride
        b[1], b[2] = out[i], frames * oh * ow * channels
        for k in range(3, 6):
            a[k], b[k] = max(a[k], 1), max(b[k], 1)
        x, y = (1, 0) if across[i] else (0, 1)
        for k in range(3):
            source = (7, 8, 6)[k]
            a[9 + k], b[9 + k] = axes[i, x, source], axes[i, y, source]
        between += made
        most_first, most_second = max(most_first, made), max(most_second, b[2])
    return widest, starts, weights, between, most_first, most_second


POOL = 8192
"""Number of float values between the passes that a block of resample_pixels.cu holds in shared memory."""
_TALL, _LOW = 64, 4
"""Maximum rows of a tile of pixels, and number of rows below which tiles are narrower."""
_ROWS_FIRST, _COLUMNS_FIRST, _NEAREST = 0, 1, 2


@numba.njit(nogil=True, cache=True)
def tiles(lo, hi, size, kind, support, anchor, shape, flip, across, shapes, first, offsets, out, axes, regions, table):
    """Fill the tables of resample.cu's filter weights as in `planes`, and ``table`` [N, 16] for resample_pixels.cu, for
    images of three channels.

    Return the maximum outputs of an axis, the sums of outputs and of weights, and the maximum tiles of a sample; 0
    tiles if the filter of some sample reaches farther than a block has space for.
    """
    starts = weights = widest = most = 0
    taps, scale = [0, 0], [0.0, 0.0]
    for i in range(len(offsets)):
        row = table[i]
        frames = 1
        for d in range(first):
            frames *= shapes[i, d]
        for a in range(2):
            extent = shapes[i, first + a]
            taps[a] = 1 if kind[i, a] == NEAREST else min(extent, max(1, math.ceil(support[i, a])))
            scale[a] = abs(float(hi[i, a]) - float(lo[i, a])) / max(size[i, a], 1)
            axis = axes[i, a]
            axis[0], axis[1], axis[2], axis[3] = extent, size[i, a], anchor[i, a], shape[i, a]
            axis[4], axis[5], axis[6], axis[7], axis[8] = kind[i, a], flip[i, a], taps[a], starts, weights
            regions[i, a, 0], regions[i, a, 1], regions[i, a, 2] = lo[i, a], hi[i, a], support[i, a]
            row[10 + a], row[12 + a], row[14 + a] = taps[a], starts, weights
            starts += shape[i, a]
            weights += shape[i, a] * taps[a]
            widest = max(widest, shape[i, a])
        height, width, line = shapes[i, first], shapes[i, first + 1], 3 * shapes[i, first + 1]
        if kind[i, 0] == NEAREST and kind[i, 1] == NEAREST:
            order, tall, wide = _NEAREST, 32, 64
        else:
            order = _COLUMNS_FIRST if across[i] else _ROWS_FIRST
            for wide in (64, 32):
                if across[i]:  # source rows that a tile's outputs reach
                    rows = POOL // (3 * wide) - taps[0] - 2
                    tall = math.floor(min(rows / max(scale[0], 1e-6), float(_TALL)))
                    tall = max(tall, 1 if rows >= height - taps[0] - 2 else 0)
                else:
                    columns = max(min(math.ceil(wide * scale[1]) + taps[1] + 2, width), 1)
                    tall = min(POOL // ((3 * columns + 7) // 8 * 8), _TALL // 4)
                if tall >= min(_LOW, shape[i, 0]):
                    break
            if tall <= 0:
                return widest, starts, weights, 0
        row[0], row[1], row[2], row[3], row[4] = offsets[i], out[i], frames, height * line, line
        row[5], row[6], row[7], row[8], row[9] = shape[i, 0], shape[i, 1], order, tall, wide
        most = max(most, frames * (-(-shape[i, 0] // tall)) * (-(-shape[i, 1] // wide)))
    return widest, starts, weights, max(most, 1)
