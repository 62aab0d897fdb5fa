"""Arrays of the user's, of any library, as batches."""

from __future__ import annotations

import math
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
"""Device type of host memory in DLPack."""


class ReadableArray:
    """Base of tensors: NumPy, CuPy, PyTorch and whatever speaks DLPack read `_array` without a copy."""

    __slots__ = ()

    @property
    def _array(self) -> Any:
        """The array, of NumPy's or CuPy's."""
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
    """Base of tensors that pipelines give: an array with a layout."""

    array: Any

    @property
    def _array(self) -> Any:
        return self.array

    def layout(self) -> str:
        """Layout, for example ``HWC``."""
        raise NotImplementedError


class ManyArrays:
    """Base of lists of tensors: a batch of the engine's."""

    batch: Batch

    def __len__(self) -> int:
        return len(self.batch)


def as_array(value: Any) -> Any:
    """``value`` as an array: NumPy on the host, CuPy on a GPU. Nothing is copied where the library allows it.

    Takes NumPy, CuPy, PyTorch, JAX, TensorFlow arrays, whatever speaks DLPack or an array interface, and numbers.
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
        raise TypeError(f"data of {type(value).__name__} (dtype {array.dtype}) is no array of numbers; give arrays of "
                        "NumPy, CuPy, PyTorch, or of a library that speaks DLPack") from None  # fmt: skip
    return array


class _Capsule:
    """A bare capsule of DLPack's, of an array on the host, as NumPy asks for it."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU, 0


def lent(array: Any, guard: object, start: int = 0, shape: tuple[int, ...] | None = None) -> Any:
    """A CuPy view of the CuPy ``array`` (of ``shape`` from element ``start`` on, where it is flat) that keeps ``guard``
    alive instead: when nothing refers to the view any more, the guard goes, and may hold the memory back until kernels
    that read it are done."""
    import cupy

    dtype, strides = array.dtype, None
    if shape is None:
        shape, strides = array.shape, array.strides
    address, size = array.data.ptr + start * dtype.itemsize, math.prod(shape) * dtype.itemsize
    memory = cupy.cuda.UnownedMemory(address, size, guard, array.device.id)
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0), strides)


def settled(array: Any, *, copy: bool = False) -> Any:
    """A CuPy array packed, on its own GPU, as a copy where ``copy`` asks for one; finished when this returns, because
    the engine goes on with it on streams of its own."""
    import cupy

    if not copy and array.flags.c_contiguous and array.device.id == cupy.cuda.runtime.getDevice():
        cupy.cuda.get_current_stream().synchronize()
        return array
    with OnGpu(array.device.id):
        packed = cupy.array(array, order="C", copy=copy or None)
        cupy.cuda.get_current_stream().synchronize()
    return packed


def as_batch(data: Any, layout: str, samples: Samples | None = None, *, copy: bool = True) -> Batch:
    """A batch from one array (N, ...) or a list of arrays, one a sample, which may be empty. A layout that is not given
    is that of the TensorList, or of the first Tensor.

    ``copy`` makes the batch independent of ``data``. Raises TypeError and ValueError that say what is wrong.
    """
    if isinstance(data, ManyArrays):
        batch = data.batch.replace(samples=_samples(samples, len(data)), layout=layout or data.batch.layout)
        if not copy:
            return batch
        return batch.replace(data=batch.data.copy() if batch.on_host else settled(batch.data, copy=True))
    if isinstance(data, (list, tuple)):
        layout = layout or (data[0].layout() if data and isinstance(data[0], OneArray) else "")
        return _from_list([as_array(d) for d in data], layout, samples)
    whole = as_array(data)
    if whole.ndim == 0:
        raise ValueError("a batch is an array whose first dimension counts the samples, or a list of arrays; got one "
                         "number (with batch=False a source gives one sample at a time)")  # fmt: skip
    if isinstance(whole, np.ndarray):
        whole = np.array(whole, order="C") if copy else np.ascontiguousarray(whole)
    else:
        whole = settled(whole, copy=copy)
    return Batch.from_dense(whole, _fitting(layout, whole.ndim - 1, whole.dtype), _samples(samples, len(whole)))


def _from_list(arrays: list[Any], layout: str, samples: Samples | None) -> Batch:
    names = _samples(samples, len(arrays))
    if not arrays:  # of no type, as far as anybody knows
        return Batch.allocate(np.empty, np.empty((0, len(layout)), np.int32), np.uint8, layout, names)
    layout = _fitting(layout, arrays[0].ndim, arrays[0].dtype)
    if all(isinstance(a, np.ndarray) for a in arrays):
        return Batch.from_list(arrays, layout, names)
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
"""Names that the engine replaces by its own."""


def _fitting(layout: str, ndim: int, dtype: Any) -> str:
    """``layout``, if it has as many letters as there are dimensions. Raises ValueError where it has not. Files that are
    still encoded are let off with a warning: programs of DALI's first years fed them with the layout of the images."""
    if layout and len(layout) != ndim:
        if ndim == 1 and dtype == np.uint8:
            warn(f"layout {layout!r} does not name the 1 dimension of encoded files; it is left out")
            return ""
        raise ValueError(f"the layout {layout!r} names {len(layout)} dimensions, the data has {ndim}")
    return layout


def describe_batch(batch: Batch) -> str:
    """For messages."""
    return f"{from_numpy(batch.dtype).name}, {batch.ndim}-D"
