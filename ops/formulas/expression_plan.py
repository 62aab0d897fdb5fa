"""Translate expressions to programs for the compiled interpreter (`expression_cpu`): a sequence of functions of
registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from .expression import Typed

I64 = npt.NDArray[np.int64]

BLOCK = 1024
"""Number of elements that are computed at a time: a register (the memory for one intermediate result) then has 4 KB."""
_MAX_REGISTERS = 96
"""Maximum number of registers, memory for intermediate results, of one expression."""

U8, I8, U16, I16, I32, F32 = range(6)
"""Numbers of the element types that the compiled interpreter supports; bool counts as U8."""
_KINDS = {
    np.dtype(np.bool_): U8, np.dtype(np.uint8): U8, np.dtype(np.int8): I8, np.dtype(np.uint16): U16,
    np.dtype(np.int16): I16, np.dtype(np.int32): I32, np.dtype(np.float32): F32,
}  # fmt: skip

(
    ADD_F, SUB_F, MUL_F, DIV_F, MIN_F, MAX_F, CLAMP_F, NEG_F, ABS_F, SQRT, RSQRT, FLOOR, CEIL,
    ADD_I, SUB_I, MUL_I, DIV_I, MIN_I, MAX_I, CLAMP_I, NEG_I, ABS_I, EQ_I, NE_I, LT_I, LE_I, GT_I, GE_I, AND, OR, XOR,
    EQ_F, NE_F, LT_F, LE_F, GT_F, GE_F, NOT_F,
    FLOAT_OF, CLIP, TRUE_OF, ROUNDED,
) = range(42)  # fmt: skip
"""Numbers of the functions that the compiled interpreter knows: first those of float32, then of int32, comparisons of
float32, and conversions."""

_OF_FLOATS = {
    "add": ADD_F, "sub": SUB_F, "mul": MUL_F, "div": DIV_F, "fdiv": DIV_F, "min": MIN_F, "max": MAX_F,
    "clamp": CLAMP_F, "neg": NEG_F, "abs": ABS_F, "fabs": ABS_F, "sqrt": SQRT, "rsqrt": RSQRT, "floor": FLOOR,
    "ceil": CEIL, "eq": EQ_F, "ne": NE_F, "lt": LT_F, "le": LE_F, "gt": GT_F, "ge": GE_F, "not": NOT_F,
}  # fmt: skip
_OF_INTEGERS = {
    "add": ADD_I, "sub": SUB_I, "mul": MUL_I, "fdiv": DIV_I, "min": MIN_I, "max": MAX_I, "clamp": CLAMP_I,
    "neg": NEG_I, "abs": ABS_I, "bitand": AND, "bitor": OR, "bitxor": XOR,
}  # fmt: skip
_ORDER = {"eq": EQ_I, "ne": NE_I, "lt": LT_I, "le": LE_I, "gt": GT_I, "ge": GE_I}
_LOGIC = {"and": AND, "or": OR, "bitand": AND, "bitor": OR, "bitxor": XOR}
_BOOL = np.dtype(np.bool_)


@dataclass(frozen=True, slots=True)
class Program:
    """An expression as a program for the compiled interpreter `expression_cpu.calculate`."""

    functions: I64
    sources: I64
    constants: I64
    registers: int
    kind: int
    """Element type of the expression's result."""
    out_from: int


class _UnknownError(Exception):
    """Raised if the compiled interpreter does not support an expression, which NumPy then computes."""


class _Writer:
    def __init__(self, names: Sequence[str], dtypes: Sequence[np.dtype[Any]]) -> None:
        self.inputs = {n: (k, d) for k, (n, d) in enumerate(zip(names, dtypes, strict=True))}
        self.functions: list[tuple[int, ...]] = []
        self.sources: dict[tuple[int, bool], int] = {}
        self.kinds: list[tuple[int, int, int, int]] = []
        self.constants: list[tuple[int, int]] = []
        self.registers = 0

    def register(self) -> int:
        if self.registers == _MAX_REGISTERS:
            raise _UnknownError
        self.registers += 1
        return self.registers - 1

    def put(self, op: int, *args: int) -> int:
        to = self.register()
        self.functions.append((op, to, *args, *(args[:1] * (3 - len(args)))))
        return to

    def value(self, tree: Typed, as_float: bool) -> int:
        """Return the register (number of a buffer) that will hold the value of ``tree``, as float32 or int32."""
        if tree.dtype not in _KINDS:
            raise _UnknownError
        if tree.fn == "name":
            return self.source(tree.value, as_float)
        if tree.fn == "const":
            return self.constant(tree, as_float)
        own = tree.dtype == np.float32
        found = self.call(tree)
        if own and not as_float:
            raise _UnknownError  # conversions between them are explicit calls
        return self.put(FLOAT_OF, found) if as_float and not own else found

    def source(self, name: str, as_float: bool) -> int:
        k, dtype = self.inputs[name]
        kind = _KINDS.get(dtype)
        if kind is None or (kind == F32 and not as_float):
            raise _UnknownError
        if (k, as_float) not in self.sources:
            to = self.sources[k, as_float] = self.register()
            self.kinds.append((k, kind, to, int(as_float)))
        return self.sources[k, as_float]

    def constant(self, tree: Typed, as_float: bool) -> int:
        exact = np.asarray(tree.value, np.float64 if tree.dtype.kind == "f" else None).astype(tree.dtype)
        to = self.register()
        bits = exact.astype(np.float32).view(np.int32) if as_float else exact.astype(np.int32)
        self.constants.append((to, int(bits)))
        return to

    def call(self, tree: Typed) -> int:
        fn, at = tree.fn, tree.at
        if fn == "cast":
            return self.cast(tree)
        if at not in _KINDS:
            raise _UnknownError
        if at == np.float32:
            if fn not in _OF_FLOATS:
                raise _UnknownError
            return self.put(_OF_FLOATS[fn], *(self.value(a, True) for a in tree.args))
        if fn in _ORDER:  # comparisons of integers compare values, not what they would be converted to
            return self.put(_ORDER[fn], *(self.value(a, False) for a in tree.args))
        known = _OF_INTEGERS if at == np.int32 else _LOGIC if at == _BOOL else {}
        if fn not in known:
            raise _UnknownError
        return self.put(known[fn], *(self.value(a, False) for a in tree.args))

    def cast(self, tree: Typed) -> int:
        (arg,) = tree.args
        if arg.dtype not in _KINDS or tree.dtype not in _KINDS:
            raise _UnknownError
        if tree.dtype == np.float32:
            return self.value(arg, True)
        if arg.dtype == np.float32:
            found = self.value(arg, True)
            return self.put(TRUE_OF, found) if tree.dtype == _BOOL else self.put(ROUNDED, found, _KINDS[tree.dtype])
        found = self.value(arg, False)
        if tree.dtype == _BOOL:
            if arg.dtype == _BOOL:
                return found
            zero = self.register()
            self.constants.append((zero, 0))
            return self.put(NE_I, found, zero)
        return self.put(CLIP, found, _KINDS[tree.dtype])


@lru_cache(1024)
def planned(tree: Typed, names: tuple[str, ...], dtypes: tuple[np.dtype[Any], ...]) -> Program | None:
    """Translate a typed expression with inputs ``names`` of ``dtypes`` to a program. Return None if the interpreter
    does not support it."""
    writer = _Writer(names, dtypes)
    try:
        if tree.fn in ("name", "const"):
            return None
        as_float = tree.dtype == np.float32
        found = writer.value(tree, as_float)
    except _UnknownError:
        return None
    kind = _KINDS[tree.dtype]
    last = bool(writer.functions) and writer.functions[-1][1] == found
    if not last:
        return None  # the expression is only a conversion
    direct = kind >= I32
    return Program(
        np.array(writer.functions, np.int64), np.array(writer.kinds, np.int64).reshape(-1, 4),
        np.array(writer.constants, np.int64).reshape(-1, 2), writer.registers, kind, -1 if direct else found,
    )  # fmt: skip
