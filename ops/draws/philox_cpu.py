"""Compiled Philox4x32-10 (see `streams`), draw by draw, for kernels that decide while running how many draws they
need."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


@njit(inline="always")  # otherwise loops that call it are not vectorised
def _words(key: Any, sequence: Any, number: Any) -> Any:
    # 32-bit words, whose products are one instruction in vectorised loops
    number = np.uint64(number)
    c0, c1, c2, c3 = np.uint32(number), np.uint32(number >> _32), np.uint32(sequence), np.uint32(sequence >> _32)
    k0, k1 = np.uint32(key), np.uint32(key >> _32)
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * np.uint64(c0), np.uint64(0xCD9E8D57) * np.uint64(c2)
        c0, c1 = np.uint32(p1 >> _32) ^ c1 ^ k0, np.uint32(p1)
        c2, c3 = np.uint32(p0 >> _32) ^ c3 ^ k1, np.uint32(p0)
        k0, k1 = np.uint32(k0 + np.uint32(0x9E3779B9)), np.uint32(k1 + np.uint32(0xBB67AE85))
    return np.uint64(c0), np.uint64(c1), np.uint64(c2), np.uint64(c3)


def _four(key: Any, sequence: Any, number: Any) -> Any:
    raise NotImplementedError("compiled code calls it")


@overload(_four)
def _four_of(key: Any, sequence: Any, number: Any) -> Any:  # noqa: ARG001  # Numba compares the names
    def plain(key: Any, sequence: Any, number: Any) -> Any:
        return _words(key, sequence, number)

    def later(key: Any, sequence: Any, number: Any) -> Any:
        own, low, phase = key
        at = low + np.uint64(number)
        a = _words(own, sequence + np.uint64(at < low), at)  # an overflow is carried to the high half
        if phase == 0:
            return a
        after = at + np.uint64(1)
        b = _words(own, sequence + np.uint64(after < low), after)
        if phase == 1:
            return a[1], a[2], a[3], b[0]
        if phase == 2:
            return a[2], a[3], b[0], b[1]
        return a[3], b[0], b[1], b[2]

    return later if isinstance(key, types.BaseTuple) else plain


@njit(nogil=True, cache=True)
def block(key: Any, sequence: Any, number: Any) -> Any:
    """Return the four random words from number 4 ``number`` on of the Philox4x32-10 stream (``key``, ``sequence``): 32
    bits each, in uint64s.

    ``key`` is a uint64, or three (key, low, phase): word 0 of the stream is then word ``phase`` of counter ``low``
    (`Streams.handle`).
    """
    return _four(key, sequence, number)


@njit("void(uint64, uint64, uint64, uint64, uint32[::1])", nogil=True, cache=True)
def words_from(key: Any, high: Any, low: Any, phase: Any, out: Any) -> None:
    """Write a Philox generator's random words from a state on: word ``phase`` of counter ``high`` x 2^64 + ``low``."""
    four = _words(key, high, low)
    for k in range(len(out)):
        if k and phase == 0:
            four = _words(key, high, low)
        out[k] = np.uint32(four[phase])
        phase = (phase + np.uint64(1)) & np.uint64(3)
        if phase == 0:
            low += np.uint64(1)
            high += np.uint64(low == 0)


@njit(nogil=True, cache=True)
def draw(key: Any, sequence: Any, at: Any) -> Any:
    """Return random word ``at`` of the Philox4x32-10 stream (``key``, ``sequence``): 32 bits in a uint64."""
    return block(key, sequence, at >> 2)[at & 3]


@njit(
    ["void(uint64, uint64[::1], int64, int32[::1])", "void(UniTuple(uint64, 3), uint64[::1], int64, int32[::1])"],
    nogil=True, cache=True,
)  # fmt: skip
def coin_flips(key: Any, sequences: Any, limit: Any, out: Any) -> None:
    """Write 1 for each stream whose first random word is at most ``limit``, else 0."""
    for i in range(len(out)):
        out[i] = np.int64(draw(key, sequences[i], 0)) <= limit


@njit(
    [
        "void(uint64, uint64[::1], float64, float64, float32, float32[::1])",
        "void(UniTuple(uint64, 3), uint64[::1], float64, float64, float32, float32[::1])",
    ],
    nogil=True, cache=True,
)  # fmt: skip
def uniforms(key: Any, sequences: Any, low: Any, factor: Any, below: Any, out: Any) -> None:
    """Convert the first random word of each stream to a number in a range, as `streams.uniform` does."""
    for i in range(len(out)):
        v = np.float32(np.float64(np.float32(draw(key, sequences[i], 0))) * factor + low)
        out[i] = min(v, below)


@njit(nogil=True, cache=True)
def _first_words(key: Any, sequence: Any, first: Any, skip: Any, out: Any) -> None:
    """Write the random words ``first``, ``first`` + ``skip`` ... of a stream. Without branches, the loop is
    vectorised."""
    for j in range(len(out)):
        at = np.uint64(first + j * skip)
        four = _words(key, sequence, at >> np.uint64(2))
        place = at & np.uint64(3)
        low = four[0] if place == 0 else four[1]
        high = four[2] if place == 2 else four[3]
        out[j] = np.uint32(low if place < 2 else high)


def line(key: Any, sequence: Any, first: Any, skip: Any, out: Any) -> None:
    """Write the random words ``first``, ``first`` + ``skip`` ... of a stream, uint32."""
    raise NotImplementedError("compiled code calls it")


@overload(line)
def _line_of(key: Any, sequence: Any, first: Any, skip: Any, out: Any) -> Any:  # noqa: ARG001
    def plain(key: Any, sequence: Any, first: Any, skip: Any, out: Any) -> None:
        _first_words(key, sequence, first, skip, out)

    def later(key: Any, sequence: Any, first: Any, skip: Any, out: Any) -> None:
        for j in range(len(out)):
            out[j] = np.uint32(draw(key, sequence, first + j * skip))

    return later if isinstance(key, types.BaseTuple) else plain


WORDS = 1024
"""Number of random words that are generated at once."""
VECTOR = 8
"""Minimum number of elements for which the vectorised loops are faster."""


@njit(nogil=True, cache=True)
def element_draws(key: Any, sequences: Any, counts: Any, skip: Any, out: Any) -> None:
    """Write the random words for each element: those of element j of a sample begin at word j * ``skip`` of its stream.

    ``counts`` [N] elements of sample i fill the next rows of ``out`` uint32[T, words].
    """
    row, words = 0, np.empty(WORDS, np.uint32)
    for i in range(len(counts)):
        if counts[i] < VECTOR:
            for j in range(counts[i]):
                for k in range(out.shape[1]):
                    out[row + j, k] = np.uint32(draw(key, sequences[i], j * skip + k))
            row += counts[i]
            continue
        for first in range(0, counts[i], WORDS):
            n = min(WORDS, counts[i] - first)
            for k in range(out.shape[1]):
                line(key, sequences[i], np.int64(first * skip + k), np.int64(skip), words[:n])
                for j in range(n):
                    out[row + j, k] = words[j]
            row += n


@njit(nogil=True, cache=True)
def many_uniform(key: Any, sequences: Any, counts: Any, skip: Any, numbers: Any) -> Any:
    """Return uniform random numbers; ``numbers`` [N, 3]: constants of `streams.ends_of` (first, factor, below)."""
    out, words, at = np.empty(counts.sum(), np.float32), np.empty(WORDS, np.uint32), 0
    for i in range(len(counts)):
        low, factor, below = numbers[i, 0], numbers[i, 1], np.float32(numbers[i, 2])
        for first in range(0, counts[i], WORDS):
            n = min(WORDS, counts[i] - first)
            line(key, sequences[i], np.int64(first * skip), np.int64(skip), words[:n])
            to = out[at : at + n]
            for j in range(n):
                to[j] = min(np.float32(np.float64(np.float32(words[j])) * factor + low), below)
            at += n
    return out


@njit(nogil=True, cache=True)
def many_flip(key: Any, sequences: Any, counts: Any, skip: Any, numbers: Any) -> Any:
    """Return 1 for each random word that is at most the first of its sample's ``numbers`` [N, 3], else 0."""
    out, words, at = np.empty(counts.sum(), np.int32), np.empty(WORDS, np.uint32), 0
    for i in range(len(counts)):
        limit = np.int64(numbers[i, 0])
        for first in range(0, counts[i], WORDS):
            n = min(WORDS, counts[i] - first)
            line(key, sequences[i], np.int64(first * skip), np.int64(skip), words[:n])
            to = out[at : at + n]
            for j in range(n):
                to[j] = np.int64(words[j]) <= limit
            at += n
    return out


@njit(nogil=True, cache=True)
def many_below(key: Any, sequences: Any, counts: Any, skip: Any, limits: Any, starts: Any) -> Any:
    """Return random integers, int64[T]: for each element one below its sample's ``limits``, plus its ``starts``."""
    out, words, at = np.empty(counts.sum(), np.int64), np.empty(WORDS, np.uint32), 0
    for i in range(len(counts)):
        limit, start = np.uint64(limits[i]), np.int64(starts[i])
        for first in range(0, counts[i], WORDS):
            n = min(WORDS, counts[i] - first)
            line(key, sequences[i], np.int64(first * skip), np.int64(skip), words[:n])
            to = out[at : at + n]
            for j in range(n):
                to[j] = np.int64((np.uint64(words[j]) * limit) >> _32) + start
            at += n
    return out
