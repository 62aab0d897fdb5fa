"""Loops of resampling written in LLVM's vector types, because Numba compiles its own loops to scalar code here.

They compile for every processor, with registers of whatever width it has.
"""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: ARG001

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_F32, _I8, _I32, _I64 = ir.FloatType(), ir.IntType(8), ir.IntType(32), ir.IntType(64)


BLOCK = 16
"""Number of rows and of columns of `transpose`, and of bytes that `weigh_narrow` computes at once."""
LANES = 64
"""Number of bytes that `weigh_wide` computes at once."""


def _add_pixels(_typing, rows, pitch, starts, weights, taps, channels, count, out, out_pitch):
    """Compute pixels of two rows of ``out`` at once: pixel x is the sum over k < ``taps`` of weights[x, k] times pixel
    starts[x] + k of a row of ``rows``. The two rows are ``pitch`` and ``out_pitch`` elements apart (0 for one row).

    All arrays but ``starts`` are flat float32. ``count`` pixels are computed. A pixel is read and written as four
    values: rows need space for one more channel at their end, and values written beyond a pixel's channels are
    overwritten by the next pixel.
    """
    pixel_of, both_of = (ir.VectorType(_F32, n) for n in (4, 8))

    def generate(context, builder, signature, args):
        def lanes(first, number):
            return ir.Constant(ir.VectorType(_I32, number), list(range(first, first + number)))

        def load(pointer):
            return builder.load(builder.bitcast(pointer, pixel_of.as_pointer()), align=4)

        pixels, first_of, factors, result = (_data(context, builder, signature, args, k) for k in (0, 2, 3, 7))
        pitch, taps, stride, count, out_pitch = (args[k] for k in (1, 4, 5, 6, 8))
        same = ir.Constant(ir.VectorType(_I32, 8), [0] * 8)
        total = cgutils.alloca_once(builder, both_of)
        with cgutils.for_range(builder, count) as pixel:
            start = builder.sext(builder.load(builder.gep(first_of, [pixel.index])), _I64)
            place = builder.gep(pixels, [builder.mul(start, stride)])
            other = builder.gep(place, [pitch])
            factor = builder.gep(factors, [builder.mul(pixel.index, taps)])
            builder.store(ir.Constant(both_of, None), total)
            with cgutils.for_range(builder, taps) as tap:
                step = builder.mul(tap.index, stride)
                one, two = (load(builder.gep(line, [step])) for line in (place, other))
                weight = builder.load(builder.gep(factor, [tap.index]))
                weight = builder.insert_element(ir.Constant(both_of, ir.Undefined), weight, ir.Constant(_I32, 0))
                weight = builder.shuffle_vector(weight, weight, same)
                term = builder.fmul(weight, builder.shuffle_vector(one, two, lanes(0, 8)))
                builder.store(builder.fadd(builder.load(total), term), total)
            value = builder.load(total)
            made = builder.gep(result, [builder.mul(pixel.index, stride)])
            for k, line in enumerate((made, builder.gep(made, [out_pitch]))):
                four = builder.shuffle_vector(value, value, lanes(4 * k, 4))
                builder.store(four, builder.bitcast(line, pixel_of.as_pointer()), align=4)
        return context.get_dummy_value()

    number = types.int64
    return types.void(rows, number, starts, weights, number, number, number, out, number), generate


add_pixels: Any = intrinsic(_add_pixels)


def _data(context, builder, signature, args, k):
    return context.make_array(signature.args[k])(context, builder, args[k]).data


def _transpose(_typing, source, at, pitch, target, to, step):
    """Transpose sixteen rows of sixteen bytes: source[at:], ``pitch`` bytes apart, become columns in target[to:],
    ``step`` bytes apart."""

    def generate(context, builder, signature, args):
        row_of = ir.VectorType(_I8, BLOCK)
        read, write = (_data(context, builder, signature, args, k) for k in (0, 3))

        def place(data, start, distance, k):
            at = builder.add(start, builder.mul(distance, ir.Constant(_I64, k)))
            return builder.bitcast(builder.gep(data, [at]), row_of.as_pointer())

        rows = [builder.load(place(read, args[1], args[2], k), align=1) for k in range(BLOCK)]
        half = BLOCK // 2
        low, high = (
            ir.Constant(ir.VectorType(_I32, BLOCK), [v for k in range(half) for v in (begin + k, begin + k + BLOCK)])
            for begin in (0, half)
        )
        for _ in range(4):  # each step rotates the bits of (row, column) by one
            rows = [builder.shuffle_vector(rows[k], rows[k + half], mix) for k in range(half) for mix in (low, high)]
        for k, row in enumerate(rows):
            builder.store(row, place(write, args[4], args[5], k), align=1)
        return context.get_dummy_value()

    return types.void(source, types.int64, types.int64, target, types.int64, types.int64), generate


def _weigh(lanes):
    def weigh(_typing, source, at, pitch, weights, first, taps, bits, target, to):
        """Write the sums over k < ``taps`` of weights[first + k] times the bytes source[at + k pitch:] to target[to:]:
        unchanged if ``target`` is int32, otherwise divided by 2^``bits``, rounded and limited to 0 ... 255."""
        plain = target.dtype == types.int32

        def generate(context, builder, signature, args):
            bytes_of, sums_of = ir.VectorType(_I8, BLOCK), ir.VectorType(_I32, BLOCK)
            read, factors, write = (_data(context, builder, signature, args, k) for k in (0, 3, 7))
            start, pitch, first, taps, bits, to = (args[k] for k in (1, 2, 4, 5, 6, 8))
            same = ir.Constant(ir.VectorType(_I32, BLOCK), [0] * BLOCK)

            def spread(value):
                lane = builder.insert_element(ir.Constant(sums_of, ir.Undefined), value, ir.Constant(_I32, 0))
                return builder.shuffle_vector(lane, lane, same)

            one = ir.Constant(_I32, 1)
            half = ir.Constant(_I32, 0) if plain else builder.lshr(builder.shl(one, bits), one)
            totals = [cgutils.alloca_once(builder, sums_of) for _ in range(lanes // BLOCK)]
            begin = spread(half)
            for total in totals:
                builder.store(begin, total)
            with cgutils.for_range(builder, taps) as tap:
                weight = spread(builder.load(builder.gep(factors, [builder.add(first, tap.index)])))
                line = builder.add(start, builder.mul(tap.index, pitch))
                for k, total in enumerate(totals):
                    place = builder.gep(read, [builder.add(line, ir.Constant(_I64, k * BLOCK))])
                    values = builder.load(builder.bitcast(place, bytes_of.as_pointer()), align=1)
                    term = builder.mul(weight, builder.zext(values, sums_of))
                    builder.store(builder.add(builder.load(total), term), total)
            zero, top = ir.Constant(sums_of, [0] * BLOCK), ir.Constant(sums_of, [255] * BLOCK)
            for k, total in enumerate(totals):
                value = builder.load(total)
                if not plain:
                    value = builder.ashr(value, spread(bits))
                    value = builder.select(builder.icmp_signed("<", value, zero), zero, value)
                    value = builder.select(builder.icmp_signed(">", value, top), top, value)
                    value = builder.trunc(value, bytes_of)
                place = builder.gep(write, [builder.add(to, ir.Constant(_I64, k * BLOCK))])
                kind = sums_of if plain else bytes_of
                builder.store(value, builder.bitcast(place, kind.as_pointer()), align=4 if plain else 1)
            return context.get_dummy_value()

        numbers = types.int64, types.int64
        given = source, *numbers, weights, *numbers, types.int32, target, types.int64
        return types.void(*given), generate

    return weigh


transpose: Any = intrinsic(_transpose)
weigh_wide: Any = intrinsic(_weigh(LANES))
weigh_narrow: Any = intrinsic(_weigh(BLOCK))
