"""Load and store pixels of three uint8 channels as words: one pixel and one more byte, two pixels and two more bytes,
and sixteen pixels without their fourth bytes."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: ARG001

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_BYTE, _WORD, _TWO = (ir.IntType(n) for n in (8, 32, 64))
PACKED = 16
"""Number of pixels that `store_pixels` and `mirror_pixels` process in one call."""


def _place(context, builder, kind, found, array, index):
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), found.as_pointer())


def _loader(of):
    def load(_typing, array, at):
        """Load an integer of several bytes from index ``at`` of the byte array ``array`` on, little-endian."""

        def generate(context, builder, signature, args):
            return builder.load(_place(context, builder, signature.args[0], of, *args), align=1)

        return (types.uint32 if of is _WORD else types.uint64)(array, types.int64), generate

    return load


def _store_pixels(_typing, words, first, array, at):
    """Store PACKED pixels from index ``at`` of ``array`` on: the low three bytes of each uint32 from words[first] on.
    As a loop, LLVM would make it scattered stores, which take five times as long."""

    def generate(context, builder, signature, args):
        four, three = ir.VectorType(_BYTE, 4 * PACKED), ir.VectorType(_BYTE, 3 * PACKED)
        given = builder.load(_place(context, builder, signature.args[0], four, *args[:2]), align=4)
        kept = ir.Constant(ir.VectorType(_WORD, 3 * PACKED), [4 * k + c for k in range(PACKED) for c in range(3)])
        pixels = builder.shuffle_vector(given, given, kept)
        builder.store(pixels, _place(context, builder, signature.args[2], three, *args[2:]), align=1)
        return context.get_dummy_value()

    return types.void(words, types.int64, array, types.int64), generate


def _mirror_pixels(_typing, source, at, target, to):
    """Copy PACKED pixels of three uint8 from ``source[at:]`` to ``target[to:]``, in reverse order."""

    def generate(context, builder, signature, args):
        three = ir.VectorType(_BYTE, 3 * PACKED)
        given = builder.load(_place(context, builder, signature.args[0], three, *args[:2]), align=1)
        order = [3 * (PACKED - 1 - k) + c for k in range(PACKED) for c in range(3)]
        mirrored = builder.shuffle_vector(given, given, ir.Constant(ir.VectorType(_WORD, 3 * PACKED), order))
        builder.store(mirrored, _place(context, builder, signature.args[2], three, *args[2:]), align=1)
        return context.get_dummy_value()

    return types.void(source, types.int64, target, types.int64), generate


load_word: Any = intrinsic(_loader(_WORD))
load_two: Any = intrinsic(_loader(_TWO))
store_pixels: Any = intrinsic(_store_pixels)
mirror_pixels: Any = intrinsic(_mirror_pixels)
