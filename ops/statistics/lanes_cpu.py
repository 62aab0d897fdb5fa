"""Partial results in the lanes of LLVM's vector types: Numba's own loops would keep them in memory, which takes five
times as long. They compile for every processor, with equal results on all: the order of summation is fixed."""

# Functions that Numba compiles have no type annotations.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: ARG001

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 32
"""Number of partial results that are kept per result: as many float64 as the registers of AVX2 hold."""
BLOCKS = 1 << 15
"""Maximum number of blocks of values per call, because squares of bytes are summed in 32 bits."""
_I32, _F64 = ir.IntType(32), ir.DoubleType()


class _Side:
    """Generator of LLVM code that loads and stores elements of one array as vectors."""

    def __init__(self, context: Any, builder: Any, kind: Any, array: Any) -> None:
        self.builder, self.number = builder, kind.dtype
        self.of = ir.VectorType(context.get_value_type(kind.dtype), LANES)
        self._data = context.make_array(kind)(context, builder, array).data
        self._align = context.get_abi_sizeof(context.get_data_type(kind.dtype))

    def pointer(self, at: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(self._data, [at]), self.of.as_pointer())

    def load(self, at: Any) -> Any:
        return self.builder.load(self.pointer(at), align=self._align)

    def store(self, value: Any, at: Any) -> None:
        self.builder.store(value, self.pointer(at), align=self._align)


def _converted(builder: Any, value: Any, given: Any, wanted: Any) -> Any:
    """Convert vectors of Numba's type ``given`` to type ``wanted``, which can represent all values."""
    if given == wanted:
        return value
    if isinstance(wanted, types.Float):
        of = ir.VectorType(_F64, LANES)
        if isinstance(given, types.Float):
            return builder.fpext(value, of)
        if given.bitwidth < 32:  # signed 32-bit numbers are converted by one instruction
            value = builder.zext(value, ir.VectorType(_I32, LANES))
            return builder.sitofp(value, of)
        return builder.sitofp(value, of) if given.signed else builder.uitofp(value, of)
    of = ir.VectorType(ir.IntType(wanted.bitwidth), LANES)
    if given.bitwidth == wanted.bitwidth:
        return value
    return builder.sext(value, of) if given.signed else builder.zext(value, of)


def _added(builder: Any, kind: Any, total: Any, term: Any) -> Any:
    return builder.fadd(total, term) if isinstance(kind, types.Float) else builder.add(total, term)


def _extreme(sign: str) -> Callable[..., Any]:
    """Return a function that selects the smaller or the larger of two vectors, or NaN if either is NaN."""

    def of(builder: Any, kind: Any, best: Any, value: Any) -> Any:
        if isinstance(kind, types.Float):
            taken = builder.or_(builder.fcmp_ordered(sign, value, best), builder.fcmp_unordered("uno", value, value))
        else:
            taken = (builder.icmp_signed if kind.signed else builder.icmp_unsigned)(sign, value, best)
        return builder.select(taken, value, best)

    return of


def _blocks(step: str, combined: Callable[..., Any]) -> Any:
    """Return a Numba intrinsic that adds (or combines in another way) ``blocks`` vectors of LANES values to the partial
    results ``lanes``. The vectors are ``apart`` elements from each other."""

    def take(_typing, src, at, blocks, apart, lanes, middle):
        small = src.dtype == types.uint8 and step in ("sum", "squares")
        partial = types.int32 if small else lanes.dtype
        wide = lanes.dtype.bitwidth == 64 and (step == "sum" or lanes.dtype == types.float64)
        wanted = lanes.dtype == src.dtype if step == "extreme" else wide

        def generate(context, builder, signature, args):
            if not wanted:  # lanes of this type belong to another step
                return context.get_dummy_value()
            read, into, about = (_Side(context, builder, signature.args[k], args[k]) for k in (0, 4, 5))
            zero = ir.Constant(ir.IntType(64), 0)
            of = ir.VectorType(context.get_value_type(partial), LANES)
            begin = ir.Constant(of, None) if small else into.load(zero)
            center = about.load(zero) if step == "deviations" else None
            total = cgutils.alloca_once_value(builder, begin)
            with cgutils.for_range(builder, args[2]) as block:
                value = read.load(builder.add(args[1], builder.mul(block.index, args[3])))
                value = _converted(builder, value, read.number, partial)
                if center is not None:
                    value = builder.fsub(value, center)
                if step in ("squares", "deviations"):
                    multiply = builder.fmul if isinstance(partial, types.Float) else builder.mul
                    value = multiply(value, value)
                builder.store(combined(builder, partial, builder.load(total), value), total)
            found = builder.load(total)
            if small:
                found = _converted(builder, found, partial, lanes.dtype)
                found = _added(builder, lanes.dtype, into.load(zero), found)
            into.store(found, zero)
            return context.get_dummy_value()

        given = src, types.int64, types.int64, types.int64, lanes, middle
        return types.void(*given), generate

    return intrinsic(take)


def _fold(combined: Callable[..., Any]) -> Any:
    """Return a Numba intrinsic that combines all partial results to one result, halving their number in each step."""

    def fold(_typing, lanes):
        def generate(context, builder, signature, args):
            side = _Side(context, builder, signature.args[0], args[0])
            value, count = side.load(ir.Constant(ir.IntType(64), 0)), LANES
            while count > 1:
                count //= 2
                low, high = (ir.Constant(ir.VectorType(_I32, count), list(range(k, k + count))) for k in (0, count))
                a, b = (builder.shuffle_vector(value, value, places) for places in (low, high))
                value = combined(builder, lanes.dtype, a, b)
            return builder.extract_element(value, ir.Constant(_I32, 0))

        return lanes.dtype(lanes), generate

    return intrinsic(fold)


_least, _largest = _extreme("<"), _extreme(">")
sum_blocks: Any = _blocks("sum", _added)
square_blocks: Any = _blocks("squares", _added)
deviation_blocks: Any = _blocks("deviations", _added)
least_blocks: Any = _blocks("extreme", _least)
largest_blocks: Any = _blocks("extreme", _largest)
fold_sum: Any = _fold(_added)
fold_least: Any = _fold(_least)
fold_largest: Any = _fold(_largest)
