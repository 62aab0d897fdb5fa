"""Vectorised steps of a JPEG decoder on the CPU: memory by address, the inverse DCT of a block, Y, Cb, Cr to R, G, B.

LLVM's vector types compile for every processor, with registers of whatever width it has.
"""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: ARG001

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from ...compiled.target import compiles_with

_I8, _I16, _I32, _I64 = (ir.IntType(n) for n in (8, 16, 32, 64))

LIMIT = 8192
"""Limit on coefficients, and on values between the two passes of the inverse DCT. Values in [-LIMIT, LIMIT) overflow
neither here nor in libjpeg-turbo's 16 bits."""


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


def _loader(bits: int, big_endian: bool = False, signed: bool = False) -> Any:
    def load(_typing, address):
        def generate(_context, builder, _signature, args):
            value = _load(builder, args[0], ir.IntType(bits))
            if big_endian:
                value = builder.bswap(value)
            extend = builder.sext if signed else builder.zext
            return value if bits == 64 else extend(value, _I64)

        return (types.int64 if signed else types.uint64)(types.uint64), generate

    return intrinsic(load)


big_endian_64: Any = _loader(64, True)
"""Read eight bytes at an address as one number, the first byte highest."""
u8_at: Any = _loader(8)
u16_at: Any = _loader(16)
u32_at: Any = _loader(32)
u64_at: Any = _loader(64)
i16_at: Any = _loader(16, signed=True)
i32_at: Any = _loader(32, signed=True)


def _putter(bits: int) -> Any:
    def put(_typing, address, value):
        def generate(context, builder, _signature, args):
            value = args[1] if bits == 64 else builder.trunc(args[1], ir.IntType(bits))
            _store(builder, value, args[0])
            return context.get_dummy_value()

        return types.void(types.uint64, types.uint64), generate

    return intrinsic(put)


put_u8: Any = _putter(8)
"""Write the low 8 bits of a number to an address."""
put_i16: Any = _putter(16)
"""Write the low 16 bits of a number to an address."""
put_u32: Any = _putter(32)
"""Write the low 32 bits of a number to an address."""
put_u64: Any = _putter(64)


def _zero_block(_typing, address):
    """Write 128 zero bytes at ``address``."""

    def generate(context, builder, _signature, args):
        _store(builder, _splat(_I64, 16, 0), args[0])
        return context.get_dummy_value()

    return types.void(types.uint64), generate


zero_block: Any = intrinsic(_zero_block)


def _copy_64(_typing, source, target):
    """Copy 64 bytes, and return a mask in which bit i is set if byte i is FF."""

    def generate(_context, builder, _signature, args):
        values = _load(builder, args[0], _vector(_I8, 64))
        _store(builder, values, args[1])
        return builder.bitcast(builder.icmp_unsigned("==", values, _splat(_I8, 64, 255)), _I64)

    return types.uint64(types.uint64, types.uint64), generate


copy_64: Any = intrinsic(_copy_64)


def _lowest_bit(_typing, mask):
    """Return the index of the lowest set bit of ``mask``, which is not 0."""

    def generate(_context, builder, _signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate


lowest_bit: Any = intrinsic(_lowest_bit)


def _nonzero_mask(_typing, address):
    """Return a mask in which bit i is set if the i-th of the 64 int16 at ``address`` is not 0."""

    def generate(_context, builder, _signature, args):
        values = _load(builder, args[0], _vector(_I16, 64))
        return builder.bitcast(builder.icmp_unsigned("!=", values, _splat(_I16, 64, 0)), _I64)

    return types.uint64(types.uint64), generate


nonzero_mask: Any = intrinsic(_nonzero_mask)


def _of_bits(name: str) -> Any:
    def apply(_typing, value):
        def generate(_context, builder, _signature, args):
            return getattr(builder, name)(args[0])

        return types.uint64(types.uint64), generate

    return intrinsic(apply)


ones: Any = _of_bits("ctpop")
"""Count the bits of a number that are 1."""
mirrored: Any = _of_bits("bitreverse")
"""Reverse the bits of a number."""


def _deposit(_typing, bits, places):
    """Spread bits: move bit i of ``bits`` to the i-th set bit of the mask ``places``, counted from the lowest."""

    def generate(_context, builder, _signature, args):
        name = "llvm.x86.bmi.pdep.64"
        made = ir.FunctionType(_I64, [_I64, _I64])
        return builder.call(builder.module.globals.get(name) or ir.Function(builder.module, made, name), args)

    return types.uint64(types.uint64, types.uint64), generate


@njit(nogil=True, cache=True)
def deposit_by_steps(bits: Any, places: Any) -> Any:
    """Spread bits like `deposit`, for processors that have no instruction for it."""
    found: Any = np.uint64(0)
    while places != np.uint64(0):
        lowest = places & (~places + np.uint64(1))
        found |= lowest & (~(bits & np.uint64(1)) + np.uint64(1))
        bits >>= np.uint64(1)
        places ^= lowest
    return found


deposit: Any = intrinsic(_deposit) if compiles_with("bmi2") else deposit_by_steps


def _refine(_typing, address, more, plus, minus, step):
    """Refine the 64 int16 coefficients at ``address`` by ``step`` (int64). Bit i of three masks selects coefficient i:
    if set in ``more``, it moves away from 0; otherwise, if set in ``plus``, it grows; in ``minus``, it shrinks."""

    def generate(context, builder, _signature, args):
        kind = _vector(_I16, 16)
        each = ir.Constant(kind, [1 << k for k in range(16)])

        def repeated(value):
            one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(_I32, 0))
            return _shuffle(builder, one, one, [0] * 16)

        step = repeated(builder.trunc(args[4], _I16))
        for part in range(4):  # casting a whole mask compiles to instructions for each of its bits
            bits = (builder.trunc(builder.lshr(a, ir.Constant(_I64, 16 * part)), _I16) for a in args[1:4])
            more, plus, minus = (builder.icmp_signed("==", builder.and_(repeated(b), each), each) for b in bits)
            place = _plus(builder, args[0], 32 * part)
            values = _load(builder, place, kind)
            below = builder.icmp_signed("<", values, _splat(_I16, 16, 0))
            down = builder.or_(minus, builder.and_(more, below))
            up = builder.or_(plus, builder.and_(more, builder.not_(below)))
            values = builder.add(values, builder.select(up, step, _splat(_I16, 16, 0)))
            _store(builder, builder.sub(values, builder.select(down, step, _splat(_I16, 16, 0))), place)
        return context.get_dummy_value()

    number = types.uint64
    return types.void(number, number, number, number, types.int64), generate


refine: Any = intrinsic(_refine)


_ZIGZAG = (
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21,
    28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61,
    54, 47, 55, 62, 63,
)  # fmt: skip
"""For each zig-zag index, 8 * row + column of the coefficient in its block (T.81, figure A.6)."""

_PAIRED = (0, 4, 2, 6, 1, 3, 5, 7)
"""Order in which `inverse_dct` takes rows and columns; neighbours in it are multiplied and added together."""


def _place(row: int, column: int) -> int:
    r, c = _PAIRED.index(row), _PAIRED.index(column)
    return 16 * (r // 2) + 2 * c + r % 2


PLACES = tuple(_place(*divmod(k, 8)) for k in _ZIGZAG)
"""For each zig-zag index, the position at which `inverse_dct` expects the coefficient in a block."""
_AT = np.array(PLACES, np.int64)


def _zigzag_to_block(_typing, source, target):
    """Copy 64 int16 in zig-zag order to ``target``, in the order that `inverse_dct` expects."""

    def generate(context, builder, _signature, args):
        values = _load(builder, args[0], _vector(_I16, 64))
        order = [PLACES.index(k) for k in range(64)]
        _store(builder, _shuffle(builder, values, values, order), args[1])
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64), generate


zigzag_to_block: Any = intrinsic(_zigzag_to_block)


# -- inverse DCT ------------------------------------------------------------------------------------------------------


def _islow(x: list[int]) -> tuple[list[int], list[int]]:
    """Compute libjpeg's accurate integer inverse DCT in one dimension ("islow": Loeffler, Ligtenberg and Moschytz 1989,
    13-bit constants), scaled by 2^13. Return two lists: what x[2] and x[6] add to the even part, and the odd part."""
    z1 = (x[2] + x[6]) * 4433  # 0.541196100
    even = [z1 + x[2] * 6270, z1 - x[6] * 15137]  # 0.765366865, 1.847759065
    z3, z4 = x[7] + x[3], x[5] + x[1]
    z5 = (z3 + z4) * 9633  # 1.175875602
    z3 = z5 - z3 * 16069  # 1.961570560
    z4 = z5 - z4 * 3196  # 0.390180644
    z1 = (x[7] + x[1]) * 7373  # 0.899976223
    z2 = (x[5] + x[3]) * 20995  # 2.562915447
    odd = [
        x[1] * 12299 - z1 + z4,  # 1.501321110
        x[3] * 25172 - z2 + z3,  # 3.072711026
        x[5] * 16819 - z2 + z4,  # 2.053119869
        x[7] * 2446 - z1 + z3,  # 0.298631336
    ]
    return even, odd


_UNITS = [_islow([int(i == k) for i in range(8)]) for k in range(8)]
"""Contribution of each input to the results of the inverse DCT, as 16-bit numbers. Integers are multiplied and added
exactly, so each result of the transform is a sum of products with them."""


def _multiply_add(builder, pairs, first, second):
    """Return int32[8]: for each pair of neighbours in a vector int16[16], the sum of their products with ``first`` and
    ``second``."""
    short, wide = _vector(_I16, 16), _vector(_I32, 8)
    if compiles_with("avx2"):
        name = "llvm.x86.avx2.pmadd.wd"
        found = builder.module.globals.get(name) or ir.Function(
            builder.module, ir.FunctionType(wide, [short, short]), name
        )
        return builder.call(found, [pairs, ir.Constant(short, [first, second] * 8)])
    both, half = builder.bitcast(pairs, wide), _splat(_I32, 8, 16)
    one = builder.mul(builder.ashr(builder.shl(both, half), half), _splat(_I32, 8, first))
    return builder.add(one, builder.mul(builder.ashr(both, half), _splat(_I32, 8, second)))


def _pack(builder, a, b, signed):
    """Convert two vectors to one with numbers of half as many bits, saturated: the lower half of ``a``, the lower half
    of ``b``, then the upper halves."""
    kind, n = a.type.element, a.type.count
    half = ir.IntType(kind.width // 2)
    if compiles_with("avx2"):
        name = f"llvm.x86.avx2.pack{'ss' if signed else 'us'}{'dw' if kind.width == 32 else 'wb'}"
        made = ir.FunctionType(_vector(half, 2 * n), [a.type, a.type])
        found = builder.module.globals.get(name) or ir.Function(builder.module, made, name)
        return builder.call(found, [a, b])
    low = -(1 << (half.width - 1)) if signed else 0
    parts = []
    for value in (a, b):
        for limit, beyond in ((low, "<"), (low + (1 << half.width) - 1, ">")):
            bound = _splat(kind, n, limit)
            value = builder.select(builder.icmp_signed(beyond, value, bound), bound, value)
        parts.append(builder.trunc(value, _vector(half, n)))
    quarter = range(n // 2)
    return _shuffle(builder, parts[0], parts[1], [k + at for at in (0, n, n // 2, n + n // 2) for k in quarter])


def _transform(builder, x, bias):
    """Apply `_islow` to eight vectors at once, given as four ``x`` (int16[16]) with rows side by side as in `_PAIRED`.
    Return eight int32[8] with ``bias`` added."""
    offset = _splat(_I32, 8, bias)

    def of_two(part, nth, which):
        rows = _PAIRED[2 * which : 2 * which + 2]
        return _multiply_add(builder, x[which], *(_UNITS[k][part][nth] for k in rows))

    sums = [builder.add(_multiply_add(builder, x[0], 8192, sign * 8192), offset) for sign in (1, -1)]
    even = [of_two(0, nth, 1) for nth in range(2)]
    odd = [builder.add(of_two(1, nth, 2), of_two(1, nth, 3)) for nth in range(4)]
    sums = [builder.add(s, e) for s, e in zip(sums, even, strict=True)] + [
        builder.sub(s, e) for s, e in zip(sums[::-1], even[::-1], strict=True)
    ]
    return [builder.add(s, o) for s, o in zip(sums, odd, strict=True)] + [
        builder.sub(s, o) for s, o in zip(sums[::-1], odd[::-1], strict=True)
    ]


def _inverse_dct(_typing, coefficients, factors, target, pitch, seen):
    """Multiply a block of coefficients (int16[64], in the order of `PLACES`) by factors and transform it, to rows of
    uint8 at ``target``, ``pitch`` apart. ``factors``: int16[2][64], the factors in the same order, and eight times
    them. All arguments but ``pitch``, in bytes, are addresses.

    ``seen`` (uint16[2][16]) collects the bits of all intermediate values for `in_range`. Two extra bits are kept
    between the passes, as in libjpeg.
    """

    def generate(context, builder, _signature, args):
        source, table, out, step, log = args
        short, wide = _vector(_I16, 16), _vector(_I32, 16)
        products, between = (_load(builder, _plus(builder, log, 32 * k), short) for k in (0, 1))
        x = []
        for i in range(4):
            values = _load(builder, _plus(builder, source, 32 * i), short)
            x.append(builder.mul(values, _load(builder, _plus(builder, table, 32 * i), short)))
            eightfold = _load(builder, _plus(builder, table, 128 + 32 * i), short)
            high = builder.mul(builder.sext(values, wide), builder.sext(eightfold, wide))
            high = builder.trunc(builder.ashr(high, _splat(_I32, 16, 16)), short)
            products = builder.or_(products, builder.add(high, _splat(_I16, 16, 1)))
        x = [builder.ashr(v, _splat(_I32, 8, 11)) for v in _transform(builder, x, 1 << 10)]
        # Two rows each: of the columns 0, 4, 2, 6 and then of the odd ones. Columns of a pair stay together.
        x = [_pack(builder, x[k], x[k + 1], signed=True) for k in (0, 2, 4, 6)]
        for v in x:
            between = builder.or_(between, builder.add(v, _splat(_I16, 16, LIMIT)))
        _store(builder, products, log)
        _store(builder, between, _plus(builder, log, 32))
        x = [builder.bitcast(v, _vector(_I32, 8)) for v in x]
        first, second = [0, 2, 8, 10, 4, 6, 12, 14], [1, 3, 9, 11, 5, 7, 13, 15]
        upper, lower = ([_shuffle(builder, x[k], x[k + 1], half) for half in (first, second)] for k in (0, 2))
        halves = [[i + 4 * half for i in (0, 1, 2, 3, 8, 9, 10, 11)] for half in (0, 1)]
        x = [builder.bitcast(_shuffle(builder, upper[k], lower[k], half), short) for half in halves for k in (0, 1)]
        x = [builder.ashr(v, _splat(_I32, 8, 18)) for v in _transform(builder, x, (128 << 18) + (1 << 17))]
        x = [_pack(builder, x[k], x[k + 1], signed=True) for k in (0, 2, 4, 6)]
        parts = []
        for k in (0, 2):  # columns 0 ... 3 and 4 ... 7, four rows of each
            both = _pack(builder, x[k], x[k + 1], signed=False)
            rows = [16 * half + 4 * column + row for half in (0, 1) for row in range(4) for column in range(4)]
            parts.append(builder.bitcast(_shuffle(builder, both, both, rows), _vector(_I32, 8)))
        for first_row, order in ((0, [0, 8, 1, 9, 4, 12, 5, 13]), (2, [2, 10, 3, 11, 6, 14, 7, 15])):
            four = builder.bitcast(_shuffle(builder, parts[0], parts[1], order), _vector(_I64, 4))
            for k, row in enumerate((first_row, first_row + 1, first_row + 4, first_row + 5)):
                place = builder.add(out, builder.mul(step, ir.Constant(_I64, row)))
                _store(builder, builder.extract_element(four, ir.Constant(_I32, k)), place)
        return context.get_dummy_value()

    address = types.uint64
    return types.void(address, address, address, address, address), generate


inverse_dct: Any = intrinsic(_inverse_dct)


@njit(nogil=True, cache=True)
def in_range(seen: Any) -> Any:
    """Return whether all values that `inverse_dct` has collected in ``seen`` were in [-LIMIT, LIMIT)."""
    products: Any = np.uint16(0)
    between: Any = np.uint16(0)
    for k in range(16):
        products |= seen[k]
        between |= seen[16 + k]
    return products <= 1 and between < 2 * LIMIT


@njit(nogil=True, cache=True)
def read_factors(data: Any, at: Any, factors: Any) -> Any:
    """Read an 8-bit quantisation table at data[at:] to ``factors`` (int16[128]), in the form that `inverse_dct` takes.
    Return False if there is none."""
    if at <= 0 or at + 64 > len(data):
        return False
    for k in range(64):
        factors[_AT[k]] = data[at + k]
        factors[64 + _AT[k]] = 8 * np.int16(data[at + k])
    return True


def _to_bytes(builder, values):
    """Convert a vector of integers to uint8, saturated."""
    kind = values.type
    for limit, smaller in ((0, True), (255, False)):
        bound = ir.Constant(kind, [limit] * kind.count)
        beyond = builder.icmp_signed("<" if smaller else ">", values, bound)
        values = builder.select(beyond, bound, values)
    return builder.trunc(values, _vector(_I8, kind.count))


# -- colour -----------------------------------------------------------------------------------------------------------

PIXELS = 32
"""Number of pixels that `ycc_to_rgb` converts in one call."""


def _blend_rows(_typing, near, far, target):
    """Upsample vertically: write PIXELS int16 to ``target``, three times the uint8 at ``near`` plus those at ``far``.
    All arguments are addresses."""

    def generate(context, builder, _signature, args):
        short = _vector(_I16, PIXELS)
        one, other = (builder.zext(_load(builder, a, _vector(_I8, PIXELS)), short) for a in args[:2])
        _store(builder, builder.add(builder.mul(one, _splat(_I16, PIXELS, 3)), other), args[2])
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.uint64), generate


blend_rows: Any = intrinsic(_blend_rows)


def _blend_columns(_typing, sums, target, even, odd):
    """Upsample horizontally: from PIXELS int16 at ``sums``, with one more number before and after, compute twice as
    many uint8 at ``target``. Each is three times a number, plus its left neighbour and ``even``, or its right neighbour
    and ``odd`` (int64), divided by 16."""

    def generate(context, builder, _signature, args):
        short, eight, four = _vector(_I16, PIXELS), _splat(_I16, PIXELS, 8), _splat(_I16, PIXELS, 4)
        step = ir.Constant(_I64, 2)
        centre, before, after = (
            _load(builder, a, short) for a in (args[0], builder.sub(args[0], step), builder.add(args[0], step))
        )
        centre = builder.mul(centre, _splat(_I16, PIXELS, 3))
        found = []
        for beside, rounding in ((before, args[2]), (after, args[3])):
            add = builder.insert_element(_splat(_I16, PIXELS, 0), builder.trunc(rounding, _I16), ir.Constant(_I32, 0))
            add = _shuffle(builder, add, add, [0] * PIXELS)
            found.append(builder.lshr(builder.add(builder.add(centre, beside), add), four))
        _store(builder, builder.or_(found[0], builder.shl(found[1], eight)), args[1])
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.int64, types.int64), generate


blend_columns: Any = intrinsic(_blend_columns)


def _ycc_to_rgb(_typing, luma, blue, red, target, bgr):
    """Convert PIXELS pixels from addresses of their Y, Cb and Cr to interleaved R, G, B (or B, G, R) at ``target``.

    jdcolor's 16-bit constants, 1.40200, 0.34414, 0.71414 and 1.77200 times 2^16, less their integer parts: the rest
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
