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
            weights = taps[rows[i, TABLE] + phase * width : rows[i, TABLE] + (phase + 1) * width]
            for c in range(channels):
                total = np.float32(0)
                if channels == 1:
                    for j in range(low, high):
                        total += weights[j] * signal[start + j]
                else:
                    for j in range(low, high):
                        total += weights[j] * signal[(start + j) * channels + c]
                out[to + k * channels + c] = total
            phase += 1
            if phase == up:
                phase = 0
                block += down


@jit
def by_table(data, base, rows, ratios, table, lobes, steps, out, out_base):
    """The kernel between the entries of its table, for any ratio of rates (``ratios``: input samples for one of the
    output); its weights are divided by their sum."""
    for i in range(len(base)):
        n, frames, channels, ratio = rows[i, INPUTS], rows[i, OUTPUTS], rows[i, CHANNELS], ratios[i]
        shrink = min(1.0, 1.0 / ratio)
        half = np.int64(np.ceil(lobes / shrink))
        sums = np.empty(channels, np.float32)
        for k in range(frames):
            at = k * ratio
            middle = np.int64(np.floor(at))
            all_weights = np.float32(0)
            sums[:] = 0
            for j in range(middle - half, middle + half + 1):
                place = min(abs(j - at) * shrink, np.float64(lobes)) * steps
                entry = np.int64(place)
                part = np.float32(place - entry)
                weight = table[entry] + part * (table[entry + 1] - table[entry])
                all_weights += weight
                if 0 <= j < n:
                    for c in range(channels):
                        sums[c] += weight * data[base[i] + j * channels + c]
            for c in range(channels):
                out[out_base[i] + k * channels + c] = sums[c] / all_weights


@jit
def as_dali(data, base, rows, ratios, table, lobes, center, scale, out, out_base):
    """As DALI: the kernel keeps its width whatever the ratio is, and places are summed up in float32 within blocks of
    256 outputs."""
    for i in range(len(base)):
        n, frames, channels, ratio = rows[i, INPUTS], rows[i, OUTPUTS], rows[i, CHANNELS], ratios[i]
        sums = np.empty(channels, np.float32)
        step = np.float32(ratio)
        for first in range(0, frames, DALI_BLOCK):
            start = first * ratio
            whole = np.int64(np.floor(start))
            place = np.float32(start - whole)
            for k in range(first, min(first + DALI_BLOCK, frames)):
                middle = np.int64(np.ceil(place))
                sums[:] = 0
                for j in range(max(middle - lobes, -whole), min(middle + lobes, n - whole)):
                    at = np.float32(np.float32(j) - place) * scale + center
                    entry = np.int64(np.floor(at))
                    part = np.float32(at - np.float32(entry))
                    weight = table[entry] + part * (table[entry + 1] - table[entry])
                    for c in range(channels):
                        sums[c] += weight * data[base[i] + (whole + j) * channels + c]
                for c in range(channels):
                    out[out_base[i] + k * channels + c] = sums[c]
                place = np.float32(place + step)
