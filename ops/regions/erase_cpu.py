"""Compiled loop that computes the boxes of `erase` for a batch, without the GIL."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np

_FAR = np.float32(2.0**40)


@numba.njit(nogil=True, cache=True)
def _whole(value):
    """Convert a number to an integer as `windows.integers` does."""
    if not value >= -_FAR:
        return -(1 << 40)
    return np.int64(min(value, _FAR))


@numba.njit(nogil=True, cache=True)
def boxes(shapes, axes, anchor, size, relative_anchor, relative_size, centered, steps, offsets, extent, at):
    """Compute the boxes to erase, clipped to samples of ``shapes``: their shapes ``extent`` [N x boxes, D], and where
    they begin, ``at`` [N x boxes].

    ``anchor`` and ``size`` [N, boxes x A] are along ``axes``; ``steps`` [N, D] are the strides of the samples, which
    begin at ``offsets``.
    """
    ndim, many = shapes.shape[1], len(axes)
    count = size.shape[1] // many
    start, stop = np.empty(ndim, np.int64), np.empty(ndim, np.int64)
    for i in range(len(shapes)):
        for b in range(count):
            k = i * count + b
            for d in range(ndim):
                start[d], stop[d] = 0, shapes[i, d]
            for a in range(many):
                d = axes[a]
                along = np.float32(shapes[i, d])
                begin, length = anchor[i, b * many + a], size[i, b * many + a]
                if relative_anchor:
                    begin = np.float32(begin * along)
                if relative_size:
                    length = np.float32(length * along)
                if centered:
                    begin = np.float32(begin - np.float32(length * np.float32(0.5)))
                start[d], stop[d] = _whole(begin), _whole(np.float32(begin + length))
            at[k] = offsets[i]
            for d in range(ndim):
                first = min(max(start[d], 0), shapes[i, d])
                extent[k, d] = max(min(max(stop[d], 0), shapes[i, d]) - first, 0)
                at[k] += first * steps[i, d]
