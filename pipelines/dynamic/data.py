"""Arrays and lists of Python's as the engine's batches; batches cast, moved, cut and repeated."""

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
    """Samples 0 to ``n - 1``, made once."""
    return Samples.numbered(n)


def array_of(data: Any) -> Any:
    """``data`` as an array on the host or a GPU; of numbers and lists with DALI's types: int32, or int64 where that is
    too narrow, and float32. Raises TypeError and ValueError."""
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
    """Python's own numbers: the first one says it for all."""
    while isinstance(data, (list, tuple)):
        if not data:
            return True
        data = data[0]
    return not isinstance(data, np.generic) and not hasattr(data, "dtype")


def checked_layout(layout: str | None, ndim: int) -> str:
    """The layout, which is empty where nobody said. Raises ValueError where it does not fit."""
    if layout and len(layout) != ndim:
        raise ArgumentValueError(f"the layout {layout!r} names {len(layout)} dimensions, the tensor has {ndim}")
    return layout or ""


def cast(data: Data, dtype: DALIDataType) -> Data:
    """As operator `cast` does it."""
    plan = calls.plan_for(Cast, 1, None, not data.on_host, (("dtype", DALIDataType, dtype),), ())
    return calls.run(plan, [data], {}, data.samples, None, EvalContext.current())[0]


def moved_to(data: Data, place: Device) -> Data:
    """A copy on ``place``, finished when this returns. Raises DeviceError."""
    data = _cut(data)
    if place.on_host:
        return data.replace(data=data.data.copy() if data.on_host else data.data.get())
    lane = EvalContext.current().lane(place.device_id)
    with lane:
        moved = lane.to_device(data) if data.on_host else data.replace(data=data.data.copy())
    lane.synchronize()
    return moved


def copied(data: Data) -> Data:
    """A copy where the data is, finished when this returns."""
    data = _cut(data)
    return data.replace(data=data.data.copy() if data.on_host else settled(data.data, copy=True))


def _cut(data: Data) -> Data:
    """The same without what lies before and after its samples: a sample of a large batch is not all of it."""
    if len(data) == 0:
        return data
    low, high = int(data.offsets.min()), int((data.offsets + data.sizes).max())
    return data.replace(data=data.data[low:high], offsets=data.offsets - low)


def device_of(value: Any) -> Device | None:
    """A device of what programs give for one."""
    found: Device | None = device(value)
    return found


def sample_of(data: Data, i: int) -> Data:
    """Sample ``i`` as a batch of one, not copied."""
    s = data.samples
    at = slice(i, i + 1)
    own = Samples(ONE.slot, s.position[at], s.epoch[at], s.index[at], s.origins)
    return Data(data.data, data.offsets[at], data.shapes[at], data.layout, own)


def repeated(data: Data, n: int) -> Data:
    """One sample ``n`` times, not copied."""
    s = data.samples
    where = np.zeros(n, np.int64)
    own = numbered(n)
    if s is not ONE:
        own = Samples(own.slot, s.position[where], s.epoch[where], s.index[where], s.origins)
    return Data(data.data, data.offsets[where], data.shapes[where], data.layout, own)


def shares_memory(a: Any, b: Any) -> bool:
    """Whether two arrays of one device overlap."""
    if isinstance(a, np.ndarray):
        return np.may_share_memory(a, b)
    begin = int(b.data.ptr)
    return begin <= int(a.data.ptr) < begin + int(b.nbytes)


def to_torch(array: Any, copy: bool) -> Any:
    """PyTorch's tensor of an array, without a copy where it may be written to. Raises ImportError without PyTorch."""
    try:
        from ..python.torch_views import from_array
    except ImportError:
        raise ImportError("torch() gives tensors of PyTorch's, which is not installed: pip install torch") from None
    made = from_array(array, complete=False)  # several samples may just have been packed into it
    return made.clone() if copy else made


def finished(data: Data, dtype: Any, device: Any) -> Data:
    """The data on the device and of the type that were asked for."""
    if dtype is not None:
        wanted = type_id(dtype)
        if from_numpy(data.dtype) != wanted:
            data = cast(data, wanted)
    if device is not None:
        place = device_of(device)
        assert place is not None
        here = Device.CPU if data.on_host else Device("gpu", int(data.data.device.id))
        data = data if place == here else moved_to(data, place)
    return data
