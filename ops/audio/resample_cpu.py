"""The CPU kernels of audio_resample: whole batches in one call, without the GIL."""

# What Numba compiles carries no types.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np

INPUTS, OUTPUTS, CHANNELS, UP, DOWN, TAPS, TABLE, FIRST, FIELDS = range(9)
"""Columns of ``rows``: frames before and after, and where the taps and first places of the sample's phases are."""
DALI_BLOCK = 256

jit = numba.njit(nogil=True, cache=True)


@numba.njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _dot(weights, signal, start, channels, c):
    """The sum of weights times frames of a channel from frame ``start`` on."""
    total = np.float32(0)
    if channels == 1:
        part = signal[start : start + len(weights)]  # indices of a slice are not negative, which lets it be vectorised
        for j in range(len(weights)):
            total += weights[j] * part[j]
    else:
        for j in range(len(weights)):
            total += weights[j] * signal[(start + j) * channels + c]
    return total


@numba.njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _dot_of(weights, count, signal, start, channels):
    """`_dot` of the first ``count`` weights, from element ``start`` on."""
    total = np.float32(0)
    if channels == 1:
        for j in range(count):  # indices without a sign are not negative, which lets it be vectorised
            total += weights[np.uint64(j)] * signal[np.uint64(start + j)]
    else:
        for j in range(count):
            total += weights[np.uint64(j)] * signal[np.uint64(start + j * channels)]
    return total


@jit
def by_phases(data, base, rows, taps, first, out, out_base):
    """Sums of the taps of one of ``up`` phases; what is outside of a signal is 0."""
    for i in range(len(base)):
        n, frames, channels, up = rows[i, INPUTS], rows[i, OUTPUTS], rows[i, CHANNELS], rows[i, UP]
        down, width = rows[i, DOWN], rows[i, TAPS]
        signal, to = data[base[i] : base[i] + n * channels], out_base[i]
        phase, block = 0, 0
        for k in range(frames):
            start = block + first[rows[i, FIRST] + phase]
            low, high = max(0, -start), min(width, n - start)
            at = rows[i, TABLE] + phase * width
            weights = taps[at + low : at + max(low, high)]
            for c in range(channels):
                out[to + k * channels + c] = _dot(weights, signal, start + low, channels, c)
            phase += 1
            if phase == up:
                phase = 0
                block += down


# Weights are found in three loops: places in the table, by vectors; what stands there, one by one; numbers between two
# entries, by vectors. As one loop all of it was done one by one.


@jit
def _looked_up(pairs, entries, count, found):
    for j in range(count):
        found[np.uint64(j)] = pairs[np.uint64(entries[np.uint64(j)])]


@jit
def _between(found, parts, count, weights):
    """``found``: entries and the steps to the next ones, float32 each."""
    for j in range(count):
        k = np.uint64(j)
        entry, step = np.uint32(found[k]).view(np.float32), np.uint32(found[k] >> np.uint64(32)).view(np.float32)
        weights[k] = entry + parts[k] * step


@jit
def _sum(weights):
    total = np.float32(0)
    for j in range(len(weights)):
        total += weights[j]
    return total


@jit
def _weigh(offset, shrink, lobes, steps, entries, parts, count):
    """Places of the distances ``offset``, ``offset`` + 1 ... in the kernel's table."""
    for j in range(count):
        k = np.uint64(j)
        place = min(abs(offset + j) * shrink, np.float64(lobes)) * steps
        entry = np.int32(place)
        entries[k] = entry
        parts[k] = np.float32(place - entry)


@jit
def by_table(data, base, rows, ratios, pairs, lobes, steps, out, out_base):
    """The kernel between the entries of its table, for any ratio of rates (``ratios``: input samples for one of the
    output); its weights are divided by their sum."""
    for i in range(len(base)):
        n, frames, channels, ratio = rows[i, INPUTS], rows[i, OUTPUTS], rows[i, CHANNELS], ratios[i]
        shrink = min(1.0, 1.0 / ratio)
        half = int(np.ceil(lobes / shrink))
        weights, parts = np.empty(2 * half + 1, np.float32), np.empty(2 * half + 1, np.float32)
        entries, found = np.empty(2 * half + 1, np.int32), np.empty(2 * half + 1, np.uint64)
        signal = data[base[i] : base[i] + n * channels]
        for k in range(frames):
            at = k * ratio
            start = int(np.floor(at)) - half
            _weigh(start - at, shrink, lobes, steps, entries, parts, 2 * half + 1)
            _looked_up(pairs, entries, 2 * half + 1, found)
            _between(found, parts, 2 * half + 1, weights)
            total = _sum(weights)
            low, high = max(0, -start), min(2 * half + 1, n - start)
            inside = weights[low : max(low, high)]
            for c in range(channels):
                out[out_base[i] + k * channels + c] = _dot(inside, signal, start + low, channels, c) / total


@jit
def _weigh_as_dali(first, place, scale, center, entries, parts, count):
    for j in range(count):
        k = np.uint64(j)
        at = np.float32(np.float32(first + j) - place) * scale + center
        entry = np.int32(at)  # which is above 0
        entries[k] = entry
        parts[k] = np.float32(at - np.float32(entry))


@jit
def as_dali(data, base, rows, ratios, pairs, lobes, center, scale, out, out_base):
    """As DALI: the kernel keeps its width whatever the ratio is, and places are summed up in float32 within blocks of
    256 outputs."""
    room, parts = np.empty(2 * lobes, np.float32), np.empty(2 * lobes, np.float32)
    entries, found = np.empty(2 * lobes, np.int32), np.empty(2 * lobes, np.uint64)
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
                count = max(end - first, 0)
                _weigh_as_dali(first, place, scale, center, entries, parts, count)
                _looked_up(pairs, entries, count, found)
                _between(found, parts, count, room)
                at, to = base[i] + (whole + first) * channels, out_base[i] + k * channels
                for c in range(channels):
                    out[to + c] = _dot_of(room, count, data, at + c, channels)
                place = np.float32(place + step)
