"""Operator filter: correlation with a separate filter for each sample."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec
from ..batch import I64, Batch, elements
from ..context import Context
from ..conversion import saturate
from ..copies.strided import CUDA_TYPES, affordable
from ..errors import SampleError, SpecError
from ..gpu.launch_recording import not_replayable
from ..images.frames import ImageParts, as_frames, image_parts
from ..kernels import Kernels
from ..types import DALIDataType, to_numpy
from .axes import BORDERS, THREADS, by_axis, fits, geometry, host_output, on_host, spatial, strips_of, tiles_of

_kernels: Any = Kernels(".filter_cpu", __package__)


class _Correlation(NamedTuple):
    """Geometry of a batch to filter. An item is an image, or a frame of a sequence."""

    parts: ImageParts
    shapes: I64
    """Shapes of the outputs, [N, ndim]."""
    where: I64
    """Count, depth, height, width and channels of each item, [M, 5]; see `geometry`."""
    results: I64
    """Count, depth, height, width and channels of each result, [M, 5]; a count of 0 for items without a result."""
    places: I64
    """Offset of each item's filter in the second input, [M]."""
    extents: I64
    """Depth, height and width of each item's filter, [M, 3]."""
    pads: I64
    """Index of the filter's element that lies on the value, per axis, [M, 4]."""
    values: npt.NDArray[np.float32]
    """Value of each item outside of the image, [M]."""

    @property
    def sizes(self) -> I64:
        """Number of elements of each result, [M]."""
        sizes: I64 = self.results[:, 0] * self.results[:, 1:].prod(axis=1)
        return sizes


class Filter(Operator, name="filter"):
    """Correlate images or volumes with a filter: the second input, float32, with as many dimensions as the image has
    without channels and frames.

    The filter is not flipped. Computed in float32. With ``border`` "constant", the third input is the value outside of
    the image (0 if there is none).
    """

    aliases: ClassVar[tuple[str, ...]] = ("experimental.filter",)
    replayable = True
    inputs = (2, 3)
    bound = "1 level; floats within 1e-5 of the largest value times the filter's sum"
    example = "{op: filter, in: [images, kernels], out: images}"

    anchor: Annotated[
        tuple[int, ...],
        Arg("index of the filter's element that lies on the value, one number per axis; -1: the middle",
            ge=-1, per_sample=True),
    ] = (-1,)  # fmt: skip
    border: Annotated[
        Literal["reflect_101", "reflect_1001", "wrap", "clamp", "constant"], Arg("values outside of the image")
    ] = "reflect_101"
    mode: Annotated[
        Literal["same", "valid"],
        Arg("valid: output only positions at which the whole filter lies inside; anchor and border have no effect"),
    ] = "same"
    dtype: Annotated[DALIDataType | None, Arg("data type of the output: FLOAT, or by default that of the input")] = None

    def infer(self, *specs: Spec) -> Spec:
        data = specs[0]
        if self.dtype not in (None, DALIDataType.FLOAT, data.dtype) and data.dtype is not None:
            raise SpecError(f"dtype must be FLOAT or the input's, got {self.dtype.name if self.dtype else None}")
        if specs[1].dtype not in (None, DALIDataType.FLOAT):
            raise SpecError(f"filters must be float32, got {specs[1]}; cast them first")
        shape = data.shape
        if data.ndim is not None:
            first, axes = spatial(data.layout, data.ndim)
            if axes < 2:
                raise SpecError(f"filters images and volumes, got {data}")
            if self.mode == "valid" and shape is not None:
                shape = (*shape[:first], *(None,) * axes, *shape[first + axes :])
        return Spec(shape, data.dtype if self.dtype is None else self.dtype, data.layout)

    def cpu(self, ctx: Context, images: Batch, filters: Batch, *fill: Batch) -> Batch:
        plan = self._plan(ctx, images, filters, *fill)
        dtype = images.dtype if self.dtype is None else np.dtype(to_numpy(self.dtype))
        if ctx.stage != "cpu":
            return self._launched(ctx, images, filters, dtype, plan)
        out, convert = host_output(ctx, images, plan.shapes, dtype)
        to = _places(out, plan.parts, plan.sizes)
        source, base = on_host(images, plan.parts.offsets)
        _kernels.correlate(
            source, base, plan.where, plan.results, np.ascontiguousarray(filters.data), plan.places, plan.extents,
            plan.pads, np.int32(BORDERS[self.border]), plan.values, out.data, to,
        )  # fmt: skip
        return out.replace(data=saturate(out.data, dtype)) if convert else out

    def _plan(self, ctx: Context, images: Batch, filters: Batch, *fill: Batch) -> _Correlation:
        """Check the inputs and compute what kernels need. Rejects samples whose filter does not fit."""
        first, axes = spatial(images.layout, images.ndim)
        if filters.dtype != np.float32:
            raise SampleError("bad_shape", f"filters must be float32, got {filters.dtype}; cast them first")
        framed = filters.layout.startswith("F") and images.layout.startswith("F")
        if filters.ndim - framed != axes:
            raise SampleError(
                "bad_shape", f"images of {axes} dimensions take filters of as many, got {filters.ndim - framed}"
            )
        parts = image_parts(ctx, images, ["anchor"], np.int64)
        if framed and parts.sample is None:
            parts = as_frames(images, parts)
        layout = images.layout if parts.sample is None else images.layout[1:]
        own = np.arange(len(images)) if parts.sample is None else parts.sample
        places, extents = _windows(ctx, images, filters, own, framed, axes)
        anchor = by_axis(parts.arguments["anchor"], axes, "anchor")
        anchor = np.where(anchor < 0, extents[:, 3 - axes :] // 2, anchor)
        if self.mode == "valid":
            anchor = np.zeros_like(anchor)
        bad = np.any(anchor >= extents[:, 3 - axes :], axis=1)
        where = geometry(parts.shapes, layout)
        where[bad, 0] = 0
        for m in np.flatnonzero(bad & (extents.prod(axis=1) > 0)).tolist():
            said = f"anchor {anchor[m].tolist()} lies outside of the filter {extents[m, 3 - axes :].tolist()}"
            ctx.reject(int(own[m]), "bad_argument", said)
        shapes, results = images.shapes.astype(np.int64), where.copy()
        if self.mode == "valid":
            results[:, 1:4] = np.maximum(where[:, 1:4] - extents + 1, 0)
            small = (where[:, 1:4] < extents).any(axis=1)
            for m in np.flatnonzero(small & ~bad).tolist():
                ctx.reject(int(own[m]), "bad_shape", f"the filter {extents[m].tolist()} is larger than the image")
            if len(images):
                of_sample = np.full((len(images), axes), np.iinfo(np.int64).max)
                np.minimum.at(of_sample, own, results[:, 4 - axes : 4])
                of_sample[of_sample == np.iinfo(np.int64).max] = 0
                shapes[:, first : first + axes] = of_sample
                results[:, 4 - axes : 4] = of_sample[own]
        shapes = affordable(ctx, shapes)
        results[results.prod(axis=1) == 0, 0] = 0
        pads = np.zeros((len(own), 4), np.int64)
        pads[:, 3 - axes : 3] = anchor
        values = np.zeros(len(own), np.float32)
        if fill:
            not_replayable(ctx.device)
            values = _fills(ctx, images, fill[0], own)
        return _Correlation(parts, shapes, where, results, places, extents, pads, values)

    def _launched(self, ctx: Context, images: Batch, filters: Batch, dtype: np.dtype[Any], plan: _Correlation) -> Batch:
        where, results, extents = plan.where, plan.results, plan.extents
        border = np.int32(BORDERS[self.border])
        out = Batch.allocate(ctx.empty, plan.shapes.astype(np.int32), dtype, images.layout, images.samples)
        tiles = tiles_of(results)
        if tiles == 0:
            return out
        there = ctx.device.to_device(filters)
        shift = int(there.offsets[0] - filters.offsets[0])
        base, to, before, after, begin, window, shifts, outside = ctx.device.upload(
            plan.parts.offsets, _places(out, plan.parts, plan.sizes), where, results, plan.places + shift, extents,
            plan.pads, plan.values,
        )  # fmt: skip
        if strips := _strips(images.dtype, results, extents):
            height, width, channels = strips
            tiles = strips_of(results, 4 if channels and images.dtype == np.uint8 else 1, _ROWS)
            ctx.device.launch(
                "filter.cu",
                f"correlate_strips<{CUDA_TYPES[images.dtype]}, {CUDA_TYPES[dtype]}, {height}, {width}, {channels}>",
                tiles * len(where), THREADS, images.data, base, before, after, np.int32(tiles), there.data, begin,
                shifts, border, outside, out.data, to,
            )  # fmt: skip
            return out
        ctx.device.launch(
            "filter.cu", f"correlate<{CUDA_TYPES[images.dtype]}, {CUDA_TYPES[dtype]}>", tiles * len(where), THREADS,
            images.data, base, before, after, np.int32(tiles), there.data, begin, window, shifts, border, outside,
            out.data, to,
        )  # fmt: skip
        return out

    gpu = cpu


_ROWS = 16
"""Number of rows that each GPU thread of the strip kernel computes, as in cuda/filter.cu."""
_MAX_TAPS = 121
"""Maximum number of filter values that a GPU thread of the strip kernel can hold."""


def _strips(dtype: np.dtype[Any], results: I64, extents: I64) -> tuple[int, int, int] | None:
    """Return the constants for compiling the strip kernel: height and width of the filters, and number of channels (0:
    any). None if filters differ in size, or are too large."""
    live = results[:, 0] > 0
    extents, channels = extents[live], results[live, 4]
    depth, height, width = extents[0].tolist()
    if depth > 1 or height * width > _MAX_TAPS or (extents != extents[0]).any() or not fits(results):
        return None
    same = int(channels[0]) if (channels == channels[0]).all() else 0
    return height, width, same if dtype in (np.uint8, np.float32) and same in (1, 3) else 0


def _places(out: Batch, items: ImageParts, sizes: I64) -> I64:
    """Return the offset in ``out`` of each image's result, [M]."""
    if items.sample is None:
        return out.offsets
    return sizes.cumsum() - sizes


def _windows(
    ctx: Context, images: Batch, filters: Batch, sample_of_item: I64, framed: bool, axes: int
) -> tuple[I64, I64]:
    """Return offset, and depth, height and width, of the filter of each image, [M] and [M, 3]."""
    shapes = filters.shapes.astype(np.int64)[:, int(framed) :]
    extents = np.ones((len(sample_of_item), 3), np.int64)
    extents[:, 3 - axes :] = shapes[sample_of_item]
    places = filters.offsets[sample_of_item].copy()
    if framed:
        counts = images.shapes[:, 0].astype(np.int64)
        given = filters.shapes[:, 0].astype(np.int64)
        for i in np.flatnonzero((given != counts) & (given != 1)).tolist():
            ctx.reject(i, "bad_argument", f"has filters for {given[i]} frames, the sequence has {counts[i]}")
        number = np.arange(len(sample_of_item)) - np.repeat(counts.cumsum() - counts, counts)
        places += (
            np.where(given[sample_of_item] == counts[sample_of_item], number, 0) * elements(shapes)[sample_of_item]
        )
    empty = extents.prod(axis=1) == 0
    for m in np.flatnonzero(empty).tolist():
        ctx.reject(int(sample_of_item[m]), "bad_argument", "the filter has no elements")
    return places, extents


def _fills(ctx: Context, images: Batch, fill: Batch, sample_of_item: I64) -> npt.NDArray[np.float32]:
    """Return each image's value outside of its border, [M], from the third input, which has one number per sample or
    per frame."""
    if not fill.on_host:
        fill = fill.replace(data=fill.data.get())
    sizes = fill.sizes
    if fill.layout.startswith("F") and len(sample_of_item) != len(images):
        counts = images.shapes[:, 0].astype(np.int64)
        number = np.arange(len(sample_of_item)) - np.repeat(counts.cumsum() - counts, counts)
        at = fill.offsets[sample_of_item] + np.minimum(number, sizes[sample_of_item] - 1)
    else:
        at = fill.offsets[sample_of_item]
    for i in np.flatnonzero(sizes == 0).tolist():
        ctx.reject(i, "bad_argument", "the fill value is empty")
    values: npt.NDArray[np.float32] = np.where(
        sizes[sample_of_item] > 0, fill.data[np.minimum(at, fill.data.size - 1)], 0
    )
    return values.astype(np.float32)
