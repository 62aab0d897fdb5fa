"""Compiled loops of spectrogram: windows of signals, their Fourier transforms, and squared magnitudes."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np

from .lanes_cpu import LANES, ROW, butterfly_2, butterfly_3, butterfly_4, butterfly_5, gather, powers

jit = numba.njit(nogil=True, cache=True)


@jit
def transform(work, size, radices, twiddles):
    """Compute the Fourier transforms of sixteen real signals of ``size`` samples, held by as many rows of ``work``, in
    place. Frequency k ends up in row place[k] (see `fft.FftPlan`)."""
    length, turns = size, 0
    for radix in radices:
        part = length // radix
        step = part * ROW
        for j in range(part):
            for block in range(0, size, length):
                at = (block + j) * ROW
                if radix == 4:
                    butterfly_4(work, at, step, twiddles, turns)
                elif radix == 2:
                    butterfly_2(work, at, step, twiddles, turns)
                elif radix == 3:
                    butterfly_3(work, at, step, twiddles, turns)
                else:
                    butterfly_5(work, at, step, twiddles, turns)
            turns += 2 * (radix - 1)
        length = part


@jit
def mirrored(i, n):
    """Return the index of sample ``i`` in a signal of ``n`` samples that is mirrored repeatedly at both ends."""
    if n == 1:
        return 0
    period = 2 * (n - 1)
    i = abs(i) % period
    return period - i if i >= n else i


@jit
def padded(signal, at, n, before, length, reflect, scale, out):
    """Write ``length`` samples from index -``before`` on, times ``scale``; outside, the signal is mirrored or zero."""
    for i in range(min(before, length)):
        out[i] = signal[at + mirrored(i - before, n)] * scale if reflect and n else np.float32(0)
    inside = min(n, length - before)
    if inside > 0:
        # with sums as indices, the loop would stay scalar
        line, source = out[before : before + inside], signal[at : at + inside]
        for i in range(inside):
            line[i] = np.float32(source[i]) * scale
    for i in range(before + inside, length):
        out[i] = signal[at + mirrored(i - before, n)] * scale if reflect and n else np.float32(0)


@jit
def level_frame(signal, at, width, emphasis, out, to):
    """Compute a frame as Kaldi does: subtract the mean, then ``emphasis`` times the previous sample from each
    sample."""
    total = 0.0
    for k in range(width):
        total += signal[at + k]
    mean = np.float32(total / width)
    for k in range(width - 1, 0, -1):
        out[to + k] = (signal[at + k] - mean) - emphasis * (signal[at + k - 1] - mean)
    out[to] = (signal[at] - mean) * (np.float32(1) - emphasis)


@jit
def is_silent(signal, at, width):
    """Whether ``width`` samples from ``at`` on are zeros."""
    for k in range(at, at + width):  # noqa: SIM110 - compiled
        if signal[k] != 0:
            return False
    return True


@jit
def spectrograms(
    data, base, lengths, frames, before, step, window, reflect, scale, leveled, emphasis, size, radices, twiddles,
    place, magnitudes, frequency_first, out, out_base,
):  # fmt: skip
    """Compute powers (or magnitudes) of ``frames`` windows of each signal, as [frequency, time] or [time, frequency].

    Windows t and t + `LANES` share one complex transform, in which rounding errors of one leak into the other. Silent
    windows are therefore set to 0.
    """
    bins, width = size // 2 + 1, len(window)
    work, tile = np.empty(size * ROW, np.float32), np.empty(bins * ROW, np.float32)
    whole = width // LANES * LANES
    together = np.empty(ROW * width if leveled else 0, np.float32)
    quiet = np.zeros(ROW, np.bool_)
    most = np.int64(0)
    for i in range(len(base)):
        most = max(most, frames[i])
    # one buffer for all samples: new memory pages cost as much as a part of the work
    signal = np.empty((most + ROW) * step + width, np.float32)
    for i in range(len(base)):
        count = frames[i]
        rounds = -(-count // ROW) * ROW
        used = max((count - 1) * step + width, 0)
        padded(data, base[i], lengths[i], before, used, reflect, scale, signal)
        # values after the last frame belong to no window
        signal[used : max((rounds - 1) * step + width, 0)] = 0
        for t in range(0, count, ROW):
            if leveled:
                for frame in range(ROW):
                    level_frame(signal, (t + frame) * step, width, emphasis, together, frame * width)
            seen, silent = min(ROW, count - t), 0
            for frame in range(seen):
                at = frame * width if leveled else (t + frame) * step
                quiet[frame] = is_silent(together if leveled else signal, at, width)
                silent += quiet[frame]
            work[width * ROW :] = 0
            for half in range(2):
                lane = LANES * half
                source, first, stride = signal, (t + lane) * step, step
                if leveled:
                    source, first, stride = together, lane * width, width
                for k in range(0, whole, LANES):
                    gather(source, first + k, stride, window, k, work, k * ROW + lane)
                for k in range(whole, width):
                    for frame in range(LANES):
                        work[k * ROW + lane + frame] = source[first + k + frame * stride] * window[k]
            transform(work, size, radices, twiddles)
            if frequency_first and seen == ROW and not magnitudes:
                for k in range(bins):
                    powers(work, place[k], place[-k], out, out_base[i] + k * count + t)
                for frame in range(seen if silent else 0):
                    if quiet[frame]:
                        for k in range(bins):
                            out[out_base[i] + k * count + t + frame] = 0
                continue
            for k in range(bins):
                powers(work, place[k], place[-k], tile, k * ROW)
            for frame in range(seen if silent else 0):
                if quiet[frame]:
                    for k in range(bins):
                        tile[k * ROW + frame] = 0
            if magnitudes:
                for k in range(len(tile)):
                    tile[k] = np.sqrt(tile[k])
            if frequency_first:
                for k in range(bins):
                    to = out_base[i] + k * count + t
                    for frame in range(seen):
                        out[to + frame] = tile[k * ROW + frame]
            else:
                for frame in range(seen):
                    to = out_base[i] + (t + frame) * bins
                    for k in range(bins):
                        out[to + k] = tile[k * ROW + frame]


@jit
def windowed(signal, at, n, frames, before, step, window, reflect, scale, leveled, emphasis, out):
    """Write ``frames`` windows of one signal to out[frames, width], without transforming them: for sizes that
    `transform` does not support."""
    width = len(window)
    used = (frames - 1) * step + width
    whole, frame = np.empty(used, np.float32), np.empty(width, np.float32)
    padded(signal, at, n, before, used, reflect, scale, whole)
    for t in range(frames):
        if leveled:
            level_frame(whole, t * step, width, emphasis, frame, 0)
        else:
            frame[:] = whole[t * step : t * step + width]
        for k in range(width):
            out[t, k] = frame[k] * window[k]
