"""Translate a graph into a Python script for NVIDIA DALI, which measures it in the same way as `bench.measure`."""

from __future__ import annotations

import ast
import enum
from collections.abc import Mapping
from typing import Any

from ....ops.audio.decoders import Audio
from ....ops.base import parameters
from ....ops.errors import SpecError
from ....ops.formulas.arithmetic import Expr
from ....readers.records.example import FixedLenFeature, declared
from ....readers.tfrecord import TFRecord
from ...compile.place import Target, is_late
from ...compile.plan import parity_of
from ...graph.conditionals import Merge, Split
from ...graph.nodes import Edge, Graph, Node
from ...spec.model import Settings

_OURS_ALONE = ("encoders.", "python_function", "expr.")
_OURS_TO_CHOOSE = ("jpeg_decoder", "hw_decoder_load")
"""Arguments that choose between dali-run's own decoders. DALI does not get them, and uses its default decoders."""

_FEATURE_TYPES: Mapping[str, tuple[str, Any]] = {
    "string": ("string", ""),
    "int64": ("int64", 0),
    "float": ("float32", 0.0),
}
"""DALI's names of the types of TFRecord features, each with the default value that DALI requires."""

_HEAD = '''"""Made by `dali-run bench`: the graph of a spec for NVIDIA DALI."""
import glob
import json
import os
import resource
import struct
import sys
import time

import nvidia.dali
from nvidia.dali import backend, fn, math, tfrecord, types


def refuse(why):
    print(json.dumps({"refused": why}))
    sys.exit()


def check(name, arguments):
    op = fn
    for part in name.split("."):
        op = getattr(op, part, None)
    if op is None:
        refuse(f"DALI {nvidia.dali.__version__} has no operator {name}")
    schema = getattr(op, "_schema_name", None)
    for argument in arguments if schema else ():
        if not backend.GetSchema(schema).HasArgument(argument):
            refuse(f"DALI's {name} has no argument {argument}")


def read_tfrecord(path, features, **arguments):
    """readers.tfrecord with the index files that DALI needs, in the order of the features."""
    paths = [f for p in ([path] if isinstance(path, str) else path) for f in sorted(glob.glob(p)) or [p]]
    indexes = []
    for number, file in enumerate(paths):
        at, end, lines = 0, os.path.getsize(file), []
        with open(file, "rb") as records:
            while at < end:
                records.seek(at)
                size = 16 + struct.unpack("<Q", records.read(8))[0]
                lines.append(f"{at} {size}\\n")
                at += size
        indexes.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{number}.idx"))
        with open(indexes[-1], "w") as index:
            index.writelines(lines)
    made = {k: tfrecord.FixedLenFeature(shape, getattr(tfrecord, dtype), default)
            for k, (shape, dtype, default) in features.items()}
    given = fn.readers.tfrecord(path=paths, index_path=indexes, features=made, **arguments)
    return [given[k] for k in features]


def cast_to(dtype):
    return lambda x: fn.cast(x, dtype=dtype)


FUNCTIONS = {k: v for k, v in vars(math).items() if not k.startswith("_")}
FUNCTIONS |= {k: cast_to(getattr(types, k.upper(), None)) for k in (
    "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float", "float16", "float64", "bool")}
'''

_TAIL = """
began = time.perf_counter()
pipe.build()
outputs = pipe.run()
first = time.perf_counter() - began
made = [[x.dtype.name, len(x.shape()[0]), x.layout()] for x in outputs]


def take():
    outputs = pipe.run()
    if TO_HOST:
        outputs = [x.as_cpu() if hasattr(x, "as_cpu") else x for x in outputs]
    return len(outputs[0])


for _ in range(WARM_UP):
    take()
samples = batches = 0
began = time.perf_counter()
while (taken := time.perf_counter() - began) < SECONDS or batches < MIN_BATCHES:
    samples += take()
    batches += 1
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"samples_per_second": samples / taken, "first_batch_seconds": first, "outputs": made,
                  "version": nvidia.dali.__version__, "memory": {"peak_host_bytes": peak}}))
"""


def dali_script(
    graph: Graph,
    target: Target,
    settings: Settings,
    threads: int,
    *,
    seconds: float,
    warm_up: int,
    to_host: bool,
    fewest: int = 1,
) -> str:
    """Return the Python script that measures ``graph`` with DALI. The last line that it prints is JSON. The graph must
    have devices for all operators, and not be fused."""
    if target.device == "null":
        raise SpecError("DALI does not have the device null")
    checks, lines = [], []
    for node in graph.nodes:
        checks.append(_check(node))
        lines.append(f"    n{node.id} = {_call(graph, node)}")
    outputs = ", ".join(_edge(e) for e in graph.outputs.values())
    on_gpu = target.device == "gpu"
    script_lines = {
        "batch_size": settings.batch_size,
        "num_threads": threads,
        "device_id": target.index if on_gpu else None,
        "prefetch_queue_depth": settings.prefetch_gpu if on_gpu else settings.prefetch_cpu,
        "seed": settings.seed,
    }
    constants = f"SECONDS, WARM_UP, TO_HOST, MIN_BATCHES = {seconds!r}, {warm_up!r}, {to_host!r}, {fewest!r}\n"
    pipe = f"pipe = nvidia.dali.Pipeline({_keywords(script_lines)})\nwith pipe:\n"
    pipe += "\n".join(lines) + f"\n    pipe.set_outputs({outputs})\n"
    return "\n".join([_HEAD, *filter(None, checks), constants + pipe]) + _TAIL


def _check(node: Node) -> str:
    if isinstance(node.op, (Split, Merge)):
        raise SpecError("conditionals are not translated to DALI")
    if isinstance(node.op, Expr):
        return ""
    if node.op.name.startswith(_OURS_ALONE):
        raise SpecError(f"DALI has no {node.op.name}")
    if parity_of(node.op) and not (isinstance(node.op, Audio) and not node.op.is_set("sample_rate")):
        raise SpecError(f"{node.name}: DALI has no parity: {parity_of(node.op)}; measure with parity: dali")
    arguments = [k for k in (*_constants(node), *node.args) if not (isinstance(node.op, TFRecord) and k == "features")]
    return f"check({node.op.name!r}, {arguments!r})"


def _call(graph: Graph, node: Node) -> str:
    inputs = [_input(graph, node, e) for e in node.inputs]
    if isinstance(node.op, Expr):
        return f"({_expression(node.op, inputs)},)"
    constants = _constants(node)
    function = f"fn.{node.op.name}"
    values = {}
    if isinstance(node.op, TFRecord):
        function = "read_tfrecord"
        constants.pop("index_path", None)
        values["features"] = _features(constants.pop("features", None))
    elif getattr(node.op, "output_names", None):
        raise SpecError(f"{node.op.name} is not translated to DALI: it gives a mapping there")
    values |= {k: _literal(v, f"{node.name}: {k}") for k, v in constants.items()}
    values |= {k: _edge(e) for k, e in node.args.items()}
    if node.seed is not None:
        values["seed"] = repr(node.seed)
    values["device"] = repr(node.stage)
    call = f"{function}({', '.join([*inputs, *(f'{k}={v}' for k, v in values.items())])})"
    return call if node.op.num_outputs > 1 or isinstance(node.op, TFRecord) else f"({call},)"


def _features(features: Mapping[str, Any] | None) -> str:
    """Return TFRecord features as (shape, type, default), in the form that `read_tfrecord` in the script expects."""
    if features is None:
        raise SpecError("readers.tfrecord without features is not translated to DALI")
    features_text = {}
    for name, feature in declared(features).items():
        if not isinstance(feature, FixedLenFeature) or feature.default is not None:
            raise SpecError(f"feature {name!r} is not translated to DALI: it has any length or a default")
        dtype, empty = _FEATURE_TYPES[feature.dtype]
        features_text[name] = (list(feature.shape), dtype, empty)
    return repr(features_text)


def _expression(op: Expr, inputs: list[str]) -> str:
    tree = ast.parse(op.expr, mode="eval")
    if any(isinstance(n, (ast.BoolOp, ast.Not, ast.IfExp)) for n in ast.walk(tree)):
        raise SpecError(f"the expression {op.expr!r} is not translated to DALI: it has and, or, or not")
    names = op.names or tuple("abcdefghijklmnopqrstuvwxyz")[: len(inputs)]
    return f"eval({op.expr!r}, FUNCTIONS | {{{', '.join(f'{k!r}: {v}' for k, v in zip(names, inputs, strict=True))}}})"


def _constants(node: Node) -> dict[str, Any]:
    """Return the arguments of a node that differ from the defaults, which dali-run and DALI have in common."""
    return {
        p.name: getattr(node.op, p.name)
        for p in parameters(type(node.op)).values()
        if p.name not in node.op.per_sample and p.name not in _OURS_TO_CHOOSE and getattr(node.op, p.name) != p.default
    }


def _input(graph: Graph, node: Node, edge: Edge) -> str:
    """Return the Python expression for an input of a node, with the copy to or from a GPU that DALI requires."""
    before = graph.node(edge)
    on_device = before.stage != "cpu" and not is_late(before)
    if node.stage == "gpu" and not on_device:
        return f"{_edge(edge)}.gpu()"
    if node.stage == "cpu" and on_device:
        return f"{_edge(edge)}.cpu()"
    return _edge(edge)


def _edge(edge: Edge) -> str:
    return f"n{edge.node}[{edge.output}]"


def _keywords(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{k}={v!r}" for k, v in values.items())


def _literal(value: Any, what: str) -> str:
    """Return a constant as Python source text, with DALI's enumerations. ``what`` names it in error messages."""
    if isinstance(value, enum.Enum):
        return f"types.{value.name}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_literal(v, what) for v in value) + "]"
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    raise SpecError(f"{what} is not translated to DALI: {value!r} is no plain value")
