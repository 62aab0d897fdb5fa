"""Compiled loops of the augmentation operators: every image passes through its own operations, one call per batch,
without the GIL."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np

from ..color.linear import _FROM_YIQ, _TO_YIQ
from ..color.tables_cpu import equalized

jit = numba.njit(nogil=True, cache=True)

IDENTITY, BRIGHTNESS, POSTERIZE, SOLARIZE, SOLARIZE_ADD, INVERT, CONTRAST, EQUALIZE, AUTO_CONTRAST, COLOR = range(10)
SHARPNESS, ROTATE, SHEAR, TRANSLATE, TRANSLATE_RELATIVE = range(10, 15)
"""Codes of operations that change geometry or sharpness: indices in `suites.OPERATIONS`."""
WARP = ROTATE
"""Code of an affine warp, to which `plan` translates rotation, shear and translations; also in cuda/augment.cu."""

_GRAY = np.ascontiguousarray(np.outer(_FROM_YIQ[:, 0], _TO_YIQ[0])).astype(np.float32)
_CHROMA = np.ascontiguousarray(_FROM_YIQ[:, 1:] @ _TO_YIQ[1:]).astype(np.float32)

_OUTSIDE = np.float32(1 << 24)
"""A coordinate that lies outside of every image."""


@jit
def plan(codes, numbers, rows, columns, channels, spans, kinds, values):
    """Convert the random operations of each image to steps, without those that change nothing: ``kinds`` [N, K],
    IDENTITY after the last, and their parameters ``values`` [N, K, 9].

    ``codes`` [N, K] and ``numbers`` [N, K, 9] are the operations and their parameters, ``spans`` [N, 2] the heights and
    widths to which relative translations refer.
    """
    for i in range(len(codes)):
        at = 0
        for k in range(codes.shape[1]):
            code, p = codes[i, k], numbers[i, k]
            out = values[i, at]
            out[:] = p
            if code >= ROTATE:
                if code == ROTATE:
                    radians = np.float64(p[0] * np.float32(np.pi / 180))
                    cos, sin = np.cos(radians), np.sin(radians)
                    x, y = columns[i] / 2, rows[i] / 2
                    out[0], out[1], out[2] = cos, -sin, x - cos * x + sin * y
                    out[3], out[4], out[5] = sin, cos, y - sin * x - cos * y
                elif code == SHEAR:
                    a, b = p[0], p[1]
                    flat = 1 - np.float64(a) * np.float64(b)
                    if flat == 0:  # the image collapses to a line: no pixel comes from inside
                        out[:6] = 0
                        out[2] = out[5] = -_OUTSIDE
                    else:
                        scale = 1 / flat
                        out[0], out[1], out[2] = scale, -a * scale, 0
                        out[3], out[4], out[5] = -b * scale, scale, 0
                else:
                    dx, dy = p[0], p[1]
                    if code == TRANSLATE_RELATIVE:
                        dx, dy = dx * np.float32(spans[i, 1]), dy * np.float32(spans[i, 0])
                    out[0], out[1], out[2] = 1, 0, -dx
                    out[3], out[4], out[5] = 0, 1, -dy
                code = WARP
                if out[0] == 1 and out[1] == 0 and out[2] == 0 and out[3] == 0 and out[4] == 1 and out[5] == 0:
                    continue
            elif code == COLOR:
                if channels[i] != 3:
                    continue
                saturation = p[0]
                for j in range(9):
                    out[j] = _GRAY[j // 3, j % 3] + saturation * _CHROMA[j // 3, j % 3]
            elif code == IDENTITY:
                continue
            kinds[i, at] = code
            at += 1
        for k in range(at, codes.shape[1]):
            kinds[i, k] = IDENTITY


@jit
def _level(value):
    """Convert a float32 to a byte: rounded half away from zero and saturated."""
    v = min(max(value, np.float32(0)), np.float32(255))
    t = np.int32(v)
    return np.uint8(t + np.int32(v - np.float32(t) >= np.float32(0.5)))


@jit
def _count(image, channels, counts):
    """Count how often each byte occurs in each channel of ``image``: ``counts`` [channels, 256]."""
    counts[:] = 0
    if channels == 3:
        for x in range(len(image) // 3):
            counts[0, image[3 * x]] += 1
            counts[1, image[3 * x + 1]] += 1
            counts[2, image[3 * x + 2]] += 1
    else:
        for x in range(len(image)):
            counts[x % channels, image[x]] += 1


@jit
def _stretched(counts, table):
    """Fill a table of new values for auto contrast: the smallest value in ``counts`` becomes 0, the largest 255."""
    low, high = 0, 255
    while low < 255 and counts[low] == 0:
        low += 1
    while high > 0 and counts[high] == 0:
        high -= 1
    if high <= low:
        for v in range(256):
            table[v] = v
        return
    scale = np.float32(255) / np.float32(high - low)
    for v in range(256):
        table[v] = _level(np.float32(max(v - low, 0)) * scale)


_WEIGHTS = np.array([0.299, 0.587, 0.114], np.float32)


@jit
def _center(counts, channels, total):
    """Return the mean of all pixels from the channels' histograms, with channels weighted as for luma."""
    center = np.float32(0)
    for c in range(channels):
        sum_ = np.int64(0)
        for v in range(256):
            sum_ += v * np.int64(counts[c, v])
        mean = np.float32(np.float64(sum_) / total)
        center += mean * (_WEIGHTS[c] if channels == 3 else np.float32(1) / np.float32(channels))
    return center


@jit
def tables(kind, p, image, channels, counts, table):
    """Fill ``table`` [channels, 256] with the result of step ``kind`` for each byte of each channel."""
    if kind >= CONTRAST:
        _count(image, channels, counts)
        total = len(image) // channels
        if kind == CONTRAST:
            center = _center(counts, channels, total)
            for v in range(256):
                table[0, v] = _level(center + (np.float32(v) - center) * p[0])
            for c in range(1, channels):
                table[c] = table[0]
        else:
            for c in range(channels):
                if kind == EQUALIZE:
                    equalized(counts[c], total, table[c])
                else:
                    _stretched(counts[c], table[c])
        return
    for v in range(256):
        if kind == BRIGHTNESS:
            table[0, v] = _level(p[0] * np.float32(v))
        elif kind == POSTERIZE:
            table[0, v] = v & np.int32(p[0])
        elif kind == SOLARIZE:
            table[0, v] = v if np.float32(v) < p[0] else 255 - v
        elif kind == SOLARIZE_ADD:
            table[0, v] = v + np.int32(p[0]) if v < 128 else v
        else:
            table[0, v] = 255 - v
    for c in range(1, channels):
        table[c] = table[0]


@jit
def _look_up(source, table, channels, out):
    if channels == 3:
        a, b, c = table[0], table[1], table[2]
        for x in range(len(source) // 3):
            out[3 * x] = a[source[3 * x]]
            out[3 * x + 1] = b[source[3 * x + 1]]
            out[3 * x + 2] = c[source[3 * x + 2]]
    else:
        for x in range(len(source)):
            out[x] = table[x % channels, source[x]]


@jit
def _mix(source, m, out):
    for x in range(len(source) // 3):
        u, v, w = np.float32(source[3 * x]), np.float32(source[3 * x + 1]), np.float32(source[3 * x + 2])
        out[3 * x] = _level(m[0] * u + m[1] * v + m[2] * w)
        out[3 * x + 1] = _level(m[3] * u + m[4] * v + m[5] * w)
        out[3 * x + 2] = _level(m[6] * u + m[7] * v + m[8] * w)


@jit
def _mirrored(i, n):
    """Return the index of position ``i``, -1 ... n, in a line of ``n`` values that is mirrored without its ends."""
    if n == 1:
        return 0
    return -i if i < 0 else 2 * n - 2 - i if i >= n else i


@jit
def _filter(source, rows, columns, channels, k, out):
    """Apply the 3x3 filter ``k`` (correlation); borders mirror the image without repeating its edge."""
    width = columns * channels
    sums = np.empty(width, np.float32)
    for y in range(rows):
        sums[:] = 0
        for j in range(3):
            line = source[_mirrored(y + j - 1, rows) * width : (_mirrored(y + j - 1, rows) + 1) * width]
            a, b, c = k[3 * j], k[3 * j + 1], k[3 * j + 2]
            left, right = _mirrored(-1, columns) * channels, _mirrored(columns, columns) * channels
            before, middle, after, total = line, line[channels:], line[2 * channels :], sums[channels:]
            for x in range(width - 2 * channels):
                total[x] += a * np.float32(before[x]) + b * np.float32(middle[x]) + c * np.float32(after[x])
            for x in range(channels):
                beyond = line[min(channels, width - channels) + x] if columns > 1 else line[x]
                sums[x] += a * np.float32(line[left + x]) + b * np.float32(line[x]) + c * np.float32(beyond)
                if columns > 1:
                    e = width - channels + x
                    u, v, w = np.float32(line[e - channels]), np.float32(line[e]), np.float32(line[right + x])
                    sums[e] += a * u + b * v + c * w
        o = out[y * width : (y + 1) * width]
        for x in range(width):
            o[x] = _level(sums[x])


@jit
def _cell(value, limit):
    """Return the integer below ``value``, clipped to the range -1 ... ``limit``."""
    return np.int32(np.floor(min(max(value, np.float32(-2)), np.float32(limit + 1))))


@jit
def _sample(source, rows, columns, channels, sx, sy, linear, filled, fill, out, o):
    """Write one output pixel, interpolated in the source image at (sx, sy)."""
    if not linear:
        x, y = _cell(sx, columns), _cell(sy, rows)
        outside = filled and (x < 0 or y < 0 or x >= columns or y >= rows)
        at = (min(max(y, 0), rows - 1) * columns + min(max(x, 0), columns - 1)) * channels
        for c in range(channels):
            out[o + c] = fill if outside else source[at + c]
        return
    px, py = sx - np.float32(0.5), sy - np.float32(0.5)
    x, y = _cell(px, columns), _cell(py, rows)
    if filled and (x < -1 or y < -1 or x >= columns or y >= rows):
        for c in range(channels):
            out[o + c] = np.uint8(fill)
        return
    fx = min(max(px - np.float32(x), np.float32(0)), np.float32(1))
    fy = min(max(py - np.float32(y), np.float32(0)), np.float32(1))
    west, east, north, south = 0 <= x < columns, 0 <= x + 1 < columns, 0 <= y < rows, 0 <= y + 1 < rows
    left, right = min(max(x, 0), columns - 1) * channels, min(max(x + 1, 0), columns - 1) * channels
    top, bottom = min(max(y, 0), rows - 1) * columns * channels, min(max(y + 1, 0), rows - 1) * columns * channels
    for c in range(channels):
        p, q = np.float32(source[top + left + c]), np.float32(source[top + right + c])
        r, s = np.float32(source[bottom + left + c]), np.float32(source[bottom + right + c])
        if filled:
            p, q = p if west and north else fill, q if east and north else fill
            r, s = r if west and south else fill, s if east and south else fill
        upper, lower = p + (q - p) * fx, r + (s - r) * fx
        out[o + c] = _level(upper + (lower - upper) * fy)


@jit
def _inside(start, step, low, high, columns):
    """Return the range [first, last) of columns x for which ``start + step * x`` certainly lies in [low, high]."""
    if step == 0:
        return (0, columns) if low <= start <= high else (0, 0)
    a, b = (low - start) / step, (high - start) / step
    first, last = min(a, b), max(a, b)
    first, last = max(first + np.float32(1), np.float32(0)), min(last - np.float32(1), np.float32(columns))
    return (np.int64(first), max(np.int64(last), np.int64(first))) if last > first else (0, 0)


@jit
def _warp(source, rows, columns, channels, m, linear, filled, fill, out):
    """Warp an image: each output pixel is read where the affine map ``m`` (two rows of three) maps its centre."""
    half, step, three = np.float32(0.5), columns * channels, np.uint64(3)
    for y in range(rows):
        v = np.float32(y) + half
        ax, ay = m[1] * v + m[2], m[4] * v + m[5]
        first, last = 0, 0
        if linear and channels == 3:
            first, last = _inside(ax, m[0], np.float32(0.5), np.float32(columns - 1), columns)
            first_y, last_y = _inside(ay, m[3], np.float32(0.5), np.float32(rows - 1), columns)
            first, last = max(first, first_y), min(last, last_y)
            last = max(first, last)
        for x in range(first):
            u = np.float32(x) + half
            o = (y * columns + x) * channels
            _sample(source, rows, columns, channels, m[0] * u + ax, m[3] * u + ay, linear, filled, fill, out, o)
        for x in range(first, last):  # all four neighbours exist
            u = np.float32(x) + half
            px, py = m[0] * u + ax - half, m[3] * u + ay - half
            i, j = np.uint32(px), np.uint32(py)
            fx, fy = px - np.float32(i), py - np.float32(j)
            at = np.uint64(j) * np.uint64(step) + np.uint64(3) * np.uint64(i)  # unsigned: no check for a sign
            below, o = at + np.uint64(step), np.uint64((y * columns + x) * 3)
            for c in range(np.uint64(3)):
                p, q = np.float32(source[at + c]), np.float32(source[at + three + c])
                r, s = np.float32(source[below + c]), np.float32(source[below + three + c])
                upper, lower = p + (q - p) * fx, r + (s - r) * fx
                out[o + c] = np.uint8(upper + (lower - upper) * fy + half)
        for x in range(last, columns):
            u = np.float32(x) + half
            o = (y * columns + x) * channels
            _sample(source, rows, columns, channels, m[0] * u + ax, m[3] * u + ay, linear, filled, fill, out, o)


@jit
def augment(src, base, geometry, kinds, values, linear, filled, fill, dst, out_base):
    """Apply the steps of `plan` to each image; ``geometry`` [N, 4] holds its frames, rows, columns and channels."""
    largest = 0
    for i in range(len(base)):
        largest = max(largest, geometry[i, 1] * geometry[i, 2] * geometry[i, 3])
    first, second = np.empty(largest, np.uint8), np.empty(largest, np.uint8)
    counts, table = np.empty((4, 256), np.int32), np.empty((4, 256), np.uint8)
    for i in range(len(base)):
        frames, rows, columns, channels = geometry[i]
        size = rows * columns * channels
        steps = 0
        while steps < kinds.shape[1] and kinds[i, steps] != IDENTITY:
            steps += 1
        for frame in range(frames):
            source = src[base[i] + frame * size : base[i] + (frame + 1) * size]
            target = dst[out_base[i] + frame * size : out_base[i] + (frame + 1) * size]
            if steps == 0:
                target[:] = source
            for k in range(steps):
                out = target if k == steps - 1 else first[:size] if k % 2 == 0 else second[:size]
                kind, p = kinds[i, k], values[i, k]
                if kind == WARP:
                    _warp(source, rows, columns, channels, p, linear, filled, fill, out)
                elif kind == SHARPNESS:
                    _filter(source, rows, columns, channels, p, out)
                elif kind == COLOR:
                    _mix(source, p, out)
                else:
                    tables(kind, p, source, channels, counts, table)
                    _look_up(source, table, channels, out)
                source = out
