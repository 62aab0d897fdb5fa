"""Operator normalize: subtract the mean and divide by the standard deviation, given or computed from the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from ..arrays.slice import resolve_axes
from ..base import Arg, Operator, Spec
from ..batch import I64, Batch
from ..context import Context
from ..conversion import saturate
from ..copies.strided import CUDA_TYPES, SHAPE, Target, loops, permute, row_major, whole
from ..errors import SampleError, SpecError
from ..types import DALIDataType, to_numpy
from .reductions import group_of

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Groups:
    """Groups of elements with a common mean and deviation: elements of one sample, or of the batch, with equal indices
    in the dimensions that are kept."""

    rows: I64
    """Lengths and strides of each sample's dimensions, kept ones first, then reduced ones: [N, D, 5], with the columns
    of `strided.Loops`. OUT_STRIDE is the distance in the array of statistics, 0 along reduced dimensions."""
    num_kept: int
    """Number of kept dimensions at the start of ``rows``."""
    stats: I64
    """Number of groups in each sample, [N]; each has one mean."""
    start: I64
    """Index of each sample's first statistic (such as a mean) in the array of all statistics, [N]. All are equal if the
    whole batch shares its statistics."""
    count: F64
    """Number of elements that each sample contributes to a statistic, [N]."""
    shared: bool

    @property
    def total(self) -> int:
        return int((self.start + self.stats).max(initial=0))


class Normalize(Operator, name="normalize"):
    """Normalise: scale * (x - mean) / sqrt(stddev^2 + epsilon) + shift.

    If mean or stddev are not set, they are computed over ``axes`` (all by default). The deviation is computed around
    the mean in use, with the divisor N - ddof. Sums are computed in float64. If the computed deviation and epsilon are
    0, the result is ``shift`` (DALI's rounding leaves shift - 1, for example). mean and stddev may be tensors with the
    input's number of dimensions, of length 1 along the reduced axes. With ``batch`` the statistics are those of the
    whole batch, so that the result depends on which samples share a batch.
    """

    bound = "1e-6 of the largest of |x - mean| scale / stddev and |shift|; integers: that, rounded"
    replayable = True
    example = "{op: normalize, in: spectrograms, axes: [1], out: spectrograms}"

    mean: Annotated[float | None, Arg("mean to subtract; computed by default", per_sample=True, tensor=True)] = None
    stddev: Annotated[
        float | None, Arg("standard deviation to divide by; computed by default", per_sample=True, tensor=True)
    ] = None
    axes: Annotated[
        tuple[int, ...] | None, Arg("dimensions over which mean and deviation are computed; all by default")
    ] = None
    axis_names: Annotated[str | None, Arg("letters of the dimensions over which mean and deviation are computed")] = (
        None
    )
    batch: Annotated[bool, Arg("compute one mean and deviation for the whole batch")] = False
    ddof: Annotated[int, Arg("number subtracted from the number of elements in the variance", ge=0)] = 0
    epsilon: Annotated[float, Arg("number added to the variance", ge=0)] = 0.0
    scale: Annotated[float, Arg("factor for the result")] = 1.0
    shift: Annotated[float, Arg("number added to the result")] = 0.0
    dtype: Annotated[DALIDataType, Arg("data type of the output")] = DALIDataType.FLOAT

    @property
    def per_batch(self) -> bool:  # type: ignore[override]
        """Whether statistics are those of the whole batch (argument ``batch``), so that the kernel must see all of
        it."""
        return self.batch

    def check(self) -> None:
        if self.axes is not None and self.axis_names is not None:
            raise SpecError("axes and axis_names exclude each other")
        for name in ("axes", "axis_names"):
            given = getattr(self, name)
            if given is not None and len(given) == 0:
                raise SpecError(f"{name} is empty: name the dimensions that share a mean, or leave it out for all")
            if given is not None and self.mean is not None and self.stddev is not None:
                raise SpecError(f"{name} has no effect if mean and stddev are given as numbers")

    def infer(self, *specs: Spec) -> Spec:
        data = specs[0]
        if data.shape is not None:
            self._axes(data.layout, len(data.shape), {})
        return Spec(data.shape, self.dtype, data.layout)

    def _axes(self, layout: str, ndim: int, tensors: dict[str, Batch]) -> list[int]:
        """Return the indices of the reduced dimensions, in ascending order."""
        if self.axis_names is not None:
            missing = [a for a in self.axis_names if a not in layout]
            if missing:
                raise SpecError(f"axis {missing[0]!r} of axis_names is not in the layout {layout or '(none)'!r}")
            return sorted(layout.index(a) for a in self.axis_names)
        if self.axes is not None:
            return sorted(resolve_axes(self.axes, ndim))
        if tensors:
            full = np.zeros(ndim, np.bool_)
            for t in tensors.values():
                full |= np.any(t.shapes != 1, axis=0)
            return np.flatnonzero(~full).tolist()
        return list(range(ndim))

    def cpu(self, ctx: Context, data: Batch) -> Batch:
        tensors = {k: ctx.args[k] for k in ("mean", "stddev") if k in ctx.args and ctx.args[k].ndim == data.ndim > 0}
        if tensors and self.batch:
            raise SampleError("bad_argument", "batch goes with numbers for mean and stddev, not with tensors")
        reduced = self._axes(data.layout, data.ndim, tensors)
        data = self._comparable(ctx, data, reduced)
        groups = self._groups(data, reduced)
        mean = self._given(ctx, "mean", data, groups, tensors, reduced)
        stddev = self._given(ctx, "stddev", data, groups, tensors, reduced)
        factor = None if stddev is None else self._factor(stddev**2)
        run = self._run_cpu if ctx.stage == "cpu" else self._run_gpu
        return run(ctx, data, reduced, groups, mean, factor)

    gpu = cpu

    def _comparable(self, ctx: Context, data: Batch, reduced: list[int]) -> Batch:
        """If all samples share statistics, reject samples whose kept dimensions differ in length from the first
        sample's. Return ``data`` with these samples empty."""
        if not self.batch or len(data) == 0:
            return data
        kept = np.delete(data.shapes, reduced, axis=1)
        odd = np.any(kept != kept[0], axis=1)
        for i in np.flatnonzero(odd).tolist():
            ctx.reject(i, "bad_shape", f"its extents {kept[i].tolist()} outside the reduced axes are not those of the "
                       f"batch, {kept[0].tolist()}")  # fmt: skip
        return data.replace(shapes=np.where(odd[:, None], 0, data.shapes).astype(np.int32)) if odd.any() else data

    def _groups(self, data: Batch, reduced: list[int]) -> _Groups:
        shape = data.shapes.astype(np.int64)
        kept = [d for d in range(data.ndim) if d not in reduced]
        stride = np.zeros_like(shape)
        stride[:, kept] = row_major(shape[:, kept])
        stats = np.prod(shape[:, kept], axis=1, dtype=np.int64)
        count = np.prod(shape[:, reduced], axis=1, dtype=np.float64)
        order = kept + reduced
        dims = loops(permute(whole(data), order, ""), Target(data, data.offsets, stride[:, order])).dims
        # Dimensions of length 1 were joined with their neighbours; a dimension with one statistic per index is kept.
        width = sum(1 for d in range(dims.shape[1]) if np.any(dims[:, d, 4] != 0))
        if self.batch:
            live = stats > 0
            stats = np.where(live, stats.max(initial=0), 0)
            return _Groups(dims, width, stats, np.zeros_like(stats), np.full(len(data), count[live].sum()), True)
        return _Groups(dims, width, stats, np.cumsum(stats) - stats, count, False)

    def _factor(self, variance: F64) -> F64:
        """Return the factors of the normalisation, scale / sqrt(variance + epsilon)."""
        with np.errstate(divide="ignore"):
            factor: F64 = self.scale / np.sqrt(variance + self.epsilon)
        return factor

    def _given(
        self, ctx: Context, name: str, data: Batch, groups: _Groups, tensors: dict[str, Batch], reduced: list[int]
    ) -> F64 | None:
        """Return the values of argument ``name`` (mean or stddev), one per statistic; None if it is not set and must be
        computed."""
        if name in tensors:
            return self._from_tensors(ctx, name, tensors[name], data, groups, reduced)
        if name in ctx.args:
            numbers = ctx.arg(name).astype(np.float64)
            return np.full(groups.total, numbers[0]) if groups.shared else np.repeat(numbers, groups.stats)
        value = getattr(self, name)
        return None if value is None else np.full(groups.total, np.float32(value), np.float64)

    def _from_tensors(
        self, ctx: Context, name: str, tensor: Batch, data: Batch, groups: _Groups, reduced: list[int]
    ) -> F64:
        out = np.zeros(groups.total)
        wanted = data.shapes.copy()
        wanted[:, reduced] = 1
        for i in range(len(data)):
            at, size = int(groups.start[i]), int(groups.stats[i])
            try:
                out[at : at + size] = np.broadcast_to(tensor.sample(i), wanted[i]).reshape(-1)
            except ValueError:
                ctx.reject(i, "bad_argument", f"{name} of shape {tensor.shapes[i].tolist()} does not go with the input "
                           f"{data.shapes[i].tolist()} reduced along axes {reduced}")  # fmt: skip
        return out

    def _run_cpu(
        self, ctx: Context, data: Batch, reduced: list[int], groups: _Groups, mean: F64 | None, factor: F64 | None
    ) -> Batch:
        from .normalize_cpu import apply, sums

        source, base = data.data, data.offsets
        if source.dtype not in (np.uint8, np.float32):
            lo, hi = (int(base.min()), int((base + data.sizes).max())) if len(data) else (0, 0)
            source, base = saturate(source[lo:hi], np.float32), base - lo
        counts = np.ones(groups.total) if groups.total else np.zeros(0)
        if groups.shared:
            counts *= groups.count.max(initial=1)
        else:
            counts = np.repeat(groups.count, groups.stats)
        total = np.zeros(groups.total)
        if mean is None:
            sums(source, groups.rows, groups.num_kept, base, groups.start, total, False, total)
            mean = total / np.maximum(counts, 1)
        if factor is None:
            squares = np.zeros(groups.total)
            sums(source, groups.rows, groups.num_kept, base, groups.start, mean, True, squares)
            variance = np.where(counts > self.ddof, squares / np.maximum(counts - self.ddof, 1), 0)
            factor = np.where(variance + self.epsilon > 0, self._factor(variance), 0)
        is_float = self.dtype == DALIDataType.FLOAT
        out = Batch.allocate(ctx.empty if is_float else np.empty, data.shapes, np.float32, data.layout, data.samples)
        apply(source, groups.rows, groups.num_kept, base, groups.start, mean.astype(np.float32),
              factor.astype(np.float32), np.float32(self.shift), out.data, out.offsets)  # fmt: skip
        return out if is_float else out.replace(data=saturate(out.data, to_numpy(self.dtype)))

    def _run_gpu(
        self, ctx: Context, data: Batch, reduced: list[int], groups: _Groups, mean: F64 | None, factor: F64 | None
    ) -> Batch:
        lane, n = ctx.device, len(data)
        out = Batch.allocate(ctx.empty, data.shapes, to_numpy(self.dtype), data.layout, data.samples)
        if out.data.size == 0:
            return out
        rows, base, start, stats, partial_start = lane.upload(
            groups.rows, data.offsets, groups.start, groups.stats, np.cumsum(groups.stats) - groups.stats
        )
        partial = lane.empty(int(groups.stats.sum()), np.float64)
        first = np.array([0, n]) if groups.shared else np.arange(n + 1)
        firsts, counts = lane.upload(first.astype(np.int64), groups.count)
        per_stat, threads = group_of(groups.count.mean() / (n if groups.shared else 1))
        ndim, widest = groups.rows.shape[1], int(groups.stats.max())

        def statistic(center: Any, square: bool) -> Any:
            lane.launch(
                "normalize.cu", f"sums<{CUDA_TYPES[data.dtype]}, {per_stat}>", (-(-widest * per_stat // threads), n),
                threads,
                data.data, rows, np.int32(ndim), np.int32(groups.num_kept), base, start, stats, center,
                np.int32(square), partial_start, partial,
            )  # fmt: skip
            result = lane.empty(groups.total, np.float64)
            lane.launch(
                "normalize.cu", "statistics", (-(-widest // 256), len(first) - 1), 256, partial, partial_start, stats,
                firsts, start, counts, np.int32(square), np.float64(self.ddof), np.float64(self.epsilon),
                np.float64(self.scale), result,
            )  # fmt: skip
            return result

        zeros = lane.upload(np.zeros(groups.total))[0] if mean is None else None
        center = statistic(zeros, False) if mean is None else lane.upload(mean)[0]
        scales = statistic(center, True) if factor is None else lane.upload(factor)[0]
        # Elements are written in memory order, so that writes are coalesced.
        shape = data.shapes.astype(np.int64)
        stride = np.zeros_like(shape)
        kept = [d for d in range(data.ndim) if d not in reduced]
        stride[:, kept] = row_major(shape[:, kept])
        flat = loops(whole(data), Target(data, data.offsets, stride)).dims
        dims, out_base = lane.upload(flat, out.offsets)
        largest = int(flat[:, :, SHAPE].prod(axis=1).max())
        lane.launch(
            "normalize.cu", f"apply<{CUDA_TYPES[data.dtype]}, {CUDA_TYPES[out.dtype]}>", (-(-largest // 4096), n), 256,
            data.data, dims, np.int32(flat.shape[1]), base, start, center, scales, np.float32(self.shift), out.data,
            out_base,
        )  # fmt: skip
        return out
