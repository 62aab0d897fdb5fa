"""Conversion of arrays of any library to batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ...ops.batch import Batch, Samples
from ...ops.errors import MixedTypesError
from ...ops.gpu.current import OnGpu
from ...ops.types import from_numpy
from ..user_warnings import warn

_CPU = 1
"""DLPack's device type for host memory."""


class ReadableArray:
    """Base class of tensors, which NumPy, CuPy, PyTorch and other libraries with DLPack read without a copy. A subclass
    returns the array as `_array`."""

    __slots__ = ()

    @property
    def _array(self) -> Any:
        """The tensor's data, as a NumPy or CuPy array."""
        raise NotImplementedError

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        array = self._array
        return np.array(array if isinstance(array, np.ndarray) else array.get(), dtype=dtype, copy=copy)

    def __getattr__(self, name: str) -> Any:
        if name in ("__array_interface__", "__cuda_array_interface__"):
            return getattr(self._array, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __dlpack__(self, **arguments: Any) -> Any:
        return self._array.__dlpack__(**arguments)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


class OneArray(ReadableArray):
    """Base class of tensors that are the array of one sample, with a layout."""

    array: Any

    @property
    def _array(self) -> Any:
        return self.array

    def layout(self) -> str:
        """Return the layout, for example ``HWC``."""
        raise NotImplementedError


class ManyArrays:
    """Base class of lists of tensors. Each wraps one batch of the engine."""

    batch: Batch

    def __len__(self) -> int:
        return len(self.batch)


def as_array(value: Any) -> Any:
    """Return ``value`` as an array, a NumPy array on the host or a CuPy array on a GPU. Nothing is copied if the
    library allows that.

    Accepts arrays of NumPy, CuPy, PyTorch, JAX and TensorFlow, objects with DLPack or an array interface, and numbers.
    Raises TypeError for anything else.
    """
    if isinstance(value, OneArray):
        value = value.array
    if type(value).__name__ == "PyCapsule":
        value = _Capsule(value)
    if isinstance(value, np.ndarray):
        array = value
    elif hasattr(value, "__cuda_array_interface__") and not hasattr(value, "__array_interface__"):
        from ...ops.gpu.lane import foreign

        return foreign(value)
    elif hasattr(value, "__dlpack__") and not isinstance(value, np.generic):
        if value.__dlpack_device__()[0] != _CPU:
            from ...ops.gpu.lane import foreign

            return foreign(value)
        array = np.asarray(value.detach()) if hasattr(value, "detach") else np.from_dlpack(value)
    else:
        array = np.asarray(value)
    try:
        from_numpy(array.dtype)
    except (KeyError, TypeError):
        raise TypeError(f"data of {type(value).__name__} (dtype {array.dtype}) is not an array of numbers; pass "
                        "arrays of NumPy, CuPy, PyTorch, or of a library that supports DLPack") from None  # fmt: skip
    return array


class _Capsule:
    """Wrapper that gives a DLPack capsule in host memory the method ``__dlpack__``, which NumPy requires."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU, 0


def lent(array: Any, guard: object, start: int = 0, shape: tuple[int, ...] | None = None) -> Any:
    """Return a CuPy view of the GPU memory of ``array``. It keeps ``guard`` alive instead of ``array``: the guard may
    keep the memory until kernels that read it have finished. For a flat array, ``shape`` and the index ``start`` of the
    first element select a part."""
    import cupy

    dtype, strides = array.dtype, None
    if shape is None:
        shape, strides = array.shape, array.strides
    address, size = array.data.ptr + start * dtype.itemsize, math.prod(shape) * dtype.itemsize
    memory = cupy.cuda.UnownedMemory(address, size, guard, array.device.id)
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0), strides)


def settled(array: Any, *, copy: bool = False) -> Any:
    """Return a CuPy array as a packed array on its own GPU, always copied if ``copy``. The call waits until the data is
    complete, because the engine then uses it on other CUDA streams."""
    import cupy

    if not copy and array.flags.c_contiguous and array.device.id == cupy.cuda.runtime.getDevice():
        cupy.cuda.get_current_stream().synchronize()
        return array
    with OnGpu(array.device.id):
        packed = cupy.array(array, order="C", copy=copy or None)
        cupy.cuda.get_current_stream().synchronize()
    return packed


def as_batch(
    data: Any, layout: str, samples: Samples | None = None, *, copy: bool = True, empty: Any = np.empty
) -> Batch:
    """Return a batch of one array (N, ...) or of a list of arrays, one per sample, which may be empty. If ``layout`` is
    empty, the layout of the TensorList or of the first Tensor is used.

    ``copy`` makes the batch independent of ``data``; copies on the host are made in memory from ``empty(n, dtype)``.
    Raises TypeError and ValueError with the reason.
    """
    if isinstance(data, ManyArrays):
        batch = data.batch.replace(samples=_samples(samples, len(data)), layout=layout or data.batch.layout)
        if not copy:
            return batch
        return batch.replace(data=batch.data.copy() if batch.on_host else settled(batch.data, copy=True))
    if isinstance(data, (list, tuple)):
        layout = layout or (data[0].layout() if data and isinstance(data[0], OneArray) else "")
        return _from_list(data, layout, samples, empty)
    array = as_array(data)
    if array.ndim == 0:
        raise ValueError("a batch is an array whose first dimension counts the samples, or a list of arrays; got one "
                         "number (with batch=False a source gives one sample at a time)")  # fmt: skip
    if not isinstance(array, np.ndarray):
        array = settled(array, copy=copy)
    elif copy:
        given, array = array, empty(array.size, array.dtype).reshape(array.shape)
        array[...] = given
    else:
        array = np.ascontiguousarray(array)
    return Batch.from_dense(array, _fitting(layout, array.ndim - 1, array.dtype), _samples(samples, len(array)))


def _from_list(data: Sequence[Any], layout: str, samples: Samples | None, empty: Any) -> Batch:
    names = _samples(samples, len(data))
    if not data:  # an empty list has no type
        return Batch.allocate(np.empty, np.empty((0, len(layout)), np.int32), np.uint8, layout, names)
    alike = {*map(type, data)} == {np.ndarray} and len({a.dtype for a in data}) == 1
    arrays = [as_array(data[0]), *data[1:]] if alike else [as_array(d) for d in data]
    layout = _fitting(layout, arrays[0].ndim, arrays[0].dtype)
    if alike or all(isinstance(a, np.ndarray) for a in arrays):
        return Batch.from_list(arrays, layout, names, empty)
    if any(isinstance(a, np.ndarray) for a in arrays):
        raise TypeError("the samples of a batch are partly on the host and partly on a GPU")
    import cupy

    for a in arrays:
        if a.ndim != arrays[0].ndim or a.dtype != arrays[0].dtype:
            raise MixedTypesError(f"samples of a batch share dtype and number of dimensions: {arrays[0].dtype}, "
                                  f"{arrays[0].ndim}-D and {a.dtype}, {a.ndim}-D")  # fmt: skip
    sizes = np.array([a.size for a in arrays], np.int64)
    shapes = np.array([a.shape for a in arrays], np.int32).reshape(len(arrays), arrays[0].ndim)
    with OnGpu(arrays[0].device.id):
        flat = cupy.concatenate([a.reshape(-1) for a in arrays])
        cupy.cuda.get_current_stream().synchronize()
    return Batch(flat, np.cumsum(sizes) - sizes, shapes, layout, names)


def _samples(samples: Samples | None, n: int) -> Samples:
    return _numbered(n) if samples is None else samples


_numbered = lru_cache(8)(Samples.numbered)
"""Return Samples for a batch of the given size, numbered from 0. Results for the last 8 sizes are cached."""


def _fitting(layout: str, ndim: int, dtype: Any) -> str:
    """Return ``layout``. Raises ValueError if it does not have one letter per dimension. For encoded files, warn
    instead, and return no layout: programs for DALI's first versions fed files with the layout of the images."""
    if layout and len(layout) != ndim:
        if ndim == 1 and dtype == np.uint8:
            warn(f"layout {layout!r} does not fit the 1 dimension of encoded files; it is ignored")
            return ""
        raise ValueError(f"the layout {layout!r} names {len(layout)} dimensions, the data has {ndim}")
    return layout


def describe_batch(batch: Batch) -> str:
    """Return dtype and number of dimensions of a batch, for messages."""
    return f"{from_numpy(batch.dtype).name}, {batch.ndim}-D"
