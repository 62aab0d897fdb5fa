"""Tensor and Batch, the values of the dynamic mode, and calls of operators on them, at once or deferred."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np

from ...ops.arrays.pad import Pad
from ...ops.base import Operator, parameters
from ...ops.batch import Batch as Data
from ...ops.errors import ArgumentTypeError, ArgumentValueError, DaliRunError, RaggedError, SpecError
from ...ops.formulas.arithmetic import Expr
from ...ops.types import DALIDataType, DALIImageType, DALIInterpType, from_numpy, to_numpy
from ..graph.arguments import tensor_of
from ..python import indexing
from ..python.arithmetic import Arithmetic
from ..python.arrays import ReadableArray, as_array, settled
from ..python.data_node import ScalarConstant, literal
from ..python.tensors import Tensor as PipelineTensor
from ..python.tensors import TensorList
from . import calls
from .contexts import EvalContext, EvalMode
from .data import (
    AT_0,
    ONE,
    array_of,
    cast,
    checked_layout,
    copied,
    device_of,
    finished,
    moved_to,
    numbered,
    repeated,
    sample_of,
    shares_memory,
    to_torch,
)
from .devices import Device
from .dtypes import DType, of_numpy, type_id
from .rng import RNG, get_default_rng


class Value(Arithmetic[Any]):
    """Base class of tensors and batches: a batch of the engine, which may not be computed yet, with arithmetic."""

    __slots__ = ("__weakref__", "_data", "_later", "invariant", "trace")

    _data: Data | None
    _later: tuple[calls.DeferredCall, int] | None
    trace: Any
    """Origin of a value in a captured loop: (its `capture.LoopIteration`, its key, whether it equals the value in the
    pipeline). None for other values."""
    invariant: bool
    """Whether the program promised, by `capture.invariant`, that the value never changes in a captured loop."""

    @property
    def data(self) -> Data:
        """The data as a batch of the engine, for the program to read. A deferred value is computed now."""
        if self.trace is not None:
            self.trace[0].note_read(self.trace[1])
        return self.computed_data()

    def computed_data(self) -> Data:
        """Return the data as a batch of the engine, for calls that use it. A deferred value is computed now."""
        if self._data is None:
            assert self._later is not None
            later, k = self._later
            self._data = later.results()[k]
            self._later = None
        return self._data

    @property
    def device(self) -> Device:
        """The device of the data, which is known even if the data is not computed yet."""
        if self._data is None and self._later is not None:
            if self._later[0].on_host:
                return Device.CPU
            if self._later[0].device is not None:
                return self._later[0].device
        data = self.computed_data().data
        return Device.CPU if isinstance(data, np.ndarray) else Device("gpu", int(data.device.id))

    @property
    def dtype(self) -> DType:
        """The element type."""
        return of_numpy(self.data.data.dtype)

    @property
    def ndim(self) -> int:
        """Number of dimensions of each sample."""
        return int(self.data.shapes.shape[1])

    @property
    def layout(self) -> str | None:
        """Names of the dimensions, for example HWC; None if they have none."""
        return self.data.layout or None

    def evaluate(self) -> Any:
        """Compute the value if it was deferred, and return it."""
        _ = self.data
        return self

    def to_device(self, device: Any, force_copy: bool = False) -> Any:
        """Return the value on ``device``: itself if it is already there, unless ``force_copy``. Raises DeviceError."""
        target, current = device_of(device), self.device
        if target is None or (target == current and not force_copy):
            return self
        steps = loops.steps
        if steps and self.trace is not None and self.trace[0] is steps[-1] and not force_copy:
            return steps[-1].move(self, target)
        return made(type(self), moved_to(self.data, target))

    def _repr_html_(self) -> str:
        from ..show.notebook import batch_html

        return batch_html(self.cpu().data, type(self).__name__)

    def cpu(self) -> Any:
        """Return the value in host memory; itself if it is already there."""
        return self.to_device(Device.CPU)

    def gpu(self, index: int | None = None) -> Any:
        """Return the value on GPU ``index``, by default the current one. Raises DeviceError without a GPU."""
        return self.to_device(Device("gpu", index))

    def __bool__(self) -> bool:
        return True

    @staticmethod
    def _calculate(template: str, *operands: Any) -> Any:
        return calculate(template, *operands)

    __hash__ = None  # type: ignore[assignment]  # == is elementwise


class Tensor(Value, ReadableArray):
    """The array of one sample. NumPy, CuPy, PyTorch and other libraries that support DLPack read it without a copy."""

    __slots__ = ()

    def __init__(
        self,
        data: Any = None,
        dtype: Any = None,
        device: Any = None,
        layout: str | None = None,
        batch: Batch | None = None,
        index_in_batch: int | None = None,
        copy: bool = False,
    ) -> None:
        """Create a tensor from an array, a (nested) list or a number, or from sample ``index_in_batch`` of ``batch``.
        Raises TypeError and ValueError."""
        if (data is None) == (batch is None):
            raise ArgumentValueError("a tensor is made of data, or of a batch and index_in_batch")
        if batch is not None:
            engine_batch = sample_of(batch.data, 0 if index_in_batch is None else index_in_batch)
        else:
            engine_batch = _tensor_data(data, layout, copy)
        self._data = finished(engine_batch, dtype, device)
        self._later = self.trace = None
        self.invariant = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the dimensions."""
        return tuple(self.data.shapes[0].tolist())

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return int(self.data.data.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements together."""
        return self.size * self.itemsize

    @property
    def _array(self) -> Any:
        return self.data.sample(0)

    def item(self) -> Any:
        """Return the only element as a Python number. Raises ValueError if the tensor has another number of
        elements."""
        if self.size != 1:
            raise ArgumentValueError(f"the tensor has {self.size} elements, but item() needs exactly one")
        return self._array.item()

    def torch(self, copy: bool = False) -> Any:
        """Return the data as a PyTorch tensor, without a copy unless ``copy``. Raises ImportError without PyTorch."""
        return to_torch(self._array, copy)

    def __getitem__(self, index: Any) -> Any:
        return subscript(self, index)

    __iter__ = None
    """None, because a loop over a tensor might not end: an index out of range of a deferred value does not raise
    IndexError."""

    def __repr__(self) -> str:
        return _described("Tensor", self, np.array2string(np.asarray(self), **_SHORT), f"shape={self.shape}")


class Batch(Value):
    """List of samples with the same type and number of dimensions; their shapes may differ."""

    __slots__ = ()

    def __init__(
        self,
        tensors: Any = None,
        dtype: Any = None,
        device: Any = None,
        layout: str | None = None,
        copy: bool = False,
    ) -> None:
        """Create a batch from a list of tensors, arrays or numbers, or from one array whose first dimension counts the
        samples. Raises TypeError and ValueError; also for an empty list without ``dtype``."""
        self._data = finished(_batch_data(tensors, dtype, layout, copy), dtype, device)
        self._later = self.trace = None
        self.invariant = False

    @property
    def batch_size(self) -> int:
        """Number of samples in the batch."""
        if self._data is None and self._later is not None and self._later[0].size is not None:
            return self._later[0].size
        return len(self.computed_data().offsets)

    @property
    def shape(self) -> list[tuple[int, ...]]:
        """Shape of each sample."""
        return [tuple(s) for s in self.data.shapes.tolist()]

    @property
    def tensors(self) -> Samplewise:
        """The samples of the batch as a sequence of tensors, which can be indexed and iterated over:
        ``batch.tensors[0]``."""
        return Samplewise(self, range(self.batch_size))

    @property
    def slice(self) -> Cutter:
        """Object that cuts every sample when it is indexed: ``batch.slice[...]``. The indices may be batches with one
        entry per sample."""
        return Cutter(self)

    def select(self, sample_range: Any) -> Any:
        """Return samples of the batch: a Tensor if ``sample_range`` is an integer, a Batch if it is a slice or list.
        Raises IndexError."""
        if isinstance(sample_range, (int, np.integer)):
            return self.tensors[int(sample_range)]
        n = self.batch_size
        indices = range(n)[sample_range] if isinstance(sample_range, slice) else [int(k) for k in sample_range]
        invalid = [k for k in indices if not -n <= k < n]
        if invalid:
            raise IndexError(f"sample {invalid[0]} of a batch of {n}")
        return made(Batch, calls.renumbered(self.data.take(np.array(indices, np.int64) % max(n, 1))))

    @staticmethod
    def broadcast(sample: Any, batch_size: int, device: Any = None, dtype: Any = None) -> Batch:
        """Return a batch whose samples are all ``sample``, without a copy. Raises ValueError for a negative size."""
        if batch_size < 0:
            raise ArgumentValueError(f"a batch cannot have {batch_size} samples")
        one = as_tensor(sample, dtype=dtype, device=device)
        batch: Batch = made(Batch, repeated(one.data, batch_size))
        return batch

    def torch(self, copy: bool | None = None, pad: bool = False) -> Any:
        """Return the batch as one PyTorch tensor; ``pad`` fills samples up with zeros to one shape.

        Raises ImportError without PyTorch, ValueError for samples of different shapes, and if ``copy`` is False but the
        data has to be copied.
        """
        data = _padded(self).data if pad and not self.data.is_uniform else self.data
        dense = data.dense()
        if copy is False and len(data) and not shares_memory(dense, self.data.data):
            raise ArgumentValueError("the batch has to be copied to become one tensor, and copy is False")
        return to_torch(dense, bool(copy))

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.tensors)

    def __repr__(self) -> str:
        host = self.cpu().data
        rows = [np.array2string(np.asarray(a), **_SHORT).replace("\n", "\n    ") for a in host]
        ends = "[", "]"
        joined = ", ".join(rows) if host.ndim == 0 else ",\n    ".join(rows)
        return _described("Batch", self, f"{ends[0]}{joined}{ends[1]}", f"num_samples={self.batch_size}",
                          f"shape={self.shape}")  # fmt: skip


class Samplewise(Sequence[Tensor]):
    """Sequence of the samples of a batch, as `Tensor`s that share its memory. Created by `Batch.tensors`."""

    def __init__(self, batch: Batch, indices: range) -> None:
        self._batch = batch
        self._places = indices

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> Samplewise: ...
    def __getitem__(self, index: int | slice) -> Tensor | Samplewise:
        if isinstance(index, slice):
            return Samplewise(self._batch, self._places[index])
        tensor: Tensor = made(Tensor, sample_of(self._batch.data, self._places[index]))
        return tensor


class Cutter:
    """Object that `Batch.slice` returns: indexing it cuts each sample of the batch."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def __getitem__(self, index: Any) -> Batch:
        batch: Batch = subscript(self._batch, index)
        return batch


_SHORT: dict[str, Any] = {"threshold": 64, "edgeitems": 2}


def _described(kind: str, value: Value, text: str, *rest: str) -> str:
    lines = [
        text.replace("\n", "\n    ") if kind == "Tensor" else text,
        f"dtype={value.dtype}",
        *([f'layout="{value.layout}"'] * bool(value.layout)),
        f'device="{value.device}"',
        *rest,
    ]
    return f"{kind}(\n" + ",\n".join(f"    {line}" for line in lines) + ")"


# -- making values ----------------------------------------------------------------------------------------------------


def made(kind: Any, data: Data | None, later: tuple[calls.DeferredCall, int] | None = None) -> Any:
    """Return a Tensor or Batch (the class ``kind``) with ``data``. If ``data`` is None, it will be output number
    ``later[1]`` of the deferred call ``later[0]``."""
    value = kind.__new__(kind)
    value._data = data
    value._later = later
    value.trace = None
    value.invariant = False
    return value


def value_of(data: Data, batched: bool) -> Any:
    """Return the engine's batch ``data`` as a Batch, or its only sample as a Tensor if not ``batched``."""
    return made(Batch if batched else Tensor, data)


def tensor(data: Any, dtype: Any = None, device: Any = None, layout: str | None = None, pad: bool = False) -> Tensor:
    """Return a tensor with its own data, copied from an array, a (nested) list or a number. A batch becomes one tensor
    with a new first dimension; ``pad`` fills its samples up with zeros to one shape. Raises TypeError and ValueError.
    """
    return _tensor(data, dtype, device, layout, pad, True)


def as_tensor(data: Any, dtype: Any = None, device: Any = None, layout: str | None = None, pad: bool = False) -> Tensor:
    """Return a tensor like `tensor`, sharing memory with ``data`` if possible."""
    return _tensor(data, dtype, device, layout, pad, False)


def _tensor(data: Any, dtype: Any, device: Any, layout: str | None, pad: bool, copy: bool) -> Tensor:
    if isinstance(data, (Batch, TensorList)):
        many = data.data if isinstance(data, Batch) else data.batch
        if pad and not many.is_uniform:
            many = _padded(made(Batch, calls.renumbered(many))).data
        if layout is None and many.layout:
            layout = f"N{many.layout}"
        data = many.dense()
    return Tensor(data, dtype, device, layout, copy=copy)


def batch(tensors: Any, dtype: Any = None, device: Any = None, layout: str | None = None) -> Batch:
    """Return a batch with its own copy of the data, from the same arguments as `Batch`. Raises TypeError and
    ValueError."""
    return Batch(tensors, dtype, device, layout, copy=True)


def as_batch(tensors: Any, dtype: Any = None, device: Any = None, layout: str | None = None) -> Batch:
    """Return a batch like `batch`, sharing memory with ``tensors`` if they are one array whose first dimension counts
    the samples."""
    return Batch(tensors, dtype, device, layout)


def _tensor_data(data: Any, layout: str | None, copy: bool) -> Data:
    if isinstance(data, Tensor):
        engine_batch = data.data
        if copy:
            engine_batch = copied(engine_batch)
        return (
            engine_batch if layout is None else engine_batch.replace(layout=checked_layout(layout, engine_batch.ndim))
        )
    if isinstance(data, PipelineTensor):
        layout = data.layout() if layout is None else layout
    if isinstance(data, (list, tuple)) and any(isinstance(v, Value) for v in data):
        data = np.stack([np.asarray(v) for v in data])
    array = array_of(data)
    shape = array.shape
    if isinstance(array, np.ndarray):
        array = np.array(array, order="C") if copy else np.ascontiguousarray(array)
    else:
        array = settled(array, copy=copy)
    extents = np.empty((1, len(shape)), np.int32)
    extents[0] = shape
    return Data(array.reshape(-1), AT_0, extents, checked_layout(layout, len(shape)), ONE)


def _batch_data(tensors: Any, dtype: Any, layout: str | None, copy: bool) -> Data:
    if tensors is None:
        raise ArgumentValueError("a batch needs tensors, got None; an empty list makes a batch without samples")
    if isinstance(tensors, (Batch, TensorList)):
        engine_batch = tensors.data if isinstance(tensors, Batch) else calls.renumbered(tensors.batch)
        if copy:
            engine_batch = copied(engine_batch)
        return (
            engine_batch if layout is None else engine_batch.replace(layout=checked_layout(layout, engine_batch.ndim))
        )
    if hasattr(tensors, "__array__") or hasattr(tensors, "__dlpack__") or hasattr(tensors, "__cuda_array_interface__"):
        own_layout = tensors.layout if isinstance(tensors, Tensor) and tensors.layout else ""
        array = as_array(tensors) if not isinstance(tensors, Tensor) else tensors._array
        if array.ndim == 0:
            raise ArgumentTypeError("a batch is a list of samples, or an array whose first dimension counts them; "
                                    "got one number")  # fmt: skip
        source_layout = own_layout[1:] if layout is None else layout
        if isinstance(array, np.ndarray):
            array = np.array(array, order="C") if copy else np.ascontiguousarray(array)
        else:
            array = settled(array, copy=copy)
        return Data.from_dense(array, checked_layout(source_layout, array.ndim - 1), numbered(len(array)))
    if not isinstance(tensors, Iterable) or isinstance(tensors, (str, bytes)):
        raise ArgumentTypeError(f"a batch is a list of samples, or an array whose first dimension counts them, got "
                                f"{tensors!r}")  # fmt: skip
    return _joined(list(tensors), dtype, layout)


def _joined(samples: list[Any], dtype: Any, layout: str | None) -> Data:
    """Return one batch of a list of samples, which are all converted to the type of the first one."""
    if not samples:
        if dtype is None:
            raise ArgumentValueError("an empty batch needs a dtype")
        return Data.allocate(np.empty, np.empty((0, len(layout or "")), np.int32), to_numpy(type_id(dtype)),
                             layout or "", numbered(0))  # fmt: skip
    if layout is None:
        own = (_layout_of(s) for s in samples)
        layout = next((x for x in own if x), "")
    arrays = [s._array if isinstance(s, Tensor) else array_of(s) for s in samples]
    first = arrays[0]
    for a in arrays:
        if a.ndim != first.ndim:
            raise ArgumentValueError(
                f"the samples of a batch must have the same number of dimensions, got {first.ndim} and {a.ndim}"
            )
    if any(not isinstance(a, np.ndarray) for a in arrays):
        from ..python.arrays import as_batch as gathered

        return gathered(arrays, layout)
    if any(a.dtype != first.dtype for a in arrays):
        converted = [
            a if a.dtype == first.dtype else cast(_tensor_data(a, None, False), from_numpy(first.dtype)).sample(0)
            for a in arrays
        ]
        arrays = converted
    return Data.from_list(arrays, checked_layout(layout, first.ndim), numbered(len(arrays)))


def _layout_of(sample: Any) -> str:
    if isinstance(sample, PipelineTensor):
        return sample.layout()
    return (sample.layout or "") if isinstance(sample, Tensor) else ""


def _padded(batch: Batch) -> Batch:
    padded: Batch = invoke(Pad, (batch,), {})
    return padded


# -- calls ------------------------------------------------------------------------------------------------------------

_PLAIN = frozenset({int, float, bool, str, DALIDataType, DALIImageType, DALIInterpType})


class _Loops(threading.local):
    def __init__(self) -> None:
        self.steps: list[Any] = []
        """The iterations (`capture.LoopIteration`) that run now in this thread's captured loops, innermost last."""


loops = _Loops()


def invoke(
    cls: type[Operator], inputs: Sequence[Any], arguments: Any, batch_size: int | None = None, device: Any = None,
    rng: RNG | None = None,
) -> Any:  # fmt: skip
    """Call operator ``cls`` and return its results: a Tensor or Batch, or a tuple of them. They are batches if an input
    or argument is a Batch, or if ``batch_size`` is given; single tensors then apply to all samples.

    Raises SpecError (also a TypeError or ValueError) for an invalid call, SampleError for data that cannot be
    processed; both name the program's line.
    """
    given = _Given(cls, batch_size)
    for x in inputs:
        given.add_input(x)
    for name, value in arguments.items():
        if value is not None:
            given.add_argument(name, value)
    values, named, traced = given.values, given.named, given.traced
    device, on_device = _device(cls, device, values)
    try:
        plan = calls.plan_for(cls, len(values), device, on_device, tuple(given.constants), tuple(named))
    except SpecError as e:
        raise calls.located(e, cls.name) from None
    rng, state = _random_state(plan, rng)
    if traced is None and not values and not named and loops.steps:
        traced = (loops.steps[-1],)  # calls without inputs in a captured body also run ahead
    if traced is not None:
        return traced[0].invoke(plan, values, named, given.n, state, rng)
    return dispatch(plan, values, named, given.n, state)


class _Given:
    """The inputs and arguments of one call, as the engine needs them. Created and used by `invoke`."""

    __slots__ = ("batch_size", "cls", "constants", "n", "named", "traced", "values")

    def __init__(self, cls: type[Operator], batch_size: int | None) -> None:
        self.cls, self.batch_size = cls, batch_size
        self.values: list[Value] = []
        """Inputs of the call, in order."""
        self.constants: list[calls.Constant] = []
        self.named: dict[str, Value] = {}
        """Arguments that are tensors or batches, by name."""
        self.n = batch_size
        """Number of samples; None if all inputs and arguments are single tensors."""
        self.traced: Any = None
        """Origin (`Value.trace`) of an input or argument in a captured loop; None if none comes from one."""

    def add_input(self, x: Any) -> None:
        """Add an input: a Tensor, a Batch, or anything that can be converted to one."""
        kind = type(x)
        self.values.append(self._noted(x if kind is Tensor or kind is Batch else _input(self.cls, x)))

    def add_argument(self, name: str, value: Any) -> None:
        """Add an argument: a constant, a tensor or a batch."""
        kind = type(value)
        if kind in _PLAIN:
            self.constants.append((name, kind, value))
        elif kind is Tensor or kind is Batch:
            self.named[name] = self._noted(value)
        elif (tensor := tensor_of(parameters(self.cls).get(name), value)) is not None:
            self.named[name] = _input(self.cls, tensor)
        else:
            self.constants.append((name, *_constant(self.cls, name, value)))

    def _noted(self, value: Value) -> Value:
        """Record the number of samples and the trace of ``value``, and return it."""
        if type(value) is Batch:
            self.n = _size(self.cls, self.n, value, self.batch_size)
        if value.trace is not None:
            self.traced = value.trace
        return value


def _device(cls: type[Operator], requested: Any, values: Sequence[Value]) -> tuple[Device | None, bool]:
    """Return the device of a call (None: the device of its inputs), and whether an input is on a GPU."""
    on_device = False
    for v in values:
        if v._data is None or not isinstance(v._data.data, np.ndarray):
            on_device = on_device or not v.device.on_host
    if requested is not None:
        device = device_of(requested)
        return (None if on_device and requested in ("gpu", "cuda") else device), on_device
    if not values and Device.current().device_type == "gpu" and "gpu" in cls.stages:
        return Device.current(), on_device
    return None, on_device


def _random_state(plan: calls.CallPlan, rng: RNG | None) -> tuple[RNG | None, calls.State | None]:
    """Return the generator from which a call draws, and its state; (None, None) for a call that draws nothing. Raises
    TypeError for a wrong ``rng``."""
    if not plan.random:
        if rng is not None:
            raise ArgumentTypeError(
                f"{calls.line()}: {plan.op.name}: the operator draws no random numbers and accepts no rng"
            )
        return None, None
    if rng is None:
        rng = get_default_rng()
    elif type(rng) is not RNG:
        raise ArgumentTypeError(f"{calls.line()}: {plan.op.name}: rng must be an RNG, got {rng!r}")
    return rng, rng.seven()


def dispatch(
    plan: calls.CallPlan,
    values: Sequence[Value],
    named: dict[str, Value] | None,
    n: int | None,
    state: calls.State | None,
) -> Any:
    """Run a call whose `CallPlan` exists. It runs now or when a result is read, depending on the current `EvalMode`."""
    now = EvalMode.current()
    if now is EvalMode.deferred:
        return _deferred(plan, values, named, n, state)
    results = compute(plan, values, named, n, state, EvalContext.current())
    kind = Tensor if n is None else Batch
    if plan.outputs == 1:
        return made(kind, results[0])
    return tuple([made(kind, r) for r in results])


def compute(
    plan: calls.CallPlan, values: Sequence[Value], named: dict[str, Value] | None, n: int | None,
    state: calls.State | None, context: EvalContext, location: str = "",
) -> tuple[Data, ...]:  # fmt: skip
    """Run a call now, and return its results as batches of the engine."""
    if n is None:
        batches = [v.computed_data() for v in values]
    else:
        batches = [v.computed_data() if type(v) is Batch else repeated(v.computed_data(), n) for v in values]
    args = {}
    if named:
        for name, value in named.items():
            data = value.computed_data()
            if not isinstance(data.data, np.ndarray):
                data = moved_to(data, Device.CPU)
            args[name] = data if n is None or type(value) is Batch else repeated(data, n)
    samples = batches[0].samples if batches else ONE if n is None else numbered(n)
    return calls.run(plan, batches, args, samples, state, context, location)


def _deferred(
    plan: calls.CallPlan,
    values: Sequence[Value],
    named: dict[str, Value] | None,
    n: int | None,
    state: calls.State | None,
) -> Any:
    location, context = calls.line(), EvalContext.current()
    try:
        specs = plan.infer(tuple(_kind(v) for v in values))
    except SpecError as e:
        raise calls.located(e, plan.op.name, location) from None
    later = calls.DeferredCall(
        lambda: compute(plan, values, named, n, state, context, location), specs, plan.stage == "cpu"
    )
    context.wait_for(later)
    kind = Tensor if n is None else Batch
    results = [made(kind, None, (later, k)) for k in range(plan.outputs)]
    return results[0] if plan.outputs == 1 else tuple(results)


def _kind(value: Value) -> tuple[Any, Any, str]:
    if value._data is not None or value._later is None or not value._later[0].specs:
        return calls.kind_of(value.computed_data())
    spec = value._later[0].specs[value._later[1]]
    return spec.ndim, None if spec.dtype is None else to_numpy(spec.dtype), spec.layout


def _size(cls: type[Operator], n: int | None, value: Batch, requested: int | None) -> int:
    """Return the batch size of a call, given ``n``, the size of earlier arguments (None if unknown), and the next
    argument ``value``. ``requested`` is the call's ``batch_size``. Raises ValueError if sizes differ."""
    size = value.batch_size
    if n is not None and n != size and n != requested:
        raise ArgumentValueError(
            f"{calls.line()}: {cls.name}: the batches of one call must have the same size, got {n} and {size}"
        )
    return size


def _input(cls: type[Operator], value: Any) -> Value:
    if isinstance(value, Value):
        return value
    if isinstance(value, TensorList):
        return as_batch(value)
    if value is None:
        raise ArgumentTypeError(f"{calls.line()}: {cls.name}: an input is a Tensor, a Batch or an array, got None")
    try:
        return as_tensor(value)
    except DaliRunError:
        raise
    except TypeError as e:
        raise ArgumentTypeError(f"{calls.line()}: {cls.name}: {e}") from None
    except (ValueError, RaggedError) as e:
        raise ArgumentValueError(f"{calls.line()}: {cls.name}: {e}") from None


def _constant(cls: type[Operator], name: str, value: Any) -> tuple[Any, Any]:
    """Return type and value of the constant argument ``name``. The value is hashable if possible: lists and arrays
    become tuples."""
    if isinstance(value, DType):
        return DALIDataType, type_id(value)
    if isinstance(value, ScalarConstant):
        value = value.value
    elif isinstance(value, (list, tuple)) and any(isinstance(v, Value) for v in value):
        raise ArgumentTypeError(f"{calls.line()}: {cls.name}: argument {name!r} is a list that contains Tensors; make "
                                "one Tensor or Batch of it with stack or batch")  # fmt: skip
    if hasattr(value, "__array__") and not isinstance(value, np.generic):
        array = np.asarray(value)
        known = parameters(cls).get(name)
        value = (array.reshape(-1) if known is not None and known.arg.rows else array).tolist()
    frozen = _nested(value)
    return _types(frozen), frozen


def _nested(value: Any) -> Any:
    return tuple(_nested(v) for v in value) if isinstance(value, (list, tuple)) else value


def _types(value: Any) -> Any:
    return tuple(_types(v) for v in value) if isinstance(value, tuple) else type(value)


def calculate(template: str, *operands: Any) -> Any:
    """Return the result of an elementwise expression: ``template`` has one ``{}`` per operand. Python numbers get
    DALI's types, int32 and float32; NumPy numbers keep their type. Raises SpecError if types or shapes do not fit
    together."""
    inputs: list[Any] = []
    names: list[str] = []
    for operand in operands:
        if isinstance(operand, Value):
            names.append("abc"[len(inputs)])
            inputs.append(operand)
        else:
            text = ScalarConstant(operand).text if type(operand) is np.float64 else literal(operand)
            names.append("abc"[len(inputs)] if text is None else text)
            if text is None:
                inputs.append(operand)
    if not inputs:
        inputs, names = list(operands), list("abc"[: len(operands)])
    return invoke(Expr, inputs, {"expr": template.format(*names)})


def subscript(value: Value, index: Any) -> Any:
    """Return ``value`` indexed with ``index`` in each sample. Indices are integers, slices with steps, one ``...``,
    ``newaxis`` and None; the numbers may be Tensors and, for batches, Batches. Raises TypeError for other indices,
    SampleError for indices out of range."""
    items = indexing.items_of(index)
    at = [k for k, item in enumerate(items) if indexing.is_ellipsis(item)]
    if len(at) > 1:
        raise IndexError("an index may contain `...` only once")
    if at:
        others = sum(not indexing.is_new_axis(item) for item in items) - 1
        items[at[0] : at[0] + 1] = [np.s_[:]] * max(value.ndim - others, 0)
    return indexing.subscript(value, items, Value, invoke)


def _typed(data: Any, dtype: DType, device: Any, layout: str | None) -> Any:
    return (batch if isinstance(data, Batch) else tensor)(data, dtype, device, layout)


DType.make = staticmethod(_typed)
