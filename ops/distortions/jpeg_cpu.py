"""Compiled loops of jpeg_compression_distortion: everything that libjpeg's encoder and decoder do to images in 4:2:0
except entropy coding, which is lossless. One call per batch, without the GIL."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np

from ..codecs.jpeg.planes_cpu import PART, write_line
from ..codecs.jpeg.simd_cpu import PIXELS, put_u8, u8_at
from .jpeg_simd_cpu import rgb_to_ycc, there_and_back

U = np.uint64
UNIT = 16
"""Number of lines of pixels that are processed together: two blocks of luma, one block of each chroma channel."""
NARROW = 4
"""Maximum width of images for which libjpeg repeats chroma instead of interpolating it."""

jit = numba.njit(nogil=True, cache=True)


@jit
def _columns(upper, lower, width, luma, blue, red, edge):
    """Compute Y, Cb and Cr of two lines of ``width`` pixels; the last pixel is repeated up to a multiple of PIXELS.
    ``edge``: working memory for two lines of PIXELS pixels. All arguments but ``width`` are addresses; ``luma`` has the
    addresses of its two lines."""
    for group in range(-(-width // PIXELS)):
        x = group * PIXELS
        a, b = upper + U(3 * x), lower + U(3 * x)
        if x + PIXELS > width:
            for k in range(3 * PIXELS):
                at = U(min(k // 3, width - 1 - x) * 3 + k % 3)
                put_u8(edge + U(k), u8_at(a + at))
                put_u8(edge + U(3 * PIXELS + k), u8_at(b + at))
            a, b = edge, edge + U(3 * PIXELS)
        rgb_to_ycc(a, b, luma[0] + U(2 * x), luma[1] + U(2 * x), blue + U(x), red + U(x))


@jit
def _lay_out(height, width, pitch, parts):
    """Place the planes Y, Cb and Cr of two groups of UNIT lines in working memory. Return its size in bytes."""
    size = 0
    for c in range(3):
        part, half = parts[c], 1 if c == 0 or width <= NARROW else 2
        part.across = part.down = half
        part.width, part.height = -(-width // half), -(-height // half)
        part.plane, part.pitch, part.ring = size, pitch // half, 2 * UNIT // half - 1
        size += part.pitch * (part.ring + 1)
    return size


@jit
def distort(src, base, extents, quality, factors, dst, to):
    """Simulate JPEG compression of images of ``extents`` [N, 2] (height, width), three bytes per pixel, from
    src[base[i]:] to dst[to[i]:].

    ``factors`` [101, 2, 8, 3, 16]: for each quality those of luma and chroma, see `there_and_back`.
    """
    widest = 0
    for i in range(len(base)):
        widest = max(widest, extents[i, 1] if extents[i, 0] > 0 else 0)
    pitch = -(-widest // PIXELS) * PIXELS
    # Lines of a unit before the transform: luma, then half as many of Cb and of Cr, of half the width.
    lines, edge = np.zeros((2 * UNIT, pitch), np.int16), np.empty(6 * PIXELS, np.uint8)
    planes, few = np.empty(3 * 2 * UNIT * pitch + PIXELS, np.uint8), np.empty((8, 16), np.uint8)
    room = pitch + 3 * PIXELS
    wide, sums = np.empty((3, room), np.uint8), np.empty(room // 2 + PIXELS, np.int16)
    parts = np.zeros(3, PART)
    lines_at, edge_at, few_at = U(lines.ctypes.data), U(edge.ctypes.data), U(few.ctypes.data)
    planes_at, wide_at, sums_at = U(planes.ctypes.data), U(wide.ctypes.data), U(sums.ctypes.data)
    step = U(2 * pitch)
    for i in range(len(base)):
        height, width = extents[i, 0], extents[i, 1]
        if height == 0 or width == 0:
            continue
        source, target = U(src.ctypes.data) + U(base[i]), U(dst.ctypes.data) + U(to[i])
        table = U(factors.ctypes.data) + U(quality[i] * factors.strides[0])
        _lay_out(height, width, pitch, parts)
        window = (0, 0, height, width)
        done, units = 0, -(-height // UNIT)
        for unit in range(units):
            for k in range(UNIT // 2):
                y = unit * UNIT + 2 * k
                luma = lines_at + U(2 * k) * step, lines_at + U(2 * k + 1) * step
                blue = lines_at + U(UNIT + k) * step
                if y < height:
                    upper, lower = U(y * width * 3), U(min(y + 1, height - 1) * width * 3)
                    _columns(source + upper, source + lower, width, luma, blue, blue + U(pitch), edge_at)
                else:  # the last line of each plane is repeated
                    lines[2 * k], lines[2 * k + 1], lines[UNIT + k] = (
                        lines[2 * k - 1],
                        lines[2 * k - 1],
                        lines[UNIT + k - 1],
                    )
            for c in range(3):
                part = parts[c]
                own, first = table + U(factors.strides[1] * (c > 0)), lines_at
                if c > 0:
                    first += U(UNIT) * step + U(pitch * (c - 1))
                if c > 0 and width <= NARROW:
                    there_and_back(first, step, own, few_at, U(16))
                    for y in range(UNIT):
                        for x in range(width):
                            planes[part.plane + (unit * UNIT + y & part.ring) * part.pitch + x] = few[y // 2, x // 2]
                    continue
                for row in range(2 if c == 0 else 1):
                    line = 8 * ((2 if c == 0 else 1) * unit + row) & part.ring
                    after = planes_at + U(part.plane + line * part.pitch)
                    for x in range(0, part.width, 16):
                        before = first + U(8 * row) * step + U(2 * x)
                        there_and_back(before, step, own, after + U(x), U(part.pitch))
            # the last line also needs the chroma of the next unit
            ready = height if unit == units - 1 else (unit + 1) * UNIT - 1
            while done < ready:
                line = target + U(done * width * 3)
                write_line(done, window, parts, planes_at, wide_at, room, sums_at, 3, False, line)
                done += 1
    # keeps these arrays alive until here
    return len(lines) + len(edge) + len(planes) + len(few) + len(wide) + len(sums)
