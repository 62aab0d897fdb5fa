"""Operator expr: arithmetic on batches with DALI's type rules; a whole expression is one pass over the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec
from ..batch import Batch, address
from ..context import Context
from ..conversion import saturate
from ..errors import SpecError
from ..kernels import Kernels
from ..types import from_numpy, to_numpy
from . import expression
from .expression import LETTERS, Typed
from .expression_plan import Program, planned

Array = npt.NDArray[Any]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

_BLOCK = 1 << 16
"""Bytes of each array that the CPU computes at a time, so that several temporary arrays fit into the cache. Larger ones
would also be allocated from the system each time; clearing their pages took longer than the arithmetic."""
_loops: Any = Kernels(".expression_cpu", __package__)
_functions: Any = Kernels(".functions_cpu", __package__)


class Expr(Operator, name="expr"):
    """Compute with batches: ``images * 1.5 + 2``. Shapes broadcast as in NumPy; every expression is one pass over the
    data.

    Types are DALI's: integer constants are int32 and float constants float32; u8 + u8 is u8 and wraps around, u8 + i8
    is int16, u64 + i8 is int64, any integer with a float is float; ``/`` of integers is float, ``//`` and ``%``
    truncate toward zero; integers to a negative power are 0. Operations that DALI leaves undefined yield 0: integers
    divided by zero, and shifts by more bits than the type has.
    """

    replayable = True
    inputs = (1, len(LETTERS))
    bound = "exact for + - * / comparisons and integers; 4 units in the last place for other functions"
    example = '{op: expr, expr: "images * scale + 2", out: images}'

    expr: Annotated[str, Arg("expression with DALI's operators and functions, and conversions such as uint8(x)")]
    names: Annotated[tuple[str, ...], Arg("names of the inputs in the expression, in order; a, b, ... by default")] = ()

    def check(self) -> None:
        used = expression.names(expression.parse(self.expr))
        known = self.names or LETTERS
        unknown = [n for n in used if n not in known]
        if unknown:
            raise SpecError(f"{unknown[0]!r} in the expression is not an input")
        expression.check_constants(expression.parse(self.expr))

    def infer(self, *specs: Spec) -> Spec:
        known = dict(zip(self._names(len(specs)), specs, strict=True))
        used = expression.names(expression.parse(self.expr))
        dtype = None
        if all(known[n].dtype is not None for n in used):
            result = self._typed(tuple((n, _numpy(known[n])) for n in used))
            dtype = from_numpy(result.dtype)
        return Spec(_broadcast_specs(specs), dtype, _layout([(s.layout, s.ndim) for s in specs]))

    def cpu(self, ctx: Context, *batches: Batch) -> Batch:
        names = self._names(len(batches))
        what = self._typed(tuple(zip(names, (b.dtype for b in batches), strict=True)))
        given = _aligned(ctx, batches)
        out = Batch.allocate(ctx.empty, given.out, what.dtype, given.layout, ctx.samples)
        program = planned(what, names, tuple(b.dtype for b in batches))
        if program is not None and _compiled(program, batches, given, out):
            return out
        with np.errstate(all="ignore"):
            if all(given.full[k] or given.scalar[k] for k in range(len(batches))):
                _flat(what, names, batches, given, out)
            else:
                _broadcast(what, names, batches, given, out)
        return out

    def gpu(self, ctx: Context, *batches: Batch) -> Batch:
        from .expression_cuda import launch

        what = self._typed(tuple(zip(self._names(len(batches)), (b.dtype for b in batches), strict=True)))
        given = _aligned(ctx, batches)
        out = Batch.allocate(ctx.empty, given.out, what.dtype, given.layout, ctx.samples)
        launch(ctx.device, what, self._names(len(batches)), batches, given.shapes, given.full, given.scalar, out)
        return out

    def _names(self, inputs: int) -> tuple[str, ...]:
        names = self.names or LETTERS[:inputs]
        if len(names) != inputs:
            raise SpecError(f"names {len(names)} inputs, got {inputs}")
        missing = _used(self.expr) - set(names)
        if missing:
            raise SpecError(f"{min(missing)!r} in the expression is not an input")
        return names

    def _typed(self, dtypes: tuple[tuple[str, np.dtype[Any]], ...]) -> Typed:
        return _typed(self.expr, dtypes)


@lru_cache(1024)
def _used(text: str) -> frozenset[str]:
    return frozenset(expression.names(expression.parse(text)))


@lru_cache(1024)
def _typed(text: str, dtypes: tuple[tuple[str, np.dtype[Any]], ...]) -> Typed:
    return expression.typed(expression.parse(text), dict(dtypes))


def _numpy(spec: Spec) -> np.dtype[Any]:
    assert spec.dtype is not None
    try:
        return to_numpy(spec.dtype)
    except KeyError:
        raise SpecError(f"{spec.dtype.name} is not supported in expressions") from None


# -- shapes -----------------------------------------------------------------------------------------------------------


def _broadcast_specs(specs: Sequence[Spec]) -> tuple[int | None, ...] | None:
    if any(s.shape is None for s in specs):
        return None
    shapes = [s.shape for s in specs if s.shape is not None]
    ndim = max(map(len, shapes))
    out: list[int | None] = []
    for column in zip(*((1,) * (ndim - len(s)) + s for s in shapes), strict=True):
        known = {d for d in column if d is not None and d != 1}
        if len(known) > 1:
            listed = " and ".join("x".join("?" if d is None else str(d) for d in s) or "scalar" for s in shapes)
            raise SpecError(f"shapes {listed} do not broadcast")
        out.append(known.pop() if known else (None if None in column else 1))
    return tuple(out)


def _layout(inputs: Sequence[tuple[str, int | None]]) -> str:
    """Return the layout of an expression's result, given layout and number of dimensions of each input: the longest
    layout, of which the other layouts must be the last letters. Raises SpecError."""
    layouts = [layout for layout, _ in inputs if layout]
    if not layouts:
        return ""
    longest = max(layouts, key=len)
    for layout in layouts:
        if not longest.endswith(layout):
            raise SpecError(f"layouts {longest} and {layout} do not go together; transpose one of them")
    widest = max((n for _, n in inputs if n is not None), default=len(longest))
    return longest if len(longest) >= widest else ""


class _Aligned:
    """Shapes of an expression's inputs, extended to equal numbers of dimensions, and how each relates to the shape of
    the result."""

    def __init__(self, shapes: list[I32], out: I32, layout: str) -> None:
        self.shapes = shapes
        self.out = out
        self.layout = layout
        self.full = [s is out or bool((s == out).all()) for s in shapes]
        """For each input, whether all samples have the shape of the result."""
        self.scalar = [s.shape[1] == 0 or bool((s == 1).all()) for s in shapes]
        """For each input, whether all samples are single values."""


def _aligned(ctx: Context, batches: Sequence[Batch]) -> _Aligned:
    """Return the broadcast shapes of all inputs. Samples whose shapes cannot be broadcast are rejected, and count as
    empty."""
    first = batches[0]
    if all(b.shapes is first.shapes or np.array_equal(b.shapes, first.shapes) for b in batches[1:]):
        return _Aligned([b.shapes for b in batches], first.shapes, _layout([(b.layout, b.ndim) for b in batches]))
    ndim = max(b.ndim for b in batches)
    shapes = [np.pad(b.shapes, ((0, 0), (ndim - b.ndim, 0)), constant_values=1) for b in batches]
    out = np.ones_like(shapes[0])
    conflict = np.zeros(len(out), np.bool_)
    for s in shapes:
        conflict |= ((s != 1) & (out != 1) & (s != out)).any(axis=1)
        out = np.where(s != 1, s, out)
    for i in np.flatnonzero(conflict).tolist():
        listed = " and ".join("x".join(map(str, b.shapes[i].tolist())) or "scalar" for b in batches)
        ctx.reject(i, "bad_shape", f"shapes {listed} do not broadcast")
    if conflict.any():
        out[conflict] = 0
        shapes = [np.where(conflict[:, None], 0, s) for s in shapes]
    return _Aligned(shapes, out, _layout([(b.layout, b.ndim) for b in batches]))


# -- the CPU ----------------------------------------------------------------------------------------------------------


def _compiled(program: Program, batches: Sequence[Batch], aligned: _Aligned, out: Batch) -> bool:
    """Compute ``out`` with the compiled interpreter of `expression_cpu`. Return False, with nothing computed, if it
    does not support these inputs."""
    n, inputs = len(out), len(batches)
    if not out.data.size:
        return True
    if any(b.data.strides[0] != b.data.itemsize for b in batches):
        return False
    if all(aligned.full) and all(b.is_packed for b in batches):  # treated as one long sample
        starts = np.array([[b.offsets[0]] for b in batches])
        periods, sizes, to = np.zeros((inputs, 1), np.int64), np.array([out.data.size]), np.zeros(1, np.int64)
    else:
        starts, periods = np.empty((inputs, n), np.int64), np.zeros((inputs, n), np.int64)
        sizes, to = out.sizes, out.offsets
        for k, b in enumerate(batches):
            starts[k] = b.offsets
            if aligned.scalar[k]:
                periods[k] = 1
            elif not aligned.full[k]:
                if not _is_tail(aligned.shapes[k], aligned.out):
                    return False
                periods[k] = b.sizes
    addresses = np.array([address(b.data) for b in batches])
    target = np.array([address(out.data), program.kind, program.out_from])
    done: bool = _loops.calculate(
        program.functions, program.sources, program.constants, program.registers, addresses, starts, periods, sizes,
        target, to,
    )  # fmt: skip
    return done


_LARGE = 1 << 12
"""Minimum mean number of elements per sample from which samples are computed one by one."""
_ELEMENTS = 1 << 16
"""Maximum number of elements that are computed at once if small samples are joined to one array."""


def _block_of(tree: Typed) -> int:
    """Return the number of elements to compute at a time, so that arrays of the widest type in ``tree`` have `_BLOCK`
    bytes."""

    def widest(t: Typed) -> int:
        converted = 1 if t.fn in _COMPARED and t.at.kind != "f" else t.at.itemsize
        return max([t.dtype.itemsize, converted, *(widest(a) for a in t.args if a.fn != "const")])

    return _BLOCK // widest(tree)


def _flat(tree: Typed, names: Sequence[str], batches: Sequence[Batch], aligned: _Aligned, out: Batch) -> None:
    """Compute the expression on the elements of all samples in a row, in blocks. Inputs with one value per sample are
    repeated if samples are small; if samples are large, no block crosses from one sample to the next."""
    block = _block_of(tree)
    if len(out.data) <= block and all(aligned.full):
        count = len(out.data)
        out.data[:] = evaluate(tree, {n: _elements(b, count) for n, b in zip(names, batches, strict=True)})
        return
    sizes = out.sizes
    large = not all(aligned.full) and bool(sizes.sum() >= len(sizes) * (block >> 3))
    rows: list[Array] = []
    for k, b in enumerate(batches):
        if aligned.full[k]:
            rows.append(_elements(b, int(sizes.sum())))
        else:
            values = b.data[b.offsets]
            rows.append(values if large else np.repeat(values, sizes))
    limits = [0, *np.cumsum(sizes).tolist()] if large else [0, len(out.data)]
    for i, (start, end) in enumerate(pairwise(limits)):
        for lo in range(start, end, block):
            hi = min(lo + block, end)
            part = {
                n: r[i : i + 1] if large and not full else r[lo:hi]
                for n, r, full in zip(names, rows, aligned.full, strict=True)
            }
            _write(tree, part, out.data[lo:hi])


def _elements(b: Batch, count: int) -> Array:
    packed = b.packed()
    start = int(packed.offsets[0]) if count else 0
    row: Array = packed.data[start : start + count]
    return row


def _broadcast(tree: Typed, names: Sequence[str], batches: Sequence[Batch], aligned: _Aligned, out: Batch) -> None:
    """Compute the expression with broadcasting: consecutive samples of equal shapes are computed as one array. If
    inputs broadcast only along the first dimensions and samples are large, use `_repeated`."""
    if out.data.size >= len(out) * _LARGE and all(_is_period(s, aligned.out) for s in aligned.shapes):
        _repeated(tree, names, batches, aligned, out)
        return
    for lo, hi in _runs(aligned, out.sizes):
        part = {}
        for n, b, s in zip(names, batches, aligned.shapes, strict=True):
            part[n] = b.take(slice(lo, hi)).dense().reshape(hi - lo, *s[lo].tolist())
        whole = out.take(slice(lo, hi)).dense()
        whole[...] = evaluate(tree, part)


def _is_period(shapes: I32, out: I32) -> bool:
    """Return whether `_is_tail` holds, and the input that is broadcast has so few elements that repeating it is
    cheap."""
    few = int(shapes.prod(axis=1).max(initial=0)) <= _BLOCK >> 6
    return _is_tail(shapes, out) and (few or bool((shapes == out).all()))


def _is_tail(shapes: I32, out: I32) -> bool:
    """Return whether an input's ``shapes`` equal those of the result, ``out``, or at least their last dimensions, with
    ones before."""
    return any(
        (shapes[:, :first] == 1).all() and (shapes[:, first:] == out[:, first:]).all()
        for first in range(shapes.shape[1] + 1)
    )


def _repeated(tree: Typed, names: Sequence[str], batches: Sequence[Batch], aligned: _Aligned, out: Batch) -> None:
    """Compute each sample as one row of elements, in blocks. Small inputs are repeated to fill a block."""
    most = _block_of(tree)
    sizes, periods = out.sizes, [s.prod(axis=1, dtype=np.int64) for s in aligned.shapes]
    for i in range(len(out)):
        size = int(sizes[i])
        if size == 0:
            continue
        step = math.lcm(*(int(p[i]) for p in periods if p[i] < size))
        block = min(max(1, most // step) * step, size)
        rows = []
        for b, p in zip(batches, periods, strict=True):
            row = b.data[b.offsets[i] : b.offsets[i] + int(p[i])]
            rows.append(row if len(row) == size else np.tile(row, block // len(row)))
        to = out.data[out.offsets[i] : out.offsets[i] + size]
        for lo in range(0, size, block):
            hi = min(lo + block, size)
            part = {n: row[lo:hi] if len(row) == size else row[: hi - lo] for n, row in zip(names, rows, strict=True)}
            _write(tree, part, to[lo:hi])


def _runs(aligned: _Aligned, sizes: I64) -> Iterator[tuple[int, int]]:
    n = len(sizes)
    changes = np.zeros(max(n - 1, 0), np.bool_)
    for s in aligned.shapes:
        changes |= (s[1:] != s[:-1]).any(axis=1)
    ends = [*(np.flatnonzero(changes) + 1).tolist(), n]
    start = 0
    for end in ends:
        if sizes[start : start + 1].sum() > 0:
            step = max(1, _ELEMENTS // int(sizes[start]))
            yield from ((lo, min(lo + step, end)) for lo in range(start, end, step))
        start = end


def _write(tree: Typed, inputs: dict[str, Array], to: Array) -> None:
    value = evaluate(tree, inputs, to)
    if value is not to:
        to[...] = value


def _holds(dtype: np.dtype[Any], value: Array) -> bool:
    """Return whether the integer type ``dtype`` can represent ``value``."""
    low, high = _limits(dtype)
    return value.dtype.kind in "iu" and low <= int(value) <= high


@lru_cache(64)
def _limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the smallest and the largest number of an integer type; for other types, a range without any number."""
    if dtype.kind not in "iu":
        return 1, 0
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


def evaluate(tree: Typed, inputs: dict[str, Array], into: Array | None = None) -> Array:
    """Compute the typed expression ``tree`` for arrays, which are broadcast, and return the value. The caller must
    silence NumPy's warnings. ``into``: array of the value's shape and type; the value may be written to it, and it is
    then returned."""
    if tree.fn == "name":
        return inputs[tree.value]
    if tree.fn == "const":
        return np.asarray(tree.value, np.float64 if tree.dtype.kind == "f" else None).astype(tree.dtype)
    args = [evaluate(a, inputs) for a in tree.args]
    if tree.fn == "cast":
        return saturate(args[0], tree.dtype)
    if not (tree.fn in _COMPARED and tree.at.kind != "f"):
        args = [a.astype(tree.at, copy=False) for a in args]
    elif tree.args[1].fn == "const" and _holds(args[0].dtype, args[1]):
        args[1] = args[1].astype(args[0].dtype)  # otherwise NumPy would convert the other argument
    function = _FUNCTIONS[tree.fn]
    if tree.fn in _VECTORS and tree.at == tree.dtype == np.float32:
        return _in_vectors(tree.fn, args, into)
    if into is not None and isinstance(function, np.ufunc) and tree.dtype == tree.at == into.dtype:
        return np.asarray(function(*args, out=into))
    result: Array = function(*args)
    if result.dtype != tree.dtype:
        return result != 0 if tree.dtype.kind == "b" else result.astype(tree.dtype)
    return result


_VECTORS = {
    n: n for n in ("log2", "log10", "cbrt", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh")
} | {"pow": "power", "fpow": "power", "atan2": "atan2"}
"""NumPy functions for which `functions_cpu` has vector instructions for float32, with their names there."""


def _in_vectors(fn: str, args: list[Array], into: Array | None) -> Array:
    """Compute the float32 function ``fn`` with vector instructions. Write the result to ``into`` if it is not None, and
    return it."""
    name, shape = _VECTORS[fn], np.broadcast_shapes(*(a.shape for a in args))
    alike = (a if a.shape == shape else np.broadcast_to(a, shape) for a in args)
    values = [np.ascontiguousarray(a).reshape(-1) for a in alike]
    fits = into is not None and into.shape == shape and into.flags.c_contiguous
    out: Array = into if into is not None and fits else np.empty(shape, np.float32)
    line = out.reshape(-1)
    if not getattr(_functions, name)(*values, line):
        odd = _functions.unusual(name, *values)
        line[odd] = _FUNCTIONS[fn](*(v[odd] for v in values))
    return out


def _divide_toward_zero(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    if a.dtype.kind == "b":
        return a & b
    return np.asarray(np.floor_divide(a - np.fmod(a, b), b))


def _power(a: Array, b: Array) -> Array:
    if b.dtype.kind != "i":
        return np.asarray(np.power(a, b))
    return np.where(b < 0, np.zeros((), a.dtype), np.power(a, np.maximum(b, 0)))


def _clamp(v: Array, low: Array, high: Array) -> Array:
    raised = np.where(v < low, low, v)
    return np.where(high < raised, high, raised)


_COMPARED: dict[str, Callable[..., Any]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
_REAL = {n: getattr(np, {"acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan",
                         "atanh": "arctanh"}.get(n, n)) for n in expression.REAL if n != "rsqrt"}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **_COMPARED, **_REAL,
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "fdiv": _divide_toward_zero,
    "mod": np.fmod, "pow": _power, "fpow": np.power, "atan2": np.arctan2,
    "bitand": np.bitwise_and, "bitor": np.bitwise_or, "bitxor": np.bitwise_xor, "inv": np.invert,
    "shl": np.left_shift, "shr": np.right_shift, "and": np.logical_and, "or": np.logical_or, "not": np.logical_not,
    "neg": np.negative, "pos": lambda a: a, "abs": np.abs, "rsqrt": lambda a: 1 / np.sqrt(a),
    "min": lambda a, b: np.where(a < b, a, b), "max": lambda a, b: np.where(a > b, a, b), "clamp": _clamp,
}  # fmt: skip
