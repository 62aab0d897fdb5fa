"""The table of `pixels`: all samples in one call, without the GIL."""

# What Numba compiles carries no types.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba


@numba.njit(nogil=True, cache=True)
def table(shape, stride, anchor, extent, base, out_base, out_stride, channel, out):
    """Rows of pixels.cu for a plan whose dimension ``channel`` (0 or 2) are the channels; the most groups of eight
    pixels of a sample, or -1 where a sample is not of that kind."""
    most = 0
    down = 1 if channel == 0 else 0
    across = down + 1
    for i in range(len(base)):
        height, width = shape[i, down], shape[i, across]
        for k in range(6):
            out[i, k] = 0
        if height == 0 or width == 0 or shape[i, channel] == 0:
            continue
        if shape[i, channel] != 3 or stride[i, channel] != 1 or abs(stride[i, across]) != 3:
            return -1
        apart = (height * width, width, 1) if channel == 0 else (3 * width, 3, 1)
        start = base[i]
        for d in range(3):
            if anchor[i, d] < 0 or anchor[i, d] + shape[i, d] > extent[i, d] or out_stride[i, d] != apart[d]:
                return -1
            start += anchor[i, d] * stride[i, d]
        if 3 * height * width > 2147483647:
            return -1
        out[i, 0], out[i, 1], out[i, 2] = start, stride[i, down], stride[i, across]
        out[i, 3], out[i, 4], out[i, 5] = height, width, out_base[i]
        most = max(most, height * ((width + 7) // 8))
    return most
