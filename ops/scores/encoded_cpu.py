"""The CPU loops of jpeg_quality, text_length and content_hash: all samples in one call, without the GIL."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np

from ..codecs.jpeg.segments import past_fill, quantisation_tables, u16
from ..copies.words_cpu import load_two, load_word

WORDS, CHARACTERS = range(2)
"""Numbers of the units in which text is measured, in the order of `encoded._UNITS`; number 2 is bytes."""
_PLACES = 5, 60, 0, 63
"""Zig-zag positions of the quantisation table entries that ImageMagick adds up: 2 and 53 of the first table, 0 and 63
of the second."""

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(p)
    for p in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
)
"""Constants of XXH64, all primes (github.com/Cyan4973/xxHash, doc/xxhash_spec.md)."""

jit = numba.njit(nogil=True, cache=True)


@jit
def _tables(data):
    """Return the offsets of the quantisation tables in a JPEG's header (0 if a table is missing), and a mask of the
    tables with 16-bit entries; all zeros if ``data`` is not a JPEG."""
    tables, wide, at = np.zeros((1, 4), np.int64), np.int64(0), np.int64(2)
    if len(data) < 4 or data[0] != 0xFF or data[1] != 0xD8:
        return tables, wide
    while at + 4 <= len(data) and data[at] == 0xFF:
        at = np.int64(past_fill(data, at))
        if at + 3 > len(data):
            break
        marker = data[at]
        if marker == 0xDA or marker == 0xD9:
            break
        end = at + 1 + u16(data, at + 1)
        if end > len(data):
            break
        if marker == 0xDB:
            wide = np.int64(quantisation_tables(data, at + 3, end, tables, wide)[1])
        at = end
    return tables, wide


@jit
def _entry(data, at, wide, place):
    return u16(data, at + 2 * place) if wide else np.int64(data[at + place])


@jit
def jpeg_quality(data, offsets, sizes, hashes, sums, out):
    """Write the estimated quality of each JPEG file to ``out``, 0 for other files. ``hashes`` and ``sums`` int64[2,
    100] are the tables of `encoded.ijg_sums`."""
    for i in range(len(offsets)):
        file = data[offsets[i] : offsets[i] + sizes[i]]
        tables, wide = _tables(file)
        out[i] = 0
        if tables[0, 0] == 0:
            continue
        total, several = np.int64(0), np.int64(tables[0, 1] > 0)
        for k in range(4):
            for place in range(64 if tables[0, k] else 0):
                total += _entry(file, tables[0, k], (wide >> k) & 1, place)
        found = np.int64(0)
        for k in range(2 + 2 * several):
            found += _entry(file, tables[0, k // 2], (wide >> (k // 2)) & 1, _PLACES[k])
        hash_, sum_ = hashes[several], sums[several]
        for k in range(100):
            if found < hash_[k] and total < sum_[k]:
                continue
            if (found <= hash_[k] and total <= sum_[k]) or k >= 50:
                out[i] = k + 1
            break


@jit
def _is_space(code):
    """Whether a code point is white space, as in Python's str.isspace."""
    if code < 0x85:
        return code == 32 or 9 <= code <= 13 or 28 <= code <= 31
    if code < 0x1680:
        return code == 0x85 or code == 0xA0
    return code == 0x1680 or 0x2000 <= code <= 0x200A or code in (0x2028, 0x2029, 0x202F, 0x205F, 0x3000)


@jit
def _words(text):
    count, within, at, n = 0, False, 0, len(text)
    while at < n:
        code, first = np.int64(text[at]), at
        at += 1
        while at < n and text[at] & 0xC0 == 0x80:
            at += 1
        if code >= 0xC0 and at - first in (2, 3):  # white space has at most three bytes
            code &= 0x1F if at - first == 2 else 0x0F
            for k in range(first + 1, at):
                code = code << 6 | np.int64(text[k] & 0x3F)
        space = _is_space(code)
        count += within and space
        within = not space
    return count + within


@jit
def text_length(data, offsets, sizes, unit, out):
    for i in range(len(offsets)):
        text = data[offsets[i] : offsets[i] + sizes[i]]
        if unit == WORDS:
            out[i] = _words(text)
        elif unit == CHARACTERS:
            count = 0
            for k in range(len(text)):
                count += text[k] & 0xC0 != 0x80
            out[i] = max(count, min(len(text), 1))
        else:
            out[i] = len(text)


@jit
def _rotated(value, bits):
    return value << np.uint64(bits) | value >> np.uint64(64 - bits)


@jit
def _round(lane, word):
    return _rotated(lane + word * _P2, 31) * _P1


@jit
def _xxh64(data, at, size):
    end = at + size
    if size >= 32:
        a, b, c, d = _P1 + _P2, _P2, np.uint64(0), np.uint64(0) - _P1
        while at + 32 <= end:
            a, b = _round(a, load_two(data, at)), _round(b, load_two(data, at + 8))
            c, d = _round(c, load_two(data, at + 16)), _round(d, load_two(data, at + 24))
            at += 32
        value = _rotated(a, 1) + _rotated(b, 7) + _rotated(c, 12) + _rotated(d, 18)
        for lane in (a, b, c, d):
            value = (value ^ _round(np.uint64(0), lane)) * _P1 + _P4
    else:
        value = _P5
    value += np.uint64(size)
    while at + 8 <= end:
        value = _rotated(value ^ _round(np.uint64(0), load_two(data, at)), 27) * _P1 + _P4
        at += 8
    if at + 4 <= end:
        value = _rotated(value ^ np.uint64(load_word(data, at)) * _P1, 23) * _P2 + _P3
        at += 4
    while at < end:
        value = _rotated(value ^ np.uint64(data[at]) * _P5, 11) * _P1
        at += 1
    value = (value ^ value >> np.uint64(33)) * _P2
    value = (value ^ value >> np.uint64(29)) * _P3
    return value ^ value >> np.uint64(32)


@jit
def content_hash(data, offsets, sizes, out):
    for i in range(len(offsets)):
        out[i] = _xxh64(data, np.int64(offsets[i]), np.int64(sizes[i]))
