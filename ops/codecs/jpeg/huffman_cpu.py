"""Huffman-coded data of JPEGs on the CPU: lookup tables of codes, and scans without their stuffing.

What decoders of scans share (`baseline_cpu`, `progressive_cpu`). Memory is read and written by address in the inner
loops. Numba frees an array after its last use by name: arrays that are used by address belong to the caller.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .simd_cpu import copy_64, lowest_bit

U = np.uint64
LOOKUP_BITS = 10
"""Bits of the lookup tables' index: 95 % of all coefficients take no more, their value included, and the tables of two
threads fit into one L1 cache."""
ENTRIES = 1 << LOOKUP_BITS
SHIFT = U(64 - LOOKUP_BITS)
ZERO, ONE, THREE, SEVEN, EIGHT = U(0), U(1), U(3), U(7), U(8)
FULL, LOW6, BYTE = U(56), U(63), U(255)
BLOCK_END, END_OF_BLOCK = U(64), U(128)

MCU_BYTES = 10 * 64 * 4 + 16
"""Ten blocks of at most 64 symbols of at most 31 bits, and what is fetched ahead."""

# An entry of an AC table: all that the next bits hold, if it is one or two whole symbols (the second only after a
# coefficient): bits 0 ... 5 bits taken; 8 ... 15 how far the index moves; 16 ... 22 and 24 ... 30 places of the
# coefficients from the index; 32 ... 47 the first value; 48 ... 51 bits of the first; 52 ... 63 the second value.
LONG = np.int64(255 << 8 | 64 << 16 | 64 << 24)
"""The entry where the bits do not hold a whole symbol."""
LONG_MOVE = U(255)

ORDER = np.full(128, 64, np.uint8)
ORDER[:64] = np.array(
    [0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21,
     28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61,
     54, 47, 55, 62, 63], np.uint8)  # fmt: skip
"""Zig-zag index to 8 * row + column (T.81, figure A.6); after the block: the spare place."""


@njit(nogil=True, cache=True)
def read_codes(data: Any, at: Any, codes: Any, limit: Any, delta: Any, symbols: Any) -> Any:
    """A Huffman table (T.81, C.2) at data[at:]: ``codes`` [2^LOOKUP_BITS] is symbol * 256 + length, 0 for longer codes,
    which ``limit`` and ``delta`` [17] find by their length. False for what is no prefix code."""
    if at <= 0 or at + 16 > len(data):
        return False
    codes[:] = 0
    code = total = 0
    for length in range(1, 17):
        count = np.int64(data[at + length - 1])
        if total + count > 256 or at + 16 + total + count > len(data) or code + count > 1 << length:
            return False
        delta[length] = total - code
        for _ in range(count):
            symbol = np.int64(data[at + 16 + total])
            symbols[total] = symbol
            if length <= LOOKUP_BITS:
                first = code << (LOOKUP_BITS - length)
                codes[first : first + (1 << (LOOKUP_BITS - length))] = symbol << 8 | length
            code += 1
            total += 1
        if count > 0 and code >= 1 << length:  # all ones is no code
            return False
        limit[length] = code << (16 - length)
        code <<= 1
    return True


@njit(nogil=True, cache=True)
def ac_entries(codes: Any, single: Any, entries: Any) -> None:
    """The entries of an AC table; ``single`` is scratch of the same size."""
    for i in range(ENTRIES):
        length, symbol = np.int64(codes[i]) & 255, np.int64(codes[i]) >> 8
        size, run = symbol & 15, symbol >> 4
        taken = length + size
        entry: Any = LONG
        if length > 0 and taken <= LOOKUP_BITS:
            move: Any = run + 1
            place: Any = run
            value: Any = 0
            if size > 0:
                value = i >> (LOOKUP_BITS - taken) & (1 << size) - 1
                if value < 1 << (size - 1):
                    value += 1 - (1 << size)
            elif run == 15:
                move, place = 16, 64
            else:
                move, place = 128, 64
            entry = taken | move << 8 | place << 16 | 64 << 24 | (value & 0xFFFF) << 32 | taken << 48
            if size == 0 and 0 < run < 15:
                entry = LONG
        single[i] = entry
    for i in range(ENTRIES):
        entry = single[i]
        taken, run = entry & 63, entry >> 16 & 127
        if run < 64:
            after = single[i << taken & ENTRIES - 1]
            if after & 63 > 0 and taken + (after & 63) <= LOOKUP_BITS:
                move, place = run + 1, after >> 16 & 127
                if place < 64:
                    place += move
                entry = taken + (after & 63) | move + (after >> 8 & 255) << 8 | run << 16 | place << 24
                entry |= single[i] & 0xFFFF << 32 | taken << 48 | (after >> 32 & 0xFFF) << 52
        entries[i] = entry


@njit(nogil=True, cache=True)
def long_code(bits: Any, limit: Any, delta: Any, symbols: Any) -> Any:
    """The code at the top of ``bits``, longer than LOOKUP_BITS: symbol * 256 + length; 0 for none."""
    pattern = np.int64(bits >> U(48))
    for length in range(LOOKUP_BITS + 1, 17):
        if pattern < limit[length]:
            return U(symbols[delta[length] + (pattern >> 16 - length) & 255]) << EIGHT | U(length)
    return ZERO


@njit(nogil=True, cache=True)
def unstuff(data: Any, begin: Any, end: Any, stream: Any, ends: Any) -> Any:
    """The scan data[begin : end] without its stuffing to ``stream``, and where each restart interval but the last ends
    to ``ends``; at ``end`` stands a marker. With -1, the scan goes up to EOI. Returns the bytes written; -1 where
    anything but the expected restart markers stands before."""
    source, target = U(data.ctypes.data), U(stream.ctypes.data)
    i, size, out = U(begin), U(len(data)), ZERO
    found = 0
    while i < size:
        if i + U(64) <= size:
            mask = copy_64(source + i, target + out)
            if mask == ZERO:
                i += U(64)
                out += U(64)
                continue
            i += lowest_bit(mask)
            out += lowest_bit(mask)
        elif data[i] != 255:
            stream[out] = data[i]
            i += ONE
            out += ONE
            continue
        if i + ONE >= size:
            return -1
        after = data[i + ONE]
        i += U(2)
        if after == 0:
            stream[out] = 255
            out += ONE
        elif (end < 0 and after == 0xD9) or np.int64(i) - 2 == end:
            return np.int64(out) if found == len(ends) else -1
        elif found < len(ends) and after == 0xD0 + (found & 7):
            ends[found] = out
            found += 1
        else:
            return -1
    return -1


@njit(nogil=True, cache=True)
def value_of(bits: Any, size: Any) -> Any:
    """The ``size`` bits at the top of ``bits`` as a number (T.81, F.2.2.1: EXTEND)."""
    value = np.int64((bits >> ONE) >> (LOW6 - size))
    return value + (~(np.int64(bits) >> np.int64(63)) & (np.int64(1) - (np.int64(1) << np.int64(size))))
