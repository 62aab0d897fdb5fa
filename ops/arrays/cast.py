"""Operators cast and cast_like: convert values to another data type."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import numpy as np

from ..base import Arg, Operator, Spec
from ..batch import Batch
from ..context import Context
from ..conversion import round_into
from ..copies.strided import CUDA_TYPES, convert, run, whole
from ..errors import SpecError
from ..types import DALIDataType, to_numpy

_THREADS = 256
_PER_BLOCK = 16 * _THREADS
"""Number of values that one block of GPU threads converts, as in cuda/cast.cu."""


def cast(ctx: Context, data: Batch, dtype: np.dtype[Any]) -> Batch:
    """Return ``data`` as ``dtype``; the same batch if it already has that type."""
    if data.dtype == dtype:
        return data
    if ctx.stage == "cpu" and data.is_packed and _is_plain(data.dtype, dtype):
        start = int(data.offsets[0]) if len(data) else 0
        out = Batch.allocate(ctx.empty, data.shapes, dtype, data.layout, data.samples)
        with np.errstate(over="ignore"):
            out.data[...] = data.data[start : start + out.data.size]
        return out
    if ctx.stage == "cpu" and data.is_packed and _is_rounded(data.dtype, dtype):
        start = int(data.offsets[0]) if len(data) else 0
        out = Batch.allocate(ctx.empty, data.shapes, dtype, data.layout, data.samples)
        round_into(data.data[start : start + out.data.size], out.data)
        return out
    if ctx.stage != "cpu" and data.is_packed and len(data):
        out = Batch.allocate(ctx.empty, data.shapes, dtype, data.layout, data.samples)
        copied(ctx, data.data, out.data, int(data.offsets[0]))
        return out
    return run(ctx, convert(whole(data), dtype), data)


def copied(ctx: Context, source: Any, target: Any, start: int = 0) -> None:
    """Convert elements of ``source``, from index ``start`` on, to the type of ``target``, which is filled with them.
    Both are flat device arrays."""
    types = f"{CUDA_TYPES[source.dtype]}, {CUDA_TYPES[target.dtype]}"
    ctx.device.launch(
        "cast.cu", f"cast<{types}>", -(-target.size // _PER_BLOCK), _THREADS, source, np.int64(start),
        np.int64(target.size), target,
    )  # fmt: skip


def _is_plain(before: np.dtype[Any], after: np.dtype[Any]) -> bool:
    """Return whether NumPy's conversion between these types gives the required results, and is as fast as a compiled
    loop."""
    if after == np.float32 or after == np.float16:
        return before not in (np.uint8, np.float32)
    return after == np.float64 or (after.kind in "iu" and np.can_cast(before, after, "safe"))


def _is_rounded(before: np.dtype[Any], after: np.dtype[Any]) -> bool:
    """Return whether a compiled loop converts between these types, so that the general copy (`copies.strided`) is not
    needed."""
    return before in (np.float32, np.float64) and after.kind in "iu" and after not in (np.uint8, np.int8, np.uint64)


class Cast(Operator, name="cast"):
    """Convert values to another data type.

    Integers saturate; floats are first rounded half away from zero, and NaN becomes 0. bool is true if the rounded
    value is not 0, so that 0.3 is false. float16 is rounded to nearest, ties to even (DALI's CPU backend: ties away).
    """

    replayable = True
    example = "{op: cast, in: labels, dtype: INT64, out: labels}"

    dtype: Annotated[DALIDataType, Arg("data type of the output")]

    def check(self) -> None:
        if self.dtype in (DALIDataType.NO_TYPE, DALIDataType.STRING):
            raise SpecError(f"cannot cast to {self.dtype.name}")

    def infer(self, *specs: Spec) -> Spec:
        return replace(specs[0], dtype=self.dtype)

    def cpu(self, ctx: Context, data: Batch) -> Batch:
        return cast(ctx, data, to_numpy(self.dtype))

    gpu = cpu


class CastLike(Operator, name="cast_like"):
    """Convert the first input to the data type of the second, by the rules of cast."""

    replayable = True
    inputs = (2, 2)
    example = "{op: cast_like, in: [weights, images], out: weights}"

    def infer(self, *specs: Spec) -> Spec:
        return replace(specs[0], dtype=specs[1].dtype)

    def cpu(self, ctx: Context, data: Batch, like: Batch) -> Batch:
        return cast(ctx, data, like.dtype)

    gpu = cpu
