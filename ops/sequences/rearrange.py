"""Operators sequence_rearrange, element_extract and per_frame: reorder frames, extract frames, mark tensors as
sequences."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec
from ..batch import I64, Batch, elements
from ..context import Context
from ..copies.strided import CopyPlan, Target, run_into
from ..errors import SpecError
from .unfold import frame_layout, of_frame, of_sequence


def _checked(spec: Spec) -> None:
    """Raise SpecError unless the input with ``spec`` is a sequence, with a layout that begins with F."""
    if spec.layout and spec.layout[0] != "F":
        raise SpecError(f"takes sequences (a layout that begins with F), got {spec}; per_frame marks them as such")
    if spec.shape is not None and len(spec.shape) < 2:
        raise SpecError(f"takes sequences of tensors (two dimensions at least), got {spec}")


class SequenceRearrange(Operator, name="sequence_rearrange"):
    """Reorder frames: frame i of the output is frame new_order[i] of the input; a frame may occur several times, or not
    at all."""

    replayable = True
    example = "{op: sequence_rearrange, in: video, new_order: [0, 2, 4], out: video}"

    new_order: Annotated[
        tuple[int, ...],
        Arg("indices of input frames, in the order of the output", ge=0, per_sample=True, required=True),
    ] = ()

    def check(self) -> None:
        if not self.is_set("new_order"):
            raise SpecError("new_order is empty: name one frame at least")

    def infer(self, *specs: Spec) -> Spec:
        _checked(specs[0])
        shape = specs[0].shape
        if shape is None:
            return specs[0]
        count = None if "new_order" in self.per_sample else len(self.new_order)
        if count and shape[0] is not None and max(self.new_order) >= shape[0]:
            raise SpecError(f"new_order names frame {max(self.new_order)}, but {specs[0]} has {shape[0]}")
        return Spec((count, *shape[1:]), specs[0].dtype, specs[0].layout)

    def cpu(self, ctx: Context, data: Batch) -> Batch:
        order, counts = ctx.lists("new_order", np.int64)
        frames = data.shapes[:, :1].astype(np.int64)
        used: npt.NDArray[np.bool_] = np.arange(order.shape[1])[None] < counts[:, None]
        wrong = np.any(((order < 0) | (order >= frames)) & used, axis=1)
        for i in np.flatnonzero(wrong).tolist():
            ctx.reject(i, "bad_argument", f"new_order {order[i, : counts[i]].tolist()} names a frame that is not among "
                       f"the {frames[i, 0]} of the sequence")  # fmt: skip
        for i in np.flatnonzero(counts == 0).tolist():
            ctx.reject(i, "bad_argument", "new_order is empty: name one frame at least")
        counts = np.where(wrong, 0, counts)
        kept = order[used & np.logical_not(wrong)[:, None]]
        out = Batch.allocate(ctx.empty, np.column_stack([counts, data.shapes[:, 1:]]).astype(np.int32), data.dtype,
                             data.layout, data.samples)  # fmt: skip
        # Every frame is one row of the copy plan.
        owner = np.repeat(np.arange(len(data)), counts)
        size = elements(data.shapes[:, 1:])[owner]
        number = np.arange(len(owner)) - np.repeat(counts.cumsum() - counts, counts)
        shape = size[:, None]
        zero, one = np.zeros_like(shape), np.ones_like(shape)
        base: I64 = data.offsets[owner] + kept * size
        plan = CopyPlan(shape, base, one, zero, shape, "", data.dtype)
        run_into(ctx, plan, data, Target(out, out.offsets[owner] + number * size, one))
        return out

    gpu = cpu


class ElementExtract(Operator, name="element_extract"):
    """Extract single frames of sequences as separate outputs, one per index in ``element_map``. Nothing is copied."""

    metadata_only = replayable = True

    example = "{op: element_extract, in: video, element_map: [0, 4], out: [first, last]}"

    element_map: Annotated[tuple[int, ...], Arg("indices of the frames to extract, one per output", ge=0)]

    @property
    def num_outputs(self) -> int:
        return len(self.element_map)

    def check(self) -> None:
        if not self.element_map:
            raise SpecError("element_map is empty: name one frame at least")

    def infer(self, *specs: Spec) -> Spec | tuple[Spec, ...]:
        _checked(specs[0])
        shape = specs[0].shape
        if shape is not None and shape[0] is not None and max(self.element_map) >= shape[0]:
            raise SpecError(f"element_map names frame {max(self.element_map)}, but {specs[0]} has {shape[0]}")
        return (of_frame(specs[0]),) * len(self.element_map)

    def cpu(self, ctx: Context, data: Batch) -> tuple[Batch, ...]:
        frames = data.shapes[:, 0]
        few = frames <= max(self.element_map)
        for i in np.flatnonzero(few).tolist():
            ctx.reject(i, "bad_shape", f"the sequence has {frames[i]} frames, element_map names number "
                       f"{max(self.element_map)}")  # fmt: skip
        shapes = np.where(few[:, None], 0, data.shapes[:, 1:]).astype(np.int32)
        size = elements(data.shapes[:, 1:])
        layout = frame_layout(data.layout)
        return tuple(Batch(data.data, data.offsets + np.where(few, 0, k * size), shapes, layout, data.samples)
                     for k in self.element_map)  # fmt: skip

    gpu = cpu


class PerFrame(Operator, name="per_frame"):
    """Mark tensors as sequences: their layout begins with F. If such a sequence is used as an argument, each frame gets
    its own value."""

    metadata_only = replayable = True

    example = "{op: per_frame, in: angles, out: angles}"

    replace: Annotated[bool, Arg("replace another first letter of the layout by F, instead of rejecting it")] = False

    def infer(self, *specs: Spec) -> Spec:
        data = specs[0]
        if data.shape is None:
            return data
        layout = self._layout(data.layout, len(data.shape))
        return of_sequence(Spec(data.shape[1:], data.dtype, frame_layout(layout)), data.shape[0])

    def _layout(self, layout: str, ndim: int) -> str:
        if ndim == 0:
            raise SpecError("a number is not a sequence; at least one dimension is needed, that of frames")
        if not layout:
            return "F" + "*" * (ndim - 1)
        if layout[0] != "F" and not self.replace:
            raise SpecError(f"the layout {layout} does not begin with F; `replace: true` puts it there")
        return "F" + layout[1:]

    def cpu(self, ctx: Context, data: Batch) -> Batch:
        return data.replace(layout=self._layout(data.layout, data.ndim))

    gpu = cpu
