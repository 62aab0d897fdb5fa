"""TensorList and Tensor: the results of `Pipeline.run`. They are thin views of a Batch with DALI's methods; nothing is
copied.

Methods that change a tensor (`set_layout`, `reinterpret`, `squeeze`, `reset`) change only this view of the data.
"""

from __future__ import annotations

import ctypes
import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...ops.batch import Batch, Samples
from ...ops.errors import RaggedError
from ...ops.gpu.current import OnGpu
from ...ops.types import DALIDataType, from_numpy, to_numpy
from .arrays import ManyArrays, OneArray, as_array, as_batch

_ANY_DIRECTION = 4
"""Value of cudaMemcpyDefault, with which CUDA finds the direction of a copy from the addresses."""


class Tensor(OneArray):
    """The array of one sample. NumPy (`__array_interface__`), CuPy (`__cuda_array_interface__`) and DLPack read it
    without a copy."""

    def __init__(self, array: Any, layout: str | None = None, source_info: str = "") -> None:
        self.array = array
        self._layout = _fitting(layout, array.ndim)
        self._source_info = source_info

    @property
    def dtype(self) -> DALIDataType:
        """Element type of the tensor."""
        return from_numpy(self.array.dtype)

    def shape(self) -> list[int]:
        """Return the lengths of the dimensions."""
        return [int(d) for d in self.array.shape]

    def ndim(self) -> int:
        """Return the number of dimensions."""
        return int(self.array.ndim)

    def layout(self) -> str:
        """Return the layout, for example ``HWC``."""
        return self._layout

    def set_layout(self, layout: str | None) -> None:
        """Rename the dimensions; no data is moved. Raises ValueError if ``layout`` has another number of letters."""
        self._layout = _fitting(layout, self.array.ndim)

    def get_property(self, key: str) -> str | None:
        """Return the property ``layout`` or ``source_info`` of the sample; None if it is not set, and for other
        keys."""
        return {"layout": self._layout, "source_info": self._source_info}.get(key) or None

    def source_info(self) -> str:
        """Return the origin of the sample, such as its file name."""
        return self._source_info

    def as_cpu(self) -> Tensor:
        """Return the tensor in host memory; the tensor itself if it is already there."""
        if isinstance(self.array, np.ndarray):
            return self
        return TensorCPU(_on_host(self.array), self._layout, self._source_info)

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        return address_of(self.array)

    def copy_to_external(
        self, ptr: Any, cuda_stream: Any = None, non_blocking: bool = False, use_copy_kernel: bool = False
    ) -> None:
        """Copy the elements, packed, to memory of the same device at ``ptr`` (ctypes.c_void_p, or the address), which
        must be large enough. On a GPU, the copy runs on ``cuda_stream`` (by default the default stream), and the call
        waits for it unless ``non_blocking``. ``use_copy_kernel`` has no effect. Raises ValueError for a null
        pointer."""
        del use_copy_kernel
        copy_out(self.array, ptr, cuda_stream, non_blocking)

    def reinterpret(self, new_type: DALIDataType) -> None:
        """Interpret the same bytes as elements of ``new_type``. Raises RuntimeError if elements of that type have
        another size."""
        self.array = self.array.view(_of_same_size(self.array.dtype, new_type))

    def squeeze(self, dim: int | None = None) -> bool:
        """Remove the dimensions of length 1, or only ``dim`` if it has length 1. Return whether any was removed.

        Raises RuntimeError if there is no dimension ``dim``.
        """
        ndim = self.array.ndim
        if dim is not None and not -ndim <= dim < ndim:
            raise RuntimeError(f"there is no dimension {dim} in a tensor of {ndim} dimensions")
        candidates = range(ndim) if dim is None else [dim % ndim]
        removed = [d for d in candidates if self.array.shape[d] == 1]
        self.array = self.array.reshape([n for d, n in enumerate(self.array.shape) if d not in removed])
        self._layout = "".join(letter for d, letter in enumerate(self._layout) if d not in removed)
        return bool(removed)

    def __repr__(self) -> str:
        return _described("Tensor", isinstance(self.array, np.ndarray), self.dtype, self._layout,
                          f"shape={tuple(self.shape())}")  # fmt: skip

    def __str__(self) -> str:
        return _with_data(repr(self), str(self.as_cpu().array))

    def _repr_html_(self) -> str:
        from ..show.notebook import batch_html

        array = np.asarray(self.as_cpu().array)[None]
        return batch_html(Batch.from_dense(array, self._layout, Samples.numbered(1)), type(self).__name__)


class TensorCPU(Tensor):
    """A sample on the host. Programs can also create one from any array on the host."""

    def __init__(self, b: Any, layout: str | None = None, source_info: str = "", is_pinned: bool = False) -> None:
        """``is_pinned`` is accepted for compatibility with DALI. Raises TypeError if ``b`` is not an array on the
        host."""
        array = b if isinstance(b, np.ndarray) else as_array(b)
        if not isinstance(array, np.ndarray):
            raise TypeError("TensorCPU takes arrays on the host; this one is on a GPU: use TensorGPU")
        super().__init__(array, layout, source_info)


class TensorGPU(Tensor):
    """A sample on a GPU. Programs can also create one from CuPy arrays and similar."""

    def __init__(self, object: Any, layout: str | None = None, source_info: str = "", device_id: int = -1) -> None:
        """``device_id`` is accepted for compatibility with DALI: the array determines the GPU. Raises TypeError for an
        array on the host."""
        array = as_array(object)
        if isinstance(array, np.ndarray):
            raise TypeError("TensorGPU takes arrays on a GPU; this one is on the host: use TensorCPU")
        super().__init__(array, layout, source_info)

    def device_id(self) -> int:
        """Return the number of the GPU."""
        return int(self.array.device.id)

    @property
    def stream(self) -> int:
        """CUDA stream on which the data is complete: always the default stream, see `Pipeline.output_stream`."""
        return 0


class TensorList(ManyArrays):
    """A batch as a list of tensors, with DALI's interface. Created by pipelines."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        """The engine's batch, with flat data, offsets, shapes and samples."""
        self._is_reset = False

    def __getitem__(self, i: int) -> Tensor:
        n = len(self.batch)
        if not -n <= i < n:
            raise IndexError(f"sample {i} of a batch of {n}")
        i %= n
        origin = self.batch.samples.origin(i)
        kind = TensorCPU if self.batch.on_host else TensorGPU
        return kind(self.batch.sample(i), self.batch.layout, origin.source_info)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def at(self, i: int) -> Any:
        """Return sample ``i`` as a view: a NumPy array on the host, a CuPy array on a GPU."""
        return self[i].array

    @property
    def dtype(self) -> DALIDataType:
        """Element type of all samples."""
        return DALIDataType.NO_TYPE if self._is_reset else from_numpy(self.batch.dtype)

    def ndim(self) -> int:
        """Return the number of dimensions of every sample."""
        return self.batch.ndim

    def layout(self) -> str:
        """Return the layout of the samples."""
        return self.batch.layout

    def set_layout(self, layout: str | None) -> None:
        """Rename the dimensions of the samples; no data is moved. Raises ValueError if ``layout`` has another number of
        letters."""
        self.batch = self.batch.replace(layout=_fitting(layout, self.batch.ndim))

    def shape(self) -> list[tuple[int, ...]]:
        """Return the shape of every sample."""
        return [tuple(s) for s in self.batch.shapes.tolist()]

    def is_dense_tensor(self) -> bool:
        """Return whether all samples have one shape, as `as_tensor` requires; True for an empty batch."""
        return not len(self.batch) or self.batch.is_uniform

    def as_tensor(self) -> Tensor:
        """Return the batch as one tensor with a new first dimension for the samples. Raises ValueError if the samples'
        shapes differ."""
        return _tensor(self.batch.dense(), f"N{self.batch.layout}" if self.batch.layout else "")

    def as_reshaped_tensor(self, shape: Sequence[int]) -> Tensor:
        """Return the batch as one tensor of ``shape``, a view. Raises ValueError if the samples' shapes differ, or if
        ``shape`` has another number of elements."""
        dense = self.batch.dense()
        if math.prod(shape) != dense.size:
            raise RaggedError(f"the batch has {dense.size} elements, which do not fill the shape {list(shape)}")
        return _tensor(dense.reshape(tuple(shape)))

    def as_array(self) -> npt.NDArray[Any]:
        """Return the batch, which must be on the host, as one NumPy array. Raises ValueError if the samples' shapes
        differ."""
        if not self.batch.on_host:
            raise TypeError("as_array is for host batches; use as_cpu() first")
        array: npt.NDArray[Any] = self.batch.dense()
        return array

    def as_cpu(self) -> TensorList:
        """Return the batch in host memory; the batch itself if it is already there."""
        if self.batch.on_host:
            return self
        return TensorListCPU(self.batch.replace(data=_on_host(self.batch.data)))

    def data_ptr(self) -> int:
        """Return the address of the first sample."""
        return self.data_at(0)

    def data_at(self, i: int) -> int:
        """Return the address of sample ``i``."""
        return self[i].data_ptr()

    def copy_to_external(
        self, ptr: Any, cuda_stream: Any = None, non_blocking: bool = False, use_copy_kernel: bool = False
    ) -> None:
        """Copy the samples, packed one after the other, to an address in memory of the same device; see
        `Tensor.copy_to_external`."""
        del use_copy_kernel
        packed = self.batch.packed()
        start = int(packed.offsets[0]) if len(packed) else 0
        copy_out(packed.data[start : start + int(packed.sizes.sum())], ptr, cuda_stream, non_blocking)

    def reinterpret(self, new_type: DALIDataType) -> None:
        """Interpret the same bytes as elements of ``new_type``. Raises RuntimeError if elements of that type have
        another size."""
        self.batch = self.batch.replace(data=self.batch.data.view(_of_same_size(self.batch.dtype, new_type)))

    def reset(self) -> None:
        """Release the data: the list then has no samples, no type and no layout."""
        self.batch = Batch(
            np.empty(0, np.uint8), np.empty(0, np.int64), np.empty((0, 0), np.int32), "", Samples.numbered(0)
        )
        self._is_reset = True

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.as_cpu().batch.dense(), dtype=dtype, copy=copy)

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.batch.dense().__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self.batch.data.__dlpack_device__()

    def __repr__(self) -> str:
        shape = f"shape={self.shape()[:4]}{'...' if len(self) > 4 else ''}"
        return _described("TensorList", self.batch.on_host, self.dtype, self.batch.layout, f"num_samples={len(self)}",
                          shape)  # fmt: skip

    def __str__(self) -> str:
        host = self.as_cpu()
        dense = host.batch.is_uniform
        shown = str(host.as_array()) if dense else ",\n".join(str(host.at(i)) for i in range(min(len(host), 4)))
        return _with_data(repr(self), shown + ("" if dense or len(host) <= 4 else ",\n..."))

    def _repr_html_(self) -> str:
        from ..show.notebook import batch_html

        shown = TensorListCPU([]) if self._is_reset else self.as_cpu()
        return batch_html(shown.batch, type(self).__name__)


class TensorListCPU(TensorList):
    """A batch on the host. Programs can also create one from an array (N, ...), which is not copied, from a list of
    arrays, one per sample, or from another batch."""

    def __init__(
        self, data: Any, layout: str | None = None, is_pinned: bool = False, *, contiguous: bool = True
    ) -> None:
        """``is_pinned`` and ``contiguous`` are accepted for compatibility with DALI. Raises TypeError and
        ValueError."""
        super().__init__(_batch(data, layout))

    @staticmethod
    def broadcast(sample: Tensor, num_samples: int) -> TensorListCPU:
        """Return a batch whose samples are all ``sample``, without a copy. Raises ValueError for a negative number."""
        return TensorListCPU(_repeated(sample, num_samples))

    @staticmethod
    def from_dlpack_list(arrays: Sequence[Any], layout: str | None = None) -> TensorListCPU:
        """Return a batch of arrays that support DLPack, one per sample. Raises TypeError and ValueError."""
        return TensorListCPU(list(arrays), layout)


class TensorListGPU(TensorList):
    """A batch on a GPU. Programs can also create one from CuPy arrays and similar."""

    def __init__(self, data: Any, layout: str | None = None, device_id: int = -1, *, contiguous: bool = True) -> None:
        """``device_id`` and ``contiguous`` are accepted for compatibility with DALI. Raises TypeError and
        ValueError."""
        super().__init__(_batch(data, layout))

    @staticmethod
    def broadcast(sample: Tensor, num_samples: int) -> TensorListGPU:
        """Return a batch whose samples are all ``sample``, without a copy. Raises ValueError for a negative number."""
        return TensorListGPU(_repeated(sample, num_samples))

    @staticmethod
    def from_dlpack_list(arrays: Sequence[Any], layout: str | None = None) -> TensorListGPU:
        """Return a batch of arrays that support DLPack, one per sample. Raises TypeError and ValueError."""
        return TensorListGPU(list(arrays), layout)

    def device_id(self) -> int:
        """Return the number of the GPU."""
        return int(self.batch.data.device.id)

    @property
    def stream(self) -> int:
        """CUDA stream on which the data is complete: always the default stream, see `Pipeline.output_stream`."""
        return 0


def _batch(data: Any, layout: str | None) -> Batch:
    if isinstance(data, Batch):
        return data
    return as_batch(data, layout or "", copy=False)


def tensor_list(batch: Batch) -> TensorList:
    """Return the batch as a TensorListCPU or TensorListGPU, depending on its device."""
    return TensorListCPU(batch) if batch.on_host else TensorListGPU(batch)


def _described(kind: str, on_host: bool, dtype: DALIDataType, layout: str, *rest: str) -> str:
    """Return the text that ``repr`` shows for a tensor, in DALI's format: one line per property."""
    device_name = "CPU" if on_host else "GPU"
    lines = [
        f"dtype=DALIDataType.{dtype.name}",
        *([f'layout="{layout}"'] * bool(layout)),
        f'device="{device_name.lower()}"',
        *rest,
    ]
    return f"{kind}{device_name}(\n" + ",\n".join(f"    {line}" for line in lines) + ")"


def _with_data(described: str, data: str) -> str:
    """Return ``described``, a text from `_described`, with the elements ``data`` inserted on separate lines."""
    name, properties = described.split("(", 1)
    return f"{name}(\n{textwrap.indent(data or '[]', '    ')},{properties}"


def _tensor(array: Any, layout: str = "") -> Tensor:
    return TensorCPU(array, layout) if isinstance(array, np.ndarray) else TensorGPU(array, layout)


def _repeated(sample: Tensor, n: int) -> Batch:
    if n < 0:
        raise ValueError(f"a batch cannot have {n} samples")
    shapes = np.tile(np.array(sample.array.shape, np.int32), (n, 1)).reshape(n, sample.array.ndim)
    return Batch(sample.array.reshape(-1), np.zeros(n, np.int64), shapes, sample.layout(), Samples.numbered(n))


def _fitting(layout: str | None, ndim: int) -> str:
    if layout and len(layout) != ndim:
        raise ValueError(f"layout {str(layout)!r} names {len(layout)} dimensions, the data has {ndim}")
    return str(layout or "")


def _of_same_size(dtype: Any, new_type: DALIDataType) -> npt.DTypeLike:
    new = to_numpy(new_type)
    if new.itemsize != dtype.itemsize:
        raise RuntimeError(f"elements of {from_numpy(dtype).name} have {dtype.itemsize} bytes, of {new_type.name} "
                           f"{new.itemsize}: they cannot be read as such; cast them")  # fmt: skip
    return new


def _on_host(array: Any) -> npt.NDArray[Any]:
    with OnGpu(array.device.id):
        host_array: npt.NDArray[Any] = array.get()
    return host_array


def address_of(array: Any) -> int:
    """Return the address of the first element of a NumPy or CuPy array."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


def copy_out(array: Any, ptr: Any, cuda_stream: Any = None, non_blocking: bool = False) -> None:
    """Copy ``array``, packed, to the address ``ptr`` on its device. Raises ValueError for a null pointer."""
    to = ptr.value if isinstance(ptr, ctypes.c_void_p) else int(ptr)
    if not to:
        raise ValueError("the data cannot be copied to a null pointer")
    if isinstance(array, np.ndarray):
        packed = np.ascontiguousarray(array)
        ctypes.memmove(to, packed.ctypes.data, packed.nbytes)
        return
    import cupy

    stream = stream_number(cuda_stream)
    with OnGpu(array.device.id):
        packed = cupy.ascontiguousarray(array)
        if packed is not array:
            cupy.cuda.get_current_stream().synchronize()  # because ``stream`` does not wait for CuPy's stream
        cupy.cuda.runtime.memcpyAsync(to, packed.data.ptr, packed.nbytes, _ANY_DIRECTION, stream)
        if not non_blocking or packed is not array:  # the packed copy must stay alive until the transfer is done
            cupy.cuda.runtime.streamSynchronize(stream)


def stream_number(stream: Any) -> int:
    """Return CUDA's number (address) of a stream from types.CUDAStream, CuPy, PyTorch or ctypes; 0 for None."""
    for name in ("ptr", "cuda_stream", "value"):
        if hasattr(stream, name):
            stream = getattr(stream, name)
            break
    return int(stream or 0)
