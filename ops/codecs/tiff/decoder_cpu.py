"""Compiled TIFF decoder, for a whole batch without the GIL: strips and tiles that are uncompressed, or packed by LZW,
deflate (with libdeflate) or PackBits.

The decoder accepts valid files of supported kinds (`directory_cpu`); an image with anything unusual gets the status
`OTHER`, and Pillow, with libtiff, then decodes or rejects it. So this decoder may only be stricter, never more lenient.

Sources: TIFF 6.0, sections 9 (PackBits), 13 (LZW), 14 (differencing); Adobe's Photoshop TIFF Technical Notes (deflate).

Memory is read and written by address. It stays in bounds because strips are inside the file; unpacked data has exactly
the size that the directory says; pixels are written inside the window only. Numba frees an array after its last use by
name: arrays that are used by address are referred to again afterwards.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from ..jpeg.simd_cpu import big_endian_64, put_i16, put_u8, put_u64, u8_at, u64_at
from ..png.decoder_cpu import _emit, _inflate, _keep
from ..png.samples_cpu import sample
from ..png.simd_cpu import call_1
from .directory_cpu import (
    BIG,
    BITS,
    CODING,
    FACTS,
    HEIGHT,
    HIGH,
    INVERTED,
    LZW,
    NONE,
    OFFSET_BYTES,
    OFFSETS,
    PACK_BITS,
    PREDICTOR,
    SAMPLES,
    SIZE_BYTES,
    SIZES,
    TILED,
    WIDE,
    WIDTH,
    number,
    read,
)

DONE, OTHER = 0, 1
"""Values of an image's status: it was decoded, or Pillow must decode it."""

BEFORE = 264
"""Bytes of scratch memory before the unpacked data: the 256 byte values, which are LZW's first strings, and 8 spare
bytes, because loading a string may read beyond them."""
_AFTER = 16
_CLEAR, _FIRST = 256, 258
"""Special LZW codes: the code that clears the string table, and the first code free for new strings."""


@njit(nogil=True, cache=True)
def _copy(source: Any, target: Any, n: Any) -> None:
    """Copy ``n`` bytes from low to high addresses. Up to 7 bytes after the target may also be overwritten. Source and
    target may overlap if they are at least 8 bytes apart."""
    for k in range(0, n, 8):
        put_u64(np.uint64(target + k), u64_at(np.uint64(source + k)))


@njit(nogil=True, cache=True)
def _eight(at: Any, end: Any) -> Any:
    """Return eight bytes at an address as a number, the first highest; bytes from the address ``end`` on count as 0."""
    value = np.int64(0)
    for k in range(8):
        value = value << 8 | (np.int64(u8_at(np.uint64(at + k))) if at + k < end else 0)
    return value


@njit(nogil=True, cache=True)
def _unpack_lzw(source: Any, size: Any, base: Any, room: Any, table: Any) -> Any:
    """Unpack ``room`` bytes of LZW to ``base + BEFORE`` from the ``size`` bytes at ``source``. Return whether there
    were exactly ``room``.

    A new code's string is the previous code's string and the byte after it, which are already in the output. So a
    string is stored as its address there and its length: ``address << 16 | length``. The first 256 strings precede the
    output. A code thus costs one copy of 8 bytes.

    The first half of the loop reads four codes while all bounds are far away. The second half reads one code and checks
    everything; it also handles long strings, and undefined codes, whose length is 0.
    """
    at, stop, seven = base + BEFORE, base + BEFORE + room, np.uint64(7)
    bits, end = 8 * size, source + size
    far, calm = end - 8, stop - 33  # up to here, 8 bytes may be read, and 33 written
    for k in range(256):
        table[k] = (base + k) << 16 | 1
    if _eight(source, end) >> 55 & 511 != _CLEAR:
        return False
    bit = np.int64(9)
    while True:
        table[256:] = 0
        first = _eight(source + (bit >> 3), end) >> (55 - (bit & 7)) & 511  # after an empty table, codes have nine bits
        bit += 9
        if bit > bits or first > 255:
            return False
        put_u8(np.uint64(at), np.uint64(first))
        newest = at << 16 | 2
        at += 1
        if at == stop:
            return True
        code, following = np.int64(0), np.int64(_FIRST)
        for width in range(9, 13):
            limit, left, right = (1 << width) - 1, np.uint64(width), np.uint64(64 - width)
            while following < limit:
                plain = True
                while plain and following + 4 <= limit and at <= calm and source + (bit >> 3) <= far:
                    word = big_endian_64(np.uint64(source + (bit >> 3))) << np.uint64(bit & 7)
                    for _ in range(4):
                        found = table[np.int64(word >> right)]
                        length = found & 0xFFFF
                        if np.uint64(length - 1) > seven:
                            plain = False
                            break
                        put_u64(np.uint64(at), u64_at(np.uint64(found >> 16)))
                        table[following] = newest
                        newest = (at << 16) + length + 1
                        at += length
                        bit += width
                        following += 1
                        word <<= left
                if following == limit:
                    break
                code = _eight(source + (bit >> 3), end) >> (64 - width - (bit & 7)) & limit
                bit += width
                if bit > bits:
                    return False
                found = newest if code == following else table[code]
                length, string = found & 0xFFFF, found >> 16
                if length == 0:
                    break
                if length > stop - at:
                    return False
                if code == following:  # the string's last byte equals its first, which is about to be written
                    for k in range(length):
                        put_u8(np.uint64(at + k), u8_at(np.uint64(string + k)))
                else:
                    _copy(string, at, length)
                table[following] = newest
                newest = (at << 16) + length + 1
                at += length
                following += 1
                if at == stop:
                    return True
            if following < limit:
                break
        if following >= 4095 or code != _CLEAR:  # the table is full, or the data ends early
            return False


@njit(nogil=True, cache=True)
def _unpack_bits(source: Any, size: Any, target: Any, room: Any) -> Any:
    """Undo PackBits compression: write ``room`` bytes to ``target``. Return whether the compressed data gives exactly
    ``room``."""
    at, end, stop = source, source + size, target + room
    while target < stop:
        if at >= end:
            return False
        n = np.int64(u8_at(np.uint64(at)))
        at += 1
        if n < 128:
            n += 1
            if n > end - at or n > stop - target:
                return False
            for k in range(n):
                put_u8(np.uint64(target + k), u8_at(np.uint64(at + k)))
            at += n
            target += n
        elif n > 128:
            n = 257 - n
            if at >= end or n > stop - target:
                return False
            value = u8_at(np.uint64(at))
            for k in range(n):
                put_u8(np.uint64(target + k), value)
            at += 1
            target += n
    return True


@njit(nogil=True, cache=True)
def _add_up(row: Any, n: Any, step: Any, bits: Any, big: Any) -> None:
    """Undo the TIFF predictor in a row of ``n`` samples: add to each sample the result ``step`` samples before it."""
    if bits == 16:
        s8, low = np.uint64(8), np.uint64(255)
        for first in range(row, row + 2 * step, 2):
            a = np.uint64(0)
            for k in range(first, row + 2 * n, 2 * step):
                a += sample(k, big)
                put_i16(np.uint64(k), (a >> s8 & low) | a << s8 if big else a)
        return
    if step == 3:
        a, b, c = np.uint64(0), np.uint64(0), np.uint64(0)
        for k in range(row, row + n, 3):
            a += u8_at(np.uint64(k))
            b += u8_at(np.uint64(k + 1))
            c += u8_at(np.uint64(k + 2))
            put_u8(np.uint64(k), a)
            put_u8(np.uint64(k + 1), b)
            put_u8(np.uint64(k + 2), c)
        return
    for first in range(row, row + step):
        a = np.uint64(0)
        for k in range(first, row + n, step):
            a += u8_at(np.uint64(k))
            put_u8(np.uint64(k), a)


@njit(nogil=True, cache=True)
def _unpacked(
    functions: Any, machine: Any, facts: Any, source: Any, size: Any, base: Any, rows: Any, table: Any, counts: Any
) -> Any:
    """Unpack one strip or tile of ``rows`` rows. Return the address of the unpacked bytes; 0 if the strip is
    invalid."""
    coding, row = facts[CODING], facts[WIDE] * facts[SAMPLES] * (facts[BITS] >> 3)
    room, target, sound = rows * row, base + BEFORE, True
    if coding == NONE:
        if size < room:
            return 0
        if not facts[INVERTED]:
            return source
        for k in range(room):
            put_u8(np.uint64(target + k), u8_at(np.uint64(source + k)))
    elif coding == LZW:
        sound = _unpack_lzw(source, size, base, room, table)
    elif coding == PACK_BITS:
        sound = _unpack_bits(source, size, target, room)
    else:
        sound = machine != 0 and _inflate(functions, machine, source, size, target, room, counts) == room
    if not sound:
        return 0
    if facts[PREDICTOR] == 2:
        for y in range(rows):
            _add_up(target + y * row, facts[WIDE] * facts[SAMPLES], facts[SAMPLES], facts[BITS], facts[BIG])
    if facts[INVERTED]:
        for k in range(target, target + room):
            put_u8(np.uint64(k), u8_at(np.uint64(k)) ^ np.uint64(255))
    return target


@njit(nogil=True, cache=True)
def decode_images(
    functions: Any, raw: Any, offsets: Any, sizes: Any, windows: Any, channels: Any, bgr: Any, item: Any, dst: Any,
    origins: Any, pitches: Any, status: Any,
) -> None:  # fmt: skip
    """Decode N TIFFs; see `native_loops` for the arguments. ``functions`` are addresses of libdeflate's functions. They
    are 0 if libdeflate is missing: deflated images then get the status `OTHER`."""
    machine = call_1(functions[0], (0,)) if functions[0] else 0
    table, facts, counts = np.zeros(4096, np.int64), np.zeros(FACTS, np.int64), np.zeros(2, np.int64)
    scratch, none = np.empty(0, np.uint8), np.empty(0, np.int64)  # no palette
    for i in range(len(sizes)):
        status[i] = OTHER
        start, size = raw.ctypes.data + offsets[i], sizes[i]
        y0, x0, y1, x1 = windows[i, 0], windows[i, 1], windows[i, 2], windows[i, 3]
        if not read(start, size, facts) or y1 > facts[HEIGHT] or x1 > facts[WIDTH]:
            continue
        samples, wide, high, bits = facts[SAMPLES], facts[WIDE], facts[HIGH], facts[BITS]
        if item == 2 and bits != 16:
            continue
        need = BEFORE + wide * high * samples * (bits >> 3) + _AFTER
        if len(scratch) < need:
            scratch = np.empty(need, np.uint8)
            for k in range(BEFORE):
                scratch[k] = k & 255
        kind = 0 if samples == 1 else 4 if samples == 2 else 2 if samples == 3 else 6  # colour types of PNG
        across, pitch = (facts[WIDTH] + wide - 1) // wide, wide * samples * (bits >> 3)
        chunks, sound = across * ((facts[HEIGHT] + high - 1) // high), True
        for c in range(chunks):
            top, left = c // across * high, c % across * wide
            at = number(start + facts[OFFSETS] + c * facts[OFFSET_BYTES], facts[OFFSET_BYTES], facts[BIG])
            n = number(start + facts[SIZES] + c * facts[SIZE_BYTES], facts[SIZE_BYTES], facts[BIG])
            if at < 8 or n == 0 or n > size - at:
                sound = False
                break
            rows = high if facts[TILED] else min(high, facts[HEIGHT] - top)
            row = _unpacked(functions, machine, facts, start + at, n, scratch.ctypes.data, rows, table, counts)
            if row == 0:
                sound = False
                break
            first, last = max(x0 - left, 0), min(x1 - left, wide)
            for y in range(max(y0, top), min(y1, top + high)):
                if first < last:
                    place = dst.ctypes.data + origins[i] + y * pitches[i] + (left + first) * channels[i] * item
                    _emit(row + (y - top) * pitch, first, last, bits, kind, none, channels[i], bgr, item, facts[BIG],
                          place, channels[i] * item)  # fmt: skip
        if sound:
            status[i] = DONE
    if machine:
        call_1(functions[2], (machine,))
    _keep(scratch, scratch, scratch, scratch, raw, dst, counts)
