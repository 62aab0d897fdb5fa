"""Arithmetic expressions: parse text to a tree, and determine the type of every part by DALI's rules (measured on DALI
2.4)."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import numpy as np

from ..base import nearest
from ..errors import SpecError

MAX_CHARACTERS = 4096
MAX_DEPTH = 60
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
"""Names of an expression's inputs, in order, unless the user gives others."""

Dtype = np.dtype[Any]


@dataclass(frozen=True, slots=True)
class Name:
    """Input of an expression, or one element of an input, such as ``shape[1]``."""

    name: str


@dataclass(frozen=True, slots=True)
class Const:
    """Constant in an expression. Integers are int32 and floats float32, as in DALI."""

    value: bool | int | float


@dataclass(frozen=True, slots=True)
class Call:
    """Function call in an expression. Operators are also calls (``+`` calls ``add``)."""

    fn: str
    args: tuple[Tree, ...]


Tree = Name | Const | Call

_BINARY = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "fdiv", ast.Mod: "mod",
    ast.Pow: "pow", ast.BitAnd: "bitand", ast.BitOr: "bitor", ast.BitXor: "bitxor", ast.LShift: "shl",
    ast.RShift: "shr", ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge",
    ast.And: "and", ast.Or: "or",
}  # fmt: skip
_UNARY = {ast.USub: "neg", ast.UAdd: "pos", ast.Invert: "inv", ast.Not: "not"}
SYMBOLS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "fdiv": "//", "mod": "%", "bitand": "&", "bitor": "|",
    "bitxor": "^", "shl": "<<", "shr": ">>", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "neg": "-", "pos": "+", "inv": "~",
}  # fmt: skip

CASTS: dict[str, Dtype] = {
    "uint8": np.dtype(np.uint8), "uint16": np.dtype(np.uint16), "uint32": np.dtype(np.uint32),
    "uint64": np.dtype(np.uint64), "int8": np.dtype(np.int8), "int16": np.dtype(np.int16),
    "int32": np.dtype(np.int32), "int64": np.dtype(np.int64), "float16": np.dtype(np.float16),
    "float": np.dtype(np.float32), "float32": np.dtype(np.float32), "float64": np.dtype(np.float64),
    "bool": np.dtype(np.bool_),
}  # fmt: skip
REAL = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cbrt", "ceil", "cos", "cosh", "exp", "fabs", "floor", "log",
    "log10", "log2", "rsqrt", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip
FUNCTIONS: dict[str, int] = {
    **dict.fromkeys(REAL, 1), **dict.fromkeys(CASTS, 1), "abs": 1, "atan2": 2, "pow": 2, "fpow": 2, "min": 2,
    "max": 2, "clamp": 3,
}  # fmt: skip
"""Names of the functions that an expression may call, with their numbers of arguments: those of nvidia.dali.math, and
conversions."""

_COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge"}


# -- parsing ---------------------------------------------------------------------------------------------------------


@lru_cache(1024)
def parse(text: str) -> Tree:
    """Parse ``text`` to a tree. Raises SpecError for syntax that is not allowed in an expression."""
    if len(text) > MAX_CHARACTERS:
        raise SpecError(f"the expression is longer than {MAX_CHARACTERS} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's warnings about unusual literals
            parsed = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as e:
        where = f" at character {e.offset}" if e.offset else ""
        raise SpecError(f"{text[:80]!r} is not an expression: {e.msg}{where}") from None
    except (ValueError, MemoryError, RecursionError) as e:
        raise SpecError(f"the expression cannot be parsed: {e or 'nested too deeply'}") from None
    return _tree(parsed, 0)


def _tree(node: ast.expr, depth: int) -> Tree:
    if depth > MAX_DEPTH:
        raise SpecError(f"the expression is nested deeper than {MAX_DEPTH} levels; cut it into several steps")
    if isinstance(node, ast.Name):
        return Name(node.id)
    if isinstance(node, ast.Subscript):
        return _element(node)
    if isinstance(node, ast.Constant):
        return _constant(node.value)
    if isinstance(node, ast.UnaryOp):
        return _unary(_UNARY[type(node.op)], _tree(node.operand, depth + 1))
    if isinstance(node, ast.BinOp):
        return _binary(node.op, node.left, node.right, depth)
    if isinstance(node, ast.Compare):
        return _comparison(node, depth)
    if isinstance(node, ast.BoolOp):
        parts = [_tree(v, depth + 1) for v in node.values]
        return reduce(lambda a, b: Call(_BINARY[type(node.op)], (a, b)), parts)
    if isinstance(node, ast.Call):
        return _call(node, depth)
    raise SpecError(_REFUSED.get(type(node), f"{type(node).__name__} is not allowed in an expression"))


_REFUSED: dict[type[ast.expr], str] = {
    ast.IfExp: "a if b else c is not allowed in an expression; use an `if:` step",
    ast.Attribute: "names in an expression have no attributes",
    ast.Lambda: "functions cannot be defined in an expression",
    ast.List: "lists are not allowed in an expression",
    ast.Tuple: "tuples are not allowed in an expression",
}


def _element(node: ast.Subscript) -> Name:
    """Return the input element ``node``, such as ``shape[1]``, with indices in a uniform notation."""
    indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    try:
        numbers = [ast.literal_eval(i) for i in indices]
    except (ValueError, TypeError):
        numbers = []
    if not isinstance(node.value, ast.Name) or not numbers or any(type(n) is not int for n in numbers):
        raise SpecError("an index in an expression is a whole number after a name, as in shape[1] or boxes[0, -1]; use "
                        "a slice step for anything else")  # fmt: skip
    return Name(f"{node.value.id}[{', '.join(map(str, numbers))}]")


def element(name: str) -> tuple[str, tuple[int, ...]]:
    """Return name and indices of an input that `parse` returned: for ``shape[1]``, ``shape`` and (1,)."""
    base, bracket, rest = name.partition("[")
    return base, tuple(int(n) for n in rest[:-1].split(",")) if bracket else ()


def renamed(text: str, new: Mapping[str, str]) -> str:
    """Return the expression ``text`` with inputs, and elements of inputs, renamed by ``new``."""

    class Rename(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return ast.Name(new.get(node.id, node.id), ast.Load())

        def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
            name = _element(node).name
            return ast.Name(new[name], ast.Load()) if name in new else node

        def visit_Call(self, node: ast.Call) -> ast.expr:
            return ast.Call(node.func, [self.visit(a) for a in node.args], [])

    return ast.unparse(Rename().visit(ast.parse(text.strip(), mode="eval").body))


def _comparison(node: ast.Compare, depth: int) -> Tree:
    if len(node.ops) > 1:
        raise SpecError("comparisons cannot be chained; write (a < b) & (b < c)")
    return _binary(node.ops[0], node.left, node.comparators[0], depth)


def _binary(op: ast.AST, left: ast.expr, right: ast.expr, depth: int) -> Tree:
    fn = _BINARY.get(type(op))
    if fn is None:
        raise SpecError(f"operator {type(op).__name__} is not allowed in an expression")
    return Call(fn, (_tree(left, depth + 1), _tree(right, depth + 1)))


def _unary(fn: str, arg: Tree) -> Tree:
    if fn == "neg" and isinstance(arg, Const) and not isinstance(arg.value, bool):
        return Const(-arg.value)
    return Call(fn, (arg,))


def _constant(value: object) -> Const:
    if isinstance(value, (bool, int, float)):
        return Const(value)
    raise SpecError(f"{str(value)[:40]!r} is not a number; an expression holds names, numbers and functions")


def _call(node: ast.Call, depth: int) -> Tree:
    if not isinstance(node.func, ast.Name):
        raise SpecError("only functions by their plain name can be called in an expression")
    fn = node.func.id
    if fn not in FUNCTIONS:
        raise SpecError(f"there is no function {fn!r}{nearest(fn, FUNCTIONS)}")
    if node.keywords or any(isinstance(a, ast.Starred) for a in node.args):
        raise SpecError(f"{fn} takes its arguments by position")
    if len(node.args) != FUNCTIONS[fn]:
        raise SpecError(f"{fn} takes {FUNCTIONS[fn]} argument{'s' * (FUNCTIONS[fn] > 1)}, got {len(node.args)}")
    return Call(fn, tuple(_tree(a, depth + 1) for a in node.args))


def names(tree: Tree) -> tuple[str, ...]:
    """Return the names of the inputs of ``tree``, in the order in which they first appear."""
    return tuple(dict.fromkeys(_names(tree)))


def _names(tree: Tree) -> Iterator[str]:
    if isinstance(tree, Name):
        yield tree.name
    elif isinstance(tree, Call):
        for arg in tree.args:
            yield from _names(arg)


# -- types ------------------------------------------------------------------------------------------------------------

_BOOL, _INT32, _FLOAT, _FLOAT64 = (np.dtype(t) for t in (np.bool_, np.int32, np.float32, np.float64))


@dataclass(frozen=True, slots=True)
class Typed:
    """A node of an expression (input, constant or function call) with the type of its result."""

    fn: str
    """Kind of node: ``name``, ``const``, or the name of the function."""
    dtype: Dtype
    """Data type of the result."""
    at: Dtype
    """Data type to which arguments are converted before the function is applied. Comparisons of integers are exact,
    without this conversion."""
    args: tuple[Typed, ...] = ()
    value: Any = None
    """Value of a constant, or name of an input."""


def typed(tree: Tree, dtypes: Mapping[str, Dtype]) -> Typed:
    """Return ``tree`` with the type of every node, for inputs of types ``dtypes``. Raises SpecError for operations that
    DALI does not support."""
    if isinstance(tree, Name):
        return Typed("name", dtypes[tree.name], dtypes[tree.name], value=tree.name)
    if isinstance(tree, Const):
        return _typed_constant(tree.value)
    if tree.fn in CASTS:
        return _typed_cast(CASTS[tree.fn], tree.args[0], dtypes)
    args = tuple(typed(a, dtypes) for a in tree.args)
    at, result = _types(tree.fn, [a.dtype for a in args])
    return Typed(tree.fn, result, at, args)


def _typed_constant(value: bool | int | float) -> Typed:
    if isinstance(value, bool):
        return Typed("const", _BOOL, _BOOL, value=value)
    if isinstance(value, float):
        return Typed("const", _FLOAT, _FLOAT, value=value)
    if not -(2**31) <= value < 2**31:
        raise SpecError(f"{str(value)[:30]} does not fit into int32, the type of integer constants; "
                        "write int64(...) or uint64(...) around it, or make it a float")  # fmt: skip
    return Typed("const", _INT32, _INT32, value=value)


def check_constants(tree: Tree) -> None:
    """Check that every constant in ``tree`` has a supported type; types of constants do not depend on the inputs.
    Raises SpecError."""
    if isinstance(tree, Const):
        _typed_constant(tree.value)
    elif isinstance(tree, Call) and not (tree.fn in CASTS and isinstance(tree.args[0], Const)):
        for arg in tree.args:
            check_constants(arg)


def _typed_cast(to: Dtype, arg: Tree, dtypes: Mapping[str, Dtype]) -> Typed:
    if isinstance(arg, Const) and isinstance(arg.value, int) and to.kind in "iu":
        ends = np.iinfo(to)
        return Typed("const", to, to, value=min(max(int(arg.value), int(ends.min)), int(ends.max)))
    if isinstance(arg, Const) and to.kind == "f":
        return Typed("const", to, to, value=float(arg.value))
    inner = typed(arg, dtypes)
    return Typed("cast", to, inner.dtype, (inner,))


def promote(a: Dtype, b: Dtype) -> Dtype:
    """Return the type in which values of types ``a`` and ``b`` are combined: i16 for u8 and i8, i64 for u64 and i8, f32
    for i64 and f32."""
    if a == b:
        return a
    if _BOOL in (a, b):
        return b if a == _BOOL else a
    if "f" in a.kind + b.kind:
        return _FLOAT64 if _FLOAT64 in (a, b) else _FLOAT
    if a.kind == b.kind:
        return a if a.itemsize > b.itemsize else b
    signed, unsigned = (a, b) if a.kind == "i" else (b, a)
    size = signed.itemsize if signed.itemsize > unsigned.itemsize else min(2 * unsigned.itemsize, 8)
    return np.dtype(f"i{size}")


def _types(fn: str, dtypes: list[Dtype]) -> tuple[Dtype, Dtype]:
    """Return the type to which the arguments of ``fn`` are converted, and the type of its result."""
    shown = f"{SYMBOLS.get(fn, fn)} of {' and '.join(d.name for d in dtypes)}"
    if np.dtype(np.float16) in dtypes:
        raise SpecError(f"{shown}: float16 is not supported; convert it first: float(x)")
    at = dtypes[0]
    for other in dtypes[1:]:
        at = promote(at, other)
    all_bool = at == _BOOL
    if fn in ("and", "or") and any(d != _BOOL for d in dtypes):
        raise SpecError(f"{shown}: `and` and `or` take bool; compare first: (x != 0)")
    if fn in ("and", "or", "not") or fn in _COMPARISONS:
        return at, _BOOL
    if fn in ("bitand", "bitor", "bitxor", "inv", "shl", "shr"):
        if at.kind == "f":
            raise SpecError(f"{shown}: bitwise operators take integers and bool")
        # bool << bool is computed as integers, and is true if the result is not zero
        return (np.dtype(np.uint8), _BOOL) if all_bool and fn in ("shl", "shr") else (at, at)
    if fn in ("pos", "mul"):
        return at, at
    if all_bool:
        raise SpecError(f"{shown}: DALI has no such operation on bool; convert first: uint8(x)")
    if fn in ("div", "fpow", "atan2") or fn in REAL:
        real = at if at.kind == "f" else _FLOAT
        return real, real
    return at, at
