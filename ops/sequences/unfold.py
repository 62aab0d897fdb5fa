"""Process sequences frame by frame: operators of one image accept sequences, and arguments that are given per frame."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..base import Spec
from ..batch import I64, Batch, elements
from ..context import Context

Kernel = Callable[..., Batch]


@dataclass(frozen=True, slots=True)
class Frames:
    """The M frames of N sequences, as a batch with one sample per frame. The data is shared."""

    ctx: Context
    inputs: list[Batch]
    owner: I64
    """Index of each frame's sequence, [M]."""
    counts: I64
    """Number of frames of each sequence, [N]."""

    def fold(self, ctx: Context, out: Batch) -> Batch:
        """Join frames to sequences again: return the kernel's output ``out``, one sample per frame, as one sample per
        sequence. Sequences whose frames now have different sizes are rejected."""
        out = out.packed()
        first = np.minimum(self.counts.cumsum() - self.counts, max(len(out) - 1, 0))
        shapes = out.shapes[first]
        odd = (out.shapes != shapes[self.owner]).any(axis=1)
        for i in np.unique(self.owner[odd]).tolist():
            sizes = out.shapes[self.owner == i].tolist()
            ctx.reject(i, "bad_shape", f"its frames have different sizes afterwards: {sizes[0]} and others")
        counts = np.where(np.bincount(self.owner, odd, len(self.counts)) > 0, 0, self.counts)
        whole = np.column_stack([counts, shapes]).astype(np.int32)
        return Batch(out.data, out.offsets[first], whole, sequence_layout(out.layout, out.ndim), ctx.samples)


def sequence_layout(layout: str, ndim: int) -> str:
    """Return the layout of a sequence: F, then ``layout`` of its frames, or asterisks for their ``ndim`` axes if it is
    unknown."""
    return "F" + (layout or "*" * ndim)


def frame_layout(layout: str) -> str:
    """Return the layout of a frame of sequences with ``layout``."""
    return "" if "*" in layout else layout[1:]


def of_frame(spec: Spec) -> Spec:
    """Return the spec of a frame of sequences with ``spec``."""
    return Spec(None if spec.shape is None else spec.shape[1:], spec.dtype, frame_layout(spec.layout))


def of_sequence(frame: Spec, frames: int | None) -> Spec:
    """Return the spec of sequences of ``frames`` frames with the spec ``frame``."""
    if frame.shape is None:
        return Spec(None, frame.dtype, "F" + frame.layout if frame.layout else "")
    return Spec((frames, *frame.shape), frame.dtype, sequence_layout(frame.layout, len(frame.shape)))


def by_frame(always: bool = False) -> Callable[[Kernel], Kernel]:
    """Decorate a kernel of frames so that it also processes sequences: it is called with frames if an argument, or an
    input after the first, has one value per frame (a layout that begins with F, see per_frame). ``always``: also if
    only the first input is a sequence, for kernels that do not support sequences."""

    def decorate(kernel: Kernel) -> Kernel:
        @functools.wraps(kernel)
        def called(op: Any, ctx: Context, *inputs: Batch) -> Batch:
            frames = unfolded(ctx, inputs, always)
            if frames is None:
                return kernel(op, ctx, *inputs)
            if len(frames.owner) == 0:
                return _nothing(ctx)
            return frames.fold(ctx, kernel(op, frames.ctx, *frames.inputs))

        return called

    return decorate


def unfolded(ctx: Context, inputs: Sequence[Batch], always: bool) -> Frames | None:
    """Divide inputs and arguments whose layout begins with F into frames, and repeat the others for each frame. Return
    None if there are none. Sequences without frames, or with different numbers of frames, are rejected."""
    framed_args = [b for b in ctx.args.values() if b.layout[:1] == "F"]
    framed = [b for b in inputs if b.layout[:1] == "F"]
    aside = any(b.layout[:1] == "F" for b in inputs[1:])
    if not framed_args and not aside and not (always and framed):
        return None
    sources = framed + framed_args
    counts = sources[0].shapes[:, 0].astype(np.int64)
    least = counts.copy()
    for other in sources[1:]:
        theirs = other.shapes[:, 0].astype(np.int64)
        for i in np.flatnonzero(theirs != counts).tolist():
            ctx.reject(i, "bad_argument", f"there are values for {theirs[i]} frames, the sequence has {counts[i]}")
        least = np.minimum(least, theirs)
    for i in np.flatnonzero(least == 0).tolist():
        ctx.reject(i, "bad_shape", "the sequence has no frames")
    owner = np.repeat(np.arange(len(least)), least)
    number = np.arange(len(owner)) - np.repeat(least.cumsum() - least, least)
    samples = ctx.samples.take(owner)

    def frames_of(batch: Batch) -> Batch:
        if batch.layout[:1] != "F":
            return batch.take(owner, samples)
        shapes = batch.shapes[owner, 1:]
        offsets = batch.offsets[owner] + number * elements(shapes)
        return Batch(batch.data, offsets, shapes, frame_layout(batch.layout), samples)

    inner = replace(ctx, samples=samples, args={k: frames_of(b) for k, b in ctx.args.items()})
    return Frames(inner, [frames_of(b) for b in inputs], owner, least)


def largest(ctx: Context, sizes: I64) -> I64:
    """Replace the ``sizes`` [M, D] of frames by the largest size in their sequence; unchanged if samples are not
    frames."""
    slot = ctx.samples.slot
    if (slot[1:] > slot[:-1]).all():  # the usual order of samples
        return sizes
    slots, owner = np.unique(slot, return_inverse=True)
    if len(slots) == len(sizes):
        return sizes
    most = np.zeros((len(slots), sizes.shape[1]), np.int64)
    np.maximum.at(most, owner, sizes)
    return most[owner]


def _nothing(ctx: Context) -> Batch:
    """Return an output batch of empty samples, for a call whose samples are all rejected."""
    n = len(ctx.samples)
    return Batch(ctx.empty(0, np.float32), np.zeros(n, np.int64), np.zeros((n, 1), np.int32), "", ctx.samples)
