"""Compiled loop that fills the table of `pixels`: one call per batch, without the GIL."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba


@numba.njit(nogil=True, cache=True)
def table(shape, stride, anchor, extent, base, out_base, out_stride, channel, channels, itemsize, frames, out):
    """Fill the rows from which pixels.cu copies images, one for each of up to ``frames`` images per sample. Dimension
    ``channel`` of the plan holds the channels. Return the maximum number of groups of eight pixels per image, or -1 if
    a sample is of an unsupported kind. A dimension of frames may precede those of an image. ``itemsize`` is that of the
    output. If ``channels`` is 4, the last one lies outside of the source."""
    most = 0
    ndim = shape.shape[1]
    outer = ndim - 3
    down = outer + (1 if channel == outer else 0)
    across = down + 1
    for i in range(len(base)):
        count = shape[i, 0] if outer else 1
        for f in range(frames):
            for k in range(8):
                out[i * frames + f, k] = 0
        height, width = shape[i, down], shape[i, across]
        if height == 0 or width == 0 or shape[i, channel] == 0 or count == 0:
            continue
        pixel, step = stride[i, channel], abs(stride[i, across])
        if shape[i, channel] != channels or not (step == 1 or (step == 3 and abs(pixel) == 1)):
            return -1
        apart = (height * width, width, 1) if channel == outer else (channels * width, channels, 1)
        start = base[i]
        for d in range(ndim):
            kept = 3 if d == channel else shape[i, d]
            if anchor[i, d] < 0 or anchor[i, d] + kept > extent[i, d]:
                return -1
            if d >= outer and out_stride[i, d] != apart[d - outer]:
                return -1
            start += anchor[i, d] * stride[i, d]
        if channels * height * width > 2147483647 or (channels > 3 and extent[i, channel] != 3):
            return -1
        if step == 3 and pixel == -1:
            start -= 2
        uneven = False
        for f in range(count):
            row = out[i * frames + f]
            to = out_base[i] + (f * out_stride[i, 0] if outer else 0)
            line = apart[1] if channel == outer else apart[0]
            odd = itemsize < 4 and (to * itemsize % 4 != 0 or (height > 1 and line * itemsize % 4 != 0))
            row[0], row[1], row[2] = start + (f * stride[i, 0] if outer else 0), stride[i, down], stride[i, across]
            row[3], row[4], row[5], row[6], row[7] = height, width, to, pixel, odd
            uneven = uneven or odd
        most = max(most, height * ((width + 7) // 8 + (1 if uneven else 0)))
    return most
