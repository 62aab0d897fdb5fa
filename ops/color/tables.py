"""Operators lookup_table and equalize: replace every value by a table's entry."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from ..base import Arg, Operator, Spec, Stage
from ..batch import Batch
from ..context import Context
from ..conversion import saturate
from ..copies.strided import CUDA_TYPES
from ..copies.windows import image_layout, known_layout
from ..errors import SampleError, SpecError
from ..kernels import Kernels
from ..libraries import presets
from ..types import DALIDataType, from_numpy, to_numpy

_kernels: Any = Kernels(".tables_cpu", __package__)

_THREADS = 256
_AT_ONCE = 64
"""Number of bytes that one GPU thread replaces (cuda/tables.cu)."""
_LAST_KEY = 65535


class LookupTable(Operator, name="lookup_table"):
    """Replace integers: keys by their values, all other numbers by ``default_value``.

    If a key occurs several times, its last value counts. Values are rounded half away from zero and saturate.
    """

    replayable = True
    example = "{op: lookup_table, in: labels, keys: [0, 7, 9], values: [1, 2, 2], dtype: INT32, out: labels}"

    keys: Annotated[tuple[int, ...], Arg("integers to replace", ge=0, le=_LAST_KEY)] = ()
    values: Annotated[tuple[float, ...], Arg("replacements of the keys, as many as keys")] = ()
    default_value: Annotated[float, Arg("replacement of integers that are not keys")] = 0.0
    dtype: Annotated[DALIDataType, Arg("data type of the output")] = DALIDataType.FLOAT
    output_dtype: Annotated[DALIDataType | None, Arg("data type of the output", deprecated="dtype")] = None

    def check(self) -> None:
        if len(self.keys) != len(self.values):
            raise SpecError(f"keys and values go together, got {len(self.keys)} and {len(self.values)}")

    def infer(self, *specs: Spec) -> Spec:
        data = specs[0]
        if data.dtype is not None and to_numpy(data.dtype).kind not in "iu":
            raise SpecError(f"takes integers, got {data}; cast them first")
        return Spec(data.shape, self.dtype, data.layout)

    @cached_property
    def _table(self) -> npt.NDArray[Any]:
        """The operator's table as an array: values for the numbers from 0 to the largest key, then the default
        value."""
        table = np.full(max(self.keys, default=-1) + 2, self.default_value, np.float64)
        table[list(self.keys)] = self.values
        return saturate(table, to_numpy(self.dtype))

    def _of_bytes(self, dtype: Any) -> npt.NDArray[Any]:
        """Return the table for all 256 values of the one-byte type ``dtype``, ordered by bit pattern."""
        last = len(self._table) - 1
        every = np.arange(256).astype(np.uint8).view(dtype).astype(np.int64)
        return self._table[np.where((every >= 0) & (every < last), every, last)]

    def cpu(self, ctx: Context, data: Batch) -> Batch:
        if data.dtype.kind not in "iu":
            raise SampleError("bad_shape", f"takes integers, got {data.dtype}; cast them first")
        table = self._table
        out = Batch.allocate(ctx.empty, data.shapes, table.dtype, data.layout, data.samples)
        if ctx.stage == "cpu":
            packed = data.packed()
            start = int(packed.offsets[0]) if len(packed) else 0
            values = packed.data[start : start + out.data.size]
            if values.dtype.itemsize == 1:  # a table of all values is small
                _kernels.look_up_bytes(values.view(np.uint8), _bits(self._of_bytes(values.dtype)), _bits(out.data))
            else:
                _kernels.look_up(values, _bits(table), _bits(out.data))
            return out
        sizes = data.sizes
        most = int(sizes.max(initial=0))
        if most and data.dtype.itemsize == table.dtype.itemsize == 1 and data.is_packed:
            start, total = int(data.offsets[0]), out.data.size
            every = ctx.device.upload(_bits(self._of_bytes(data.dtype)).view(np.uint32))[0]
            blocks = -(-(total + 15) // (_THREADS * _AT_ONCE))
            values = data.data[start : start + total]
            ctx.device.launch("tables.cu", "look_up_bytes", blocks, _THREADS, values, np.int64(total), every, out.data)
        elif most:
            tiles = -(-most // (16 * _THREADS))
            base, counts, values, to = ctx.device.upload(data.offsets, sizes, table, out.offsets)
            ctx.device.launch(
                "tables.cu", f"look_up<{CUDA_TYPES[data.dtype]}, {CUDA_TYPES[table.dtype]}>", tiles * len(data),
                _THREADS, data.data, base, counts, np.int32(tiles), values, np.int32(len(table) - 1), out.data, to,
            )  # fmt: skip
        return out

    gpu = cpu


def _bits(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return ``values`` as a view of unsigned integers of the same size, so that loops are compiled for fewer types."""
    return values.view(f"u{values.dtype.itemsize}")


class Equalize(Operator, name="equalize"):
    """Equalise the histogram of each channel of uint8 images, as OpenCV's equalizeHist does."""

    aliases: ClassVar[tuple[str, ...]] = ("experimental.equalize",)
    layouts = ("HW", "HWC", "CHW", "FHW", "FHWC", "FCHW")
    replayable = True
    example = "{op: equalize, in: images, out: images}"

    parity: Annotated[
        Literal["dali", "opencv", "torchvision", "pillow"],
        Arg("library whose results are reproduced: docs/parity.md#single-operators; opencv equals dali"),
    ] = "dali"

    @property
    def _preset(self) -> str:
        """Name of the library whose rule for the table differs from DALI's; empty if the rule is DALI's."""
        return "" if self.parity == "opencv" else self.parity.replace("dali", "")

    def runs_in(self) -> tuple[Stage, ...]:
        return ("cpu",) if self._preset else self.stages

    def infer(self, *specs: Spec) -> Spec:
        data = specs[0]
        if self._preset:
            presets.check_input(
                self.parity, Spec(data.shape, data.dtype, image_layout(data.layout, data.ndim, self.layouts))
            )
        if data.dtype not in (None, DALIDataType.UINT8):
            raise SpecError(f"takes uint8 images, got {data}; cast them first")
        layout = image_layout(data.layout, data.ndim, self.layouts)
        if data.ndim is not None and layout not in self.layouts:
            raise SpecError(f"takes layouts {', '.join(self.layouts)}, got {data}")
        return Spec(data.shape, DALIDataType.UINT8, layout)

    def cpu(self, ctx: Context, images: Batch) -> Batch:
        if images.dtype != np.uint8:
            raise SampleError("bad_shape", f"takes uint8 images, got {from_numpy(images.dtype).name}; cast them first")
        images = images.replace(layout=known_layout(images, self.layouts))
        if self._preset:
            return presets.run(ctx, images, self.parity, [("equalize", np.zeros((len(images), 0)))])
        geometry = np.ones((len(images), 3), np.int64)  # images, pixels, channels
        shapes = images.shapes.astype(np.int64)
        first = images.layout.index("H")
        geometry[:, 0] = shapes[:, :first].prod(axis=1)
        geometry[:, 1] = shapes[:, first : first + 2].prod(axis=1)
        geometry[:, 2] = shapes[:, first + 2 :].prod(axis=1)
        geometry[geometry.prod(axis=1) == 0, 0] = 0
        out = Batch.allocate(ctx.empty, images.shapes, np.uint8, images.layout, images.samples)
        if ctx.stage == "cpu":
            _kernels.equalize(images.data, np.ascontiguousarray(images.offsets), geometry, out.data, out.offsets)
            return out
        planes = int((geometry[:, 0] * geometry[:, 2]).max(initial=0))
        if planes:
            base, sizes, to = ctx.device.upload(images.offsets, geometry, out.offsets)
            ctx.device.launch(
                "tables.cu", "equalize", planes * len(images), 512, images.data, base, sizes, np.int32(planes),
                out.data, to,
            )  # fmt: skip
        return out

    gpu = cpu
