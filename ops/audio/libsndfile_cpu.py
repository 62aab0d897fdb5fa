"""Compiled callbacks through which libsndfile reads a file in memory; libsndfile calls them from C.

Their state is three numbers: address of the bytes, their number, and the current position.
"""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: ARG001

from __future__ import annotations

from typing import Any

import numba
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_SEEK_SET, _SEEK_CUR = 0, 1


def _copying(_typing, target, source, count):
    def generate(_context, builder, _signature, args):
        kind = cgutils.voidptr_t
        cgutils.raw_memcpy(builder, builder.inttoptr(args[0], kind), builder.inttoptr(args[1], kind), args[2], 1)
        return args[2]

    return types.int64(types.int64, types.int64, types.int64), generate


_copy_bytes: Any = intrinsic(_copying)

_State = types.CPointer(types.int64)


@numba.cfunc(types.int64(_State), cache=True)
def length(state):
    return state[1]


@numba.cfunc(types.int64(types.int64, types.int32, _State), cache=True)
def seek(offset, whence, state):
    at = offset if whence == _SEEK_SET else offset + (state[2] if whence == _SEEK_CUR else state[1])
    state[2] = min(max(at, 0), state[1])
    return state[2]


@numba.cfunc(types.int64(types.int64, types.int64, _State), cache=True)
def read(target, count, state):
    count = max(0, min(count, state[1] - state[2]))
    _copy_bytes(target, state[0] + state[2], count)
    state[2] += count
    return count


@numba.cfunc(types.int64(_State), cache=True)
def tell(state):
    return state[2]
