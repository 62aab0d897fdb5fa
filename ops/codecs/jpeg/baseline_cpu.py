"""Baseline JPEGs on the CPU, bit-identical to libjpeg-turbo's exact decode, and only where pixels are wanted.

The whole scan is read, because a damaged file must be found wherever the damage is; coefficients of blocks that hold
no wanted pixel go no further. What the decoder does not take, and whatever looks unusual, gets a status other than 0:
libjpeg-turbo then has the last word. So this decoder may only be stricter, never more lenient.

Memory is read and written by address in the inner loops. What keeps them in bounds: an MCU takes at most MCU_BYTES of
the scan, and what is left of it is looked at before each; places in a block come from a table of 128 entries, of which
those after the block lead to one spare place; planes and rows are sized from the frame header. Numba frees an array
after its last use by name: arrays that are used by address belong to the caller, or are named again after it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .header import GRAY, OK, YCBCR
from .simd_cpu import (
    LIMIT,
    PIXELS,
    big_endian_64,
    copy_64,
    inverse_dct,
    lowest_bit,
    put_i16,
    put_u64,
    u8_at,
    u16_at,
    u64_at,
    ycc_to_rgb,
    zero_block,
)

DONE, OTHER = 0, 1
"""Status of an image: its pixels are there; it is one for libjpeg-turbo."""

U = np.uint64
LOOKUP_BITS = 10
"""Bits of the lookup tables' index: 95 % of all coefficients take no more, their value included, and the tables of two
threads fit into one L1 cache."""
_N = 1 << LOOKUP_BITS
_SHIFT = U(64 - LOOKUP_BITS)
_ZERO, _ONE, _THREE, _SEVEN, _EIGHT = U(0), U(1), U(3), U(7), U(8)
_FULL, _LOW6, _BYTE = U(56), U(63), U(255)
_BLOCK_END, _END_OF_BLOCK, _SPARE = U(64), U(128), U(64)

MOST_PLANES = 1 << 25
"""Bytes of what is wanted of one image, between the scan and its pixels; libjpeg-turbo holds a few rows of it only."""

MCU_BYTES = 10 * 64 * 4 + 16
"""Ten blocks of at most 64 symbols of at most 31 bits, and what is fetched ahead."""

# An entry of an AC table: all that the next bits hold, if it is one or two whole symbols (the second only after a
# coefficient): bits 0 ... 5 bits taken; 8 ... 15 how far the index moves; 16 ... 22 and 24 ... 30 places of the
# coefficients from the index; 32 ... 47 the first value; 48 ... 51 bits of the first; 52 ... 63 the second value.
_LONG = np.int64(255 << 8 | 64 << 16 | 64 << 24)
"""The entry where the bits do not hold a whole symbol."""
_LONG_MOVE = U(255)

_ORDER = np.full(128, 64, np.uint8)
_ORDER[:64] = np.array(
    [0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21,
     28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61,
     54, 47, 55, 62, 63], np.uint8)  # fmt: skip
"""Zig-zag index to 8 * row + column (T.81, figure A.6); after the block: the spare place."""
_ORDER_AT = U(256)
"""Where that table lies after the block's coefficients."""


@njit(
    "void(int32[:, ::1], int64[::1], boolean[::1], int32[::1], int64[:, :], int64[:, :], int64[:, ::1], int64[::1], "
    "int64[::1], int64[::1])",
    nogil=True, cache=True,
)  # fmt: skip
def regions(
    shapes: Any, offsets: Any, good: Any, orientation: Any, corners: Any, needed: Any, windows: Any, channels: Any,
    origins: Any, pitches: Any,
) -> None:  # fmt: skip
    """Where `decode_images` writes the windows that begin at ``corners`` [N, 2] of its pictures (or [0, 2]: at 0), as
    images of ``shapes`` [N, 3] at ``offsets`` of the output, and which of their pixels are wanted: all, or those of
    ``needed`` [N, 4] (or [0, 4]) in the window. Bad and turned images get windows that no picture has."""
    for i in range(len(offsets)):
        channels[i], pitches[i] = shapes[i, 2], shapes[i, 1] * shapes[i, 2]
        origins[i] = offsets[i]
        windows[i] = -1
        if not good[i] or orientation[i] != 1:
            continue
        for d in range(2):
            extent = np.int64(shapes[i, d])
            windows[i, d], windows[i, 2 + d] = 0, extent
            if len(needed):
                windows[i, d] = min(max(needed[i, d], 0), extent)
                windows[i, 2 + d] = min(max(needed[i, 2 + d], 0), extent)
            if len(corners):
                windows[i, d] += corners[i, d]
                windows[i, 2 + d] += corners[i, d]
                origins[i] -= corners[i, d] * (pitches[i] if d == 0 else channels[i])


@njit(nogil=True, cache=True)
def decode_images(
    raw: Any, offsets: Any, sizes: Any, headers: Any, windows: Any, channels: Any, bgr: Any, dst: Any, origins: Any,
    pitches: Any, status: Any,
) -> None:  # fmt: skip
    """Decode N images, the bytes raw[offset : offset + size]; ``headers`` are their HEADER rows.

    ``windows`` [N, 4] (y0, x0, y1, x1, inside the picture) are the pixels wanted; those of image i are written as uint8
    with ``channels[i]`` 1 (Y) or 3 (RGB, or BGR) to dst[origins[i] + y * pitches[i] + x * channels[i]:]. ``status`` [N]
    becomes DONE or OTHER; with OTHER some pixels of the window may have been written.
    """
    most: Any = np.int64(0)
    for i in range(len(offsets)):
        most = max(most, sizes[i] - headers[i].scan_offset)
    stream = np.empty(max(most, 0) + MCU_BYTES + 128, np.uint8)
    block = np.zeros(512, np.uint8)
    block[256:384] = _ORDER
    codes, entries, factors = np.empty((4, _N), np.uint16), np.empty((2, _N), np.int64), np.empty((3, 64), np.int32)
    for i in range(len(offsets)):
        row, window = headers[i], windows[i]
        inside = 0 <= window[0] <= window[2] <= row.height and 0 <= window[1] <= window[3] <= row.width
        fits = offsets[i] >= 0 and sizes[i] >= 0 and offsets[i] + sizes[i] <= len(raw)
        if not (inside and fits and _taken(row)):
            status[i] = OTHER
            continue
        block[:256] = 0
        data = raw[offsets[i] : offsets[i] + sizes[i]]
        status[i] = _decode(
            data, row, window, channels[i], bgr, stream, block, codes, entries, factors, dst, origins[i], pitches[i]
        )


@njit(nogil=True, cache=True)
def _taken(row: Any) -> Any:
    """Gray, and YCbCr whose chroma is whole, halved in width, or halved in both; 8-bit quantisation."""
    if row.status != OK or row.quant_16bit != 0 or row.scans > 1:
        return False
    if row.components == 1:
        return row.colour == GRAY
    if row.components != 3 or row.colour != YCBCR:
        return False
    h, v = row.h[0], row.v[0]
    plain = row.h[1] == 1 and row.v[1] == 1 and row.h[2] == 1 and row.v[2] == 1
    shape = (h == 1 and v == 1) or (h == 2 and v == 1) or (h == 2 and v == 2)
    return plain and shape and (h == 1 or row.width > 4)  # libjpeg repeats the chroma of the narrowest


# -- tables -----------------------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def _codes(data: Any, at: Any, codes: Any, limit: Any, delta: Any, symbols: Any) -> Any:
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
def _ac_entries(codes: Any, single: Any, entries: Any) -> None:
    """The entries of an AC table; ``single`` is scratch of the same size."""
    for i in range(_N):
        length, symbol = np.int64(codes[i]) & 255, np.int64(codes[i]) >> 8
        size, run = symbol & 15, symbol >> 4
        taken = length + size
        entry: Any = _LONG
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
                entry = _LONG
        single[i] = entry
    for i in range(_N):
        entry = single[i]
        taken, run = entry & 63, entry >> 16 & 127
        if run < 64:
            after = single[i << taken & _N - 1]
            if after & 63 > 0 and taken + (after & 63) <= LOOKUP_BITS:
                move, place = run + 1, after >> 16 & 127
                if place < 64:
                    place += move
                entry = taken + (after & 63) | move + (after >> 8 & 255) << 8 | run << 16 | place << 24
                entry |= single[i] & 0xFFFF << 32 | taken << 48 | (after >> 32 & 0xFFF) << 52
        entries[i] = entry


@njit(nogil=True, cache=True)
def _long_code(bits: Any, limit: Any, delta: Any, symbols: Any) -> Any:
    """The code at the top of ``bits``, longer than LOOKUP_BITS: symbol * 256 + length; 0 for none."""
    pattern = np.int64(bits >> U(48))
    for length in range(LOOKUP_BITS + 1, 17):
        if pattern < limit[length]:
            return U(symbols[delta[length] + (pattern >> 16 - length) & 255]) << _EIGHT | U(length)
    return _ZERO


# -- the scan ---------------------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def _unstuff(data: Any, begin: Any, stream: Any, ends: Any) -> Any:
    """The scan from data[begin:] without its stuffing to ``stream``, and where each restart interval but the last ends
    to ``ends``. Returns the bytes written; -1 where anything but the expected restart markers and EOI stands."""
    source, target = U(data.ctypes.data), U(stream.ctypes.data)
    i, size, out = U(begin), U(len(data)), _ZERO
    found = 0
    while i < size:
        if i + U(64) <= size:
            mask = copy_64(source + i, target + out)
            if mask == _ZERO:
                i += U(64)
                out += U(64)
                continue
            i += lowest_bit(mask)
            out += lowest_bit(mask)
        elif data[i] != 255:
            stream[out] = data[i]
            i += _ONE
            out += _ONE
            continue
        if i + _ONE >= size:
            return -1
        after = data[i + _ONE]
        i += U(2)
        if after == 0:
            stream[out] = 255
            out += _ONE
        elif after == 0xD9:
            return np.int64(out) if found == len(ends) else -1
        elif found < len(ends) and after == 0xD0 + (found & 7):
            ends[found] = out
            found += 1
        else:
            return -1
    return -1


@njit(nogil=True, cache=True)
def _value(bits: Any, size: Any) -> Any:
    """The ``size`` bits at the top of ``bits`` as a number (T.81, F.2.2.1: EXTEND)."""
    value = np.int64((bits >> _ONE) >> (_LOW6 - size))
    return value + (~(np.int64(bits) >> np.int64(63)) & (np.int64(1) - (np.int64(1) << np.int64(size))))


_PART = np.dtype(
    [(name, np.int64) for name in ("h", "v", "across", "down", "width", "height", "top", "bottom", "left", "right")]
    + [(name, np.int64) for name in ("plane", "pitch", "dc_slot", "ac_slot", "previous")]
)
"""A component: sampling factors, pixels a sample covers, its size in samples, the blocks wanted (rows and columns from
top and left to before bottom and right), the plane that holds them, its tables, its last DC value."""

_BLOCK = np.dtype(
    [(name, np.int64) for name in ("part", "row", "column", "begin", "end")]
    + [(name, np.uint64) for name in ("dc_table", "ac_table", "ac_codes", "factors", "line", "step")]
)
"""A block of an MCU: its component and place, the MCUs of the present row where it is wanted, addresses of its tables,
of where the row's first such block goes in its plane, and how far the next MCU's block is from there."""


@njit(nogil=True, cache=True)
def _decode(
    data: Any, row: Any, window: Any, channels: Any, bgr: Any, stream: Any, block: Any, codes: Any, entries: Any,
    factors: Any, dst: Any, origin: Any, pitch: Any,
) -> Any:  # fmt: skip
    parts = np.zeros(row.components, _PART)
    h_max = np.int64(row.h[0]) if row.components == 3 else 1
    v_max = np.int64(row.v[0]) if row.components == 3 else 1
    mcus_x, mcus_y = -(-row.width // (8 * h_max)), -(-row.height // (8 * v_max))
    in_mcu = 1 if row.components == 1 else h_max * v_max + 2
    # A block takes two bits at least: a huge picture from a small file needs no memory to be refused.
    if mcus_x * mcus_y * in_mcu * 2 > 8 * (len(data) - row.scan_offset):
        return OTHER
    restart = np.int64(row.restart_interval)
    ends = np.empty(-(-mcus_x * mcus_y // restart) - 1 if restart > 0 else 0, np.int64)
    length = _unstuff(data, row.scan_offset, stream, ends)
    if length < 0:
        return OTHER
    stream[length : length + MCU_BYTES + 64] = 0

    limit, delta, symbols = np.zeros((4, 17), np.int64), np.zeros((4, 17), np.int64), np.zeros((4, 256), np.uint8)
    if not _tables(data, row, parts, codes, entries, limit, delta, symbols, factors):
        return OTHER
    held = _planes(row, window, channels, h_max, v_max, parts)
    if held > MOST_PLANES:
        return OTHER
    planes = np.empty(held + PIXELS, np.uint8)
    blocks = np.zeros(in_mcu, _BLOCK)
    b = 0
    for c in range(len(parts)):
        part = parts[c]
        for k in range(part.h * part.v):
            blocks[b].part, blocks[b].row, blocks[b].column = c, k // part.h, k % part.h
            blocks[b].dc_table = U(codes.ctypes.data) + U(part.dc_slot * _N * 2)
            blocks[b].ac_table = U(entries.ctypes.data) + U(part.ac_slot * _N * 8)
            blocks[b].ac_codes = U(codes.ctypes.data) + U((2 + part.ac_slot) * _N * 2)
            blocks[b].factors = U(factors.ctypes.data) + U(c * 64 * 4)
            blocks[b].step = U(8 * part.h)
            b += 1

    room = window[3] - window[1] + 3 * PIXELS
    lines, sums = np.empty((3, room), np.uint8), np.empty(room // 2 + 4, np.int32)
    seen = np.zeros(8, np.int32)
    seen_at = U(seen.ctypes.data)
    here = U(block.ctypes.data)
    order = here + _ORDER_AT
    start = U(stream.ctypes.data)
    interval, left = 0, (restart if restart > 0 else mcus_x * mcus_y)
    stop = start + U(ends[0] if len(ends) > 0 else length)
    bits = big_endian_64(start)
    at, count = start + _SEVEN, _FULL  # `count` (its low 6 bits) of `bits` are valid, the next byte lies at `at`
    done = window[0]
    for my in range(mcus_y):
        _begin_row(my, parts, blocks, planes)
        for mx in range(mcus_x):
            if left == 0:
                rest = np.int64(stop - at) * 8 + np.int64(count & _LOW6)
                if rest < 0 or rest >= 8:
                    return OTHER
                at = start + U(ends[interval])
                interval += 1
                stop = start + U(ends[interval] if interval < len(ends) else length)
                left = restart
                bits, count = big_endian_64(at), _FULL
                at += _SEVEN
                for c in range(len(parts)):
                    parts[c].previous = 0
            left -= 1
            if at > stop + U(16):
                return OTHER
            for k in range(in_mcu):
                now = blocks[k]
                part = parts[now.part]
                bits |= big_endian_64(at) >> (count & _LOW6)
                at += (~count >> _THREE) & _SEVEN
                count |= _FULL
                code = u16_at(now.dc_table + ((bits >> _SHIFT) << _ONE))
                if code == _ZERO:
                    t = part.dc_slot
                    code = _long_code(bits, limit[t], delta[t], symbols[t])
                    if code == _ZERO:
                        return OTHER
                size = code >> _EIGHT
                bits <<= code & _BYTE
                dc = part.previous + _value(bits, size)
                part.previous = dc
                if dc < -32768 or dc > 32767:
                    return OTHER
                bits <<= size
                count -= (code & _BYTE) + size
                wanted = now.begin <= mx < now.end
                table = now.ac_table
                index, entry = _ONE, _ZERO
                while True:
                    while index < _BLOCK_END:
                        bits |= big_endian_64(at) >> (count & _LOW6)
                        at += (~count >> _THREE) & _SEVEN
                        count |= _FULL
                        if wanted:
                            for _ in range(4):
                                entry = u64_at(table + ((bits >> _SHIFT) << _THREE))
                                bits <<= entry & _LOW6
                                count -= entry  # only its low bits are looked at
                                place = order + index
                                first = u8_at(place + ((entry >> U(16)) & U(127)))
                                put_i16(here + (first << _ONE), entry >> U(32))
                                second = u8_at(place + ((entry >> U(24)) & U(127)))
                                put_i16(here + (second << _ONE), U(np.int64(entry) >> np.int64(52)))
                                index += (entry >> _EIGHT) & _BYTE
                                if index >= _BLOCK_END:
                                    break
                        else:
                            for _ in range(4):
                                entry = u64_at(table + ((bits >> _SHIFT) << _THREE))
                                bits <<= entry & _LOW6
                                count -= entry
                                index += (entry >> _EIGHT) & _BYTE
                                if index >= _BLOCK_END:
                                    break
                    if index >= U(256):  # a symbol with more bits than the tables have
                        index -= _LONG_MOVE
                        bits |= big_endian_64(at) >> (count & _LOW6)
                        at += (~count >> _THREE) & _SEVEN
                        count |= _FULL
                        code = u16_at(now.ac_codes + ((bits >> _SHIFT) << _ONE))
                        if code == _ZERO:
                            t = 2 + part.ac_slot
                            code = _long_code(bits, limit[t], delta[t], symbols[t])
                            if code == _ZERO:
                                return OTHER
                        run, size = code >> U(12), (code >> _EIGHT) & U(15)
                        bits <<= code & _BYTE
                        if size == _ZERO:
                            if run != _ZERO and run != U(15):
                                return OTHER
                            index += U(16) if run == U(15) else _END_OF_BLOCK
                        else:
                            if size > U(10):
                                return OTHER
                            put_i16(here + (u8_at(order + index + run) << _ONE), U(_value(bits, size)))
                            index += run + _ONE
                            bits <<= size
                        count -= (code & _BYTE) + size
                        if index < _BLOCK_END:
                            continue
                    elif entry & _LOW6 != (entry >> U(48)) & U(15):
                        # Two symbols at once; where the first ends the block, the second goes back.
                        ended = index - ((entry >> _EIGHT) & _BYTE) + ((entry >> U(16)) & U(127)) + _ONE
                        if ended >= _BLOCK_END:
                            index = ended
                            count = (count + (entry & _LOW6) - ((entry >> U(48)) & U(15))) & _LOW6
                            at -= (count + _SEVEN) >> _THREE
                            skip = (_ZERO - count) & _SEVEN
                            bits = big_endian_64(at) << skip
                            at += _SEVEN
                            count = _FULL - skip
                    break
                if index != _BLOCK_END and index < _END_OF_BLOCK:
                    return OTHER  # a run past the last coefficient
                if wanted and index == _ONE + _END_OF_BLOCK:  # nothing but DC: what the transform makes of it
                    value = dc * np.int64(factors[now.part, 0])
                    if value < -LIMIT // 4 or value >= LIMIT // 4:
                        return OTHER
                    value = min(max(((value + 4) >> 3) + 128, 0), 255)
                    for line in range(8):
                        put_u64(now.line + U(mx) * now.step + U(line * part.pitch), U(value * 0x0101010101010101))
                elif wanted:
                    put_i16(here, U(dc))
                    inverse_dct(here, now.factors, now.line + U(mx) * now.step, U(part.pitch), seen_at)
                zero_block(here)
        ready = row.height if my == mcus_y - 1 else (my + 1) * 8 * v_max - (v_max > 1)
        ready = min(ready, window[2])
        while done < ready and window[1] < window[3]:
            _write_line(done, window, parts, planes, lines, sums, channels, bgr, dst, origin + done * pitch)
            done += 1
    rest = np.int64(stop - at) * 8 + np.int64(count & _LOW6)
    if rest < 0 or rest >= 8:
        return OTHER
    for k in range(8):
        if seen[k] < 0 or seen[k] >= 2 * LIMIT:
            return OTHER
    return DONE


@njit(nogil=True, cache=True)
def _tables(
    data: Any, row: Any, parts: Any, codes: Any, entries: Any, limit: Any, delta: Any, symbols: Any, factors: Any
) -> Any:  # fmt: skip
    """Quantisation tables in the order of rows, and Huffman tables: two for DC, then two for AC, which is as many as
    encoders use. False for any other use of them."""
    single = np.empty(_N, np.int64)
    for c in range(len(parts)):
        quant = row.quant[c]
        if quant <= 0 or quant + 64 > len(data):
            return False
        for k in range(64):
            factors[c, _ORDER[k]] = data[quant + k]
    for kind in range(2):
        offsets = row.dc if kind == 0 else row.ac
        other = np.int64(0)
        for c in range(len(parts)):
            slot = 0
            if offsets[c] != offsets[0]:
                if other != 0 and other != offsets[c]:
                    return False
                slot, other = 1, np.int64(offsets[c])
            if kind == 0:
                parts[c].dc_slot = slot
            else:
                parts[c].ac_slot = slot
        for slot in range(2 if other != 0 else 1):
            t = 2 * kind + slot
            where = other if slot == 1 else np.int64(offsets[0])
            if not _codes(data, where, codes[t], limit[t], delta[t], symbols[t]):
                return False
            if kind == 1:
                _ac_entries(codes[t], single, entries[slot])
            elif symbols[t].max() > 11:
                return False
    return True


@njit(nogil=True, cache=True)
def _planes(row: Any, window: Any, channels: Any, h_max: Any, v_max: Any, parts: Any) -> Any:
    """Lay out what is wanted of each component: the blocks that hold the window, and one sample more on each side where
    upsampling reads it. Returns the bytes of all planes."""
    y0, x0, y1, x1 = window
    size = np.int64(0)
    for c in range(len(parts)):
        part = parts[c]
        part.h, part.v = (h_max, v_max) if c == 0 else (1, 1)
        part.across, part.down = h_max // part.h, v_max // part.v
        part.width, part.height = -(-row.width // part.across), -(-row.height // part.down)
        part.plane = size
        if y1 > y0 and x1 > x0 and (c == 0 or channels == 3):
            halo_x, halo_y = part.across - 1, part.down - 1
            part.top = max(y0 // part.down - halo_y, 0) // 8
            part.bottom = min((y1 - 1) // part.down + halo_y, part.height - 1) // 8 + 1
            part.left = max(x0 // part.across - halo_x, 0) // 8
            part.right = min((x1 - 1) // part.across + halo_x, part.width - 1) // 8 + 1
            part.pitch = 8 * (part.right - part.left)
            size += part.pitch * 8 * (part.bottom - part.top)
    return size


@njit(nogil=True, cache=True)
def _begin_row(my: Any, parts: Any, blocks: Any, planes: Any) -> None:
    """Where the blocks of a row of MCUs go."""
    for k in range(len(blocks)):
        now = blocks[k]
        part = parts[now.part]
        line = my * part.v + now.row
        now.begin = -(-(part.left - now.column) // part.h)
        now.end = -(-(part.right - now.column) // part.h) if part.top <= line < part.bottom else 0
        first = part.plane + (line - part.top) * 8 * part.pitch + (now.column - part.left) * 8
        now.line = U(planes.ctypes.data) + U(first)


# -- pixels -----------------------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def _write_line(
    y: Any, window: Any, parts: Any, planes: Any, lines: Any, sums: Any, channels: Any, bgr: Any, dst: Any, at: Any
) -> None:  # fmt: skip
    """Row y of the window to dst[at + x * channels]."""
    x0, x1 = window[1], window[3]
    wide = x1 - x0
    luma = parts[0].plane + (y - 8 * parts[0].top) * parts[0].pitch + x0 - 8 * parts[0].left
    out = dst[at + x0 * channels : at + x1 * channels]
    if channels == 1:
        out[:] = planes[luma : luma + wide]
        return
    if len(parts) == 1:
        for x in range(wide):
            value = planes[luma + x]
            out[3 * x], out[3 * x + 1], out[3 * x + 2] = value, value, value
        return
    first = U(planes.ctypes.data) + U(luma)
    if parts[1].across == 1:
        second = U(planes.ctypes.data) + U(_sample(parts[1], y, x0))
        third = U(planes.ctypes.data) + U(_sample(parts[2], y, x0))
    else:
        _upsample(y, x0, x1, parts[1], planes, lines[0], sums)
        _upsample(y, x0, x1, parts[2], planes, lines[1], sums)
        second = U(lines[0].ctypes.data) + U(x0 & 1)
        third = U(lines[1].ctypes.data) + U(x0 & 1)
    few = lines[2][: 3 * PIXELS]
    target = U(out.ctypes.data) if wide >= PIXELS else U(few.ctypes.data)
    for group in range(-(-wide // PIXELS)):
        x = max(min(group * PIXELS, wide - PIXELS), 0)  # the last ones again, with what is left
        ycc_to_rgb(first + U(x), second + U(x), third + U(x), target + U(3 * x), bgr)
    if wide < PIXELS:
        out[:] = few[: 3 * wide]


@njit(nogil=True, cache=True)
def _sample(part: Any, y: Any, x: Any) -> Any:
    """Where sample (y, x) of a component lies in the planes."""
    return part.plane + (y - 8 * part.top) * part.pitch + x - 8 * part.left


@njit(nogil=True, cache=True)
def _upsample(y: Any, x0: Any, x1: Any, part: Any, planes: Any, out: Any, sums: Any) -> None:
    """Pixels from x0 (made even) to before x1 of row y of a component of half the width, and perhaps half the height:
    libjpeg's fancy upsampling. That is a triangle filter, 3/4 of the nearer sample and 1/4 of the farther one in each
    direction; the rounding constant alternates, and outside of the plane its border sample stands in."""
    begin, n = x0 // 2, (x1 - 1) // 2 - x0 // 2 + 1
    near = y // part.down
    far = near
    if part.down == 2:
        far = min(max(near + (1 if y & 1 else -1), 0), part.height - 1)
    low, high = max(begin - 1, 0), min(begin + n, part.width - 1)  # columns, both included
    a = planes[_sample(part, near, low) : _sample(part, near, high) + 1]
    b = planes[_sample(part, far, low) : _sample(part, far, high) + 1]
    middle = sums[low - (begin - 1) :]
    if part.down == 2:
        for i in range(len(a)):
            middle[i] = 3 * np.int32(a[i]) + np.int32(b[i])
    else:
        for i in range(len(a)):
            middle[i] = a[i]
    if low > begin - 1:
        sums[0] = sums[1]
    if high < begin + n:
        sums[n + 1] = sums[n]
    left, centre, right = sums[:n], sums[1 : n + 1], sums[2 : n + 2]
    both = part.down == 2
    even, odd, shift = np.int32(8 if both else 1), np.int32(7 if both else 2), np.int32(4 if both else 2)
    for i in range(n):
        out[2 * i] = (3 * centre[i] + left[i] + even) >> shift
        out[2 * i + 1] = (3 * centre[i] + right[i] + odd) >> shift
