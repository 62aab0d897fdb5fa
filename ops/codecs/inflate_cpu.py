"""Compiled loop that inflates LZ4 blocks (lz4.org, "LZ4 Block Format Description"), many at a time."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np

jit = numba.njit(nogil=True, cache=True)


@numba.njit
def _length(data, at, end, nibble):
    """Read a length of the LZ4 format: 4 bits, and the bytes that extend it. Return the length and the offset after its
    bytes; -1 if the data ends before."""
    if nibble < 15:
        return nibble, at
    length = np.int64(15)
    while at < end:
        byte = data[at]
        length += byte
        at += 1
        if byte != 255:
            return length, at
    return np.int64(-1), at


@numba.njit
def _block(data, at, end, out, start, stop):
    """Inflate one LZ4 block into ``out[start:stop]``. Return whether the block gives exactly that many bytes."""
    to = start
    while at < end:
        token = data[at]
        literals, at = _length(data, at + 1, end, np.int64(token >> 4))
        if literals < 0 or literals > end - at or literals > stop - to:
            return False
        for k in range(literals):
            out[to + k] = data[at + k]
        at += literals
        to += literals
        if at == end:  # a block ends with literals
            return to == stop
        if end - at < 2:
            return False
        back = np.int64(data[at]) | np.int64(data[at + 1]) << 8
        match, at = _length(data, at + 2, end, np.int64(token & 15))
        if match < 0 or back == 0 or back > to - start or match + 4 > stop - to:
            return False
        for k in range(match + 4):  # one byte after the other: the copy may overlap itself
            out[to + k] = out[to - back + k]
        to += match + 4
    return False


@jit
def inflate(data, starts, sizes, out, out_starts, out_size, good):
    """Inflate C blocks of LZ4. Block c has ``sizes[c]`` bytes from ``starts[c]`` on, and must give ``out_size[c]``
    bytes from ``out_starts[c]`` on. ``good`` [C] becomes false for a block that does not give exactly these bytes."""
    for c in range(len(starts)):
        if good[c]:
            stop = out_starts[c] + out_size[c]
            good[c] = _block(data, starts[c], starts[c] + sizes[c], out, out_starts[c], stop)
