"""Philox4x32-10 (see `streams`) draw by draw, for kernels that decide as they go how many they need."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


@njit(nogil=True, cache=True)
def block(key: Any, sequence: Any, number: Any) -> Any:
    """The four draws from 4 ``number`` on of Philox4x32-10 stream (``key``, ``sequence``): 32 bits each, in uint64s."""
    number = np.uint64(number)
    c0, c1, c2, c3 = number & _LOW, number >> _32, sequence & _LOW, sequence >> _32
    k0, k1 = key & _LOW, key >> _32
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (p1 >> _32) ^ c1 ^ k0, p1 & _LOW, (p0 >> _32) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & _LOW, (k1 + np.uint64(0xBB67AE85)) & _LOW
    return c0, c1, c2, c3


@njit(nogil=True, cache=True)
def draw(key: Any, sequence: Any, at: Any) -> Any:
    """Draw number ``at`` of Philox4x32-10 stream (``key``, ``sequence``): a 32-bit number in a uint64."""
    return block(key, sequence, at >> 2)[at & 3]


@njit("void(uint64, uint64[::1], int64, int32[::1])", nogil=True, cache=True)
def coin_flips(key: Any, sequences: Any, limit: Any, out: Any) -> None:
    """1 where the first draw of a stream is at most ``limit``, else 0."""
    for i in range(len(out)):
        out[i] = np.int64(draw(key, sequences[i], 0)) <= limit


@njit(nogil=True, cache=True)
def element_draws(key: Any, sequences: Any, counts: Any, skip: Any, out: Any) -> None:
    """The first draws of every element: element j of a stream begins at draw j * ``skip``.

    ``counts`` [N] elements of stream i fill the next rows of ``out`` uint32[T, draws].
    """
    row = 0
    for i in range(len(counts)):
        for j in range(counts[i]):
            for k in range(out.shape[1]):
                out[row, k] = np.uint32(draw(key, sequences[i], j * skip + k))
            row += 1
