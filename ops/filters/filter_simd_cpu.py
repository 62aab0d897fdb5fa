"""Sums of `filter` with LLVM's vector types: two lines of results at once, whose partial sums stay in registers."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: ARG001

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_LANES, _VECTORS = 8, 4
BLOCK = _LANES * _VECTORS
"""Number of values that are computed at once: lines need space for a multiple of it."""
_KNOWN = ((3, 3), (5, 3))
"""Pairs (columns of a filter, channels) for which loops with constant addresses are compiled: a quarter less time."""
_FUSE = ("contract",)  # products and sums may be fused to multiply-adds
_F32, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_OF = ir.VectorType(_F32, _LANES)


def _two_lines(_typing, lines, places, slices, rows, taps, apart, weights, first, blocks, totals, at, pitch):
    """Compute two lines of ``blocks`` BLOCKs, from totals[at] on and ``pitch`` apart: sums of the filter's values
    (``slices`` x ``rows`` x ``taps``, from weights[first] on) times values of ``lines`` that are ``apart`` from each
    other. Each slice has one line more than the filter has rows; ``places`` holds where they begin. The second result
    skips the first of these lines."""

    def generate(context, builder, signature, args):
        def data(k):
            return context.make_array(signature.args[k])(context, builder, args[k]).data

        def number(k):
            return ir.Constant(_I64, k)

        given, begins, factors, result = data(0), data(1), data(6), data(9)
        slices, rows, taps, apart, first, blocks, start, pitch = (args[k] for k in (2, 3, 4, 5, 7, 8, 10, 11))
        same = ir.Constant(ir.VectorType(_I32, _LANES), [0] * _LANES)
        lines_of, one = builder.add(rows, number(1)), number(1)
        sums = [[cgutils.alloca_once(builder, _OF) for _ in range(_VECTORS)] for _ in range(2)]

        def make(taps, apart):
            def weight(row, tap):
                at = builder.add(builder.mul(row, taps), builder.add(tap, first))
                value = builder.load(builder.gep(factors, [at]))
                lane = builder.insert_element(ir.Constant(_OF, ir.Undefined), value, ir.Constant(_I32, 0))
                return builder.shuffle_vector(lane, lane, same)

            with cgutils.for_range(builder, blocks) as block:
                x = builder.mul(block.index, number(BLOCK))
                target = builder.add(x, start)
                for total in (*sums[0], *sums[1]):
                    builder.store(ir.Constant(_OF, None), total)
                with cgutils.for_range(builder, slices) as slice_:
                    own, before = builder.mul(slice_.index, rows), builder.mul(slice_.index, lines_of)

                    def add(line, which, own=own, before=before):
                        begin = builder.add(builder.load(builder.gep(begins, [builder.add(before, line)])), x)
                        with cgutils.for_range(builder, taps) as tap:
                            at = builder.add(begin, builder.mul(tap.index, apart))
                            factor = [weight(builder.sub(builder.add(own, line), number(k)), tap.index) for k in which]
                            for v in range(_VECTORS):
                                place = builder.gep(given, [builder.add(at, number(v * _LANES))])
                                values = builder.load(builder.bitcast(place, _OF.as_pointer()), align=4)
                                for k, f in zip(which, factor, strict=True):
                                    term, total = builder.fmul(f, values, flags=_FUSE), sums[k][v]
                                    builder.store(builder.fadd(builder.load(total), term, flags=_FUSE), total)

                    add(number(0), (0,))
                    with cgutils.for_range_slice(builder, one, rows, one, intp=_I64) as (line, _):
                        add(line, (0, 1))
                    add(rows, (1,))
                for k, line in enumerate(sums):
                    for v, total in enumerate(line):
                        at = builder.add(builder.add(target, number(v * _LANES)), builder.mul(pitch, number(k)))
                        to = builder.bitcast(builder.gep(result, [at]), _OF.as_pointer())
                        builder.store(builder.load(total), to, align=4)

        def make_one_of(known):
            if not known:
                make(taps, apart)
                return
            same_taps, same_apart = (
                builder.icmp_signed("==", value, number(k)) for value, k in zip((taps, apart), known[0], strict=True)
            )
            with builder.if_else(builder.and_(same_taps, same_apart)) as (so, otherwise):
                with so:
                    make(*(number(k) for k in known[0]))
                with otherwise:
                    make_one_of(known[1:])

        make_one_of(_KNOWN)
        return context.get_dummy_value()

    i64 = types.int64
    return types.void(lines, places, i64, i64, i64, i64, weights, i64, i64, totals, i64, i64), generate


two_lines: Any = intrinsic(_two_lines)
