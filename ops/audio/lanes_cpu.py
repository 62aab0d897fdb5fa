"""Vectors of eight float32 SIMD lanes, as LLVM vector types: they compile for every processor, with registers of any
width. Numba's own loops would not vectorise such short rows.

A Fourier transform processes sixteen frames at once; a row holds one value of each: real parts of eight frames, then
imaginary parts, which are eight more frames (two real signals form one complex signal).
"""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: ARG001

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LANES = 8
ROW = 2 * LANES
"""Floats per row of a transform: real and imaginary part of one complex value in each of LANES transforms."""
_F32, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_LANES_TYPE = ir.VectorType(_F32, LANES)
_FUSE = ("contract",)  # products and sums may be fused to multiply-adds


class _Vectors:
    """Generator of LLVM code for arithmetic on vectors of floats, and for their loads and stores."""

    def __init__(self, context: Any, builder: Any, signature: Any, args: Any) -> None:
        self._context, self._builder, self._signature, self._args = context, builder, signature, args

    def array(self, k: int) -> Any:
        """Return the address of the elements of the array that is argument ``k`` of the generated function."""
        make = self._context.make_array(self._signature.args[k])
        return make(self._context, self._builder, self._args[k]).data

    def _pointer(self, base: Any, index: Any) -> Any:
        return self._builder.bitcast(self._builder.gep(base, [index]), _LANES_TYPE.as_pointer())

    def load(self, base: Any, index: Any) -> Any:
        return self._builder.load(self._pointer(base, index), align=4)

    def store(self, value: Any, base: Any, index: Any) -> None:
        self._builder.store(value, self._pointer(base, index), align=4)

    def number(self, base: Any, index: Any) -> Any:
        """Load one float and repeat it in all elements of a vector."""
        undefined = ir.Constant(_LANES_TYPE, ir.Undefined)
        value = self._builder.load(self._builder.gep(base, [index]))
        first = self._builder.insert_element(undefined, value, ir.Constant(_I32, 0))
        return self.shuffle(first, undefined, [0] * LANES)

    def constant(self, x: float) -> Any:
        return ir.Constant(_LANES_TYPE, [float(np.float32(x))] * LANES)

    def shuffle(self, a: Any, b: Any, places: list[int]) -> Any:
        return self._builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, LANES), places))

    def add(self, a: Any, b: Any) -> Any:
        return self._builder.fadd(a, b, flags=_FUSE)

    def sub(self, a: Any, b: Any) -> Any:
        return self._builder.fsub(a, b, flags=_FUSE)

    def mul(self, a: Any, b: Any) -> Any:
        return self._builder.fmul(a, b, flags=_FUSE)

    def plus(self, index: Any, n: int) -> Any:
        return self._builder.add(index, ir.Constant(_I64, n)) if n else index


def _transform_few(v: _Vectors, x: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return the discrete Fourier transform of 2, 3, 4 or 5 complex vectors, using symmetries to save operations."""

    def add(a: Any, b: Any) -> tuple[Any, Any]:
        return v.add(a[0], b[0]), v.add(a[1], b[1])

    def sub(a: Any, b: Any) -> tuple[Any, Any]:
        return v.sub(a[0], b[0]), v.sub(a[1], b[1])

    n = len(x)
    if n == 2:
        return [add(*x), sub(*x)]
    if n == 4:
        a, b, c, d = add(x[0], x[2]), sub(x[0], x[2]), add(x[1], x[3]), sub(x[1], x[3])
        turned = (d[1], d[0])  # -i d is (d[1], -d[0])
        return [
            add(a, c),
            (v.add(b[0], turned[0]), v.sub(b[1], turned[1])),
            sub(a, c),
            (v.sub(b[0], turned[0]), v.add(b[1], turned[1])),
        ]
    half = range(1, n // 2 + 1)
    plus, minus = [add(x[k], x[n - k]) for k in half], [sub(x[k], x[n - k]) for k in half]
    out: list[Any] = [x[0], *(None for _ in range(n - 1))]
    for p in plus:
        out[0] = add(out[0], p)
    for s in half:
        re, im = x[0]
        odd_re = odd_im = v.constant(0)
        for k in half:
            cos, sin = (v.constant(f(2 * math.pi * k * s / n)) for f in (math.cos, math.sin))
            re, im = v.add(re, v.mul(cos, plus[k - 1][0])), v.add(im, v.mul(cos, plus[k - 1][1]))
            odd_re = v.add(odd_re, v.mul(sin, minus[k - 1][1]))
            odd_im = v.add(odd_im, v.mul(sin, minus[k - 1][0]))
        out[s], out[n - s] = (v.add(re, odd_re), v.sub(im, odd_im)), (v.sub(re, odd_re), v.add(im, odd_im))
    return out


def _butterfly(radix: int) -> Any:
    def butterfly(_typing, work, at, step, twiddles, first):
        """Compute a small Fourier transform of the rows ``at``, ``at + step``, ... of ``work``, in place. Multiply all
        results but the first by the complex numbers from ``twiddles[first]`` on."""

        def generate(context, builder, signature, args):
            v = _Vectors(context, builder, signature, args)
            rows, turns = v.array(0), v.array(3)
            places = [args[1]]
            for _ in range(radix - 1):
                places.append(builder.add(places[-1], args[2]))
            values = [(v.load(rows, p), v.load(rows, v.plus(p, LANES))) for p in places]
            for k, (re, im) in enumerate(_transform_few(v, values)):
                if k:
                    a, b = (v.number(turns, v.plus(args[4], 2 * k - 2 + part)) for part in (0, 1))
                    re, im = v.sub(v.mul(re, a), v.mul(im, b)), v.add(v.mul(re, b), v.mul(im, a))
                v.store(re, rows, places[k])
                v.store(im, rows, v.plus(places[k], LANES))
            return context.get_dummy_value()

        return types.void(work, types.int64, types.int64, twiddles, types.int64), generate

    return intrinsic(butterfly)


butterfly_2, butterfly_3, butterfly_4, butterfly_5 = (_butterfly(radix) for radix in (2, 3, 4, 5))


def _gather(_typing, signal, at, step, window, n, work, to):
    """Load eight samples of eight frames into ``work``, from row ``to`` on, times ``window[n + k]``: sample k of frame
    l, which begins at ``at + l step``, goes to element l of row k."""

    def generate(context, builder, signature, args):
        v = _Vectors(context, builder, signature, args)
        source, weights, rows = v.array(0), v.array(3), v.array(5)
        weight, place, x = v.load(weights, args[4]), args[1], []
        for _ in range(LANES):
            x.append(v.mul(v.load(source, place), weight))
            place = builder.add(place, args[2])
        # three rounds, which exchange neighbours, pairs and halves
        for a, b, width in (
            ([0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15], 1),
            ([0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15], 2),
            ([0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15], 4),
        ):
            if width == 1:
                x = [v.shuffle(x[k], x[k + 1], m) for k in range(0, LANES, 2) for m in (a, b)]
            elif width == 2:
                x = [v.shuffle(x[g + h], x[g + h + 2], m) for g in (0, 4) for h in (0, 1) for m in (a, b)]
            else:
                x = [v.shuffle(x[k], x[k + 4], m) for m in (a, b) for k in range(4)]
        for k in range(LANES):
            v.store(x[k], rows, v.plus(args[6], ROW * k))
        return context.get_dummy_value()

    return types.void(signal, types.int64, types.int64, window, types.int64, work, types.int64), generate


gather: Any = intrinsic(_gather)


def _powers(_typing, work, p, q, out, at):
    """Compute squared magnitudes of sixteen frames at one frequency k. Frames x and y share one transform Z of x + i y:
    4 |X|^2 = |Z(k) + conj Z(-k)|^2 and 4 |Y|^2 = |Z(k) - conj Z(-k)|^2."""

    def generate(context, builder, signature, args):
        v = _Vectors(context, builder, signature, args)
        rows, target = v.array(0), v.array(3)
        (a, b), (c, d) = ((v.load(rows, place), v.load(rows, v.plus(place, LANES))) for place in (args[1], args[2]))
        for k, (re, im) in enumerate(((v.add(a, c), v.sub(b, d)), (v.add(b, d), v.sub(a, c)))):
            power = v.mul(v.constant(0.25), v.add(v.mul(re, re), v.mul(im, im)))
            v.store(power, target, v.plus(args[4], LANES * k))
        return context.get_dummy_value()

    return types.void(work, types.int64, types.int64, out, types.int64), generate


powers: Any = intrinsic(_powers)
