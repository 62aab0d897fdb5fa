"""Vectorised steps of the PNG decoder: undoing the filters of several rows in one pass, and calls of C functions by
their address."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: ARG001

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_I8, _I16, _I32, _I64 = (ir.IntType(n) for n in (8, 16, 32, 64))

ROWS = 8
"""Number of PNG rows that are unfiltered at the same time. One step takes about 20 cycles for 4, 8 or 16 rows."""
PAD = 128
"""Bytes before and after a row that may be read and overwritten: 8 for each of `ROWS`, and one vector."""


def _c_call(n: int) -> Any:
    def call(_typing, address, arguments):
        def generate(_context, builder, _signature, args):
            function = builder.inttoptr(args[0], ir.FunctionType(_I64, [_I64] * n).as_pointer())
            return builder.call(function, [builder.extract_value(args[1], k) for k in range(n)])

        tuples: Any = types.UniTuple
        return types.int64(types.int64, tuples(types.int64, n)), generate

    return intrinsic(call)


call_1: Any = _c_call(1)
"""Call the C function at an address with one argument, an integer or pointer in a tuple. Return its result as int64."""
call_3: Any = _c_call(3)
call_7: Any = _c_call(7)


def _splat(vector, value):
    return ir.Constant(vector, [value] * vector.count)


def _shuffle(builder, a, b, places):
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, len(places)), list(places)))


def _mover(places: list[int]) -> Any:
    """Return an intrinsic that copies 16 bytes from one address to another in another order: byte k of the result is
    byte ``places[k]`` of the source."""

    def move(_typing, source, target):
        def generate(context, builder, _signature, args):
            kind = ir.VectorType(_I8, 16)
            bytes_16 = builder.load(builder.inttoptr(args[0], kind.as_pointer()), align=1)
            moved = _shuffle(builder, bytes_16, bytes_16, places)
            builder.store(moved, builder.inttoptr(args[1], kind.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return intrinsic(move)


def _of_pixels(size: int, first: int, second: int, third: int) -> Any:
    """Return an intrinsic that converts as many pixels of ``size`` bytes as fit into 16 bytes to three bytes each:
    bytes ``first``, ``second`` and ``third`` of a pixel. Bytes of the result beyond these pixels are undefined."""
    n = min(16 // size, 5)
    places = [size * k + c for k in range(n) for c in (first, second, third)]
    return _mover(places + [15] * (16 - len(places)))


five_gray: Any = _of_pixels(1, 0, 0, 0)
five_gray_alpha: Any = _of_pixels(2, 0, 0, 0)
five_turned: Any = _of_pixels(3, 2, 1, 0)
four_rgba: Any = _of_pixels(4, 0, 1, 2)
four_rgba_turned: Any = _of_pixels(4, 2, 1, 0)
"""Convert four pixels from RGBA to BGR. The intrinsics above convert five gray pixels (with or without alpha) to RGB,
five RGB pixels to BGR, and four RGBA pixels to RGB. Each reads and writes 16 bytes."""


def _unfilterer(lanes: int) -> Any:
    """Return an intrinsic that undoes the PNG filters of several rows at once. Pixels have at most ``lanes`` bytes, 4
    or 8.

    Row k is one pixel behind row k - 1, so the pixels above, and above to the left, are results that row k - 1 has just
    computed. One vector holds a pixel of each row. Each pixel must wait for the one before; so waits for all rows
    together take as long as for one.
    """
    pixel, words = ir.IntType(8 * lanes), ir.VectorType(_I16, lanes * ROWS)
    truth = ir.VectorType(ir.IntType(1), lanes * ROWS)

    def unfilter(_typing, source, pitch, target, target_pitch, steps, step, filters):
        def generate(_context, builder, signature, args):
            source, pitch, target, target_pitch, steps, step, filters = args
            kinds = [builder.extract_value(filters, k) for k in range(ROWS)]

            def rows_of(kind):
                """Return a mask of the rows whose PNG filter is ``kind``, for a vector with one pixel of each row."""
                mask = ir.Constant(truth, None)
                for k in range(ROWS):
                    found = builder.icmp_signed("==", kinds[k], ir.Constant(_I64, kind))
                    for lane in range(lanes * k, lanes * (k + 1)):
                        mask = builder.insert_element(mask, found, ir.Constant(_I32, lane))
                return mask

            by_left, by_up, by_mean, by_paeth = (rows_of(kind) for kind in (1, 2, 3, 4))
            zero, byte = _splat(words, 0), _splat(words, 255)
            before = cgutils.alloca_once_value(builder, zero)  # the pixel to the left, of each row
            corner = cgutils.alloca_once_value(builder, zero)  # and the pixel above that
            above = builder.sub(target, target_pitch)

            packed = ir.VectorType(pixel, ROWS)
            narrow = ir.VectorType(_I8, lanes * ROWS)

            def load(address):
                return builder.load(builder.inttoptr(address, pixel.as_pointer()), align=1)

            def widened(pixels):
                """Widen the bytes of a vector, which holds one pixel of each row, to 16 bits."""
                vector = ir.Constant(packed, ir.Undefined)
                for k, value in enumerate(pixels):
                    vector = builder.insert_element(vector, value, ir.Constant(_I32, k))
                return builder.zext(builder.bitcast(vector, narrow), words)

            def spread(number):
                """Return a vector with ``number`` in every element."""
                vector = builder.insert_element(
                    ir.Constant(words, ir.Undefined), builder.trunc(number, _I16), ir.Constant(_I32, 0)
                )
                return _shuffle(builder, vector, vector, [0] * words.count)

            def larger(a, b):
                return builder.select(builder.icmp_signed(">", a, b), a, b)

            def distance(a):
                return larger(a, builder.sub(zero, a))

            def at(t, first):
                """Unfilter one pixel of each row: in row k, pixel ``t - k``. If ``first``, rows that have not begun
                stay 0."""
                place = builder.mul(t, step)
                places = [builder.sub(place, builder.mul(step, ir.Constant(_I64, k))) for k in range(ROWS)]
                rows = [builder.add(source, builder.mul(pitch, ir.Constant(_I64, k))) for k in range(ROWS)]
                stored = widened([load(builder.add(row, at)) for row, at in zip(rows, places, strict=True)])
                a, c = builder.load(before), builder.load(corner)
                top = widened([load(builder.add(above, place))])
                n = lanes * ROWS
                b = _shuffle(builder, top, a, [*range(lanes), *range(n, 2 * n - lanes)])
                by_a, by_b = builder.sub(b, c), builder.sub(a, c)
                far_a, far_b, far_c = distance(by_a), distance(by_b), distance(builder.add(by_a, by_b))
                nearer = builder.select(builder.icmp_signed("<=", far_b, far_c), b, c)
                is_a = builder.and_(builder.icmp_signed("<=", far_a, far_b), builder.icmp_signed("<=", far_a, far_c))
                paeth = builder.select(is_a, a, nearer)
                mean = builder.lshr(builder.add(a, b), _splat(words, 1))
                guess = builder.select(by_up, b, zero)
                guess = builder.select(by_left, a, guess)
                guess = builder.select(by_mean, mean, guess)
                guess = builder.select(by_paeth, paeth, guess)
                found = builder.and_(builder.add(stored, guess), byte)
                if first:
                    begun = builder.icmp_signed("<=", order, spread(t))
                    found = builder.select(begun, found, zero)
                builder.store(found, before)
                builder.store(b, corner)
                values = builder.bitcast(builder.trunc(found, narrow), packed)
                for k in range(ROWS):
                    row = builder.add(target, builder.mul(target_pitch, ir.Constant(_I64, k)))
                    address = builder.inttoptr(builder.add(row, places[k]), pixel.as_pointer())
                    builder.store(builder.extract_element(values, ir.Constant(_I32, k)), address, align=1)

            order = ir.Constant(words, [lane // lanes for lane in range(lanes * ROWS)])
            one, start = ir.Constant(_I64, 1), ir.Constant(_I64, ROWS - 1)
            with cgutils.for_range_slice(builder, ir.Constant(_I64, 0), start, one, intp=_I64) as (t, _):
                at(t, True)
            with cgutils.for_range_slice(builder, start, steps, one, intp=_I64) as (t, _):
                at(t, False)
            return _context.get_dummy_value()

        tuples: Any = types.UniTuple
        long = types.int64
        return types.void(long, long, long, long, long, long, tuples(long, ROWS)), generate

    return intrinsic(unfilter)


unfilter_4: Any = _unfilterer(4)
"""Undo the PNG filters of `ROWS` rows with pixels of ``step`` bytes, at most 4. ``source``, ``pitch``: address of the
first row's pixels, and bytes to the next row. ``target``, ``target_pitch``: the same for results; the row above must
precede them. ``steps``: pixels of a row plus ``ROWS - 1``. ``filters``: 0 ... 4 for each row (clause 9.2)."""
unfilter_8: Any = _unfilterer(8)
"""Undo the PNG filters of `ROWS` rows with pixels of 5 to 8 bytes. Arguments are those of `unfilter_4`."""
