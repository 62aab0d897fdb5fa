"""DataNode: the output of an operator while a graph is being written down in Python."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..ops.base import Operator, find
from ..ops.errors import SpecError
from .graph import DeviceRequest, Edge, GraphBuilder

_RESERVED = ("name", "device", "seed", "preserve", "bytes_per_sample_hint")


class _Local(threading.local):
    def __init__(self) -> None:
        self.builders: list[GraphBuilder] = []
        self.orphans = GraphBuilder()
        """Where operators go that are called outside of any pipeline; a pipeline adopts what it uses."""


_local = _Local()


def current_builder() -> GraphBuilder:
    """The graph that operators called now are added to."""
    return _local.builders[-1] if _local.builders else _local.orphans


def push_builder(builder: GraphBuilder) -> None:
    """Make ``builder`` the current one."""
    _local.builders.append(builder)


def pop_builder() -> None:
    """Go back to the builder before."""
    _local.builders.pop()


class DataNode:
    """A batch that does not exist yet. Pass it to operators, calculate with it, return it from a pipeline."""

    __slots__ = ("_device", "builder", "edge", "name")

    def __init__(self, builder: GraphBuilder, edge: Edge, device: str = "cpu") -> None:
        self.builder = builder
        self.edge = edge
        self._device = device
        self.name = f"{builder.nodes[edge.node].name}[{edge.output}]"

    @property
    def device(self) -> str:
        """Where the batch will be: ``cpu`` or ``gpu``."""
        return self._device

    def gpu(self) -> DataNode:
        """The batch on the GPU."""
        return self if self._device == "gpu" else one(apply("copy", [self], {"device": "gpu"}))

    def cpu(self) -> DataNode:
        """The batch on the host."""
        return self if self._device == "cpu" else one(apply("copy", [self], {"device": "cpu"}))

    def shape(self, *, dtype: Any = None, device: str = "cpu") -> DataNode:
        """The shape of every sample as a batch of 1-D integers (int64 unless ``dtype`` says otherwise)."""
        args = {} if dtype is None else {"dtype": dtype}
        return one(apply("shapes", [self], {**args, "device": device}))

    def property(self, key: str, *, device: str = "cpu") -> DataNode:
        """``source_info`` or ``layout`` of every sample, as 1-D bytes."""
        return one(apply("get_property", [self], {"key": key, "device": device}))

    def source_info(self, *, device: str = "cpu") -> DataNode:
        """Where every sample came from, as 1-D bytes."""
        return self.property("source_info", device=device)

    def __str__(self) -> str:
        return f'DataNode(name="{self.name}", device="{self._device}")'

    __repr__ = __str__

    def __bool__(self) -> bool:
        raise TypeError(
            "a DataNode has no truth value while the graph is being built; use `if` in a pipeline_def with "
            "enable_conditionals=True"
        )

    # -- arithmetic: each operation is one `expr` node; the fuse pass may join them -------------------------------

    def __add__(self, other: Any) -> DataNode:
        return calculate("a + b", self, other)

    def __radd__(self, other: Any) -> DataNode:
        return calculate("a + b", other, self)

    def __sub__(self, other: Any) -> DataNode:
        return calculate("a - b", self, other)

    def __rsub__(self, other: Any) -> DataNode:
        return calculate("a - b", other, self)

    def __mul__(self, other: Any) -> DataNode:
        return calculate("a * b", self, other)

    def __rmul__(self, other: Any) -> DataNode:
        return calculate("a * b", other, self)

    def __truediv__(self, other: Any) -> DataNode:
        return calculate("a / b", self, other)

    def __rtruediv__(self, other: Any) -> DataNode:
        return calculate("a / b", other, self)

    def __floordiv__(self, other: Any) -> DataNode:
        return calculate("a // b", self, other)

    def __rfloordiv__(self, other: Any) -> DataNode:
        return calculate("a // b", other, self)

    def __mod__(self, other: Any) -> DataNode:
        return calculate("a % b", self, other)

    def __rmod__(self, other: Any) -> DataNode:
        return calculate("a % b", other, self)

    def __pow__(self, other: Any) -> DataNode:
        return calculate("a ** b", self, other)

    def __rpow__(self, other: Any) -> DataNode:
        return calculate("a ** b", other, self)

    def __and__(self, other: Any) -> DataNode:
        return calculate("a & b", self, other)

    def __rand__(self, other: Any) -> DataNode:
        return calculate("a & b", other, self)

    def __or__(self, other: Any) -> DataNode:
        return calculate("a | b", self, other)

    def __ror__(self, other: Any) -> DataNode:
        return calculate("a | b", other, self)

    def __xor__(self, other: Any) -> DataNode:
        return calculate("a ^ b", self, other)

    def __rxor__(self, other: Any) -> DataNode:
        return calculate("a ^ b", other, self)

    def __lshift__(self, other: Any) -> DataNode:
        return calculate("a << b", self, other)

    def __rshift__(self, other: Any) -> DataNode:
        return calculate("a >> b", self, other)

    def __lt__(self, other: Any) -> DataNode:
        return calculate("a < b", self, other)

    def __le__(self, other: Any) -> DataNode:
        return calculate("a <= b", self, other)

    def __gt__(self, other: Any) -> DataNode:
        return calculate("a > b", self, other)

    def __ge__(self, other: Any) -> DataNode:
        return calculate("a >= b", self, other)

    def __eq__(self, other: object) -> DataNode:  # type: ignore[override]  # elementwise, as in NumPy
        return calculate("a == b", self, other)

    def __ne__(self, other: object) -> DataNode:  # type: ignore[override]
        return calculate("a != b", self, other)

    __hash__ = object.__hash__

    def __neg__(self) -> DataNode:
        return calculate("-a", self)

    def __pos__(self) -> DataNode:
        return calculate("+a", self)

    def __invert__(self) -> DataNode:
        return calculate("~a", self)


def calculate(expression: str, a: Any, b: Any = None) -> DataNode:
    """An ``expr`` node; numbers stand in the expression as constants."""
    inputs = []
    for name, operand in (("a", a), ("b", b)):
        if operand is None:
            continue
        if isinstance(operand, DataNode):
            inputs.append(operand)
        else:
            value = np.asarray(operand)
            if value.ndim:
                inputs.append(one(apply("constant", [], {"value": operand})))
            else:
                expression = expression.replace(name, f"({value.item()!r})")
    letters = iter("ab")
    for name in "ab":
        if name in expression:
            expression = expression.replace(name, next(letters))
    return one(apply("expr", inputs, {"expr": expression}))


def one(result: DataNode | list[DataNode]) -> DataNode:
    """The only output of an operator."""
    assert isinstance(result, DataNode)
    return result


def apply(op: str | type[Operator], inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> DataNode | list[DataNode]:
    """Add an operator to the current graph, by DALI's rules of calling. Raises SpecError with the operator's name."""
    cls = find(op) if isinstance(op, str) else op
    builder = current_builder()
    reserved = {k: kwargs[k] for k in _RESERVED if k in kwargs and kwargs[k] is not None}
    rest = {k: v for k, v in kwargs.items() if k not in _RESERVED and v is not None}
    nodes = [i if isinstance(i, DataNode) else one(apply("constant", [], {"value": i})) for i in inputs]
    device = _device(cls, nodes, reserved.get("device"))
    args = {k: _adopted(builder, v) if isinstance(v, DataNode) else v for k, v in rest.items()}
    try:
        edges = builder.add(
            cls,
            [_adopted(builder, n) for n in nodes],
            args,
            name=reserved.get("name"),
            device=device,
            seed=reserved.get("seed"),
        )
    except SpecError as e:
        raise SpecError(f"{cls.name}: {e}") from None
    where = "cpu" if device == "cpu" else "gpu"
    made = [DataNode(builder, e, where) for e in edges]
    return made[0] if len(made) == 1 else made


def _device(cls: type[Operator], inputs: Sequence[DataNode], asked: Any) -> DeviceRequest:
    if asked in ("cpu", "mixed", "gpu"):
        device: DeviceRequest = asked
        return device
    if asked is not None:
        raise SpecError(f"{cls.name}: device must be 'cpu', 'mixed' or 'gpu', got {asked!r}")
    if any(n.device == "gpu" for n in inputs):
        return "gpu"
    return "cpu" if "cpu" in cls.stages else cls.stages[0]


def _adopted(builder: GraphBuilder, node: DataNode) -> Edge:
    """The node's edge in ``builder``; operators that were called outside of it are copied into it."""
    return node.edge if node.builder is builder else builder.adopt(node.builder, node.edge)
