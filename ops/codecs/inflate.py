"""Operator decoders.inflate: decompress arrays."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec
from ..batch import I64, Batch
from ..batch import elements as sizes_of
from ..context import Context
from ..copies.strided import affordable
from ..errors import SampleError, SpecError
from ..kernels import Kernels
from ..types import DALIDataType, to_numpy

_kernels: Any = Kernels(".inflate_cpu", __package__)


class Inflate(Operator, name="decoders.inflate"):
    """Decompress LZ4 blocks (the raw block format, without frames) into arrays of ``shape`` and ``dtype``.

    The input is 1-D uint8: one block, or several with ``chunk_sizes`` or ``chunk_offsets``, each of which inflates to
    ``shape``; the output then has one more axis at the front. Blocks that are damaged, or that hold another number of
    bytes than shape and dtype need, are rejected. DALI has this operator for GPUs only.
    """

    aliases: ClassVar[tuple[str, ...]] = ("experimental.inflate",)
    example = "{op: decoders.inflate, in: packed, shape: [480, 640, 3], layout: HWC, out: images}"

    shape: Annotated[tuple[int, ...], Arg("shape of one inflated block", ge=0, per_sample=True, required=True)] = ()
    algorithm: Annotated[Literal["LZ4"], Arg("how the data is compressed")] = "LZ4"
    check_output_size: Annotated[bool, Arg("check sizes", ignored="they are always checked")] = False
    chunk_offsets: Annotated[tuple[int, ...] | None, Arg("where each block begins in the sample", per_sample=True)] = (
        None
    )
    chunk_sizes: Annotated[tuple[int, ...] | None, Arg("bytes of each block", per_sample=True)] = None
    dtype: Annotated[DALIDataType, Arg("type of the output")] = DALIDataType.UINT8
    layout: Annotated[str, Arg("layout of one inflated block")] = ""
    sequence_axis_name: Annotated[str, Arg("letter of the axis of blocks, if layout is given")] = "F"

    @property
    def _chunked(self) -> bool:
        return self.is_set("chunk_offsets") or self.is_set("chunk_sizes")

    def check(self) -> None:
        if len(self.sequence_axis_name) != 1:
            raise SpecError(f"sequence_axis_name must be one letter, got {self.sequence_axis_name!r}")
        if "shape" not in self.per_sample and self.layout and len(self.layout) != len(self.shape):
            raise SpecError(f"layout {self.layout!r} does not fit the shape {list(self.shape)}")

    def infer(self, *specs: Spec) -> Spec:
        if specs[0].dtype not in (None, DALIDataType.UINT8) or specs[0].ndim not in (None, 1):
            raise SpecError(f"takes bytes (uint8, one dimension), got {specs[0]}")
        layout = self.sequence_axis_name * self._chunked + self.layout if self.layout else ""
        if "shape" in self.per_sample:
            return Spec((None,) * len(layout) if layout else None, self.dtype, layout)
        return Spec((*[None] * self._chunked, *self.shape), self.dtype, layout)

    def cpu(self, ctx: Context, packed: Batch) -> Batch:
        if packed.dtype != np.uint8 or packed.ndim != 1:
            raise SampleError("bad_shape", f"takes bytes (uint8, one dimension), got {packed.dtype}, {packed.ndim}-D")
        n = len(packed)
        given = ctx.arg("shape", np.int64)
        shapes = given.reshape(n, -1)
        for i in np.flatnonzero((shapes < 0).any(axis=1)).tolist():
            ctx.reject(i, "bad_argument", f"a shape cannot be negative, got {shapes[i].tolist()}")
        shapes = np.maximum(shapes, 0)
        counts, starts, sizes = self._chunks(ctx, packed)
        full = affordable(ctx, np.concatenate([counts[:, None], shapes], axis=1) if self._chunked else shapes)
        layout = self.sequence_axis_name * self._chunked + self.layout if self.layout else ""
        again = ctx.stage != "cpu" and ctx.attempt > 0  # on the host, which names the error
        if again:
            packed = ctx.device.to_host(packed)
            ctx.device.wait()
        out = Batch.allocate(
            np.empty if again else ctx.empty, full.astype(np.int32), to_numpy(self.dtype), layout, ctx.samples
        )
        raw, width = out.data.view(np.uint8), out.dtype.itemsize
        owner = np.repeat(np.arange(n), counts)
        each = np.minimum(sizes_of(shapes), 1 << 48)[owner] * width
        number = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        to = out.offsets[owner] * width + number * each
        # sums and products of the user's numbers could overflow
        inside, room = packed.sizes[owner], out.sizes[owner] * width
        fits = (starts >= 0) & (sizes >= 0) & (starts <= inside) & (sizes <= inside - starts)
        fits &= (room // counts[owner] == each) & (room % counts[owner] == 0)
        each, sizes, to = np.where(fits, each, 0), np.where(fits, sizes, 0), np.where(fits, to, 0)
        begin = packed.offsets[owner] + np.where(fits, starts, 0)
        blocks = _Blocks(begin, sizes, to, each, fits, owner)
        if ctx.stage == "cpu" or again:
            self._inflate(ctx, packed, raw, blocks)
        elif len(owner):
            self._launch(ctx, packed, raw, blocks)
        return ctx.device.to_device(out) if again else out

    gpu = cpu

    def _chunks(self, ctx: Context, packed: Batch) -> tuple[I64, I64, I64]:
        """Return the number of LZ4 blocks in each sample, [N]; and for each block, its byte offset in the sample and
        its size in bytes."""
        n = len(packed)
        if not self._chunked:
            return np.ones(n, np.int64), np.zeros(n, np.int64), packed.sizes
        given = [ctx.lists(name, np.int64) for name in ("chunk_offsets", "chunk_sizes") if self.is_set(name)]
        counts = given[0][1].copy()
        for i in np.flatnonzero(counts != given[-1][1]).tolist():
            ctx.reject(i, "bad_argument", f"{int(counts[i])} chunk_offsets, but {int(given[-1][1][i])} chunk_sizes")
            counts[i] = 0
        owner = np.repeat(np.arange(n), counts)
        number = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        if not self.is_set("chunk_sizes"):  # each block ends where the next begins
            starts: I64 = given[0][0][owner, number]
            last = number == counts[owner] - 1
            stops = np.where(last, packed.sizes[owner], np.append(starts[1:], 0))
            return counts, starts, stops - starts
        sizes: I64 = given[-1][0][owner, number]
        if self.is_set("chunk_offsets"):
            return counts, given[0][0][owner, number], sizes
        before = np.cumsum(given[0][0], axis=1) - given[0][0]  # each block begins where the previous one ends
        return counts, before[owner, number], sizes

    def _inflate(self, ctx: Context, packed: Batch, raw: Any, blocks: _Blocks) -> None:
        good = blocks.fits.copy()
        _kernels.inflate(packed.data, blocks.starts, blocks.sizes, raw, blocks.to, blocks.each, good)
        for c in np.flatnonzero(~good).tolist():
            i = int(blocks.owner[c])
            which = f"block {int((blocks.owner[:c] == i).sum())}" if self._chunked else "the data"
            what = (
                f"is not an LZ4 block of {int(blocks.each[c])} bytes" if blocks.fits[c] else "extends beyond the sample"
            )
            ctx.reject(i, "corrupt_data", f"{which} {what}")

    def _launch(self, ctx: Context, packed: Batch, raw: Any, blocks: _Blocks) -> None:
        lane = ctx.device
        starts, sizes, to, each, good = lane.upload(
            blocks.starts, blocks.sizes, blocks.to, blocks.each, np.zeros(len(blocks.owner), np.int32)
        )
        lane.launch("inflate.cu", "inflate", len(blocks.owner), 32, packed.data, starts, sizes, raw, to, each, good)
        found = lane.download(good)
        owner, fits = blocks.owner, blocks.fits
        ctx.check_later(lambda: np.unique(owner[(found == 0) | ~fits]))


class _Blocks:
    """The compressed LZ4 blocks of a batch, as arrays with one entry per block. Created and used by one call of the
    operator."""

    def __init__(
        self, starts: I64, sizes: I64, to: I64, each: I64, fits: npt.NDArray[np.bool_], owner: npt.NDArray[Any]
    ) -> None:
        self.starts, self.sizes = starts, sizes
        self.to, self.each = to, each
        self.fits = fits
        """Whether each block lies inside its sample and decompresses to the bytes of ``shape``."""
        self.owner = owner
        """Index in the batch of each block's sample."""
