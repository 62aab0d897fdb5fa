"""Iterators that give JAX arrays, and pipelines spread over the devices of a sharding."""

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
"""GPU arrays that no JAX array views any more."""
_waiting: list[tuple[Any, list[Any]]] = []
"""Those that kernels in JAX's queue may still read, with a result that comes after them."""
_sorting = threading.Lock()


class _Guard:
    """Owner of a GPU array that a JAX array views. JAX lets go of it when the program does, although kernels that read
    it may still be queued, and must not be called from here: `_give_back` sees to the rest."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __del__(self) -> None:
        if not sys.is_finalizing():
            _returned.append(self._array)


def _give_back() -> None:
    """Let the pool have the memory that JAX is done with: a device computes in order, so that what is queued now ends
    after every kernel that read the arrays that were returned before."""
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
    """A number on GPU ``index`` of this process."""
    device = next(d for d in jax.local_devices(backend="gpu") if d.local_hardware_id == index)
    return jax.device_put(np.zeros((), np.int32), device)


@jax.jit
def _mark(x: Any) -> Any:
    return x + 1


class DALIGenericIterator(BaseIterator):
    """Gives a dict: output name -> array (N, ...).

    With a sharding there is one pipeline for each of its devices, and an array is the pipelines' batches one after the
    other along the first axis, each on its device.
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
        """``devices`` are those that hold each pipeline's batch; with ``sharding``, its own.

        Without a sharding, batches of several pipelines get a new first axis, which is spread over the devices
        (``jax.pmap``'s). ``pmap_compatible`` is what gives the batch of a single pipeline that axis, too; by default
        ``devices`` do. Raises ValueError.
        """
        if last_batch_policy is LastBatchPolicy.PARTIAL:
            raise IteratorArgumentError("LastBatchPolicy.PARTIAL would give arrays of other shapes, for which JAX "
                                        "compiles anew; use FILL with pad_last_batch, or DROP")  # fmt: skip
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
    """DALIGenericIterator that shows its next batch without moving on."""

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
        """As of DALIGenericIterator. Raises RuntimeError while a batch is peeked at that was not taken."""
        if self._ahead is not None:
            raise RuntimeError("a batch was peeked at: take it with next() before saving a checkpoint")
        return super().checkpoints()

    def peek(self) -> Any:
        """The next batch, which stays the next."""
        with self._lock:
            if self._ahead is None:
                self._ahead = super().__next__()
            return self._ahead

    def peek_async(self) -> Future[Any]:
        """`peek` in another thread, as a Future."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="peek")
        return self._pool.submit(self.peek)

    @property
    def element_spec(self) -> Mapping[str, Any]:
        """Shape and type of every output of a batch."""
        if self._spec is None:
            self._spec = {k: jax.ShapeDtypeStruct(v.shape, v.dtype) for k, v in self.peek().items()}
        return self._spec


def _to_jax(outputs: TensorList) -> Any:
    """A view of the batch, on the device and on the host; see `as_jax`."""
    return as_jax(outputs.batch.dense())


def as_jax(dense: Any) -> Any:
    """Return a packed array as JAX's, on its device: a view, or a copy of memory that cannot be lent (mapped from a
    file, or not aligned as JAX needs it)."""
    if isinstance(dense, np.ndarray) and not dense.flags.writeable:
        return jax.numpy.array(dense)
    if isinstance(dense, np.ndarray) or dense.size == 0:
        return jax.dlpack.from_dlpack(dense)
    _give_back()
    return jax.dlpack.from_dlpack(lent(dense, _Guard(dense)))


def _stacked(arrays: list[Any]) -> Any:
    """One array (pipelines, N, ...), a row on the device of each: what jax.pmap takes. Raises ValueError where some
    arrays share a device and others do not."""
    devices = [next(iter(a.devices())) for a in arrays]
    if len(set(devices)) < len(devices):
        if len(set(devices)) > 1:
            raise ValueError(f"batches of {len(arrays)} pipelines are on {len(set(devices))} devices: put them on one, "
                             "or each on its own")  # fmt: skip
        return jax.numpy.stack(arrays)
    mesh = jax.sharding.Mesh(np.array(devices), ("device",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("device"))
    rows = [a[None] for a in arrays]
    return jax.make_array_from_single_device_arrays((len(rows), *arrays[0].shape), sharding, rows)


def _devices_of(sharding: Any) -> list[Any]:
    """The devices of this process in the order of the pieces of the first axis."""
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
    """Turn a pipeline function into a function that makes iterators; used as decorator with arguments, or called.

    The function that comes out takes the arguments of ``pipeline_fn`` and of Pipeline. Unless given, ``num_threads``
    is 4 and ``device_id`` the GPU that JAX uses first, if it uses any. With ``sharding`` or ``devices`` it makes a
    pipeline for each device, and gives ``pipeline_fn`` the arguments ``num_shards`` and ``shard_id``; the batch size is
    then that of all devices together. ``pmap_compatible`` is DALIGenericIterator's.
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
    """As `data_iterator`; the iterators have `peek`, `peek_async` and `element_spec`."""
    return _decorated(DALIPeekableIterator, **locals())


def _decorated(
    cls: type[DALIGenericIterator],
    pipeline_fn: Callable[..., Any] | None,
    sharding: Any,
    devices: Any,
    **arguments: Any,
) -> Any:
    if sharding is not None and devices is not None:
        raise ValueError("give either sharding or devices")

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
            made = _pipelines(factory, function, own, sharding, args, kwargs, checkpoints)
            return cls(made, sharding=sharding, devices=devices, **arguments)

        return create

    return decorate if pipeline_fn is None else decorate(pipeline_fn)


def _first_gpu() -> int | None:
    """The GPU on which JAX puts what it is not told to put elsewhere; None where it has none."""
    first = jax.local_devices()[0]
    return int(first.local_hardware_id) if first.platform == "gpu" else None


def _pipelines(
    factory: Callable[..., Pipeline], function: Callable[..., Any], devices: Sequence[Any], sharding: Any,
    args: Sequence[Any], kwargs: dict[str, Any], checkpoints: Sequence[bytes] | None,
) -> list[Pipeline]:  # fmt: skip
    """One pipeline for each device of this process."""
    parameters = inspect.signature(function).parameters
    missing = {"num_shards", "shard_id"} - set(parameters)
    if missing:
        raise ValueError(f"{getattr(function, '__name__', 'the pipeline function')} needs arguments num_shards and "
                         "shard_id, to be handed on to its reader")  # fmt: skip
    total = kwargs.pop("batch_size", None)
    everybody = sharding.num_devices if sharding is not None else len(devices) * jax.process_count()
    if total is None or total % everybody:
        raise ValueError(f"batch_size must be a multiple of the {everybody} devices, got {total}")
    first = jax.process_index() * len(devices)
    made = []
    for k, device in enumerate(devices):
        own: dict[str, Any] = (
            {"device_id": device.local_hardware_id} if device.platform == "gpu" else {"device_id": None}
        )
        if checkpoints is not None:
            own["checkpoint"] = checkpoints[k]
        shard = {"num_shards": everybody, "shard_id": first + k}
        made.append(factory(*args, batch_size=total // everybody, **{**kwargs, **shard, **own}))
    return made
