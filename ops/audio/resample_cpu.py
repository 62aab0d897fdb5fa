"""Compiled loops of audio_resample: one call per batch, without the GIL."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import Any

import numba
import numpy as np

INPUTS, OUTPUTS, CHANNELS, UP, DOWN, TAPS, TABLE, FIRST, FIELDS = range(9)
"""Columns of ``rows``, which describe each signal: frames before and after resampling, channels, the ratio of sample
rates, and where its filter weights and the first input of each phase are stored."""
DALI_BLOCK = 256
DALI_STEPS = 32
"""Entries of DALI's filter table between two samples of the input."""

jit = numba.njit(nogil=True, cache=True)


@numba.njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _dot(weights, first, count, signal, start, channels):
    """Return the sum of ``count`` weights, from index ``first`` on, times the values of one channel in successive
    frames, from element ``start`` on. The loop avoids array views, whose reference counting is slow."""
    total = np.float32(0)
    if channels == 1:
        for j in range(count):  # unsigned indices cannot be negative, which allows vectorisation
            total += weights[np.uint64(first + j)] * signal[np.uint64(start + j)]
    else:
        for j in range(count):
            total += weights[np.uint64(first + j)] * signal[np.uint64(start + j * channels)]
    return total


@jit
def by_phases(data, base, rows, taps, first, out, out_base):
    """Resample signals, if output k can use the filter weights of phase k mod UP. Inputs outside of a signal are 0."""
    for i in range(len(base)):
        n, frames, channels, up = rows[i, INPUTS], rows[i, OUTPUTS], rows[i, CHANNELS], rows[i, UP]
        down, width = rows[i, DOWN], rows[i, TAPS]
        phase, block = 0, 0
        for k in range(frames):
            start = block + first[rows[i, FIRST] + phase]
            low, high = max(0, -start), min(width, n - start)
            weights, at = rows[i, TABLE] + phase * width + low, base[i] + (start + low) * channels
            for c in range(channels):
                out[out_base[i] + k * channels + c] = _dot(taps, weights, max(high - low, 0), data, at + c, channels)
            phase += 1
            if phase == up:
                phase = 0
                block += down


# Weights for each of several fractions between two inputs form a row of a table; weights of an output are interpolated
# between two rows. Separate look-ups take five times as long.


@jit
def _row(pairs, lobes, steps, shrink, first, count, weights, at):
    """Write the filter's values at the distances ``first``, ``first`` + 1, ... to ``weights`` from ``at`` on. Return
    their sum. ``pairs``: float32 entries of the filter's table, each with the difference to the next one."""
    total = np.float32(0)
    for j in range(count):
        place = min(abs(first + j) * shrink, np.float64(lobes)) * steps
        number = np.int64(place)
        both = pairs[number]
        entry, step = np.uint32(both).view(np.float32), np.uint32(both >> np.uint64(32)).view(np.float32)
        weight = entry + np.float32(place - number) * step
        weights[at + j] = weight
        total += weight
    return total


@jit
def _between(rows, at, width, part, count, weights):
    """Interpolate ``count`` filter weights between two rows of a table: numbers of ``rows`` from ``at`` on, plus the
    fraction ``part`` of the difference to the numbers ``width`` after them."""
    for j in range(count):  # unsigned indices cannot be negative, which allows vectorisation
        k, here = np.uint64(j), np.uint64(at + j)
        weights[k] = rows[here] + part * (rows[here + np.uint64(width)] - rows[here])


_WIDE = 512
"""Maximum number of filter weights per output for which they are interpolated between precomputed rows, see `by_table`:
the rows must fit into the processor's cache."""


@jit
def by_table(data, base, rows, ratios, pairs, lobes, steps, out, out_base):
    """Resample signals for any ratio of rates (``ratios``: input samples per output sample). Filter weights are
    interpolated in a table, and divided by their sum."""
    held, table, sums = 0.0, np.empty(0, np.float32), np.empty(steps + 1, np.float32)
    for i in range(len(base)):
        n, frames, channels, ratio = rows[i, INPUTS], rows[i, OUTPUTS], rows[i, CHANNELS], ratios[i]
        shrink = min(1.0, 1.0 / ratio)
        half = int(np.ceil(lobes / shrink))
        width = 2 * half
        weights = np.empty(width, np.float32)
        many = frames > steps and width <= _WIDE  # worth the computation of rows
        if many and held != shrink:
            held, table = shrink, np.empty((steps + 1) * width, np.float32)
            for p in range(steps + 1):
                sums[p] = _row(pairs, lobes, steps, shrink, 1 - half - p / steps, width, table, p * width)
        for k in range(frames):
            at = k * ratio
            whole = np.floor(at)
            start = int(whole) + 1 - half
            low, high = max(0, -start), min(width, n - start)
            count = max(high - low, 0)
            if many:
                place = (at - whole) * steps
                p = int(place)
                part = np.float32(place - p)
                total = sums[p] + part * (sums[p + 1] - sums[p])
                _between(table, p * width + low, width, part, count, weights)
                first = 0
            else:
                total, first = _row(pairs, lobes, steps, shrink, start - at, width, weights, 0), low
            at, to = base[i] + (start + low) * channels, out_base[i] + k * channels
            for c in range(channels):
                out[to + c] = _dot(weights, first, count, data, at + c, channels) / total


@jit
def _weigh_as_dali(rows, at, width, first, place, scale, center, entry, count, weights):
    """Compute filter weights at the distances ``first`` - ``place`` and so on: entries of a row, plus a fraction of the
    difference to the next row, rounded as DALI rounds its table index. ``entry`` is the first weight's index."""
    for j in range(count):
        k, here = np.uint64(j), np.uint64(at + j)
        wanted = np.float32(np.float32(np.int32(first + j)) - place) * scale + center
        part = np.float32(wanted - np.float32(np.int32(entry + j * DALI_STEPS)))
        weights[k] = rows[here] + part * (rows[here + np.uint64(width)] - rows[here])


@jit
def as_dali(data, base, rows, ratios, table, lobes, center, scale, out, out_base):
    """Resample as DALI does: the filter has the same width for all ratios, and positions are accumulated in float32
    within blocks of 256 outputs. ``table``: `filters.dali_rows`."""
    width = 2 * lobes
    weights = np.empty(width, np.float32)
    for i in range(len(base)):
        n, frames, channels, ratio = rows[i, INPUTS], rows[i, OUTPUTS], rows[i, CHANNELS], ratios[i]
        step = np.float32(ratio)
        for block in range(0, frames, DALI_BLOCK):
            start = block * ratio
            whole = np.int64(np.floor(start))
            place = np.float32(start - whole)
            for k in range(block, min(block + DALI_BLOCK, frames)):
                middle = np.int64(np.ceil(place))
                first, end = max(middle - lobes, -whole), min(middle + lobes, n - whole)
                count, low = max(end - first, 0), first - (middle - lobes)
                p: Any = min(np.int64((np.float32(middle) - place) * scale), DALI_STEPS - 1)
                _weigh_as_dali(
                    table, p * width + low, width, first, place, scale, center, p + 1 + low * DALI_STEPS, count, weights
                )
                at, to = base[i] + (whole + first) * channels, out_base[i] + k * channels
                for c in range(channels):
                    out[to + c] = _dot(weights, 0, count, data, at + c, channels)
                place = np.float32(place + step)
