"""LZ4 blocks (lz4.org, "LZ4 Block Format Description"), many at a time."""

# What Numba compiles carries no types.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numba
import numpy as np

jit = numba.njit(nogil=True, cache=True)


@numba.njit
def _length(data, at, end, nibble):
    """A length of 4 bits and what follows them, and where it ends; -1 where the data ends before it does."""
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
    """Inflate one block into ``out[start:stop]``; does it fill exactly that?"""
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
    """Block c of ``sizes[c]`` bytes from ``starts[c]`` on becomes ``out_size[c]`` bytes from ``out_starts[c]`` on.
    ``good`` [C] says where that is what it holds."""
    for c in range(len(starts)):
        if good[c]:
            stop = out_starts[c] + out_size[c]
            good[c] = _block(data, starts[c], starts[c] + sizes[c], out, out_starts[c], stop)
