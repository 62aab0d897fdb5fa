"""Compiled PNG decoder, for a whole batch without the GIL: built-in code for chunks, filters and pixels; libdeflate
inflates.

The decoder accepts files that are valid from the first byte to IEND; an image with anything unusual gets the status
`OTHER`, and Pillow then decodes or rejects it. So this decoder may only be stricter, never more lenient: everything
that Pillow checks is checked here (CRCs, Adler-32, the sizes of chunks, compressed texts), and pixels are equal.

Sources: PNG (W3C, 3rd ed.): clauses 5 (chunks), 7 (scanlines), 8 (interlace), 9 (filters), 11 (chunks in detail).

Memory is read and written by address. It stays in bounds because chunks are inside the file; inflated data has exactly
the size that IHDR says; rows have `PAD` bytes on both sides; pixels are written inside the window only. Numba frees an
array after its last use by name: arrays that are used by address are referred to again afterwards.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from ..jpeg.simd_cpu import put_i16, put_u8, put_u32, put_u64, u8_at, u64_at
from .samples_cpu import narrow, rounded, sample, to_three
from .simd_cpu import PAD, ROWS, call_1, call_3, call_7, unfilter_4, unfilter_8

DONE, OTHER = 0, 1
"""Values of an image's status: it was decoded, or Pillow must decode it."""

_TEXTS = 1 << 20
"""Maximum inflated bytes of all texts and colour profiles of a PNG; Pillow rejects even one text of this size."""

_IHDR, _PLTE, _IDAT, _IEND = 0x49484452, 0x504C5445, 0x49444154, 0x49454E44
_TRNS, _GAMA, _CHRM, _SRGB, _PHYS = 0x74524E53, 0x67414D41, 0x6348524D, 0x73524742, 0x70485973
_ICCP, _TEXT, _ZTXT, _ITXT = 0x69434350, 0x74455874, 0x7A545874, 0x69545874
_ACTL, _FCTL, _FDAT = 0x6163544C, 0x6663544C, 0x66644154

_ADAM7 = np.array([[0, 0, 8, 8], [0, 4, 8, 8], [4, 0, 8, 4], [0, 2, 4, 4], [2, 0, 4, 2], [0, 1, 2, 2], [1, 0, 2, 1]])
"""For each of the seven passes of an interlaced PNG: first row, first column, row step, column step (clause 8.2)."""


@njit(nogil=True, cache=True)
def _big_32(address: Any) -> Any:
    a = np.uint64(address)
    return np.int64(
        u8_at(a) << np.uint64(24) | u8_at(a + np.uint64(1)) << np.uint64(16)
        | u8_at(a + np.uint64(2)) << np.uint64(8) | u8_at(a + np.uint64(3))
    )  # fmt: skip


@njit(nogil=True, cache=True)
def _find_zero(address: Any, end: Any) -> Any:
    """Return the address of the first zero byte from ``address`` on; ``end`` if there is none before ``end``."""
    while address < end and u8_at(np.uint64(address)):
        address += 1
    return address


@njit(nogil=True, cache=True)
def _inflate(functions: Any, machine: Any, source: Any, size: Any, target: Any, most: Any, counts: Any) -> Any:
    """Inflate a zlib stream to ``target``. Return the number of bytes written, or -1 if the stream is invalid or gives
    more than ``most`` bytes."""
    status = call_7(
        functions[1], (machine, source, size, target, most, counts.ctypes.data, counts.ctypes.data + 8)
    )  # fmt: skip
    if status & 0xFFFFFFFF or counts[0] != size:
        return -1
    return counts[1]


@njit(nogil=True, cache=True)
def _text(functions: Any, machine: Any, tag: Any, at: Any, length: Any, scratch: Any, counts: Any) -> Any:
    """Return the bytes of a PNG's text or colour profile chunk after inflating it; -1 if the chunk is invalid."""
    end = at + length
    if tag == _TEXT:
        return length
    word = _find_zero(at, end)
    if word == at or end - word < 3:
        return -1
    packed = word + 2
    if tag == _ITXT:
        flag, method = u8_at(np.uint64(word + 1)), u8_at(np.uint64(word + 2))
        if flag == 0:
            return length
        if flag != 1 or method:
            return -1
        packed = _find_zero(_find_zero(word + 3, end) + 1, end) + 1
        if packed >= end:
            return -1
    elif u8_at(np.uint64(word + 1)):
        return -1
    return _inflate(functions, machine, packed, end - packed, scratch.ctypes.data, len(scratch), counts)


# Fields of `parts`: the parts of a file from which pixels are decoded.
_WIDTH, _HEIGHT, _BITS, _KIND, _INTERLACED, _COLOURS, _PALETTE, _DATA, _PACKED, _PIECES, _N_PARTS = range(11)


@njit(nogil=True, cache=True)
def _walk(
    functions: Any, machine: Any, start: Any, size: Any, parts: Any, packed: Any, pieces: Any, scratch: Any,
    counts: Any, sure: Any,
) -> Any:  # fmt: skip
    """Check all chunks of the PNG at the address ``start``, and fill ``parts`` with the facts that decoding needs, such
    as width and palette. CRCs of IDAT chunks are not checked if ``sure``. Return false if the file is invalid, or if
    ``pieces`` has too few rows.

    If ``pieces`` has rows, each IDAT chunk is listed there: byte offset in the file, byte offset in the stream, bytes.
    Otherwise the IDATs are joined in ``packed``."""
    end = start + size
    if size < 57 or _big_32(start) != 0x89504E47 or _big_32(start + 4) != 0x0D0A1A0A:
        return False
    at, data, n_packed, texts, colours, n_pieces = start + 8, 0, 0, 0, 0, 0
    while True:
        if end - at < 12:
            return False
        length, tag = _big_32(at), _big_32(at + 4)
        body = at + 8
        if length > end - at - 12:
            return False
        following = body + length + 4
        checked = sure and tag == _IDAT
        if not checked and (call_3(functions[3], (0, at + 4, length + 4)) & 0xFFFFFFFF) != _big_32(body + length):
            return False
        if tag == _IDAT:
            if at == start + 8 or (data and data != at):  # no other chunk may be between IDATs
                return False
            if len(pieces):
                if n_pieces == len(pieces):
                    return False
                pieces[n_pieces, 0], pieces[n_pieces, 1], pieces[n_pieces, 2] = body - start, n_packed, length
                n_pieces, n_packed = n_pieces + 1, n_packed + length
            elif n_packed == 0 and _big_32(following + 4 if end - following >= 8 else at + 4) != _IDAT:
                parts[_DATA], n_packed = body, length  # the only IDAT: no copy
            else:
                target = packed.ctypes.data + n_packed
                for k in range(0, length - 7, 8):
                    put_u64(np.uint64(target + k), u64_at(np.uint64(body + k)))
                for k in range(length & ~7, length):
                    packed[n_packed + k] = u8_at(np.uint64(body + k))
                parts[_DATA], n_packed = packed.ctypes.data, n_packed + length
            data = at = following
            continue
        if at == start + 8:
            parts[_WIDTH], parts[_HEIGHT] = _big_32(body), _big_32(body + 4)
            parts[_BITS], parts[_KIND] = u8_at(np.uint64(body + 8)), u8_at(np.uint64(body + 9))
            parts[_INTERLACED] = u8_at(np.uint64(body + 12))
            ways = u8_at(np.uint64(body + 10)) | u8_at(np.uint64(body + 11))
            if tag != _IHDR or length != 13 or ways or parts[_INTERLACED] > 1:
                return False
        elif tag == _IEND:
            parts[_COLOURS], parts[_PACKED], parts[_PIECES] = colours, n_packed, n_pieces
            return data and length == 0 and n_packed and following == end and (parts[_KIND] != 3 or colours)
        elif tag == _PLTE:
            if data or colours or length % 3 or not 0 < length <= 768:
                return False
            parts[_PALETTE], colours = body, length // 3
        elif tag == _TRNS:
            if data or length < (6 if parts[_KIND] == 2 else 2 if parts[_KIND] == 0 else 0):
                return False
        elif tag in (_TEXT, _ZTXT, _ITXT, _ICCP):
            found = _text(functions, machine, tag, body, length, scratch, counts)
            if found < 0:
                return False
            texts += found
            if texts >= _TEXTS:
                return False
        elif tag in (_GAMA, _CHRM, _SRGB, _PHYS):
            if length < (4 if tag == _GAMA else 32 if tag == _CHRM else 1 if tag == _SRGB else 9):
                return False
        elif tag in (_ACTL, _FCTL, _FDAT) or not tag & 0x20000000:
            return False  # an animation, or an unknown critical chunk
        else:
            for k in range(4):
                letter = tag >> 8 * k & 0xDF
                if not 0x41 <= letter <= 0x5A:
                    return False
        at = following


@njit(nogil=True, cache=True)
def _channels(kind: Any) -> Any:
    return 1 if kind == 0 or kind == 3 else 3 if kind == 2 else 2 if kind == 4 else 4


@njit(nogil=True, cache=True)
def _is_pair(bits: Any, kind: Any) -> Any:
    """Return whether PNG allows ``bits`` per sample for the colour type ``kind`` (clause 11.2.1)."""
    if kind == 0:
        return bits == 1 or bits == 2 or bits == 4 or bits == 8 or bits == 16
    if kind == 3:
        return bits == 1 or bits == 2 or bits == 4 or bits == 8
    return (kind == 2 or kind == 4 or kind == 6) and (bits == 8 or bits == 16)


_MAX_RATIO = 1032
"""Maximum number of output bytes per input byte of deflate (RFC 1951: 258 bytes from two bits)."""


@njit(nogil=True, cache=True)
def _rows_of(parts: Any) -> Any:
    """Return the bytes of an image's rows before unfiltering, in all passes. Return 0 if the colour type is invalid, or
    if the compressed stream is too short to hold these bytes."""
    width, height, bits, kind = parts[_WIDTH], parts[_HEIGHT], parts[_BITS], parts[_KIND]
    if width <= 0 or height <= 0 or not _is_pair(bits, kind):
        return np.int64(0)
    pixel, whole = bits * _channels(kind), np.int64(0)
    if parts[_INTERLACED]:
        for p in range(7):
            w = (width - _ADAM7[p, 1] + _ADAM7[p, 3] - 1) // _ADAM7[p, 3]
            h = (height - _ADAM7[p, 0] + _ADAM7[p, 2] - 1) // _ADAM7[p, 2]
            if w > 0 and h > 0:
                whole += h * (1 + ((w * pixel + 7) >> 3))
    else:
        whole = height * (1 + ((width * pixel + 7) >> 3))
    return whole if whole <= _MAX_RATIO * parts[_PACKED] else np.int64(0)


@njit(nogil=True, cache=True)
def _emit(
    row: Any, first: Any, last: Any, bits: Any, kind: Any, colours: Any, channels: Any, bgr: Any, item: Any, big: Any,
    target: Any, step: Any,
) -> Any:  # fmt: skip
    """Write pixels ``first`` ... ``last`` - 1 of an unfiltered row to ``target``, ``step`` bytes apart. Each 16-bit
    sample is written as ``item`` bytes; ``big``: its high byte is stored first. ``colours``: a palette from
    `_read_colours`. Return false if a pixel's index is not in the palette."""
    if bits == 16:
        size = _channels(kind)
        row += first * size * 2
        if item == 1 and size == channels and not bgr and step == size:
            narrow(row, (last - first) * size, big, target)
            return True
        for _ in range(first, last):
            for k in range(channels):
                at = k if size >= 3 else 0 if channels == 3 else k
                if bgr and channels == 3 and size >= 3:
                    at = 2 - k
                value = sample(row + 2 * at, big)
                if item == 2:
                    put_i16(np.uint64(target + 2 * k), value)
                else:
                    put_u8(np.uint64(target + k), rounded(value))
            row += size * 2
            target += step
        return True
    if bits == 8 and kind != 3:
        size = _channels(kind)
        if size == channels and not bgr and step == size:
            source, n = row + first * size, (last - first) * size
            for k in range(0, n - 7, 8):
                put_u64(np.uint64(target + k), u64_at(np.uint64(source + k)))
            for k in range(n & ~7, n):
                put_u8(np.uint64(target + k), u8_at(np.uint64(source + k)))
            return True
        if channels == 3 and step == 3:
            to_three(row + first * size, target, last - first, size, bgr)
            return True
        a, b, c, d = 0, 1, 2, 3  # the stored channel of each output channel
        if size < 3 and channels == 3:
            b, c = 0, 0
        elif bgr and size >= 3:
            a, c = 2, 0
        for x in range(first, last):
            source = row + x * size
            put_u8(np.uint64(target), u8_at(np.uint64(source + a)))
            if channels > 1:
                put_u8(np.uint64(target + 1), u8_at(np.uint64(source + b)))
            if channels > 2:
                put_u8(np.uint64(target + 2), u8_at(np.uint64(source + c)))
            if channels > 3:
                put_u8(np.uint64(target + 3), u8_at(np.uint64(source + d)))
            target += step
        return True
    if kind == 3:
        return _look_up(row, first, last, bits, colours, target, step)
    mask, scale = (1 << bits) - 1, 255 // ((1 << bits) - 1)
    for x in range(first, last):
        place = x * bits
        value = np.int64(u8_at(np.uint64(row + (place >> 3)))) >> (8 - bits - (place & 7)) & mask
        for k in range(channels):
            put_u8(np.uint64(target + k), np.uint64(value * scale))
        target += step
    return True


_MISSING = 1 << 24
"""Bit that marks a missing colour in a palette, above the three bytes of a colour. Equal to MISSING in
cuda/planes.cu."""


@njit(nogil=True, cache=True)
def _read_colours(palette: Any, n: Any, bgr: Any, colours: Any) -> None:
    """Read a palette of ``n`` colours from the address ``palette`` into ``colours`` [256], of any type of at least 32
    bits. Each becomes the three bytes of a pixel, the first lowest. Entries beyond ``n`` become `_MISSING`."""
    colours[:] = _MISSING
    for k in range(n):
        at = palette + 3 * k
        red, green, blue = u8_at(np.uint64(at)), u8_at(np.uint64(at + 1)), u8_at(np.uint64(at + 2))
        first, third = (blue, red) if bgr else (red, blue)
        colours[k] = np.int64(first) | np.int64(green) << 8 | np.int64(third) << 16


@njit(nogil=True, cache=True)
def _look_up(row: Any, first: Any, last: Any, bits: Any, colours: Any, target: Any, step: Any) -> Any:
    """Look up the colours of pixels ``first`` ... ``last`` - 1 of a row of palette indices, and write them to
    ``target``, ``step`` bytes apart. Return false if an index is not in the palette."""
    all_of_them = np.int64(0)
    if bits == 8 and step == 3:
        for x in range(first, last - 1):  # the fourth byte belongs to the next pixel, which is written afterwards
            colour = colours[np.int64(u8_at(np.uint64(row + x)))]
            all_of_them |= colour
            put_u32(np.uint64(target), np.uint64(colour))
            target += 3
        first = max(first, last - 1)
    for x in range(first, last):
        place = x * bits
        value = np.int64(u8_at(np.uint64(row + (place >> 3)))) >> (8 - bits - (place & 7)) & ((1 << bits) - 1)
        colour = colours[value]
        all_of_them |= colour
        put_i16(np.uint64(target), np.uint64(colour))
        put_u8(np.uint64(target + 2), np.uint64(colour >> 16))
        target += step
    return all_of_them < _MISSING


@njit(nogil=True, cache=True)
def _filter(at: Any, n: Any, k: Any, rows: Any) -> Any:
    """Return the filter type of scanline ``k`` of ``rows``, which are at the address ``at`` and have ``n`` bytes each
    after the filter type. Return 0 for a scanline beyond the last one."""
    return np.int64(u8_at(np.uint64(at + k * (n + 1)))) if k < rows else np.int64(0)


@njit(nogil=True, cache=True)
def _scanlines(
    at: Any, width: Any, height: Any, bits: Any, kind: Any, colours: Any, lines: Any, window: Any,
    down: Any, across: Any, y0: Any, x0: Any, channels: Any, bgr: Any, item: Any, target: Any, pitch: Any,
) -> Any:  # fmt: skip
    """Decode one image, or one pass of an interlaced one, from ``height`` filtered scanlines at the address ``at``.

    Pixel (y, x) of the pass is pixel (y0 + y * down, x0 + x * across) of the image. Pixels inside ``window`` are
    written to ``target + row * pitch + column * channels * item``, with row and column counted in the whole image.
    Return false if a filter type or palette index is invalid."""
    size, pixel = channels * item, bits * _channels(kind)
    n, step = (width * pixel + 7) >> 3, max(1, pixel >> 3)
    steps, wide = (n + step - 1) // step, n + 2 * PAD
    base = lines.ctypes.data + PAD
    for k in range(wide + PAD):
        lines[k] = 0
    first = min(max((window[1] - x0 + across - 1) // across, 0), width)
    last = min(max((window[3] - x0 + across - 1) // across, first), width)
    for y in range(0, height, ROWS):
        rows = min(ROWS, height - y)
        filters = (
            _filter(at, n, 0, rows), _filter(at, n, 1, rows), _filter(at, n, 2, rows), _filter(at, n, 3, rows),
            _filter(at, n, 4, rows), _filter(at, n, 5, rows), _filter(at, n, 6, rows), _filter(at, n, 7, rows),
        )  # fmt: skip
        if max(filters) > 4:
            return False
        first_row, pitch_of_rows = base + wide, wide
        for k in range(PAD):  # left of the image, all pixels are 0
            lines[k] = 0
        if max(filters) == 0:  # no filters, as in most palette images: the rows are used as they are
            first_row, pitch_of_rows = at + 1, n + 1
        elif step <= 4:
            unfilter_4(at + 1, n + 1, base + wide, wide, steps + ROWS - 1, step, filters)
        else:
            unfilter_8(at + 1, n + 1, base + wide, wide, steps + ROWS - 1, step, filters)
        at += rows * (n + 1)
        for k in range(rows):
            row = y0 + (y + k) * down
            if window[0] <= row < window[2] and first < last:
                place = target + row * pitch + (x0 + first * across) * size
                if not _emit(first_row + k * pitch_of_rows, first, last, bits, kind, colours, channels, bgr, item, True,
                             place, across * size):  # fmt: skip
                    return False
        if y + ROWS < height:  # the last row is above the first of the next ones
            above = first_row + (ROWS - 1) * pitch_of_rows
            for k in range(0, n, 8):
                put_u64(np.uint64(base + k), u64_at(np.uint64(above + k)))
    return True


@njit(nogil=True, cache=True)
def decode_images(
    functions: Any, raw: Any, offsets: Any, sizes: Any, windows: Any, channels: Any, bgr: Any, item: Any, dst: Any,
    origins: Any, pitches: Any, status: Any,
) -> None:  # fmt: skip
    """Decode N PNGs; see `native_loops` for the arguments. ``functions`` are addresses of libdeflate's functions. They
    are 0 if libdeflate is missing: all images then get the status `OTHER`."""
    most: Any = np.int64(0)
    for i in range(len(sizes)):
        most = max(most, sizes[i])
    machine = call_1(functions[0], (0,)) if functions[0] else 0
    packed, scratch = np.empty(most + 16, np.uint8), np.empty(_TEXTS, np.uint8)
    filtered, lines = np.empty(0, np.uint8), np.empty(0, np.uint8)
    counts, parts, window = np.zeros(2, np.int64), np.zeros(_N_PARTS, np.int64), np.zeros(4, np.int64)
    pieces, colours = np.empty((0, 3), np.int64), np.empty(256, np.int64)
    for i in range(len(sizes)):
        status[i] = OTHER
        if machine == 0 or not _walk(functions, machine, raw.ctypes.data + offsets[i], sizes[i], parts, packed,
                                     pieces, scratch, counts, False):  # fmt: skip
            continue
        width, height, bits, kind = parts[_WIDTH], parts[_HEIGHT], parts[_BITS], parts[_KIND]
        whole, pixel = _rows_of(parts), bits * _channels(kind)
        if whole == 0 or (item == 2 and bits != 16) or (kind == 3 and channels[i] != 3):
            continue
        row = (width * pixel + 7) >> 3
        if len(filtered) < whole + 2 * PAD + ROWS * row:
            filtered = np.empty(whole + 2 * PAD + ROWS * (row + PAD), np.uint8)
        if len(lines) < (ROWS + 1) * (row + 2 * PAD) + PAD:
            lines = np.empty((ROWS + 1) * (row + 2 * PAD) + PAD, np.uint8)
        at = filtered.ctypes.data + PAD
        if _inflate(functions, machine, parts[_DATA], parts[_PACKED], at, whole, counts) != whole:
            continue
        for k in range(4):
            window[k] = windows[i, k]
        if kind == 3:
            _read_colours(parts[_PALETTE], parts[_COLOURS], bgr, colours)
        target, sound = dst.ctypes.data + origins[i], True
        for p in range(7 if parts[_INTERLACED] else 1):
            w, h, y0, x0, down, across = width, height, 0, 0, 1, 1
            if parts[_INTERLACED]:
                y0, x0, down, across = _ADAM7[p, 0], _ADAM7[p, 1], _ADAM7[p, 2], _ADAM7[p, 3]
                w, h = (width - x0 + across - 1) // across, (height - y0 + down - 1) // down
            if w <= 0 or h <= 0:
                continue
            sound = sound and _scanlines(
                at, w, h, bits, kind, colours, lines, window, down, across, y0, x0,
                channels[i], bgr, item, target, pitches[i],
            )  # fmt: skip
            at += h * (1 + ((w * pixel + 7) >> 3))
        if sound:
            status[i] = DONE
    if machine:
        call_1(functions[2], (machine,))
    _keep(packed, scratch, filtered, lines, raw, dst, counts)


@njit(nogil=True, cache=True)
def _keep(packed: Any, scratch: Any, filtered: Any, lines: Any, raw: Any, dst: Any, counts: Any) -> Any:
    """Do nothing. A call after the last use of these arrays' addresses keeps Numba from freeing the arrays earlier."""
    return len(packed) + len(scratch) + len(filtered) + len(lines) + len(raw) + len(dst) + len(counts)
