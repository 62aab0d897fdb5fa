"""Compiled fma: product and sum of float32 with a single rounding, as vector instructions compute it."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: ARG001

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic


def _fma(_typing, a, b, c):
    """Return a * b + c of float32 values, rounded once."""

    def generate(context, builder, signature, args):
        return builder.fma(*args)

    return types.float32(types.float32, types.float32, types.float32), generate


fma: Any = intrinsic(_fma)
