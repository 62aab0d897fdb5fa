"""One gray channel from three, with LLVM's vector types: most of the time goes into loading every third byte."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: ARG001

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

PIXELS = 32
"""Number of pixels that are computed at once."""

_EIGHT = 8
_I8, _I32, _I64, _F32 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
_BYTES, _NUMBERS, _FLOATS = ir.VectorType(_I8, 32), ir.VectorType(_I32, _EIGHT), ir.VectorType(_F32, _EIGHT)
_BEFORE_HALF = 0.49999997019767761
"""The float32 just below 0.5: adding it to a float up to 255 and truncating rounds halves up, and never rounds up what
is below a half (0.5 itself would, because of the sum's rounding)."""


def _weighed(_typing, source, at, factors, target, to):
    """Convert PIXELS pixels of three bytes from source[at] on to gray, at target[to:]: the sum of the bytes times three
    ``factors`` (float32), plus the fourth factor, rounded half up and saturated."""

    def generate(context, builder, signature, args):
        given = context.make_array(signature.args[0])(context, builder, args[0]).data
        made = context.make_array(signature.args[3])(context, builder, args[3]).data
        half = ir.VectorType(_I8, 16)

        def place(data, index, more, kind):
            address = builder.gep(data, [builder.add(index, ir.Constant(_I64, more))])
            return builder.bitcast(address, kind.as_pointer())

        def same(value):
            lane = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), value, ir.Constant(_I32, 0))
            return builder.shuffle_vector(lane, lane, ir.Constant(ir.VectorType(_I32, _EIGHT), None))

        def number(value):
            return ir.Constant(_FLOATS, [value] * _EIGHT)

        weights = [same(builder.extract_value(args[2], k)) for k in range(4)]
        found = []
        for first in range(0, PIXELS, _EIGHT):
            # load 24 bytes as the first 16 and the last 16; each part holds four pixels
            parts = [
                builder.load(place(given, args[1], 3 * first + more, half), align=1) for more in (0, 24 - 16)
            ]  # fmt: skip
            both = builder.shuffle_vector(*parts, ir.Constant(ir.VectorType(_I32, 32), list(range(32))))
            total: Any = None
            for channel in range(3):
                begins = [3 * k + channel for k in range(4)] + [16 + 4 + 3 * k + channel for k in range(4)]
                order = [k for begin in begins for k in (begin, 32, 32, 32)]  # bytes, extended to 32 bits
                wide = builder.shuffle_vector(
                    both, ir.Constant(_BYTES, None), ir.Constant(ir.VectorType(_I32, 32), order)
                )
                value = builder.sitofp(builder.bitcast(wide, _NUMBERS), _FLOATS)
                term = builder.fmul(weights[channel], value)
                total = term if channel == 0 else builder.fadd(total, term)
            total = builder.fadd(total, weights[3])
            for limit, beyond in ((0.0, ">"), (255.0, "<")):
                total = builder.select(builder.fcmp_ordered(beyond, total, number(limit)), total, number(limit))
            found.append(builder.fptosi(builder.fadd(total, number(_BEFORE_HALF)), _NUMBERS))
        while len(found) > 1:
            count = found[0].type.count
            join = ir.Constant(ir.VectorType(_I32, 2 * count), list(range(2 * count)))
            found = [builder.shuffle_vector(a, b, join) for a, b in zip(found[::2], found[1::2], strict=True)]
        builder.store(builder.trunc(found[0], _BYTES), place(made, args[4], 0, _BYTES), align=1)
        return context.get_dummy_value()

    four = types.UniTuple(types.float32, 4)
    return types.void(source, types.int64, four, target, types.int64), generate


weighed: Any = intrinsic(_weighed)
