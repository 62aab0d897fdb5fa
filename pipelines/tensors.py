"""TensorList and Tensor: what `Pipeline.run` returns. Thin views of a Batch with DALI's names; nothing is copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ops.batch import Batch
from ..ops.types import DALIDataType, from_numpy


class Tensor:
    """One sample. NumPy (`__array_interface__`), CuPy (`__cuda_array_interface__`) and DLPack see it without a copy."""

    def __init__(self, array: Any, layout: str = "", source_info: str = "") -> None:
        self.array = array
        self._layout = layout
        self._source_info = source_info

    @property
    def dtype(self) -> DALIDataType:
        """Element type."""
        return from_numpy(self.array.dtype)

    def shape(self) -> list[int]:
        """Extents."""
        return [int(d) for d in self.array.shape]

    def ndim(self) -> int:
        """Number of dimensions."""
        return int(self.array.ndim)

    def layout(self) -> str:
        """Layout, for example ``HWC``."""
        return self._layout

    def get_property(self, key: str) -> str:
        """``layout`` or ``source_info``. Raises KeyError for others."""
        return {"layout": self._layout, "source_info": self._source_info}[key]

    def source_info(self) -> str:
        """Where the sample came from."""
        return self._source_info

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        host = self.array if isinstance(self.array, np.ndarray) else self.array.get()
        return np.array(host, dtype=dtype, copy=copy)

    def __getattr__(self, name: str) -> Any:
        if name in ("__array_interface__", "__cuda_array_interface__"):
            return getattr(self.array, name)
        raise AttributeError(name)

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()

    def as_cpu(self) -> Tensor:
        """The same on the host; itself where it is there."""
        if isinstance(self.array, np.ndarray):
            return self
        return Tensor(self.array.get(), self._layout, self._source_info)

    def data_ptr(self) -> int:
        """Address of the first element."""
        if isinstance(self.array, np.ndarray):
            return int(self.array.ctypes.data)
        return int(self.array.data.ptr)

    def squeeze(self, dim: int | None = None) -> Tensor:
        """The tensor without extents of 1 (only ``dim``, if given)."""
        return Tensor(self.array.squeeze(dim), "", self._source_info)

    def __repr__(self) -> str:
        where = "CPU" if isinstance(self.array, np.ndarray) else "GPU"
        return f"Tensor{where}({self.array!r}, dtype={self.dtype.name}, layout={self._layout!r}, shape={self.shape()})"


class TensorList:
    """A batch as DALI shows it."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        """The batch itself: flat data, offsets, shapes, samples."""

    def __len__(self) -> int:
        return len(self.batch)

    def __getitem__(self, i: int) -> Tensor:
        n = len(self.batch)
        if not -n <= i < n:
            raise IndexError(f"sample {i} of a batch of {n}")
        i %= n
        origin = self.batch.samples.origin(i)
        return Tensor(self.batch.sample(i), self.batch.layout, origin.source or origin.key)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def at(self, i: int) -> Any:
        """Sample ``i`` as an array (NumPy on the host, CuPy on a device), a view."""
        return self[i].array

    @property
    def dtype(self) -> DALIDataType:
        """Element type of all samples."""
        return from_numpy(self.batch.dtype)

    def ndim(self) -> int:
        """Dimensions of every sample."""
        return self.batch.ndim

    def layout(self) -> str:
        """Layout of the samples."""
        return self.batch.layout

    def shape(self) -> list[tuple[int, ...]]:
        """Shape of every sample."""
        return [tuple(s) for s in self.batch.shapes.tolist()]

    def is_dense_tensor(self) -> bool:
        """All samples have one shape and lie one after the other."""
        return self.batch.is_uniform and self.batch.is_packed

    def as_tensor(self) -> Tensor:
        """The batch as one tensor with the samples along a new first dimension. Raises ValueError if it is ragged."""
        return Tensor(self.batch.dense(), f"N{self.batch.layout}" if self.batch.layout else "")

    def as_reshaped_tensor(self, shape: Sequence[int]) -> Tensor:
        """The batch as one tensor of ``shape``, a view. Raises ValueError if it is ragged, or of other size."""
        return Tensor(self.batch.dense().reshape(tuple(shape)))

    def as_array(self) -> npt.NDArray[Any]:
        """The batch as one NumPy array (host batches). Raises ValueError if it is ragged."""
        if not self.batch.on_host:
            raise TypeError("as_array is for host batches; use as_cpu() first")
        array: npt.NDArray[Any] = self.batch.dense()
        return array

    def as_cpu(self) -> TensorList:
        """The same on the host; itself where it is there."""
        if self.batch.on_host:
            return self
        return TensorList(self.batch.replace(data=self.batch.data.get()))

    def data_ptr(self) -> int:
        """Address of the first sample."""
        return self.data_at(0)

    def data_at(self, i: int) -> int:
        """Address of sample ``i``."""
        return self[i].data_ptr()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.as_cpu().batch.dense(), dtype=dtype, copy=copy)

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.batch.dense().__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self.batch.data.__dlpack_device__()

    def __repr__(self) -> str:
        where = "CPU" if self.batch.on_host else "GPU"
        return (f"TensorList{where}(dtype={self.dtype.name}, layout={self.batch.layout!r}, num_samples={len(self)}, "
                f"shape={self.shape()[:4]}{'...' if len(self) > 4 else ''})")  # fmt: skip


class TensorListCPU(TensorList):
    """A batch on the host, also of one's own: from an array (N, ...) or a list of arrays, one a sample."""

    def __init__(self, data: Any, layout: str = "") -> None:
        from .arrays import as_batch

        super().__init__(data if isinstance(data, Batch) else as_batch(data, layout))


class TensorListGPU(TensorList):
    """A batch on a GPU, also of one's own: from CuPy arrays and their like."""

    def __init__(self, data: Any, layout: str = "") -> None:
        from .arrays import as_batch

        super().__init__(data if isinstance(data, Batch) else as_batch(data, layout))


def tensor_list(batch: Batch) -> TensorList:
    """The batch as the class that says where it is."""
    return TensorListCPU(batch) if batch.on_host else TensorListGPU(batch)
