"""Operators coord_flip and coord_transform: mirror points, and multiply points and vectors by matrices."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec
from ..batch import Batch
from ..context import Context
from ..conversion import saturate
from ..copies.strided import CUDA_TYPES
from ..errors import SampleError, SpecError, UnlikeSamplesError
from ..gpu.launch_recording import fixed_and_changing
from ..kernels import Kernels
from ..sequences.unfold import by_frame
from ..types import DALIDataType, to_numpy

F32 = npt.NDArray[np.float32]

_loops: Any = Kernels(".points_cpu", __package__)
_THREADS = 256


class CoordFlip(Operator, name="coord_flip"):
    """Mirror points at a centre: 2 center - x, in float32. The last dimension is that of coordinates."""

    replayable = True
    example = "{op: coord_flip, in: points, layout: xy, flip_x: $coin, out: points}"

    layout: Annotated[str, Arg("order of the coordinates: x, y, z in any order; by default x, xy or xyz")] = ""
    flip_x: Annotated[int, Arg("not 0: mirror x", per_sample=True)] = 1
    flip_y: Annotated[int, Arg("not 0: mirror y", per_sample=True)] = 0
    flip_z: Annotated[int, Arg("not 0: mirror z", per_sample=True)] = 0
    center_x: Annotated[float, Arg("x at which points are mirrored", per_sample=True)] = 0.5
    center_y: Annotated[float, Arg("y at which points are mirrored", per_sample=True)] = 0.5
    center_z: Annotated[float, Arg("z at which points are mirrored", per_sample=True)] = 0.5

    def check(self) -> None:
        if set(self.layout) - set("xyz"):
            raise SpecError(f"layout takes the letters x, y and z, got {self.layout!r}")

    def infer(self, *specs: Spec) -> Spec:
        points = specs[0]
        if points.dtype not in (None, DALIDataType.FLOAT):
            raise SpecError(f"takes points of FLOAT, got {points}; cast them first")
        if points.shape is not None:
            self._names(points.shape[-1] if points.shape else 0)
        return points

    def _names(self, width: int | None) -> str:
        """Return the names of a point's ``width`` coordinates, in order, such as ``xyz``."""
        if width is None:
            return self.layout
        names = self.layout or "xyz"[:width]
        if len(names) != width or not width:
            known = f"the layout {self.layout}" if self.layout else "x, xy or xyz; give a layout for others"
            raise SpecError(f"points have {width} coordinates, not those of {known}")
        return names

    def cpu(self, ctx: Context, points: Batch) -> Batch:
        if points.dtype != np.float32 or points.ndim == 0:
            raise SampleError(
                "bad_shape", f"takes points of float32, got {points.dtype}, {points.ndim}-D; cast them first"
            )
        widths, there = points.shapes[:, -1], points.sizes > 0
        width = int(widths[there.argmax()]) if there.any() else 0
        if (widths[there] != width).any():
            raise UnlikeSamplesError(np.where(there, widths, width)[:, None])
        if not width:
            return points
        names = self._names(width)
        factor, shift = self._map(ctx, names)
        out = Batch.allocate(ctx.empty, points.shapes, np.float32, points.layout, points.samples)
        if ctx.stage == "cpu":
            _loops.flip(points.data, points.offsets, points.sizes, factor, shift, out.data, out.offsets)
        elif out.data.size:
            constant, recompute = (points.offsets, points.sizes, out.offsets), lambda other: self._map(other, names)
            (base, sizes, to), (factors, shifts) = fixed_and_changing(ctx.device, constant, recompute, factor, shift)
            tiles = -(-int(points.sizes.max()) // _THREADS)
            ctx.device.launch(
                "points.cu", "coord_flip", (tiles, len(points)), _THREADS, points.data, base, sizes,
                np.int32(len(names)), factors, shifts, out.data, to,
            )  # fmt: skip
        return out

    def _map(self, ctx: Context, names: str) -> tuple[F32, F32]:
        """Return factor and summand that mirror each of the K coordinates ``names``, [N, K] each: factor x +
        summand."""
        made = np.empty((2, len(ctx.samples), len(names)), np.float32)
        for k, a in enumerate(names):
            flip, center = ctx.rows(f"flip_{a}", np.int32) != 0, ctx.rows(f"center_{a}")
            made[0, :, k] = np.where(flip, np.float32(-1), np.float32(1))
            made[1, :, k] = np.where(flip, center + center, np.float32(0))
        return made[0], made[1]

    gpu = cpu


class CoordTransform(Operator, name="coord_transform"):
    """Multiply points or vectors by a matrix and add a vector: M x + T. The last dimension is that of coordinates.

    M is given by its rows; one number is a diagonal matrix. T is a vector, or one number for all coordinates. MT holds
    the two side by side. Integers are rounded half away from zero and saturate. The output may have any type (in DALI:
    that of the input, or FLOAT).
    """

    replayable = True
    bound = "2e-6 of the largest product; integers: that, rounded"
    example = "{op: coord_transform, in: points, MT: $matrix, out: points}"

    M: Annotated[tuple[float, ...] | None, Arg("the matrix M, row by row", per_sample=True, rows=True)] = None
    T: Annotated[tuple[float, ...] | None, Arg("the vector T that is added", per_sample=True)] = None
    MT: Annotated[
        tuple[float, ...] | None, Arg("M and T side by side: rows of n + 1 numbers", per_sample=True, rows=True)
    ] = None
    dtype: Annotated[DALIDataType, Arg("data type of the output")] = DALIDataType.FLOAT

    def check(self) -> None:
        if self.is_set("MT") and (self.is_set("M") or self.is_set("T")):
            raise SpecError("MT holds M and T; give it alone")

    def infer(self, *specs: Spec) -> Spec:
        points = specs[0]
        if points.shape is None:
            return Spec(None, self.dtype, points.layout)
        if not points.shape:
            raise SpecError(f"takes points (one dimension at least, that of coordinates), got {points}")
        width, name = points.shape[-1], "MT" if self.is_set("MT") else "M"
        out: int | None = width
        matrix = getattr(self, name)
        if name in self.per_sample or width is None:
            out = None
        elif matrix is not None and len(matrix) != 1:
            out = self._rows(name, len(matrix), width)
        return Spec((*points.shape[:-1], out), self.dtype, points.layout)

    def _rows(self, name: str, count: int, width: int) -> int:
        """Return the number of rows of the matrix in argument ``name``. The matrix has ``count`` numbers, points have
        ``width`` coordinates."""
        columns = width + (name == "MT")
        if count % columns or not count:
            raise SpecError(
                f"{name} needs {columns} numbers a row for points of {width} coordinates, got {count} in all"
            )
        return count // columns

    @by_frame()
    def cpu(self, ctx: Context, points: Batch) -> Batch:
        """Multiply the points of the batch by M, add T, and return the results."""
        width = int(points.shapes[0, -1])
        if (points.shapes[:, -1] != width).any():  # also for samples without points, whose outputs also have a width
            raise UnlikeSamplesError(points.shapes[:, -1:])
        matrix, shift = self._map(ctx, width)
        counts = points.shapes[:, :-1].prod(axis=1, dtype=np.int64)
        shapes = points.shapes.copy()
        shapes[:, -1] = matrix.shape[1]
        dtype = np.dtype(to_numpy(self.dtype))
        if ctx.stage == "cpu":
            source, base = points.data, points.offsets
            if source.dtype != np.float32:
                lo, hi = int(base.min()), int((base + points.sizes).max())
                source, base = saturate(source[lo:hi], np.float32), base - lo
            exact = Batch.allocate(ctx.empty, shapes, np.float32, points.layout, points.samples)
            _loops.transform(source, base, counts, matrix, shift, exact.data, exact.offsets)
            return exact if dtype == np.float32 else exact.replace(data=saturate(exact.data, dtype))
        out = Batch.allocate(ctx.empty, shapes, dtype, points.layout, points.samples)
        if out.data.size:

            def other(ctx: Context) -> tuple[F32, F32] | None:
                if any(b.layout[:1] == "F" for b in ctx.args.values()):  # frames were already unfolded to samples
                    return None
                found = self._map(ctx, width)
                return found if found[0].shape == matrix.shape else None

            (base, sizes, to), (rows, offsets) = fixed_and_changing(
                ctx.device, (points.offsets, counts, out.offsets), other, matrix, shift
            )
            kernel = f"transform<{CUDA_TYPES[points.dtype]}, {CUDA_TYPES[dtype]}>"
            tiles = -(-int(counts.max()) // _THREADS)
            ctx.device.launch(
                "points.cu", kernel, (tiles, len(points)), _THREADS, points.data, base, sizes, np.int32(width),
                np.int32(matrix.shape[1]), rows, offsets, out.data, to,
            )  # fmt: skip
        return out

    gpu = cpu

    def _map(self, ctx: Context, width: int) -> tuple[F32, F32]:
        """Return the matrix M and the vector T for every sample, [N, m, n] and [N, m]."""
        n = len(ctx.samples)
        name = "MT" if self.is_set("MT") else "M"
        matrix = np.eye(width, dtype=np.float32)[None]
        if self.is_set(name):
            values = ctx.arg(name)
            if values.shape[1] == 1:
                matrix = values[:, :, None] * matrix
            else:
                values = values.reshape(n, self._rows(name, values.shape[1], width), -1)
                if name == "MT":
                    return np.ascontiguousarray(values[:, :, :-1]), np.ascontiguousarray(values[:, :, -1])
                matrix = values
        matrix = np.ascontiguousarray(np.broadcast_to(matrix, (n, *matrix.shape[1:])))
        shift = np.zeros((n, matrix.shape[1]), np.float32)
        if self.is_set("T"):
            values = ctx.arg("T")
            if values.shape[1] not in (1, matrix.shape[1]):
                raise SampleError("bad_argument", f"T needs 1 or {matrix.shape[1]} values, got {values.shape[1]}")
            shift += values
        return matrix, shift
