"""Missing colours of a line, with LLVM's vector types: without AVX-512, loops that write three channels are not
vectorised."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: ARG001

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

PIXELS = 32
"""Number of pixels that are computed at once; lines of the image need space for two more columns."""
_I32, _I64 = ir.IntType(32), ir.IntType(64)


def _coloured(_typing, lines, above, own, below, first, even, turned, out, at):
    """Compute PIXELS pixels of three channels, from column ``first`` + 1 on, from three of ``lines`` (of a type that
    holds the sum of four values), and write them to out[at:].

    In the line ``own``, green alternates with red or blue, which is at ``even`` positions (the first pixel or the one
    after it). That colour becomes the third channel, or the first if ``turned``; the lines above and below have the
    other one.
    """

    def generate(context, builder, signature, args):
        held = context.make_array(signature.args[0])(context, builder, args[0])
        data, room = held.data, builder.extract_value(held.shape, 1)
        wide = ir.VectorType(context.get_value_type(signature.args[0].dtype), PIXELS)
        narrow = context.get_value_type(signature.args[7].dtype)
        to = context.make_array(signature.args[7])(context, builder, args[7]).data
        size = context.get_abi_sizeof(narrow)

        def value(row, column):
            place = builder.add(builder.mul(args[row], room), builder.add(args[4], ir.Constant(_I64, column)))
            return builder.load(builder.bitcast(builder.gep(data, [place]), wide.as_pointer()), align=2 * size)

        def mean(total, bits):
            half, shift = (ir.Constant(wide, [k] * PIXELS) for k in (1 << (bits - 1), bits))
            return builder.lshr(builder.add(total, half), shift)

        def shuffled(a, b, order):
            return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, len(order)), list(order)))

        alternating = [
            ir.Constant(ir.VectorType(ir.IntType(1), PIXELS), [(k + odd) % 2 == 0 for k in range(PIXELS)])
            for odd in (0, 1)
        ]
        marked = builder.select(args[5], *alternating)
        beside = builder.add(value(2, 0), value(2, 2))
        upright = builder.add(value(1, 1), value(3, 1))
        corners = builder.add(builder.add(value(1, 0), value(1, 2)), builder.add(value(3, 0), value(3, 2)))
        here = value(2, 1)
        far = builder.select(marked, mean(corners, 2), mean(upright, 1))
        green = builder.select(marked, mean(builder.add(beside, upright), 2), here)
        near = builder.select(marked, here, mean(beside, 1))
        far, green, near = (builder.trunc(v, ir.VectorType(narrow, PIXELS)) for v in (far, green, near))
        red, blue = builder.select(args[6], near, far), builder.select(args[6], far, near)
        two, last = shuffled(red, green, range(2 * PIXELS)), shuffled(blue, blue, range(2 * PIXELS))
        made = shuffled(two, last, [k * PIXELS + i for i in range(PIXELS) for k in (0, 1, 2)])
        builder.store(made, builder.bitcast(builder.gep(to, [args[8]]), made.type.as_pointer()), align=size)
        return context.get_dummy_value()

    i64, flag = types.int64, types.boolean
    return types.void(lines, i64, i64, i64, i64, flag, flag, out, i64), generate


coloured: Any = intrinsic(_coloured)
