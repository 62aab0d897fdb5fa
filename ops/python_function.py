"""Operator python_function: call a function of the user's program in the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import numpy as np

from .base import Arg, Operator, Spec
from .batch import Batch
from .context import Context
from .errors import JobError, MixedBatchError, SampleError, SpecError
from .types import from_numpy


class PythonFunction(Operator, name="python_function"):
    """Call a Python function with the data of each sample, or with whole batches; only in Python programs, not in
    specs.

    A sample for which the function raises an exception is rejected. The arrays of one output must have one type and
    number of dimensions throughout a batch; the pipeline raises a RuntimeError for a mixed batch, as DALI does. On a
    GPU the function receives CuPy arrays.
    """

    inputs = (0, 256)
    per_batch = True
    shared = False

    function: Annotated[
        Any, Arg("function that takes one array per input and returns one array per output, or a tuple of arrays")
    ] = None
    arity: Annotated[int, Arg("number of outputs", ge=0)] = 1
    batch_processing: Annotated[bool, Arg("the function takes and returns lists of arrays, one entry per sample")] = (
        False
    )
    output_layouts: Annotated[tuple[str, ...], Arg("layouts of the outputs")] = ()
    keeps_layouts: Annotated[
        bool,
        Arg(
            "an output without a layout takes the layout of the input with the same index, if it has as many dimensions"
        ),
    ] = False

    @property
    def num_outputs(self) -> int:
        return max(self.arity, 1)

    def check(self) -> None:
        if not callable(self.function):
            raise SpecError(
                f"function must be callable, got {self.function!r}; python_function is for programs: a spec names "
                "files with operators of its own in `plugins:`"
            )
        if len(self.output_layouts) > self.num_outputs:
            raise SpecError(f"output_layouts names {len(self.output_layouts)} layouts for {self.num_outputs} outputs")

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        known = [self._layout(k) for k in range(self.num_outputs)]
        if self.keeps_layouts:
            known = [""] * len(known)  # only the function determines the number of dimensions
        return (Spec(layout=known[0]), *(Spec(layout=layout) for layout in known[1:]))

    def _layout(self, k: int) -> str:
        return self.output_layouts[k] if k < len(self.output_layouts) else ""

    def cpu(self, ctx: Context, *data: Batch) -> tuple[Batch, ...]:
        n = len(ctx.samples)
        columns = self._whole(data, n) if self.batch_processing else self._each(ctx, data, n)
        if self.arity == 0:
            return (Batch.from_dense(_zeros(ctx, n), "", ctx.samples),)
        like = [b.layout for b in data] if self.keeps_layouts else []
        like += [""] * (self.arity - len(like))
        return tuple(self._batch(ctx, column, self._layout(k), like[k]) for k, column in enumerate(columns))

    gpu = cpu

    def _each(self, ctx: Context, data: Sequence[Batch], n: int) -> list[list[Any]]:
        columns: list[list[Any]] = [[] for _ in range(self.arity)]
        for i in range(n):
            try:
                result = self.function(*(b.sample(i) for b in data))
                parts = [_checked(r) for r in self._parts(result)]
            except Exception as e:  # any exception of the user's function rejects this sample only
                ctx.reject(i, "user_function", f"{_name(self.function)}: {type(e).__name__}: {e}")
                parts = [None] * self.arity
            for column, part in zip(columns, parts, strict=True):
                column.append(part)
        return columns

    def _whole(self, data: Sequence[Batch], n: int) -> list[list[Any]]:
        try:
            result = self.function(*(list(b) for b in data))
            columns = [[_checked(r) for r in part] for part in self._parts(result)]
        except Exception as e:
            raise JobError(f"{_name(self.function)}: {type(e).__name__}: {e}") from e
        for column in columns:
            if len(column) != n:
                raise JobError(f"{_name(self.function)} returned {len(column)} samples for {n}")
        return columns

    def _parts(self, result: Any) -> Sequence[Any]:
        """Return the result of the user's function as a sequence with one entry per output."""
        if self.arity == 0:
            return ()
        parts = result if isinstance(result, (tuple, list)) and (self.arity > 1 or isinstance(result, tuple)) else \
            (result,)  # fmt: skip
        if len(parts) != self.arity:
            raise TypeError(f"it must return {self.arity} outputs, got {len(parts)}")
        return parts

    def _batch(self, ctx: Context, column: list[Any], layout: str, like: str) -> Batch:
        good = next((c for c in column if c is not None), None)
        if good is None:
            return Batch.from_dense(_zeros(ctx, len(column)), "", ctx.samples)
        for i, a in enumerate(column):
            if a is not None and (a.ndim, a.dtype) != (good.ndim, good.dtype):
                first = next(k for k, c in enumerate(column) if c is good)
                raise MixedBatchError(
                    f"{_name(self.function)} returned {good.dtype}, {good.ndim}-D for sample {_key(ctx, first)} and "
                    f"{a.dtype}, {a.ndim}-D for sample {_key(ctx, i)} of one batch; return one type and number of "
                    "dimensions"
                )
        blank = good[(slice(0, 0),) * good.ndim]
        arrays = [blank if c is None else c for c in column]
        if layout and len(layout) != good.ndim:
            raise SampleError("bad_shape", f"the layout {layout!r} of output_layouts names {len(layout)} dimensions, "
                                     f"{_name(self.function)} returned {good.ndim}")  # fmt: skip
        layout = layout or (like if len(like) == good.ndim else "")
        shapes = np.array([a.shape for a in arrays], np.int32).reshape(len(arrays), good.ndim)
        out = Batch.allocate(ctx.empty, shapes, good.dtype, layout, ctx.samples)
        for i, a in enumerate(arrays):
            out.sample(i)[...] = a
        if not out.on_host:
            ctx.device.keep(*arrays)  # the function's library may reuse their memory
        return out


def _checked(value: Any) -> Any:
    """Return ``value`` as an array that the engine can use: NumPy, CuPy, or converted through DLPack or array
    interfaces."""
    if hasattr(value, "__cuda_array_interface__") and not hasattr(value, "__array_interface__"):
        from .gpu.lane import foreign

        return foreign(value)
    array = np.asarray(value)
    try:
        from_numpy(array.dtype)
    except (KeyError, TypeError):
        raise TypeError(f"it must return arrays of numbers, got {type(value).__name__}") from None
    return array


def _zeros(ctx: Context, n: int) -> Any:
    out = ctx.empty(n, np.uint8)
    out[...] = 0
    return out


def _key(ctx: Context, i: int) -> str:
    return repr(ctx.samples.origin(i).key)


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


class DLTensorPythonFunction(PythonFunction, name="dl_tensor_python_function"):
    """Call a Python function with DLPack capsules of the data of each sample, or with lists of capsules; only in Python
    programs, not in specs."""
