"""readers.numpy: read arrays of .npy files, whole or a region of each."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from ..ops.arrays.slice import Slice
from ..ops.base import Arg, Spec
from ..ops.batch import Batch
from ..ops.context import Context
from ..ops.copies.strided import Border, CopyPlan, affordable, pad, run, whole, window
from ..ops.errors import JobError, SampleError, SpecError
from ..ops.interfaces import Uploader
from ..ops.storage.npy import NpyHeader, read_header
from .fetch.parallel import spread
from .file import MAX_FILE, FileSet, check_choice, chosen_files
from .join.reader import JoiningReader

I64 = npt.NDArray[np.int64]

_MAX_CACHED_HEADERS = 4096
_LONGEST_HEADER = 1 << 14
_USUAL_HEADER, _WHOLE_HEADER = 1 << 12, 1 << 16
_MIN_DIRECT = 64 << 10
"""Mean size in bytes of files from which they are read directly into GPU memory. Below, opening a file costs more than
reading it."""


class _Arrays(FileSet):
    """Data set of the reader `Numpy`, opened: .npy files. The first readable file determines the dtype and number of
    dimensions of all."""

    def __init__(self, root: str | None, names: list[bytes], reader: Numpy, *, only_files: bool) -> None:
        super().__init__(root, names, only_files=only_files)
        self._reader = reader
        self._headers: dict[tuple[bytes, int], NpyHeader] = {}
        first = self._first()
        self._model, self._dtype = first, first.dtype.newbyteorder("=")

    def _first(self) -> NpyHeader:
        problem = "it has no files"
        for i in range(min(len(self), 100)):
            try:
                data, size = self.head(i, _LONGEST_HEADER)
                return self._header(memoryview(data), size)
            except (OSError, SampleError) as e:
                problem = f"{self.path(i)}: {e}"
        raise JobError(f"no array can be read: {problem}")

    def _header(self, data: memoryview, size: int) -> NpyHeader:
        """Parse the header of a file of ``size`` bytes that starts with ``data``. Raises SampleError."""
        length = int.from_bytes(data[8:10], "little") + 10 if bytes(data[6:7]) == b"\1" else _LONGEST_HEADER
        key = (bytes(data[: min(length, _LONGEST_HEADER)]), size)
        header = self._headers.get(key)
        if header is None:
            header = read_header(data, size)
            if len(self._headers) >= _MAX_CACHED_HEADERS:
                self._headers.clear()
            self._headers[key] = header
        return header

    def fetch(self, ctx: Context) -> tuple[Batch, ...]:
        if (uploader := ctx.uploads.get(0)) is not None:
            arrays = self._fetch_to_gpu(ctx, uploader)
            if arrays is not None:
                return (arrays,)
            ctx = replace(ctx, uploads={})
        files = self.read(ctx, ctx.samples.index)
        n, ndim, itemsize = len(files), len(self._model.shape), self._dtype.itemsize
        shapes, at = np.zeros((n, ndim), np.int32), np.zeros(n, np.int64)
        fortran = np.zeros(n, np.bool_)
        rejected = {r.slot for r in ctx.rejects}
        data: npt.NDArray[np.uint8] = files.data
        for i, (start, size) in enumerate(zip(files.offsets.tolist(), files.sizes.tolist(), strict=True)):
            if int(ctx.samples.slot[i]) in rejected:
                continue
            try:
                header = self._header(data[start : start + size].data, size)
                self._compare(header)
            except SampleError as e:
                ctx.reject(i, e.code, str(e))
                continue
            first = start + header.offset
            stop = first + itemsize * math.prod(header.shape)
            if first % itemsize:  # an unusual header: move the elements to an aligned address
                data[start : start + stop - first] = data[first:stop].copy()
                first, stop = start, start + stop - first
            if not header.dtype.isnative:
                data[first:stop].view(self._dtype).byteswap(inplace=True)
            shapes[i], at[i], fortran[i] = header.shape, first // itemsize, header.fortran_order
        elements = data[: len(data) // itemsize * itemsize].view(self._dtype)
        arrays = Batch(elements, at, shapes, "", ctx.samples)
        if not fortran.any() and not self._reader.has_region:
            return (arrays,)
        return (run(ctx, self._plan(ctx, arrays, fortran), arrays),)

    def _fetch_to_gpu(self, ctx: Context, uploader: Uploader) -> Batch | None:
        """Read the arrays into GPU memory, and return a batch whose bytes are there. Return None if that is not
        possible; the caller then reads them into host memory, and only then rejects samples."""
        from .fetch import stored_arrays

        which = ctx.samples.index
        nbytes = int(np.maximum(self.sizes[which], 0).sum())
        reason = (
            "behind a URL" if self._remote is not None else "small files" if nbytes < _MIN_DIRECT * len(which) else ""
        )
        headers = [] if reason or not uploader.enabled else self._headers_of(ctx, which)
        if any(not isinstance(h, SampleError) and not h.dtype.isnative for h in headers):
            reason = "stored in another byte order"
        if reason or not headers:
            uploader.decline(nbytes, reason) if reason else uploader.begin(nbytes)
            return None
        trial = replace(ctx, rejects=list(ctx.rejects))
        plan, offsets = self._stored_plan(trial, headers)
        ranges = stored_arrays.StoredRanges.of(plan, offsets, self._dtype.itemsize)
        try:
            upload = uploader.begin(ranges.nbytes)
            if upload is None:
                return None
            lost = stored_arrays.read_ranges(
                ctx, uploader, upload, ranges,
                lambda k: self.path(int(which[k])), lambda k: self._changed(int(which[k])),
            )  # fmt: skip
            for k in sorted(lost):
                i = int(which[k])
                trial.reject(k, "read_failed", self._why(i, int(self.sizes[i])))
            arrays = stored_arrays.lease_arrays(ctx, upload, replace(plan, base=ranges.bases))
        except Exception as e:  # errors of kvikio, the GPU or memory: reading into host memory needs none of them
            uploader.failed(e, ranges.nbytes)
            return None
        ctx.rejects[:] = trial.rejects
        return arrays

    def _headers_of(self, ctx: Context, which: I64) -> list[NpyHeader | SampleError]:
        """Return the header of each of the files ``which``, or the error for which its sample is rejected."""
        headers: list[NpyHeader | SampleError] = [SampleError("internal", "")] * len(which)

        def look(first: int, last: int) -> None:
            for k in range(first, last):
                try:
                    headers[k] = self._checked_header(int(which[k]))
                except SampleError as e:
                    headers[k] = e.bare()

        spread(ctx, len(which), len(which) * _MIN_DIRECT, look)
        return headers

    def _checked_header(self, i: int) -> NpyHeader:
        """Return the header of file ``i``. Raises SampleError if the file or its array does not fit the data set."""
        expected = int(self.sizes[i])
        if expected > MAX_FILE:
            raise SampleError("too_large", f"the file has {expected} bytes; at most {MAX_FILE} can be one sample")
        try:
            data, size = self.head(i, _USUAL_HEADER) if expected >= 0 else (b"", -1)
            if size != expected or expected < 0:
                raise SampleError("read_failed", self._why(i, expected))
            try:
                header = self._header(memoryview(data), size)
            except SampleError:
                if size <= _USUAL_HEADER:
                    raise
                header = self._header(memoryview(self.head(i, _WHOLE_HEADER)[0]), size)
        except OSError:
            raise SampleError("read_failed", self._why(i, expected)) from None
        self._compare(header)
        return header

    def _changed(self, i: int) -> bool:
        """Whether file ``i`` is gone, or has another size than when the data set was opened."""
        try:
            return self.head(i, 0)[1] != int(self.sizes[i])
        except OSError:
            return True

    def _stored_plan(self, ctx: Context, headers: list[NpyHeader | SampleError]) -> tuple[CopyPlan, I64]:
        """Return the plan that copies the arrays, or regions of them, from where they are stored, and the offset of
        each array in its file. A sample with an error instead of a header is rejected; its array is empty."""
        n, ndim = len(headers), len(self._model.shape)
        shapes, offsets, fortran = np.zeros((n, ndim), np.int32), np.zeros(n, np.int64), np.zeros(n, np.bool_)
        for k, header in enumerate(headers):
            if isinstance(header, SampleError):
                ctx.reject(k, header.code, str(header))
            else:
                shapes[k], offsets[k], fortran[k] = header.shape, header.offset, header.fortran_order
        arrays = Batch(np.empty(0, self._dtype), np.zeros(n, np.int64), shapes, "", ctx.samples)
        plan = self._plan(ctx, arrays, fortran)
        return replace(plan, shape=affordable(ctx, plan.shape)), offsets

    def _compare(self, header: NpyHeader) -> None:
        if header.dtype.newbyteorder("=") != self._dtype:
            raise SampleError("unsupported", f"holds {header.dtype.name}, the first file {self._dtype.name}")
        if len(header.shape) != len(self._model.shape):
            raise SampleError(
                "bad_shape", f"has {len(header.shape)} dimensions, the first file {len(self._model.shape)}"
            )

    def _plan(self, ctx: Context, arrays: Batch, fortran: npt.NDArray[np.bool_]) -> CopyPlan:
        """Return the plan that copies ``arrays``, or regions of them, to C order. ``fortran``: which are stored in
        Fortran order."""
        plan = whole(arrays)
        if fortran.any():
            extents = arrays.shapes.astype(np.int64)
            columns = np.cumprod(
                np.concatenate([np.ones((len(extents), 1), np.int64), extents[:, :-1]], axis=1), axis=1
            )
            plan = replace(plan, stride=np.where(fortran[:, None], columns[:, : arrays.ndim], plan.stride))
        reader = self._reader
        if reader.has_region:
            region = reader.region(arrays.ndim)
            asked = Context(op=region, stage="cpu", samples=ctx.samples, rejects=ctx.rejects,
                            args={k.replace("roi_", ""): v for k, v in ctx.args.items()})  # fmt: skip
            plan = pad(window(plan, *region.windows(asked, arrays, ())), Border.FILL, reader.fill_value)
        return plan


class Numpy(JoiningReader, name="readers.numpy"):
    """Read arrays from .npy files: ``file_root/*.npy`` and ``file_root/<folder>/*.npy``, or a list of files.

    Elements are booleans, integers and floats of either byte order; arrays in Fortran order are converted to C order.
    All files need the dtype and the number of dimensions of the first. Nothing is unpickled.

    With ``device: gpu``, files are read directly into GPU memory, of regions only the part of the file from their first
    to their last element. This needs kvikio (``pip install 'dali-run[gds]'``), which uses GPUDirect Storage if the
    system has it. Without kvikio, for small files, files behind URLs and another byte order, the CPU reads and uploads.
    """

    devices = ("cpu", "gpu")
    aliases = ("numpy_reader", "readers._numpy")
    example = "{op: readers.numpy, file_root: ./volumes, roi_start: [0, 16, 16], roi_shape: [64, 64, 64], out: volumes}"
    shuffles_list: ClassVar[bool] = True

    file_root: Annotated[str | None, Arg("folder, or the base of relative names in a list")] = None
    files: Annotated[tuple[str, ...] | None, Arg("paths of the files")] = None
    file_list: Annotated[str | None, Arg("text file with a name on every line")] = None
    file_filter: Annotated[str, Arg("pattern of file names below file_root")] = "*.npy"
    roi_start: Annotated[tuple[int, ...] | None, Arg("first element of the region", per_sample=True)] = None
    roi_end: Annotated[tuple[int, ...] | None, Arg("element after the last of the region", per_sample=True)] = None
    roi_shape: Annotated[tuple[int, ...] | None, Arg("shape of the region", per_sample=True)] = None
    rel_roi_start: Annotated[tuple[float, ...] | None, Arg("start, as fractions of the shape", per_sample=True)] = None
    rel_roi_end: Annotated[tuple[float, ...] | None, Arg("end, as fractions of the shape", per_sample=True)] = None
    rel_roi_shape: Annotated[tuple[float, ...] | None, Arg("size, as fractions of the shape", per_sample=True)] = None
    roi_axes: Annotated[tuple[int, ...], Arg("axes to which the region applies; all by default")] = ()
    out_of_bounds_policy: Annotated[
        Literal["error", "pad", "trim_to_shape"], Arg("what to do if the region reaches outside of the array")
    ] = "error"
    fill_value: Annotated[float, Arg("value outside of the array, with out_of_bounds_policy: pad")] = 0.0
    cache_header_information: Annotated[bool, Arg("cache headers", ignored="they are always cached")] = False
    register_buffers: Annotated[bool, Arg("for GPUDirect Storage", ignored="kvikio has its own")] = True
    use_o_direct: Annotated[bool, Arg("read past the page cache", ignored="the page cache is used")] = False

    @property
    def has_region(self) -> bool:
        """Whether only a region of each array is read."""
        return any(map(self.has_value, _REGION))

    def region(self, ndim: int) -> Slice:
        """Return the slice operator that cuts the region out of arrays of ``ndim`` dimensions."""
        constants = {n.replace("roi_", ""): getattr(self, n) for n in _REGION if n not in self.per_sample}
        arguments: dict[str, Any] = {k: v for k, v in constants.items() if v}
        inputs = frozenset(n.replace("roi_", "") for n in _REGION if n in self.per_sample)
        axes = self.roi_axes or tuple(range(ndim))
        return Slice(
            axes=axes, out_of_bounds_policy=self.out_of_bounds_policy, per_sample=inputs, **arguments
        )  # fmt: skip

    def check(self) -> None:
        super().check()
        check_choice(self.file_root, self.files, self.file_list)
        if self.has_region:
            self.region(max(self.roi_axes, default=0) + 1).check()
        elif self.is_set("roi_axes") and all(getattr(self, n) is None for n in _REGION):
            raise SpecError("roi_axes belong to a region: also give roi_start, roi_end or roi_shape")

    def own_specs(self) -> tuple[Spec, ...]:
        return (Spec(),)

    def open_records(self) -> _Arrays:
        root, names, only_files = chosen_files(self.file_root, self.files, self.file_list, self.file_filter)
        return _Arrays(root, names, self, only_files=only_files)


_REGION = ("roi_start", "roi_end", "roi_shape", "rel_roi_start", "rel_roi_end", "rel_roi_shape")
