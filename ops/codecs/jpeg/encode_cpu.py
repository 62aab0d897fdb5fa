"""Compiled loop that encodes a batch of images as JPEG files, without the GIL: byte for byte as libjpeg-turbo with its
accurate DCT. Called by `encoders_cpu`; the CUDA encoder (jpeg_encode.cu) takes the same steps.

An image is processed one row of MCUs at a time: planes of Y, Cb and Cr, coefficients, coded bits. With optimised
Huffman tables, the coefficients of all rows are computed before the first row is coded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .forward_cpu import PIXELS, bit_length, forward_dct, halve, rgb_to_ycc
from .simd_cpu import (
    i16_at,
    lowest_bit,
    nonzero_mask,
    put_i16,
    put_u8,
    put_u32,
    put_u64,
    u8_at,
    u32_at,
    u64_at,
    zero_block,
)
from .tables import HEADER_ROOM

U = np.uint64
ZERO, ONE, BYTE = U(0), U(1), U(255)
MCU_ROOM = 6 * 2 * 209
"""Maximum bytes of an encoded MCU: six blocks, 27 bits for a DC coefficient and 26 for each AC coefficient, doubled
because FF is written as FF 00."""
SLACK = 2 * PIXELS
"""Number of bytes after a row of samples that vector instructions may overwrite."""
SET = 4 * 256
"""Number of symbols of all four Huffman tables: DC and AC of luminance, DC and AC of chrominance."""


@njit(nogil=True, cache=True)
def work_bytes(shapes: Any, h: Any, v: Any, optimize: Any) -> Any:
    """Return the bytes of scratch memory that `encode_images` needs for images of ``shapes`` [N, 3]."""
    largest = np.int64(0)
    for i in range(len(shapes)):
        height, width = np.int64(shapes[i, 0]), np.int64(shapes[i, 1])
        across = -(-width // (8 * h))
        rows = -(-height // (8 * v)) if optimize else 1
        largest = max(largest, (12 * v + 16) * _pitch(across, h) + 128 * (h * v + 2) * across * rows)
    return largest + 8 * PIXELS


@njit(nogil=True, cache=True)
def _pitch(across: Any, h: Any) -> Any:
    """Return the bytes from one row of samples to the next, if a row has ``across`` MCUs."""
    return -(-8 * h * across // PIXELS) * PIXELS + SLACK


@njit(nogil=True, cache=True)
def encode_images(
    pixels: Any, offsets: Any, shapes: Any, fit: Any, first: Any, sampling: Any, optimize: Any, quant: Any, codes: Any,
    headers: Any, header_sizes: Any, dimensions: Any, work: Any, out: Any, places: Any, sizes: Any,
) -> Any:  # fmt: skip
    """Encode images as JPEGs, from image ``first`` on, as long as their files fit into ``out`` (uint8). Images for
    which ``fit`` (bool[N]) is false are left out. Return the index of the first image whose file does not fit into
    ``out``, and the bytes written.

    ``pixels``: address of all images, each of which begins ``offsets`` [N] bytes after it. ``shapes`` [N, 3]: their
    shapes. ``sampling``: horizontal and vertical sampling factors of luminance in colour images. ``quant``: see
    `quantisers`. ``codes`` uint32[1024]: length << 16 | code of each symbol. ``headers`` uint8[2, HEADER_ROOM], for
    colour and for gray: the file up to the coded bits, or with ``optimize`` up to the Huffman tables. ``dimensions``:
    byte offsets of height and width in these headers. ``work``: see `work_bytes`. ``places`` int64[N] and ``sizes``
    int32[N, 1] become offset and size of each file in ``out``."""
    end = np.int64(0)
    own = np.empty(SET, np.uint32)
    counts = np.zeros((4, 257), np.int64)
    for i in range(first, len(shapes)):
        places[i], sizes[i, 0] = end, 0
        if not fit[i]:
            continue
        gray = shapes[i, 2] == 1
        h, v = (np.int64(1), np.int64(1)) if gray else sampling
        kind = 1 if gray else 0
        height, width = np.int64(shapes[i, 0]), np.int64(shapes[i, 1])
        mcus_x, mcus_y = -(-width // (8 * h)), -(-height // (8 * v))
        blocks = mcus_x * (h * v + (0 if gray else 2))
        if end + HEADER_ROOM > len(out):
            return i, end
        at = out.ctypes.data + end
        for k in range(header_sizes[kind]):
            put_u8(U(at + k), U(headers[kind, k]))
        size = np.array([height >> 8, height & 255, width >> 8, width & 255])
        for k in range(4):
            put_u8(U(at + dimensions[kind] + k), U(size[k]))
        at += header_sizes[kind]

        source = U(pixels + offsets[i])
        planes = U(work.ctypes.data)
        pitch = _pitch(mcus_x, h)
        coefficients = planes + U((12 * v + 16) * pitch + 8 * PIXELS)
        table = U(codes.ctypes.data)
        if optimize:
            for my in range(mcus_y):
                _fill(source, height, width, gray, h, v, my, pitch, mcus_x, planes)
                place = coefficients + U(128 * blocks * my)
                _transform(planes, pitch, gray, h, v, my, mcus_x, height, width, quant, place)
            _count(coefficients, gray, h, v, mcus_x * mcus_y, counts)
            at = _write_tables(counts, gray, own, at)
            table = U(own.ctypes.data)
        state = (ZERO, np.int64(0), np.int64(0), np.int64(0), np.int64(0), U(at))
        room = True
        for my in range(mcus_y):
            place = coefficients
            if optimize:
                place += U(128 * blocks * my)
            else:
                _fill(source, height, width, gray, h, v, my, pitch, mcus_x, planes)
                _transform(planes, pitch, gray, h, v, my, mcus_x, height, width, quant, place)
            room, state = _code(place, gray, h, v, mcus_x, table, U(out.ctypes.data + len(out)), state)
            if not room:
                break
        if not room:
            return i, end
        behind = np.int64(_finish(state)) - out.ctypes.data
        sizes[i, 0] = behind - end
        end = behind
    return len(shapes), end


# -- samples and coefficients -----------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def _fill(
    source: Any, height: Any, width: Any, gray: Any, h: Any, v: Any, my: Any, pitch: Any, mcus_x: Any, planes: Any
) -> None:
    """Compute Y, Cb and Cr of one row of MCUs from the pixels: 8 * v rows of Y, then 8 of Cb and 8 of Cr, ``pitch``
    bytes apart. Beyond the image's right border, a row's last pixel is repeated; below the image, each component's last
    row."""
    wide = 8 * h * mcus_x
    blue, red = planes + U(8 * v * pitch), planes + U((8 * v + 8) * pitch)
    full = planes + U((8 * v + 16) * pitch)  # two rows of Cb, then two of Cr, before they are halved
    few = planes + U((12 * v + 16) * pitch)
    for y in range(8):
        row = my * 8 + y
        to_blue, to_red = blue + U(y * pitch), red + U(y * pitch)
        if row * v >= height:
            for k in range(v):
                _copy(planes + U((y * v - 1) * pitch), planes + U((y * v + k) * pitch), wide)
            _copy(to_blue - U(pitch), to_blue, wide)
            _copy(to_red - U(pitch), to_red, wide)
            continue
        for k in range(v):
            line = source + U(min(row * v + k, height - 1) * width * (1 if gray else 3))
            luma = planes + U((y * v + k) * pitch)
            if gray:
                _copy(line, luma, width)
                _extend(luma, width, wide)
                continue
            cb, cr = (to_blue, to_red) if h == 1 else (full + U(k * pitch), full + U((v + k) * pitch))
            if width < PIXELS:
                for x in range(3 * width):
                    put_u8(few + U(x), u8_at(line + U(x)))
                line = few
            for x in range(0, max(width - PIXELS, 0) + PIXELS, PIXELS):
                x = max(min(x, width - PIXELS), 0)  # the last group overlaps the one before it
                rgb_to_ycc(line + U(3 * x), luma + U(x), cb + U(x), cr + U(x))
            _extend(luma, width, wide)
            _extend(cb, width, wide)
            _extend(cr, width, wide)
        if h == 2 and not gray:
            last = U((v - 1) * pitch)  # with v == 1, both rows are the same
            for x in range(0, wide // 2, PIXELS):
                one, other = full + U(2 * x), full + U(v * pitch + 2 * x)
                halve(one, one + last, to_blue + U(x), v - 1, 2)
                halve(other, other + last, to_red + U(x), v - 1, 2)


@njit(nogil=True, cache=True)
def _copy(source: Any, target: Any, n: Any) -> None:
    for x in range(0, n - 7, 8):
        put_u64(target + U(x), u64_at(source + U(x)))
    for x in range(n // 8 * 8, n):
        put_u8(target + U(x), u8_at(source + U(x)))


@njit(nogil=True, cache=True)
def _extend(row: Any, begin: Any, end: Any) -> None:
    """Fill a row of samples from index ``begin`` to ``end`` with the sample before ``begin``."""
    last = u8_at(row + U(begin - 1))
    for x in range(begin, end):
        put_u8(row + U(x), last)


@njit(nogil=True, cache=True)
def _transform(
    planes: Any, pitch: Any, gray: Any, h: Any, v: Any, my: Any, mcus_x: Any, height: Any, width: Any, quant: Any,
    coefficients: Any,
) -> None:  # fmt: skip
    """Compute the DCT coefficients of a row of MCUs, in the order in which they are coded. Blocks outside the image,
    which only complete an MCU, get the DC coefficient of the previous block and no AC coefficients."""
    across, down = -(-width // 8), -(-height // 8)
    tables = U(quant.ctypes.data)
    step = U(pitch)
    at = coefficients
    for mx in range(mcus_x):
        for y in range(v):
            for x in range(h):
                if mx * h + x < across and my * v + y < down:
                    place = planes + U(8 * y * pitch + (mx * h + x) * 8)
                    forward_dct(place, step, tables, at)
                else:
                    zero_block(at)
                    put_i16(at, U(i16_at(at - U(128))))
                at += U(128)
        if not gray:
            for c in range(2):
                place = planes + U((8 * v + 8 * c) * pitch + 8 * mx)
                forward_dct(place, step, tables + U(3 * 128), at)
                at += U(128)


# -- coded bits -------------------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def _code(coefficients: Any, gray: Any, h: Any, v: Any, mcus: Any, codes: Any, behind: Any, state: Any) -> Any:
    """Append the Huffman codes of ``mcus`` MCUs to the output (T.81, F.1.2). ``codes``, ``behind``: addresses of the
    Huffman tables and of the output's end. ``state``: pending bits, their number, the last DC coefficients, the address
    to write to. Return whether there was space, and the new state."""
    bits, held, last_y, last_b, last_r, at = state
    luma = h * v
    block = coefficients
    for _ in range(mcus):
        if at + U(MCU_ROOM + 16) > behind:
            return False, (bits, held, last_y, last_b, last_r, at)
        for n in range(luma if gray else luma + 2):
            dc = np.int64(i16_at(block))
            if n < luma:
                value, last_y = dc - last_y, dc
                table = codes
            elif n == luma:
                value, last_b = dc - last_b, dc
                table = codes + U(4 * 512)
            else:
                value, last_r = dc - last_r, dc
                table = codes + U(4 * 512)
            bits, held, at = _put(table, ZERO, value, bits, held, at)
            table += U(4 * 256)
            mask = nonzero_mask(block) & ~ONE
            last = np.int64(0)
            while mask != ZERO:
                k = np.int64(lowest_bit(mask))
                mask &= mask - ONE
                run = k - last - 1
                last = k
                while run >= 16:
                    bits, held, at = _put(table, U(0xF0), 0, bits, held, at)
                    run -= 16
                bits, held, at = _put(table, U(run) << U(4), i16_at(block + U(2 * k)), bits, held, at)
            if last < 63:
                bits, held, at = _put(table, ZERO, 0, bits, held, at)
            block += U(128)
    return True, (bits, held, last_y, last_b, last_r, at)


@njit(nogil=True, cache=True)
def _put(table: Any, zeros: Any, value: Any, bits: Any, held: Any, at: Any) -> Any:
    """Append one Huffman symbol and the bits of ``value`` to the output. The symbol combines ``zeros``, the number of
    zeros before the value, with the number of its bits. Pending bits are written once there are 32. ``table``: address
    of the Huffman table."""
    size = bit_length(U(abs(value)))
    entry = u32_at(table + U(4) * (zeros | size))
    length = entry >> U(16)
    extra = U(value + (value >> 63)) & ((ONE << size) - ONE)
    bits = bits << (size + length) | (entry & U(0xFFFF)) << size | extra
    held += np.int64(size + length)
    if held >= 32:
        held -= 32
        word = bits >> U(held) & U(0xFFFFFFFF)
        if _holds_ff(word):
            at = _stuffed(word, at)
        else:
            put_u32(at, _swapped(word))
            at += U(4)
    return bits, held, at


@njit(nogil=True, cache=True)
def _holds_ff(word: Any) -> Any:
    """Return whether any byte of a 32-bit word is FF."""
    other = word ^ U(0xFFFFFFFF)
    return (other - U(0x01010101)) & word & U(0x80808080) != ZERO


@njit(nogil=True, cache=True)
def _swapped(word: Any) -> Any:
    return (word & BYTE) << U(24) | (word & U(0xFF00)) << U(8) | word >> U(8) & U(0xFF00) | word >> U(24)


@njit(nogil=True, cache=True)
def _stuffed(word: Any, at: Any) -> Any:
    for k in range(4):
        value = word >> U(24 - 8 * k) & BYTE
        put_u8(at, value)
        at += ONE
        if value == BYTE:
            put_u8(at, ZERO)
            at += ONE
    return at


@njit(nogil=True, cache=True)
def _finish(state: Any) -> Any:
    """Write the pending bits, completed to a byte with ones, and the marker EOI. Return the address after it."""
    bits, held, _, _, _, at = state
    fill = -held % 8
    bits = bits << U(fill) | (ONE << U(fill)) - ONE
    held += fill
    while held > 0:
        held -= 8
        value = bits >> U(held) & BYTE
        put_u8(at, value)
        at += ONE
        if value == BYTE:
            put_u8(at, ZERO)
            at += ONE
    put_u8(at, BYTE)
    put_u8(at + ONE, U(0xD9))
    return at + U(2)


# -- optimised Huffman tables -----------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def _count(coefficients: Any, gray: Any, h: Any, v: Any, mcus: Any, counts: Any) -> None:
    """Count the Huffman symbols that coding ``mcus`` MCUs would use, adding to ``counts`` [table, symbol]."""
    counts[:] = 0
    luma = h * v
    last_dc = np.zeros(3, np.int64)
    block = coefficients
    for _ in range(mcus):
        for n in range(luma if gray else luma + 2):
            c = max(n - luma + 1, 0)
            table = 2 if c else 0
            dc = np.int64(i16_at(block))
            counts[table, bit_length(U(abs(dc - last_dc[c])))] += 1
            last_dc[c] = dc
            mask = nonzero_mask(block) & ~ONE
            last = np.int64(0)
            while mask != ZERO:
                k = np.int64(lowest_bit(mask))
                mask &= mask - ONE
                run = k - last - 1
                last = k
                counts[table + 1, 0xF0] += run >> 4
                size = np.int64(bit_length(U(abs(np.int64(i16_at(block + U(2 * k)))))))
                counts[table + 1, (run & 15) << 4 | size] += 1
            if last < 63:
                counts[table + 1, 0] += 1
            block += U(128)


@njit(nogil=True, cache=True)
def _write_tables(counts: Any, gray: Any, codes: Any, at: Any) -> Any:
    """Compute optimal Huffman tables for symbols that occur ``counts`` times (T.81, K.2; between equal counts,
    libjpeg's choice). Write the codes to ``codes`` uint32[1024], and the DHT segments and the scan's header to the
    address ``at``. Return the address after these."""
    codes[:] = 0
    lengths, of_length = np.empty(257, np.int64), np.empty(64, np.int64)
    for table in range(2 if gray else 4):
        _code_lengths(counts[table], lengths, of_length)
        begin, used, code = at, 0, 0
        at += 21
        for length in range(1, 17):
            put_u8(U(begin + 4 + length), U(of_length[length]))
        # Symbols are ordered by their length before the limit of 16 bits, then by their number.
        length, left = 1, of_length[1]
        for before in range(1, lengths.max() + 1):
            for symbol in range(256):
                if lengths[symbol] == before:
                    while left == 0:
                        length += 1
                        left = of_length[length]
                        code <<= 1
                    codes[table * 256 + symbol] = length << 16 | code
                    code += 1
                    left -= 1
                    put_u8(U(at), U(symbol))
                    at += 1
                    used += 1
        put_u8(U(begin), BYTE)
        put_u8(U(begin + 1), U(0xC4))
        put_u8(U(begin + 2), U((19 + used) >> 8))
        put_u8(U(begin + 3), U(19 + used & 255))
        put_u8(U(begin + 4), U((table & 1) << 4 | table >> 1))
    components = 1 if gray else 3
    for value in (0xFF, 0xDA, 0, 6 + 2 * components, components):
        put_u8(U(at), U(value))
        at += 1
    for c in range(components):
        put_u8(U(at), U(c + 1))
        put_u8(U(at + 1), U(0x11 if c else 0))
        at += 2
    for value in (0, 63, 0):
        put_u8(U(at), U(value))
        at += 1
    return at


@njit(nogil=True, cache=True)
def _code_lengths(counts: Any, lengths: Any, of_length: Any) -> None:
    """Compute the lengths of Huffman codes. ``counts`` [257]: how often each symbol occurs; overwritten. ``lengths``
    [257]: length of each symbol's code, without the limit of 16 bits; 0 for symbols that do not occur. ``of_length``
    [64]: number of codes of each length, with the limit. Symbol 256 gets the code of all ones, which files must not
    contain."""
    counts[256] = 1
    lengths[:] = 0
    of_length[:] = 0
    group = np.arange(257)
    live = np.flatnonzero(counts)
    n = len(live)
    while n > 1:  # join the two rarest groups; among equals the highest symbol comes first
        a = b = -1
        for k in range(n):
            symbol = live[k]
            if a < 0 or counts[symbol] <= counts[live[a]]:
                a, b = k, a
            elif b < 0 or counts[symbol] <= counts[live[b]]:
                b = k
        first, second = live[a], live[b]
        counts[first] += counts[second]
        for symbol in range(257):
            if group[symbol] == first or group[symbol] == second:
                lengths[symbol] += 1
                group[symbol] = first
        n -= 1
        for k in range(b, n):
            live[k] = live[k + 1]
    for symbol in range(257):
        if lengths[symbol]:
            of_length[min(lengths[symbol], 63)] += 1
    for i in range(63, 16, -1):  # no code may be longer than 16 bits (T.81, figure K.3)
        while of_length[i]:
            j = i - 2
            while of_length[j] == 0:
                j -= 1
            of_length[i] -= 2
            of_length[i - 1] += 1
            of_length[j + 1] += 2
            of_length[j] -= 1
    i = 16
    while i > 0 and of_length[i] == 0:
        i -= 1
    if i > 0:
        of_length[i] -= 1
