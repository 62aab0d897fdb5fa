"""Numbers from Philox streams, computed as C++'s standard library does, for kernels that decide while running how many
they need. ``state`` is uint64[5]: number of words drawn, and the current block of four words."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np
from numba import njit

from ..draws.philox_cpu import block, line

F = np.float32
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


@njit
def word(key, sequence, state):
    """Return the next 32-bit random number of a stream, as a uint64."""
    at = np.int64(state[0])
    if at & 3 == 0:
        state[1], state[2], state[3], state[4] = block(key, sequence, at >> 2)
    state[0] = np.uint64(at + 1)
    return state[1 + (at & 3)]


@njit
def below(key, sequence, state, n):
    """Return a random number in [0, n), n < 2^32, as std::uniform_int_distribution does: Lemire's reduction (ACM TOMACS
    29(1), 2019)."""
    n = np.uint64(n)
    product = word(key, sequence, state) * n
    if (product & _LOW) < n:
        threshold = ((np.uint64(1) << _32) - n) % n
        while (product & _LOW) < threshold:
            product = word(key, sequence, state) * n
    return np.int64(product >> _32)


@njit
def between(key, sequence, state, low, high):
    """Return a random integer in [low, high]."""
    return np.int64(low) + below(key, sequence, state, np.int64(high) - np.int64(low) + 1)


@njit
def scaled(word_, low, span):
    """Convert 32 random bits to a float32 in [low, low + span), as std::uniform_real_distribution<float> does."""
    unit = F(F(word_) * F(2.0**-32))
    if unit >= F(1):
        unit = F(0.99999994)  # the largest float32 below 1
    return F(F(unit * span) + low)


@njit
def real(key, sequence, state, low, high):
    """Return a random float32 in [low, high)."""
    return scaled(word(key, sequence, state), low, F(high - low))


@njit
def fill(key, sequence, at, words):
    """Write the random numbers of a stream from number ``at`` on to ``words``, uint32. Faster than the other functions,
    which generate four at a time."""
    line(key, sequence, at, 1, words)


@njit
def skip_to(key, sequence, state, at):
    """Continue a stream at its random number ``at``."""
    state[0] = np.uint64(at)
    if at & 3 != 0:
        state[1], state[2], state[3], state[4] = block(key, sequence, at >> 2)


@njit
def canonical(key, sequence, state):
    """Return a random float64 in [0, 1), from two numbers of a stream, as std::generate_canonical<double, 53> does."""
    low = word(key, sequence, state)
    high = word(key, sequence, state)
    return min((np.float64(low) + np.float64(high) * 4294967296.0) / 18446744073709551616.0, 0.9999999999999999)
