"""Steps of a JPEG decoder on the CPU on many values at once: memory by address, the inverse DCT of a block, Y, Cb, Cr
to R, G, B. LLVM's vector types compile for every processor, with registers of whatever width it has.
"""

# What Numba compiles carries no types.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: ARG001

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_I8, _I16, _I32, _I64 = (ir.IntType(n) for n in (8, 16, 32, 64))

LIMIT = 8192
"""Coefficients, and values between the passes, in [-LIMIT, LIMIT) neither wrap here nor in libjpeg-turbo's 16 bits."""


def _vector(kind: Any, n: int) -> Any:
    return ir.VectorType(kind, n)


def _splat(kind: Any, n: int, value: int) -> Any:
    return ir.Constant(_vector(kind, n), [value] * n)


def _load(builder, address, kind, align=1):
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=align)


def _store(builder, value, address, align=1):
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=align)


def _plus(builder, address, n):
    return builder.add(address, ir.Constant(_I64, n)) if n else address


def _shuffle(builder, a, b, places):
    return builder.shuffle_vector(a, b, ir.Constant(_vector(_I32, len(places)), list(places)))


def _loader(bits: int, big_endian: bool = False) -> Any:
    def load(_typing, address):
        def generate(_context, builder, _signature, args):
            value = _load(builder, args[0], ir.IntType(bits))
            if big_endian:
                value = builder.bswap(value)
            return value if bits == 64 else builder.zext(value, _I64)

        return types.uint64(types.uint64), generate

    return intrinsic(load)


big_endian_64: Any = _loader(64, True)
"""Eight bytes at an address as one number, the first byte highest."""
u8_at: Any = _loader(8)
u16_at: Any = _loader(16)
u64_at: Any = _loader(64)


def _putter(bits: int) -> Any:
    def put(_typing, address, value):
        def generate(context, builder, _signature, args):
            value = args[1] if bits == 64 else builder.trunc(args[1], ir.IntType(bits))
            _store(builder, value, args[0])
            return context.get_dummy_value()

        return types.void(types.uint64, types.uint64), generate

    return intrinsic(put)


put_u8: Any = _putter(8)
"""The low 8 bits of a number to an address."""
put_i16: Any = _putter(16)
"""The low 16 bits of a number to an address."""
put_u64: Any = _putter(64)


def _zero_block(_typing, address):
    """128 zeros at ``address``."""

    def generate(context, builder, _signature, args):
        _store(builder, _splat(_I64, 16, 0), args[0])
        return context.get_dummy_value()

    return types.void(types.uint64), generate


zero_block: Any = intrinsic(_zero_block)


def _copy_64(_typing, source, target):
    """Copy 64 bytes; bit i of what is returned says that byte i is FF."""

    def generate(_context, builder, _signature, args):
        values = _load(builder, args[0], _vector(_I8, 64))
        _store(builder, values, args[1])
        return builder.bitcast(builder.icmp_unsigned("==", values, _splat(_I8, 64, 255)), _I64)

    return types.uint64(types.uint64, types.uint64), generate


copy_64: Any = intrinsic(_copy_64)


def _lowest_bit(_typing, mask):
    """Place of the lowest bit of ``mask``, which is not 0."""

    def generate(_context, builder, _signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate


lowest_bit: Any = intrinsic(_lowest_bit)


def _nonzero_mask(_typing, address):
    """Bit i: the int16 i of 64 from ``address`` on is not 0."""

    def generate(_context, builder, _signature, args):
        values = _load(builder, args[0], _vector(_I16, 64))
        return builder.bitcast(builder.icmp_unsigned("!=", values, _splat(_I16, 64, 0)), _I64)

    return types.uint64(types.uint64), generate


nonzero_mask: Any = intrinsic(_nonzero_mask)


_ROWS = (
    0, 1, 5, 6, 14, 15, 27, 28, 2, 4, 7, 13, 16, 26, 29, 42, 3, 8, 12, 17, 25, 30, 41, 43, 9, 11, 18, 24, 31, 40, 44,
    53, 10, 19, 23, 32, 39, 45, 52, 54, 20, 22, 33, 38, 46, 51, 55, 60, 21, 34, 37, 47, 50, 56, 59, 61, 35, 36, 48, 49,
    57, 58, 62, 63,
)  # fmt: skip
"""Of 8 * row + column the place in a zig-zag (T.81, figure A.6)."""


def _zigzag_to_rows(_typing, source, target):
    """Copy 64 int16 in the order of a zig-zag to ``target`` in that of rows."""

    def generate(context, builder, _signature, args):
        values = _load(builder, args[0], _vector(_I16, 64))
        _store(builder, _shuffle(builder, values, values, _ROWS), args[1])
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64), generate


zigzag_to_rows: Any = intrinsic(_zigzag_to_rows)


# -- inverse DCT ------------------------------------------------------------------------------------------------------


def _transform(builder, x, bias):
    """One dimension of libjpeg's accurate integer inverse DCT ("islow": Loeffler, Ligtenberg and Moschytz 1989, 13-bit
    constants) over eight vectors. The result is scaled by 2^13; ``bias`` is added to it."""
    kind = x[0].type
    add, sub = builder.add, builder.sub

    def times(value, factor):
        return builder.mul(value, ir.Constant(kind, [factor] * kind.count))

    z1 = times(add(x[2], x[6]), 4433)  # 0.541196100
    even2 = sub(z1, times(x[6], 15137))  # 1.847759065
    even3 = add(z1, times(x[2], 6270))  # 0.765366865
    offset = ir.Constant(kind, [bias] * kind.count)
    even0 = add(times(add(x[0], x[4]), 8192), offset)
    even1 = add(times(sub(x[0], x[4]), 8192), offset)
    sums = [add(even0, even3), add(even1, even2), sub(even1, even2), sub(even0, even3)]

    z3, z4 = add(x[7], x[3]), add(x[5], x[1])
    z5 = times(add(z3, z4), 9633)  # 1.175875602
    z3 = sub(z5, times(z3, 16069))  # 1.961570560
    z4 = sub(z5, times(z4, 3196))  # 0.390180644
    z1 = times(add(x[7], x[1]), 7373)  # 0.899976223
    z2 = times(add(x[5], x[3]), 20995)  # 2.562915447
    odd = [
        add(sub(times(x[1], 12299), z1), z4),  # 1.501321110
        add(sub(times(x[3], 25172), z2), z3),  # 3.072711026
        add(sub(times(x[5], 16819), z2), z4),  # 2.053119869
        add(sub(times(x[7], 2446), z1), z3),  # 0.298631336
    ]
    return [add(s, o) for s, o in zip(sums, odd, strict=True)] + [
        sub(s, o) for s, o in zip(sums[::-1], odd[::-1], strict=True)
    ]


def _transpose(builder, rows):
    """Eight vectors of eight values, transposed: three perfect shuffles."""
    low, high = [0, 8, 1, 9, 2, 10, 3, 11], [4, 12, 5, 13, 6, 14, 7, 15]
    for _ in range(3):
        rows = [_shuffle(builder, rows[i], rows[i + 4], half) for i in range(4) for half in (low, high)]
    return rows


def _inverse_dct(_typing, coefficients, factors, target, pitch, seen):
    """A block of coefficients (int16[64] by rows) times ``factors`` (int32[64]), transformed, to rows of uint8 at
    ``target``, ``pitch`` apart. All but the last are addresses and bytes.

    ``seen`` (int32[8]) collects the bits of all values between, LIMIT added: any above the lowest 14 says that one was
    out of range. Two extra bits are kept between the passes, as in libjpeg.
    """

    def generate(context, builder, _signature, args):
        source, table, out, step, log = args
        wide = _vector(_I32, 8)
        limit = _splat(_I32, 8, LIMIT)
        found = _load(builder, log, wide)
        x = []
        for i in range(8):
            values = builder.sext(_load(builder, _plus(builder, source, 16 * i), _vector(_I16, 8)), wide)
            x.append(builder.mul(values, _load(builder, _plus(builder, table, 32 * i), wide)))
            found = builder.or_(found, builder.add(x[i], limit))
        x = [builder.ashr(v, _splat(_I32, 8, 11)) for v in _transform(builder, x, 1 << 10)]
        for v in x:
            found = builder.or_(found, builder.add(v, limit))
        _store(builder, found, log)
        x = _transpose(builder, [builder.trunc(v, _vector(_I16, 8)) for v in x])
        x = [builder.sext(v, wide) for v in x]
        x = _transform(builder, x, (128 << 18) + (1 << 17))
        pairs = []
        for i in range(4):
            both = _shuffle(builder, x[i], x[i + 4], range(16))
            both = builder.ashr(both, _splat(_I32, 16, 18))
            pairs.append(_to_bytes(builder, both))
        low = [k for i in range(8) for k in (i, 16 + i)]
        high = [k + 8 for k in low]
        c01, c45 = (_shuffle(builder, pairs[0], pairs[1], half) for half in (low, high))
        c23, c67 = (_shuffle(builder, pairs[2], pairs[3], half) for half in (low, high))
        words = [builder.bitcast(v, _vector(_I16, 8)) for v in (c01, c23, c45, c67)]
        low, high = [0, 8, 1, 9, 2, 10, 3, 11], [4, 12, 5, 13, 6, 14, 7, 15]
        for half, first in ((low, 0), (high, 4)):
            left, right = (
                builder.bitcast(_shuffle(builder, words[k], words[k + 1], half), _vector(_I32, 4)) for k in (0, 2)
            )
            for part, row in (([0, 4, 1, 5], first), ([2, 6, 3, 7], first + 2)):
                two = builder.bitcast(_shuffle(builder, left, right, part), _vector(_I64, 2))
                for k in (0, 1):
                    place = builder.add(out, builder.mul(step, ir.Constant(_I64, row + k)))
                    _store(builder, builder.extract_element(two, ir.Constant(_I32, k)), place)
        return context.get_dummy_value()

    address = types.uint64
    return types.void(address, address, address, address, address), generate


inverse_dct: Any = intrinsic(_inverse_dct)


def _to_bytes(builder, values):
    """Integers saturated to uint8."""
    kind = values.type
    for limit, smaller in ((0, True), (255, False)):
        bound = ir.Constant(kind, [limit] * kind.count)
        beyond = builder.icmp_signed("<" if smaller else ">", values, bound)
        values = builder.select(beyond, bound, values)
    return builder.trunc(values, _vector(_I8, kind.count))


# -- colour -----------------------------------------------------------------------------------------------------------

PIXELS = 32
"""That `ycc_to_rgb` makes at once."""


def _ycc_to_rgb(_typing, luma, blue, red, target, bgr):
    """PIXELS pixels from addresses of their Y, Cb and Cr to interleaved R, G, B (or B, G, R) at ``target``.

    jdcolor's 16-bit constants, 1.40200, 0.34414, 0.71414 and 1.77200 times 2^16, less the whole numbers: what is left
    fits a multiplication of 16 bits. (2 c k >> 16) + 1 >> 1 is c k + 2^15 >> 16.
    """

    def generate(context, builder, _signature, args):
        short, wide = _vector(_I16, PIXELS), _vector(_I32, PIXELS)

        def load(address):
            return builder.zext(_load(builder, address, _vector(_I8, PIXELS)), short)

        def of(kind, value):
            return ir.Constant(kind, [value] * PIXELS)

        def product(value, factor):
            long = builder.mul(builder.sext(builder.shl(value, of(short, 1)), wide), of(wide, factor))
            high = builder.trunc(builder.ashr(long, of(wide, 16)), short)
            return builder.ashr(builder.add(high, of(short, 1)), of(short, 1))

        y = load(args[0])
        cb, cr = (builder.sub(load(args[k]), of(short, 128)) for k in (1, 2))
        r = builder.add(builder.add(y, cr), product(cr, 26345))
        b = builder.add(builder.add(y, builder.shl(cb, of(short, 1))), product(cb, -14942))
        sums = builder.add(
            builder.mul(builder.sext(cb, wide), of(wide, -22554)), builder.mul(builder.sext(cr, wide), of(wide, 18734))
        )
        g = builder.trunc(builder.ashr(builder.add(sums, of(wide, 1 << 15)), of(wide, 16)), short)
        g = builder.sub(builder.add(y, g), cr)
        r, g, b = (_to_bytes(builder, v) for v in (r, g, b))
        first, third = builder.select(args[4], b, r), builder.select(args[4], r, b)
        two = _shuffle(builder, first, g, range(2 * PIXELS))
        last = _shuffle(builder, third, third, range(2 * PIXELS))
        order = [k * PIXELS + i for i in range(PIXELS) for k in (0, 1, 2)]
        _store(builder, _shuffle(builder, two, last, order), args[3])
        return context.get_dummy_value()

    address = types.uint64
    return types.void(address, address, address, address, types.boolean), generate


ycc_to_rgb: Any = intrinsic(_ycc_to_rgb)
