"""Compiled loops of strided copies: one call per plan, without the GIL."""

# Functions that Numba compiles have no type annotations; overloads repeat the arguments of the overloaded functions.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: ARG001, ARG005

from __future__ import annotations

import platform
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from ..batch import I64
from ..compiled.target import compiles_with
from .words_cpu import PACKED, mirror_pixels

# without fused multiply-adds, so that results are equal in every loop and on the GPU
jit = numba.njit(nogil=True, cache=True)


def move(
    source: npt.NDArray[Any], target: npt.NDArray[Any], dims: I64, base: I64, out_base: I64, border: int,
    fill: npt.NDArray[Any], factors: npt.NDArray[np.float32] | None,
) -> None:  # fmt: skip
    """Copy all samples of a plan (`strided.CopyPlan`), whose loops are ``dims`` [N, D >= 2, 5], to ``target``.

    Source and target have the same type; or, with ``factors``, uint8 / float32 is converted to float32, float16, uint8
    or int8.
    """
    base, out_base = np.ascontiguousarray(base), np.ascontiguousarray(out_base)
    if factors is None:
        bits = _BITS[target.dtype.itemsize]  # bits are moved: one compiled kernel for all types of a size
        _execute(source.view(bits), target.view(bits), dims, base, out_base, border, fill.view(bits), None)
        return
    if target.dtype == np.float16:  # Numba has no float16 on the CPU; targets of uint16 stand for it here
        target, fill = target.view(np.uint16), fill.view(np.uint16)
    _execute(source, target, dims, base, out_base, border, fill, factors)


_NONE = np.int64(0)
"""The constant 0 as a variable: Numba gives a literal in a call a type of its own, and would compile the function
twice."""
_BITS = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
SHAPE, STRIDE, ANCHOR, EXTENT, OUT_STRIDE = range(5)  # columns of dims


@jit
def _execute(src, dst, dims, base, out_base, border, fill, factors):
    n, ndim = dims.shape[0], dims.shape[1]
    index = np.zeros(ndim, np.int64)
    for i in range(n):
        factor = _factors_of(factors, i)
        turned = _is_turned(dims, i) and _alike(factor)
        rows, outer = 1, ndim - 3 if turned else ndim - 2
        for d in range(outer):
            rows *= dims[i, d, SHAPE]
        fills = fill[i if fill.shape[0] > 1 else 0]
        index[:] = 0
        if border == 0 and ndim == 3 and rows > 1 and _is_box(dims[i]):
            _box(dst, out_base[i], dims[i], fills)
            rows = 0
        width, line = dims[i, ndim - 2, SHAPE], _is_line(dims, i) and _alike(factor)
        first = dims[i, ndim - 2, ANCHOR]
        # Scalars of the two innermost dimensions: creating a view of ``dims`` per row takes longer than copying a short
        # row.
        within = _is_within(dims, i)
        k, step, out_step = dims[i, ndim - 1, SHAPE], dims[i, ndim - 2, STRIDE], dims[i, ndim - 2, OUT_STRIDE]
        col, out_col = dims[i, ndim - 1, STRIDE], dims[i, ndim - 1, OUT_STRIDE]
        begin = first * step + dims[i, ndim - 1, ANCHOR] * col
        mirrored = within and k == 3 and col == 1 and out_col == 1 and step == -3 and out_step == 3 and width >= PACKED
        mirrored = mirrored and _are_bytes(src, dst, factor)
        for _ in range(rows):
            at, to, inside = base[i], out_base[i], rows > 0  # always true; a literal would be compiled separately
            for d in range(outer):
                place = index[d] + dims[i, d, ANCHOR]
                if place < 0 or place >= dims[i, d, EXTENT]:
                    if border == 0:
                        inside = False
                    else:
                        place = _reflect(place, dims[i, d, EXTENT], border)
                at += place * dims[i, d, STRIDE]
                to += index[d] * dims[i, d, OUT_STRIDE]
            if turned:
                at += dims[i, outer, ANCHOR] + first * dims[i, outer + 1, STRIDE]
                _turned(src, dst, at, to, dims[i, outer], dims[i, outer + 1], _entry(factor, 0))
            elif line and inside:
                _line(src, dst, at + first, to, width, _entry(factor, 0))
            elif mirrored:
                _mirrored(src, dst, at + begin, to, width, factor)
            elif within:
                runs(src, dst, at + begin, to, width, k, step, col, out_step, out_col, _NONE, factor)
            else:
                _plane(src, dst, at, to, dims[i, ndim - 2], dims[i, ndim - 1], inside, border, fills, factor)
            for d in range(outer - 1, -1, -1):
                index[d] += 1
                if index[d] < dims[i, d, SHAPE]:
                    break
                index[d] = 0


@jit
def _is_turned(dims, i):
    """Whether the copy of sample ``i`` transposes a plane: values that are adjacent in the source become columns of the
    output, and the whole output lies in the source."""
    first = dims.shape[1] - 3
    if (
        first < 0
        or dims[i, first, STRIDE] != 1
        or dims[i, first + 1, OUT_STRIDE] != 1
        or dims[i, first + 2, SHAPE] != 1
    ):
        return False
    return (
        _is_within(dims, i)
        and dims[i, first + 2, ANCHOR] == 0
        and min(dims[i, first, SHAPE], dims[i, first + 1, SHAPE]) > 4
    )


@jit
def _is_within(dims, i):
    """Whether the whole output of sample ``i`` is copied from inside the source, so that nothing is filled."""
    for d in range(dims.shape[1]):
        if dims[i, d, ANCHOR] < 0 or dims[i, d, ANCHOR] + dims[i, d, SHAPE] > dims[i, d, EXTENT]:
            return False
    return True


_SIDE = 16


@jit
def _turned(src, dst, s, o, row, col, f):
    """Transpose a plane square by square. If whole columns were written, every value would be on another cache line."""
    like = dst.dtype.type(0)
    w, k, step, out_step = row[SHAPE], col[SHAPE], col[STRIDE], row[OUT_STRIDE]
    for c0 in range(0, k, _SIDE):
        for x0 in range(0, w, _SIDE):
            for x in range(x0, min(x0 + _SIDE, w)):
                at, to = s + x, o + x * out_step
                for c in range(c0, min(c0 + _SIDE, k)):
                    dst[np.uint64(to + c)] = _convert(src[np.uint64(at + c * step)], like, f)


@jit
def _is_line(dims, i):
    """Whether the two innermost dimensions of sample ``i`` are one line: elements that are adjacent in source and
    output, inside the source."""
    row, col = dims.shape[1] - 2, dims.shape[1] - 1
    first, width = dims[i, row, ANCHOR], dims[i, row, SHAPE]
    near = dims[i, row, STRIDE] == 1 and dims[i, row, OUT_STRIDE] == 1
    one = dims[i, col, SHAPE] == 1 and dims[i, col, ANCHOR] == 0 and dims[i, col, EXTENT] == 1
    return near and one and first >= 0 and first + width <= dims[i, row, EXTENT]


@jit
def _line(src, dst, s, o, w, f):
    """Copy ``w`` adjacent elements. Views of the arrays would be reference-counted, which takes longer than copying a
    short line."""
    like = dst.dtype.type(0)
    for x in range(w):
        dst[np.uint64(o + x)] = _convert(src[np.uint64(s + x)], like, f)


def _are_bytes(src, dst, factor):
    """Whether single bytes are copied unchanged (compiled below)."""


@overload(_are_bytes)
def _are_bytes_compiled(src, dst, factor):
    moved = factor is types.none and src.dtype == types.uint8 and dst.dtype == types.uint8
    return (lambda src, dst, factor: True) if moved else (lambda src, dst, factor: False)


def _mirrored(src, dst, s, o, w, factor):
    """Copy ``w`` pixels of three bytes, the first of which is at ``s``, in reverse order (compiled below)."""


@overload(_mirrored)
def _mirrored_compiled(src, dst, s, o, w, factor):
    def mirrored(src, dst, s, o, w, factor):
        for k in range(0, w, PACKED):
            x = min(k, w - PACKED)  # the last group overlaps the one before it
            mirror_pixels(src, s - 3 * (x + PACKED - 1), dst, o + 3 * x)

    moved = factor is types.none and src.dtype == types.uint8 and dst.dtype == types.uint8
    return mirrored if moved else lambda src, dst, s, o, w, factor: None


@jit
def _is_box(dims):
    """Whether the whole output lies outside of the source, so that it is only filled, and its lines are contiguous."""
    row, col = dims[1], dims[2]
    outside = dims[0, EXTENT] == 0 or row[EXTENT] == 0 or col[EXTENT] == 0
    return outside and col[OUT_STRIDE] == 1 and row[OUT_STRIDE] == col[SHAPE]


@jit
def _box(dst, to, dims, fill):
    """Fill an output that lies outside of the source: fill its first line, and copy this line to all others."""
    n, step = dims[1, SHAPE] * dims[2, SHAPE], dims[0, OUT_STRIDE]
    _filled(dst, to, _NONE, dims[1, SHAPE], _NONE, dims[2, SHAPE], dims[1], dims[2], fill)
    for y in range(1, dims[0, SHAPE]):
        first, line = dst[to : to + n], dst[to + y * step : to + y * step + n]
        for x in range(n):
            line[x] = first[x]


@jit
def _plane(src, dst, at, to, row, col, inside, border, fill, factor):
    """Copy the two innermost dimensions: elements inside the source by `runs`, elements outside of it one by one."""
    w, k = row[SHAPE], col[SHAPE]
    x0 = min(max(-row[ANCHOR], 0), w)
    x1 = max(min(row[EXTENT] - row[ANCHOR], w), x0)
    c0 = min(max(-col[ANCHOR], 0), k)
    c1 = max(min(col[EXTENT] - col[ANCHOR], k), c0)
    if not inside:
        x1, c1 = x0, c0
    if x1 > x0 and c1 > c0:
        first = at + (x0 + row[ANCHOR]) * row[STRIDE] + (c0 + col[ANCHOR]) * col[STRIDE]
        runs(src, dst, first, to + x0 * row[OUT_STRIDE] + c0 * col[OUT_STRIDE], x1 - x0, c1 - c0, row[STRIDE],
              col[STRIDE], row[OUT_STRIDE], col[OUT_STRIDE], c0, factor)  # fmt: skip
    if x1 - x0 == w and c1 - c0 == k:
        return
    if border == 0:
        _filled(dst, to, _NONE, x0, _NONE, k, row, col, fill)
        _filled(dst, to, x1, w, _NONE, k, row, col, fill)
        _filled(dst, to, x0, x1, _NONE, c0, row, col, fill)
        _filled(dst, to, x0, x1, c1, k, row, col, fill)
        return
    for x in range(w):
        known = x0 <= x < x1
        for c in range(k):
            if known and c0 <= c < c1:
                continue
            xs = _reflect(x + row[ANCHOR], row[EXTENT], border)
            cs = _reflect(c + col[ANCHOR], col[EXTENT], border)
            s = at + xs * row[STRIDE] + cs * col[STRIDE]
            value = _convert(src[s], dst.dtype.type(0), _entry(factor, c))
            dst[to + x * row[OUT_STRIDE] + c * col[OUT_STRIDE]] = value


@jit
def _filled(dst, to, x0, x1, c0, c1, row, col, fill):
    """Fill rows [x0, x1) and columns [c0, c1) of a plane, which lie outside the source."""
    w, k = x1 - x0, c1 - c0
    if w <= 0 or k <= 0:
        return
    o = to + x0 * row[OUT_STRIDE] + c0 * col[OUT_STRIDE]
    if fill.shape[0] == 1 and col[OUT_STRIDE] == 1 and row[OUT_STRIDE] == k:
        dst[o : o + w * k] = fill[0]
    elif fill.shape[0] == 3 and k == 3 and col[OUT_STRIDE] == 1 and row[OUT_STRIDE] == 3:
        b, first, second, third = dst[o : o + 3 * w], fill[0], fill[1], fill[2]
        for x in range(w):
            b[3 * x], b[3 * x + 1], b[3 * x + 2] = first, second, third
    else:
        for c in range(k):
            value = fill[c0 + c if fill.shape[0] > 1 else 0]
            for x in range(w):
                dst[o + x * row[OUT_STRIDE] + c * col[OUT_STRIDE]] = value


@jit
def runs(src, dst, s, o, w, k, row, col, out_row, out_col, c0, factor):
    """Copy ``w`` x ``k`` elements of two dimensions. Strides of frequent layouts are written as constants, so that
    loops are vectorised."""
    if k == 3 and col == 1 and out_row == 1 and (row == 3 or row == -3):
        _split(src, dst, s, o, w, row, out_col, factor)
    elif k == 3 and col == 1 and out_col == 1 and out_row == 3 and (row == 3 or row == -3):
        _interleaved(src, dst, s, o, w, row, factor)
    elif k == 3 and row == 3 and col == -1 and out_row == 3 and out_col == 1:
        _swapped(src, dst, s, o, w, factor)
    elif k == 3 and row == 1 and col >= 0 and out_row == 3 and out_col == 1:
        _woven(src, dst, s, o, w, col, factor)
    elif k > w and col == 1 and out_col == 1 and _alike(factor):
        for x in range(w):
            _line(src, dst, s + x * row, o + x * out_row, k, _entry(factor, c0))
    elif k > w:
        like = dst.dtype.type(0)
        for x in range(w):
            for c in range(k):
                dst[o + x * out_row + c * out_col] = _convert(src[s + x * row + c * col], like, _entry(factor, c0 + c))
    else:
        for c in range(k):
            _run(src, dst, s + c * col, o + c * out_col, w, row, out_row, _entry(factor, c0 + c))


_SHORT = 64
"""Maximum number of elements or pixels of a line for which an array view costs more time than vectorisation saves."""


@jit
def _run(src, dst, s, o, w, step, out_step, f):
    like = dst.dtype.type(0)
    if out_step == 1 and step == 1:
        _line(src, dst, s, o, w, f)
    elif out_step == 1 and step == -1 and w > _SHORT:
        a, b = src[s - w + 1 : s + 1], dst[o : o + w]
        for x in range(w):
            b[-1 - x] = _convert(a[x], like, f)
    else:
        for x in range(w):
            dst[np.uint64(o + x * out_step)] = _convert(src[np.uint64(s + x * step)], like, f)


@jit
def _split(src, dst, s, o, w, row, plane, factor):
    """Separate ``w`` interleaved pixels of three channels into three planes, mirrored if ``row`` is -3."""
    f0, f1, f2 = _entry(factor, 0), _entry(factor, 1), _entry(factor, 2)
    like = dst.dtype.type(0)
    b0, b1, b2 = dst[o : o + w], dst[o + plane : o + plane + w], dst[o + 2 * plane : o + 2 * plane + w]
    if row == 3:
        a = src[s : s + 3 * w]
        for x in range(w):
            b0[x] = _convert(a[3 * x], like, f0)
            b1[x] = _convert(a[3 * x + 1], like, f1)
            b2[x] = _convert(a[3 * x + 2], like, f2)
    else:  # indices counted from the end: clearly negative ones are vectorised, w - 1 - x is not
        a = src[s - 3 * (w - 1) : s + 3]
        for x in range(w):
            b0[-1 - x] = _convert(a[3 * x], like, f0)
            b1[-1 - x] = _convert(a[3 * x + 1], like, f1)
            b2[-1 - x] = _convert(a[3 * x + 2], like, f2)


@jit
def _interleaved(src, dst, s, o, w, row, factor):
    f0, f1, f2 = _entry(factor, 0), _entry(factor, 1), _entry(factor, 2)
    like = dst.dtype.type(0)
    if row == -3 and w <= _SHORT:
        for x in range(w):
            at, to = s - 3 * x, o + 3 * x
            dst[np.uint64(to)] = _convert(src[np.uint64(at)], like, f0)
            dst[np.uint64(to + 1)] = _convert(src[np.uint64(at + 1)], like, f1)
            dst[np.uint64(to + 2)] = _convert(src[np.uint64(at + 2)], like, f2)
        return
    b = dst[o : o + 3 * w]
    if row == 3:
        a = src[s : s + 3 * w]
        for x in range(w):
            b[3 * x] = _convert(a[3 * x], like, f0)
            b[3 * x + 1] = _convert(a[3 * x + 1], like, f1)
            b[3 * x + 2] = _convert(a[3 * x + 2], like, f2)
    else:
        a = src[s - 3 * (w - 1) : s + 3]
        for x in range(w):
            b[-3 - 3 * x] = _convert(a[3 * x], like, f0)
            b[-2 - 3 * x] = _convert(a[3 * x + 1], like, f1)
            b[-1 - 3 * x] = _convert(a[3 * x + 2], like, f2)


@jit
def _swapped(src, dst, s, o, w, factor):
    """Reverse the order of three channels, the first of which is at ``s``."""
    f0, f1, f2 = _entry(factor, 0), _entry(factor, 1), _entry(factor, 2)
    like = dst.dtype.type(0)
    a, b = src[s - 2 : s - 2 + 3 * w], dst[o : o + 3 * w]
    for x in range(w):
        b[3 * x] = _convert(a[3 * x + 2], like, f0)
        b[3 * x + 1] = _convert(a[3 * x + 1], like, f1)
        b[3 * x + 2] = _convert(a[3 * x], like, f2)


@jit
def _woven(src, dst, s, o, w, plane, factor):
    """Interleave three planes to pixels; if ``plane`` is 0, use one plane three times."""
    f0, f1, f2 = _entry(factor, 0), _entry(factor, 1), _entry(factor, 2)
    like = dst.dtype.type(0)
    a0, a1, a2 = src[s : s + w], src[s + plane : s + plane + w], src[s + 2 * plane : s + 2 * plane + w]
    b = dst[o : o + 3 * w]
    for x in range(w):
        b[3 * x] = _convert(a0[x], like, f0)
        b[3 * x + 1] = _convert(a1[x], like, f1)
        b[3 * x + 2] = _convert(a2[x], like, f2)


_SIDE = 16


@jit
def _reflect(i, n, border):
    """Return the index inside [0, n) that replaces index ``i`` outside of it, by the border mode `strided.Border`."""
    if border == 1 or n == 1:
        return min(max(i, 0), n - 1)
    if border == 4:
        return i % n
    if border == 2:
        i %= 2 * n
        return i if i < n else 2 * n - 1 - i
    i %= 2 * n - 2
    return i if i < n else 2 * n - 2 - i


def _factors_of(factors, i):
    """Return the factors [K, 3] (mean, mul, add per channel) of sample ``i``, or None if values are copied unchanged
    (compiled below)."""


@overload(_factors_of)
def _factors_of_compiled(factors, i):
    if factors is types.none:
        return lambda factors, i: None
    return lambda factors, i: factors[i if factors.shape[0] > 1 else 0]


def _entry(factor, c):
    """Return mean, mul and add of channel ``c``, or None if values are copied unchanged (compiled below)."""


@overload(_entry)
def _entry_compiled(factor, c):
    if factor is types.none:
        return lambda factor, c: None

    def entry(factor, c):
        k = c if factor.shape[0] > 1 else 0
        return factor[k, 0], factor[k, 1], factor[k, 2]

    return entry


def _alike(factor):
    """Whether all channels have the same factors, so that the loop need not look them up (compiled below)."""


@overload(_alike)
def _alike_compiled(factor):
    if factor is types.none:
        return lambda factor: True
    return lambda factor: factor.shape[0] == 1


def _convert(value, like, f):
    """Apply factors (mean, mul, add) to ``value``, and convert it to the type of the number ``like`` (compiled below).

    ``like`` is a number, not an array: an array that is passed through two calls is reference-counted for each value,
    and the loop is not vectorised.
    """


@overload(_convert)
def _convert_compiled(value, like, f):
    if f is types.none:
        return lambda value, like, f: value
    return lambda value, like, f: put((np.float32(value) - f[0]) * f[1] + f[2], like)


def put(value, dst):
    """Convert a float32 to the type of ``dst``, an array or a number: rounded half away from zero and saturated
    (compiled below)."""


@overload(put)
def put_compiled(value, dst):
    kind = getattr(dst, "dtype", dst)
    if kind == types.float32:
        return lambda value, dst: value
    if kind == types.uint16:
        return lambda value, dst: half_bits(value)  # type: ignore[call-arg]
    unsigned = kind == types.uint8
    low, high = np.float32(0 if unsigned else -128), np.float32(255 if unsigned else 127)
    store = np.uint8 if unsigned else np.int8
    half = np.float32(0.5)
    if unsigned:
        # the float32 just below 0.5: adding it to a float up to 255 and truncating rounds halves up, and nothing below
        # a half
        under = np.float32(0.49999997)

        def rounded_up(value, dst):
            v = value if value > low else low  # with this order of operands NaN becomes 0
            v = v if v < high else high
            return np.uint8(np.int32(v + under))

        return rounded_up

    def rounded(value, dst):
        v = np.float32(0) if value != value else min(max(value, low), high)
        t = np.int32(v)
        rest = v - np.float32(t)
        return store(t + np.int32(rest >= half) - np.int32(rest <= -half))

    return rounded


@intrinsic
def half_bits(_typing, value):
    """Return the bits of a float32 rounded to float16, ties to even."""

    def generate(context, builder, signature, args):
        if compiles_with("f16c") or platform.machine() == "aarch64":
            return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), ir.IntType(16))
        return context.compile_internal(builder, half_bits_by_hand, signature, args)

    return types.uint16(types.float32), generate


def half_bits_by_hand(value):
    """Return the bits of a float32 rounded to float16, ties to even, for processors without an instruction for it: LLVM
    would call a function that is in no library here, and the process would end.

    NaN stays NaN, quiet, with the upper bits of its payload, as with the instruction.
    """
    bits = np.int64(np.float32(value).view(np.uint32))
    sign, size = (bits >> 16) & 0x8000, bits & 0x7FFFFFFF
    normal = (size + 0xFFF + ((size >> 13) & 1) - 0x38000000) >> 13
    # the last bit of a half is worth the smallest float16: the sum is rounded to a multiple of that
    small = np.int64(np.float32(abs(value) + np.float32(0.5)).view(np.uint32)) - 0x3F000000
    finite = small if size < 0x38800000 else normal
    number = finite if size < 0x477FF000 else np.int64(0x7C00)
    return np.uint16(sign | (number if size <= 0x7F800000 else 0x7E00 | ((size >> 13) & 0x1FF)))
