"""Operator segmentation.select_masks: select the polygons of some masks."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from ..base import Arg, Operator, Spec
from ..batch import Batch
from ..context import Context
from ..errors import SampleError, SpecError
from ..kernels import Kernels
from ..types import DALIDataType
from .rows import chosen, list_of

_kernels: Any = Kernels(".masks_cpu", __package__)
_rows: Any = Kernels(".rows_cpu", __package__)


class SelectMasks(Operator, name="segmentation.select_masks"):
    """Select the polygons of the masks whose ids are listed, in the order of the list.

    Inputs: mask ids int32 [m]; polygons int32 [n, 3] (mask id, first vertex, vertex after the last) and vertices [v,
    k], as readers.coco outputs them. Outputs: polygons and vertices of the selected masks. All polygons of a mask are
    kept (DALI keeps only its last one).
    """

    inputs = (3, 3)
    example = (
        "{op: segmentation.select_masks, in: [ids, polygons, vertices], reindex_masks: true, out: [polygons, vertices]}"
    )

    reindex_masks: Annotated[bool, Arg("number the masks by their index in the list of ids")] = False

    @property
    def num_outputs(self) -> int:
        return 2

    def shows(self) -> dict[int, str]:
        return {0: "polygons", 1: "vertices"}

    def infer(self, *specs: Spec) -> tuple[Spec, ...]:
        for what, spec in (("mask ids", specs[0]), ("polygons", specs[1])):
            if spec.dtype not in (None, DALIDataType.INT32, DALIDataType.INT64):
                raise SpecError(f"takes {what} of int32 or int64, got {spec}; cast them first")
        if specs[1].shape is not None and (len(specs[1].shape) != 2 or specs[1].shape[1] not in (None, 3)):
            raise SpecError(f"takes polygons of shape [n, 3], got {specs[1]}")
        vertices = specs[2].shape
        kept = Spec(None if vertices is None else (None, *vertices[1:]), specs[2].dtype, specs[2].layout)
        return Spec((None, 3), DALIDataType.INT32), kept

    def cpu(self, ctx: Context, ids: Batch, polygons: Batch, vertices: Batch) -> tuple[Batch, ...]:
        if polygons.ndim != 2 or vertices.ndim != 2:
            raise SampleError("bad_shape", "takes polygons of shape [n, 3] and vertices of shape [v, k]")
        n = len(ids)
        counts, vertex_counts = polygons.shapes[:, 0].astype(np.int64), vertices.shapes[:, 0].astype(np.int64)
        for i in np.flatnonzero((polygons.shapes[:, 1] != 3) & (counts > 0)).tolist():
            ctx.reject(i, "bad_shape", f"polygons have {int(polygons.shapes[i, 1])} numbers each, 3 are needed")
            counts[i] = 0
        rows = np.empty((int(counts.sum()), 5), np.int64)
        row_counts, status = np.zeros(n, np.int64), np.zeros((n, 2), np.int64)
        used = _kernels.selected(
            ids.data, ids.offsets, ids.sizes, polygons.data, polygons.offsets, counts, vertex_counts,
            self.reindex_masks, rows, row_counts, status,
        )  # fmt: skip
        for i in np.flatnonzero(status[:, 0]).tolist():
            what = int(status[i, 1])
            message = ("", f"there is no mask {what}", f"mask {what} is listed twice",
                       f"polygon {what} reaches beyond the {int(vertex_counts[i])} vertices")[status[i, 0]]  # fmt: skip
            ctx.reject(i, "bad_argument", message)
        rows = rows[:used]
        lengths = rows[:, 4] - rows[:, 3]
        before = np.zeros(used + 1, np.int64)
        lengths.cumsum(out=before[1:])
        which = np.empty(before[-1], np.int64)
        _rows.stretches(rows[:, 3], lengths, which)
        ends = row_counts.cumsum()
        kept = before[ends] - before[ends - row_counts]
        return list_of(ctx, rows[:, :3].astype(np.int32).reshape(-1), row_counts, 3), chosen(ctx, vertices, which, kept)
