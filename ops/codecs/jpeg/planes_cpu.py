"""Compiled functions that plan a JPEG's components on the CPU, and convert their samples to pixels: planes of samples,
upsampling, colour.

Shared by the decoders of scans (`baseline_cpu`, `progressive_cpu`); bit-identical to libjpeg-turbo.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .header import GRAY, YCBCR
from .simd_cpu import PIXELS, blend_columns, blend_rows, put_i16, put_u8, put_u64, u8_at, u16_at, u64_at, ycc_to_rgb

U = np.uint64
PART = np.dtype(
    [(name, np.int64) for name in ("h", "v", "across", "down", "width", "height", "top", "bottom", "left", "right")]
    + [(name, np.int64) for name in ("plane", "pitch", "ring", "dc_slot", "ac_slot", "previous")]
)
"""Layout of one colour component while an image is decoded: sampling factors; pixels that a sample covers in each
direction; size in samples; the needed blocks (first and end of rows and columns); position, pitch and mask (``ring``)
of its buffer for the latest rows, where row y is at index y & ring; indices of its tables; last DC value."""


@njit(nogil=True, cache=True)
def is_common(row: Any) -> Any:
    """Return whether the compiled loops support an image: gray, or YCbCr whose chroma is full size, halved in width, or
    halved in both directions; with 8-bit quantisation tables."""
    if row.quant_16bit != 0:
        return False
    if row.components == 1:
        return row.colour == GRAY
    if row.components != 3 or row.colour != YCBCR:
        return False
    h, v = row.h[0], row.v[0]
    plain = row.h[1] == 1 and row.v[1] == 1 and row.h[2] == 1 and row.v[2] == 1
    shape = (h == 1 and v == 1) or (h == 2 and v == 1) or (h == 2 and v == 2)
    return plain and shape and (h == 1 or row.width > 4)  # libjpeg repeats the chroma of narrower images


@njit(nogil=True, cache=True)
def lay_out(row: Any, window: Any, channels: Any, h_max: Any, v_max: Any, parts: Any) -> Any:
    """Fill in ``parts``, one row per colour component: the needed blocks, and the position of its buffer. Blocks are
    needed that contain the window, and one more sample on each side if upsampling reads it. Return the bytes of all
    buffers.

    A buffer holds two rows of MCUs. Pixels are computed when their MCUs have been read, except the last row, for which
    upsampling also needs the next MCUs."""
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
            part.ring = 16 * part.v - 1
            size += part.pitch * 16 * part.v
    return size


@njit(nogil=True, cache=True)
def write_line(
    y: Any, window: Any, parts: Any, planes: Any, lines: Any, room: Any, sums: Any, channels: Any, bgr: Any, target: Any
) -> None:  # fmt: skip
    """Convert row y of the window from the samples of all components to pixels, and write it to ``target``. ``planes``,
    ``lines`` (three of ``room`` bytes), ``sums`` and ``target`` are addresses: an array view would be a counted
    reference, which costs as much as a dozen pixels."""
    x0, x1 = window[1], window[3]
    wide = x1 - x0
    luma = planes + U(_sample(parts[0], y, x0))
    few = lines + U(2 * room)
    if channels == 1:
        for x in range(0, wide - 7, 8):
            put_u64(target + U(x), u64_at(luma + U(x)))
        for x in range(wide // 8 * 8, wide):
            put_u8(target + U(x), u8_at(luma + U(x)))
        return
    if len(parts) == 1:
        for x in range(wide):
            value = u8_at(luma + U(x))
            for c in range(3):
                put_u8(target + U(3 * x + c), value)
        return
    if parts[1].across == 1:
        second = planes + U(_sample(parts[1], y, x0))
        third = planes + U(_sample(parts[2], y, x0))
    else:
        second, third = lines, lines + U(room)
        _upsample(y, x0, x1, parts[1], planes, second, sums)
        _upsample(y, x0, x1, parts[2], planes, third, sums)
        second += U(x0 & 1)
        third += U(x0 & 1)
    place = target if wide >= PIXELS else few
    for group in range(-(-wide // PIXELS)):
        x = max(min(group * PIXELS, wide - PIXELS), 0)  # the last group overlaps the one before it
        ycc_to_rgb(luma + U(x), second + U(x), third + U(x), place + U(3 * x), bgr)
    if wide < PIXELS:
        for k in range(3 * wide):
            put_u8(target + U(k), u8_at(few + U(k)))


@njit(nogil=True, cache=True)
def _sample(part: Any, y: Any, x: Any) -> Any:
    """Return the byte offset, in the buffers of all components, of sample (y, x) of the component ``part``."""
    return part.plane + (y & part.ring) * part.pitch + x - 8 * part.left


@njit(nogil=True, cache=True)
def _upsample(y: Any, x0: Any, x1: Any, part: Any, planes: Any, target: Any, sums: Any) -> None:
    """Upsample row y of a component by libjpeg's fancy upsampling, from column x0 (made even) to before x1. The
    component has half the image's width, and perhaps half its height. In each direction, a result is 3/4 of the nearer
    sample and 1/4 of the farther one; the rounding constant alternates. Beyond the component's border, its last sample
    is repeated."""
    begin, n = x0 // 2, (x1 - 1) // 2 - x0 // 2 + 1
    near = y // part.down
    far = near
    if part.down == 2:
        far = min(max(near + (1 if y & 1 else -1), 0), part.height - 1)
    low, high = max(begin - 1, 0), min(begin + n, part.width - 1)  # columns, both included
    one, other = planes + U(_sample(part, near, low)), planes + U(_sample(part, far, low))
    blended = sums + U(2 * (low - (begin - 1)))
    for k in range(0, high + 1 - low, PIXELS):  # and more samples than there are, beyond the end
        blend_rows(one + U(k), other + U(k), blended + U(2 * k))
    if low > begin - 1:
        put_i16(sums, u16_at(sums + U(2)))
    if high < begin + n:
        put_i16(sums + U(2 * n + 2), u16_at(sums + U(2 * n)))
    # At full height `near` and `far` are the same: the sums are four times the samples, and the constants differ.
    even, odd = (8, 7) if part.down == 2 else (4, 8)
    blended = sums + U(2)
    for k in range(0, n, PIXELS):
        blend_columns(blended + U(2 * k), target + U(2 * k), even, odd)
