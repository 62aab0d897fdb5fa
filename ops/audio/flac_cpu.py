"""Compiled FLAC decoder (RFC 9639): one call per file, without the GIL. Unusual or corrupt files are left to
libsndfile; every frame's CRC is checked, so that decoded samples are correct."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: ARG001

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..codecs.jpeg.simd_cpu import big_endian_64

FRAMES, CHANNELS, RATE, BITS, FIRST, LONGEST, FIELDS = range(7)
"""Columns of a FLAC file's properties, which `header` fills in. FIRST: byte at which the first frame begins; LONGEST:
maximum number of samples per frame."""
GUARD = 16
"""Number of readable bytes that must follow a FLAC file in memory."""

_ONE, _REST = np.uint64(1), np.uint64(0x7FFFFFFFFFFFFFFF)

jit = numba.njit(nogil=True, cache=True)


def _counting(_typing, value):
    def generate(_context, builder, _signature, args):
        return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


leading_zeros: Any = intrinsic(_counting)


@jit
def header(data, found):
    """Read a FLAC file's STREAMINFO block into ``found``. Return False if this decoder does not support the file."""
    n = len(data)
    if n < 42 or data[0] != 102 or data[1] != 76 or data[2] != 97 or data[3] != 67 or data[4] & 0x7F != 0:
        return False
    at = np.int64(4)
    last = False
    while not last:
        if at + 4 > n:
            return False
        last = data[at] >= 128
        at += 4 + (np.int64(data[at + 1]) << 16 | np.int64(data[at + 2]) << 8 | np.int64(data[at + 3]))
    head = 18
    found[RATE] = np.int64(data[head]) << 12 | np.int64(data[head + 1]) << 4 | np.int64(data[head + 2]) >> 4
    found[CHANNELS] = (np.int64(data[head + 2]) >> 1 & 7) + 1
    found[BITS] = ((np.int64(data[head + 2]) & 1) << 4 | np.int64(data[head + 3]) >> 4) + 1
    frames = np.int64(data[head + 3] & 15)
    for k in range(4, 8):
        frames = frames << 8 | np.int64(data[head + k])
    found[FRAMES], found[FIRST], found[LONGEST] = frames, at, np.int64(data[10]) << 8 | np.int64(data[11])
    return frames > 0 and found[RATE] > 0 and 4 <= found[BITS] <= 24 and at < n


@jit
def crc_tables(tables):
    """Fill uint16[8, 256] tables for FLAC's CRC-16 (polynomial 0x8005) of eight bytes at a time."""
    for i in range(256):
        value = i << 8
        for _ in range(8):
            value = ((value << 1) ^ 0x8005 if value & 0x8000 else value << 1) & 0xFFFF
        tables[0, i] = value
    for i in range(256):
        for k in range(1, 8):
            before = np.int64(tables[k - 1, i])
            tables[k, i] = (before << 8 & 0xFFFF) ^ np.int64(tables[0, before >> 8])


@jit
def _crc(data, low, high, tables):
    crc = np.int64(0)
    at = low
    while at + 8 <= high:
        crc = (
            np.int64(tables[7, (crc >> 8) ^ data[at]]) ^ np.int64(tables[6, (crc & 255) ^ data[at + 1]])
            ^ np.int64(tables[5, data[at + 2]]) ^ np.int64(tables[4, data[at + 3]])
            ^ np.int64(tables[3, data[at + 4]]) ^ np.int64(tables[2, data[at + 5]])
            ^ np.int64(tables[1, data[at + 6]]) ^ np.int64(tables[0, data[at + 7]])
        )  # fmt: skip
        at += 8
    while at < high:
        crc = (crc << 8 & 0xFFFF) ^ np.int64(tables[0, (crc >> 8) ^ data[at]])
        at += 1
    return crc


@jit
def _bits(base, place, count):
    """Return ``count`` (up to 32) bits from bit number ``place`` on."""
    if count == 0:
        return np.int64(0)
    word = big_endian_64(np.uint64(base + (place >> 3))) << np.uint64(place & 7)
    return np.int64(word >> np.uint64(64 - count))


@jit
def _signed(base, place, count):
    value = _bits(base, place, count)
    return value - (np.int64(1) << count) if count and value >> (count - 1) else value


@jit
def _residual(base, place, end, size, order, out, at):
    """Decode the Rice-coded residual of a channel into ``out[at + order : at + size]``. Return the position of the next
    bit, or -1 on errors."""
    method = _bits(base, place, 2)
    parts_log = _bits(base, place + 2, 4)
    place += 6
    if method > 1 or (size >> parts_log) << parts_log != size or (size >> parts_log) < order:
        return np.int64(-1)
    width = 4 if method == 0 else 5
    escape = (1 << width) - 1
    to = at + order
    for part in range(1 << parts_log):
        stop = at + (part + 1) * (size >> parts_log)
        if place + width + 5 > end:
            return np.int64(-1)
        k = _bits(base, place, width)
        place += width
        if k == escape:
            raw = _bits(base, place, 5)
            place += 5
            if place + raw * (stop - to) > end:
                return np.int64(-1)
            while to < stop:
                out[to] = _signed(base, place, raw)
                place += raw
                to += 1
            continue
        shift = np.uint64(63 - k)
        while to < stop:
            # Decode all numbers that one word contains: shifting it takes a fifth of the time of loading the next one.
            word = big_endian_64(np.uint64(base + (place >> 3))) << np.uint64(place & 7)
            left, before = np.int64(57), to
            while to < stop:
                zeros = leading_zeros(word)
                length = zeros + k + 1
                if length > left:
                    break
                # drop the 1 that ends the zeros; the remaining bits follow it
                rest = ((word << np.uint64(zeros)) & _REST) >> shift
                value = np.uint64(zeros) << np.uint64(k) | rest
                out[to] = np.int64(value >> _ONE) ^ -np.int64(value & _ONE)
                to += 1
                word <<= np.uint64(length)
                left -= length
            place += 57 - left
            if to == before:  # a number that does not fit into a word
                zeros = np.int64(0)
                while _bits(base, place, 1) == 0:
                    zeros += 1
                    place += 1
                    if place > end:
                        return np.int64(-1)
                value = np.uint64(zeros << k | _bits(base, place + 1, k))
                place += 1 + k
                out[to] = np.int64(value >> _ONE) ^ -np.int64(value & _ONE)
                to += 1
            if place > end:
                return np.int64(-1)
    return place


@jit
def _predict_8(out, low, high, c, shift):
    """Apply linear prediction with up to eight coefficients, the newest sample's first. Samples stay in registers."""
    c0, c1, c2, c3, c4, c5, c6, c7 = c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]
    a, b, d, e = out[low - 1], out[low - 2], out[low - 3], out[low - 4]
    f, g, h, i = out[low - 5], out[low - 6], out[low - 7], out[low - 8]
    for n in range(low, high):
        older = (c7 * i + c6 * h) + (c5 * g + c4 * f) + (c3 * e + c2 * d) + c1 * b
        value = out[n] + ((older + c0 * a) >> shift)
        out[n] = value
        i, h, g, f, e, d, b, a = h, g, f, e, d, b, a, value


@jit
def _predict(out, at, size, order, coefficients, shift):
    low = at + order
    if order <= 8:
        for n in range(low, min(at + 8, at + size)):
            total = np.int64(0)
            for k in range(order):
                total += coefficients[k] * out[n - 1 - k]
            out[n] += total >> shift
        if size > 8:
            _predict_8(out, at + 8, at + size, coefficients, shift)
        return
    for n in range(low, at + size):
        total = np.int64(0)
        for k in range(order):
            total += coefficients[k] * out[n - 1 - k]
        out[n] += total >> shift


@jit
def _subframe(base, place, end, size, bits, coefficients, out, at):
    """Decode a frame's channel into ``out[at : at + size]``. Return the position of the next bit, or -1 on errors."""
    kind = _bits(base, place, 8)
    place += 8
    if kind & 0x80:
        return np.int64(-1)
    wasted = np.int64(0)
    if kind & 1:
        wasted = np.int64(1)
        while _bits(base, place, 1) == 0:
            wasted += 1
            place += 1
            if wasted >= bits or place > end:
                return np.int64(-1)
        place += 1
    kind >>= 1
    width = bits - wasted
    coefficients[:] = 0
    order, shift = np.int64(0), np.int64(0)
    if kind == 0:
        out[at : at + size] = _signed(base, place, width)
        place += width
    elif kind == 1:
        if place + width * size > end:
            return np.int64(-1)
        for n in range(size):
            out[at + n] = _signed(base, place, width)
            place += width
    elif 8 <= kind <= 12 or kind >= 32:
        order = kind - 8 if kind < 32 else kind - 31
        if order > size or place + order * width + 9 > end:
            return np.int64(-1)
        for n in range(order):
            out[at + n] = _signed(base, place, width)
            place += width
        if kind < 32:
            if order == 1:
                coefficients[0] = 1
            elif order == 2:
                coefficients[0], coefficients[1] = 2, -1
            elif order == 3:
                coefficients[0], coefficients[1], coefficients[2] = 3, -3, 1
            elif order == 4:
                coefficients[0], coefficients[1], coefficients[2], coefficients[3] = 4, -6, 4, -1
        else:
            precision = _bits(base, place, 4) + 1
            shift = _signed(base, place + 4, 5)
            place += 9
            if precision == 16 or shift < 0 or place + order * precision > end:
                return np.int64(-1)
            for k in range(order):
                coefficients[k] = _signed(base, place, precision)
                place += precision
        place = _residual(base, place, end, size, order, out, at)
        if place < 0:
            return place
        if order:
            _predict(out, at, size, order, coefficients, shift)
    else:
        return np.int64(-1)
    if wasted:
        for n in range(size):
            out[at + n] <<= wasted
    return place


@jit
def _block_size(code, base, place):
    """Return the number of samples in a frame, and how many bits encode this number after the frame number."""
    if code == 1:
        return np.int64(192), np.int64(0)
    if 2 <= code <= 5:
        return np.int64(576) << (code - 2), np.int64(0)
    if code == 6:
        return _bits(base, place, 8) + 1, np.int64(8)
    if code == 7:
        return _bits(base, place, 16) + 1, np.int64(16)
    return (np.int64(256) << (code - 8) if code >= 8 else np.int64(0)), np.int64(0)


@jit
def decode(data, size, found, tables, scale, left, right, out):
    """Decode all frames of a FLAC file of ``size`` bytes (GUARD more must be readable) into ``out``, channels
    interleaved. Samples are shifted ``left`` or ``right``, and multiplied by ``scale``. Return whether all are
    correct."""
    base = np.int64(data.ctypes.data)
    channels, total, place = found[CHANNELS], found[FRAMES], found[FIRST] * 8
    coefficients = np.zeros(32, np.int64)
    longest = found[LONGEST]
    work = np.empty(channels * longest, np.int64)
    done = np.int64(0)
    end = size * 8
    while done < total:
        first = place >> 3
        if place + 72 > end or _bits(base, place, 15) != 0x7FFC:
            return False
        sizes, rates = _bits(base, place + 16, 4), _bits(base, place + 20, 4)
        layout, depth = _bits(base, place + 24, 4), _bits(base, place + 28, 3)
        if layout > 10 or (layout < 8 and layout + 1 != channels) or (layout >= 8 and channels != 2):
            return False
        if depth == 3 or (depth and np.array([0, 8, 12, 0, 16, 20, 24, 32])[depth] != found[BITS]):
            return False
        place += 32
        lead = _bits(base, place, 8)  # the frame number, of one to seven bytes, coded as in UTF-8
        more = np.int64(0)
        while lead & 0x80 and more < 7:
            lead = lead << 1 & 0xFF
            more += 1
        place += 8 * (more if more else 1)
        block, used = _block_size(sizes, base, place)
        place += used + (8 if rates == 12 else (16 if rates == 13 or rates == 14 else 0)) + 8
        if block == 0 or block > longest or done + block > total:
            return False
        for channel in range(channels):
            side = (layout == 8 and channel == 1) or (layout == 9 and channel == 0) or (layout == 10 and channel == 1)
            place = _subframe(base, place, end, block, found[BITS] + side, coefficients, work, channel * longest)
            if place < 0:
                return False
        place = (place + 7) >> 3 << 3
        if place + 16 > end or _crc(data, first, place >> 3, tables) != _bits(base, place, 16):
            return False
        place += 16
        if layout >= 8:
            a, b = work[:block], work[longest : longest + block]
            for n in range(block):
                x, y = a[n], b[n]
                if layout == 8:
                    b[n] = x - y
                elif layout == 9:
                    a[n] = x + y
                else:
                    middle = x << 1 | (y & 1)
                    a[n], b[n] = (middle + y) >> 1, (middle - y) >> 1
        for channel in range(channels):
            source = work[channel * longest : channel * longest + block]
            to = done * channels + channel
            if channels == 1:
                line = out[done : done + block]
                for n in range(block):
                    line[n] = ((source[n] << left) >> right) * scale
            else:
                for n in range(block):
                    out[to + n * channels] = ((source[n] << left) >> right) * scale
        done += block
    return True
