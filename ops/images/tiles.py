"""Operator tiles: cut an image into a sequence of tiles."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import numpy as np

from ..base import Arg, Operator, Spec, Stage
from ..batch import I64, Batch, elements
from ..context import Context
from ..copies.strided import MAX_ELEMENTS, pad, run, whole, window
from ..copies.windows import border, image_layout, known_layout
from ..errors import SpecError
from ..types import DALIDataType

Edges = Literal["pad", "drop", "shift"]
Padding = Literal["constant", "edge", "reflect_1001", "reflect_101"]


class Tiles(Operator, name="tiles"):
    """Cut an image into tiles of one size, row by row: HWC becomes a sequence FHWC.

    A tile begins every ``stride`` pixels; a stride smaller than ``size`` makes tiles overlap, a larger one leaves gaps.
    If the tiles do not fit evenly, ``edges`` decides about the last ones: they are filled up (``pad``), left out
    (``drop``), or moved back into the image (``shift``; an image smaller than a tile is filled up). So ``pad`` and
    ``shift`` show every pixel unless there are gaps. With ``drop``, an image smaller than a tile has no tiles.

    `split_samples` turns tiles into samples. With ``places``, the second output is the row and column in the image at
    which each tile begins (int32, (F, 2)), never outside the image.
    """

    layouts = ("HWC", "CHW", "HW")
    example = "{op: tiles, in: images, size: [8, 12], stride: [4, 8], edges: shift, out: tiles}"

    size: Annotated[tuple[int, ...], Arg("height and width of a tile, or one number for both", ge=1, le=1 << 24)]
    stride: Annotated[
        tuple[int, ...] | None,
        Arg("rows and columns from one tile to the next; by default size, no overlap", ge=1, le=1 << 31),
    ] = None
    edges: Annotated[Edges, Arg("last tiles that reach past the image: pad them, drop them, or move them back")] = "pad"
    pad_mode: Annotated[Padding, Arg("pixels of edges pad: fill_value, the last pixel, or the image mirrored")] = (
        "constant"
    )
    fill_value: Annotated[float, Arg("value of the pixels that pad_mode constant adds")] = 0.0
    places: Annotated[bool, Arg("add a second output: row and column of each tile's first pixel")] = False

    @property
    def num_outputs(self) -> int:
        return 1 + self.places

    def check(self) -> None:
        for name in ("size", "stride"):
            value = getattr(self, name)
            if value is not None and len(value) not in (1, 2):
                raise SpecError(f"{name} takes one number, or height and width, got {len(value)}")
        if self.edges == "drop" and (self.is_set("pad_mode") or self.is_set("fill_value")):
            raise SpecError("edges: drop fills nothing up; leave out pad_mode and fill_value")

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        image = specs[0]
        layout = image_layout(image.layout, image.ndim, self.layouts)
        shape: tuple[int | None, ...] | None = None
        count = None
        if image.shape is not None and layout:
            axes = layout.index("H"), layout.index("W")
            extents = [image.shape[a] for a in axes]
            if None not in extents:
                count = int(self._counts(np.array([extents], np.int64)).prod())
            tile = list(image.shape)
            for axis, extent in zip(axes, self._pair(self.size), strict=True):
                tile[axis] = int(extent)
            shape = (count, *tile)
        made = Spec(shape, image.dtype, "F" + layout if layout else "")
        return (made, Spec((count, 2), DALIDataType.INT32))[: self.num_outputs]

    def estimate_memory(self, stage: Stage, *inputs: Batch) -> tuple[I64, I64]:
        axes = self._axes(inputs[0])
        shapes = inputs[0].shapes.astype(np.int64)
        counts = self._counts(shapes[:, axes]).prod(axis=1)
        shapes[:, axes] = self._pair(self.size)
        return counts * elements(shapes), np.zeros(len(counts), np.int64)

    def cpu(self, ctx: Context, images: Batch) -> Batch | tuple[Batch, ...]:
        axes, size = self._axes(images), self._pair(self.size)
        extents = images.shapes[:, axes].astype(np.int64)
        grid, shapes = self._counts(extents), images.shapes.astype(np.int64)
        shapes[:, axes] = size
        counts = grid.prod(axis=1)
        for i in np.flatnonzero(counts * elements(shapes) > MAX_ELEMENTS).tolist():
            ctx.reject(i, "too_large", f"its {grid[i, 0]} x {grid[i, 1]} tiles have more than {MAX_ELEMENTS} values; "
                       "take a larger stride")  # fmt: skip
            counts[i] = 0
        owner = np.repeat(np.arange(len(images)), counts)
        number = np.arange(len(owner)) - np.repeat(counts.cumsum() - counts, counts)
        columns = np.maximum(grid[owner, 1], 1)
        first = np.stack([number // columns, number % columns], axis=1) * self._pair(self.stride or self.size)
        if self.edges == "shift":
            first = np.minimum(first, np.maximum(extents - size, 0)[owner])
        source = images.take(owner, images.samples.take(owner))
        anchor = np.zeros((len(owner), images.ndim), np.int64)
        anchor[:, axes] = first
        plan = window(whole(source), anchor, shapes[owner])
        if self.edges != "drop":
            plan = pad(plan, border(self.pad_mode), self.fill_value)
        made = run(replace(ctx, samples=source.samples), plan, source)
        at = counts.cumsum() - counts
        offsets = np.append(made.offsets, 0)[np.minimum(at, len(owner))]
        sequences = np.column_stack([counts, shapes]).astype(np.int32)
        layout = "F" + known_layout(images, self.layouts)
        tiles = Batch(made.data, offsets, sequences, layout, images.samples)
        if not self.places:
            return tiles
        where = np.ascontiguousarray(first, np.int32)
        if ctx.stage != "cpu":
            (where,) = ctx.device.upload(where)
        rows = np.column_stack([counts, np.full(len(counts), 2)]).astype(np.int32)
        return tiles, Batch(where.reshape(-1), at * 2, rows, "", images.samples)

    gpu = cpu

    def _axes(self, images: Batch) -> list[int]:
        layout = known_layout(images, self.layouts)
        return [layout.index("H"), layout.index("W")]

    @staticmethod
    def _pair(values: tuple[int, ...]) -> I64:
        return np.broadcast_to(np.array(values, np.int64), (2,))

    def _counts(self, extents: I64) -> I64:
        """Return the number of rows and columns of tiles, [N, 2], for images of shape ``extents`` (height, width), [N,
        2]."""
        size, stride = self._pair(self.size), self._pair(self.stride or self.size)
        rest = extents - size
        if self.edges == "drop":
            return np.where(rest >= 0, rest // stride + 1, 0)
        reaching = np.maximum(-(-rest // stride), 0) + 1  # the last tile reaches the end
        counts: I64 = np.minimum(reaching, -(-extents // stride))  # and begins inside the image, if tiles leave gaps
        return counts
