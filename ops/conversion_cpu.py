"""Compiled loop of `conversion`: convert many floats to integers in one pass."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def rounded(values, least, most, inside, high, out):
    """Write ``values`` [n], rounded half away from zero, NaN as 0, to ``out`` [n]. Limits of the output type: ``least``
    and ``most`` as floats, ``high`` the upper one as an integer, ``inside`` the float below it."""
    for k in range(len(values)):
        v = values[k]
        w = min(v if v > least else least, inside)
        t = np.int64(w)
        # The distance to the truncated value is exact; adding 0.5 before truncating is not (0.49999997 + 0.5 = 1).
        rest = w - values.dtype.type(t)
        t += np.int64(rest >= 0.5) - np.int64(rest <= -0.5)
        t = high if v >= most else t
        out[k] = t if v == v else 0
