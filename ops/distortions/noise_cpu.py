"""Compiled loops of `noise`: one call per batch, without the GIL. cuda/noise.cu has the same algorithms for a GPU."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import overload

from ..copies.strided_cpu import put
from ..draws.normal_cpu import standard_normal
from ..draws.philox_cpu import WORDS, block, line

jit = numba.njit(nogil=True, cache=True)

_UNIT = np.float32(2.0**-32)


def store(dst: Any, i: Any, value: Any) -> None:
    """Convert a float64 to the type of ``dst`` and store it at index ``i`` (compiled below for each type)."""


@overload(store)
def _store(dst, i, value):  # noqa: ARG001 - only the type of dst selects the code
    if dst.dtype == types.uint8:

        def rounded(dst, i, value):
            dst[i] = put(np.float32(value), dst)

        return rounded

    def plain(dst, i, value):
        dst[i] = value

    return plain


@jit
def _two(key, sequence, at):
    """Return two random words of a stream: number ``at`` and the next one."""
    four = block(key, sequence, at >> 2)
    phase = at & 3
    if phase == 3:
        return four[3], block(key, sequence, (at >> 2) + 1)[0]
    return four[phase], four[phase + 1]


@jit
def gaussian(key, sequences, skip, src, base, counts, mean, stddev, dst, out_base):
    """Add a normally distributed number, made from two random words, to each value."""
    first, second, noise = np.empty(WORDS, np.uint32), np.empty(WORDS, np.uint32), np.empty(WORDS, np.float32)
    for i in range(len(base)):
        m, s = np.float64(mean[i]), np.float64(stddev[i])
        for low in range(0, counts[i], WORDS):  # loops over a block of draws are vectorised
            n = min(WORDS, counts[i] - low)
            line(key, sequences[i], np.int64(low * skip), np.int64(skip), first[:n])
            line(key, sequences[i], np.int64(low * skip + 1), np.int64(skip), second[:n])
            for j in range(n):
                noise[j] = np.float64(standard_normal(first[j], second[j])) * s + m
            of, to = src[base[i] + low : base[i] + low + n], dst[out_base[i] + low : out_base[i] + low + n]
            for j in range(n):
                store(to, j, np.float64(of[j]) + np.float64(noise[j]))


@jit
def salt_and_pepper(key, sequences, skip, src, base, counts, steps, strides, prob, salted, salt, pepper, dst, out_base):
    """Keep each element of ``steps`` values, or replace it by salt or pepper, depending on one random word."""
    for i in range(len(base)):
        each, apart = steps[i], strides[i]
        four, known = block(key, sequences[i], 0), 0
        for j in range(counts[i]):
            at = j * skip
            if at >> 2 != known:
                known = at >> 2
                four = block(key, sequences[i], known)
            u = np.float32(np.uint32(four[at & 3])) * _UNIT
            start = j * each if apart == 1 else j
            for k in range(each):
                x = start + k * apart
                value = src[base[i] + x]
                if u < prob[i]:
                    value = salt[i] if u < salted[i] else pepper[i]
                dst[out_base[i] + x] = value


@jit
def _canonical(key, sequence, at):
    """Return a random float64 in [0, 1) from two words of a stream, as libstdc++'s generate_canonical<double> does."""
    first, second = _two(key, sequence, at)
    value = (np.float64(first) + np.float64(second) * 4294967296.0) / 18446744073709551616.0
    return min(value, 0.9999999999999999)


@jit
def _few(key, sequence, at, mean):
    """Return a Poisson-distributed number for a mean below 12: products of uniform numbers (Knuth), as in libstdc++."""
    limit, count, product = math.exp(-mean), 0, 1.0
    while True:
        product *= _canonical(key, sequence, at)
        at += 2
        if not product > limit:
            return np.float64(count)
        count += 1


@jit
def _many(key, sequence, at, mean):
    """Return a Poisson-distributed number for a mean of 12 or more, by rejection (Devroye, Non-Uniform Random Variate
    Generation, chapter X). Random words are used in libstdc++'s order."""
    m = math.floor(mean)
    log_mean, log_m, root = math.log(mean), math.lgamma(m + 1), math.sqrt(m)
    quarter = 0.7853981633974483
    d = np.round(max(6.0, min(m, math.sqrt(2 * m * math.log(32 * m / quarter)))))
    cx = 2 * m + d
    spread, one = math.sqrt(cx / 2), 1 / cx
    c1 = root * 1.2533141373155003
    c2 = c1 + math.sqrt(quarter * cx) * math.exp(one)
    c3, c4 = c2 + 1, c2 + 2
    c5 = c4 + 1.0129030479320018  # e^(1 / 78)
    c = c5 + 2 * cx * math.exp(-d * one * (1 + d / 2)) / d
    saved, has_saved = 0.0, False
    while True:
        u = c * _canonical(key, sequence, at)
        e = -math.log(1.0 - _canonical(key, sequence, at + 2))
        at += 4
        w = 0.0
        if u <= c2:
            if has_saved:
                n, has_saved = saved, False
            else:
                while True:  # Marsaglia's polar method
                    a = 2 * _canonical(key, sequence, at) - 1
                    b = 2 * _canonical(key, sequence, at + 2) - 1
                    at += 4
                    r = a * a + b * b
                    if 0 < r <= 1:
                        break
                scale = math.sqrt(-2 * math.log(r) / r)
                saved, has_saved, n = a * scale, True, b * scale
            if u <= c1:
                y = -abs(n) * root - 1
                x = math.floor(y)
                w = -n * n / 2
                if x < -m:
                    continue
            else:
                y = 1 + abs(n) * spread
                x = math.ceil(y)
                w = y * (2 - y) * one
                if x > d:
                    continue
        elif u <= c3:
            x = -1
        elif u <= c4:
            x = 0
        elif u <= c5:
            x, w = 1, 1 / 78
        else:
            v = -math.log(1.0 - _canonical(key, sequence, at))
            at += 2
            y = d + v * 2 * cx / d
            x = math.ceil(y)
            w = -d * one * (1 + y / 2)
        if not (w - e - x * log_mean > log_m - math.lgamma(x + m + 1)):
            return np.float64(x + m)


@jit
def shot(key, sequences, skip, src, base, counts, factor, dst, out_base):
    """Replace each value by a Poisson-distributed number of events (shot noise), times ``factor``."""
    for i in range(len(base)):
        f = factor[i]
        for j in range(counts[i]):
            value = src[base[i] + j]
            if f == 0:
                dst[out_base[i] + j] = value
                continue
            mean = np.float64(max(np.float32(0), np.float32(value) * (np.float32(1) / f)))
            events = 0.0
            if mean >= 12:
                events = _many(key, sequences[i], j * skip, mean)
            elif mean > 0:
                events = _few(key, sequences[i], j * skip, mean)
            store(dst, out_base[i] + j, np.float64(np.float32(events) * f))
