"""Compiled functions for Huffman-coded data of JPEGs on the CPU: lookup tables of codes, and removal of stuffing.

Shared by the decoders of scans (`baseline_cpu`, `progressive_cpu`). Memory is read and written by address in the inner
loops. Numba frees an array after its last use by name: arrays that are used by address belong to the caller.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .simd_cpu import PLACES, big_endian_64, copy_64, lowest_bit

U = np.uint64
LOOKUP_BITS = 11
"""Number of bits that one lookup in a Huffman table uses. 0.2 % of all symbols have longer codes, and the tables fit
into an L1 cache."""
ENTRIES = 1 << LOOKUP_BITS
SHIFT = U(64 - LOOKUP_BITS)
ZERO, ONE, THREE, SEVEN, EIGHT = U(0), U(1), U(3), U(7), U(8)
FULL, LOW6, BYTE = U(56), U(63), U(255)
BLOCK_END, END_OF_BLOCK = U(64), U(128)

MAX_TAKEN = 18
"""Maximum number of bits that an entry of a lookup table consumes: three entries consume no more than are available
after bytes were fetched."""
NO_ENTRY = 64 << 16
"""Entry of an AC lookup table which says that the next symbol must be read separately, by `next_symbol`."""

MCU_BYTES = 10 * 64 * 4 + 16
"""Maximum bytes of an MCU in a file: ten blocks of at most 64 symbols of at most 31 bits, and the bytes fetched
ahead."""

# An entry of an AC table describes the next bits: one symbol, or two if both codes fit; a second one only after a
# coefficient whose value fits too. Bits 0 ... 5: bits consumed. 6 ... 11: 64 less the bits of the last value, which end
# where the consumed bits do. 12 ... 15: zeros before the first coefficient. 16 ... 23: how far the index moves. 24 ...
# 31: the first value. The last value is written before the new index, and then the first value to its place. For one
# symbol alone, the last value is its own; its first value is 0, which is written where no coefficient is yet. For a
# symbol without a coefficient, the last value has no meaning, and is written to the spare place or below the first one.
# An entry of a DC table has bits 0 ... 11 only, and is 0 if there is no entry; there a last value without bits is 0.

ORDER = np.full(256, 64, np.uint8)
ORDER[:64] = PLACES
"""For each zig-zag index, the position at which `inverse_dct` expects the coefficient in a block. Indices beyond the
block lead to a spare position."""


@njit(nogil=True, cache=True)
def read_codes(data: Any, at: Any, codes: Any, limit: Any, delta: Any, symbols: Any) -> Any:
    """Read a Huffman table (T.81, C.2) at data[at:]. ``codes`` [2^LOOKUP_BITS] is indexed by the next bits, and becomes
    symbol * 256 + length of the code that they begin with; 0 for longer codes. These are found by ``limit`` and
    ``delta`` [17], which are indexed by length. Return False if it is not a prefix code."""
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
        if count > 0 and code >= 1 << length:  # a code of all ones is not allowed
            return False
        limit[length] = code << (16 - length)
        code <<= 1
    return True


@njit(nogil=True, cache=True)
def _value(i: Any, taken: Any, size: Any) -> Any:
    """Return the signed number (T.81, F.2.2.1: EXTEND) that the last ``size`` of the first ``taken`` bits of ``i``
    represent."""
    value = i >> (LOOKUP_BITS - taken) & (1 << size) - 1
    return value if size == 0 or value >> (size - 1) else value + 1 - (1 << size)


@njit(nogil=True, cache=True)
def dc_entries(codes: Any, entries: Any) -> None:
    """Fill ``entries`` (int32), the lookup table of a DC Huffman table, from its ``codes``."""
    i: Any = np.int64(0)
    while i < ENTRIES:
        length, size = np.int64(codes[i]) & 255, np.int64(codes[i]) >> 8
        span = 1 << (LOOKUP_BITS - length) if length > 0 else ENTRIES - i
        fits = length > 0 and length + size <= MAX_TAKEN
        entries[i : i + span] = length + size | (64 - size & 63) << 6 if fits else 0
        i += span


@njit(nogil=True, cache=True)
def ac_entries(codes: Any, seconds: Any, entries: Any) -> None:
    """Fill ``entries`` (int32), the lookup table of an AC Huffman table, from its ``codes``. ``seconds`` is scratch
    memory of the same size."""
    i: Any = np.int64(0)
    while i < ENTRIES:  # the part that a symbol adds to the entry of the one before it
        length, symbol = np.int64(codes[i]) & 255, np.int64(codes[i]) >> 8
        size, run = symbol & 15, symbol >> 4
        span = 1 << (LOOKUP_BITS - length) if length > 0 else ENTRIES - i
        second: Any = np.int64(63)  # more bits than ever fit
        if symbol == 0 and length > 0:
            second = length | 128 << 16
        elif 0 < size <= 10 and length > 0:
            second = length + size | (64 - size) << 6 | run + 1 << 16
        seconds[i : i + span] = second
        i += span
    i = np.int64(0)
    while i < ENTRIES:
        length, symbol = np.int64(codes[i]) & 255, np.int64(codes[i]) >> 8
        size, run = symbol & 15, symbol >> 4
        taken, left = length + size, LOOKUP_BITS - length - size
        span = 1 << (LOOKUP_BITS - length) if length > 0 else ENTRIES - i
        entry: Any = np.int64(NO_ENTRY)
        if length > 0 and size == 0 and (run == 0 or run == 15):
            entry = taken | 128 << 16 if run == 0 else taken | 15 << 12 | 16 << 16
        elif length > 0 and 0 < size <= 10 and taken <= MAX_TAKEN:
            entry = taken | (64 - size) << 6 | (0 if run > 0 else 1) << 12 | run + 1 << 16
        if entry == NO_ENTRY or size == 0 or size > 7 or left <= 0:
            entries[i : i + span] = entry
            i += span
            continue
        for pattern in range(1 << size):
            value = pattern if pattern >> (size - 1) else pattern + 1 - (1 << size)
            first = taken | run << 12 | run + 1 << 16 | value << 24
            for k in range(1 << left):
                second = np.int64(seconds[k << taken])
                fits = np.int64(codes[k << taken]) & 255 <= left and (second & 63) + taken <= MAX_TAKEN
                entries[i + k] = first + second if fits else entry
            i += 1 << left


@njit(nogil=True, cache=True, forceinline=True)
def last_value(bits: Any, entry: Any) -> Any:
    """Return the last value that ``entry`` decodes from ``bits``, by which it was looked up. The result is undefined if
    the entry says that the value has no bits."""
    width = U(entry) >> U(6)
    value = np.int64(bits << ((U(entry) + width) & LOW6))
    sign = value >> np.int64(63)
    return sign - (np.int64(U(~(value ^ sign)) >> (width & LOW6)) ^ sign)


@njit(nogil=True, cache=True, forceinline=True)
def is_ended(index: Any, end: Any) -> Any:
    """Return whether a block is complete after a lookup entry. ``index``: coefficient index after the entry; at least
    ``end``, the end of the block. Complete means ended by an end-of-block symbol or by the last coefficient. If false,
    the entry is NO_ENTRY, or its second symbol belongs to the next block, or a run of zeros exceeds the block:
    `next_symbol` must then read the entry's bits again."""
    return index - END_OF_BLOCK < end or index == end


@njit(nogil=True, cache=True, forceinline=True)
def next_symbol(bits: Any, at: Any, count: Any, t: Any, codes: Any, limit: Any, delta: Any, symbols: Any) -> Any:
    """Read one symbol of Huffman table ``t``, and the value after it. The symbol's lower four bits are the number of
    bits of the value. Return symbol * 256 + length of its code (0 if the code is invalid), the value, and the new
    ``bits``, ``at`` and ``count`` of the bit reader."""
    bits |= big_endian_64(at) >> (count & LOW6)
    at += (~count >> THREE) & SEVEN
    count |= FULL
    code = U(codes[t, bits >> SHIFT])
    if code == ZERO:
        code = long_code(bits, limit[t], delta[t], symbols[t])
    size = (code >> EIGHT) & U(15)
    bits <<= code & BYTE
    value = value_of(bits, size)
    return code, value, bits << size, at, count - (code & BYTE) - size


@njit(nogil=True, cache=True)
def long_code(bits: Any, limit: Any, delta: Any, symbols: Any) -> Any:
    """Return the symbol whose code, longer than LOOKUP_BITS, is in the highest bits of ``bits``, as symbol * 256 +
    length of the code; 0 if there is none."""
    pattern = np.int64(bits >> U(48))
    for length in range(LOOKUP_BITS + 1, 17):
        if pattern < limit[length]:
            return U(symbols[delta[length] + (pattern >> 16 - length) & 255]) << EIGHT | U(length)
    return ZERO


@njit(nogil=True, cache=True)
def unstuff(data: Any, begin: Any, end: Any, stream: Any, ends: Any) -> Any:
    """Copy the scan data[begin : end] to ``stream`` without stuffed bytes. Write the end in ``stream`` of each restart
    interval but the last to ``ends``. There must be a marker at ``end``; -1: the scan ends at EOI. Return the bytes
    written; -1 if another marker than the expected restart markers comes before."""
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
    """Return the signed number (T.81, F.2.2.1: EXTEND) that the top ``size`` bits of ``bits`` represent."""
    value = np.int64((bits >> ONE) >> (LOW6 - size))
    return value + (~(np.int64(bits) >> np.int64(63)) & (np.int64(1) - (np.int64(1) << np.int64(size))))
