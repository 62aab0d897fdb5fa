"""The horizontal pass over pixels of 3 or 4 float32 or int32 channels, two pixels at once as vectors of eight lanes.

Numba's own loops leave such short sums scalar; LLVM's vector types are written out here. They compile for every
processor, with registers of whatever width it has.
"""

# What Numba compiles carries no types.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: ARG001

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_F32, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)


def _add_pixel_pairs(_typing, row, starts, weights, count, channels, pairs, out):
    """Pixel x of ``out`` is the sum over k < ``count`` of its weight k times pixel starts[x] + k of ``row``.

    All flat; ``pairs`` pixels times two are made. ``weights`` holds, for each pair and k, the weights of the two
    pixels. A pixel is read and written as four values: both arrays need room
    for one channel more at their end, and what a pixel writes beyond its channels the next one overwrites.
    """

    lane = _F32 if row.dtype == types.float32 else _I32
    two_of, pixel_of, pair_of = (ir.VectorType(lane, n) for n in (2, 4, 8))

    def generate(context, builder, signature, args):
        multiply, add = (builder.fmul, builder.fadd) if lane is _F32 else (builder.mul, builder.add)

        def data(k):
            return context.make_array(signature.args[k])(context, builder, args[k]).data

        def constant(k):
            return ir.Constant(_I64, k)

        def lanes(first, number):
            return ir.Constant(ir.VectorType(_I32, number), list(range(first, first + number)))

        def load(pointer, kind):
            return builder.load(builder.bitcast(pointer, kind.as_pointer()), align=4)

        pixels, first_of, factors, result = data(0), data(1), data(2), data(6)
        taps, stride = args[3], args[4]
        spread = ir.Constant(ir.VectorType(_I32, 8), [0] * 4 + [1] * 4)
        total = cgutils.alloca_once(builder, pair_of)
        with cgutils.for_range(builder, args[5]) as pair:
            first = builder.shl(pair.index, constant(1))
            places = [
                builder.gep(pixels, [builder.mul(builder.sext(builder.load(place), _I64), stride)])
                for place in (builder.gep(first_of, [builder.add(first, constant(k))]) for k in (0, 1))
            ]
            factor = builder.gep(factors, [builder.mul(pair.index, builder.shl(taps, constant(1)))])
            builder.store(ir.Constant(pair_of, None), total)
            with cgutils.for_range(builder, taps) as tap:
                step = builder.mul(tap.index, stride)
                one, other = (load(builder.gep(place, [step]), pixel_of) for place in places)
                two = load(builder.gep(factor, [builder.shl(tap.index, constant(1))]), two_of)
                weight = builder.shuffle_vector(two, two, spread)
                term = multiply(weight, builder.shuffle_vector(one, other, lanes(0, 8)))
                builder.store(add(builder.load(total), term), total)
            value = builder.load(total)
            for k in (0, 1):
                place = builder.gep(result, [builder.mul(builder.add(first, constant(k)), stride)])
                pixel = builder.shuffle_vector(value, value, lanes(4 * k, 4))
                builder.store(pixel, builder.bitcast(place, pixel_of.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(row, starts, weights, types.int64, types.int64, types.int64, out), generate


add_pixel_pairs: Any = intrinsic(_add_pixel_pairs)
