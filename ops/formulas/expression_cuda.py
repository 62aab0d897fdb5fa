"""CUDA kernel of an expression: generated for its types and for the way its inputs broadcast, compiled once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..batch import Batch
from ..interfaces import Lane
from .expression import SYMBOLS, Dtype, Typed

Mode = Literal["full", "scalar", "strided"]
"""How the kernel reads an input: "full", element by element; "scalar", one value per sample; "strided", broadcast by
strides."""

_C = {"?": "boolean", "B": "unsigned char", "H": "unsigned short", "I": "unsigned int", "L": "unsigned long long",
      "Q": "unsigned long long", "b": "signed char", "h": "short", "i": "int", "l": "long long", "q": "long long",
      "e": "half", "f": "float", "d": "double"}  # fmt: skip
_BLOCK = 256
_PER_THREAD = 8


def source(tree: Typed, names: Sequence[str], dtypes: Sequence[Dtype], modes: Sequence[Mode], ndim: int) -> str:
    """Return the CUDA source of the kernel ``expression`` for ``tree``. Parameters of the kernel: output, offsets,
    sizes, and number of samples; for each input, data and offsets, and strides (int64[N, ndim]) if it is read by
    strides; and if any input is, shapes of the result, int32[N, ndim]."""
    stored = _C[tree.dtype.char]
    parameters = [f"{stored}* out", "const long long* out_start", "const long long* size", "int samples"]
    loads = []
    for k, (dtype, mode) in enumerate(zip(dtypes, modes, strict=True)):
        parameters += [f"const {_C[dtype.char]}* in{k}", f"const long long* start{k}"]
        at = {"full": f"start{k}[s] + e", "scalar": f"start{k}[s]", "strided": f"start{k}[s] + at{k}"}[mode]
        if mode == "strided":
            parameters.append(f"const long long* stride{k}")
        loads.append(f"const auto v{k} = load(in{k}[{at}]);")
    if "strided" in modes:
        parameters.append("const int* shape")
    value = _emit(tree, {n: f"v{k}" for k, n in enumerate(names)})
    one = f"""{" ".join(loads)}
            out[out_start[s] + e] = store<{stored}>({value});"""
    if (count := _together(tree, dtypes, modes)) > 1:
        return _by_vectors(tree, names, dtypes, modes, parameters, one, count)
    return f"""#include "expression.cuh"
extern "C" __global__ void expression({", ".join(parameters)}) {{
    for (int s = blockIdx.y; s < samples; s += gridDim.y) {{
        for (long long e = blockIdx.x * (long long)blockDim.x + threadIdx.x; e < size[s];
             e += gridDim.x * (long long)blockDim.x) {{
            {_coordinates(modes, ndim)}
            {one}
        }}
    }}
}}
"""


def _together(tree: Typed, dtypes: Sequence[Dtype], modes: Sequence[Mode]) -> int:
    """Return the number of elements that a thread reads and writes together: 16 bytes of the widest type."""
    if "strided" in modes or "full" not in modes:
        return 1
    return 16 // max(tree.dtype.itemsize, *(d.itemsize for d, m in zip(dtypes, modes, strict=True) if m == "full"))


def _by_vectors(
    tree: Typed, names: Sequence[str], dtypes: Sequence[Dtype], modes: Sequence[Mode], parameters: list[str],
    element: str, count: int,
) -> str:  # fmt: skip
    """Return the CUDA source for inputs that are all read in the order of the result. ``count`` elements are read and
    written together if all arrays of a sample are aligned for that."""
    full = [k for k, mode in enumerate(modes) if mode == "full"]
    inputs = {k: f"in{k} + start{k}[s]" for k in full}
    reads = " ".join(
        f"const auto p{k} = reinterpret_cast<const Several<{_C[dtypes[k].char]}, {count}>*>({inputs[k]})[g];"
        for k in full
    )
    scalars = " ".join(f"const auto v{k} = load(in{k}[start{k}[s]]);" for k in range(len(modes)) if k not in full)
    loads = " ".join(f"const auto v{k} = load(p{k}.v[i]);" for k in full)
    stored = _C[tree.dtype.char]
    value = _emit(tree, {n: f"v{k}" for k, n in enumerate(names)})
    whole = " && ".join(f"together<{count}>({at})" for at in (*inputs.values(), "out + out_start[s]"))
    return f"""#include "expression.cuh"
extern "C" __global__ void expression({", ".join(parameters)}) {{
    const long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x, step = gridDim.x * (long long)blockDim.x;
    for (int s = blockIdx.y; s < samples; s += gridDim.y) {{
        long long done = 0;
        if ({whole}) {{
            {scalars}
            const long long groups = size[s] / {count};
            for (long long g = first; g < groups; g += step) {{
                {reads}
                Several<{stored}, {count}> made;
                #pragma unroll
                for (int i = 0; i < {count}; ++i) {{
                    {loads}
                    made.v[i] = store<{stored}>({value});
                }}
                reinterpret_cast<Several<{stored}, {count}>*>(out + out_start[s])[g] = made;
            }}
            done = groups * {count};
        }}
        for (long long e = done + first; e < size[s]; e += step) {{
            {element}
        }}
    }}
}}
"""


def _coordinates(modes: Sequence[Mode], ndim: int) -> str:
    strided = [k for k, m in enumerate(modes) if m == "strided"]
    if not strided:
        return ""
    lines = ["long long rest = e;"] + [f"long long at{k} = 0;" for k in strided]
    for d in reversed(range(ndim)):
        here = f"[s * {ndim}LL + {d}]"
        adds = " ".join(f"at{k} += place * stride{k}{here};" for k in strided)
        lines.append(
            f"{{ const long long extent = shape{here}; const long long place = rest % extent; rest /= extent; {adds} }}"
        )
    return " ".join(lines)


def _emit(tree: Typed, names: dict[str, str]) -> str:
    if tree.fn == "name":
        return names[tree.value]
    if tree.fn == "const":
        return _literal(tree.value, tree.dtype)
    args = [_emit(a, names) for a in tree.args]
    if tree.fn == "cast":
        if tree.dtype.kind == "b":
            return f"load(converted<boolean>({args[0]}))"
        return f"converted<{_C[tree.dtype.char]}>({args[0]})"
    if tree.fn in ("eq", "ne", "lt", "le", "gt", "ge") and tree.at.kind != "f":
        return f"(order({args[0]}, {args[1]}) {SYMBOLS[tree.fn]} 0)"
    at = _calculated(tree.at)
    args = [f"static_cast<{at}>({a})" for a in args]
    text = _function(tree.fn, at, args)
    result = _calculated(tree.dtype)
    return f"(({text}) != 0)" if result == "bool" and at != "bool" else f"static_cast<{result}>({text})"


def _calculated(dtype: Dtype) -> str:
    return "bool" if dtype.kind == "b" else _C[dtype.char]


def _function(fn: str, at: str, args: list[str]) -> str:
    if fn in ("eq", "ne", "lt", "le", "gt", "ge", "div", "bitand", "bitor", "bitxor"):
        return f"({args[0]} {SYMBOLS[fn]} {args[1]})"
    if fn in ("and", "or"):
        return f"({args[0]} {'&&' if fn == 'and' else '||'} {args[1]})"
    if fn == "not":
        return f"({args[0]} == 0)"
    if fn == "inv":
        return f"!{args[0]}" if at == "bool" else f"~{args[0]}"
    if fn == "pos":
        return args[0]
    if fn in ("add", "sub", "mul", "neg", "fdiv", "mod", "pow", "shl", "shr", "abs", "min", "max", "clamp"):
        return f"op_{fn}<{at}>({', '.join(args)})"
    suffix = "f" if at == "float" else ""
    if fn == "rsqrt":
        return f"(1 / sqrt{suffix}({args[0]}))"
    return f"{'pow' if fn == 'fpow' else fn}{suffix}({', '.join(args)})"


def _literal(value: bool | int | float, dtype: Dtype) -> str:
    if dtype.kind == "b":
        return "true" if value else "false"
    if dtype.kind in "iu":
        return f"static_cast<{_C[dtype.char]}>({int(value) & 0xFFFFFFFFFFFFFFFF:#x}ULL)"
    if dtype.char == "e":
        return f"half{{{int(np.asarray(value, np.float64).astype(np.float16).view(np.uint16))}}}"
    with np.errstate(over="ignore"):
        number = float(np.asarray(value, np.float64).astype(dtype))
    if number in (float("inf"), float("-inf")):
        text = f"({'-' if number < 0 else ''}__longlong_as_double(0x7ff0000000000000LL))"
    else:
        text = number.hex()
    return f"static_cast<{_C[dtype.char]}>({text})"


@lru_cache(256)
def _source(tree: Typed, names: tuple[str, ...], dtypes: tuple[Dtype, ...], modes: tuple[Mode, ...], ndim: int) -> str:
    return source(tree, names, dtypes, modes, ndim)


def launch(
    lane: Lane,
    tree: Typed,
    names: Sequence[str],
    batches: Sequence[Batch],
    shapes: Sequence[npt.NDArray[np.int32]],
    full: Sequence[bool],
    scalar: Sequence[bool],
    out: Batch,
) -> None:
    """Launch the kernel that computes the expression on the device ``batches`` into ``out``. ``shapes``: the inputs'
    shapes, extended by leading ones. ``full``: which inputs have the result's shapes; ``scalar``: which have one value
    per sample."""
    modes: tuple[Mode, ...] = tuple(
        "full" if f else "scalar" if s else "strided" for f, s in zip(full, scalar, strict=True)
    )
    sizes, starts = out.sizes, [b.offsets for b in batches]
    ndim = out.ndim
    if all(full) and all(b.is_packed for b in batches) and len(out):
        # one long sample, so that work is evenly distributed
        sizes, starts = sizes.sum(keepdims=True), [b.offsets[:1] for b in batches]
    if not int(sizes.sum()):
        return
    text = _source(tree, tuple(names), tuple(b.dtype for b in batches), modes, ndim)
    tables: list[npt.NDArray[Any]] = [out.offsets[: len(sizes)], sizes]
    for k, mode in enumerate(modes):
        tables.append(starts[k])
        if mode == "strided":
            tables.append(_strides(shapes[k]))
    if "strided" in modes:
        tables.append(out.shapes)
    out_start, size, *rest = lane.upload(*tables)
    args: list[Any] = [out.data, out_start, size, np.int32(len(sizes))]
    each = iter(rest)
    for k, mode in enumerate(modes):
        args += [batches[k].data, next(each)]
        if mode == "strided":
            args.append(next(each))
    args += each
    elements = max(_PER_THREAD, _together(tree, tuple(b.dtype for b in batches), modes))
    grid = (max(1, -(-int(sizes.max()) // (_BLOCK * elements))), min(len(sizes), 65535))
    lane.launch_text(text, "expression", grid, _BLOCK, *args)


def _strides(shapes: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Return the distance in elements from one index to the next along each axis, 0 along axes of length 1."""
    wide = shapes.astype(np.int64)
    after = np.concatenate([wide[:, 1:], np.ones((len(wide), 1), np.int64)], axis=1)
    strides: npt.NDArray[np.int64] = np.cumprod(after[:, ::-1], axis=1)[:, ::-1]
    return np.where(wide == 1, 0, strides)
