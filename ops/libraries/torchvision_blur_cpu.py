"""Compiled loops of torchvision's gaussian_blur: a float32 convolution whose terms are summed in PyTorch's order,
rounded.

A window of k x k taps is first applied along rows and columns, k terms each. Only if that sum is so close to a tie that
the order of terms might decide, it is summed again in PyTorch's order: a few pixels in ten thousand.
"""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import math

import numba
import numpy as np

from .fma_cpu import fma

jit = numba.njit(nogil=True, cache=True, error_model="numpy")

_EXP = (0.000198527617612853646278381, 0.00139304355252534151077271, 0.00833336077630519866943359,
        0.0416664853692054748535156, 0.166666671633720397949219, 0.5)  # fmt: skip
"""Coefficients of SLEEF's expf (u10), which PyTorch's softmax calls."""
_SMALL = 20480
"""Maximum values of an image, with mirrored borders, for which PyTorch's convolution adds in another order."""
_LANES = 16
"""Number of partial sums of PyTorch's softmax (AVX-512)."""


@jit
def _exp(d):
    q = np.rint(d * np.float32(1.4426950408889634))
    s = fma(q, np.float32(-1.428606765330187045e-06), fma(q, np.float32(-0.693145751953125), d))
    u = np.float32(_EXP[0])
    for k in range(1, len(_EXP)):
        u = fma(u, s, np.float32(_EXP[k]))
    u = np.float32(1) + fma(s * s, u, s)
    return np.float32(math.ldexp(u, int(q))) if d > -104 else np.float32(0)


@jit
def gaussian(size, sigma):
    """Return torchvision's Gaussian window of ``size`` weights, float32."""
    limit = np.float32((size - 1) / (2.0 * math.sqrt(2.0)))
    step = (limit - -limit) / np.float32(size - 1) if size > 1 else np.float32(0)
    x = np.empty(size, np.float32)
    for k in range(size):
        if k < size // 2:
            x[k] = fma(step, np.float32(k), -limit)
        else:
            x[k] = fma(-step, np.float32(size - 1 - k), limit)
        at = x[k] / np.float32(sigma)
        x[k] = -(at * at)
    top = x.max()
    for k in range(size):
        x[k] = _exp(x[k] - top)
    if size < _LANES:
        total = x[0]
        for k in range(1, size):
            total += x[k]
    else:
        sums = np.zeros(_LANES, np.float32)
        for k in range(size):
            sums[k % _LANES] += x[k]
        n = _LANES // 2
        while n:
            for k in range(n):
                sums[k] += sums[k + n]
            n //= 2
        total = sums[0]
    return x * (np.float32(1) / total)


@jit
def _mirrored(i, n):
    i = -i if i < 0 else i
    return i if i < n else 2 * n - 2 - i


@jit
def _in_order(plane, rows, columns, y, x, down, across, fused):
    """Compute one pixel, adding in PyTorch's order. If ``fused``, each product and sum are rounded once."""
    total = np.float32(0)
    ky, kx = len(down), len(across)
    if fused and ky // 2 <= y < rows - ky // 2 and kx // 2 <= x < columns - kx // 2:
        for j in range(ky):
            begin, row = (y + j - ky // 2) * columns + x - kx // 2, down[j]
            part = plane[begin : begin + kx]
            for i in range(kx):
                total = fma(np.float32(part[i]), row * across[i], total)
        return total
    for j in range(ky):
        line = _mirrored(y + j - ky // 2, rows) * columns
        for i in range(kx):
            value = np.float32(plane[line + _mirrored(x + i - kx // 2, columns)])
            weight = down[j] * across[i]
            total = fma(value, weight, total) if fused else total + value * weight
    return total


@jit
def blur(s, rows, columns, channels, kx, ky, sigma_x, sigma_y, o):
    """Blur an image with Gaussian windows of ``kx`` x ``ky`` weights, whose halves are smaller than the image; borders
    mirror the image without its edge."""
    across, down = gaussian(kx, sigma_x), gaussian(ky, sigma_y)
    rx = kx // 2
    padded, passed = np.empty(columns + 2 * rx, np.float32), np.empty((rows, columns), np.float32)
    total, sums = np.empty(columns, np.float32), np.empty(columns, np.float32)
    near, unit = np.empty(columns, np.uint8), np.float32(2.0**-24)
    slack = np.float32(kx + ky + 8)
    # For small gray images and narrow windows, PyTorch uses another loop than oneDNN's.
    fused = channels > 1 or (kx > 3 and ky > 3) or (columns + kx - 1) * (rows + ky - 1) > _SMALL
    for c in range(channels):
        plane = s[c * rows * columns : (c + 1) * rows * columns]
        for y in range(rows):
            line = plane[y * columns : (y + 1) * columns]
            middle = padded[rx : rx + columns]
            for x in range(columns):
                middle[x] = np.float32(line[x])
            for k in range(rx):
                padded[k] = middle[rx - k]
                padded[rx + columns + k] = middle[columns - 2 - k]
            row = passed[y]
            row[:] = 0
            for k in range(kx):
                part, w = padded[k : k + columns], across[k]
                for x in range(columns):
                    row[x] = fma(part[x], w, row[x])
        for y in range(rows):
            total[:] = 0
            sums[:] = 0
            for k in range(ky):
                part, w = passed[_mirrored(y + k - ky // 2, rows)], down[k]
                for x in range(columns):
                    here = fma(part[x], w, total[x])
                    total[x] = here
                    sums[x] += here
            out = o[(c * rows + y) * columns : (c * rows + y + 1) * columns]
            count = np.int32(0)
            for x in range(columns):
                value = total[x]
                out[x] = np.uint8(np.int32(np.rint(value)))
                # The error of a sum in PyTorch's order is at most half a unit of each of its partial sums; those of a
                # row of the window are at most the partial sum after the row. The error of the sum here is that of its
                # two passes.
                error = unit * (np.float32(kx) * sums[x] * np.float32(1.001) + slack * (value + np.float32(1)))
                tie = np.abs(value - np.floor(value) - np.float32(0.5)) <= error
                near[x] = tie
                count += np.int32(tie)
            if count:
                for x in range(columns):
                    if near[x]:
                        exact = _in_order(plane, rows, columns, y, x, down, across, fused)
                        out[x] = np.uint8(np.int32(np.rint(exact)))
