"""DataNode: the output of an operator in a graph that a Python program defines."""

from __future__ import annotations

import enum
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ops.arrays.cast import Cast
from ...ops.base import Arg, Operator, Parameter, parameters, plain_number
from ...ops.errors import ArgumentValueError, SpecError
from ...ops.types import DALIDataType, from_numpy, parse_dtype, to_numpy
from ...readers.base import Reader
from ..graph.arguments import tensor_of
from ..graph.builder import GraphBuilder
from ..graph.nodes import DeviceRequest, Edge
from ..plugins import find_operator
from ..problems import Mark
from ..user_warnings import user_line, warn
from . import indexing
from .arithmetic import Arithmetic

if TYPE_CHECKING:
    from .tensors import TensorList

_RESERVED = ("name", "device", "seed", "preserve", "bytes_per_sample_hint")
_CASTS = {
    DALIDataType.UINT8: "uint8", DALIDataType.UINT16: "uint16", DALIDataType.UINT32: "uint32",
    DALIDataType.UINT64: "uint64", DALIDataType.INT8: "int8", DALIDataType.INT16: "int16",
    DALIDataType.INT32: "int32", DALIDataType.INT64: "int64", DALIDataType.FLOAT16: "float16",
    DALIDataType.FLOAT: "float", DALIDataType.FLOAT64: "float64", DALIDataType.BOOL: "bool",
}  # fmt: skip


class _Local(threading.local):
    def __init__(self) -> None:
        self.builders: list[GraphBuilder] = []
        self.pipelines: list[Any] = []
        """Pipelines whose graph is being built in this thread, innermost last."""
        self.orphans = GraphBuilder(loose=True)
        """Graph for operators that are called outside of any pipeline. A pipeline that uses their results copies them
        from this graph."""


_local = _Local()


def pipelines_being_built() -> list[Any]:
    """Return the list of pipelines whose graph this thread is building, innermost last."""
    return _local.pipelines


def current_builder() -> GraphBuilder:
    """Return the graph to which calls of operators currently add nodes."""
    return _local.builders[-1] if _local.builders else _local.orphans


def push_builder(builder: GraphBuilder) -> None:
    """Make ``builder`` the graph to which calls of operators add nodes, until `pop_builder`."""
    _local.builders.append(builder)


def pop_builder() -> None:
    """Make the graph from before the last `push_builder` the current one again."""
    _local.builders.pop()


class ScalarConstant:
    """A number with an explicit type, for arithmetic: ``images * types.Constant(2).uint8()``."""

    __slots__ = ("dtype", "value")

    def __init__(self, value: Any, dtype: Any = None) -> None:
        """Accept a Python number, or a NumPy number with its type, and truncate it as Python does: ``uint8`` of 2.7 is
        2. Raises TypeError if ``value`` is not a number."""
        own = getattr(value, "dtype", None)
        plain = value if own is None else np.asarray(value).item()
        if not isinstance(plain, (bool, int, float)):
            raise TypeError(
                f"{value!r} ({type(value).__name__}) is not a number and cannot be a constant in arithmetic"
            )
        self.dtype = parse_dtype(dtype if dtype is not None else natural_type(plain) if own is None else own)
        kind = to_numpy(self.dtype).kind
        self.value = (bool if kind == "b" else float if kind == "f" else int)(plain)

    def _as(self, dtype: DALIDataType) -> ScalarConstant:
        return ScalarConstant(self.value, dtype)

    def uint8(self) -> ScalarConstant:
        """The number as uint8."""
        return self._as(DALIDataType.UINT8)

    def uint16(self) -> ScalarConstant:
        """The number as uint16."""
        return self._as(DALIDataType.UINT16)

    def uint32(self) -> ScalarConstant:
        """The number as uint32."""
        return self._as(DALIDataType.UINT32)

    def uint64(self) -> ScalarConstant:
        """The number as uint64."""
        return self._as(DALIDataType.UINT64)

    def int8(self) -> ScalarConstant:
        """The number as int8."""
        return self._as(DALIDataType.INT8)

    def int16(self) -> ScalarConstant:
        """The number as int16."""
        return self._as(DALIDataType.INT16)

    def int32(self) -> ScalarConstant:
        """The number as int32."""
        return self._as(DALIDataType.INT32)

    def int64(self) -> ScalarConstant:
        """The number as int64."""
        return self._as(DALIDataType.INT64)

    def float16(self) -> ScalarConstant:
        """The number as float16."""
        return self._as(DALIDataType.FLOAT16)

    def float32(self) -> ScalarConstant:
        """The number as float32."""
        return self._as(DALIDataType.FLOAT)

    def float64(self) -> ScalarConstant:
        """The number as float64."""
        return self._as(DALIDataType.FLOAT64)

    def bool(self) -> ScalarConstant:
        """The number as a truth value."""
        return self._as(DALIDataType.BOOL)

    def __str__(self) -> str:
        return f"{self.value}:{self.dtype}"

    def __repr__(self) -> str:
        return repr(self.value)

    @property
    def text(self) -> str:
        """The constant with its type, as text in an arithmetic expression."""
        return f"{_CASTS[self.dtype]}({self.value!r})"


def natural_type(value: Any) -> DALIDataType:
    """Return the type that DALI gives a Python number or an array: 64 bits become 32 if the values fit."""
    if isinstance(value, bool):
        return DALIDataType.BOOL
    if isinstance(value, int):
        return DALIDataType.INT32
    if isinstance(value, float):
        return DALIDataType.FLOAT
    array = np.asarray(value)
    if array.dtype == np.float64:
        return DALIDataType.FLOAT
    if array.dtype == np.int64 and array.size and array.min() >= -(2**31) and array.max() < 2**31:
        return DALIDataType.INT32
    return from_numpy(array.dtype)


class EagerBuilder(GraphBuilder):
    """A graph for debug mode, whose operators run as soon as they are added."""

    def ran(self, edge: Edge, device: str) -> DataNode:
        """Run the operator that was just added to the graph, and return a DataNode for its output ``edge``."""
        raise NotImplementedError

    def feed(self, value: Any) -> DataNode:
        """Add a batch from the user's program to the graph as an input."""
        raise NotImplementedError


class DataNode(Arithmetic["DataNode"]):
    """A batch that will be computed when the pipeline runs. Pass it to operators, calculate with it, return it from a
    pipeline."""

    __slots__ = ("_device", "builder", "edge", "name")

    def __init__(self, builder: GraphBuilder, edge: Edge, device: str = "cpu") -> None:
        self.builder = builder
        self.edge = edge
        self._device = device
        self.name = f"{builder.nodes[edge.node].name}[{edge.output}]"

    @property
    def device(self) -> str:
        """Device of the batch: ``cpu`` or ``gpu``."""
        return self._device

    def gpu(self) -> DataNode:
        """Return this batch copied to the GPU."""
        return self if self._device == "gpu" else one(apply("copy", [self], {"device": "gpu"}))

    def cpu(self) -> DataNode:
        """Return this batch copied to the host."""
        return self if self._device == "cpu" else one(apply("copy", [self], {"device": "cpu"}))

    def shape(self, *, dtype: Any = None, device: str = "cpu") -> DataNode:
        """Return the shape of every sample as a batch of 1-D integers (of ``dtype``, by default int64)."""
        arguments = {} if device == "gpu" else {"device": "cpu"}  # the CPU operator needs none of the data
        shapes = one(apply("shapes", [self], arguments if dtype is None else {**arguments, "dtype": dtype}))
        return shapes.gpu() if device == "gpu" else shapes

    def property(self, key: str, *, device: str = "cpu") -> DataNode:
        """Return a property of every sample, ``source_info`` or ``layout``, as a batch of 1-D bytes."""
        node = one(apply("get_property", [self], {"key": key}))
        return node.gpu() if device == "gpu" else node.cpu()

    if TYPE_CHECKING:

        def get(self) -> TensorList:
            """Return the computed data. Only in debug mode, in which operators run when they are called."""

    def source_info(self, *, device: str = "cpu") -> DataNode:
        """Return the origin of every sample, such as its file name, as a batch of 1-D bytes."""
        return self.property("source_info", device=device)

    def __str__(self) -> str:
        return f'DataNode(name="{self.name}", device="{self._device}")'

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from .shown import as_html

        return as_html("DataNode", {"name": self.name, "device": self._device}, {self.name: self})

    def __bool__(self) -> bool:
        raise TypeError(
            f"{self} has no truth value while the graph is being built. In `if`, `and`, `or` and `not` it can be used "
            "with @pipeline_def(enable_conditionals=True), in functions whose source Python can find; elsewhere use "
            "&, | and ==, or cast it"
        )

    def __len__(self) -> int:
        raise TypeError(
            f"{self} has no length while the graph is being built; .shape() returns the shape as a DataNode"
        )

    __iter__ = None
    """None, because a DataNode is one output and cannot be unpacked or iterated over: iter() raises TypeError, and
    isinstance(x, Iterable) is False. Without this, Python would iterate with __getitem__."""

    def __getitem__(self, index: Any) -> DataNode:
        return subscript(self, index)

    @staticmethod
    def _calculate(template: str, *operands: Any) -> DataNode:
        return calculate(template, *operands)


def one(result: DataNode | list[Any] | None) -> DataNode:
    """Return the only output of an operator from the result of its call."""
    assert isinstance(result, DataNode)
    return result


# -- calling operators ------------------------------------------------------------------------------------------------


def apply(op: str | type[Operator], inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Add an operator to the current graph, by DALI's calling rules. Raises SpecError with the operator's name.

    Return a DataNode for one output, a list for several, and a mapping by feature for readers.tfrecord. If inputs are
    lists of DataNodes (input sets), the operator is applied to each set, and every output is a list with one entry per
    set. A single set counts as a plain input.
    """
    cls = find_operator(op) if isinstance(op, str) else op
    sets = [list(i) for i in inputs if _is_input_set(i)]
    if not sets:
        return _apply(cls, inputs, kwargs)
    if len({len(s) for s in sets}) > 1:
        raise SpecError(f"{cls.name}: input sets differ in length: {', '.join(str(len(s)) for s in sets)}")
    n = len(sets[0])
    name = kwargs.get("name")
    named = [kwargs if name is None or k == 0 else {**kwargs, "name": f"{name}_{k + 1}"} for k in range(n)]
    results = [_apply(cls, [i[k] if _is_input_set(i) else i for i in inputs], named[k]) for k in range(n)]
    if n == 1:
        return results[0]
    if isinstance(results[0], DataNode):
        return results
    return [list(column) for column in zip(*results, strict=True)]


def _is_input_set(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and any(isinstance(v, DataNode) for v in value)


def _apply(cls: type[Operator], inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    builder = current_builder()
    reserved = {k: kwargs[k] for k in _RESERVED if k in kwargs and kwargs[k] is not None}
    arguments = {k: v for k, v in kwargs.items() if k not in _RESERVED and v is not None}
    say_once(cls, arguments)
    if builder.loose and reserved.get("preserve"):
        raise SpecError(f"{cls.name}: an operator with preserve=True must be called in a pipeline: in its "
                        "definition, or after `with pipe:`")  # fmt: skip
    nodes = [as_node(i) for i in inputs]
    device = _device(cls, nodes, reserved.get("device"))
    # readers without a gpu kernel that DALI has on a GPU: arrays, videos
    uploaded = device == "gpu" and "gpu" not in cls.stages and issubclass(cls, Reader)
    known = parameters(cls)
    args = {k: _argument(builder, v, known.get(k)) for k, v in arguments.items()}
    try:
        edges = builder.add(
            cls,
            [_adopted(builder, n) for n in nodes],
            args,
            name=reserved.get("name"),
            device="cpu" if uploaded and "gpu" not in cls.devices else device,
            seed=None if "seed" not in reserved else int(plain_number(reserved["seed"])),
            mark=Mark(*user_line(), 0),
        )
    except SpecError as e:
        raise e.at(cls.name) from None
    names = getattr(builder.nodes[edges[0].node].op, "output_names", None) if edges else None
    if uploaded and edges and "mixed" in builder.nodes[edges[0].node].op.runs_in():
        at = edges[0].node
        builder.nodes[at] = replace(builder.nodes[at], device="mixed")
    elif uploaded:
        edges = tuple(builder.add("copy", [e], device="gpu")[0] for e in edges)
    if reserved.get("preserve"):
        builder.sinks += edges[:1]
    result_device = "gpu" if device in ("mixed", "gpu") else "cpu"
    results = [
        builder.ran(e, result_device) if isinstance(builder, EagerBuilder) else DataNode(builder, e, result_device)
        for e in edges
    ]
    if names is not None:
        return dict(zip(names, results, strict=True))
    return results[0] if len(results) == 1 else results


def _argument(builder: GraphBuilder, value: Any, known: Parameter | None) -> Any:
    if isinstance(value, DataNode):
        return _adopted(builder, value)
    if isinstance(value, ScalarConstant):
        return value.value
    if known is not None and known.arg.per_sample and isinstance(builder, EagerBuilder) and _is_batch(value):
        return _adopted(builder, builder.feed(value))
    tensor = tensor_of(known, value)
    if tensor is not None:
        return _adopted(builder, constant(tensor))
    return value


def say_once(cls: type[Operator], argument_names: Iterable[str]) -> None:
    """Warn of arguments of operator ``cls`` that have no effect in dali-run, and of deprecated arguments. Each warning
    appears once per process."""
    known = parameters(cls)
    for arg, name in [(known[name].arg, name) for name in argument_names if name in known]:
        if arg.deprecated in known:
            warn(f"{cls.name}: argument {name!r} is a deprecated alias for {arg.deprecated!r}", DeprecationWarning)
        if arg.ignored:
            (_warn_without_effect if arg.obsolete else _warn_once_without_effect)(cls.name, name, arg)


def _warn_without_effect(operator: str, name: str, arg: Arg) -> None:
    warn(f"{operator}: argument {name!r} has no effect: {arg.ignored}",
         DeprecationWarning if arg.obsolete else UserWarning)  # fmt: skip


_warn_once_without_effect = cache(_warn_without_effect)


def _device(cls: type[Operator], inputs: Sequence[DataNode], requested: Any) -> DeviceRequest:
    if requested in ("cpu", "mixed", "gpu"):
        if requested not in cls.stages and requested == "mixed":
            raise ArgumentValueError(f"{cls.name}: cannot run on mixed; it has kernels for {', '.join(cls.stages)}")
        device: DeviceRequest = requested
        return device
    if requested is not None:
        raise ArgumentValueError(f"{cls.name}: device must be 'cpu', 'mixed' or 'gpu', got {requested!r}")
    if any(n.device == "gpu" for n in inputs):
        return "gpu"
    return "cpu" if "cpu" in cls.stages else cls.stages[0]


def _adopted(builder: GraphBuilder, node: DataNode) -> Edge:
    """Return the edge of ``node`` in the graph ``builder``. If the operators were called outside of that graph, they
    are copied into it."""
    return node.edge if node.builder is builder else builder.adopt(node.builder, node.edge)


def as_node(value: Any) -> DataNode:
    """Return ``value`` as the input of an operator: a DataNode stays as it is, a number or array becomes a constant.
    Raises TypeError for anything else."""
    builder = current_builder()
    if isinstance(builder, EagerBuilder) and (_is_batch(value) or hasattr(value, "__dlpack__")):
        return builder.feed(value)
    return as_result(value)


def as_result(value: Any) -> DataNode:
    """Return ``value`` as an output of a pipeline: a DataNode stays as it is, a number or array becomes a constant,
    equal for all samples. Unlike for inputs of operators, this also holds for arrays in debug mode. Raises TypeError
    for anything else."""
    if isinstance(value, DataNode):
        return value
    if isinstance(value, ScalarConstant):
        return constant(value.value, value.dtype)
    builder = current_builder()
    if isinstance(builder, EagerBuilder) and _is_batch(value):
        return builder.feed(value)
    return constant(value)


def _is_batch(value: Any) -> bool:
    """Return whether ``value`` is a list of arrays, one per sample, or a TensorList. Operators in debug mode accept
    these instead of a DataNode."""
    if isinstance(value, (list, tuple)):
        arrays = (v for v in value if not isinstance(v, np.generic))
        return any(hasattr(v, "__array__") or hasattr(v, "__dlpack__") for v in arrays)
    return hasattr(value, "is_dense_tensor")


def constant(
    value: Any, dtype: Any = None, shape: Sequence[int] | None = None, layout: str | None = None, device: str = "cpu",
    name: str | None = None,
) -> DataNode:  # fmt: skip
    """Return a DataNode with the number or array ``value`` for every sample. ``shape`` reshapes it, or repeats one
    value.

    Raises TypeError if ``value`` is not a number or array.
    """
    if hasattr(value, "__cuda_array_interface__") and hasattr(value, "get"):
        value = value.get()
    try:
        array = np.asarray(value)
        value_type = natural_type(value if array.ndim == 0 else _python_numbers(value, array))
    except (KeyError, ValueError, TypeError):
        raise TypeError(f"{value!r} ({type(value).__name__}) cannot be used as a constant: it is not a number or "
                        "array of numbers") from None  # fmt: skip
    dtype = value_type if dtype is None else parse_dtype(dtype)
    flat = array.reshape(-1).tolist()
    extents = list(array.shape) if shape is None else list(shape)
    args = {"shape": extents, "dtype": dtype, "layout": layout, "device": device, "name": name}
    if not flat:
        return one(apply("zeros", [], args))
    return one(apply("constant", [], {"fdata" if array.dtype.kind == "f" else "idata": flat, **args}))


def _python_numbers(value: Any, array: np.ndarray[Any, Any]) -> Any:
    """Return the value that determines the type of a constant: the first of a list of Python numbers, otherwise
    ``array``."""
    if isinstance(value, (list, tuple)) and all(not hasattr(v, "dtype") for v in value):
        return array.reshape(-1)[:1].tolist()[0] if array.size else 0.0
    return array


def calculate(template: str, *operands: Any) -> DataNode:
    """Return a DataNode for an arithmetic expression: ``template`` has one ``{}`` per operand. Numbers among the
    operands become constants in the expression."""
    inputs: list[DataNode] = []
    names = []
    for operand in operands:
        text = None if isinstance(operand, DataNode) else literal(operand)
        if text is None:
            names.append("abcdefghijklmnopqrstuvwxyz"[len(inputs)])
            inputs.append(as_node(operand))
        else:
            names.append(text)
    return one(apply("expr", inputs, {"expr": template.format(*names)}))


def literal(value: Any) -> str | None:
    """Return a number as text in an arithmetic expression; None if ``value`` is not a plain number, and must be an
    input."""
    if isinstance(value, ScalarConstant):
        return value.text
    if isinstance(value, enum.IntEnum):
        value = int(value)
    if isinstance(value, (bool, int, float)) and not isinstance(value, np.generic):
        return f"({value!r})" if math.isfinite(value) else None
    if isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "biuf" and np.isfinite(value):
        return ScalarConstant(value).text  # its type matters, as in DALI; in lists and inputs, 64 bits become 32
    if isinstance(value, np.float64):
        return f"({float(value)!r})" if math.isfinite(value) else None
    if isinstance(value, np.generic) and value.dtype.kind in "biuf" and np.isfinite(value):
        return ScalarConstant(value).text
    return None


# -- indexing ---------------------------------------------------------------------------------------------------------


def subscript(node: DataNode, index: Any) -> DataNode:
    """Return ``node[index]``: integers, slices with steps, ``newaxis`` and a trailing ``...``; the numbers may be
    DataNodes. Raises TypeError and ValueError for other indices."""
    items = indexing.items_of(index)
    if any(map(indexing.is_ellipsis, items[:-1])):
        raise NotImplementedError("`...` is supported only at the end of an index; write `:` for each dimension")
    entries = [i for i in items if not indexing.is_ellipsis(i)]
    node_out: DataNode = indexing.subscript(node, entries, DataNode, _apply_to_numbers)
    return node_out


def _apply_to_numbers(cls: type[Operator], inputs: Sequence[Any], args: Mapping[str, Any]) -> DataNode:
    nodes = [as_node(v).cpu() for v in inputs] if cls is Cast else inputs
    return one(apply(cls, nodes, args))
