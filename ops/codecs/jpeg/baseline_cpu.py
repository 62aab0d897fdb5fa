"""Compiled decoder of baseline JPEGs on the CPU, bit-identical to libjpeg-turbo's exact decode, for the needed pixels
only.

The whole scan is read, because damage must be found wherever it is; coefficients of blocks without needed pixels are
dropped. An image that the decoder does not support, or with anything unusual, gets a status other than 0: libjpeg-turbo
then decodes or rejects it. So this decoder may only be stricter, never more lenient. Of a file that was read as a whole
before, and has not changed, only the needed rows and columns of blocks are read (`anchors`).

Memory is read and written by address in the inner loops. It stays in bounds because an MCU takes at most MCU_BYTES of
the scan, and the rest of the scan is checked before each; places in a block come from a table of 256 entries, of which
those beyond the block lead to one spare place; planes and rows are sized from the frame header. Numba frees an array
after its last use by name: arrays that are used by address belong to the caller, or are referred to again afterwards.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .anchors import CHECK, KNOWN, LEARN, MODE, NOTHING, PLACE, STRIDE
from .header import OK
from .huffman_cpu import (
    BLOCK_END,
    BYTE,
    EIGHT,
    END_OF_BLOCK,
    ENTRIES,
    FULL,
    LOW6,
    MCU_BYTES,
    ONE,
    ORDER,
    SEVEN,
    SHIFT,
    THREE,
    ZERO,
    U,
    ac_entries,
    dc_entries,
    is_ended,
    last_value,
    next_symbol,
    read_codes,
    unstuff,
)  # fmt: skip
from .planes_cpu import PART, is_common, lay_out, write_line
from .simd_cpu import (
    LIMIT,
    PIXELS,
    big_endian_64,
    i32_at,
    in_range,
    inverse_dct,
    put_i16,
    put_u64,
    read_factors,
    u8_at,
    u64_at,
    zero_block,
)

DONE, OTHER = 0, 1
"""Values of an image's status: it was decoded, or libjpeg-turbo must decode it."""

_LAST_BITS = U(63 << 6)
"""Mask for an entry of an AC lookup table, which decodes one or two coefficients: the bits that give the size of the
last coefficient, 0 if it has no value bits."""

_STATE_BITS, _DC_BITS = U(31), U(11)
"""Bit widths of the fields of a decoder state (`anchors`), from the lowest bit on: the number of bits of the scan
before it (without stuffing), and three DC values."""

_ORDER_AT, _OTHER_AT = U(256), U(512)
"""Byte offsets in the scratch memory for a block, whose coefficients come first: the array `huffman_cpu.ORDER`, and a
second block."""


@njit(
    "void(int32[:, ::1], int64[::1], boolean[::1], int32[::1], int64[:, :], int64[:, :], int64[:, ::1], int64[::1], "
    "int64[::1], int64[::1])",
    cache=True,
)  # fmt: skip
def regions(
    shapes: Any, offsets: Any, good: Any, orientation: Any, corners: Any, needed: Any, windows: Any, channels: Any,
    origins: Any, pitches: Any,
) -> None:  # fmt: skip
    """Compute the arguments windows, channels, origins and pitches of `decode_images`, for images of ``shapes`` [N, 3]
    that are written at ``offsets`` of the output. ``corners`` [N, 2]: corner of the image's window that its output
    shows; [0, 2] for zeros. ``needed`` [N, 4]: its needed pixels; [0, 4] for all. Images that are not ``good``, or that
    must be rotated, get invalid windows."""
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
    pitches: Any, status: Any, states: Any, known: Any,
) -> None:  # fmt: skip
    """Decode N baseline JPEGs, the bytes raw[offset : offset + size]; ``headers`` are their HEADER rows. ``windows``
    [N, 4] (y0, x0, y1, x1, inside the image) are the needed pixels. Those of image i are written as uint8 with
    ``channels[i]`` 1 (Y) or 3 (RGB, or BGR) to dst[origins[i] + y * pitches[i] + x * channels[i]:]. ``status`` [N]
    becomes DONE or OTHER; with OTHER, some pixels of the window may have been written. ``states``, uint64: stored
    decoder states, or space for new ones, which ``known`` [N, 3] assigns to images; see `anchors`."""
    most: Any = np.int64(0)
    for i in range(len(offsets)):
        most = max(most, sizes[i] - headers[i].scan_offset)
    stream = np.empty(max(most, 0) + MCU_BYTES + 128, np.uint8)
    block = np.zeros(768, np.uint8)
    block[256:512] = ORDER
    codes, entries = np.empty((4, ENTRIES), np.uint16), np.empty((4, ENTRIES), np.int32)
    factors = np.empty((3, 128), np.int16)
    limit, delta, symbols = np.zeros((4, 17), np.int64), np.zeros((4, 17), np.int64), np.zeros((4, 256), np.uint8)
    kept = np.zeros((4, KEPT), np.uint8)
    for i in range(len(offsets)):
        row, window = headers[i], windows[i]
        inside = 0 <= window[0] <= window[2] <= row.height and 0 <= window[1] <= window[3] <= row.width
        fits = offsets[i] >= 0 and sizes[i] >= 0 and offsets[i] + sizes[i] <= len(raw)
        if not (inside and fits and row.status == OK and row.scans <= 1 and is_common(row)):
            status[i] = OTHER
            known[i, MODE] = NOTHING
            continue
        block[:256] = 0
        block[512:] = 0
        data = raw[offsets[i] : offsets[i] + sizes[i]]
        status[i] = _decode(
            data, row, window, channels[i], bgr, stream, block, codes, entries, limit, delta, symbols, kept, factors,
            dst, origins[i], pitches[i], states, known[i],
        )  # fmt: skip
        if status[i] != DONE:
            known[i, MODE] = NOTHING


# -- the scan ---------------------------------------------------------------------------------------------------------


_BLOCK = np.dtype(
    [(name, np.int64) for name in ("part", "row", "column", "begin", "end")]
    + [(name, np.uint64) for name in ("dc_table", "ac_table", "factors", "line", "step")]
)
"""Layout of one block of an MCU, while a row of MCUs is decoded: its component; its row and column in the MCU; first
and end of the MCUs in which it is needed; addresses of its tables; address of the first such block in its component's
buffer; bytes from there to the next MCU's block."""


@njit(nogil=True, cache=True)
def _decode(
    data: Any, row: Any, window: Any, channels: Any, bgr: Any, stream: Any, block: Any, codes: Any, entries: Any,
    limit: Any, delta: Any, symbols: Any, kept: Any, factors: Any, dst: Any, origin: Any, pitch: Any, states: Any,
    known: Any,
) -> Any:  # fmt: skip
    parts = np.zeros(row.components, PART)
    h_max = np.int64(row.h[0]) if row.components == 3 else 1
    v_max = np.int64(row.v[0]) if row.components == 3 else 1
    mcus_x, mcus_y = -(-row.width // (8 * h_max)), -(-row.height // (8 * v_max))
    in_mcu = 1 if row.components == 1 else h_max * v_max + 2
    # A block takes at least two bits: a huge image in a small file is rejected without allocating memory.
    if mcus_x * mcus_y * in_mcu * 2 > 8 * (len(data) - row.scan_offset):
        return OTHER
    restart = np.int64(row.restart_interval)
    ends = np.empty(-(-mcus_x * mcus_y // restart) - 1 if restart > 0 else 0, np.int64)
    length = unstuff(data, row.scan_offset, -1, stream, ends)
    if length < 0:
        return OTHER
    stream[length : length + MCU_BYTES + 64] = 0

    if not _tables(data, row, parts, codes, entries, limit, delta, symbols, kept, factors):
        return OTHER
    planes = np.empty(lay_out(row, window, channels, h_max, v_max, parts) + PIXELS, np.uint8)
    blocks = np.zeros(in_mcu, _BLOCK)
    b = 0
    for c in range(len(parts)):
        part = parts[c]
        for k in range(part.h * part.v):
            blocks[b].part, blocks[b].row, blocks[b].column = c, k // part.h, k % part.h
            blocks[b].dc_table = U(entries.ctypes.data) + U(part.dc_slot * ENTRIES * 4)
            blocks[b].ac_table = U(entries.ctypes.data) + U((2 + part.ac_slot) * ENTRIES * 4)
            blocks[b].factors = U(factors.ctypes.data) + U(c * 128 * 2)
            blocks[b].step = U(8 * part.h)
            b += 1

    room = window[3] - window[1] + 3 * PIXELS
    lines, sums = np.empty((3, room), np.uint8), np.empty(room // 2 + PIXELS, np.int16)
    lines_at, sums_at, planes_at = U(lines.ctypes.data), U(sums.ctypes.data), U(planes.ctypes.data)
    written = U(dst.ctypes.data) + U(origin + window[1] * channels)
    seen = np.zeros(32, np.uint16)
    seen_at = U(seen.ctypes.data)
    here = U(block.ctypes.data)
    order, other = here + _ORDER_AT, here + _OTHER_AT
    # A block is transformed when the next one has been read: its coefficients, written one by one, are in the cache by
    # then, when they are read as vectors, and both tasks use different parts of the processor.
    waits, its_factors, its_target, its_pitch = False, ZERO, ZERO, ZERO
    start = U(stream.ctypes.data)
    stride = STRIDE // h_max
    anchors, first_state = -(-mcus_x // stride), known[PLACE]
    if restart > 0 or first_state < 0 or first_state + anchors * mcus_y > len(states) or length >= 1 << 28:
        known[MODE] = NOTHING
    if known[MODE] != NOTHING:
        check = digest(data)
        if known[MODE] == KNOWN and check != known[CHECK]:
            known[MODE] = NOTHING
        known[CHECK] = check
    learning, alone = known[MODE] == LEARN, known[MODE] == KNOWN
    rows_from, rows_to, from_mx, to_mx = _wanted_mcus(parts) if alone else (0, mcus_y, 0, mcus_x)
    from_mx = from_mx // stride * stride
    interval, left = 0, (restart if restart > 0 else mcus_x * mcus_y)
    stop = start + U(ends[0] if len(ends) > 0 else length)
    bits = big_endian_64(start)
    at, count = start + SEVEN, FULL  # `count` (its low 6 bits) of `bits` are valid; the next byte is at `at`
    done = window[0]
    for my in range(rows_from, rows_to):
        _begin_row(my, parts, blocks, planes_at)
        if alone:
            state = states[first_state + my * anchors + from_mx // stride]
            place = state & ((ONE << _STATE_BITS) - ONE)
            if place >> THREE > U(length):
                return OTHER
            at = start + (place >> THREE)
            bits = big_endian_64(at) << (place & SEVEN)
            at, count = at + SEVEN, FULL - (place & SEVEN)
            for c in range(len(parts)):
                value = state >> (_STATE_BITS + U(c) * _DC_BITS) & ((ONE << _DC_BITS) - ONE)
                parts[c].previous = np.int64(value) - (1 << 10)
        for mx in range(from_mx, to_mx):
            if learning and mx & (stride - 1) == 0:
                state = ((at - start) << THREE) - (count & LOW6)
                for c in range(len(parts)):
                    value = U(parts[c].previous + (1 << 10))
                    learning = learning and value < ONE << _DC_BITS
                    state |= value << (_STATE_BITS + U(c) * _DC_BITS)
                states[first_state + my * anchors + mx // stride] = state
            if left == 0:
                rest = np.int64(stop - at) * 8 + np.int64(count & LOW6)
                if rest < 0 or rest >= 8:
                    return OTHER
                at = start + U(ends[interval])
                interval += 1
                stop = start + U(ends[interval] if interval < len(ends) else length)
                left = restart
                bits, count = big_endian_64(at), FULL
                at += SEVEN
                for c in range(len(parts)):
                    parts[c].previous = 0
            left -= 1
            if at > stop + U(16):
                return OTHER
            for k in range(in_mcu):
                now = blocks[k]
                part = parts[now.part]
                bits |= big_endian_64(at) >> (count & LOW6)
                at += (~count >> THREE) & SEVEN
                count |= FULL
                entry = i32_at(now.dc_table + ((bits >> SHIFT) << U(2)))
                if entry != 0:
                    value = last_value(bits, entry)
                    bits <<= U(entry) & LOW6
                    count -= U(entry)  # only its low bits are used
                    dc = part.previous + (value if U(entry) & _LAST_BITS != ZERO else np.int64(0))
                else:
                    code, value, bits, at, count = next_symbol(
                        bits, at, count, part.dc_slot, codes, limit, delta, symbols
                    )
                    if code == ZERO:
                        return OTHER
                    dc = part.previous + value
                part.previous = dc
                if dc < -32768 or dc > 32767:
                    return OTHER
                wanted = now.begin <= mx < now.end
                table = now.ac_table
                spot = order + ONE
                before = bits
                while True:
                    bits |= big_endian_64(at) >> (count & LOW6)
                    at += (~count >> THREE) & SEVEN
                    count |= FULL
                    if wanted:
                        for _ in range(3):  # their bits are available
                            entry = i32_at(table + ((bits >> SHIFT) << U(2)))
                            before = bits
                            value = last_value(bits, entry)
                            bits <<= U(entry) & LOW6
                            count -= U(entry)
                            first = u8_at(spot + ((U(entry) >> U(12)) & U(15)))
                            spot += (U(entry) >> U(16)) & BYTE
                            put_i16(here + (u8_at(spot - ONE) << ONE), U(value))
                            put_i16(here + (first << ONE), U(entry >> np.int64(24)))
                            if spot >= order + BLOCK_END:
                                break
                    else:
                        for _ in range(3):
                            entry = i32_at(table + ((bits >> SHIFT) << U(2)))
                            before = bits
                            bits <<= U(entry) & LOW6
                            count -= U(entry)
                            spot += (U(entry) >> U(16)) & BYTE
                            if spot >= order + BLOCK_END:
                                break
                    if spot < order + BLOCK_END:
                        continue
                    if is_ended(spot - order, BLOCK_END):
                        break
                    spot -= (U(entry) >> U(16)) & BYTE
                    code, value, bits, at, count = next_symbol(
                        before, at, count + (U(entry) & LOW6), 2 + part.ac_slot, codes, limit, delta, symbols
                    )
                    run, size = code >> U(12), (code >> EIGHT) & U(15)
                    if code == ZERO or size > U(10) or (size == ZERO and run != ZERO and run != U(15)):
                        return OTHER
                    if size == ZERO and run == ZERO:
                        spot += END_OF_BLOCK
                        break
                    spot += run + ONE
                    if spot > order + BLOCK_END:
                        return OTHER  # a run beyond the last coefficient
                    put_i16(here + (u8_at(spot - ONE) << ONE), U(value))
                    if spot == order + BLOCK_END:
                        break
                index = spot - order
                if wanted and index == ONE + END_OF_BLOCK:  # only DC: the result of the transform is constant
                    value = dc * np.int64(factors[now.part, 0])
                    if value < -LIMIT // 4 or value >= LIMIT // 4:
                        return OTHER
                    value = min(max(((value + 4) >> 3) + 128, 0), 255)
                    target, step, eight = now.line + U(mx) * now.step, U(part.pitch), U(value * 0x0101010101010101)
                    for line in range(8):
                        put_u64(target + U(line) * step, eight)
                    zero_block(here)
                elif wanted:
                    put_i16(here, U(dc))
                    if waits:
                        inverse_dct(other, its_factors, its_target, its_pitch, seen_at)
                        zero_block(other)
                    waits, its_factors, its_pitch = True, now.factors, U(part.pitch)
                    its_target = now.line + U(mx) * now.step
                    here, other = other, here
                else:
                    zero_block(here)
        if waits:
            inverse_dct(other, its_factors, its_target, its_pitch, seen_at)
            zero_block(other)
            waits = False
        ready = row.height if my == mcus_y - 1 else (my + 1) * 8 * v_max - (v_max > 1)
        ready = min(ready, window[2])
        while done < ready and window[1] < window[3]:
            target = written + U(done * pitch)
            write_line(done, window, parts, planes_at, lines_at, room, sums_at, channels, bgr, target)
            done += 1
    rest = np.int64(stop - at) * 8 + np.int64(count & LOW6)
    if ((rest < 0 or rest >= 8) and not alone) or len(entries) + len(planes) + len(lines) + len(sums) == 0:
        return OTHER
    if not learning and not alone:
        known[MODE] = NOTHING
    return DONE if in_range(seen) else OTHER


@njit(nogil=True, cache=True)
def _tables(
    data: Any, row: Any, parts: Any, codes: Any, entries: Any, limit: Any, delta: Any, symbols: Any, kept: Any,
    factors: Any,
) -> Any:  # fmt: skip
    """Read an image's quantisation tables, and at most two DC and two AC Huffman tables, as many as encoders use.
    Return False if it has more, or if one is invalid. ``kept``: bytes of the previous image's Huffman tables, see
    `_is_kept`."""
    seconds = np.empty(ENTRIES, np.int32)
    for c in range(len(parts)):
        if not read_factors(data, np.int64(row.quant[c]), factors[c]):
            return False
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
            if _is_kept(data, where, kept[t]):
                continue
            kept[t, 0] = 0
            symbols[t] = 0
            if not read_codes(data, where, codes[t], limit[t], delta[t], symbols[t]):
                return False
            if kind == 0 and symbols[t].max() > 11:
                return False
            if kind == 0:
                dc_entries(codes[t], entries[t])
            else:
                ac_entries(codes[t], seconds, entries[t])
            kept[t, 0] = 1
            size: Any = 16
            for k in range(16):
                size += np.int64(data[where + k])
            kept[t, 1 : 1 + size] = data[where : where + size]
    return True


KEPT = 1 + 16 + 256
"""Number of bytes that are kept of a Huffman table, to compare it with the next image's: 1 if there is one, the number
of codes of each length, the symbols."""


@njit(nogil=True, cache=True)
def _is_kept(data: Any, at: Any, kept: Any) -> Any:
    """Return whether the Huffman table at data[at:] equals the one of the previous image, ``kept``. Most small images
    have the standard tables: building their lookup tables again would take longer than decoding the image."""
    if kept[0] == 0 or at <= 0 or at + 16 > len(data):
        return False
    size: Any = 16
    for k in range(16):
        if data[at + k] != kept[1 + k]:
            return False
        size += np.int64(data[at + k])
    if at + size > len(data):
        return False
    equal = True
    for k in range(16, size):
        equal &= data[at + k] == kept[1 + k]
    return equal


@njit(nogil=True, cache=True)
def _begin_row(my: Any, parts: Any, blocks: Any, planes: Any) -> None:
    """Compute, for one row ``my`` of MCUs, in which MCUs each block is needed, and where its samples are written.
    ``planes``: address of the buffers of the components."""
    for k in range(len(blocks)):
        now = blocks[k]
        part = parts[now.part]
        line = my * part.v + now.row
        now.begin = -(-(part.left - now.column) // part.h)
        now.end = -(-(part.right - now.column) // part.h) if part.top <= line < part.bottom else 0
        first = part.plane + (8 * line & part.ring) * part.pitch + (now.column - part.left) * 8
        now.line = planes + U(first)


@njit(nogil=True, cache=True)
def _wanted_mcus(parts: Any) -> Any:
    """Return the range of MCUs that contain needed blocks: first row, end of rows, first column, end of columns."""
    top: Any = np.int64(0)
    bottom: Any = np.int64(0)
    left: Any = np.int64(0)
    right: Any = np.int64(0)
    for c in range(len(parts)):
        part = parts[c]
        if part.bottom == 0:
            continue
        first = bottom == 0
        top = part.top // part.v if first else min(top, part.top // part.v)
        left = part.left // part.h if first else min(left, part.left // part.h)
        bottom = max(bottom, -(-part.bottom // part.v))
        right = max(right, -(-part.right // part.h))
    return top, bottom, left, right


@njit(nogil=True, cache=True)
def digest(data: Any) -> Any:
    """Return a 64-bit digest of a file's bytes. Two different files have the same digest with a probability of 2^-64,
    unless they were made to collide."""
    at, n = U(data.ctypes.data), len(data)
    a, b, c, d = U(n), U(n) + ONE, U(n) + U(2), U(n) + THREE
    for _ in range(n // 32):
        a = _mixed(a ^ u64_at(at))
        b = _mixed(b ^ u64_at(at + EIGHT))
        c = _mixed(c ^ u64_at(at + U(16)))
        d = _mixed(d ^ u64_at(at + U(24)))
        at += U(32)
    for k in range(n // 32 * 32, n):
        a = _mixed(a ^ U(data[k]))
    return np.int64(_mixed(_mixed(_mixed(a) ^ b) ^ c) ^ d)


@njit(nogil=True, cache=True)
def _mixed(value: Any) -> Any:
    """Mix the bits of a 64-bit number, for `digest`: each bit changes half of the bits above it, and these change those
    below. No two numbers have the same result."""
    value *= U(0x9E3779B97F4A7C15)
    return value ^ (value >> U(32))
