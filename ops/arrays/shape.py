"""Operators reshape, reinterpret, squeeze, expand_dims and get_property: other views of the same elements, without a
copy."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec
from ..batch import I64, Batch
from ..context import Context
from ..copies.strided import MAX_ELEMENTS, run, whole
from ..copies.windows import round_half_away
from ..errors import SampleError, SpecError
from ..gpu.launch_recording import not_replayable
from ..types import DALIDataType, to_numpy
from .slice import resolve_axes


class Reshaping(Operator, abstract=True):
    """Base class of the operators reshape and reinterpret: the arguments for the new shape."""

    metadata_only = replayable = host_arguments = True

    inputs = (1, 2)

    shape: Annotated[
        tuple[int, ...] | None, Arg("new shape; one length may be -1 and is computed", per_sample=True)
    ] = None
    rel_shape: Annotated[
        tuple[float, ...] | None,
        Arg("new shape as fractions of the old; one number may be negative and is computed", per_sample=True),
    ] = None
    src_dims: Annotated[
        tuple[int, ...] | None,
        Arg("index of the old dimension for each new one; -1 adds a dimension of length 1", per_sample=True),
    ] = None
    layout: Annotated[
        str | None, Arg("new layout; by default the old one, if the number of dimensions does not change")
    ] = None

    def check(self) -> None:
        if self.is_set("shape") and self.is_set("rel_shape"):
            raise SpecError("shape and rel_shape exclude each other")
        for name in ("shape", "rel_shape"):
            values = getattr(self, name)
            if values is not None and sum(v < 0 for v in values) > 1:
                raise SpecError(f"only one number of {name} may be negative, got {list(values)}")

    def _known_ndim(self, spec: Spec) -> int | None:
        for name in ("shape", "rel_shape", "src_dims"):
            value = getattr(self, name)
            if name in self.per_sample:
                return None
            if value is not None:
                return len(value)
        return spec.ndim

    def _new_layout(self, layout: str, before: int, after: int) -> str:
        if self.layout is None:
            return layout if before == after else ""
        if self.layout and len(self.layout) != after:
            raise SpecError(f"layout {self.layout!r} does not name {after} dimensions")
        return self.layout

    def inferred(self, specs: tuple[Spec, ...]) -> Spec:
        """Return the spec of the output: what is known about the reshaped input."""
        data = specs[0]
        changes = any(map(self.is_set, ("shape", "rel_shape", "src_dims", "layout")))
        if len(specs) == 1 and not changes and self.same_bytes():
            raise SpecError("needs shape, rel_shape, src_dims, layout, or the shape as second input")
        if len(specs) == 2:
            if any(map(self.is_set, ("shape", "rel_shape"))):
                raise SpecError("a second input is the shape: leave out shape and rel_shape")
            ndim = specs[1].shape[0] if specs[1].shape else None
        else:
            ndim = self._known_ndim(data)
        if ndim is None:
            return Spec(None, data.dtype, self.layout or "")
        layout = self._new_layout(data.layout, -1 if data.ndim is None else data.ndim, ndim)
        unchanged = len(specs) == 1 and not any(map(self.is_set, ("shape", "rel_shape", "src_dims")))
        if unchanged:
            return Spec(data.shape, data.dtype, layout)
        shape: tuple[int | None, ...] = (None,) * ndim
        if self.shape is not None and len(specs) == 1 and not self.is_set("src_dims"):
            shape = tuple(d if d >= 0 else None for d in self.shape)
            if data.shape is not None and None not in data.shape:
                shape = self._fitted(shape, data)
        return Spec(shape, data.dtype, layout)

    def _fitted(self, shape: tuple[int | None, ...], data: Spec) -> tuple[int | None, ...]:
        """Return ``shape`` with its free length (-1) computed, so that it has as many elements as ``data``. Raises
        SpecError if that is impossible."""
        return shape

    def same_bytes(self) -> bool:
        """Whether the element type stays the same, so that elements need not be reinterpreted."""
        return True

    def new_shapes(self, ctx: Context, data: Batch, inputs: tuple[Batch, ...], volume: I64) -> I64:
        """Return the new shapes [N, D] of samples that must have ``volume`` [N] elements. Samples with another number
        of elements are rejected."""
        old = data.shapes.astype(np.int64)
        n = len(old)
        shape: npt.NDArray[Any]
        source = self._sources(ctx, old) if self.is_set("src_dims") else old
        if inputs:
            not_replayable(ctx.device)
            rows = inputs[0].dense().reshape(n, -1)
            shape = (rows if inputs[0].on_host else rows.get()).astype(np.int64)  # shapes are always in host memory
        elif self.is_set("shape"):
            shape = ctx.arg("shape", np.int64).copy()
        elif self.is_set("rel_shape"):
            relative = ctx.arg("rel_shape")
            width = relative.shape[1]
            if width > source.shape[1]:
                # DALI allows one more dimension, which takes the remaining volume.
                if width > source.shape[1] + 1 or not np.all(relative[:, -1] < 0):
                    raise SampleError("bad_argument", f"rel_shape has {width} values for {source.shape[1]} dimensions")
                source = np.concatenate([source, np.ones((n, 1), np.int64)], axis=1)
            shape = np.where(relative < 0, -1, round_half_away(source[:, :width] * relative))
        else:
            shape = source.copy()
        return self._solved(ctx, shape, volume, old)

    def _sources(self, ctx: Context, old: I64) -> I64:
        dims = ctx.arg("src_dims", np.int64)
        ndim = old.shape[1]
        wrong = np.any((dims < -1) | (dims >= ndim), axis=1)
        for i in np.flatnonzero(wrong).tolist():
            ctx.reject(i, "bad_argument", f"src_dims must be between -1 and {ndim - 1}, got {dims[i].tolist()}")
        extended = np.concatenate([old, np.ones((len(old), 1), np.int64)], axis=1)  # index -1 refers to the last column
        taken: I64 = np.take_along_axis(extended, np.where(wrong[:, None] | (dims < 0), ndim, dims), axis=1)
        return taken

    def _solved(self, ctx: Context, shape: I64, volume: I64, old: I64) -> I64:
        """Return ``shape`` [N, D] with negative lengths replaced, so that each sample has ``volume`` elements."""
        free = shape < 0
        rest = np.where(free, 1, shape).prod(axis=1)
        fitting = np.where(rest > 0, volume // np.maximum(rest, 1), 0)
        shape = np.where(free, fitting[:, None], shape)
        # the product of large lengths may wrap around, modulo 2^64
        overflows = (shape > MAX_ELEMENTS).any(axis=1) | (
            np.multiply.reduce(shape, axis=1, dtype=np.float64) > MAX_ELEMENTS
        )
        wrong = overflows | (shape.prod(axis=1) != volume) | (free.sum(axis=1) > 1) | (free.any(axis=1) & (rest == 0))
        for i in np.flatnonzero(wrong).tolist():
            ctx.reject(
                i, "bad_shape",
                f"the {volume[i]} elements of {old[i].tolist()} do not fill the shape "
                f"{np.where(free[i], -1, shape[i]).tolist()}; at most one length may be -1",
            )  # fmt: skip
        return np.where(wrong[:, None], 0, shape)


class Reshape(Reshaping, name="reshape"):
    """Change the shape or layout without moving elements. Nothing is copied."""

    example = "{op: reshape, in: features, shape: [-1, 4], out: boxes}"

    def infer(self, *specs: Spec) -> Spec:
        return self.inferred(specs)

    def _fitted(self, shape: tuple[int | None, ...], data: Spec) -> tuple[int | None, ...]:
        volume = int(np.prod([d or 0 for d in data.shape or ()], dtype=np.int64))
        rest = int(np.prod([d for d in shape if d is not None], dtype=np.int64))
        if (None in shape and (rest == 0 or volume % rest)) or (None not in shape and rest != volume):
            raise SpecError(f"{data} has {volume} elements, which do not fill the shape {list(self.shape or ())}")
        return tuple(volume // rest if d is None else d for d in shape)

    def cpu(self, ctx: Context, data: Batch, *shape: Batch) -> Batch:
        shapes = self.new_shapes(ctx, data, shape, data.sizes)
        layout = self._new_layout(data.layout, data.ndim, shapes.shape[1])
        return data.replace(shapes=shapes.astype(np.int32), layout=layout)

    gpu = cpu


class Reinterpret(Reshaping, name="reinterpret"):
    """Interpret the bytes as another type, shape or layout.

    Without a shape the innermost length is computed from the size of the type. Nothing is copied, unless samples do not
    start at a multiple of the new type's size.
    """

    example = "{op: reinterpret, in: bytes, dtype: FLOAT, out: values}"

    dtype: Annotated[DALIDataType | None, Arg("new data type; by default the old one")] = None

    def same_bytes(self) -> bool:
        return self.dtype is None

    def infer(self, *specs: Spec) -> Spec:
        known = self.inferred(specs)
        if self.dtype is None:
            return known
        shape = known.shape
        if shape and not any(map(self.is_set, ("shape", "rel_shape", "src_dims"))) and len(specs) == 1:
            shape = (*shape[:-1], None)
        return Spec(shape, self.dtype, known.layout)

    def cpu(self, ctx: Context, data: Batch, *shape: Batch) -> Batch:
        dtype = data.dtype if self.dtype is None else to_numpy(self.dtype)
        old, new = data.dtype.itemsize, dtype.itemsize
        nbytes = data.sizes * old
        odd = nbytes % new != 0
        for i in np.flatnonzero(odd).tolist():
            ctx.reject(i, "bad_shape", f"its {nbytes[i]} bytes are not a multiple of {new}, the size of {dtype}")
        if odd.any():
            data = data.replace(shapes=np.where(odd[:, None], 0, data.shapes).astype(np.int32))
        explicit = bool(shape) or any(map(self.is_set, ("shape", "rel_shape", "src_dims")))
        if explicit or new == old:
            shapes = self.new_shapes(ctx, data, shape, data.sizes * old // new)
        else:
            shapes = data.shapes.astype(np.int64)
            if data.ndim == 0:
                raise SampleError("bad_shape", f"scalars of {data.dtype} cannot become {dtype}: give a shape")
            inner = shapes[:, -1] * old
            for i in np.flatnonzero(inner % new).tolist():
                ctx.reject(
                    i, "bad_shape", f"the {inner[i]} bytes of its innermost dimension are not a multiple of {new}"
                )
            shapes[:, -1] = inner // new
        if np.any(data.offsets * old % new) or data.data.nbytes % new:
            data = run(ctx, whole(data), data)
        offsets = data.offsets * old // new
        layout = self._new_layout(data.layout, data.ndim, shapes.shape[1])
        return Batch(data.data.view(dtype), offsets, shapes.astype(np.int32), layout, data.samples)

    gpu = cpu


class Squeeze(Operator, name="squeeze"):
    """Remove dimensions of length 1. Nothing is copied. Negative axes count from the back (DALI ignores them)."""

    metadata_only = replayable = True

    example = "{op: squeeze, in: masks, axis_names: C, out: masks}"

    axes: Annotated[tuple[int, ...] | None, Arg("dimensions to remove", per_sample=True)] = None
    axis_names: Annotated[str | None, Arg("letters of the dimensions to remove")] = None

    def check(self) -> None:
        if self.is_set("axes") == (self.axis_names is not None):
            raise SpecError("needs either axes or axis_names")

    def _axes(self, layout: str, ndim: int) -> list[int]:
        if self.axis_names is None:
            return resolve_axes(self.axes or (), ndim) if ndim else []  # DALI accepts scalars
        missing = [a for a in self.axis_names if a not in layout]
        if missing:
            raise SpecError(f"axis {missing[0]!r} of axis_names is not in the layout {layout or '(none)'!r}")
        return [layout.index(a) for a in self.axis_names]

    def infer(self, *specs: Spec) -> Spec:
        data = specs[0]
        if data.shape is None or "axes" in self.per_sample:
            return Spec(None, data.dtype, "")
        dropped = set(self._axes(data.layout, len(data.shape)))
        for a in dropped:
            if data.shape[a] not in (1, None):
                raise SpecError(f"dimension {a} of {data} does not have length 1")
        kept = [i for i in range(len(data.shape)) if i not in dropped]
        layout = "".join(data.layout[i] for i in kept) if data.layout else ""
        return Spec(tuple(data.shape[i] for i in kept), data.dtype, layout)

    def cpu(self, ctx: Context, data: Batch) -> Batch:
        dropped = self._dropped(ctx, data)
        extents = np.where(dropped, 1, data.shapes)
        wrong = extents.prod(axis=1, dtype=np.int64) != data.sizes
        for i in np.flatnonzero(wrong).tolist():
            ctx.reject(i, "bad_shape", f"cannot remove dimensions {np.flatnonzero(dropped[i]).tolist()} of "
                       f"{data.shapes[i].tolist()}: only dimensions of length 1 can be removed")  # fmt: skip
        shapes = data.shapes[~dropped].reshape(len(data), -1) if len(data) else data.shapes[:, ~dropped.any(axis=0)]
        shapes = np.where(wrong[:, None], 0, shapes).astype(np.int32)
        same = bool(data.layout) and bool((dropped == dropped[:1]).all())
        layout = (
            "".join(a for a, gone in zip(data.layout, np.any(dropped, axis=0).tolist(), strict=True) if not gone)
            if same
            else ""
        )
        return data.replace(shapes=shapes, layout=layout)

    gpu = cpu

    def _dropped(self, ctx: Context, data: Batch) -> npt.NDArray[np.bool_]:
        """Return a mask of the dimensions that are removed because they have length 1, bool[N, ndim]. All samples lose
        the same number of dimensions."""
        ndim = data.ndim
        if "axes" not in ctx.args:
            axes = self._axes(data.layout, ndim)
            return np.tile(np.isin(np.arange(ndim), axes), (len(data), 1))
        given = ctx.arg("axes", np.int64)
        given = np.where(given < 0, given + ndim, given)
        wrong = np.any((given < 0) | (given >= ndim), axis=1)
        dropped: npt.NDArray[np.bool_] = np.any(given[:, :, None] == np.arange(ndim), axis=1)
        wrong |= dropped.sum(axis=1) != given.shape[1]
        for i in np.flatnonzero(wrong).tolist():
            ctx.reject(i, "bad_argument", f"axes must be different dimensions out of {ndim}, got {given[i].tolist()}")
        dropped[wrong] = np.arange(ndim) < given.shape[1]
        return dropped


class ExpandDims(Operator, name="expand_dims"):
    """Insert dimensions of length 1 at the given indices of the output. Nothing is copied."""

    metadata_only = replayable = True

    example = "{op: expand_dims, in: masks, axes: [2], new_axis_names: C, out: masks}"

    axes: Annotated[tuple[int, ...], Arg("indices of the new dimensions in the output")]
    new_axis_names: Annotated[str, Arg("letters of the new dimensions; without them the output has no layout")] = ""

    def check(self) -> None:
        if min(self.axes, default=0) < 0 or len(set(self.axes)) != len(self.axes):
            raise SpecError(f"axes must differ and not be negative, got {list(self.axes)}")
        if self.new_axis_names and len(self.new_axis_names) != len(self.axes):
            raise SpecError(f"new_axis_names {self.new_axis_names!r} does not name {len(self.axes)} axes")

    def _inserted(self, old: list[Any], new: list[Any]) -> list[Any]:
        out = list(old)
        for at, value in sorted(zip(self.axes, new, strict=True)):
            if at > len(out):
                raise SpecError(f"axis {at} leaves a gap: the input has {len(old)} dimensions")
            out.insert(at, value)
        return out

    def _layout(self, layout: str, ndim: int) -> str:
        if not self.new_axis_names:
            return "" if self.axes else layout
        if not layout and ndim > 0:
            raise SpecError("new_axis_names need an input with a layout")
        return "".join(self._inserted(list(layout), list(self.new_axis_names)))

    def infer(self, *specs: Spec) -> Spec:
        data = specs[0]
        if data.shape is None:
            return Spec(None, data.dtype, "")
        ones: list[int] = [1] * len(self.axes)
        layout = self._layout(data.layout, len(data.shape))
        return Spec(tuple(self._inserted(list(data.shape), ones)), data.dtype, layout)

    def cpu(self, ctx: Context, data: Batch) -> Batch:
        columns = self._inserted([data.shapes[:, d] for d in range(data.ndim)], [1] * len(self.axes))
        ones = np.ones(len(data), np.int32)
        shapes = np.stack([ones if isinstance(c, int) else c for c in columns], axis=1)
        return data.replace(shapes=shapes, layout=self._layout(data.layout, data.ndim))

    gpu = cpu


class GetProperty(Operator, name="get_property"):
    """Return where a sample came from (``source_info``) or its ``layout``, as bytes."""

    metadata_only = True

    example = "{op: get_property, in: jpegs, key: source_info, out: paths}"

    key: Annotated[str, Arg("property to return: source_info or layout")]

    def check(self) -> None:
        if self.key not in ("source_info", "layout"):
            raise SpecError(f"key must be source_info or layout, got {self.key!r}")

    def infer(self, *specs: Spec) -> Spec:
        return Spec((None,), DALIDataType.UINT8)

    def cpu(self, ctx: Context, data: Batch) -> Batch:
        if self.key == "layout":
            texts = [data.layout.encode()] * len(data)
        else:
            texts = [data.samples.origin(i).source_info.encode("utf-8", "surrogateescape") for i in range(len(data))]
        sizes = np.array([len(t) for t in texts], np.int64)
        flat: Any = np.frombuffer(b"".join(texts), np.uint8).copy()
        if ctx.stage != "cpu":
            (flat,) = ctx.device.upload(flat)
        return Batch(flat, np.cumsum(sizes) - sizes, sizes[:, None].astype(np.int32), "", data.samples)

    gpu = cpu
