"""Vectorised steps of a JPEG encoder on the CPU: colour, halved chroma, the forward DCT and quantisation of a block.

LLVM's vector types compile for every processor. Called by `encode_cpu`.
"""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: ARG001

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .simd_cpu import (
    _I8,
    _I16,
    _I32,
    _I64,
    _ZIGZAG,
    _load,
    _multiply_add,
    _pack,
    _plus,
    _shuffle,
    _splat,
    _store,
    _vector,
)

PIXELS = 32
"""Number of pixels that `rgb_to_ycc` converts, and of samples that `halve` produces, in one call."""


def _bit_length(_typing, value):
    """Return the number of bits of a uint64 without its leading zeros."""

    def generate(_context, builder, _signature, args):
        zeros = builder.ctlz(args[0], ir.Constant(ir.IntType(1), 0))
        return builder.sub(ir.Constant(_I64, 64), zeros)

    return types.uint64(types.uint64), generate


bit_length: Any = intrinsic(_bit_length)


# -- colour -----------------------------------------------------------------------------------------------------------


def _rgb_to_ycc(_typing, source, luma, blue, red):
    """Convert PIXELS pixels R, G, B at ``source`` to their Y, Cb and Cr; all arguments are addresses.

    JFIF's BT.601 in 16-bit fixed point; the constants and their rounding are libjpeg's. 38470 does not fit a
    multiplication of 16 bits: it is split into 22086 and 16384, the latter multiplied together with blue.
    """

    def generate(context, builder, _signature, args):
        pixels = _load(builder, args[0], _vector(_I8, 3 * PIXELS))
        found: list[list[Any]] = [[], [], []]
        for first in range(0, PIXELS, 8):
            r, g, b = (
                builder.zext(
                    _shuffle(builder, pixels, pixels, [3 * (first + i) + c for i in range(8)]), _vector(_I16, 8)
                )
                for c in range(3)
            )
            interleaved = [k for i in range(8) for k in (i, 8 + i)]
            red_green, blue_green = _shuffle(builder, r, g, interleaved), _shuffle(builder, b, g, interleaved)
            wide = _vector(_I32, 8)
            half = [builder.shl(builder.zext(x, wide), _splat(_I32, 8, 15)) for x in (b, r)]
            y = builder.add(
                _multiply_add(builder, red_green, 19595, 22086), _multiply_add(builder, blue_green, 7471, 16384)
            )
            cb = builder.add(_multiply_add(builder, red_green, -11059, -21709), half[0])
            cr = builder.add(_multiply_add(builder, blue_green, -5329, -27439), half[1])
            for to, value, offset in zip(found, (y, cb, cr), (32768, *2 * [(128 << 16) + 32767]), strict=True):
                to.append(builder.lshr(builder.add(value, _splat(_I32, 8, offset)), _splat(_I32, 8, 16)))
        for parts, address in zip(found, args[1:], strict=True):
            low, high = (_shuffle(builder, parts[k], parts[k + 1], range(16)) for k in (0, 2))
            _store(builder, builder.trunc(_shuffle(builder, low, high, range(32)), _vector(_I8, PIXELS)), address)
        return context.get_dummy_value()

    address = types.uint64
    return types.void(address, address, address, address), generate


rgb_to_ycc: Any = intrinsic(_rgb_to_ycc)


def _halve(_typing, upper, lower, target, even, odd):
    """Average each 2 x 2 samples of the rows ``upper`` and ``lower``, and write PIXELS averages to ``target``; all
    three are addresses. Before the division, ``even`` and ``odd`` (int64) are added to the sums of four in turn:
    libjpeg rounds halves up and down, column by column."""

    def generate(context, builder, _signature, args):
        short = _vector(_I16, PIXELS)
        total = ir.Constant(short, [0] * PIXELS)
        for address in args[:2]:
            samples = _load(builder, address, _vector(_I8, 2 * PIXELS))
            for k in (0, 1):
                total = builder.add(total, builder.zext(_shuffle(builder, samples, samples, range(k, 64, 2)), short))
        bias = ir.Constant(short, [0] * PIXELS)
        for k in (0, 1):
            bias = builder.insert_element(bias, builder.trunc(args[3 + k], _I16), ir.Constant(_I32, k))
        total = builder.add(total, _shuffle(builder, bias, bias, [0, 1] * (PIXELS // 2)))
        total = builder.lshr(total, _splat(_I16, PIXELS, 2))
        _store(builder, builder.trunc(total, _vector(_I8, PIXELS)), args[2])
        return context.get_dummy_value()

    address = types.uint64
    return types.void(address, address, address, types.int64, types.int64), generate


halve: Any = intrinsic(_halve)


# -- forward DCT ------------------------------------------------------------------------------------------------------

_ROWS = (0, 4, 1, 5, 2, 6, 3, 7)
"""Order of the eight rows (or columns) of a block in the four vectors that hold it, two in each."""
_PLACES = [_ROWS.index(k // 8) * 8 + k % 8 for k in _ZIGZAG]
"""For each zig-zag index, the position of its coefficient in the four vectors of `_ROWS`."""


def _odd_part(d: list[int]) -> list[int]:
    """Compute results 1, 3, 5 and 7 of libjpeg's accurate integer DCT in one dimension ("islow": Loeffler, Ligtenberg
    and Moschytz 1989, 13-bit constants), scaled by 2^13. ``d``: the differences x[k] - x[7 - k]."""
    z5 = sum(d) * 9633  # 1.175875602
    z1, z2 = (d[3] + d[0]) * -7373, (d[2] + d[1]) * -20995  # 0.899976223, 2.562915447
    z3, z4 = (d[3] + d[1]) * -16069 + z5, (d[2] + d[0]) * -3196 + z5  # 1.961570560, 0.390180644
    return [
        d[0] * 12299 + z1 + z4,  # 1.501321110
        d[1] * 25172 + z2 + z3,  # 3.072711026
        d[2] * 16819 + z2 + z4,  # 2.053119869
        d[3] * 2446 + z1 + z3,  # 0.298631336
    ]


_ODD = [_odd_part([int(i == k) for i in range(4)]) for k in range(4)]
"""Contribution of each of the four differences to the odd results of the DCT. Integers are multiplied and added
exactly, so each result is a sum of products with these 16-bit numbers."""
_EVEN = ((4433 + 6270, 4433), (4433, 4433 - 15137))
"""Contribution of the two inner sums to results 2 and 6 of the DCT, from the constants 0.541196100, 0.765366865 and
1.847759065."""


def _transposed(builder, x):
    """Transpose an 8 x 8 block: from four vectors that hold its rows (0, 4), (1, 5), (2, 6), (3, 7), to vectors that
    hold its columns (0, 1), (2, 3), (5, 4), (7, 6)."""
    low16 = [k for lane in (0, 8) for i in range(lane, lane + 4) for k in (i, 16 + i)]
    high16 = [k + 4 for k in low16]
    x = [_shuffle(builder, x[a], x[a + 1], half) for a in (0, 2) for half in (low16, high16)]
    x = [builder.bitcast(v, _vector(_I32, 8)) for v in x]
    low32 = [k for lane in (0, 4) for i in (lane, lane + 1) for k in (i, 8 + i)]
    high32 = [k + 2 for k in low32]
    x = [_shuffle(builder, x[a], x[a + 2], half) for a in (0, 1) for half in (low32, high32)]
    found = []
    for k, v in enumerate(x):
        order = [2, 3, 6, 7, 0, 1, 4, 5] if k >= 2 else [0, 1, 4, 5, 2, 3, 6, 7]
        found.append(builder.bitcast(_shuffle(builder, v, v, order), _vector(_I16, 16)))
    return found


def _half(builder, value, k):
    return _shuffle(builder, value, value, range(8 * k, 8 * k + 8))


def _paired(builder, value):
    """Interleave the numbers in the lower half of a vector with those in the upper half."""
    return _shuffle(builder, value, value, [k for i in range(8) for k in (i, 8 + i)])


def _two(builder, a, b, shift):
    """Convert two vectors int32[8] to one vector int16[16], dropping the lowest ``shift`` bits with rounding."""
    a, b = (builder.ashr(builder.add(v, _splat(_I32, 8, 1 << (shift - 1))), _splat(_I32, 8, shift)) for v in (a, b))
    both = builder.bitcast(_pack(builder, a, b, signed=True), _vector(_I64, 4))
    return builder.bitcast(_shuffle(builder, both, both, [0, 2, 1, 3]), _vector(_I16, 16))


def _pass(builder, x, shift, scale):
    """Compute the DCT of eight vectors, given as pairs (0, 1), (2, 3), (5, 4), (7, 6), along one dimension. Return the
    results as pairs (0, 4), (1, 5), (2, 6), (3, 7), divided by 2^``shift``. ``scale`` divides results 0 and 4, which
    lack the factor 2^13."""
    p, q, s, r = x
    sums, differences = [builder.add(p, r), builder.add(q, s)], [builder.sub(p, r), builder.sub(q, s)]
    turned = _shuffle(builder, sums[1], sums[1], [*range(8, 16), *range(8)])
    outer, inner = builder.add(sums[0], turned), builder.sub(sums[0], turned)
    a, b = _half(builder, outer, 0), _half(builder, outer, 1)
    first = scale(_shuffle(builder, builder.add(a, b), builder.sub(a, b), range(16)))
    inner = _paired(builder, inner)
    even = [_multiply_add(builder, inner, *factors) for factors in _EVEN]
    pairs = [_paired(builder, d) for d in differences]
    odd = [
        builder.add(
            _multiply_add(builder, pairs[0], _ODD[0][k], _ODD[1][k]),
            _multiply_add(builder, pairs[1], _ODD[2][k], _ODD[3][k]),
        )
        for k in range(4)
    ]
    return [
        first,
        _two(builder, odd[0], odd[2], shift),
        _two(builder, even[0], even[1], shift),
        _two(builder, odd[1], odd[3], shift),
    ]


def _forward_dct(_typing, source, pitch, tables, target):
    """Transform 8 x 8 samples by the DCT and quantise them: from ``source``, rows ``pitch`` bytes apart, to 64 int16 at
    ``target`` in zig-zag order. ``tables``: see `quantisers`. All arguments but ``pitch`` are addresses. Two extra bits
    are kept between the passes, as in libjpeg."""

    def generate(context, builder, _signature, args):
        source, pitch, tables, target = args
        short, wide = _vector(_I16, 16), _vector(_I32, 16)
        rows = [
            _load(builder, builder.add(source, builder.mul(pitch, ir.Constant(_I64, k))), _vector(_I8, 8))
            for k in range(8)
        ]
        x = [builder.zext(_shuffle(builder, rows[k], rows[k + 4], range(16)), short) for k in range(4)]
        x = [builder.sub(v, _splat(_I16, 16, 128)) for v in x]
        x = _pass(builder, _transposed(builder, x), 11, lambda v: builder.shl(v, _splat(_I16, 16, 2)))

        def rounded(v):
            return builder.ashr(builder.add(v, _splat(_I16, 16, 2)), _splat(_I16, 16, 2))

        x = _pass(builder, _transposed(builder, x), 15, rounded)

        def high(a, b):
            product = builder.mul(builder.zext(a, wide), builder.zext(b, wide))
            return builder.trunc(builder.lshr(product, _splat(_I32, 16, 16)), short)

        levels = []
        for k, value in enumerate(x):
            half, factor, scale = (_load(builder, _plus(builder, tables, 128 * n + 32 * k), short) for n in range(3))
            sign = builder.ashr(value, _splat(_I16, 16, 15))
            size = builder.sub(builder.xor(value, sign), sign)
            size = high(high(builder.add(size, half), factor), scale)
            levels.append(builder.sub(builder.xor(size, sign), sign))
        upper, lower = (_shuffle(builder, levels[k], levels[k + 1], range(32)) for k in (0, 2))
        both = _shuffle(builder, upper, lower, range(64))
        _store(builder, _shuffle(builder, both, both, _PLACES), target)
        return context.get_dummy_value()

    address = types.uint64
    return types.void(address, address, address, address), generate


forward_dct: Any = intrinsic(_forward_dct)


def quantisers(tables: npt.NDArray[np.int64]) -> npt.NDArray[np.uint16]:
    """Return quantisation tables for `forward_dct`, uint16[T, 3, 64], from tables int64[T, 64] in zig-zag order: half
    of each divisor, and two factors. The upper halves of products with both factors are exact quotients of numbers
    below 2^15.

    The divisor d is eight times the table's entry, because the transform's results are eight times too large. With 2^s
    < d <= 2^(s + 1) the factors are 2^(16 + s) / d, rounded up, and 2^(16 - s).
    """
    divisor = 8 * tables
    s = np.frompyfunc(lambda d: (int(d) - 1).bit_length() - 1, 1, 1)(divisor).astype(np.int64)
    rows = np.stack([divisor // 2, -(-(1 << (16 + s)) // divisor), 1 << (16 - s)], axis=1)
    placed = np.empty_like(rows)
    placed[:, :, _PLACES] = rows
    return placed.astype(np.uint16)
