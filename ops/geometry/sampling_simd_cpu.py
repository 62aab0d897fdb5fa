"""Four bytes at once, at any place of a uint8 array: a pixel of three channels and a byte more."""

# What Numba compiles carries no types.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: ARG001

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_WORD = ir.IntType(32)


def _place(context, builder, kind, array, index):
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), _WORD.as_pointer())


def _load_word(_typing, array, at):
    """The bytes at ``at`` to ``at`` + 3 of ``array``, the first one lowest."""

    def generate(context, builder, signature, args):
        return builder.load(_place(context, builder, signature.args[0], *args), align=1)

    return types.uint32(array, types.int64), generate


def _store_word(_typing, array, at, word):
    """Write the four bytes of ``word`` to ``at`` and the bytes after it."""

    def generate(context, builder, signature, args):
        builder.store(args[2], _place(context, builder, signature.args[0], *args[:2]), align=1)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.uint32), generate


load_word: Any = intrinsic(_load_word)
store_word: Any = intrinsic(_store_word)
