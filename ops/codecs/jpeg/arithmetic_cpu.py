"""Compiled functions that walk arithmetic-coded blocks of a JPEG without computing pixels, for `damage_cpu`.

ITU-T T.81, annexes D (decoding of decisions; table D.3) and F.1.4, F.2.4, G.1.3 (the decisions of a block). Like
libjpeg-turbo's jdarith.c, they read zeros beyond a marker, and report damage for numbers that are too large and for
runs of zeros that exceed the block.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

AT, MARKER = 0, 3
CODE, INTERVAL, SHIFT, PAST_END = range(5, 9)
"""Indices in the state of the arithmetic decoder, after those of `damage_cpu`: code register, interval, shift of bits
to the next byte, and whether the file ended."""

_BINS = 256
"""Number of adaptive statistics per conditioning table. DC tables come first, then AC tables."""
FIXED = 8 * _BINS
"""Index of the statistics whose probability always stays 1/2."""

# fmt: off
_PROBABILITY = np.array([
    0x5A1D, 0x2586, 0x1114, 0x080B, 0x03D8, 0x01DA, 0x00E5, 0x006F, 0x0036, 0x001A, 0x000D, 0x0006, 0x0003, 0x0001,
    0x5A7F, 0x3F25, 0x2CF2, 0x207C, 0x17B9, 0x1182, 0x0CEF, 0x09A1, 0x072F, 0x055C, 0x0406, 0x0303, 0x0240, 0x01B1,
    0x0144, 0x00F5, 0x00B7, 0x008A, 0x0068, 0x004E, 0x003B, 0x002C, 0x5AE1, 0x484C, 0x3A0D, 0x2EF1, 0x261F, 0x1F33,
    0x19A8, 0x1518, 0x1177, 0x0E74, 0x0BFB, 0x09F8, 0x0861, 0x0706, 0x05CD, 0x04DE, 0x040F, 0x0363, 0x02D4, 0x025C,
    0x01F8, 0x01A4, 0x0160, 0x0125, 0x00F6, 0x00CB, 0x00AB, 0x008F, 0x5B12, 0x4D04, 0x412C, 0x37D8, 0x2FE8, 0x293C,
    0x2379, 0x1EDF, 0x1AA9, 0x174E, 0x1424, 0x119C, 0x0F6B, 0x0D51, 0x0BB6, 0x0A40, 0x5832, 0x4D1C, 0x438E, 0x3BDD,
    0x34EE, 0x2EAE, 0x299A, 0x2516, 0x5570, 0x4CA9, 0x44D9, 0x3E22, 0x3824, 0x32B4, 0x2E17, 0x56A8, 0x4F46, 0x47E5,
    0x41CF, 0x3C3D, 0x375E, 0x5231, 0x4C0F, 0x4639, 0x415E, 0x5627, 0x50E7, 0x4B85, 0x5597, 0x504F, 0x5A10, 0x5522,
    0x59EB, 0x5A1D], np.int64)
"""For each state of the probability estimation (table D.3), the less probable symbol's share of the interval. The last
state never changes."""
_AFTER_LESS = np.array([
    1, 14, 16, 18, 20, 23, 25, 28, 30, 33, 35, 9, 10, 12, 15, 36, 38, 39, 40, 42, 43, 45, 46, 48, 49, 51, 52, 54, 56,
    57, 59, 60, 62, 63, 32, 33, 37, 64, 65, 67, 68, 69, 70, 72, 73, 74, 75, 77, 78, 79, 48, 50, 50, 51, 52, 53, 54, 55,
    56, 57, 58, 59, 61, 61, 65, 80, 81, 82, 83, 84, 86, 87, 87, 72, 72, 74, 74, 75, 77, 77, 80, 88, 89, 90, 91, 92, 93,
    86, 88, 95, 96, 97, 99, 99, 93, 95, 101, 102, 103, 104, 99, 105, 106, 107, 103, 105, 108, 109, 110, 111, 110, 112,
    112, 113], np.int64)
_AFTER_MORE = np.arange(1, 115)
_AFTER_MORE[[13, 35, 63, 79, 87, 94, 100, 104, 107, 109, 111, 112, 113]] = (
    13, 9, 32, 48, 71, 86, 93, 99, 103, 107, 109, 111, 113)
"""For each state of the probability estimation (table D.3): next state after the less and after the more probable
symbol."""
_SWITCHES = np.zeros(114, np.int64)
_SWITCHES[[0, 14, 36, 64, 80, 88, 95, 105, 110, 112]] = 0x80
"""For each state of the probability estimation: 0x80 if the less and the more probable symbol are exchanged after the
less probable one, otherwise 0."""
# fmt: on


@njit(nogil=True, cache=True)
def restart(at: Any, bins: Any) -> None:
    """Reset the state of the arithmetic decoder at the start of a scan or a restart interval."""
    at[CODE] = at[INTERVAL] = 0
    at[SHIFT] = -16
    bins[:] = 0
    bins[FIXED] = 113


@njit(nogil=True, cache=True)
def _decision(data: Any, at: Any, bins: Any, k: Any) -> Any:
    """Decode and return the next binary decision, 0 or 1, with the statistics ``bins[k]``, which are updated."""
    while at[INTERVAL] < 0x8000:
        at[SHIFT] -= 1
        if at[SHIFT] < 0:
            value: Any = np.int64(0)
            p = at[AT]
            if at[MARKER] == 0:
                if p < len(data):
                    value = np.int64(data[p])
                p += 1
                if value == 0xFF:
                    while p < len(data) and data[p] == 0xFF:
                        p += 1
                    if p < len(data) and data[p] != 0:
                        at[MARKER], value = data[p], 0
                    p += 1
                if p > len(data):
                    at[PAST_END] = 1
                at[AT] = p
            at[CODE] = at[CODE] << 8 | value
            at[SHIFT] += 8
            if at[SHIFT] < 0:
                at[SHIFT] += 1
                if at[SHIFT] == 0:
                    at[INTERVAL] = 0x8000
        at[INTERVAL] <<= 1
    state, symbol = np.int64(bins[k] & 0x7F), np.int64(bins[k] & 0x80)
    share = _PROBABILITY[state]
    at[INTERVAL] -= share
    less = at[CODE] >= at[INTERVAL] << at[SHIFT]
    if less:
        at[CODE] -= at[INTERVAL] << at[SHIFT]
    elif at[INTERVAL] >= 0x8000:
        return symbol >> 7
    exchange = at[INTERVAL] < share
    if less:
        at[INTERVAL] = share
    if less != exchange:
        bins[k] = symbol ^ _SWITCHES[state] ^ _AFTER_LESS[state]
        symbol ^= 0x80
    else:
        bins[k] = symbol ^ _AFTER_MORE[state]
    return symbol >> 7


@njit(nogil=True, cache=True)
def _magnitude(data: Any, at: Any, bins: Any, first: Any, more: Any, last: Any) -> Any:
    """Decode the magnitude of a coefficient. Return the magnitude less one; -1 if it has more than 16 bits. Indices of
    statistics: ``first`` for the first decision, those from ``more`` on for the next decisions about its size. The
    second of these uses ``last`` again unless that is -1."""
    m = _decision(data, at, bins, first)
    place = first
    if m:
        if last >= 0:
            place = last
            if not _decision(data, at, bins, last):
                more = -1
            else:
                m = 2
        if more >= 0:
            place = more
            while _decision(data, at, bins, place):
                m <<= 1
                if m == 0x8000:
                    return -1
                place += 1
    value = m
    m >>= 1
    while m:
        if _decision(data, at, bins, place + 14):
            value |= m
        m >>= 1
    return value


@njit(nogil=True, cache=True)
def _first_dc(data: Any, at: Any, bins: Any, table: Any, contexts: Any, c: Any, conditioning: Any) -> Any:
    base = _BINS * table
    k = base + contexts[c]
    if not _decision(data, at, bins, k):
        contexts[c] = 0
        return True
    sign = _decision(data, at, bins, k + 1)
    value = _magnitude(data, at, bins, k + 2 + sign, base + 20, -1)
    if value < 0:
        return False
    largest: Any = np.int64(1)  # the largest power of two in the number less one
    while largest * 2 <= value:
        largest *= 2
    largest = largest if value > 0 else 0
    if largest < (1 << (conditioning & 15)) >> 1:
        contexts[c] = 0
    elif largest > (1 << (conditioning >> 4)) >> 1:
        contexts[c] = 12 + 4 * sign
    else:
        contexts[c] = 4 + 4 * sign
    return True


@njit(nogil=True, cache=True)
def _first_ac(data: Any, at: Any, bins: Any, table: Any, low: Any, high: Any, middle: Any, there: Any) -> Any:
    base, k = _BINS * (4 + table), low
    while k <= high:
        place = base + 3 * (k - 1)
        if _decision(data, at, bins, place):
            break
        while not _decision(data, at, bins, place + 1):
            place += 3
            k += 1
            if k > high:
                return False
        _decision(data, at, bins, FIXED)
        more = base + (189 if k <= middle else 217)
        if _magnitude(data, at, bins, place + 2, more, place + 2) < 0:
            return False
        there[k] = 1
        k += 1
    return True


@njit(nogil=True, cache=True)
def _refined_ac(data: Any, at: Any, bins: Any, table: Any, low: Any, high: Any, there: Any) -> Any:
    last = high
    while last > 0 and not there[last]:
        last -= 1
    k = low
    while k <= high:
        place = _BINS * (4 + table) + 3 * (k - 1)
        if k > last and _decision(data, at, bins, place):
            break
        while True:
            if there[k]:
                _decision(data, at, bins, place + 2)
                break
            if _decision(data, at, bins, place + 1):
                _decision(data, at, bins, FIXED)
                there[k] = 1
                break
            place += 3
            k += 1
            if k > high:
                return False
        k += 1
    return True


@njit(nogil=True, cache=True)
def is_sound(
    data: Any, at: Any, bins: Any, contexts: Any, conditioning: Any, c: Any, dc: Any, ac: Any, low: Any, high: Any,
    refine: Any, there: Any,
) -> Any:  # fmt: skip
    """Decode coefficients ``low`` to ``high`` of one block of component ``c``. Return whether the code is valid.
    ``contexts`` [4]: index of statistics for each component's last DC difference. ``conditioning`` [8]: parameters of
    the DC and AC tables (DAC). ``there`` [64]: whether each coefficient of the block is not 0."""
    if low == 0:
        if refine:
            _decision(data, at, bins, FIXED)
            return True
        if not _first_dc(data, at, bins, dc, contexts, c, conditioning[dc]):
            return False
        low = 1
    if refine:
        return _refined_ac(data, at, bins, ac, low, high, there)
    return _first_ac(data, at, bins, ac, low, high, conditioning[4 + ac], there)
