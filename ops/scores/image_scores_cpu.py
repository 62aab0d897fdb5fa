"""The CPU loop of image_scores: one pass over the rows of each image, all images in one call, without the GIL."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np

PHASH, DHASH, SHARPNESS, ENTROPY, BRIGHTNESS, SATURATION, BORDER = (1 << k for k in range(7))
"""Bits of the mask ``wanted``, one per score, in the order of `image_scores.SCORES`."""

TILE = 1024
"""Number of pixels whose squared Laplacians are added in 32 bits: 1024 times 1020^2 is below 2^31."""

LAPLACIAN, SQUARES, COLOUR, LIGHT = range(4)
"""Indices in the array of sums over an image's pixels: of the Laplacian, of its squares, of HSV's saturation, and of
the gray levels."""

jit = numba.njit(nogil=True, cache=True)


@jit
def _gray(pixels, channels, line):
    """Write the gray levels of a row of pixels to ``line``."""
    if channels == 1:
        line[:] = pixels
        return
    for x in range(len(line)):
        k = np.uint64(3 * x)  # unsigned indices are not tested for counting from the end
        r, g, b = np.uint32(pixels[k]), np.uint32(pixels[k + np.uint64(1)]), np.uint32(pixels[k + np.uint64(2)])
        weighted = r * np.uint32(19595) + g * np.uint32(38470) + b * np.uint32(7471)
        line[x] = np.uint8((weighted + np.uint32(32768)) >> np.uint32(16))


@jit
def _count(line, counts):
    for x in range(len(line)):
        counts[line[x]] += 1


@jit
def _laplacian(up, line, down):
    """Return the sums of the Laplacian and of its squares over a row. ``line`` has one more pixel at each end than
    ``up`` and ``down``."""
    total, squares, n = np.int64(0), np.int64(0), len(up)
    for first in range(0, n, TILE):
        last = min(n, first + TILE)
        above, below, here = up[first:last], down[first:last], line[first + 1 : last + 1]
        left, right = line[first:last], line[first + 2 : last + 2]
        some, more = np.int32(0), np.int32(0)
        for x in range(last - first):
            around = np.int32(above[x]) + np.int32(below[x]) + np.int32(left[x]) + np.int32(right[x])
            v = around - np.int32(4) * np.int32(here[x])
            some += v
            more += v * v
        total += some
        squares += more
    return total, squares


@jit
def _saturation(pixels):
    """Return the sum of HSV's saturation over a row. float32 suffices: 255 (max - min) / max is exact if its fraction
    is 1/2; otherwise it differs from such a value by more than a rounding error."""
    total, n = np.int64(0), len(pixels) // 3
    for first in range(0, n, TILE):
        some = np.int32(0)
        for x in range(first, min(n, first + TILE)):
            k = np.uint64(3 * x)
            r, g, b = np.int32(pixels[k]), np.int32(pixels[k + np.uint64(1)]), np.int32(pixels[k + np.uint64(2)])
            most = max(r, max(g, b))
            spread = np.float32(255 * (most - min(r, min(g, b))))
            some += np.int32(spread / np.float32(max(most, np.int32(1))) + np.float32(0.5))
        total += some
    return total


@jit
def _bounds(line, y, first, last, tolerance, bounds):
    """Update ``bounds`` (top, left, bottom, right: indices of the first and last pixels that are not border) with row
    ``y``. A pixel is border at the top and left if it differs from ``first``, the image's first pixel, by at most
    ``tolerance``; at the bottom and right, if it differs so from ``last``."""
    n = len(line)
    for x in range(n if y < bounds[0] else bounds[1]):
        if abs(np.int32(line[x]) - first) > tolerance:
            bounds[0], bounds[1] = min(bounds[0], y), min(bounds[1], x)
            break
    for x in range(n - 1, -1, -1):
        if abs(np.int32(line[x]) - last) > tolerance:
            bounds[2], bounds[3] = y, max(bounds[3], x)
            break


@jit
def _across(columns, line, whole, part, cells, to):
    """Write one row of the integral image to ``to``: sums over the rectangles from the image's top left corner to each
    of the ``cells`` + 1 column boundaries of the cells. Rows above are already summed in ``columns``, and count
    ``whole`` times; the row ``line`` counts ``part`` times."""
    n, at, total = len(columns), 0, np.int64(0)
    for k in range(cells + 1):
        end, rest = k * n // cells, k * n % cells
        for x in range(at, end):
            total += np.int64(columns[x]) * whole + np.int64(line[x]) * part
        at = end
        to[k] = total * cells
        if rest:
            to[k] += rest * (np.int64(columns[end]) * whole + np.int64(line[end]) * part)


@jit
def _means(integral, area, gray):
    """Write the mean of each cell of the image, rounded half up, from the integral image at the cells' corners;
    ``area`` is a cell's area in the integral's units."""
    for i in range(gray.shape[0]):
        for j in range(gray.shape[1]):
            cell = integral[i + 1, j + 1] - integral[i, j + 1] - integral[i + 1, j] + integral[i, j]
            gray[i, j] = np.uint8((cell + area // 2) // area)


@jit
def _phash(gray, cosines):
    lines, found = np.zeros((32, 8), np.int64), np.zeros(64, np.int64)
    for y in range(32):
        for k in range(8):
            total = np.int64(0)
            for x in range(32):
                total += np.int64(gray[y, x]) * np.int64(cosines[k, x])
            lines[y, k] = total
    for v in range(8):
        for y in range(32):
            for k in range(8):
                found[8 * v + k] += lines[y, k] * np.int64(cosines[v, y])
    bits = np.uint64(0)
    for i in range(64):  # above the median if 32 others are smaller, ties with the middle ones included
        smaller = np.int64(0)
        for j in range(64):
            smaller += np.int64(found[j] < found[i])
        bits = bits << np.uint64(1) | np.uint64(smaller >= 32)
    return bits


@jit
def _dhash(gray):
    bits = np.uint64(0)
    for i in range(8):
        for j in range(8):
            bits = bits << np.uint64(1) | np.uint64(gray[i, j + 1] > gray[i, j])
    return bits


@jit
def _log2(n, logs):
    """Return log2 of a whole number above 0, in units of 2^-24, interpolated between 1,025 values."""
    exponent = np.int64(0)
    while n >> exponent > 1:
        exponent += 1
    mantissa = n << (40 - exponent)
    k, rest = (mantissa >> 30) & 1023, mantissa & ((1 << 30) - 1)
    low, high = np.int64(logs[k]), np.int64(logs[k + 1])
    return (exponent << 24) + low + (((high - low) * rest + (1 << 29)) >> 30)


@jit
def _entropy(counts, pixels, logs):
    total = pixels * _log2(pixels, logs)
    for v in range(256):
        if counts[v]:
            total -= counts[v] * _log2(counts[v], logs)
    return np.float32(np.float64(max(total, 0)) / np.float64(pixels) / 16777216.0)


@jit
def _hashed(line, y, rows, columns, next_, cells, across, integral):
    """Compute the rows of the integral image at those row boundaries of the hash's cells that lie within image row
    ``y``. Return the number of the next boundary."""
    while next_ <= cells and next_ * rows // cells == y:
        _across(columns, line, np.int64(cells), np.int64(next_ * rows % cells), across, integral[next_])
        next_ += 1
    return next_


@jit
def _sharpen(lines, y, rows, width, sums):
    """Add the sums of the Laplacian for rows whose neighbours are both known once row ``y`` is in ``lines``. Ends of
    rows are mirrored without repeating the edge."""
    line, before, earlier = lines[y % 3], lines[(y - 1) % 3], lines[(y - 2) % 3]
    line[0], line[width + 1] = line[1 + min(1, width - 1)], line[1 + max(width - 2, 0)]
    if y:
        up = earlier if y > 1 else line
        total, squares = _laplacian(up[1 : width + 1], before, line[1 : width + 1])
        sums[LAPLACIAN] += total
        sums[SQUARES] += squares
    if y == rows - 1:
        up = before if y else line
        total, squares = _laplacian(up[1 : width + 1], line, up[1 : width + 1])
        sums[LAPLACIAN] += total
        sums[SQUARES] += squares


@jit
def _walk(image, rows, width, channels, wanted, tolerance, sums, counts, bounds, large, small):
    """Visit each row of a non-empty image once, and fill the last five arrays with the sums that the scores in
    ``wanted`` need."""
    pitch, coarse, fine = width * channels, 0, 0
    lines, columns = np.zeros((3, width + 2), np.uint8), np.zeros(width, np.uint32)
    corners = np.zeros(2, np.uint8)
    _gray(image[:channels], channels, corners[:1])
    _gray(image[len(image) - channels :], channels, corners[1:])
    sums[:], counts[:] = 0, 0
    bounds[0], bounds[1], bounds[2], bounds[3] = rows, width, -1, -1
    for y in range(rows):
        pixels, line = image[y * pitch : (y + 1) * pitch], lines[y % 3][1 : width + 1]
        _gray(pixels, channels, line)
        if wanted & PHASH:
            coarse = _hashed(line, y, rows, columns, coarse, 32, 32, large)
        if wanted & DHASH:
            fine = _hashed(line, y, rows, columns, fine, 8, 9, small)
        if wanted & (PHASH | DHASH | BRIGHTNESS):
            for x in range(width):
                columns[x] += line[x]
        if wanted & SHARPNESS:
            _sharpen(lines, y, rows, width, sums)
        if wanted & ENTROPY:
            _count(line, counts)
        if wanted & SATURATION and channels == 3:
            sums[COLOUR] += _saturation(pixels)
        if wanted & BORDER:
            _bounds(line, y, np.int32(corners[0]), np.int32(corners[1]), tolerance, bounds)
    if wanted & PHASH:
        _across(columns, lines[0], np.int64(32), np.int64(0), 32, large[32])
    if wanted & DHASH:
        _across(columns, lines[0], np.int64(8), np.int64(0), 9, small[8])
    for x in range(width):
        sums[LIGHT] += columns[x]


@jit
def image_scores(
    data, base, sizes, wanted, tolerance, cosines, logs,
    phash, dhash, sharpness, entropy, brightness, saturation, border,
):  # fmt: skip
    """Compute scores of N images of ``sizes`` [N, 3] (rows, columns, channels). ``wanted``: bits of the scores whose
    outputs [N] are written; they are 0 for images without pixels."""
    sums, counts, bounds = np.zeros(4, np.int64), np.zeros(256, np.int64), np.zeros(4, np.int64)
    large, small = np.zeros((33, 33), np.int64), np.zeros((9, 10), np.int64)
    gray, few = np.zeros((32, 32), np.uint8), np.zeros((8, 9), np.uint8)
    for out in (sharpness, entropy, brightness, saturation, border):
        out[:] = 0
    phash[:], dhash[:] = 0, 0
    for i in range(len(base)):
        rows, width, channels = sizes[i]
        pixels = rows * width
        if pixels == 0:
            continue
        image = data[base[i] : base[i] + pixels * channels]
        _walk(image, rows, width, channels, wanted, tolerance, sums, counts, bounds, large, small)
        size = np.float64(pixels)
        if wanted & PHASH:
            _means(large, pixels, gray)
            phash[i] = _phash(gray, cosines)
        if wanted & DHASH:
            _means(small, pixels, few)
            dhash[i] = _dhash(few)
        if wanted & SHARPNESS:
            mean = np.float64(sums[LAPLACIAN]) / size
            sharpness[i] = np.float32(np.float64(sums[SQUARES]) / size - mean * mean)
        if wanted & ENTROPY:
            entropy[i] = _entropy(counts, pixels, logs)
        if wanted & BRIGHTNESS:
            brightness[i] = np.float32(np.float64(sums[LIGHT]) / size)
        if wanted & SATURATION:
            saturation[i] = np.float32(np.float64(sums[COLOUR]) / size)
        if wanted & BORDER:
            kept = max(bounds[2] - bounds[0] + 1, 0) * max(bounds[3] - bounds[1] + 1, 0)
            border[i] = np.float32(np.float64(pixels - kept) / size)
