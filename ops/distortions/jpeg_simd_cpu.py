"""Losses of JPEG with vector instructions: RGB to Y, Cb and Cr with chroma of half the size; two blocks to frequencies,
to their quantised values, and back. The arithmetic is libjpeg's (jccolor.c, jcsample.c, jfdctint.c, jcdctmgr.c,
jidctint.c)."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: ARG001

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..codecs.jpeg.simd_cpu import PIXELS, _load, _multiply_add, _pack, _plus, _shuffle, _splat, _store, _transform

_I8, _I16, _I32, _I64 = (ir.IntType(n) for n in (8, 16, 32, 64))
_SHORT, _WIDE = ir.VectorType(_I16, 16), ir.VectorType(_I32, 8)


def _zipped(builder, a, b):
    """Interleave the numbers of the vectors ``a`` and ``b``, int16[16], separately in both halves of the vectors.
    Return the lower and the upper numbers."""
    return [
        _shuffle(builder, a, b, [at + k for half in (0, 8) for k in range(half + of, half + of + 4) for at in (0, 16)])
        for of in (0, 4)
    ]


def _transposed(builder, x):
    """Transpose two 8 x 8 blocks, given as eight vectors int16[16], whose halves are lines of the two blocks."""
    for _ in range(3):  # each round moves one bit of the line index to the column index, and one back
        x = [made for k in range(4) for made in _zipped(builder, x[k], x[k + 4])]
    return x


def _sums(builder, pairs, factors, bias, bits):
    """Compute int16[16]: for each element, the sum of the values of ``pairs`` (two vectors per pair) times ``factors``,
    plus ``bias``, divided by 2^bits."""
    found = []
    for half in (0, 1):
        total = _splat(_I32, 8, bias)
        for pair, factor in zip(pairs, factors, strict=True):
            total = builder.add(total, _multiply_add(builder, pair[half], *factor))
        found.append(builder.ashr(total, _splat(_I32, 8, bits)))
    return _pack(builder, found[0], found[1], signed=True)


# -- transforms of two blocks -----------------------------------------------------------------------------------------


def _rotations(t4: int, t5: int, t6: int, t7: int) -> list[int]:
    """Compute frequencies 1, 3, 5 and 7 of libjpeg's DCT (jfdctint.c) from four differences, scaled by 2^13."""
    z5 = (t4 + t6 + t5 + t7) * 9633  # 1.175875602
    z1, z2 = (t4 + t7) * -7373, (t5 + t6) * -20995  # 0.899976223, 2.562915447
    z3, z4 = (t4 + t6) * -16069 + z5, (t5 + t7) * -3196 + z5  # 1.961570560, 0.390180644
    return [
        t7 * 12299 + z1 + z4,  # 1.501321110
        t6 * 25172 + z2 + z3,  # 3.072711026
        t5 * 16819 + z2 + z4,  # 2.053119869
        t4 * 2446 + z1 + z3,  # 0.298631336
    ]


_UNITS = [_rotations(*(int(i == k) for i in range(4))) for k in range(4)]
"""Matrix of the odd frequencies of the DCT. Since integers are multiplied and added without loss, each result is a sum
of products with these 16-bit numbers."""


def _forward(builder, x, second):
    """Apply libjpeg's accurate forward DCT to eight vectors; the second pass removes the scale of the first. Sums fit
    into 16 bits: at most, they are four times the sum of eight values of -128 to 127."""
    add, sub = builder.add, builder.sub
    t = [add(x[k], x[7 - k]) for k in range(4)] + [sub(x[k], x[7 - k]) for k in (3, 2, 1, 0)]
    outer, inner = add(t[0], t[3]), add(t[1], t[2])
    two, bits = _splat(_I16, 16, 2), 15 if second else 11
    made: list[Any] = [None] * 8
    for k, value in ((0, add(outer, inner)), (4, sub(outer, inner))):
        made[k] = builder.ashr(add(value, two), two) if second else builder.shl(value, two)
    pair = _zipped(builder, sub(t[1], t[2]), sub(t[0], t[3]))
    for k, factors in ((2, (4433, 4433 + 6270)), (6, (4433 - 15137, 4433))):  # 0.541196100, 0.765366865, 1.847759065
        made[k] = _sums(builder, [pair], [factors], 1 << (bits - 1), bits)
    pairs = [_zipped(builder, t[4], t[5]), _zipped(builder, t[6], t[7])]
    for nth in range(4):
        of_pairs = [(_UNITS[k][nth], _UNITS[k + 1][nth]) for k in (0, 2)]
        made[2 * nth + 1] = _sums(builder, pairs, of_pairs, 1 << (bits - 1), bits)
    return made


def _inverse(builder, x, bias, bits):
    """Apply libjpeg's accurate inverse DCT to eight vectors."""
    pairs = [_zipped(builder, x[a], x[b]) for a, b in ((0, 4), (2, 6), (1, 3), (5, 7))]
    halves = [_transform(builder, [pair[half] for pair in pairs], bias) for half in (0, 1)]
    shift = _splat(_I32, 8, bits)
    return [
        _pack(builder, builder.ashr(low, shift), builder.ashr(high, shift), signed=True)
        for low, high in zip(*halves, strict=True)
    ]


def _high(builder, a, b):
    """Return the upper 16 bits of each product of the vectors ``a`` and ``b``, uint16[16]."""
    wide = ir.VectorType(_I32, 16)
    product = builder.mul(builder.zext(a, wide), builder.zext(b, wide))
    return builder.trunc(builder.lshr(product, _splat(_I32, 16, 16)), _SHORT)


def _there_and_back(_typing, source, step, factors, target, pitch):
    """Transform two adjacent blocks, rows of 16 int16 from -128 to 127 at address ``source``, ``step`` bytes apart, to
    frequencies; round these to multiples of the quantisation steps; transform back to rows of 16 uint8 at ``target``,
    ``pitch`` bytes apart. ``factors``, uint16[8, 3, 16]: for each line of frequencies of both blocks the steps, and two
    numbers that divide by eight steps: take the upper 16 bits of the product with the first, then of the product with
    the second."""

    def generate(context, builder, _signature, args):
        source, step, table, out, pitch = args

        def line(address, distance, k):
            return builder.add(address, builder.mul(distance, ir.Constant(_I64, k)))

        x = [_load(builder, line(source, step, k), _SHORT) for k in range(8)]
        x = _forward(builder, _transposed(builder, x), second=False)
        x = _forward(builder, _transposed(builder, x), second=True)
        for k in range(8):
            steps, first, then = (_load(builder, _plus(builder, table, 96 * k + 32 * n), _SHORT) for n in range(3))
            sign = builder.ashr(x[k], _splat(_I16, 16, 15))
            size = builder.sub(builder.xor(x[k], sign), sign)
            size = builder.add(size, builder.shl(steps, _splat(_I16, 16, 2)))
            level = builder.mul(_high(builder, _high(builder, size, first), then), steps)
            x[k] = builder.sub(builder.xor(level, sign), sign)
        x = _transposed(builder, _inverse(builder, x, 1 << 10, 11))
        x = _transposed(builder, _inverse(builder, x, (128 << 18) + (1 << 17), 18))
        for k in range(0, 8, 2):
            both = builder.bitcast(_pack(builder, x[k], x[k + 1], signed=False), ir.VectorType(_I64, 4))
            for n in range(2):
                _store(builder, _shuffle(builder, both, both, [n, n + 2]), line(out, pitch, k + n))
        return context.get_dummy_value()

    address = types.uint64
    return types.void(address, address, address, address, address), generate


there_and_back: Any = intrinsic(_there_and_back)


# -- colour conversion -----------------------------------------------------------------------------------------------


def _halved(builder, upper, lower):
    """Average chroma of 2 x 2 pixels, for 32 columns of two lines: int16[16] minus 128. As in libjpeg, the number added
    before the division alternates."""
    found = []
    for a, b in zip(upper, lower, strict=True):
        sums = _multiply_add(builder, builder.add(a, b), 1, 1)
        sums = builder.add(sums, ir.Constant(_WIDE, [1, 2] * 4))
        found.append(builder.sub(builder.ashr(sums, _splat(_I32, 8, 2)), _splat(_I32, 8, 128)))
    both = _pack(builder, found[0], found[1], signed=True)
    return _shuffle(builder, both, both, [0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15])


def _rgb_to_ycc(_typing, upper, lower, luma_upper, luma_lower, blue, red):
    """Convert PIXELS pixels at the addresses of two lines to luma, int16[PIXELS] per line, and to half as many Cb and
    Cr, all minus 128. Constants of jccolor.c; 38470 and 32768 do not fit into signed 16 bits, and are split."""

    def generate(context, builder, _signature, args):
        half, chroma = 1 << 15, []
        for at, to in ((args[0], args[2]), (args[1], args[3])):
            values = _load(builder, at, ir.VectorType(_I8, 3 * PIXELS))
            r, g, b = (
                builder.zext(_shuffle(builder, values, values, range(c, 3 * PIXELS, 3)), ir.VectorType(_I16, PIXELS))
                for c in range(3)
            )
            blues, reds = [], []
            for first in range(0, PIXELS, 16):
                own = range(first, first + 16)
                red_, green, blue_ = (_shuffle(builder, v, v, own) for v in (r, g, b))
                with_red, with_blue = _zipped(builder, red_, green), _zipped(builder, blue_, green)
                pairs = [with_red, with_blue]
                bias = half - (128 << 16)
                y = _sums(builder, pairs, [(19595, 38470 - 16384), (7471, 16384)], bias, 16)
                _store(builder, y, _plus(builder, to, 2 * first))
                bias = (128 << 16) + half - 1
                blues.append(_chroma(builder, with_red, (-11059, -21709), with_blue, bias))
                reds.append(_chroma(builder, with_blue, (-5329, -27439), with_red, bias))
            chroma.append((blues, reds))
        for upper, lower, to in zip(*chroma, args[4:], strict=True):
            _store(builder, _halved(builder, upper, lower), to)
        return context.get_dummy_value()

    address = types.uint64
    return types.void(address, address, address, address, address, address), generate


def _chroma(builder, pair, factors, own, bias):
    """Return one chroma channel as int16[16]: the sums of products of ``pair`` and ``factors``, plus 2^15 times the
    first value of each pair in ``own``."""
    found = []
    for half in (0, 1):
        first = builder.lshr(builder.shl(builder.bitcast(own[half], _WIDE), _splat(_I32, 8, 16)), _splat(_I32, 8, 1))
        total = builder.add(_multiply_add(builder, pair[half], *factors), builder.add(first, _splat(_I32, 8, bias)))
        found.append(builder.ashr(total, _splat(_I32, 8, 16)))
    return _pack(builder, found[0], found[1], signed=True)


rgb_to_ycc: Any = intrinsic(_rgb_to_ycc)
