"""Compiled loop that makes several calls of C functions without the GIL."""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

ARGUMENTS = 11
"""Number of arguments that every call of a C function gets. Functions with fewer parameters ignore the others, which is
safe on x86-64 and AArch64: integers and pointers are passed in registers, then in slots of eight bytes, and only the
caller knows how many there are."""


def _typed(_typing: Any, _address: Any, _arguments: Any) -> tuple[Any, Any]:
    """Numba intrinsic: call the C function at an address with a tuple of integers; returns an int."""

    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        long = ir.IntType(64)
        function = builder.inttoptr(args[0], ir.FunctionType(ir.IntType(32), [long] * ARGUMENTS).as_pointer())
        return builder.call(function, [builder.extract_value(args[1], k) for k in range(ARGUMENTS)])

    arguments: Any = types.UniTuple
    return types.int32(types.int64, arguments(types.int64, ARGUMENTS)), code


call: Any = intrinsic(_typed)


@numba.njit("int32(int64[:, ::1], int64)", nogil=True, cache=True)
def call_all(calls: Any, count: Any) -> Any:
    """Call C functions, one for each of the first ``count`` rows of ``calls``, which hold a function's address and its
    arguments. Stop at a status other than 0 and return it; else return 0."""
    for k in range(count):
        c = calls[k]
        status = call(c[0], (c[1], c[2], c[3], c[4], c[5], c[6], c[7], c[8], c[9], c[10], c[11]))
        if status:
            return status
    return 0


@numba.njit("UniTuple(int64, 2)(int64[::1], int32[:, ::1])", cache=True)
def extent(offsets: Any, shapes: Any) -> Any:
    """Return where the first of one or more samples begins and where the last one ends, in elements. The loop keeps the
    GIL: it is shorter than the wait for a thread that would take the GIL meanwhile."""
    low, high = offsets[0], offsets[0]
    for i in range(len(offsets)):
        count = 1
        for k in range(shapes.shape[1]):
            count *= shapes[i, k]
        low, high = min(low, offsets[i]), max(high, offsets[i] + count)
    return low, high
