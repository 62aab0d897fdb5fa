"""Operator multi_paste: paste regions of several images on one canvas."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec
from ..batch import I64, Batch
from ..context import Context
from ..copies.strided import Target, affordable, convert, filled, row_major, run_into, whole, window
from ..copies.windows import integers, known_layout
from ..errors import SampleError, SpecError
from ..gpu.launch_recording import are_all, not_replayable
from ..kernels import Kernels
from ..types import DALIDataType, to_numpy

F32 = npt.NDArray[np.float32]
_loops: Any = Kernels(".multi_paste_cpu", __package__)
_MAX_REGIONS = 65535
"""Maximum number of regions that one kernel launch pastes: the limit of a CUDA grid's second dimension."""
_MAX_CACHED = 4
"""Maximum number of batches for which the placement of regions is cached."""
_Placed = tuple[I64, I64 | None, list[tuple[int, I64, I64, I64, I64, I64]]]
"""Plan for pasting a batch's regions: shapes of the outputs; shapes of those outputs that must be filled with zeros
first, or None; and groups of regions that are pasted together. A group is the index of the input, then for each region:
its output, its source sample, its start there, its shape, and its start in the output."""


class MultiPaste(Operator, name="multi_paste"):
    """Paste regions of images on a black canvas, later ones over earlier ones: mosaics, mixed images, copy and paste.

    With ``in_ids`` there is one input, and each sample lists the samples of the batch from which its regions come;
    without it, sample i takes one region of sample i of each input. Regions are rows of (height, width) tensors, one
    row per region: by default the whole image, at the top left. Without ``output_size`` the canvas has the size of the
    images, which must all be equal. Sequences are pasted frame by frame (DALI's CPU operator rejects them). All data
    types are supported.
    """

    replayable = True
    layouts = ("HWC", "FHWC")
    inputs = (1, 64)
    example = "{op: multi_paste, in: [a, b], out_anchors: $places, output_size: [512, 512], out: images}"

    in_ids: Annotated[tuple[int, ...], Arg("samples of the batch from which regions are taken", per_sample=True)] = ()
    in_anchors: Annotated[
        tuple[int, ...], Arg("starts of the regions in their images", per_sample=True, rows=True)
    ] = ()
    in_anchors_rel: Annotated[
        tuple[float, ...], Arg("starts of the regions as fractions of the image's size", per_sample=True, rows=True)
    ] = ()
    shapes: Annotated[
        tuple[int, ...], Arg("sizes of the regions; by default to the image's end", per_sample=True, rows=True)
    ] = ()
    shapes_rel: Annotated[
        tuple[float, ...], Arg("sizes of the regions as fractions of the image's size", per_sample=True, rows=True)
    ] = ()
    out_anchors: Annotated[tuple[int, ...], Arg("starts of the regions on the canvas", per_sample=True, rows=True)] = ()
    out_anchors_rel: Annotated[
        tuple[float, ...], Arg("starts of the regions as fractions of the canvas's size", per_sample=True, rows=True)
    ] = ()
    output_size: Annotated[
        tuple[int, ...], Arg("size of the canvas: (height, width[, ignored])", ge=1, per_sample=True)
    ] = ()
    dtype: Annotated[DALIDataType | None, Arg("data type of the output; by default that of the input")] = None

    @property
    def per_batch(self) -> bool:  # type: ignore[override]
        """Whether regions come from other samples of the batch, so that the kernel must see all of it."""
        return self.is_set("in_ids")

    def check(self) -> None:
        for name in ("in_anchors", "shapes", "out_anchors"):
            if self.is_set(name) and self.is_set(f"{name}_rel"):
                raise SpecError(f"{name} and {name}_rel exclude each other")
        if self.output_size and len(self.output_size) not in (2, 3):  # DALI's examples also pass the number of channels
            raise SpecError(f"output_size takes (height, width), got {len(self.output_size)} values")

    def infer(self, *specs: Spec) -> Spec:
        if self.is_set("in_ids") and len(specs) > 1:
            raise SpecError(f"in_ids go with one input, got {len(specs)}")
        data = specs[0]
        dtype = data.dtype if self.dtype is None else self.dtype
        if data.shape is None:
            return Spec(None, dtype, data.layout)
        layout = data.layout or {3: "HWC", 4: "FHWC"}.get(len(data.shape), "")
        if layout not in self.layouts:
            raise SpecError(f"takes layouts {', '.join(self.layouts)}, got {data}")
        if any(s.dtype is not None and s.dtype != data.dtype for s in specs[1:]):
            raise SpecError(f"the inputs have different types: {', '.join(map(str, specs))}; cast them to one")
        size: tuple[int | None, ...] = data.shape[-3:-1]
        if "output_size" in self.per_sample:
            size = (None, None)
        elif self.output_size:
            size = self.output_size[:2]
        return Spec((*data.shape[:-3], *size, data.shape[-1]), dtype, layout)

    def cpu(self, ctx: Context, *inputs: Batch) -> Batch:
        images = [b.replace(layout=known_layout(b, self.layouts)) for b in inputs]
        first = images[0]
        if any(b.dtype != first.dtype or b.ndim != first.ndim for b in images):
            raise SampleError("bad_shape", "the inputs have different types or dimensions; cast or reshape them to one")
        dtype = np.dtype(first.dtype if self.dtype is None else to_numpy(self.dtype))
        canvas, free, groups = self._placed(ctx, images)
        out = Batch.allocate(ctx.empty, canvas.astype(np.int32), dtype, first.layout, first.samples)
        steps = row_major(canvas)
        if free is not None:
            run_into(ctx, filled(free, dtype, first.layout), first, Target(out, out.offsets, steps))
        for j, owner, source, start, size, to in groups:
            plan = convert(window(whole(images[j].take(source)), start, size), dtype)
            own = steps[owner]
            run_into(ctx, plan, images[j], Target(out, out.offsets[owner] + (to * own).sum(axis=1), own))
        return out

    gpu = cpu

    def _placed(self, ctx: Context, images: list[Batch]) -> _Placed:
        """Return the plan for pasting all regions; see `_Placed`. If arguments are constant, plans are cached by the
        shapes of a batch."""
        key = (images[0].samples.slot.tobytes(), *(b.shapes.tobytes() for b in images))
        constant, before = not ctx.args, len(ctx.rejects)
        known = self._known.get(key) if constant else None
        if known is not None:  # another thread may remove the entry at any moment
            return known
        owner, source, which = self._parts(ctx, images)
        extent = np.stack([b.shapes.astype(np.int64) for b in images])[which, source]
        # nothing is pasted outside of the source images
        canvas = affordable(ctx, self._canvas(ctx, images, owner, extent))
        start, size, to = self._regions(ctx, owner, extent, canvas)
        layer, covered = np.empty(len(owner), np.int64), np.empty(len(canvas), np.bool_)
        _loops.layers(owner, *map(np.ascontiguousarray, (to, size, canvas)), layer, covered)
        groups = []
        # Later regions cover earlier ones; regions that do not overlap are pasted together.
        for k in range(int(layer.max(initial=-1)) + 1):
            for j in range(len(images)):
                every = np.flatnonzero((layer == k) & (which == j))
                for first in range(0, len(every), _MAX_REGIONS):
                    rows = every[first : first + _MAX_REGIONS]
                    groups.append((j, owner[rows], source[rows], start[rows], size[rows], to[rows]))
        found = canvas, None if covered.all() else np.where(covered[:, None], 0, canvas), groups
        if constant and len(ctx.rejects) == before:
            if len(self._known) >= _MAX_CACHED:
                self._known.clear()
            self._known[key] = found
        return found

    @cached_property
    def _known(self) -> dict[tuple[bytes, ...], _Placed]:
        return {}

    def _parts(self, ctx: Context, images: list[Batch]) -> tuple[I64, I64, I64]:
        """Return for each region, in the order of pasting: the sample into which it is pasted, the sample from which it
        comes, and the index of the input with the latter."""
        n = len(images[0])
        if not self.is_set("in_ids"):
            owner = np.repeat(np.arange(n), len(images))
            return owner, owner, np.tile(np.arange(len(images)), n)
        ids, counts = ctx.lists("in_ids", np.int64)
        slots = images[0].samples.slot
        if not are_all(images[0].samples):
            not_replayable(ctx.device)  # regions come from other samples, some of which are missing
        last = int(slots.max(initial=-1)) + 1  # stands for all missing samples
        place = np.full(last + 1, -1, np.int64)
        place[slots] = np.arange(n)
        owner = np.repeat(np.arange(n), counts)
        wanted = ids[np.arange(ids.shape[1]) < counts[:, None]]
        source = np.where(wanted >= 0, place[np.clip(wanted, 0, last)], -1)
        for k in np.flatnonzero(source < 0).tolist():
            ctx.reject(int(owner[k]), "bad_argument", f"in_ids: sample {wanted[k]} of the batch does not exist")
        return owner, np.maximum(source, 0), np.zeros(len(owner), np.int64)

    def _canvas(self, ctx: Context, images: list[Batch], owner: I64, extent: I64) -> I64:
        """Return the shapes of the outputs (the canvases), [N, D]."""
        first = images[0]
        shape = first.shapes.astype(np.int64)
        if self.is_set("output_size"):
            lists, counts = ctx.lists("output_size", np.int64)
            size = np.pad(lists, ((0, 0), (0, 2)))[:, :2]
            for i in np.flatnonzero((counts < 2) | (counts > 3)).tolist():
                ctx.reject(i, "bad_argument", f"output_size takes (height, width), got {counts[i]} values")
            for i in np.flatnonzero((size <= 0).any(axis=1)).tolist():
                ctx.reject(i, "bad_argument", f"output_size must be positive, got {size[i].tolist()}")
            shape[:, -3:-1] = np.maximum(size, 0)
        else:
            other = (extent[:, -3:-1] != shape[owner, -3:-1]).any(axis=1)
            for i in np.unique(owner[other]).tolist():
                ctx.reject(i, "bad_shape", "images of different sizes need output_size: the size of the canvas")
        # Channels, and frames of sequences, are those of the first region.
        leading = np.full(len(first), -1)
        leading[owner[::-1]] = np.arange(len(owner))[::-1]
        has = leading >= 0
        for d in (*range(first.ndim - 3), first.ndim - 1):
            shape[has, d] = extent[leading[has], d]
            for k in np.flatnonzero(extent[:, d] != shape[owner, d]).tolist():
                what = "channels" if d == first.ndim - 1 else "frames"
                ctx.reject(int(owner[k]), "bad_shape", f"its parts have {shape[owner[k], d]} and {extent[k, d]} {what}")
        return shape

    def _regions(self, ctx: Context, owner: I64, extent: I64, canvas: I64) -> tuple[I64, I64, I64]:
        """Return three arrays [regions, D]: start and shape of each region in its image, and its start in the output.
        Invalid regions are rejected and become empty."""
        ndim = extent.shape[1]
        space = slice(ndim - 3, ndim - 1)
        room = canvas[owner]
        own, full = extent[:, space].astype(np.float32), extent[:, space]
        start = self._rows(ctx, "in_anchors", owner)
        rel = self._rows(ctx, "in_anchors_rel", owner)
        from_ = integers(rel * own) if rel is not None else np.zeros_like(full) if start is None else integers(start)
        size, part = self._rows(ctx, "shapes", owner), self._rows(ctx, "shapes_rel", owner)
        if part is not None:
            end = integers((part if rel is None else rel + part) * own)
            size_ = end - from_ if rel is not None else end
        else:
            size_ = full - from_ if size is None else integers(size)
        to = self._rows(ctx, "out_anchors", owner)
        share = self._rows(ctx, "out_anchors_rel", owner)
        at = np.zeros_like(full) if to is None else integers(to)
        at = integers(share * room[:, space].astype(np.float32)) if share is not None else at
        inside = np.all((from_ >= 0) & (size_ >= 0) & (from_ + size_ <= full), axis=1)
        fits = np.all((at >= 0) & (at + size_ <= room[:, space]), axis=1)
        for good, text, where, border in (
            (inside, "of the image", from_, full),
            (fits, "of the canvas", at, room[:, space]),
        ):
            for k in np.flatnonzero(~good).tolist():
                end_ = (where[k] + size_[k]).tolist()
                ctx.reject(
                    int(owner[k]),
                    "out_of_bounds",
                    f"the part {where[k].tolist()} to {end_} reaches outside {text} {border[k].tolist()}",
                )
        good = inside & fits
        if ctx.rejects:
            good &= ~np.isin(ctx.samples.slot, [r.slot for r in ctx.rejects])[owner]
        first, shape, target = (np.zeros_like(extent) for _ in range(3))
        first[:, space], target[:, space] = np.where(good[:, None], from_, 0), np.where(good[:, None], at, 0)
        shape[good] = extent[good]
        shape[good, space] = size_[good]
        return first, shape, target

    def _rows(self, ctx: Context, name: str, owner: I64) -> npt.NDArray[Any] | None:
        """Return argument ``name`` with one row per region, [regions, 2]; None if it is not set. ``owner``: sample of
        each region."""
        if not self.is_set(name):
            return None
        values, counts = ctx.lists(name, np.float32 if name.endswith("_rel") else np.int64)
        parts = np.bincount(owner, minlength=len(counts))
        for i in np.flatnonzero(counts != 2 * parts).tolist():
            ctx.reject(i, "bad_argument", f"{name} has {counts[i]} numbers for {parts[i]} parts; each needs two")
        rows = np.zeros((len(owner), 2), values.dtype)
        rank = np.arange(len(owner)) - np.searchsorted(owner, owner)
        have = 2 * rank + 1 < values.shape[1]
        for d in range(2):
            rows[have, d] = values[owner[have], 2 * rank[have] + d]
        return rows
