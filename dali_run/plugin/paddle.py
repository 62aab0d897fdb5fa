"""Iterators that yield PaddlePaddle tensors. They use DLPack and copy only outputs whose samples differ in shape."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import missing

try:
    import paddle
except ModuleNotFoundError:
    raise missing("PaddlePaddle", "paddle", "paddlepaddle") from None

from ..ops.types import DALIDataType
from ..pipelines.python.arrays import lent
from ..pipelines.python.iterators import BaseIterator, IteratorArgumentError, LastBatchPolicy, checked_output_map
from ..pipelines.python.pipeline import Pipeline
from ..pipelines.python.tensors import TensorList

__all__ = [
    "DALIClassificationIterator",
    "DALIGenericIterator",
    "LastBatchPolicy",
    "dtype_map",
    "feed_ndarray",
    "lod_tensor_clip",
    "recursive_length",
    "to_paddle_type",
]

_core = paddle.framework.core
_types = _core.VarDesc.VarType
dtype_map = {
    DALIDataType.BOOL: _types.BOOL, DALIDataType.FLOAT: _types.FP32, DALIDataType.FLOAT64: _types.FP64,
    DALIDataType.FLOAT16: _types.FP16, DALIDataType.UINT8: _types.UINT8, DALIDataType.INT8: _types.INT8,
    DALIDataType.INT16: _types.INT16, DALIDataType.INT32: _types.INT32, DALIDataType.INT64: _types.INT64,
}  # fmt: skip
"""Paddle's type for each DALI type that Paddle has."""
_KEPT_BATCHES = 3
"""Number of the latest GPU batches that stay in memory, because Paddle does not say when it has read a batch."""


def to_paddle_type(tensor: Any) -> Any:
    """Return Paddle's type of a Tensor or TensorList. Raises TypeError for uint16, uint32 and uint64, which Paddle does
    not have."""
    if tensor.dtype not in dtype_map:
        raise TypeError(f"Paddle has no {tensor.dtype.name}; cast it first")
    return dtype_map[tensor.dtype]


def feed_ndarray(dali_tensor: Any, ptr: int, cuda_stream: Any = None) -> int:
    """Copy a Tensor or TensorList to the address ``ptr``, where enough memory must be allocated, on ``cuda_stream``."""
    dali_tensor.copy_to_external(ptr, cuda_stream, non_blocking=cuda_stream is not None)
    return ptr


def recursive_length(tensor: Any, lod_level: int) -> list[list[int]]:
    """Return the number of parts of everything down to ``lod_level``: samples of the batch, rows of each sample, and so
    on."""
    shapes = [list(s) for s in tensor.shape()]
    return [[len(shapes)], *_lengths(shapes, lod_level - 1)] if lod_level > 0 else []


def _lengths(shapes: Sequence[Sequence[int]], levels: int) -> list[list[int]]:
    """Return for each level the extents of all its parts. A part of the level above has as many parts as its extent."""
    lengths, parts = [], [list(s) for s in shapes]
    for _ in range(levels):
        lengths.append([p[0] for p in parts])
        parts = [p[1:] for p in parts for _ in range(p[0])]
    return lengths


def lod_tensor_clip(lod_tensor: Any, size: int) -> Any:
    """Return a copy of the first ``size`` samples of a Paddle batch."""
    clipped, array = _core.DenseTensor(), np.array(lod_tensor)
    lengths = _lengths_of(lod_tensor)
    if not lengths:
        clipped.set(array[:size], paddle.CPUPlace())
        return clipped
    lengths_kept, left = [], size
    for level in lengths:
        lengths_kept.append(level[:left])
        left = sum(lengths_kept[-1])
    clipped.set(array[:left], paddle.CPUPlace())
    clipped.set_recursive_sequence_lengths(lengths_kept)
    return clipped


def _lengths_of(lod_tensor: Any) -> list[list[int]]:
    if hasattr(lod_tensor, "recursive_sequence_lengths"):
        lengths: list[list[int]] = lod_tensor.recursive_sequence_lengths()
        return lengths
    return [[b - a for a, b in itertools.pairwise(level)] for level in lod_tensor.lod()]


class DALIGenericIterator(BaseIterator):
    """Iterator that yields for each batch a list with a dict per pipeline: output name -> tensor (N, ...).

    The tensors are those that Paddle's executors take; ``paddle.to_tensor`` turns one into an eager tensor. An entry of
    ``output_map`` is a name, or (name, level) for an output whose samples differ in shape: its samples lie one after
    the other along the first dimension, and sequence lengths of that many levels say where each begins.
    """

    def __init__(
        self,
        pipelines: Pipeline | Sequence[Pipeline],
        output_map: Sequence[str | tuple[str, int]] | None = None,
        size: int = -1,
        reader_name: str | None = None,
        auto_reset: bool | str | None = False,
        fill_last_batch: bool | None = None,
        dynamic_shape: bool = False,
        last_batch_padded: bool = False,
        last_batch_policy: LastBatchPolicy = LastBatchPolicy.FILL,
        prepare_first_batch: bool = True,
    ) -> None:
        """``dynamic_shape`` is accepted for compatibility with DALI and ignored. Raises ValueError."""
        del dynamic_shape
        pairs = [(v, 0) if isinstance(v, str) else (str(v[0]), int(v[1])) for v in output_map or ()]
        if len({name for name, _ in pairs}) < len(pairs):
            raise IteratorArgumentError(f"the names of output_map must differ, got {[n for n, _ in pairs]}")
        super().__init__(pipelines, size, reader_name, auto_reset, fill_last_batch, last_batch_padded,
                         last_batch_policy, prepare_first_batch)  # fmt: skip
        names = [name for name, _ in pairs] if output_map is not None else None
        self.output_map = checked_output_map(names, self.pipelines)
        self.normalized_map = dict(pairs) if pairs else dict.fromkeys(self.output_map, 0)
        self._kept: deque[Any] = deque(maxlen=_KEPT_BATCHES)

    def __next__(self) -> list[dict[str, Any]]:
        batches = self.next_outputs()
        return [{k: self.convert(k, t) for k, t in zip(self.output_map, one, strict=True)} for one in batches]

    def convert(self, name: str, outputs: TensorList) -> Any:
        """Return one output of one pipeline as a tensor.

        Raises ValueError if its samples differ in shape and ``output_map`` has no level for it, TypeError for a type
        that Paddle does not have.
        """
        to_paddle_type(outputs)
        level = self.normalized_map[name]
        if not level:
            return self._tensor(outputs.batch.dense())
        if level > outputs.ndim():
            raise ValueError(f"output {name!r} has {outputs.ndim()} dimensions, so it has no level {level}")
        packed, shapes = outputs.batch.packed(), outputs.shape()
        lengths = _lengths(shapes, level)
        if len({s[level:] for s in shapes}) > 1:
            raise ValueError(f"output {name!r}: its samples differ in shape below level {level}, too")
        start = int(packed.offsets[0]) if len(packed) else 0
        flat = packed.data[start : start + int(packed.sizes.sum())]
        tensor = self._tensor(flat.reshape(sum(lengths[-1]), *shapes[0][level:]))
        tensor.set_recursive_sequence_lengths(lengths)
        return tensor

    def _tensor(self, array: Any) -> Any:
        """Return a view of ``array`` as a tensor, or a copy if the array is read-only."""
        if isinstance(array, np.ndarray):
            return _core.from_dlpack((array if array.flags.writeable else array.copy()).__dlpack__())
        self._kept.append(array)
        return _core.from_dlpack(lent(array, self._kept).__dlpack__())


class DALIClassificationIterator(DALIGenericIterator):
    """DALIGenericIterator for pipelines with two outputs, images and labels, which it names ``data`` and ``label``."""

    def __init__(
        self, pipelines: Pipeline | Sequence[Pipeline], size: int = -1, reader_name: str | None = None,
        auto_reset: bool | str | None = False, fill_last_batch: bool | None = None, dynamic_shape: bool = False,
        last_batch_padded: bool = False, last_batch_policy: LastBatchPolicy = LastBatchPolicy.FILL,
        prepare_first_batch: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(pipelines, ["data", "label"], size, reader_name, auto_reset, fill_last_batch, dynamic_shape,
                         last_batch_padded, last_batch_policy, prepare_first_batch)  # fmt: skip
