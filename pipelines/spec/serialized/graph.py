"""Conversion of a serialized pipeline to a graph: DALI's operators become dali-run's, its splits and merges
conditionals."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from ....ops.base import operators, parameters
from ....ops.errors import SpecError
from ....ops.types import DALIDataType, parse_dtype
from ...graph.builder import GraphBuilder
from ...graph.conditionals import Condition
from ...graph.legacy_names import callable_names, class_name
from ...graph.nodes import DeviceRequest, Edge
from ...plugins import find_operator, load_operators
from .definition import SavedOperator, SavedPipeline, TensorName

_SILENT = frozenset({"device", "preserve", "preserve_name", "bytes_per_sample_hint", "seed", "name"})
"""Arguments in DALI's file that are not parameters of operators. Arguments that begin with an underscore are not
either."""
_SYMBOLS = {
    "add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "fdiv": "{} / {}", "div": "{} // {}", "mod": "{} % {}",
    "eq": "{} == {}", "neq": "{} != {}", "lt": "{} < {}", "leq": "{} <= {}", "gt": "{} > {}", "geq": "{} >= {}",
    "bitand": "{} & {}", "bitor": "{} | {}", "bitxor": "{} ^ {}", "lshift": "{} << {}", "rshift": "{} >> {}",
    "minus": "-{}", "plus": "+{}", "bitnot": "~{}",
}  # fmt: skip
"""Symbols of dali-run's expressions, such as ``+``, by the name in DALI's file. All other names in expressions are
functions, and stay the same."""
_CALL = re.compile(r"([a-z][a-z0-9_]*)\(([^()]*)\)")
_OPERAND = re.compile(r"&(\d{1,6})|\$(\d{1,6}):([a-z0-9]+)")
_FEATURE_TYPES = {0: "int64", 1: "string", 2: "float"}
_REFUSED = re.compile(r"(?i).*python_?function.*|numba_?func.*|.*python_?function_?impl")
Path = tuple[tuple[Edge, bool], ...]
"""Nested branches of conditionals in which a tensor is computed, outermost first. Each is (condition, whether it is the
branch for true)."""


@dataclass(frozen=True, slots=True)
class _Tensor:
    edge: Edge
    device: str
    path: Path = ()


@cache
def _names_of_schemas() -> dict[str, str]:
    """Return the operator names of dali-run, by the names in DALI's files."""
    load_operators()
    registered = operators()
    known = callable_names(registered, (alias for op in registered.values() for alias in op.aliases))
    schemas = {class_name(n).replace(".", "__"): n for n in known.values()}
    schemas |= {class_name(old).replace(".", "__"): new for old, new in known.items()}
    return {**schemas, "readers___TFRecord": "readers.tfrecord", "_TFRecordReader": "readers.tfrecord",
            "TFRecordReader": "readers.tfrecord", "_Shape": "shapes", "Copy": "copy"}  # fmt: skip


def convert(saved: SavedPipeline) -> tuple[GraphBuilder, dict[str, Edge]]:
    """Convert the pipeline to a graph in a builder, and its outputs by number. Raises SpecError that names the operator
    that cannot be converted."""
    conversion = _Conversion(on_gpu=_uses_gpu(saved))
    for op in saved.operators:
        try:
            conversion.add(op)
        except SpecError as e:
            raise e.at(op.shown) from None
        except (TypeError, ValueError, OverflowError) as e:  # the value is of another kind than DALI writes there
            raise SpecError(f"{op.shown}: an argument is wrong: {e}") from None
    return conversion.builder, {str(k): conversion.read(t).edge for k, t in enumerate(saved.outputs)}


def _uses_gpu(saved: SavedPipeline) -> bool:
    tensors = (t for op in saved.operators for t in (*op.inputs, *op.outputs))
    return any(t.device == "gpu" for t in (*tensors, *saved.outputs))


class _Conversion:
    def __init__(self, on_gpu: bool) -> None:
        self.builder = GraphBuilder()
        self._on_gpu = on_gpu
        """Whether the pipeline has tensors on a GPU, so that each operator gets an explicit device."""
        self._tensors: dict[str, _Tensor] = {}
        self._conditions: dict[tuple[Edge, Path], Edge] = {}
        self._copies: dict[tuple[Edge, str, Path], _Tensor] = {}

    # -- tensors ------------------------------------------------------------------------------------------------

    def read(self, name: TensorName) -> _Tensor:
        """Return the tensor ``name`` on the device that its use requires; a copy is added if it is on another one.
        Raises SpecError."""
        tensor = self._tensors.get(name.name)
        if tensor is None:
            raise SpecError(f"the file uses {name.name!r} before it is defined")
        if tensor.device == name.device:
            return tensor
        key = (tensor.edge, name.device, tensor.path)
        if key not in self._copies:
            device: DeviceRequest = "gpu" if name.device == "gpu" else "cpu"
            with self._inside(tensor.path):
                (edge,) = self.builder.add("copy", [tensor.edge], device=device)
            self._copies[key] = _Tensor(edge, name.device, tensor.path)
        return self._copies[key]

    def _write(self, op: SavedOperator, tensors: Sequence[_Tensor]) -> None:
        if len(tensors) != len(op.outputs):
            raise SpecError(f"has {len(op.outputs)} outputs in the file, but {len(tensors)} in dali-run")
        for name, tensor in zip(op.outputs, tensors, strict=True):
            if name.name in self._tensors:
                raise SpecError(f"the file defines {name.name!r} twice")
            self._tensors[name.name] = tensor

    @contextmanager
    def _inside(self, path: Path) -> Iterator[None]:
        for condition, branch in path:
            self.builder.enter(condition, branch)
        try:
            yield
        finally:
            for _ in path:
                self.builder.leave()

    @staticmethod
    def _path(tensors: Sequence[_Tensor]) -> Path:
        """Return the branches of conditionals in which an operator with these inputs runs, which are those of the most
        nested input."""
        deepest = max((t.path for t in tensors), key=len, default=())
        if any(deepest[: len(t.path)] != t.path for t in tensors):
            raise SpecError("its inputs are from different branches of conditionals")
        return deepest

    # -- operators ----------------------------------------------------------------------------------------------

    def add(self, op: SavedOperator) -> None:
        """Add one operator of DALI's file to the graph. Raises SpecError."""
        if _REFUSED.fullmatch(op.schema):
            raise SpecError("calls a Python function, which serialized pipelines do not contain; remove it from the "
                            "pipeline, or write the pipeline in Python")  # fmt: skip
        inputs = [self.read(t) for t in op.inputs if not t.argument]
        named = {t.argument: self.read(t) for t in op.inputs if t.argument}
        own: dict[str, Callable[..., None]] = {
            "_conditional__Split": self._split, "_conditional__Merge": self._merge,
            "_conditional__Not_": self._not, "_conditional__ValidateLogical": self._validate,
            "_ArithmeticGenericOp": self._arithmetic, "ArithmeticGenericOp": self._arithmetic,
            "_TensorSubscript": self._subscript, "_SubscriptDimCheck": self._subscript,
            "MakeContiguous": self._pass_on,
        }  # fmt: skip
        if op.schema in own:
            own[op.schema](op, inputs, named)
            return
        name = _names_of_schemas().get(op.schema)
        if name is None:
            raise SpecError("DALI has this operator, dali-run does not" if op.schema[:1].isupper() or "__" in op.schema
                            else "is not an operator that dali-run knows")  # fmt: skip
        constants = {k: v for k, v in op.arguments.items() if k not in _SILENT and not k.startswith("_")}
        if name == "readers.tfrecord":
            constants = _with_features(constants)
        if name == "external_source":
            constants = _with_promises(constants)
        edges = self._call(op, name, inputs, constants, named)
        if op.arguments.get("preserve") is True:
            self.builder.sinks += edges[:1]

    def _call(
        self, op: SavedOperator, name: str, inputs: Sequence[_Tensor], constants: Mapping[str, Any],
        named: Mapping[str, _Tensor],
    ) -> tuple[Edge, ...]:  # fmt: skip
        """Add a node for the stored operator ``op``, which is called ``name`` here, and register its outputs as
        tensors."""
        cls = find_operator(name)
        known = parameters(cls)
        values = {k: _fitting(v, known[k].is_vector) if k in known else v for k, v in constants.items()}
        path = self._path([*inputs, *named.values()])
        seed = op.arguments.get("seed")
        with self._inside(path):
            edges = self.builder.add(
                cls,
                [t.edge for t in inputs],
                {**values, **{k: t.edge for k, t in named.items()}},
                name=self._own_name(op),
                device=self._device(op),
                seed=seed if isinstance(seed, int) and seed >= 0 else None,
            )
        on_host = bool(edges) and self.builder.nodes[edges[0].node].reads_to_gpu  # outputs of the pipeline are copied
        outputs = zip(edges, op.outputs, strict=False)
        self._write(op, [_Tensor(e, "cpu" if on_host else t.device, path) for e, t in outputs])
        return edges

    def _own_name(self, op: SavedOperator) -> str | None:
        """Return the name that the user's program gave to the operator; None if DALI generated it."""
        preserved = op.arguments.get("preserve_name", not op.name.startswith("__"))
        return op.name if preserved is True and op.name else None

    def _device(self, op: SavedOperator) -> DeviceRequest:
        device = op.arguments.get("device", "cpu")
        if device not in ("cpu", "mixed", "gpu"):
            raise SpecError(f"device is {device!r}; there are cpu, mixed and gpu")
        device_request: DeviceRequest = device if self._on_gpu else "auto"
        return device_request

    def _pass_on(self, op: SavedOperator, inputs: Sequence[_Tensor], named: Mapping[str, _Tensor]) -> None:
        self._write(op, _exactly(inputs, 1))

    # -- conditionals -------------------------------------------------------------------------------------------

    def _condition(self, tensor: _Tensor, statement: str) -> Edge:
        key = (tensor.edge, tensor.path)
        if key not in self._conditions:
            with self._inside(tensor.path):
                (self._conditions[key],) = self.builder.add(Condition, [tensor.edge], {"what": statement})
        return self._conditions[key]

    def _split(self, op: SavedOperator, inputs: Sequence[_Tensor], named: Mapping[str, _Tensor]) -> None:
        (data,) = _exactly(inputs, 1)
        predicate = _predicate(named)
        path = self._path([data, predicate])
        condition = self._condition(predicate, "if")
        self._write(op, [_Tensor(data.edge, data.device, (*path, (condition, b))) for b in (True, False)])

    def _merge(self, op: SavedOperator, inputs: Sequence[_Tensor], named: Mapping[str, _Tensor]) -> None:
        then, otherwise = _exactly(inputs, 2)
        condition = self._condition(_predicate(named), "if")
        if not then.path or then.path[-1] != (condition, True) or otherwise.path != (*then.path[:-1],
                                                                                    (condition, False)):  # fmt: skip
            raise SpecError("its inputs are not the two branches of its predicate")
        path = then.path[:-1]
        with self._inside(path):
            edge = self.builder.merge(condition, then.edge, otherwise.edge)
        self._write(op, [_Tensor(edge, then.device, path)])

    def _not(self, op: SavedOperator, inputs: Sequence[_Tensor], named: Mapping[str, _Tensor]) -> None:
        (data,) = _exactly(inputs, 1)
        condition = _Tensor(self._condition(data, "not"), data.device, data.path)
        self._call(op, "expr", [condition], {"expr": "not a"}, {})

    def _validate(self, op: SavedOperator, inputs: Sequence[_Tensor], named: Mapping[str, _Tensor]) -> None:
        (data,) = _exactly(inputs, 1)
        expression = op.arguments.get("expression_name", "and")
        self._write(op, [_Tensor(self._condition(data, str(expression)), data.device, data.path)])

    # -- arithmetic and indexing --------------------------------------------------------------------------------

    def _arithmetic(self, op: SavedOperator, inputs: Sequence[_Tensor], named: Mapping[str, _Tensor]) -> None:
        text = op.arguments.get("expression_desc")
        if not isinstance(text, str):
            raise SpecError("has no expression_desc")
        integers, reals = (_list(op.arguments.get(k, [])) for k in ("integer_constants", "real_constants"))
        used: list[_Tensor] = []

        def operand(match: re.Match[str]) -> str:
            if match[1]:
                if int(match[1]) >= len(inputs):
                    raise SpecError(f"{text!r} uses an input that the operator does not have")
                used.append(inputs[int(match[1])])
                return _letter(len(used) - 1)
            return _constant(int(match[2]), match[3], integers, reals)

        self._call(op, "expr", used, {"expr": _expression(text, operand)}, {})

    def _subscript(self, op: SavedOperator, inputs: Sequence[_Tensor], named: Mapping[str, _Tensor]) -> None:
        all_arguments = {**op.arguments, **named}
        dims = all_arguments.get("num_subscripts")
        if not isinstance(dims, int) or not 0 < dims <= 32:
            raise SpecError(f"num_subscripts is {dims!r}")
        kinds, parts = "", {"start": [0] * dims, "stop": [0] * dims, "step": [1] * dims}
        where = (("at", "start"), ("lo", "start"), ("hi", "stop"), ("step", "step"))
        for k in range(dims):
            has = {n: all_arguments[f"{n}_{k}"] for n in ("at", "lo", "hi", "step") if f"{n}_{k}" in all_arguments}
            kinds += "i" if "at" in has else {(0, 0): ":", (1, 0): "[", (0, 1): "]", (1, 1): "s"}[
                ("lo" in has, "hi" in has)
            ]  # fmt: skip
            for name, part in where:
                if name in has:
                    parts[part][k] = has[name]
        path = self._path([*inputs, *named.values()])
        constants: dict[str, Any] = {"kinds": kinds}
        vectors: dict[str, _Tensor] = {}
        for part, values in parts.items():
            if any(isinstance(v, _Tensor) for v in values):
                vectors[part] = _Tensor(self._stacked(values, path), "cpu", path)
            elif part != "step" or any(v != 1 for v in values):
                constants[part] = values
        self._call(op, "tensor_subscript", inputs, constants, vectors)

    def _stacked(self, values: Sequence[Any], path: Path) -> Edge:
        """Combine numbers, and tensors with one number per sample, into a batch with one vector per sample."""
        with self._inside(path):
            rows = []
            for v in values:
                if not isinstance(v, _Tensor):
                    (edge,) = self.builder.add("constant", [], {"idata": [v], "shape": [], "dtype": "INT64"})
                else:
                    (edge,) = self.builder.add("cast", [v.edge], {"dtype": DALIDataType.INT64})
                rows.append(edge)
            (stacked,) = self.builder.add("stack", rows, {})
        return stacked


def _exactly(inputs: Sequence[_Tensor], n: int) -> Sequence[_Tensor]:
    if len(inputs) != n:
        raise SpecError(f"takes {n} input{'s' * (n > 1)}, got {len(inputs)}")
    return inputs


def _predicate(named: Mapping[str, _Tensor]) -> _Tensor:
    if set(named) != {"predicate"}:
        raise SpecError("needs a predicate")
    return named["predicate"]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _fitting(value: Any, vector: bool) -> Any:
    """Return an argument's value in the form that dali-run's operator expects. DALI also stores a single number as a
    list, ``[8.0]``. Its only element is returned, unless the argument needs a list (``vector``)."""
    return value[0] if isinstance(value, list) and len(value) == 1 and not vector else value


def _letter(k: int) -> str:
    if k >= 26:
        raise SpecError("an expression has more than 26 inputs")
    return "abcdefghijklmnopqrstuvwxyz"[k]


def _constant(index: int, kind: str, integers: Sequence[Any], reals: Sequence[Any]) -> str:
    """Return constant number ``index`` of DALI's expression, written there as ``$0:int32``, as text for an expression
    of dali-run."""
    values = reals if kind.startswith("float") else integers
    if index >= len(values):
        raise SpecError(f"the expression uses constant {index}, of {len(values)}")
    value = values[index]
    kind = "float" if kind == "float32" else kind
    if not isinstance(value, (bool, int, float)) or not math.isfinite(value):
        raise SpecError(f"the expression uses {value}, which cannot be written in an expression here")
    if kind == "bool":
        return repr(bool(value))
    return f"({value!r})" if kind in ("int32", "float") else f"{kind}({value!r})"


def _expression(text: str, operand: Callable[[re.Match[str]], str]) -> str:
    """Convert DALI's arithmetic, such as ``add(&0 $0:int32)``, to an expression of dali-run; calls may be nested.
    ``operand`` returns the text for an operand."""
    if len(text) > 10_000:
        raise SpecError("an expression is longer than 10,000 characters")
    subexpressions: list[str] = []

    def part(word: str) -> str:
        match = _OPERAND.fullmatch(word)
        if match:
            return operand(match)
        if word.startswith("#") and word[1:].isdigit() and int(word[1:]) < len(subexpressions):
            return subexpressions[int(word[1:])]
        raise SpecError(f"{text[:80]!r} is not an expression: {word[:40]!r} is not an operand")

    def call(match: re.Match[str]) -> str:
        words = [part(w) for w in match[2].split()]
        template = _SYMBOLS.get(match[1])
        if template is not None and template.count("{}") != len(words):
            raise SpecError(f"{match[1]} takes {template.count('{}')} operands, got {len(words)}")
        subexpressions.append(f"({template.format(*words)})" if template else f"{match[1]}({', '.join(words)})")
        return f" #{len(subexpressions) - 1} "

    while (after := _CALL.sub(call, text)) != text:
        text = after
    result = part(text.strip())
    return result[1:-1] if result.startswith("(") and result.endswith(")") else result


def _with_promises(constants: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stored arguments of external_source for dali-run: with the name of the type, and without an empty
    layout."""
    arguments = {k: v for k, v in constants.items() if not (k == "layout" and v == "")}
    if "dtype" in arguments:
        arguments["dtype"] = parse_dtype(arguments["dtype"]).name
    return arguments


def _with_features(constants: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stored arguments of readers.tfrecord for dali-run, with the features as one mapping by name."""
    remaining = {k: v for k, v in constants.items() if k not in ("features", "feature_names")}
    names, features = (_list(constants.get(k, [])) for k in ("feature_names", "features"))
    if len(names) != len(features):
        raise SpecError(f"has {len(names)} names for {len(features)} features")
    return {**remaining, "features": {str(n): _feature(f) for n, f in zip(names, features, strict=True)}}


def _feature(saved: Any) -> dict[str, Any]:
    if not isinstance(saved, Mapping) or saved.get("type") not in _FEATURE_TYPES:
        raise SpecError(f"a feature cannot be read: {str(saved)[:80]}")
    feature: dict[str, Any] = {"dtype": _FEATURE_TYPES[saved["type"]]}
    if not saved.get("has_shape"):
        return {**feature, "shape": _list(saved.get("partial_shape", [])), "var_len": True}
    feature["shape"] = _list(saved.get("shape", []))
    default = saved.get("default_value")
    return feature if default is None else {**feature, "default": default}
