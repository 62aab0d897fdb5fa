"""Compiled decoder of progressive JPEGs on the CPU, bit-identical to libjpeg-turbo's exact decode.

All scans are read into the coefficients of the whole image, in their order; blocks with needed pixels are then
transformed. `scans.walk_scans` has checked how the scans build on each other: every coefficient is known to its last
bit, so that nothing must be guessed. An image with anything unusual gets the status OTHER: libjpeg-turbo then decodes
or rejects it. So this decoder may only be stricter, never more lenient.

Names follow ITU-T T.81, annex G. Memory is read and written by address in the inner loops, with the bounds of
`baseline_cpu`: a block takes at most MCU_BYTES of a scan, and the rest of the scan is checked before each; places in a
block come from a table, in which those beyond the last coefficient of the scan lead to the spare place of the block.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .baseline_cpu import DONE, OTHER
from .header import MANY_SCANS
from .huffman_cpu import (
    BYTE,
    EIGHT,
    ENTRIES,
    FULL,
    LOOKUP_BITS,
    LOW6,
    MCU_BYTES,
    ONE,
    SEVEN,
    SHIFT,
    THREE,
    ZERO,
    U,
    ac_entries,
    is_ended,
    last_value,
    long_code,
    next_symbol,
    read_codes,
    unstuff,
    value_of,
)
from .planes_cpu import PART, is_common, lay_out, write_line
from .simd_cpu import (
    LIMIT,
    PIXELS,
    big_endian_64,
    deposit,
    i32_at,
    in_range,
    inverse_dct,
    mirrored,
    nonzero_mask,
    ones,
    put_i16,
    put_u64,
    read_factors,
    refine,
    u8_at,
    u16_at,
    u32_at,
    zigzag_to_block,
)

_BLOCK = 72
"""Number of int16 values per block in memory: 64 coefficients in zig-zag order, a spare position, and padding."""
_BLOCK_BYTES = U(2 * _BLOCK)
_SPARE = 64

MOST_COEFFICIENTS = 1 << 26
"""Maximum bytes of coefficients of an image that this loop decodes, as much as 20 megapixels with halved chroma
need."""


@njit(nogil=True, cache=True)
def decode_images(
    raw: Any, offsets: Any, sizes: Any, headers: Any, scans: Any, windows: Any, channels: Any, bgr: Any, dst: Any,
    origins: Any, pitches: Any, status: Any,
) -> None:  # fmt: skip
    """Decode those of N images that are progressive with many scans, and whose status is not DONE. ``scans``: rows for
    their scans, to which the headers point. Other arguments are as in `baseline_cpu.decode_images`."""
    most: Any = np.int64(0)
    for i in range(len(offsets)):
        if headers[i].status == MANY_SCANS and status[i] != DONE:
            most = max(most, np.int64(sizes[i]))
    if most == 0:
        return
    stream, block = np.empty(most + MCU_BYTES + 128, np.uint8), np.zeros(256, np.uint8)
    codes, entries = np.empty((4, ENTRIES), np.uint16), np.empty((2, ENTRIES), np.int32)
    factors, coefficients = np.empty((3, 128), np.int16), np.empty(0, np.int16)
    for i in range(len(offsets)):
        row, window = headers[i], windows[i]
        if row.status != MANY_SCANS or status[i] == DONE:
            continue
        status[i] = OTHER
        inside = 0 <= window[0] <= window[2] <= row.height and 0 <= window[1] <= window[3] <= row.width
        fits = offsets[i] >= 0 and sizes[i] >= 0 and offsets[i] + sizes[i] <= len(raw)
        known = row.first_scan >= 0 and row.first_scan + row.scan_count <= len(scans)
        if not (inside and fits and known and is_common(row)):
            continue
        needed = _coefficients(row)
        # A block takes at least one bit of the first scan: a huge image in a small file needs no memory.
        if needed // _BLOCK > 8 * sizes[i] or 2 * needed > MOST_COEFFICIENTS:
            continue
        if len(coefficients) < needed:
            coefficients = np.empty(needed + 64, np.int16)
        coefficients[:needed] = 0
        data = raw[offsets[i] : offsets[i] + sizes[i]]
        mine = scans[row.first_scan : row.first_scan + row.scan_count]
        status[i] = _decode(
            data, row, mine, window, channels[i], bgr, stream, block, codes, entries, factors, coefficients, dst,
            origins[i], pitches[i],
        )  # fmt: skip


@njit(nogil=True, cache=True)
def _most(row: Any) -> Any:
    """Return the sampling factors (horizontal, vertical) of the first component, which are the largest of the image; 1,
    1 if it is the only component."""
    if row.components == 1:
        return np.int64(1), np.int64(1)
    return np.int64(row.h[0]), np.int64(row.v[0])


@njit(nogil=True, cache=True)
def _coefficients(row: Any) -> Any:
    """Return the number of int16 for the coefficients of an image, including the padding of each block (`_BLOCK`)."""
    h, v = _most(row)
    mcus = -(-np.int64(row.width) // (8 * h)) * -(-np.int64(row.height) // (8 * v))
    return mcus * (h * v + (2 if row.components == 3 else 0)) * _BLOCK


@njit(nogil=True, cache=True)
def _decode(
    data: Any, row: Any, scans: Any, window: Any, channels: Any, bgr: Any, stream: Any, block: Any, codes: Any,
    entries: Any, factors: Any, coefficients: Any, dst: Any, origin: Any, pitch: Any,
) -> Any:  # fmt: skip
    h, v = _most(row)
    mcus_x, mcus_y = -(-np.int64(row.width) // (8 * h)), -(-np.int64(row.height) // (8 * v))
    parts = np.zeros(row.components, PART)
    held = lay_out(row, window, channels, h, v, parts)
    begins, across = np.empty(4, np.int64), np.empty(4, np.int64)  # a component's first block, and blocks per row
    blocks: Any = np.int64(0)
    for c in range(len(parts)):
        begins[c], across[c] = blocks, mcus_x * parts[c].h
        blocks += mcus_x * parts[c].h * mcus_y * parts[c].v
        if not read_factors(data, np.int64(row.quant[c]), factors[c]):
            return OTHER

    limit, delta, symbols = np.zeros((4, 17), np.int64), np.zeros((4, 17), np.int64), np.zeros((4, 256), np.uint8)
    order = np.empty(256, np.uint8)
    for s in range(len(scans)):
        scan = scans[s]
        count = np.int64(scan.count)
        units = mcus_x * mcus_y
        wide: Any = np.int64(0)
        if count == 1:
            part = parts[scan.component[0]]
            wide = -(-part.width // 8)
            units = wide * -(-part.height // 8)
        restart = np.int64(scan.interval)
        ends = np.empty(-(-units // restart) - 1 if restart > 0 else 0, np.int64)
        length = unstuff(data, np.int64(scan.begin), np.int64(scan.end), stream, ends)
        if length < 0:
            return OTHER
        stream[length : length + MCU_BYTES + 64] = 0
        if scan.first == 0:
            sound = True
            if scan.high == 0:
                for i in range(count):
                    table = np.int64(scan.table[i])
                    sound = sound and read_codes(data, table, codes[i], limit[i], delta[i], symbols[i])
                    sound = sound and symbols[i].max() <= 15
            if not sound or not _dc_scan(
                scan, parts, begins, across, mcus_x, units, wide, restart, stream, length, ends, codes, limit, delta,
                symbols, coefficients,
            ):  # fmt: skip
                return OTHER
            continue
        if not read_codes(data, np.int64(scan.table[0]), codes[0], limit[0], delta[0], symbols[0]):
            return OTHER
        first = U(coefficients.ctypes.data) + U(begins[scan.component[0]]) * _BLOCK_BYTES
        row_bytes = U(across[scan.component[0]]) * _BLOCK_BYTES
        if scan.high == 0:
            ac_entries(codes[0], entries[1], entries[0])
            for k in range(256):
                order[k] = k if k <= scan.last else _SPARE
            sound = _first_scan(
                scan, first, row_bytes, units, wide, restart, stream, length, ends, codes, entries, order, limit,
                delta, symbols,
            )  # fmt: skip
        else:
            _refining_entries(codes[0], entries[0])
            sound = _refining_scan(
                scan, first, row_bytes, units, wide, restart, stream, length, ends, codes, entries, limit, delta,
                symbols,
            )  # fmt: skip
        if not sound:
            return OTHER
    return _pixels(row, window, channels, bgr, block, factors, coefficients, parts, begins, across, mcus_y, held, dst,
                   origin, pitch)  # fmt: skip


@njit(nogil=True, cache=True)
def _dc_scan(
    scan: Any, parts: Any, begins: Any, across: Any, mcus_x: Any, units: Any, wide: Any, restart: Any, stream: Any,
    length: Any, ends: Any, codes: Any, limit: Any, delta: Any, symbols: Any, coefficients: Any,
) -> Any:  # fmt: skip
    """Read a scan of DC coefficients: the first one, or one that adds one more bit to each coefficient."""
    start = U(stream.ctypes.data)
    interval, left = 0, (restart if restart > 0 else units)
    stop = start + U(ends[0] if len(ends) > 0 else length)
    bits = big_endian_64(start)
    at, count = start + SEVEN, FULL
    previous = np.zeros(4, np.int64)
    low = np.int64(scan.low)
    x: Any = np.int64(0)
    y: Any = np.int64(0)
    alone = scan.count == 1
    per_row = wide if alone else mcus_x
    for _ in range(units):
        if left == 0:
            rest = np.int64(stop - at) * 8 + np.int64(count & LOW6)
            if rest < 0 or rest >= 8:
                return False
            at = start + U(ends[interval])
            interval += 1
            stop = start + U(ends[interval] if interval < len(ends) else length)
            left = restart
            bits, count = big_endian_64(at), FULL
            at += SEVEN
            previous[:] = 0
        left -= 1
        if at > stop + U(16):
            return False
        for i in range(scan.count):
            c = np.int64(scan.component[i])
            h, v = (1, 1) if alone else (parts[c].h, parts[c].v)
            for k in range(h * v):
                place = (begins[c] + (y * v + k // h) * across[c] + x * h + k % h) * _BLOCK
                bits |= big_endian_64(at) >> (count & LOW6)
                at += (~count >> THREE) & SEVEN
                count |= FULL
                if scan.high > 0:
                    coefficients[place] |= np.int16(np.int64(bits >> U(63)) << low)
                    bits <<= ONE
                    count -= ONE
                    continue
                code = U(codes[i, np.int64(bits >> SHIFT)])
                if code == ZERO:
                    code = long_code(bits, limit[i], delta[i], symbols[i])
                    if code == ZERO:
                        return False
                size = code >> EIGHT
                bits <<= code & BYTE
                dc = previous[i] + value_of(bits, size)
                bits <<= size
                count -= (code & BYTE) + size
                previous[i] = dc
                if dc << low < -32768 or dc << low > 32767:
                    return False
                coefficients[place] = dc << low
        x += 1
        if x == per_row:
            x = np.int64(0)
            y += 1
    rest = np.int64(stop - at) * 8 + np.int64(count & LOW6)
    return rest >= 0 and rest < 8 and len(stream) > 0


@njit(nogil=True, cache=True)
def _first_scan(
    scan: Any, first: Any, row_bytes: Any, units: Any, wide: Any, restart: Any, stream: Any, length: Any, ends: Any,
    codes: Any, entries: Any, order: Any, limit: Any, delta: Any, symbols: Any,
) -> Any:  # fmt: skip
    """Read the first scan of some AC coefficients of a component. ``first``: address of the component's first block."""
    start, places = U(stream.ctypes.data), U(order.ctypes.data)
    table = U(entries.ctypes.data)
    interval, left = 0, (restart if restart > 0 else units)
    stop = start + U(ends[0] if len(ends) > 0 else length)
    bits = big_endian_64(start)
    at, count = start + SEVEN, FULL
    low, begin, end = U(scan.low), U(scan.first), U(scan.last + 1)
    run: Any = np.int64(0)  # number of blocks that have ended already
    done: Any = np.int64(0)
    x: Any = np.int64(0)
    line = first
    while done < units:
        if left == 0:
            rest = np.int64(stop - at) * 8 + np.int64(count & LOW6)
            if rest < 0 or rest >= 8 or run > 0:
                return False
            at = start + U(ends[interval])
            interval += 1
            stop = start + U(ends[interval] if interval < len(ends) else length)
            left = restart
            bits, count = big_endian_64(at), FULL
            at += SEVEN
        if run > 0:
            skipped = min(run, left, units - done)
            run -= skipped
            left -= skipped
            done += skipped
            x += skipped
            if x >= wide:
                line += U(x // wide) * row_bytes
                x %= wide
            continue
        left -= 1
        if at > stop + U(16):
            return False
        here = line + U(x) * _BLOCK_BYTES
        index, entry = begin, np.int64(0)
        before = bits
        while True:
            bits |= big_endian_64(at) >> (count & LOW6)
            at += (~count >> THREE) & SEVEN
            count |= FULL
            for _ in range(3):  # their bits are available
                entry = i32_at(table + ((bits >> SHIFT) << U(2)))
                before = bits
                value = last_value(bits, entry)
                bits <<= U(entry) & LOW6
                count -= U(entry)  # only its low bits are used
                place = u8_at(places + index + ((U(entry) >> U(12)) & U(15)))
                index += (U(entry) >> U(16)) & BYTE
                put_i16(here + (u8_at(places + index - ONE) << ONE), U(value) << low)
                put_i16(here + (place << ONE), U(entry >> np.int64(24)) << low)
                if index >= end:
                    break
            if index < end:
                continue
            if is_ended(index, end):
                break
            index -= (U(entry) >> U(16)) & BYTE
            code, value, bits, at, count = next_symbol(
                before, at, count + (U(entry) & LOW6), 0, codes, limit, delta, symbols
            )
            if code == ZERO:
                return False
            zeros, size = code >> U(12), (code >> EIGHT) & U(15)
            if size == ZERO and zeros != U(15):
                run = (np.int64(1) << np.int64(zeros)) + np.int64((bits >> ONE) >> (LOW6 - zeros)) - 1
                bits <<= zeros
                count -= zeros
                break
            index += zeros + ONE
            if index > end:
                return False  # a run past the last coefficient
            put_i16(here + (u8_at(places + index - ONE) << ONE), U(value) << low)
            if index == end:
                break
        done += 1
        x += 1
        if x == wide:
            x = np.int64(0)
            line += row_bytes
    rest = np.int64(stop - at) * 8 + np.int64(count & LOW6)
    return rest >= 0 and rest < 8 and run == 0 and len(stream) + len(order) + len(entries) > 0


# An entry of a refining scan's table describes a symbol and its sign. Bits 0 ... 5: bits consumed. 6: the block ends,
# and the bits after the code, their number in 8 ... 11, tell how many blocks end with it. 12, 13: a new coefficient,
# positive or negative. 16 ... 31: one bit, at the number of zeros before it; none if the block ends. An entry of 0 is
# not a symbol of such a scan, or too long for the table.
_ENDS, _PLUS, _MINUS, _NEW = U(1 << 6), U(12), U(13), U(3 << 12)


@njit(nogil=True, cache=True)
def _refining_entry(symbol: Any, length: Any, sign: Any) -> Any:
    """Return the lookup entry for a ``symbol`` of a scan that refines AC coefficients. ``length``: bits of its code.
    ``sign``: the bit after the code, which is the sign if the symbol gives a new coefficient."""
    zeros, size = symbol >> 4, symbol & 15
    if size > 1:
        return np.int64(0)
    if size == 0 and zeros < 15:
        return length | 1 << 6 | zeros << 8
    return length + size | size << (12 if sign else 13) | 1 << (16 + zeros)


@njit(nogil=True, cache=True)
def _refining_entries(codes: Any, entries: Any) -> None:
    """Fill the lookup table for scans that refine AC coefficients, which is indexed by the next LOOKUP_BITS bits."""
    i: Any = np.int64(0)
    while i < ENTRIES:
        length, symbol = np.int64(codes[i]) & 255, np.int64(codes[i]) >> 8
        half = 1 << (LOOKUP_BITS - 1 - length) if 0 < length < LOOKUP_BITS else 0
        if half == 0:
            entries[i] = 0
            i += 1
            continue
        for sign in range(2):
            entries[i : i + half] = _refining_entry(symbol, length, sign)
            i += half


@njit(nogil=True, cache=True)
def _refining_symbol(bits: Any, codes: Any, limit: Any, delta: Any, symbols: Any) -> Any:
    """Return the lookup entry of the symbol at the top of ``bits``, also if its code is longer than LOOKUP_BITS; 0 if
    the code is invalid."""
    code = U(codes[bits >> SHIFT])
    if code == ZERO:
        code = long_code(bits, limit, delta, symbols)
    if code == ZERO:
        return ZERO
    sign = (bits << (code & BYTE)) >> U(63)
    return U(_refining_entry(np.int64(code >> EIGHT), np.int64(code & BYTE), np.int64(sign)))


@njit(nogil=True, cache=True, forceinline=True)
def _corrected(number: Any, corrections: Any, bits: Any, at: Any, count: Any) -> Any:
    """Append the next ``number`` bits of the scan to ``corrections``, a number. Return it, and the new state of the bit
    reader: ``bits``, ``at`` and ``count``."""
    if number > U(32):  # more bits than are available
        corrections = corrections << U(32) | bits >> U(32)
        bits <<= U(32)
        count -= U(32)
        number -= U(32)
        bits |= big_endian_64(at) >> (count & LOW6)
        at += (~count >> THREE) & SEVEN
        count |= FULL
    corrections = corrections << number | (bits >> ONE) >> (LOW6 - number)
    return corrections, bits << number, at, count - number


@njit(nogil=True, cache=True)
def _refining_scan(
    scan: Any, first: Any, row_bytes: Any, units: Any, wide: Any, restart: Any, stream: Any, length: Any, ends: Any,
    codes: Any, entries: Any, limit: Any, delta: Any, symbols: Any,
) -> Any:  # fmt: skip
    """Read a scan that refines AC coefficients of a component by one bit (T.81, G.1.2.3). It gives new coefficients,
    and one bit for each coefficient that is not 0 already."""
    start, table = U(stream.ctypes.data), U(entries.ctypes.data)
    interval, left = 0, (restart if restart > 0 else units)
    stop = start + U(ends[0] if len(ends) > 0 else length)
    bits = big_endian_64(start)
    at, count = start + SEVEN, FULL
    step = np.int64(1) << np.int64(scan.low)
    band = (~ZERO >> (LOW6 - U(scan.last))) & (~ZERO << U(scan.first))
    run: Any = np.int64(0)
    x: Any = np.int64(0)
    line = first
    for _ in range(units):
        if left == 0:
            rest = np.int64(stop - at) * 8 + np.int64(count & LOW6)
            if rest < 0 or rest >= 8 or run > 0:
                return False
            at = start + U(ends[interval])
            interval += 1
            stop = start + U(ends[interval] if interval < len(ends) else length)
            left = restart
            bits, count = big_endian_64(at), FULL
            at += SEVEN
        left -= 1
        if at > stop + U(16):
            return False
        here = line + U(x) * _BLOCK_BYTES
        known = nonzero_mask(here) & band
        ahead = band  # places that are still to be read
        plus, minus = ZERO, ZERO
        corrections = ZERO  # a bit per known coefficient, the first one highest
        while run == 0 and ahead != ZERO:
            bits |= big_endian_64(at) >> (count & LOW6)
            at += (~count >> THREE) & SEVEN
            count |= FULL
            entry = u32_at(table + ((bits >> SHIFT) << U(2)))
            place = deposit(entry >> U(16), ahead & ~known)
            if place == ZERO:
                if entry == ZERO:
                    entry = _refining_symbol(bits, codes[0], limit[0], delta[0], symbols[0])
                    if entry == ZERO:
                        return False
                    place = deposit(entry >> U(16), ahead & ~known)
                if entry & _ENDS != ZERO:
                    bits <<= entry & LOW6
                    more = (entry >> EIGHT) & U(15)
                    run = (np.int64(1) << np.int64(more)) + np.int64((bits >> ONE) >> (LOW6 - more))
                    bits <<= more
                    count -= entry + more  # only its low bits are looked at
                    break
                if place == ZERO and entry & _NEW != ZERO:
                    return False  # a new coefficient beyond the last
            bits <<= entry & LOW6
            count -= entry
            before = place - ONE  # all bits, if there are not that many zeros
            number = ones(known & ahead & before)
            corrections, bits, at, count = _corrected(number, corrections, bits, at, count)
            ahead &= ~(place | before)
            plus |= place & (ZERO - ((entry >> _PLUS) & ONE))
            minus |= place & (ZERO - ((entry >> _MINUS) & ONE))
        if run > 0:
            bits |= big_endian_64(at) >> (count & LOW6)
            at += (~count >> THREE) & SEVEN
            count |= FULL
            corrections, bits, at, count = _corrected(ones(known & ahead), corrections, bits, at, count)
            run -= 1
        if corrections | plus | minus != ZERO:
            # The shift by 64, if no coefficient is known, must also give 0.
            ordered = (mirrored(corrections) >> ONE) >> (LOW6 - ones(known))
            refine(here, deposit(ordered, known), plus, minus, step)
        x += 1
        if x == wide:
            x = np.int64(0)
            line += row_bytes
    rest = np.int64(stop - at) * 8 + np.int64(count & LOW6)
    return rest >= 0 and rest < 8 and run == 0 and len(stream) + len(entries) > 0


@njit(nogil=True, cache=True)
def _pixels(
    row: Any, window: Any, channels: Any, bgr: Any, block: Any, factors: Any, coefficients: Any, parts: Any,
    begins: Any, across: Any, mcus_y: Any, held: Any, dst: Any, origin: Any, pitch: Any,
) -> Any:  # fmt: skip
    """Compute the pixels of the window from the coefficients of all components. Return the status, DONE or OTHER."""
    planes = np.empty(held + PIXELS, np.uint8)
    room = window[3] - window[1] + 3 * PIXELS
    lines, sums = np.empty((3, room), np.uint8), np.empty(room // 2 + PIXELS, np.int16)
    seen = np.zeros(32, np.uint16)
    lines_at, sums_at, planes_at = U(lines.ctypes.data), U(sums.ctypes.data), U(planes.ctypes.data)
    written = U(dst.ctypes.data) + U(origin + window[1] * channels)
    paired, seen_at = U(block.ctypes.data), U(seen.ctypes.data)
    first, table = U(coefficients.ctypes.data), U(factors.ctypes.data)
    v_max = parts[0].v
    done = window[0]
    for my in range(mcus_y):
        for c in range(len(parts)):
            part = parts[c]
            for y in range(max(my * part.v, part.top), min((my + 1) * part.v, part.bottom)):
                here = first + U(begins[c] + y * across[c] + part.left) * _BLOCK_BYTES
                target = planes_at + U(part.plane + (8 * y & part.ring) * part.pitch)
                for _ in range(part.right - part.left):
                    if nonzero_mask(here) <= ONE:  # only DC: the result of the transform is constant
                        dc = (np.int64(u16_at(here)) << np.int64(48)) >> np.int64(48)
                        value: Any = dc * np.int64(factors[c, 0])
                        if value < -LIMIT // 4 or value >= LIMIT // 4:
                            return OTHER
                        value = min(max(((value + 4) >> 3) + 128, 0), 255)
                        for k in range(8):
                            put_u64(target + U(k * part.pitch), U(value * 0x0101010101010101))
                    else:
                        zigzag_to_block(here, paired)
                        inverse_dct(paired, table + U(c * 128 * 2), target, U(part.pitch), seen_at)
                    here += _BLOCK_BYTES
                    target += EIGHT
        ready = row.height if my == mcus_y - 1 else (my + 1) * 8 * v_max - (v_max > 1)
        ready = min(ready, window[2])
        while done < ready and window[1] < window[3]:
            target = written + U(done * pitch)
            write_line(done, window, parts, planes_at, lines_at, room, sums_at, channels, bgr, target)
            done += 1
    if not in_range(seen):
        return OTHER
    return DONE if len(coefficients) + len(block) + len(planes) + len(lines) + len(sums) > 0 else OTHER
