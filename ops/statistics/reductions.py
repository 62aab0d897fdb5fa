"""Operators reductions.*: sums, means, extremes and deviations along axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..arrays.cast import cast
from ..arrays.slice import resolve_axes
from ..base import Arg, Operator, Spec
from ..batch import I64, Batch
from ..context import Context
from ..conversion import saturate
from ..copies.strided import CUDA_TYPES, Target, loops, permute, row_major, whole
from ..errors import SpecError
from ..kernels import Kernels
from ..types import DALIDataType, from_numpy, to_numpy

_loops: Any = Kernels(".reductions_cpu", __package__)

SUM, SQUARES, DEVIATIONS, MIN, MAX = range(5)
"""Quantities that a reduction computes for a group of elements; reductions_cpu.py and cuda/reductions.cu have the same
numbers."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of elements, each of which gives one result: the elements of a sample with equal indices in the dimensions
    that are kept."""

    rows: I64
    """Lengths and strides of each sample's dimensions, kept ones first, then reduced ones: [N, D, 5], with the columns
    of `strided.Loops`. OUT_STRIDE is the distance in the array of results, 0 along reduced dimensions."""
    num_kept: int
    """Number of kept dimensions at the start of ``rows``."""
    results: I64
    """Number of groups in each sample, [N]; each gives one result."""
    count: I64
    """Number of elements in each group of a sample, [N]."""


def groups(data: Batch, reduced: list[int]) -> Groups:
    """Return the groups of elements of ``data`` that become one result each if the dimensions ``reduced`` are
    reduced."""
    shape = data.shapes.astype(np.int64)
    kept = [d for d in range(data.ndim) if d not in reduced]
    stride = np.zeros_like(shape)
    stride[:, kept] = row_major(np.ascontiguousarray(shape[:, kept]))
    order = kept + reduced
    dims = loops(permute(whole(data), order, ""), Target(data, data.offsets, stride[:, order])).dims
    # Dimensions of length 1 were joined with their neighbours; a dimension with one result per index is kept.
    width = sum(1 for d in range(dims.shape[1]) if np.any(dims[:, d, 4] != 0))
    return Groups(dims, width, shape[:, kept].prod(axis=1), shape[:, reduced].prod(axis=1))


class Reduction(Operator, abstract=True):
    """Base class of the operators reductions.*, with the arguments that select axes."""

    bound = "1e-6 of the sum of absolute values; integers exact"
    replayable = True

    axes: Annotated[
        tuple[int, ...] | None, Arg("dimensions to reduce, negative ones counted from the last; all by default")
    ] = None
    axis_names: Annotated[str | None, Arg("letters of the dimensions to reduce")] = None
    keep_dims: Annotated[bool, Arg("keep reduced dimensions, with length 1")] = False

    kind: ClassVar[int]

    def check(self) -> None:
        if self.axes is not None and self.axis_names is not None:
            raise SpecError("axes and axis_names exclude each other")
        if getattr(self, "dtype", None) == DALIDataType.BOOL:
            raise SpecError("dtype must be a number's, got BOOL")

    def result_type(self, dtype: DALIDataType) -> DALIDataType:
        """Return the data type of the output for inputs of type ``dtype``."""
        raise NotImplementedError

    def infer(self, *specs: Spec) -> Spec:
        data = specs[0]
        dtype = None if data.dtype is None else self.result_type(data.dtype)
        if data.shape is None:
            return Spec(None, dtype)
        reduced = self._axes(data.layout, len(data.shape))
        shape, layout = self._shape(np.array([[-1 if d is None else d for d in data.shape]]), data.layout, reduced)
        return Spec(tuple(None if d < 0 else d for d in shape[0].tolist()), dtype, layout)

    def _axes(self, layout: str, ndim: int) -> list[int]:
        """Return the indices of the reduced dimensions, in ascending order."""
        if self.axis_names is not None:
            missing = [a for a in self.axis_names if a not in layout]
            if missing:
                raise SpecError(f"axis {missing[0]!r} of axis_names is not in the layout {layout or '(none)'!r}")
            return sorted({layout.index(a) for a in self.axis_names})
        return list(range(ndim)) if self.axes is None else sorted(set(resolve_axes(self.axes, ndim)))

    def _shape(self, shape: npt.NDArray[Any], layout: str, reduced: list[int]) -> tuple[npt.NDArray[Any], str]:
        """Return shapes and layout of the results for samples of ``shape`` and ``layout``, without the dimensions
        ``reduced``."""
        if self.keep_dims:
            shape = shape.copy()
            shape[:, reduced] = 1
            return shape, layout
        left = [d for d in range(shape.shape[1]) if d not in reduced]
        return shape[:, left], "".join(layout[d] for d in left) if layout else ""

    def cpu(self, ctx: Context, data: Batch, *mean: Batch) -> Batch:
        reduced = self._axes(data.layout, data.ndim)
        grouped = groups(data, reduced)
        shapes, layout = self._shape(data.shapes, data.layout, reduced)
        empty = (grouped.count == 0) & (grouped.results > 0)
        if self.kind in (MIN, MAX):
            for i in np.flatnonzero(empty).tolist():
                ctx.reject(
                    i, "bad_shape", f"an empty sample has no {self.name.split('.')[1]}: {data.shapes[i].tolist()}"
                )
        dtype = np.dtype(to_numpy(self.result_type(from_numpy(data.dtype))))
        out = Batch.allocate(ctx.empty, shapes.astype(np.int32), dtype, layout, data.samples)
        deviations = self.kind == DEVIATIONS
        if deviations:
            self._check_means(ctx, mean[0], data, reduced, grouped)
        if ctx.stage == "cpu":
            self._run_cpu(ctx, data, grouped, _center(mean[0], grouped) if deviations else None, out)
        else:
            self._run_gpu(ctx, data, grouped, mean[0] if deviations else None, out)
        return out

    gpu = cpu

    def _check_means(self, ctx: Context, means: Batch, data: Batch, reduced: list[int], grouped: Groups) -> None:
        sizes = means.sizes
        for i in np.flatnonzero((sizes != grouped.results) & (sizes != 1)).tolist():
            ctx.reject(i, "bad_argument", f"the mean of shape {means.shapes[i].tolist()} does not go with the input "
                       f"{data.shapes[i].tolist()} reduced along axes {reduced}")  # fmt: skip

    ending: ClassVar[tuple[bool, bool]] = (False, False)
    """Whether sums are divided by the number of elements; and whether the square root is then taken."""

    def _divisor(self, grouped: Groups) -> npt.NDArray[np.float64]:
        """Return the number by which each sample's sums are divided, [N]; 0 if the result is to be 0."""
        if not self.ending[0]:
            return np.ones(len(grouped.count))
        return np.maximum(grouped.count - getattr(self, "ddof", 0), 0).astype(np.float64)

    def _run_cpu(self, ctx: Context, data: Batch, grouped: Groups, center: Any, out: Batch) -> None:
        source, base = data.data, data.offsets
        if source.dtype not in _OWN:
            lo, hi = (int(base.min()), int((base + data.sizes).max())) if len(data) else (0, 0)
            wide = {"u": np.uint64, "b": np.uint64, "i": np.int64}.get(source.dtype.kind, np.float64)
            source, base = source[lo:hi].astype(wide), base - lo
        exact = _accumulator(self.kind, source.dtype)
        divided = self.ending[0]
        direct = out.dtype in (np.dtype(np.float32), np.dtype(exact))
        found = out.data if direct else np.empty(int(grouped.results.sum()), np.float64 if divided else exact)
        middle = np.zeros(0) if center is None else center
        divisor = self._divisor(grouped) if divided else np.full(len(grouped.count), -1.0)
        work = np.empty(int(grouped.results.max(initial=0)), exact)
        _loops.reduce(
            source, grouped.rows, grouped.num_kept, base, self.kind, middle, work, divisor, self.ending[1], found
        )
        if not direct:
            out.data[...] = saturate(found, out.dtype)

    def _run_gpu(self, ctx: Context, data: Batch, grouped: Groups, mean: Batch | None, out: Batch) -> None:
        if out.data.size == 0:
            return
        lane, results = ctx.device, grouped.results
        start, base, single = results.cumsum() - results, np.zeros(len(data), np.int64), np.ones(len(data), np.int64)
        if mean is not None:
            mean = cast(ctx, mean, np.dtype(np.float32))
            base, single = mean.offsets, (mean.sizes != results).astype(np.int64)
        factors, divide = self._divisor(grouped), _DIVIDED if self.ending[0] else 0
        if divide and out.dtype.kind == "f":  # other types are rounded, for which halves must be exact
            factors, divide = np.where(factors > 0, 1 / np.maximum(factors, 1), 0), _MULTIPLIED
        step = grouped.rows[:, -1, _STRIDE]
        rows, begins, starts, many, bases, singles, parts, counts, steps = lane.upload(
            grouped.rows, data.offsets, start, results, base, single, factors, grouped.count, step
        )
        means = parts if mean is None else mean.data
        group, threads = group_of(grouped.count.mean())
        widest = int(results.max())
        exact = CUDA_TYPES[np.dtype(_accumulator(self.kind, data.dtype))]
        types = f"{CUDA_TYPES[data.dtype]}, {exact}, {CUDA_TYPES[out.dtype]}"
        ending = parts, np.int32(divide), np.int32(self.ending[1]), out.data
        if mean is None and group == 1 and (shape := _regular(grouped)):
            of_four = -(-widest // (4 * threads)), len(data)
            given, end = (data.data, begins, starts, many), divide + 4 * self.ending[1]
            if shape == "few":
                kernel = f"reduce_few<{types}, {self.kind}, {int(grouped.count[0])}, {end}>"
                lane.launch("reductions.cu", kernel, of_four, threads, *given, parts, out.data)
            else:
                kernel = f"reduce_layers<{types}, {self.kind}, {end}>"
                lane.launch("reductions.cu", kernel, of_four, threads, *given, counts, steps, parts, out.data)
            return
        tiles = -(-widest // (threads * _ALONE)) if group == 1 else -(-widest * group // threads)
        kernel = f"reduce<{types}, {group}>"
        lane.launch(
            "reductions.cu", kernel, (tiles, len(data)), threads, data.data, rows, np.int32(grouped.rows.shape[1]),
            np.int32(grouped.num_kept), begins, starts, many, np.int32(self.kind), means, bases, singles, *ending,
        )  # fmt: skip


_MULTIPLIED, _DIVIDED = 1, 2
"""Methods by which the kernel divides a sum for a mean, as in cuda/reductions.cu: multiply by the reciprocal, or
divide."""
_ALONE = 4
"""Number of results per GPU thread if threads do not cooperate, as in cuda/reductions.cu."""
_SHAPE, _STRIDE, _RESULT = 0, 1, 4
"""Columns of `Groups.rows`: length, stride, and distance of results."""


def _regular(grouped: Groups) -> str:
    """Return the memory pattern of the groups, for kernels that need a regular one. "few": a group is a few adjacent
    elements, and groups follow each other. "layers": results are adjacent, and a group's elements are at a constant
    distance. Empty for any other pattern."""
    rows = grouped.rows
    if grouped.num_kept != 1 or rows.shape[1] != 2 or (rows[:, 0, _RESULT] != 1).any():
        return ""
    apart, count = rows[:, 0, _STRIDE], grouped.count
    if 2 <= count[0] <= 4 and (count == count[0]).all() and (apart == count).all() and (rows[:, 1, _STRIDE] == 1).all():
        return "few"
    return "layers" if (apart == 1).all() else ""


def _center(mean: Batch, grouped: Groups) -> npt.NDArray[np.float64]:
    """Return the mean for each result, float64, one sample after the other. ``mean`` has one number per sample, or one
    per result."""
    sizes, start = mean.sizes, grouped.results.cumsum() - grouped.results
    out = np.zeros(int(grouped.results.sum()))
    fits = (sizes == grouped.results) | (sizes == 1)
    owner = np.repeat(np.arange(len(mean)), np.where(fits, grouped.results, 0))
    number = np.arange(len(owner)) - np.searchsorted(owner, owner)
    out[start[owner] + number] = mean.data[mean.offsets[owner] + np.where(sizes[owner] == 1, 0, number)]
    return out


def group_of(count: float) -> tuple[int, int]:
    """Return the number of GPU threads that together compute one result from ``count`` elements, and the threads per
    block."""
    if count >= 8192:
        return 1024, 1024
    return (32 if count >= 64 else 1), 256


_OWN = tuple(np.dtype(t) for t in (np.uint8, np.float32, np.int64, np.uint64, np.float64))
"""Element types for which the CPU loop is compiled; other types are converted."""


def _accumulator(kind: int, dtype: np.dtype[Any]) -> Any:
    """Return the type in which elements are summed: 64-bit integers for integers, float64 for squares and floats. For
    minimum and maximum, the input's type."""
    if kind in (MIN, MAX):
        return dtype
    if kind == SUM and dtype.kind in "uib":
        return np.int64 if dtype.kind == "i" else np.uint64
    return np.float64


class Sum(Reduction, name="reductions.sum"):
    """Compute the sum along axes. Integers are summed in 64 bits (and wrap around), floats in float64.

    With ``dtype``, the sum is rounded and saturates (DALI sums in that type, so that small types overflow).
    """

    example = "{op: reductions.sum, in: images, axis_names: HW, out: totals}"
    kind = SUM

    dtype: Annotated[
        DALIDataType | None, Arg("data type of the output; by default INT64, UINT64 or FLOAT, according to the input's")
    ] = None

    def result_type(self, given: DALIDataType) -> DALIDataType:
        if self.dtype is not None:
            return self.dtype
        kind = to_numpy(given).kind
        return {"i": DALIDataType.INT64, "f": DALIDataType.FLOAT}.get(kind, DALIDataType.UINT64)


class _Average(Reduction, abstract=True):
    """Base class of reductions that are computed in float64, and whose output is FLOAT by default."""

    dtype: Annotated[DALIDataType | None, Arg("data type of the output, FLOAT by default")] = None

    def result_type(self, given: DALIDataType) -> DALIDataType:
        return DALIDataType.FLOAT if self.dtype is None else self.dtype


class Mean(_Average, name="reductions.mean"):
    """Compute the mean along axes, from sums in float64 or 64-bit integers; 0 if there are no elements.

    With ``dtype``, the mean is rounded and saturates (DALI sums in that type, so that small types overflow).
    """

    example = "{op: reductions.mean, in: images, axis_names: HW, out: means}"
    kind = SUM
    ending = (True, False)


class MeanSquare(_Average, name="reductions.mean_square"):
    """Compute the mean of squares along axes, in float64; 0 if there are no elements."""

    example = "{op: reductions.mean_square, in: sound, axes: [0], out: power}"
    kind = SQUARES
    ending = (True, False)


class RootMeanSquare(_Average, name="reductions.rms"):
    """Compute the square root of the mean of squares along axes, in float64; 0 if there are no elements."""

    example = "{op: reductions.rms, in: sound, axes: [0], out: volume}"
    kind = SQUARES
    ending = (True, True)


class Min(Reduction, name="reductions.min"):
    """Compute the smallest element along axes."""

    example = "{op: reductions.min, in: images, axis_names: HW, out: darkest}"
    kind = MIN

    def result_type(self, dtype: DALIDataType) -> DALIDataType:
        return dtype


class Max(Reduction, name="reductions.max"):
    """Compute the largest element along axes."""

    example = "{op: reductions.max, in: images, axis_names: HW, out: brightest}"
    kind = MAX

    def result_type(self, dtype: DALIDataType) -> DALIDataType:
        return dtype


class Variance(Reduction, name="reductions.variance"):
    """Compute the mean of squared distances from the second input: a mean for each result, or one for all.

    Sums in float64 are divided by the number of elements minus ``ddof``; the result is 0 if this divisor is not above
    0.
    """

    inputs = (2, 2)
    example = "{op: reductions.variance, in: [images, means], axis_names: HW, out: variances}"
    kind = DEVIATIONS
    ending = (True, False)

    ddof: Annotated[int, Arg("number subtracted from the number of elements", ge=0)] = 0

    def result_type(self, dtype: DALIDataType) -> DALIDataType:
        return DALIDataType.FLOAT


class StdDev(Variance, name="reductions.std_dev"):
    """Compute the square root of reductions.variance."""

    example = "{op: reductions.std_dev, in: [images, means], axis_names: HW, out: deviations}"
    ending = (True, True)
