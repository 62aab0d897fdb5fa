"""The table of `pixels`: all samples in one call, without the GIL."""

# What Numba compiles carries no types.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba


@numba.njit(nogil=True, cache=True)
def table(shape, stride, anchor, extent, base, out_base, out_stride, channel, channels, itemsize, frames, out):
    """Rows of pixels.cu for a plan whose dimension ``channel`` are the channels, one for each of up to ``frames``
    pictures of a sample: the most groups of eight pixels of a picture, or -1 where a sample is not of that kind. Before
    the dimensions of a picture there may be one of frames. ``itemsize`` is that of the output. Of 4
    ``channels``, the last one lies outside of the source."""
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
