"""Conversion of Python's arrays and lists to the engine's batches, and of batches: cast, moved, cut and repeated. Used
by `values`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ...ops.arrays.cast import Cast
from ...ops.batch import Batch as Data
from ...ops.batch import Samples
from ...ops.errors import ArgumentValueError
from ...ops.types import DALIDataType, from_numpy, to_numpy
from ..python.arrays import as_array, settled
from ..python.data_node import ScalarConstant
from . import calls
from .contexts import EvalContext
from .devices import Device, device
from .dtypes import type_id

ONE = Samples.numbered(1)
AT_0 = np.zeros(1, np.int64)


@lru_cache(64)
def numbered(n: int) -> Samples:
    """Return Samples numbered 0 to ``n - 1``; the results are cached by ``n``."""
    return Samples.numbered(n)


def array_of(data: Any) -> Any:
    """Return ``data`` as an array on the host or a GPU. Numbers and lists get DALI's types: float32 for floats; for
    integers int32, or int64 if that is too narrow. Raises TypeError and ValueError."""
    if isinstance(data, np.ndarray):
        return as_array(data)
    if isinstance(data, ScalarConstant):
        data = np.asarray(data.value, to_numpy(data.dtype))
    if isinstance(data, (bool, int, float, list, tuple)):
        array = np.asarray(data)
        if array.dtype == np.float64:
            return array.astype(np.float32)
        if array.dtype == np.int64 and _is_plain(data):
            fits = array.size == 0 or (array.min() >= -(2**31) and array.max() < 2**31)
            return array.astype(np.int32) if fits else array
        return as_array(array)
    return as_array(data)


def _is_plain(data: Any) -> bool:
    """Return whether ``data`` is a Python number or nested lists of them. Only the first element is checked."""
    while isinstance(data, (list, tuple)):
        if not data:
            return True
        data = data[0]
    return not isinstance(data, np.generic) and not hasattr(data, "dtype")


def checked_layout(layout: str | None, ndim: int) -> str:
    """Return ``layout``, or "" for None. Raises ValueError unless it has one letter for each of the ``ndim``
    dimensions."""
    if layout and len(layout) != ndim:
        raise ArgumentValueError(f"the layout {layout!r} names {len(layout)} dimensions, the tensor has {ndim}")
    return layout or ""


def cast(data: Data, dtype: DALIDataType) -> Data:
    """Return the batch with its elements converted to ``dtype``."""
    plan = calls.plan_for(Cast, 1, None, not data.on_host, (("dtype", DALIDataType, dtype),), ())
    return calls.run(plan, [data], {}, data.samples, None, EvalContext.current())[0]


def moved_to(data: Data, place: Device) -> Data:
    """Return a copy of the batch on the device ``place``; the copy is complete on return. Raises DeviceError."""
    data = _cut(data)
    if place.on_host:
        return data.replace(data=data.data.copy() if data.on_host else data.data.get())
    lane = EvalContext.current().lane(place.device_id)
    with lane:
        moved = lane.to_device(data) if data.on_host else data.replace(data=data.data.copy())
    lane.synchronize()
    return moved


def copied(data: Data) -> Data:
    """Return a copy of the batch on the same device; the copy is complete on return."""
    data = _cut(data)
    return data.replace(data=data.data.copy() if data.on_host else settled(data.data, copy=True))


def _cut(data: Data) -> Data:
    """Return a view of the batch without the bytes of other samples in its array. Otherwise, copying one sample of a
    large batch would copy all of the batch."""
    if len(data) == 0:
        return data
    low, high = int(data.offsets.min()), int((data.offsets + data.sizes).max())
    return data.replace(data=data.data[low:high], offsets=data.offsets - low)


def device_of(value: Any) -> Device | None:
    """Return ``value``, which is a Device or a device's name, as a Device; None stays None."""
    result: Device | None = device(value)
    return result


def sample_of(data: Data, i: int) -> Data:
    """Return sample ``i`` of the batch as a batch of one sample, without a copy."""
    s = data.samples
    at = slice(i, i + 1)
    own = Samples(ONE.slot, s.position[at], s.epoch[at], s.index[at], s.origins)
    return Data(data.data, data.offsets[at], data.shapes[at], data.layout, own)


def repeated(data: Data, n: int) -> Data:
    """Return a batch of ``n`` samples that all are views of the only sample of ``data``."""
    s = data.samples
    zeros = np.zeros(n, np.int64)
    own = numbered(n)
    if s is not ONE:
        own = Samples(own.slot, s.position[zeros], s.epoch[zeros], s.index[zeros], s.origins)
    return Data(data.data, data.offsets[zeros], data.shapes[zeros], data.layout, own)


def shares_memory(a: Any, b: Any) -> bool:
    """Return whether two arrays on the same device overlap in memory."""
    if isinstance(a, np.ndarray):
        return np.may_share_memory(a, b)
    begin = int(b.data.ptr)
    return begin <= int(a.data.ptr) < begin + int(b.nbytes)


def to_torch(array: Any, copy: bool) -> Any:
    """Return an array as a PyTorch tensor. Without ``copy`` they share memory if the array is writable. Raises
    ImportError without PyTorch."""
    try:
        from ..python.torch_views import from_array
    except ImportError:
        raise ImportError("torch() gives tensors of PyTorch's, which is not installed: pip install torch") from None
    tensor = from_array(array, complete=False)  # several samples may just have been packed into it on this stream
    return tensor.clone() if copy else tensor


def finished(data: Data, dtype: Any, device: Any) -> Data:
    """Return the batch converted to ``dtype`` and moved to ``device``; None leaves the type or the device unchanged."""
    if dtype is not None:
        requested = type_id(dtype)
        if from_numpy(data.dtype) != requested:
            data = cast(data, requested)
    if device is not None:
        place = device_of(device)
        assert place is not None
        current = Device.CPU if data.on_host else Device("gpu", int(data.data.device.id))
        data = data if place == current else moved_to(data, place)
    return data
