"""Operator roi_random_crop: draw where to cut, so that the window contains as much as possible of a region of
interest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np

from ..base import Arg, Operator, Spec
from ..batch import I64, Batch
from ..context import Context
from ..errors import SampleError, SpecError
from ..kernels import Kernels
from ..types import DALIDataType

_kernels: Any = Kernels(".masks_cpu", __package__)


class RoiRandomCrop(Operator, name="roi_random_crop"):
    """Draw where a window of ``crop_shape`` starts. A window that is larger than the region of interest contains it; a
    smaller one lies inside it.

    The output, int64 [D], is the argument ``start`` of slice. With ``in_shape``, or with the data itself as the input,
    the window stays inside the data. Samples whose region or window does not fit into the data are rejected.
    """

    inputs = (0, 1)
    random = True
    example = (
        "{op: roi_random_crop, crop_shape: [64, 64], roi_start: $start, roi_end: $end, in_shape: $shape, out: start}"
    )

    crop_shape: Annotated[tuple[int, ...], Arg("lengths of the window", ge=0, per_sample=True, required=True)] = ()
    roi_start: Annotated[tuple[int, ...], Arg("first element of the region", per_sample=True, required=True)] = ()
    in_shape: Annotated[
        tuple[int, ...] | None, Arg("lengths of the data; the window stays inside", per_sample=True)
    ] = None
    roi_end: Annotated[tuple[int, ...] | None, Arg("index after the region's last element", per_sample=True)] = None
    roi_shape: Annotated[tuple[int, ...] | None, Arg("lengths of the region", per_sample=True)] = None

    def check(self) -> None:
        if self.is_set("roi_end") == self.is_set("roi_shape"):
            raise SpecError("needs roi_end or roi_shape, one of them")

    def infer(self, *specs: Spec) -> Spec:
        if specs and self.is_set("in_shape"):
            raise SpecError("the data's shape is given twice: by the input and by in_shape; give only one")
        lengths = [len(getattr(self, n)) for n in ("crop_shape", "roi_start") if n not in self.per_sample]
        return Spec((max(lengths),) if lengths else (None,), DALIDataType.INT64)

    def cpu(self, ctx: Context, *data: Batch) -> Batch:
        n = len(ctx.samples)
        every, from_shape = self._given(ctx, data)
        ndim = every.shape[2]
        crop, start, end = every[:3]
        whole: I64 = every[3] if len(every) > 3 else crop[:0]
        if from_shape:
            end = start + end
        bad = [(end < start, "the region {} to {} ends before it starts", start, end)]
        if len(whole):
            bad.append(((start < 0) | (end > whole), "the region {} to {} reaches out of the data", start, end))
            bad.append((crop > whole, "the window {} is larger than the data {}", crop, whole))
        refused = np.zeros(n, np.bool_)
        for where, message, a, b in bad:
            for i in np.flatnonzero(where.any(axis=1)).tolist():
                ctx.reject(i, "bad_argument", message.format(a[i].tolist(), b[i].tolist()))
                refused[i] = True
        out = np.zeros((n, ndim), np.int64)
        streams = ctx.streams()
        _kernels.windows_around(streams.handle, streams.sequence, crop, start, end, whole, refused, out)
        return Batch.from_dense(out, "", ctx.samples)

    def _given(self, ctx: Context, data: Sequence[Batch]) -> tuple[I64, bool]:
        """Return the sizes of the window, begins and ends of the region, and sizes of the data if they are known,
        int64[3 or 4, N, ndim]; and whether the ends are sizes of the region. Raises SampleError if they do not have
        equally many dimensions."""
        names = ["crop_shape", "roi_start", "roi_end" if self.is_set("roi_end") else "roi_shape"]
        if self.is_set("in_shape"):
            names.append("in_shape")
        given = [ctx.rows(name, np.int64) for name in names]
        ndim = max(a.shape[1] for a in given)
        for name, a in zip(names, given, strict=True):
            if a.shape[1] not in (1, ndim):
                raise SampleError("bad_argument", f"{name} has {a.shape[1]} numbers, others {ndim}")
        if data:
            if data[0].ndim < ndim:
                raise SampleError("bad_shape", f"the data has {data[0].ndim} dimensions, the window {ndim}")
            given.append(data[0].shapes[:, :ndim].astype(np.int64))
        every = np.empty((len(given), len(ctx.samples), ndim), np.int64)
        for k, a in enumerate(given):
            every[k] = a
        return every, names[2] == "roi_shape"
