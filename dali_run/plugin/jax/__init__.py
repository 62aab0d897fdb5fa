"""Iterators that yield JAX arrays, also from one pipeline per device of a sharding."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

import numpy as np

from .. import missing

try:
    import jax
except ModuleNotFoundError:
    raise missing("JAX", "jax", "'dali-run[jax]'") from None

from ...pipelines.python.arrays import lent
from ...pipelines.python.iterators import BaseIterator, IteratorArgumentError, LastBatchPolicy, checked_output_map
from ...pipelines.python.pipeline import Pipeline
from ...pipelines.python.pipeline_def import pipeline_def
from ...pipelines.python.tensors import TensorList
from . import fn

__all__ = [
    "DALIGenericIterator",
    "LastBatchPolicy",
    "data_iterator",
    "fn",
    "peekable_data_iterator",
]

_returned: deque[Any] = deque()
"""GPU arrays that no JAX array views any more, and that are not in ``_waiting`` yet."""
_waiting: list[tuple[Any, list[Any]]] = []
"""Pairs (marker, GPU arrays): kernels in JAX's queue may read the arrays until the marker, which JAX computes after
those kernels, is ready."""
_sorting = threading.Lock()


class _Guard:
    """Owner of a GPU array that a JAX array views.

    JAX deletes it when the program drops the JAX array. Kernels that read the array may still be queued then, and JAX
    must not be called from ``__del__``; so the array goes to ``_returned``, and `_give_back` frees it later.
    """

    def __init__(self, array: Any) -> None:
        self._array = array

    def __del__(self) -> None:
        if not sys.is_finalizing():
            _returned.append(self._array)


def _give_back() -> None:
    """Free the arrays that JAX no longer reads; the pool gets their memory back.

    A device computes in order. So a marker that is queued now becomes ready after every kernel that read the arrays in
    ``_returned``.
    """
    if not _returned and not _waiting:
        return
    with _sorting:
        by_device: dict[int, list[Any]] = {}
        while _returned:
            array = _returned.popleft()
            by_device.setdefault(array.device.id, []).append(array)
        _waiting[:] = [w for w in _waiting if not w[0].is_ready()]
        for index, arrays in by_device.items():
            _waiting.append((_mark(_nothing(index)), arrays))


@functools.cache
def _nothing(index: int) -> Any:
    """Return a JAX number on GPU ``index`` of this process."""
    device = next(d for d in jax.local_devices(backend="gpu") if d.local_hardware_id == index)
    return jax.device_put(np.zeros((), np.int32), device)


@jax.jit
def _mark(x: Any) -> Any:
    return x + 1


class DALIGenericIterator(BaseIterator):
    """Iterator that yields a dict for each batch: output name -> JAX array (N, ...).

    With a sharding it has one pipeline per device of the sharding. The array of an output then consists of the batches
    of all pipelines, one after the other along the first axis, each on its device.
    """

    def __init__(
        self,
        pipelines: Pipeline | Sequence[Pipeline],
        output_map: Sequence[str] | None = None,
        size: int = -1,
        reader_name: str | None = None,
        auto_reset: bool | str | None = False,
        last_batch_padded: bool = False,
        last_batch_policy: LastBatchPolicy = LastBatchPolicy.FILL,
        prepare_first_batch: bool = True,
        sharding: Any = None,
        pmap_compatible: bool | None = None,
        devices: Sequence[Any] | None = None,
    ) -> None:
        """``devices`` are the devices for the batches of the pipelines, one per pipeline; with ``sharding`` its devices
        are used.

        Without a sharding, the batches of several pipelines get a new first axis, which is spread over the devices (for
        ``jax.pmap``). With ``pmap_compatible`` True the batch of a single pipeline gets that axis, too; the default is
        True if ``devices`` are given. Raises ValueError.
        """
        if last_batch_policy is LastBatchPolicy.PARTIAL:
            raise IteratorArgumentError("LastBatchPolicy.PARTIAL would yield arrays of other shapes, for which JAX "
                                        "compiles again; use FILL with pad_last_batch, or DROP")  # fmt: skip
        super().__init__(pipelines, size, reader_name, auto_reset, None, last_batch_padded, last_batch_policy,
                         prepare_first_batch)  # fmt: skip
        self.output_map = checked_output_map(output_map, self.pipelines)
        self._sharding = sharding
        self._devices = list(devices) if devices is not None else None
        if sharding is not None:
            self._devices = _devices_of(sharding)
        if self._devices is not None and len(self._devices) != len(self.pipelines):
            raise ValueError(f"there are {len(self.pipelines)} pipelines for {len(self._devices)} devices")
        rows = devices is not None if pmap_compatible is None else pmap_compatible
        self._rows = sharding is None and (rows or len(self.pipelines) > 1)

    def __next__(self) -> dict[str, jax.Array]:
        batches = self.next_outputs()
        columns = zip(*batches, strict=True)
        return {name: self._array(list(parts)) for name, parts in zip(self.output_map, columns, strict=True)}

    def _array(self, parts: list[TensorList]) -> Any:
        arrays = [_to_jax(p) for p in parts]
        if self._devices is not None:
            arrays = [jax.device_put(a, d) for a, d in zip(arrays, self._devices, strict=True)]
        if self._sharding is None:
            return _stacked(arrays) if self._rows else arrays[0]
        shape = (sum(a.shape[0] for a in arrays), *arrays[0].shape[1:])
        return jax.make_array_from_single_device_arrays(shape, self._sharding, arrays)


class DALIPeekableIterator(DALIGenericIterator):
    """DALIGenericIterator that can also return its next batch without advancing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._ahead: Any = None
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._spec: Mapping[str, Any] | None = None

    def __next__(self) -> Any:
        with self._lock:
            return self._take()

    def _take(self) -> Any:
        if self._ahead is not None:
            batch, self._ahead = self._ahead, None
            return batch
        return super().__next__()

    def __iter__(self) -> Self:
        return self if self._ahead is not None else super().__iter__()

    def checkpoints(self) -> list[bytes]:
        """Return the checkpoints, as DALIGenericIterator does. Raises RuntimeError after `peek`, until the program
        takes that batch."""
        if self._ahead is not None:
            raise RuntimeError(
                "peek() returned a batch that next() has not returned yet: call next() before saving a checkpoint"
            )
        return super().checkpoints()

    def peek(self) -> Any:
        """Return the next batch without advancing; the next call of next() returns it again."""
        with self._lock:
            if self._ahead is None:
                self._ahead = super().__next__()
            return self._ahead

    def peek_async(self) -> Future[Any]:
        """Call `peek` in another thread and return its Future."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="peek")
        return self._pool.submit(self.peek)

    @property
    def element_spec(self) -> Mapping[str, Any]:
        """Return the shape and type of every output of a batch."""
        if self._spec is None:
            self._spec = {k: jax.ShapeDtypeStruct(v.shape, v.dtype) for k, v in self.peek().items()}
        return self._spec


def _to_jax(outputs: TensorList) -> Any:
    """Return a view of the batch as a JAX array, on the batch's device; see `as_jax`."""
    return as_jax(outputs.batch.dense())


def as_jax(dense: Any) -> Any:
    """Return a packed array as a JAX array on the same device.

    The result is a view, or a copy if JAX cannot use the memory: memory that is mapped from a file, or not aligned as
    JAX needs it.
    """
    if isinstance(dense, np.ndarray) and not dense.flags.writeable:
        return jax.numpy.array(dense)
    if isinstance(dense, np.ndarray) or dense.size == 0:
        return jax.dlpack.from_dlpack(dense)
    _give_back()
    return jax.dlpack.from_dlpack(lent(dense, _Guard(dense)))


def _stacked(arrays: list[Any]) -> Any:
    """Return one array (pipelines, N, ...), as jax.pmap takes it, with each row on the device of its pipeline.

    Raises ValueError if some arrays share a device and others do not.
    """
    devices = [next(iter(a.devices())) for a in arrays]
    if len(set(devices)) < len(devices):
        if len(set(devices)) > 1:
            raise ValueError(f"the batches of {len(arrays)} pipelines are on {len(set(devices))} devices: use one "
                             "device, or one device per pipeline")  # fmt: skip
        return jax.numpy.stack(arrays)
    mesh = jax.sharding.Mesh(np.array(devices), ("device",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("device"))
    rows = [a[None] for a in arrays]
    return jax.make_array_from_single_device_arrays((len(rows), *arrays[0].shape), sharding, rows)


def _devices_of(sharding: Any) -> list[Any]:
    """Return the devices of this process, in the order of the pieces along the first axis."""
    if hasattr(sharding, "mesh"):
        devices = sharding.mesh.devices.reshape(-1).tolist()
    else:
        devices = list(getattr(sharding, "_devices", sharding.addressable_devices))
    own = {d.id for d in jax.local_devices()}
    return [d for d in np.array(devices, dtype=object).reshape(-1).tolist() if d.id in own]


def data_iterator(
    pipeline_fn: Callable[..., Any] | None = None,
    output_map: Sequence[str] | None = None,
    size: int = -1,
    reader_name: str | None = None,
    auto_reset: bool | str | None = False,
    last_batch_padded: bool = False,
    last_batch_policy: LastBatchPolicy = LastBatchPolicy.FILL,
    prepare_first_batch: bool = True,
    sharding: Any = None,
    devices: Sequence[Any] | None = None,
    pmap_compatible: bool | None = None,
) -> Any:
    """Turn a pipeline function into a function that creates iterators. Use it as a decorator with arguments, or call
    it.

    The resulting function takes the arguments of ``pipeline_fn`` and of Pipeline. By default, ``num_threads`` is 4 and
    ``device_id`` is the first GPU that JAX uses, if it uses any. With ``sharding`` or ``devices`` the function creates
    a pipeline for each device and passes ``num_shards`` and ``shard_id`` to ``pipeline_fn``; ``batch_size`` is then the
    total of all devices. ``pmap_compatible`` is an argument of DALIGenericIterator.
    """
    return _decorated(DALIGenericIterator, **locals())


def peekable_data_iterator(
    pipeline_fn: Callable[..., Any] | None = None,
    output_map: Sequence[str] | None = None,
    size: int = -1,
    reader_name: str | None = None,
    auto_reset: bool | str | None = False,
    last_batch_padded: bool = False,
    last_batch_policy: LastBatchPolicy = LastBatchPolicy.FILL,
    prepare_first_batch: bool = True,
    sharding: Any = None,
    devices: Sequence[Any] | None = None,
    pmap_compatible: bool | None = None,
) -> Any:
    """Turn a pipeline function into a function that creates iterators, like `data_iterator`; these iterators also have
    `peek`, `peek_async` and `element_spec`."""
    return _decorated(DALIPeekableIterator, **locals())


def _decorated(
    cls: type[DALIGenericIterator],
    pipeline_fn: Callable[..., Any] | None,
    sharding: Any,
    devices: Any,
    **arguments: Any,
) -> Any:
    if sharding is not None and devices is not None:
        raise ValueError("give sharding or devices, not both")

    def decorate(function: Callable[..., Any]) -> Callable[..., DALIGenericIterator]:
        factory = function if getattr(function, "_is_pipeline_def", False) else pipeline_def(function)

        @functools.wraps(function)
        def create(*args: Any, checkpoints: Sequence[bytes] | None = None, **kwargs: Any) -> DALIGenericIterator:
            kwargs = {"num_threads": 4, **getattr(factory, "pipeline_defaults", {}), **kwargs}
            own = _devices_of(sharding) if sharding is not None else list(devices) if devices is not None else None
            if own is None:
                if checkpoints is not None:
                    kwargs["checkpoint"] = checkpoints[0]
                return cls(factory(*args, **{"device_id": _first_gpu(), **kwargs}), **arguments)
            if checkpoints is not None and len(checkpoints) != len(own):
                raise ValueError(f"there are {len(checkpoints)} checkpoints for the {len(own)} devices")
            pipelines = _pipelines(factory, function, own, sharding, args, kwargs, checkpoints)
            return cls(pipelines, sharding=sharding, devices=devices, **arguments)

        return create

    return decorate if pipeline_fn is None else decorate(pipeline_fn)


def _first_gpu() -> int | None:
    """Return the GPU on which JAX puts arrays by default, or None if JAX has no GPU."""
    first = jax.local_devices()[0]
    return int(first.local_hardware_id) if first.platform == "gpu" else None


def _pipelines(
    factory: Callable[..., Pipeline], function: Callable[..., Any], devices: Sequence[Any], sharding: Any,
    args: Sequence[Any], kwargs: dict[str, Any], checkpoints: Sequence[bytes] | None,
) -> list[Pipeline]:  # fmt: skip
    """Return one new pipeline for each device of this process."""
    parameters = inspect.signature(function).parameters
    missing = {"num_shards", "shard_id"} - set(parameters)
    if missing:
        raise ValueError(f"{getattr(function, '__name__', 'the pipeline function')} needs the arguments num_shards and "
                         "shard_id, and must pass them to its reader")  # fmt: skip
    total = kwargs.pop("batch_size", None)
    all_devices = sharding.num_devices if sharding is not None else len(devices) * jax.process_count()
    if total is None or total % all_devices:
        raise ValueError(f"batch_size must be a multiple of the number of devices, {all_devices}, got {total}")
    first = jax.process_index() * len(devices)
    pipelines = []
    for k, device in enumerate(devices):
        own: dict[str, Any] = (
            {"device_id": device.local_hardware_id} if device.platform == "gpu" else {"device_id": None}
        )
        if checkpoints is not None:
            own["checkpoint"] = checkpoints[k]
        shard = {"num_shards": all_devices, "shard_id": first + k}
        pipelines.append(factory(*args, batch_size=total // all_devices, **{**kwargs, **shard, **own}))
    return pipelines
