"""Compiled loops that compute sizes, maps and tables of a batch for `rotate`, `warp_affine` and related operators: one
call each instead of dozens of NumPy calls. Products and sums are rounded separately, as in NumPy."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import math

import numba
import numpy as np

jit = numba.njit(nogil=True, cache=True, error_model="numpy")


@jit
def turned(shapes, cos, sin, sizes, grown, maps):
    """Compute affine maps [N, 2, 3] that rotate images of ``shapes`` [N, ..., H, W, C] about their centres; they map
    from outputs of ``sizes`` [N, 2] to inputs. With ``grown``, the sizes are computed first: those of the canvas that
    contains the rotated image, by DALI's rule."""
    d = shapes.shape[1]
    for i in range(len(shapes)):
        height, width, c, s = np.int64(shapes[i, d - 3]), np.int64(shapes[i, d - 2]), cos[i], sin[i]
        if grown:
            over, along = abs(s), abs(c)
            for k in range(2):
                one, other = (height, width) if k == 0 else (width, height)
                side = along * one + over * other
                made = np.int64(math.ceil(side - 0.01)) if math.isfinite(side) else np.int64(0)
                parity = (other if over > along else one) % 2
                sizes[i, k] = made + (1 if made % 2 != parity else 0)
        x, y = sizes[i, 1] / 2, sizes[i, 0] / 2
        maps[i, 0, 0], maps[i, 0, 1], maps[i, 0, 2] = c, -s, width / 2 - c * x + s * y
        maps[i, 1, 0], maps[i, 1, 1], maps[i, 1, 2] = s, c, height / 2 - s * x - c * y


@jit
def placed(shapes, sizes, maps, shape, geometry):
    """Fill in the ``shape`` [N, D] of the outputs and their ``geometry`` [N, 6] (see cuda/sampling.cu). Outputs of size
    0, and those whose map is not finite, get shapes of 0. Return how many maps are not finite; they become 0.
    """
    d, wrong = shapes.shape[1], 0
    for i in range(len(shapes)):
        finite = True
        for j in range(2):
            for k in range(3):
                finite = finite and math.isfinite(maps[i, j, k])
        if not finite:
            wrong += 1
            maps[i] = 0
        frames, values = np.int64(1), np.int64(1)
        for k in range(d):
            values *= shapes[i, k]
            if k < d - 3:
                frames *= shapes[i, k]
            shape[i, k] = shapes[i, k]
        shape[i, d - 3], shape[i, d - 2] = sizes[i, 0], sizes[i, 1]
        if values == 0 or not finite:
            shape[i] = 0
        geometry[i, 0] = frames
        for k in range(3):
            geometry[i, 1 + k] = shapes[i, d - 3 + k]
        geometry[i, 4], geometry[i, 5] = shape[i, d - 3], shape[i, d - 2]
        for k in range(d):
            if shape[i, k] == 0:
                geometry[i, 0] = 0
    return wrong


@jit
def centred(maps, params):
    """Convert ``maps`` [N, 2, 3], whose coordinates count from pixel corners, to parameters [N, 9] of affine maps whose
    coordinates count from pixel centres. Return whether all are finite."""
    finite = True
    for i in range(len(maps)):
        for j in range(2):
            a, b, c = maps[i, j, 0], maps[i, j, 1], maps[i, j, 2]
            finite = finite and math.isfinite(a) and math.isfinite(b) and math.isfinite(c)
            params[i, 3 * j], params[i, 3 * j + 1] = a, b
            params[i, 3 * j + 2] = c + ((a + b) / 2 - 0.5)
        params[i, 6], params[i, 7], params[i, 8] = 0, 0, 1
    return finite


@jit
def extent(geometry, tall, wide, before):
    """Return for ``geometry`` [N, 6]: whether all images have three channels, the longest side of all images, and the
    maximum number of tiles of ``tall`` by ``wide`` pixels per output, whose lines may begin ``before`` pixels earlier.
    """
    three, longest, most = True, np.int64(0), np.int64(0)
    for i in range(len(geometry)):
        three = three and geometry[i, 3] == 3
        for k in range(1, 6):
            longest = max(longest, geometry[i, k])
        down, across = (geometry[i, 4] + tall - 1) // tall, (geometry[i, 5] + before + wide - 1) // wide
        most = max(most, geometry[i, 0] * down * across)
    return three, longest, most
