"""Compiled, vectorised functions of float32 that NumPy vectorises only with AVX-512: polynomials in float64, with
errors of half a unit in the last place of float32.

Each function takes contiguous arrays of equal length, and returns whether all values were within the ranges of `USUAL`.
For values outside, its results are meaningless, and the caller uses NumPy's function; a value's result depends on no
other value.
"""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import math

import numba
import numpy as np

F, D = np.float32, np.float64
jit = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
inline = numba.njit(error_model="numpy", fastmath={"contract"})

_LARGEST = F(3.4028234663852886e38)
_LEAST = F(1.401298464324817e-45)
_BELOW_ONE = F(0.99999994)
_FAR = F(1e5)
"""Maximum absolute argument of tan. Up to it, the number of quarter circles times the high bits of pi / 2 is exact."""
_STEEP = F(700)
"""Maximum absolute argument of sinh and cosh; both overflow to infinity far below it."""
_SMALL = 1e-4
"""Argument below which two terms of a series are more exact than the usual formula."""

_MANTISSA, _ONE = (1 << 52) - 1, 1023 << 52
_LOG2_E, _LN_2, _LOG10_2 = 1.4426950408889634, 0.6931471805599453, 0.30102999566398120
# a quarter turn: its first 33 bits, and the remainder
_QUARTER, _REST = 1.57079632673412561417, 6.07710050650619224932e-11


@inline
def _within(values, low, high):
    outside = 0
    for k in range(len(values)):
        outside += 0 if low <= values[k] <= high else 1
    return outside == 0


@inline
def _log2(x):
    """Return the binary logarithm of a positive number that is not subnormal: its exponent plus a series, 2 atanh((m -
    1) / (m + 1)), of its mantissa m."""
    bits = np.float64(x).view(np.int64)
    exponent = np.int32(np.uint64(bits) >> np.uint64(52)) - np.int32(1023)
    m = np.int64((bits & _MANTISSA) | _ONE).view(np.float64)
    above = m > 1.4142135623730951
    m = m * 0.5 if above else m
    exponent += np.int32(1) if above else np.int32(0)
    s = (m - 1) / (m + 1)
    z = s * s
    series = 1 + z * (1 / 3 + z * (1 / 5 + z * (1 / 7 + z * (1 / 9 + z * (1 / 11 + z * (1 / 13 + z / 15))))))
    return D(exponent) + 2 * _LOG2_E * s * series


@inline
def _exp2(v):
    v = v if v < 1000.0 else 1000.0
    v = v if v > -1000.0 else -1000.0
    whole = np.floor(v + 0.5)
    x = (v - whole) * _LN_2
    series = 1 + x * (1 + x * (1 / 2 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120 + x * (1 / 720 + x * (
        1 / 5040 + x * (1 / 40320 + x * (1 / 362880 + x / 3628800)))))))))  # fmt: skip
    return series * np.int64((np.int64(np.int32(whole)) + 1023) << 52).view(np.float64)


@inline
def _atan(a):
    """Return the arctangent of ``a``, a number that is not negative or infinity. Two identities reduce the argument to
    at most tan(pi / 8)."""
    steep = a > 1
    t = 1 / a if steep else a
    middle = t > 0.41421356237309503
    u = (t - 1) / (t + 1) if middle else t
    z = u * u
    series = 1 - z * (1 / 3 - z * (1 / 5 - z * (1 / 7 - z * (1 / 9 - z * (1 / 11 - z * (1 / 13 - z * (1 / 15 - z * (
        1 / 17 - z * (1 / 19 - z * (1 / 21 - z / 23))))))))))  # fmt: skip
    found = u * series
    found = found + math.pi / 4 if middle else found
    return math.pi / 2 - found if steep else found


@inline
def _signed(found, x, a, third):
    """Return the value of an odd function at ``x``, given its value ``found`` at ``a`` = abs(x). For small x it is x +
    ``third`` x^3."""
    found = -found if x < 0 else found
    return x + third * x * a * a if a < _SMALL else found


USUAL = {
    "log2": [(_LEAST, _LARGEST)],
    "log10": [(_LEAST, _LARGEST)],
    "cbrt": [(-_LARGEST, _LARGEST)],
    "tan": [(-_FAR, _FAR)],
    "asin": [(-_LARGEST, _LARGEST)],
    "acos": [(-_LARGEST, _LARGEST)],
    "atan": [(-_LARGEST, _LARGEST)],
    "sinh": [(-_STEEP, _STEEP)],
    "cosh": [(-_STEEP, _STEEP)],
    "asinh": [(-_LARGEST, _LARGEST)],
    "acosh": [(-_LARGEST, _LARGEST)],
    "atanh": [(-_BELOW_ONE, _BELOW_ONE)],
    "power": [(_LEAST, _LARGEST), (-_LARGEST, _LARGEST)],
    "atan2": [(-_LARGEST, _LARGEST), (-_LARGEST, _LARGEST)],
}
"""Smallest and largest valid value of each argument, per function; for `atan2` zeros are also excluded."""


def unusual(name, *values):
    """Return a mask of the values that are outside of the valid range of the function ``name``."""
    found = np.zeros(len(values[0]), np.bool_)
    for v, (low, high) in zip(values, USUAL[name], strict=True):
        found |= ~((low <= v) & (v <= high))
        if name == "atan2":
            found |= v == 0
    return found


@jit
def log2(x, out):
    for k in range(len(x)):
        out[k] = F(_log2(D(x[k])))
    return _within(x, _LEAST, _LARGEST)


@jit
def log10(x, out):
    for k in range(len(x)):
        out[k] = F(_log2(D(x[k])) * _LOG10_2)
    return _within(x, _LEAST, _LARGEST)


@jit
def cbrt(x, out):
    for k in range(len(x)):
        v = D(x[k])
        found = _exp2(_log2(abs(v)) * (1 / 3))
        found = -found if v < 0 else found
        out[k] = F(v if v == 0 else found)
    return _within(x, -_LARGEST, _LARGEST)


@jit
def tan(x, out):
    for k in range(len(x)):
        v = D(x[k])
        turns = np.floor(v * (2 / math.pi) + 0.5)
        r = v - turns * _QUARTER - turns * _REST
        z = r * r
        sine = r * (1 - z * (1 / 6 - z * (1 / 120 - z * (1 / 5040 - z * (1 / 362880 - z / 39916800)))))
        cosine = 1 - z * (1 / 2 - z * (1 / 24 - z * (1 / 720 - z * (1 / 40320 - z * (1 / 3628800 - z / 479001600)))))
        odd = np.int32(turns) & np.int32(1) != 0
        out[k] = F((-cosine if odd else sine) / (sine if odd else cosine))
    return _within(x, -_FAR, _FAR)


@jit
def asin(x, out):
    for k in range(len(x)):
        v = D(x[k])
        a = abs(v)
        out[k] = F(_signed(2 * _atan(a / (1 + math.sqrt(1 - a * a))), v, a, 1 / 6))
    return _within(x, -_LARGEST, _LARGEST)


@jit
def acos(x, out):
    for k in range(len(x)):
        v = D(x[k])
        out[k] = F(2 * _atan(math.sqrt((1 - v) / (1 + v))))
    return _within(x, -_LARGEST, _LARGEST)


@jit
def atan(x, out):
    for k in range(len(x)):
        v = D(x[k])
        a = abs(v)
        out[k] = F(_signed(_atan(a), v, a, -1 / 3))
    return _within(x, -_LARGEST, _LARGEST)


@jit
def sinh(x, out):
    for k in range(len(x)):
        v = D(x[k])
        a = abs(v)
        e = _exp2(a * _LOG2_E)
        out[k] = F(_signed(0.5 * (e - 1 / e), v, a, 1 / 6))
    return _within(x, -_STEEP, _STEEP)


@jit
def cosh(x, out):
    for k in range(len(x)):
        e = _exp2(abs(D(x[k])) * _LOG2_E)
        out[k] = F(0.5 * (e + 1 / e))
    return _within(x, -_STEEP, _STEEP)


@jit
def asinh(x, out):
    for k in range(len(x)):
        v = D(x[k])
        a = abs(v)
        out[k] = F(_signed(_log2(a + math.sqrt(a * a + 1)) * _LN_2, v, a, -1 / 6))
    return _within(x, -_LARGEST, _LARGEST)


@jit
def acosh(x, out):
    for k in range(len(x)):
        v = D(x[k])
        found = _log2(v + math.sqrt(v * v - 1)) * _LN_2
        out[k] = F(found if v >= 1 else math.nan)
    return _within(x, -_LARGEST, _LARGEST)


@jit
def atanh(x, out):
    for k in range(len(x)):
        v = D(x[k])
        a = abs(v)
        out[k] = F(_signed(0.5 * _LN_2 * _log2((1 + a) / (1 - a)), v, a, 1 / 3))
    return _within(x, -_BELOW_ONE, _BELOW_ONE)


@jit
def power(x, y, out):
    for k in range(len(x)):
        out[k] = F(_exp2(D(y[k]) * _log2(D(x[k]))))
    return _within(x, _LEAST, _LARGEST) and _within(y, -_LARGEST, _LARGEST)


@jit
def atan2(y, x, out):
    for k in range(len(x)):
        found = _atan(abs(D(y[k])) / abs(D(x[k])))
        found = math.pi - found if x[k] < 0 else found
        out[k] = F(-found if y[k] < 0 else found)
    zeros = 0
    for k in range(len(x)):
        zeros += 1 if x[k] == 0 or y[k] == 0 else 0
    return zeros == 0 and _within(x, -_LARGEST, _LARGEST) and _within(y, -_LARGEST, _LARGEST)
