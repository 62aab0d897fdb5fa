"""fma: a product and a sum of float32 with one rounding, as vector instructions have it."""

# What Numba compiles carries no types.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: ARG001

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic


def _fma(_typing, a, b, c):
    """a * b + c of float32 values, rounded once."""

    def generate(context, builder, signature, args):
        return builder.fma(*args)

    return types.float32(types.float32, types.float32, types.float32), generate


fma: Any = intrinsic(_fma)
