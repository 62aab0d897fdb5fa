"""Huffman-coded data of JPEGs on the CPU: lookup tables of codes, and scans without their stuffing.

What decoders of scans share (`baseline_cpu`, `progressive_cpu`). Memory is read and written by address in the inner
loops. Numba frees an array after its last use by name: arrays that are used by address belong to the caller.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .simd_cpu import PLACES, copy_64, lowest_bit

U = np.uint64
LOOKUP_BITS = 11
"""Bits of the lookup tables' index: 96 % of all coefficients take no more, their value included, and the tables fit
into an L1 cache."""
ENTRIES = 1 << LOOKUP_BITS
SHIFT = U(64 - LOOKUP_BITS)
ZERO, ONE, THREE, SEVEN, EIGHT = U(0), U(1), U(3), U(7), U(8)
FULL, LOW6, BYTE = U(56), U(63), U(255)
BLOCK_END, END_OF_BLOCK = U(64), U(128)

MCU_BYTES = 10 * 64 * 4 + 16
"""Ten blocks of at most 64 symbols of at most 31 bits, and what is fetched ahead."""

# An entry of an AC table: all that the next bits hold, if it is one or two whole symbols (the second only after a
# coefficient): bits 0 ... 5 bits taken; 6 ... 13 how far the index moves; 14 ... 17 zeros before the first coefficient;
# 18 ... 24 the first value; 25 ... 31 the last one, the same where there is but one, which stands before the index that
# comes. Symbols without a coefficient write a 0 where none was written yet, or after the block.
# Where the code is there and its value is not: bits 0 ... 5 are 0; 6 ... 9 zeros before; 10 ... 13 bits of the value;
# 14 ... 17 bits of the code. Longer codes, and what means something else in some scans: 0.

ORDER = np.full(256, 64, np.uint8)
ORDER[:64] = PLACES
"""Zig-zag index to the place in a block for `inverse_dct`; after the block: the spare place."""


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
def _value(i: Any, taken: Any, size: Any) -> Any:
    """The number of ``size`` bits (T.81, F.2.2.1: EXTEND) that end after ``taken`` of the bits ``i``."""
    value = i >> (LOOKUP_BITS - taken) & (1 << size) - 1
    return value if size == 0 or value >> (size - 1) else value + 1 - (1 << size)


@njit(nogil=True, cache=True)
def ac_entries(codes: Any, single: Any, entries: Any) -> None:
    """The entries of an AC table, int32; ``single`` is scratch of the same size."""
    for i in range(ENTRIES):
        length, symbol = np.int64(codes[i]) & 255, np.int64(codes[i]) >> 8
        size, run = symbol & 15, symbol >> 4
        taken = length + size
        entry: Any = np.int64(0)
        if length == 0 or size > 10 or (size == 0 and 0 < run < 15):
            pass
        elif taken > LOOKUP_BITS or size > 6:
            entry = run << 6 | size << 10 | length << 14
        elif size == 0:
            entry = taken | (16 if run == 15 else 128) << 6
        else:
            value = _value(i, taken, size)
            entry = taken | run + 1 << 6 | run << 14 | (value & 127) << 18 | value << 25
        single[i] = entry
    for i in range(ENTRIES):
        entry = np.int64(single[i])
        taken = entry & 63
        if taken > 0 and entry >> 25 != 0:
            after = np.int64(single[i << taken & ENTRIES - 1])
            both = taken + (after & 63)
            if taken < both <= LOOKUP_BITS:
                move = (entry >> 6 & 255) + (after >> 6 & 255)
                entry = both | move << 6 | entry & (0x7FF << 14) | after >> 25 << 25
        entries[i] = entry


@njit(nogil=True, cache=True)
def dc_entries(codes: Any, entries: Any) -> None:
    """The entries of a DC table, int16: all that the next bits hold, if it is a code and its value. Bits 0 ... 4 bits
    taken; 5 ... 15 the value. Otherwise 0."""
    for i in range(ENTRIES):
        length, size = np.int64(codes[i]) & 255, np.int64(codes[i]) >> 8
        taken, entry = length + size, np.int64(0)
        if length > 0 and taken <= LOOKUP_BITS:
            entry = taken | _value(i, taken, size) << 5
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
