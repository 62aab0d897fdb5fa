"""Compiled loops for uncompressed WAV files: find their numbers, and convert them to signals. One call per batch,
without the GIL.

Microsoft, "Multiple Channel Audio Data and WAVE Files" (RIFF chunks; format tags 1, 3 and 0xFFFE).
"""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np

OTHER, U8, S16, S24, S32, F32, F64 = range(7)
"""Sample formats of a WAV file. OTHER: another decoder must open the file."""
WIDTHS = (0, 1, 2, 3, 4, 4, 8)
START, FRAMES, CHANNELS, RATE, KIND, FIELDS = range(6)
"""Columns of the rows that `walk` fills. START is the offset of the first sample in the file, FRAMES the number of
samples per channel."""

jit = numba.njit(nogil=True, cache=True)


@jit
def _u16(data, at):
    return np.int64(data[at]) | np.int64(data[at + 1]) << 8


@jit
def _u32(data, at):
    return _u16(data, at) | _u16(data, at + 2) << 16


@jit
def _tag(data, at, a, b, c, d):
    return data[at] == a and data[at + 1] == b and data[at + 2] == c and data[at + 3] == d


@jit
def walk(data, base, sizes, found):
    """Read the headers of all WAV files into ``found`` [N, FIELDS]. If a file is cut off, only samples that exist
    count, as in other decoders."""
    for i in range(len(base)):
        found[i] = 0
        start, end = base[i], base[i] + sizes[i]
        # "RIFF" size "WAVE"
        if sizes[i] < 44 or not (_tag(data, start, 82, 73, 70, 70) and _tag(data, start + 8, 87, 65, 86, 69)):
            continue
        at, kind, channels, rate, width = start + 12, 0, 0, 0, 0
        while at + 8 <= end:
            size = _u32(data, at + 4)
            if _tag(data, at, 102, 109, 116, 32) and size >= 16 and at + 8 + size <= end:  # "fmt "
                tag, channels, rate = _u16(data, at + 8), _u16(data, at + 10), _u32(data, at + 12)
                block, bits = _u16(data, at + 20), _u16(data, at + 22)
                if tag == 0xFFFE and size >= 40:
                    tag = _u16(data, at + 32)
                width = block // max(channels, 1)
                kind = 0
                if tag == 1 and bits == 8 * width and 1 <= width <= 4:
                    kind = width
                elif tag == 3 and bits == 8 * width and (width == 4 or width == 8):
                    kind = 5 if width == 4 else 6
                if channels == 0 or rate == 0 or block != width * channels:
                    kind = 0
            elif _tag(data, at, 100, 97, 116, 97):  # "data"
                # size not known yet: the file was written to a pipe
                if kind == 0 or size == 0 or size >= 0x7FFFFFFF - 44:
                    break
                found[i, START] = at + 8 - start
                found[i, FRAMES] = min(size, end - at - 8) // (width * channels)
                found[i, CHANNELS], found[i, RATE], found[i, KIND] = channels, rate, kind
                break
            at += 8 + size + (size & 1)


@jit
def foreseen(data, base, sizes, found):
    """Estimate frames, channels and rates of files that are not plain WAV, for memory estimates: FLAC and Ogg declare
    them, others are guessed from the file size."""
    for i in range(len(base)):
        if found[i, KIND] or sizes[i] < 44:
            continue
        at, end = base[i], base[i] + sizes[i]
        found[i, FRAMES], found[i, CHANNELS], found[i, RATE] = 8 * sizes[i], 1, 16000
        if _tag(data, at, 102, 76, 97, 67) and data[at + 4] & 0x7F == 0:  # "fLaC", STREAMINFO: RFC 9639, 8.2
            head = at + 18
            found[i, RATE] = np.int64(data[head]) << 12 | np.int64(data[head + 1]) << 4 | np.int64(data[head + 2]) >> 4
            found[i, CHANNELS] = (np.int64(data[head + 2]) >> 1 & 7) + 1
            frames = np.int64(data[head + 3] & 15)
            for k in range(4, 8):
                frames = frames << 8 | np.int64(data[head + k])
            found[i, FRAMES] = frames if frames else 8 * sizes[i]
        elif _tag(data, at, 79, 103, 103, 83):  # "OggS": the last page contains the number of frames (RFC 3533)
            for page in range(end - 14, max(at, end - 70000), -1):
                if _tag(data, page, 79, 103, 103, 83):
                    frames = _u32(data, page + 6) | _u32(data, page + 10) << 32
                    if 0 < frames < 1 << 40:
                        found[i, FRAMES] = frames
                    break
            if _tag(data, at + 29, 118, 111, 114, 98):  # a packet of type 1, "vorbis", version, channels, rate
                found[i, CHANNELS], found[i, RATE] = data[at + 39], _u32(data, at + 40)
            elif _tag(data, at + 28, 79, 112, 117, 115):  # "OpusHead", version, channels; always 48 kHz
                found[i, CHANNELS], found[i, RATE] = data[at + 37], 48000


@jit
def _bits(data, at, kind):
    """Return an integer sample, shifted to the high bits of a 32-bit integer."""
    if kind == 1:
        return (np.int64(data[at]) - 128) << 24
    if kind == 2:
        value = _u16(data, at)
        return (value - ((value & 0x8000) << 1)) << 16
    if kind == 3:
        value = _u16(data, at) | np.int64(data[at + 2]) << 16
        return (value - ((value & 0x800000) << 1)) << 8
    value = _u32(data, at)
    return value - ((value & 0x80000000) << 1)


@jit
def _number(data, at, kind, one, two):
    """Return a sample as a number in [-1, 1]; ``one`` and ``two`` are buffers for the bytes of floats."""
    if kind <= 4:
        return np.float32(_bits(data, at, kind) * (1.0 / 2147483648.0))
    if kind == 5:
        one.view(np.uint8)[:] = data[at : at + 4]
        return one[0]
    two.view(np.uint8)[:] = data[at : at + 8]
    return np.float32(two[0])


@jit
def _rounded(x, full):
    """Return ``x`` times ``full``, a type's largest integer, rounded half away from zero and clipped to the type."""
    x = np.float64(np.float32(x * np.float32(full)))
    x = np.floor(x + 0.5) if x >= 0 else np.ceil(x - 0.5)
    if not x >= -full - 1:  # also if x is NaN
        return np.int64(-full - 1) if x < 0 else np.int64(0)
    return np.int64(min(x, full))


@jit
def _mix(values, scale, frames, channels, out, to):
    if channels == 1:
        line, source = out[to : to + frames], values[:frames]  # with sums as indices, the loop would stay scalar
        for k in range(frames):
            line[k] = source[k] * scale
        return
    part = np.float32(1) / np.float32(channels)
    for k in range(frames):
        total = np.float32(0)
        for c in range(channels):
            total += values[k * channels + c] * scale * part
        out[to + k] = total


@jit
def _floats(data, at, row, downmix, out, to):
    """Convert the samples of one signal to float32."""
    n, channels, kind = row[FRAMES], row[CHANNELS], row[KIND]
    mixed = channels if downmix else 1
    if kind == 2 and at % 2 == 0:
        values = data[at : at + 2 * n * channels].view(np.int16)
        _mix(values, np.float32(1 / 32768), n * channels // mixed, mixed, out, to)
        return
    if kind == 5 and at % 4 == 0:
        _mix(data[at : at + 4 * n * channels].view(np.float32), np.float32(1), n * channels // mixed, mixed, out, to)
        return
    width = 8 if kind == 6 else (4 if kind >= 4 else kind)
    one, two, part = np.empty(1, np.float32), np.empty(1, np.float64), np.float32(1) / np.float32(mixed)
    for k in range(n * channels // mixed):
        total = np.float32(0)
        for c in range(mixed):
            total += _number(data, at + (k * mixed + c) * width, kind, one, two) * part
        out[to + k] = total


@jit
def to_floats(data, base, found, downmix, out, out_base):
    """Convert signals to float32 in [-1, 1]: integers are divided by 2 to the power of their bits minus one; with
    ``downmix``, output the mean over channels, computed as the sum of their values times 1 / channels."""
    for i in range(len(base)):
        if found[i, KIND] and found[i, FRAMES]:
            _floats(data, base[i] + found[i, START], found[i], downmix, out, out_base[i])


@jit
def to_integers(data, base, found, downmix, full, out, out_base):
    """Convert signals to integers whose largest value is ``full``. Integer samples keep their high bits; floats (also
    the mean of channels) are multiplied by ``full`` and rounded half away from zero."""
    shift = 16 if full == 32767 else 0
    for i in range(len(base)):
        at, n, channels, kind = base[i] + found[i, START], found[i, FRAMES], found[i, CHANNELS], found[i, KIND]
        to = out_base[i]
        if kind == 0 or n == 0:
            continue
        if kind <= 4 and (channels == 1 or not downmix):
            if kind == 2 and shift == 16 and at % 2 == 0:
                out[to : to + n * channels] = data[at : at + 2 * n * channels].view(np.int16)
                continue
            width = 4 if kind == 4 else kind
            for k in range(n * channels):
                out[to + k] = _bits(data, at + k * width, kind) >> shift
            continue
        count = n if downmix else n * channels
        floats = np.empty(count, np.float32)
        _floats(data, at, found[i], downmix, floats, 0)
        for k in range(count):
            out[to + k] = _rounded(floats[k], full)
