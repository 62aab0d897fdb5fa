"""Calls of operators: results now or later, of tensors and batches; and arithmetic, which is one of them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ops.base import Operator, parameters
from ...ops.batch import Batch as Data
from ...ops.errors import ArgumentTypeError, ArgumentValueError, DaliRunError, RaggedError, SpecError
from ...ops.formulas.arithmetic import Expr
from ...ops.types import DALIDataType, DALIImageType, DALIInterpType, to_numpy
from ..graph.arguments import is_tensor
from ..python.data_node import ScalarConstant, literal
from ..python.tensors import TensorList
from . import calls
from .contexts import EvalContext, EvalMode
from .data import ONE, device_of, moved_to, numbered, repeated
from .devices import Device
from .dtypes import DType, type_id
from .rng import RNG, get_default_rng
from .values import Batch, Tensor, Value, as_batch, as_tensor, made

_PLAIN = frozenset({int, float, bool, str, DALIDataType, DALIImageType, DALIInterpType})


class _Loops(threading.local):
    def __init__(self) -> None:
        self.steps: list[Any] = []
        """The iterations of captured loops that this thread is in, innermost last."""


loops = _Loops()


def invoke(
    cls: type[Operator], inputs: Sequence[Any], arguments: Any, batch_size: int | None = None, device: Any = None,
    rng: RNG | None = None,
) -> Any:  # fmt: skip
    """The results of operator ``cls``: a Tensor or Batch, or a tuple of them. There are batches where one of the inputs
    or arguments is a Batch, or ``batch_size`` is given; then tensors stand for all samples.

    Raises SpecError (also a TypeError or ValueError) for a call that cannot be, SampleError for data that cannot be
    processed; both name the program's line.
    """
    values: list[Value] = []
    n, traced = batch_size, None
    for x in inputs:
        kind = type(x)
        if kind is not Tensor:
            if kind is Batch:
                n = _size(cls, n, x, batch_size)
            else:
                x = _input(cls, x)
                if type(x) is Batch:
                    n = _size(cls, n, x, batch_size)
        if x.trace is not None:
            traced = x.trace
        values.append(x)
    constants: list[calls.Constant] = []
    named: dict[str, Value] | None = None
    for name, value in arguments.items():
        if value is None:
            continue
        kind = type(value)
        if kind in _PLAIN:
            constants.append((name, kind, value))
        elif kind is Tensor or kind is Batch:
            if kind is Batch:
                n = _size(cls, n, value, batch_size)
            if value.trace is not None:
                traced = value.trace
            if named is None:
                named = {}
            named[name] = value
        elif is_tensor(parameters(cls).get(name), value):
            named = {**(named or {}), name: _input(cls, value)}
        else:
            constants.append((name, *_constant(cls, name, value)))
    anywhere = device in ("gpu", "cuda")
    if device is not None:
        device = device_of(device)
    elif not values and Device.current().device_type == "gpu" and "gpu" in cls.stages:
        device = Device.current()
    fixed, names = tuple(constants), tuple(named) if named else ()
    on_device = False
    for v in values:
        if v._data is None or not isinstance(v._data.data, np.ndarray):
            on_device = on_device or not v.device.on_host
    if anywhere and on_device:
        device = None  # that of the inputs
    try:
        plan = calls.plan_for(cls, len(values), device, on_device, fixed, names)
    except SpecError as e:
        raise calls.refused(e, cls.name) from None
    state = None
    if plan.random:
        if rng is None:
            rng = get_default_rng()
        elif type(rng) is not RNG:
            raise ArgumentTypeError(f"{calls.line()}: {cls.name}: rng must be an RNG, got {rng!r}")
        state = rng.seven()
    elif rng is not None:
        raise ArgumentTypeError(f"{calls.line()}: {cls.name}: draws no random numbers, and takes no rng")
    if traced is None and not values and named is None and loops.steps:
        traced = (loops.steps[-1],)  # what a captured body makes of nothing is made ahead, too
    if traced is not None:
        return traced[0].invoke(plan, values, named or {}, n, state, rng)
    return dispatch(plan, values, named, n, state)


def dispatch(
    plan: calls.Plan, values: Sequence[Value], named: dict[str, Value] | None, n: int | None, state: calls.State | None
) -> Any:
    """Run a call whose plan is made, now or later, as the mode has it."""
    now = EvalMode.current()
    if now is EvalMode.deferred:
        return _deferred(plan, values, named, n, state)
    results = compute(plan, values, named, n, state, EvalContext.current())
    kind = Tensor if n is None else Batch
    if plan.outputs == 1:
        return made(kind, results[0])
    return tuple([made(kind, r) for r in results])


def compute(
    plan: calls.Plan, values: Sequence[Value], named: dict[str, Value] | None, n: int | None,
    state: calls.State | None, context: EvalContext, where: str = "",
) -> tuple[Data, ...]:  # fmt: skip
    """The results of a call, in the engine's form."""
    if n is None:
        given = [v.held() for v in values]
    else:
        given = [v.held() if type(v) is Batch else repeated(v.held(), n) for v in values]
    args = {}
    if named:
        for name, value in named.items():
            data = value.held()
            if not isinstance(data.data, np.ndarray):
                data = moved_to(data, Device.CPU)
            args[name] = data if n is None or type(value) is Batch else repeated(data, n)
    samples = given[0].samples if given else ONE if n is None else numbered(n)
    return calls.run(plan, given, args, samples, state, context, where)


def _deferred(
    plan: calls.Plan, values: Sequence[Value], named: dict[str, Value] | None, n: int | None, state: calls.State | None
) -> Any:
    where, context = calls.line(), EvalContext.current()
    try:
        specs = plan.infer(tuple(_kind(v) for v in values))
    except SpecError as e:
        raise calls.refused(e, plan.op.name, where) from None
    later = calls.Later(lambda: compute(plan, values, named, n, state, context, where), specs, plan.stage == "cpu")
    context.wait_for(later)
    kind = Tensor if n is None else Batch
    results = [made(kind, None, (later, k)) for k in range(plan.outputs)]
    return results[0] if plan.outputs == 1 else tuple(results)


def _kind(value: Value) -> tuple[Any, Any, str]:
    if value._data is not None or value._later is None or not value._later[0].specs:
        return calls.kind_of(value.held())
    spec = value._later[0].specs[value._later[1]]
    return spec.ndim, None if spec.dtype is None else to_numpy(spec.dtype), spec.layout


def _size(cls: type[Operator], n: int | None, value: Batch, asked: int | None) -> int:
    """The batch size with one more batch. Raises ValueError where they differ; ``batch_size`` is for tensors."""
    own = value.batch_size
    if n is not None and n != own and n != asked:
        raise ArgumentValueError(f"{calls.line()}: {cls.name}: the batches of one call have one size: {n} and {own}")
    return own


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
    """The type and the value of a constant argument, hashable where it can be: lists and arrays as tuples."""
    if isinstance(value, DType):
        return DALIDataType, type_id(value)
    if isinstance(value, ScalarConstant):
        value = value.value
    elif isinstance(value, (list, tuple)) and any(isinstance(v, Value) for v in value):
        raise ArgumentTypeError(f"{calls.line()}: {cls.name}: argument {name!r} is a list with Tensors in it; make one "
                                "Tensor or Batch of it, with stack or batch")  # fmt: skip
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
    """An expression, elementwise: ``template`` with a ``{}`` for each operand. Numbers have DALI's types: int32 and
    float32, or that of a NumPy number. Raises SpecError where types or shapes do not go together."""
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
