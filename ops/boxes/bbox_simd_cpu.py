"""Overlap of a window with eight boxes at once, with LLVM's vector types."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: ARG001

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

TOGETHER = 8
"""Number of boxes that `covered` processes at once; arrays of boxes must have space for a multiple of it."""
VOLUME = 6
"""Row of the volumes in an array of boxes; the rows before hold the starts, then the ends, on three axes."""

_I64 = ir.IntType(64)
_OF = ir.VectorType(ir.FloatType(), TOGETHER)


def _covered(_typing, boxes, first, low, high, volume, overlap, best, threshold, out):
    """Write to ``out`` how much a window (its start and end on three axes, its volume) covers of each of the boxes from
    ``first`` on, or their intersection over union. ``boxes``: float32[VOLUME + 1, capacity]. Return the set of boxes
    whose value is at most ``best`` and below ``threshold``, one bit per box. There are no branches, because no
    processor can predict which boxes a random window touches."""

    def generate(context, builder, signature, args):
        held = context.make_array(signature.args[0])(context, builder, args[0])
        data, room = held.data, builder.extract_value(held.shape, 1)
        to = context.make_array(signature.args[8])(context, builder, args[8]).data
        zero = ir.Constant(_OF, None)

        def same(value):
            lane = builder.insert_element(ir.Constant(_OF, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
            return builder.shuffle_vector(lane, lane, ir.Constant(ir.VectorType(ir.IntType(32), TOGETHER), None))

        def line(k):
            at = builder.gep(data, [builder.add(builder.mul(room, ir.Constant(_I64, k)), args[1])])
            return builder.load(builder.bitcast(at, _OF.as_pointer()), align=4)

        def chosen(sign, a, b):
            return builder.select(builder.fcmp_ordered(sign, a, b), a, b)

        both: Any = None
        for axis in range(3):
            a = chosen(">", same(builder.extract_value(args[2], axis)), line(axis))
            b = chosen("<", same(builder.extract_value(args[3], axis)), line(3 + axis))
            extent = builder.select(builder.fcmp_ordered(">", b, a), builder.fsub(b, a), zero)
            both = extent if axis == 0 else builder.fmul(both, extent)
        volumes = line(VOLUME)
        union = builder.fsub(builder.fadd(same(args[4]), volumes), both)
        part = builder.fdiv(both, builder.select(args[5], volumes, union))
        builder.store(part, builder.bitcast(to, _OF.as_pointer()), align=4)
        worse = builder.and_(
            builder.fcmp_ordered("<=", part, same(args[6])), builder.fcmp_ordered("<", part, same(args[7]))
        )
        return builder.zext(builder.bitcast(worse, ir.IntType(TOGETHER)), _I64)

    number, three = types.float32, types.UniTuple(types.float32, 3)
    return types.int64(boxes, types.int64, three, three, number, types.boolean, number, number, out), generate


covered: Any = intrinsic(_covered)
