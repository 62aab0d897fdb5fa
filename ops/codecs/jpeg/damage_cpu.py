"""Compiled loop that checks the entropy-coded data of a JPEG for damage, for any sampling and process, without pixels.

libjpeg continues after damage and only warns; a caller that cannot see its warnings gets wrong pixels. This loop walks
all scans by the same rules (ITU-T T.81, annexes B, F.2, G.2; libjpeg-turbo's warnings: jdhuff.c, jdphuff.c, jdmarker.c)
and stops at the first error of which it would warn. Nothing outside the data is read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .arithmetic_cpu import FIXED, PAST_END, is_sound, restart

CLEAN, BAD_CODE, CUT_SHORT, EXTRA_BYTES, RESTARTS, PROGRESSION, CANNOT_TELL = range(7)
WORDS = (
    "", "bad Huffman code", "premature end of data segment", "extraneous bytes before a marker",
    "restart markers out of order", "inconsistent progression sequence", "the coding cannot be checked",
)  # fmt: skip

_SEQUENTIAL, _PROGRESSIVE, _LOSSLESS = range(3)
_AT, _BYTE, _BITS, _MARKER, _RUN = range(5)
"""Indices in the state of the reader of a scan: offset of the next byte, current byte, its number of unread bits, the
marker that was reached (0: none), number of blocks to skip."""


@njit(nogil=True, cache=True)
def _bit(data: Any, at: Any) -> Any:
    """Return the next bit of the scan; -1 if a marker or the end of the file comes first."""
    if at[_BITS] == 0:
        if at[_MARKER] != 0 or at[_AT] >= len(data):
            return np.int64(-1)
        value, p = np.int64(data[at[_AT]]), at[_AT] + 1
        if value == 0xFF:
            while p < len(data) and data[p] == 0xFF:
                p += 1
            if p >= len(data):
                at[_AT] = p
                return np.int64(-1)
            if data[p] != 0:
                at[_MARKER] = data[p]
                at[_AT] = p + 1
                return np.int64(-1)
            p += 1
        at[_AT], at[_BYTE], at[_BITS] = p, value, 8
    at[_BITS] -= 1
    return at[_BYTE] >> at[_BITS] & 1


@njit(nogil=True, cache=True)
def _number(data: Any, at: Any, bits: Any) -> Any:
    value = np.int64(0)
    for _ in range(bits):
        bit = _bit(data, at)
        if bit < 0:
            return np.int64(-1)
        value = value << 1 | bit
    return value


@njit(nogil=True, cache=True)
def _symbol(data: Any, at: Any, counts: Any, symbols: Any) -> Any:
    """Return the next Huffman symbol of the scan; -1 if the bits end, -2 for an invalid code. ``counts``: number of
    codes of each length from 1 to 16."""
    code, first, index = np.int64(0), np.int64(0), np.int64(0)
    for length in range(1, 17):
        bit = _bit(data, at)
        if bit < 0:
            return np.int64(-1)
        code |= bit
        count = counts[length]
        if code - first < count:
            return np.int64(symbols[index + code - first])
        index += count
        first = (first + count) << 1
        code <<= 1
    return np.int64(-2)


@njit(nogil=True, cache=True)
def _why(symbol: Any) -> Any:
    return CUT_SHORT if symbol == -1 else BAD_CODE


@njit(nogil=True, cache=True)
def _block(
    data: Any, at: Any, counts: Any, symbols: Any, dc: Any, ac: Any, low: Any, high: Any, refine: Any,
    process: Any, there: Any,
) -> Any:  # fmt: skip
    """Read coefficients ``low`` to ``high`` of one block, only to find damage. ``there`` [64]: whether each coefficient
    of the block is not 0. In a lossless JPEG, read one sample. Return CLEAN or the kind of damage."""
    k, progressive = low, process == _PROGRESSIVE
    if low == 0:
        if refine:
            return CLEAN if _bit(data, at) >= 0 else CUT_SHORT
        size = _symbol(data, at, counts[dc], symbols[dc])
        if size < 0:
            return _why(size)
        if _number(data, at, 0 if size > 15 else size) < 0:
            return CUT_SHORT
        k = 1
        if process != _SEQUENTIAL:
            return CLEAN
    if at[_RUN] == 0:
        while k <= high:
            both = _symbol(data, at, counts[4 + ac], symbols[4 + ac])
            if both < 0:
                return _why(both)
            zeros, size = both >> 4, both & 15
            if size == 0 and zeros < 15:
                if not progressive:
                    return CLEAN
                more = _number(data, at, zeros)
                if more < 0:
                    return CUT_SHORT
                at[_RUN] = (1 << zeros) + more
                break
            if refine:
                if size > 1:
                    return BAD_CODE
                if size == 1 and _bit(data, at) < 0:
                    return CUT_SHORT
                while k <= high:
                    if there[k]:
                        if _bit(data, at) < 0:
                            return CUT_SHORT
                    else:
                        zeros -= 1
                        if zeros < 0:
                            break
                    k += 1
                if size == 1 and k < 64:
                    there[k] = 1
            else:
                k += zeros
                if size > 0:
                    if _number(data, at, size) < 0:
                        return CUT_SHORT
                    if progressive and k < 64:
                        there[k] = 1
            k += 1
    if at[_RUN] > 0:
        if refine:
            while k <= high:
                if there[k] and _bit(data, at) < 0:
                    return CUT_SHORT
                k += 1
        at[_RUN] -= 1
    return CLEAN


@njit(nogil=True, cache=True)
def _to_marker(data: Any, at: Any) -> Any:
    """Skip bytes up to the next marker. Return the number of bytes skipped; -1 if only zeros precede EOI, as
    padding."""
    extra, zeros = np.int64(0), True
    if at[_MARKER] == 0:
        p = at[_AT]
        while p < len(data):
            if data[p] == 0xFF:
                q = p + 1
                while q < len(data) and data[q] == 0xFF:
                    q += 1
                if q >= len(data):
                    p = q
                    break
                if data[q] != 0:
                    at[_MARKER], p = data[q], q + 1
                    break
            zeros = zeros and data[p] == 0
            extra += 1
            p += 1
        at[_AT] = p
    at[_BITS] = 0
    return np.int64(-1) if extra > 0 and zeros and at[_MARKER] == 0xD9 else extra


@njit(nogil=True, cache=True)
def damage(data: Any) -> Any:
    """Check the scans of the JPEG ``data``, whose header is known to be valid. Return CLEAN, or the first damage."""
    at, bins, contexts = np.zeros(PAST_END + 1, np.int64), np.zeros(FIXED + 1, np.uint8), np.zeros(4, np.int64)
    conditioning, arithmetic = np.array([16, 16, 16, 16, 5, 5, 5, 5]), False
    counts, symbols = np.zeros((8, 17), np.int64), np.zeros((8, 256), np.uint8)
    h, v, ids = np.zeros(4, np.int64), np.zeros(4, np.int64), np.zeros(4, np.int64)
    wide, high = np.zeros(4, np.int64), np.zeros(4, np.int64)
    starts, known = np.zeros(5, np.int64), np.full((4, 64), -1, np.int64)
    there, none = np.zeros(0, np.uint8), np.zeros(64, np.uint8)
    components, width, height, interval = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    most_h, most_v, unit = np.int64(1), np.int64(1), np.int64(8)
    process: Any = np.int64(_SEQUENTIAL)
    which, dc, ac = np.zeros(4, np.int64), np.zeros(4, np.int64), np.zeros(4, np.int64)
    at[_AT], scans = 2, np.int64(0)
    while True:
        if _to_marker(data, at) > 0 and scans > 0:  # before the first scan, these bytes are not image data
            return EXTRA_BYTES
        marker, at[_MARKER] = at[_MARKER], 0
        if marker == 0:
            return CUT_SHORT  # no EOI
        if marker == 0xD9:
            return CLEAN
        if (0xD0 <= marker <= 0xD8 and scans == 0) or marker == 0x01:
            continue
        if marker < 0xC0 or 0xD0 <= marker <= 0xD8:
            return CANNOT_TELL
        p = at[_AT]
        if p + 2 > len(data):
            return CUT_SHORT
        size = np.int64(data[p]) << 8 | data[p + 1]
        end = p + size
        if size < 2 or end > len(data):
            return CUT_SHORT
        p += 2
        at[_AT] = end
        if marker == 0xC4:
            while p + 17 <= end:
                if data[p] & 0xEC:
                    return CANNOT_TELL
                table = (data[p] & 3) + (4 if data[p] & 16 else 0)
                total = np.int64(0)
                for k in range(1, 17):
                    counts[table, k] = data[p + k]
                    total += data[p + k]
                p += 17
                if total > 256 or p + total > end:
                    return CANNOT_TELL
                symbols[table, :total] = data[p : p + total]
                p += total
        elif marker == 0xDD and size >= 4:
            interval = np.int64(data[p]) << 8 | data[p + 1]
        elif marker == 0xCC:
            for k in range(p, end - 1, 2):
                if data[k] & 0xEC:
                    return CANNOT_TELL
                conditioning[(data[k] & 3) + (4 if data[k] & 16 else 0)] = data[k + 1]
        elif 0xC0 <= marker <= 0xCF and marker != 0xC8:
            arithmetic = marker == 0xC9 or marker == 0xCA
            if (marker > 0xC3 and not arithmetic) or components > 0 or size < 8 or size < 8 + 3 * np.int64(data[p + 5]):
                return CANNOT_TELL
            process = _PROGRESSIVE if marker == 0xC2 or marker == 0xCA else _LOSSLESS if marker == 0xC3 else _SEQUENTIAL
            unit = np.int64(1) if process == _LOSSLESS else np.int64(8)
            height, width = np.int64(data[p + 1]) << 8 | data[p + 2], np.int64(data[p + 3]) << 8 | data[p + 4]
            components = np.int64(data[p + 5])
            if not 1 <= components <= 4 or width == 0 or height == 0:
                return CANNOT_TELL
            for c in range(components):
                ids[c], h[c], v[c] = data[p + 6 + 3 * c], data[p + 7 + 3 * c] >> 4, data[p + 7 + 3 * c] & 15
                if not (1 <= h[c] <= 4 and 1 <= v[c] <= 4):
                    return CANNOT_TELL
                most_h, most_v = max(most_h, h[c]), max(most_v, v[c])
            for c in range(components):
                wide[c] = -(-width * h[c] // (unit * most_h))
                high[c] = -(-height * v[c] // (unit * most_v))
                starts[c + 1] = starts[c] + wide[c] * high[c] * 64
            if process == _PROGRESSIVE:
                there = np.zeros(starts[components], np.uint8)
        elif marker == 0xDA:
            n = np.int64(data[p])
            if components == 0 or not 1 <= n <= 4 or size < 6 + 2 * n:
                return CANNOT_TELL
            blocks = np.int64(0)
            for s in range(n):
                which[s] = -1
                for c in range(components):
                    if ids[c] == data[p + 1 + 2 * s]:
                        which[s] = c
                        break
                if which[s] < 0:
                    return CANNOT_TELL
                dc[s], ac[s] = data[p + 2 + 2 * s] >> 4 & 3, data[p + 2 + 2 * s] & 3
                blocks += h[which[s]] * v[which[s]]
            p += 1 + 2 * n
            low, last = np.int64(data[p]), np.int64(data[p + 1])
            refine, bit = np.int64(data[p + 2] >> 4), np.int64(data[p + 2] & 15)
            if process == _PROGRESSIVE:
                if low > last or last > 63 or (low == 0 and last > 0) or (low > 0 and n > 1):
                    return CANNOT_TELL
                for s in range(n):
                    c = which[s]
                    if low > 0 and known[c, 0] < 0:
                        return PROGRESSION
                    for k in range(low, last + 1):
                        if max(known[c, k], 0) != refine:
                            return PROGRESSION
                        known[c, k] = bit
            else:
                low, last, refine = np.int64(0), np.int64(63), np.int64(0)  # whatever the fields contain
            if n == 1:
                across, down = wide[which[0]], high[which[0]]
            else:
                if blocks > 10:
                    return CANNOT_TELL
                across, down = -(-width // (unit * most_h)), -(-height // (unit * most_v))
            at[_BITS] = at[_RUN] = 0
            contexts[:] = 0
            restart(at, bins)
            scans += 1
            for m in range(across * down):
                if interval > 0 and m > 0 and m % interval == 0:
                    if _to_marker(data, at) != 0:
                        return EXTRA_BYTES
                    if at[_MARKER] != 0xD0 + (m // interval - 1) % 8:
                        return RESTARTS
                    at[_MARKER] = at[_RUN] = 0
                    contexts[:] = 0
                    restart(at, bins)
                for s in range(n):
                    c = which[s]
                    for _ in range(1 if n == 1 else h[c] * v[c]):
                        mine = none
                        if process == _PROGRESSIVE and low > 0:
                            mine = there[starts[c] + 64 * m : starts[c] + 64 * m + 64]
                        if arithmetic:
                            sound = is_sound(
                                data, at, bins, contexts, conditioning, c, dc[s], ac[s], low, last, refine, mine
                            )  # fmt: skip
                            if at[PAST_END] or not sound:
                                return CUT_SHORT if at[PAST_END] else BAD_CODE
                            continue
                        found = _block(
                            data, at, counts, symbols, dc[s], ac[s], low, last, refine, process, mine
                        )  # fmt: skip
                        if found != CLEAN:
                            return found
            if _to_marker(data, at) > 0 or 0xD0 <= at[_MARKER] <= 0xD7:
                return EXTRA_BYTES
