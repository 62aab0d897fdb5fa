"""Operator one_hot: convert class numbers to vectors with one entry set."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from ..base import Arg, Operator, Spec
from ..batch import Batch
from ..context import Context
from ..conversion import saturate
from ..copies.strided import MAX_ELEMENTS, affordable
from ..errors import SampleError, SpecError
from ..types import DALIDataType, to_numpy
from .join import check_axis_name, with_axis


class OneHot(Operator, name="one_hot"):
    """Insert an axis of length ``num_classes``: values are on_value at the index that the input contains, else
    off_value.

    Input values outside of 0 ... num_classes - 1 set nothing; fractions are truncated. If ``axis`` is not set and all
    samples of the batch have one element, they count as scalars whatever their shape, and the new axis is the only one.
    on_value and off_value are rounded and saturate (DALI truncates them, and wraps around).
    """

    per_batch = True  # the whole batch decides whether samples are scalars
    replayable = True
    example = "{op: one_hot, in: labels, num_classes: 1000, out: targets}"

    num_classes: Annotated[int, Arg("length of the new axis", ge=0, le=MAX_ELEMENTS)] = 0
    axis: Annotated[int | None, Arg("index of the new axis in the output; -1, the default, is last")] = None
    axis_name: Annotated[str | None, Arg("letter of the new axis in the layout; without it the output has none")] = None
    on_value: Annotated[float, Arg("value at the index of the class")] = 1.0
    off_value: Annotated[float, Arg("value at all other indices")] = 0.0
    dtype: Annotated[DALIDataType, Arg("data type of the output")] = DALIDataType.FLOAT

    def check(self) -> None:
        check_axis_name(self.axis_name)

    def infer(self, *specs: Spec) -> Spec:
        data = specs[0]
        if data.shape is None:
            return Spec(None, self.dtype, "")
        if self.axis is None and all(d == 1 for d in data.shape):
            return Spec((self.num_classes,), self.dtype, with_axis("", self.axis_name, 0, 0))
        if self.axis is None and None in data.shape:
            return Spec(None, self.dtype, "")  # the batch decides whether samples are scalars
        at = self._axis(len(data.shape))
        shape = (*data.shape[:at], self.num_classes, *data.shape[at:])
        return Spec(shape, self.dtype, with_axis(data.layout, self.axis_name, at, len(data.shape)))

    def _axis(self, ndim: int) -> int:
        axis = -1 if self.axis is None else self.axis
        if not -ndim - 1 <= axis <= ndim:
            raise SpecError(f"axis {axis} is outside the {ndim + 1} dimensions of the output")
        return axis % (ndim + 1)

    def cpu(self, ctx: Context, data: Batch) -> Batch:
        scalars = self.axis is None and bool((data.sizes == 1).all())
        if (
            ctx.kind is not None and self.axis is None and data.ndim
        ):  # the data set's first sample determines the kind, not the batch
            scalars = ctx.kind.ndim == 1
            for i in np.flatnonzero(data.sizes != 1).tolist() if scalars else ():
                ctx.reject(i, "bad_shape", f"holds {data.sizes[i]} values, the data set's first sample holds one; give "
                           "axis, which says where the classes go")  # fmt: skip
            data = data.replace(offsets=np.where(data.sizes > 0, data.offsets, 0)) if scalars else data
        shapes = data.shapes[:, :0] if scalars else data.shapes
        at = self._axis(shapes.shape[1])
        new = affordable(ctx, np.insert(shapes.astype(np.int64), at, self.num_classes, axis=1))
        if shapes.shape[1]:
            shapes = np.where((np.delete(new, at, axis=1) != shapes).any(axis=1)[:, None], 0, shapes)
        if self.axis_name is not None and not data.layout and shapes.shape[1]:
            raise SampleError("bad_shape", f"axis_name {self.axis_name!r} needs an input with a layout")
        layout = with_axis("" if scalars else data.layout, self.axis_name, at, shapes.shape[1])
        out = Batch.allocate(ctx.empty, new.astype(np.int32), to_numpy(self.dtype), layout, data.samples)
        values = saturate(np.array([self.off_value, self.on_value]), out.dtype)
        if self.num_classes == 0 or len(data) == 0:
            return out
        if ctx.stage != "cpu":
            self._launch(ctx, data, shapes, at, out, values)
            return out
        out.data[...] = values[0]
        # Element i of a sample is split into (outer, inner); the class index is inserted between the two.
        inner = np.prod(shapes[:, at:], axis=1, dtype=np.int64)
        sizes = np.prod(shapes, axis=1, dtype=np.int64)
        sample = np.repeat(np.arange(len(data)), sizes)
        i = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        classes = data.data[data.offsets[sample] + i].astype(np.int64)
        set_ = (classes >= 0) & (classes < self.num_classes)
        outer, rest = np.divmod(i, inner[sample])
        to = out.offsets[sample] + (outer * self.num_classes + classes) * inner[sample] + rest
        out.data[to[set_]] = values[1]
        return out

    gpu = cpu

    def _launch(self, ctx: Context, data: Batch, shapes: Any, at: int, out: Batch, values: Any) -> None:
        from ..copies.strided import CUDA_TYPES

        inner = np.maximum(np.prod(shapes[:, at:], axis=1, dtype=np.int64), 1)
        sizes = out.sizes
        offsets, starts, inners, extents, pair = ctx.device.upload(data.offsets, out.offsets, inner, sizes, values)
        tiles = -(-int(sizes.max()) // 256)
        name = f"one_hot<{CUDA_TYPES[data.dtype]}, {CUDA_TYPES[out.dtype]}>"
        ctx.device.launch("one_hot.cu", name, (tiles, len(data)), 256, data.data, out.data, offsets, starts, inners,
                          extents, np.int64(self.num_classes), pair)  # fmt: skip
