"""Helpers for lists per sample (boxes, labels, vertices): check inputs, and build outputs. Used by the operators of
this folder."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..base import Spec
from ..batch import I32, I64, Batch
from ..batch import elements as sizes_of
from ..context import Context
from ..errors import SampleError, SpecError
from ..kernels import Kernels
from ..types import DALIDataType

_kernels: Any = Kernels(".rows_cpu", __package__)


def check_spec(spec: Spec, columns: tuple[int, ...], name: str = "boxes") -> None:
    """Raise SpecError unless an input with ``spec`` can be a list of float32 rows whose length is one of ``columns``,
    such as 4 for boxes."""
    widths = " or ".join(map(str, columns))
    if spec.dtype not in (None, DALIDataType.FLOAT):
        raise SpecError(f"takes {name} of float32, got {spec}; cast them first")
    if spec.shape is not None and (len(spec.shape) != 2 or spec.shape[1] not in (None, *columns)):
        raise SpecError(f"takes {name} of shape [n, {widths}], got {spec}")


def counts_of(ctx: Context, boxes: Batch, width: int, *, relative: bool = False) -> I64:
    """Return the number of boxes, rows of ``width`` numbers, in each sample, [N]. Samples of another shape are rejected
    and count 0. With ``relative``, samples with numbers outside of 0 to 1 are rejected too."""
    if boxes.ndim != 2 or boxes.dtype != np.float32:
        raise SampleError("bad_shape", f"takes float32 boxes [n, {width}], got {boxes.dtype}, {boxes.ndim}-D")
    counts = boxes.shapes[:, 0].astype(np.int64)
    odd = (boxes.shapes[:, 1] != width) & (counts > 0)
    if odd.any():
        for i in np.flatnonzero(odd).tolist():
            ctx.reject(i, "bad_shape", f"boxes have {int(boxes.shapes[i, 1])} numbers each, {width} are needed")
            counts[i] = 0
    if relative and not _kernels.relative(boxes.data, boxes.offsets, counts * width):
        sample, at = each(boxes.offsets, counts * width)
        values = boxes.data[at]
        outside = ~((values >= 0) & (values <= 1))
        if outside.any():
            for i in np.unique(sample[outside]).tolist():
                bad = int(np.flatnonzero(outside & (sample == i))[0])
                ctx.reject(
                    i, "bad_argument",
                    f"a box has the coordinate {float(values[bad])!r}, but coordinates are fractions of the image, "
                    "0 to 1 (readers.coco: ratio: true)",
                )  # fmt: skip
                counts[i] = 0
    return counts


def each(starts: I64, sizes: I64) -> tuple[I64, I64]:
    """Return the indices of all ranges, one range after the other: range i has ``sizes[i]`` indices from ``starts[i]``
    on. Return two arrays, for each index: the number of its range, and the index itself."""
    sample = np.repeat(np.arange(len(sizes)), sizes)
    return sample, np.arange(len(sample)) + np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)


def list_of(ctx: Context, data: npt.NDArray[Any], counts: I64, *width: int, layout: str = "") -> Batch:
    """Return a batch of lists of rows: sample i is ``counts[i]`` rows of shape ``width``. ``data``: rows of all
    samples, one after the other."""
    shapes = np.empty((len(counts), 1 + len(width)), np.int32)
    shapes[:, 0], shapes[:, 1:] = counts, width
    sizes = sizes_of(shapes)
    return Batch(data, np.cumsum(sizes) - sizes, shapes, layout, ctx.samples)


def check_labels(ctx: Context, labels: Batch, counts: I64) -> None:
    """Reject samples whose number of labels differs from their number of boxes, ``counts``, and set their ``counts`` to
    0."""
    if labels.ndim == 0:
        raise SampleError("bad_shape", "labels need one dimension at least: one entry per box")
    given = labels.shapes[:, 0]
    odd = given != counts
    if odd.any():
        for i in np.flatnonzero(odd).tolist():
            ctx.reject(i, "bad_shape", f"there are {int(counts[i])} boxes, but {int(given[i])} labels")
            counts[i] = 0


def chosen(ctx: Context, lists: Batch, indices: npt.NDArray[np.integer[Any]], counts: I64) -> Batch:
    """Return the selected rows of each sample's list. ``indices`` are row numbers within a list, for all samples in
    order; ``counts[i]`` of these belong to sample i."""
    shapes: I32 = lists.shapes.copy()
    shapes[:, 0] = counts
    width = sizes_of(lists.shapes[:, 1:])
    sizes = counts * width
    ends = sizes.cumsum()
    out = np.empty(int(ends[-1]) if len(ends) else 0, lists.dtype)
    bits = f"u{out.itemsize}"  # one loop for all types of the same size
    _kernels.gather(lists.data.view(bits), lists.offsets, width, indices.astype(np.int64), counts, out.view(bits))
    return Batch(out, ends - sizes, shapes, lists.layout, ctx.samples)


def lists(ctx: Context, name: str, dtype: Any) -> tuple[npt.NDArray[Any], I64, I64]:
    """Return the lists in argument ``name``, one per sample: all their numbers in one array, then start and length of
    each list, [N]. All are empty if the argument is not set."""
    n = len(ctx.samples)
    if not ctx.op.is_set(name):
        return np.zeros(0, dtype), np.zeros(n, np.int64), np.zeros(n, np.int64)
    values, counts = ctx.lists(name, dtype)
    return values.reshape(-1), np.arange(n) * values.shape[1], counts
