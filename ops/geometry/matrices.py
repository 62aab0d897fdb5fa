"""Operators transforms.*: create and combine matrices of affine maps, for warp_affine and coord_transform."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec
from ..batch import Batch
from ..context import Context
from ..errors import SampleError, SpecError
from ..kernels import Kernels
from ..sequences.unfold import by_frame, of_frame, of_sequence
from ..types import DALIDataType
from .warp import rotation

F64 = npt.NDArray[np.float64]

_kernels: Any = Kernels(".matrices_cpu", __package__)


class Combination(Operator, abstract=True):
    """Base class of the operators transforms.*, which compute affine maps. It defines how a map is stored (d rows of d
    + 1 numbers), and in which order maps are applied."""

    bound = "exact: computed on the host"

    reverse_order: Annotated[bool, Arg("apply the operator's own map (or the last input) first instead of last")] = (
        False
    )

    def infer(self, *specs: Spec) -> Spec:
        frames = [s.shape[0] for s in specs if s.layout[:1] == "F" and s.shape is not None]
        given = [of_frame(s) if s.layout[:1] == "F" else s for s in specs]
        ndim = self.dimensions()
        for spec in given:
            if spec.dtype not in (None, DALIDataType.FLOAT):
                raise SpecError(f"takes matrices of FLOAT, got {spec}; cast them first")
            if spec.shape is None:
                continue
            if len(spec.shape) != 2 or (None not in spec.shape and spec.shape[1] != int(spec.shape[0] or 0) + 1):
                raise SpecError(f"takes matrices of d rows of d + 1 numbers, got {spec}")
            own = spec.shape[0] if spec.shape[0] is not None else spec.shape[1] and spec.shape[1] - 1
            if ndim and own and own != ndim:
                raise SpecError(f"an affine map of {own} dimensions does not go with one of {ndim}")
            ndim = ndim or own
        out = Spec((ndim, None if ndim is None else ndim + 1), DALIDataType.FLOAT, "")
        return of_sequence(out, frames[0]) if frames else out

    def dimensions(self) -> int | None:
        """Return the number of dimensions of the affine map; None if the arguments do not determine it."""
        return None

    @staticmethod
    def taken(batch: Batch) -> F64:
        """Return the affine maps in an input as float64, [N, d, d + 1]."""
        shapes = batch.shapes
        if batch.ndim == 2 and batch.is_uniform and shapes[0, 1] == shapes[0, 0] + 1:
            known: F64 = batch.dense().astype(np.float64)
            return known
        wrong = np.flatnonzero((shapes != shapes[0]).any(axis=1) | (shapes[:, 1] != shapes[:, 0] + 1))
        if batch.ndim != 2 or len(wrong):
            shown = shapes[wrong[0] if len(wrong) else 0].tolist()
            raise SpecError(f"takes matrices of d rows of d + 1 numbers, all of one d, got one of {shown}")
        dense: F64 = np.asarray(batch.dense(), np.float64)
        return dense

    def combined(self, ctx: Context, maps: list[F64]) -> Batch:
        """Return the product of ``maps``, which applies all of them in order, or in reverse order if the arguments say
        so."""
        if len(maps) == 1:
            return self._made(ctx, maps[0])
        total, *rest = map(np.ascontiguousarray, maps[::-1] if self.reverse_order else maps)
        for m in rest:
            if m.shape[1:] != total.shape[1:]:
                raise SampleError(
                    "bad_argument", f"affine maps of {m.shape[1]} and {total.shape[1]} dimensions do not combine"
                )
            before, total = total, np.empty_like(total)
            _kernels.follow(before, m, total)
        return self._made(ctx, total)

    @staticmethod
    def _made(ctx: Context, total: F64) -> Batch:
        finite = np.isfinite(total)
        if not finite.all():
            for i in np.flatnonzero(~finite.all(axis=(1, 2))).tolist():
                ctx.reject(i, "bad_argument", "the affine map is not finite")
        return Batch.from_dense(np.ascontiguousarray(total, np.float32), "", ctx.samples)


def affine(linear: F64, shift: F64) -> F64:
    """Return affine maps [N, d, d + 1] with these linear parts [N, d, d] (or one for all samples) and shifts [N, d]."""
    n, d = shift.shape
    found = np.empty((n, d, d + 1))
    found[:, :, :d] = linear
    found[:, :, d] = shift
    return found


class Combine(Combination, name="transforms.combine"):
    """Combine the inputs' affine maps: apply one after the other, the first input first."""

    inputs = (2, 99)
    example = "{op: transforms.combine, in: [turned, moved], out: matrix}"

    reverse_order: Annotated[bool, Arg("apply the last map first")] = False

    @by_frame(always=True)
    def cpu(self, ctx: Context, *inputs: Batch) -> Batch:
        return self.combined(ctx, [self.taken(b) for b in inputs])


class Making(Combination, abstract=True):
    """Base class of operators that make an affine map from their arguments. If the operator has an input, the map in it
    is applied first."""

    inputs = (0, 1)

    @by_frame(always=True)
    def cpu(self, ctx: Context, *inputs: Batch) -> Batch:
        """Return the maps that the arguments define, each applied after the map in the input, if there is one."""
        before = [self.taken(b) for b in inputs]
        own = self.matrices(ctx, before[0].shape[1] if before else None)
        return self.combined(ctx, [*before, own])

    def matrices(self, ctx: Context, ndim: int | None) -> F64:
        """Return the maps that the arguments define, [N, d, d + 1]. ``ndim``: the number of dimensions d of the input's
        maps; None without an input."""
        raise NotImplementedError

    def length(self, *names: str) -> int | None:
        """Return how many values the first of the arguments ``names`` has that is constant and set; None if there is
        none."""
        found = [getattr(self, n) for n in names if n not in self.per_sample and self.is_set(n)]
        return len(found[0]) if found else None

    def around(self, ctx: Context, linear: F64) -> F64:
        """Return affine maps with the linear parts ``linear`` [N, d, d] that keep one point in place: the argument
        center, or the origin."""
        if not self.is_set("center"):
            return affine(linear, np.zeros(linear.shape[:2]))
        center = numbers(ctx, "center", linear.shape[1])
        return affine(linear, center - np.einsum("nij,nj->ni", linear, center))


def numbers(ctx: Context, name: str, count: int | None = None, repeated: bool = False) -> F64:
    """Return the values of argument ``name``, [N, count]. ``repeated``: a single number stands for all. Raises
    SpecError."""
    values: F64 = ctx.arg(name).astype(np.float64)
    if count is not None and values.shape[1] != count:
        if not (repeated and values.shape[1] == 1):
            raise SampleError("bad_argument", f"{name} needs {count} values here, got {values.shape[1]}")
        values = np.repeat(values, count, axis=1)
    return values


class Translation(Making, name="transforms.translation"):
    """Make the affine map that moves points by ``offset``."""

    example = "{op: transforms.translation, offset: [10, -5], out: matrix}"

    offset: Annotated[
        tuple[float, ...], Arg("translation, one number per dimension", per_sample=True, required=True)
    ] = ()

    def dimensions(self) -> int | None:
        return self.length("offset")

    def matrices(self, ctx: Context, ndim: int | None) -> F64:
        offset = numbers(ctx, "offset", ndim)
        return affine(np.eye(offset.shape[1]), offset)


class Scale(Making, name="transforms.scale"):
    """Make the affine map that scales points, around ``center`` or the origin."""

    example = "{op: transforms.scale, scale: [2, 0.5], center: [112, 112], out: matrix}"

    scale: Annotated[
        tuple[float, ...], Arg("scale factors, one per dimension, or one for all", per_sample=True, required=True)
    ] = ()
    center: Annotated[tuple[float, ...] | None, Arg("point that the map does not move", per_sample=True)] = None
    ndim: Annotated[int | None, Arg("number of dimensions, if scale is one factor and there is no input", ge=1)] = None

    def check(self) -> None:
        count = self.length("scale")
        if self.ndim is not None and count not in (None, 1, self.ndim):
            raise SpecError(f"scale has {count} values for {self.ndim} dimensions (ndim)")

    def dimensions(self) -> int | None:
        count = self.length("scale")
        return self.ndim or (count if count != 1 else self.length("center"))

    def matrices(self, ctx: Context, ndim: int | None) -> F64:
        wanted = self.ndim or ndim
        if wanted is None and self.is_set("center"):
            wanted = numbers(ctx, "center").shape[1]
        factors = numbers(ctx, "scale", wanted, repeated=True)
        return self.around(ctx, factors[:, :, None] * np.eye(factors.shape[1]))


class Rotation(Making, name="transforms.rotation"):
    """Make the affine map that rotates points by ``angle``, in the plane, or in space around ``axis``."""

    example = "{op: transforms.rotation, angle: $angle, center: [112, 112], out: matrix}"

    angle: Annotated[float, Arg("angle of rotation in degrees", per_sample=True, required=True)] = 0.0
    axis: Annotated[
        tuple[float, ...] | None, Arg("axis (x, y, z) of a rotation in space, of any length", per_sample=True)
    ] = None
    center: Annotated[tuple[float, ...] | None, Arg("point that the map does not move", per_sample=True)] = None

    def dimensions(self) -> int | None:
        return 3 if self.is_set("axis") else 2

    def matrices(self, ctx: Context, ndim: int | None) -> F64:
        angle = np.deg2rad(ctx.arg("angle").astype(np.float64))
        if self.is_set("axis"):
            return self.around(ctx, rotation(numbers(ctx, "axis", 3), angle))
        cos, sin = np.cos(angle), np.sin(angle)
        return self.around(ctx, np.array([[cos, -sin], [sin, cos]]).transpose(2, 0, 1))


class Shear(Making, name="transforms.shear"):
    """Make the affine map that shears: it moves points along one axis in proportion to their coordinates on the others.

    Factors, or angles whose tangents are the factors: (xy, yx) in the plane, (xy, xz, yx, yz, zx, zy) in space; xy is
    the shift of x per unit of y.
    """

    example = "{op: transforms.shear, angles: [15, 0], center: [112, 112], out: matrix}"

    shear: Annotated[tuple[float, ...] | None, Arg("shear factors, 2 or 6", per_sample=True, rows=True)] = None
    angles: Annotated[
        tuple[float, ...] | None, Arg("shear angles in degrees, between -90 and 90, 2 or 6", per_sample=True, rows=True)
    ] = None
    center: Annotated[tuple[float, ...] | None, Arg("point that the map does not move", per_sample=True)] = None

    def check(self) -> None:
        if self.is_set("shear") == self.is_set("angles"):
            raise SpecError("needs shear or angles, and not both")
        for name in ("shear", "angles"):
            values = getattr(self, name)
            if values is not None and len(values) not in (2, 6):
                raise SpecError(f"{name} takes 2 values, or 6 in space, got {len(values)}")

    def dimensions(self) -> int | None:
        return {None: None, 2: 2, 6: 3}[self.length("shear", "angles")]

    def matrices(self, ctx: Context, ndim: int | None) -> F64:
        name = "shear" if self.is_set("shear") else "angles"
        values = numbers(ctx, name)
        if values.shape[1] not in (2, 6):
            raise SampleError("bad_argument", f"{name} takes 2 values, or 6 in space, got {values.shape[1]}")
        if name == "angles":
            if (np.abs(values) > 90).any():
                for i in np.flatnonzero((np.abs(values) > 90).any(axis=1)).tolist():
                    ctx.reject(i, "bad_argument", f"angles must be between -90 and 90, got {values[i].tolist()}")
            values = np.tan(np.deg2rad(values))
        d = 2 if values.shape[1] == 2 else 3
        linear = np.empty((len(values), d * d))
        linear[:, :: d + 1] = 1
        linear[:, [k for k in range(d * d) if k % (d + 1)]] = values
        return self.around(ctx, linear.reshape(-1, d, d))


class Crop(Making, name="transforms.crop"):
    """Make the affine map of one box to another: ``from_start`` to ``to_start`` and ``from_end`` to ``to_end``."""

    example = "{op: transforms.crop, from_start: $corner, from_end: $end, to_end: [224, 224], out: matrix}"

    from_start: Annotated[
        tuple[float, ...], Arg("corner of the first box; one number stands for all axes", per_sample=True)
    ] = (0.0,)
    from_end: Annotated[tuple[float, ...], Arg("opposite corner of the first box", per_sample=True)] = (1.0,)
    to_start: Annotated[
        tuple[float, ...], Arg("corner of the second box, the image of from_start", per_sample=True)
    ] = (0.0,)
    to_end: Annotated[
        tuple[float, ...], Arg("opposite corner of the second box, the image of from_end", per_sample=True)
    ] = (1.0,)
    absolute: Annotated[bool, Arg("swap start and end on axes on which start is larger")] = False

    def dimensions(self) -> int | None:
        lengths = {len(getattr(self, n)) for n in _CORNERS if n not in self.per_sample} - {0, 1}
        if len(lengths) > 1:
            raise SpecError(f"the corners have different numbers of dimensions: {sorted(lengths)}")
        return lengths.pop() if lengths else None

    def matrices(self, ctx: Context, ndim: int | None) -> F64:
        corners = [numbers(ctx, n) for n in _CORNERS]
        d = max([ndim or 1, *(c.shape[1] for c in corners)])
        defaults = (0.0, 1.0, 0.0, 1.0)
        whole: list[Any] = [numbers(ctx, n, d, repeated=True) if c.shape[1] else np.full((len(c), d), v)
                            for n, c, v in zip(_CORNERS, corners, defaults, strict=True)]  # fmt: skip
        if self.absolute:
            whole = [np.minimum(*whole[:2]), np.maximum(*whole[:2]), np.minimum(*whole[2:]), np.maximum(*whole[2:])]
        start, end, to, to_end = whole
        with np.errstate(divide="ignore", invalid="ignore"):
            factors = (to_end - to) / (end - start)
            return affine(factors[:, :, None] * np.eye(d), to - factors * start)


_CORNERS = ("from_start", "from_end", "to_start", "to_end")
