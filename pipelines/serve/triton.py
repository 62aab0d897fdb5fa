"""Model repositories for the Python backend of NVIDIA Triton, written for a spec by `dali-run serve-model`.

    REPOSITORY/NAME/config.pbtxt    types, batching, instances
    REPOSITORY/NAME/1/model.py      loads spec.yaml with dali_run.plugin.triton
    REPOSITORY/NAME/1/spec.yaml     the graph; readers are inputs

Source: https://github.com/triton-inference-server/python_backend and Triton's model configuration.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...ops.errors import SpecError
from ...ops.types import DALIDataType
from ...readers.base import Reader
from ...readers.external_source import ExternalSource
from ..compile.prune import prune
from ..graph.nodes import Edge, Graph, Node
from ..graph.renumber import renumber
from ..problems import Problems
from ..spec.build import build
from ..spec.model import Condition, Settings, Spec, Step, parse_spec
from ..spec.python_file import marked
from ..spec.to_yaml import to_yaml
from .server import Port, inputs_of, outputs_of

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_TYPES = {
    DALIDataType.UINT8: "TYPE_UINT8", DALIDataType.UINT16: "TYPE_UINT16", DALIDataType.UINT32: "TYPE_UINT32",
    DALIDataType.UINT64: "TYPE_UINT64", DALIDataType.INT8: "TYPE_INT8", DALIDataType.INT16: "TYPE_INT16",
    DALIDataType.INT32: "TYPE_INT32", DALIDataType.INT64: "TYPE_INT64", DALIDataType.FLOAT16: "TYPE_FP16",
    DALIDataType.FLOAT: "TYPE_FP32", DALIDataType.FLOAT64: "TYPE_FP64", DALIDataType.BOOL: "TYPE_BOOL",
}  # fmt: skip
MODEL = '''"""Written by dali-run serve-model: the pipeline of spec.yaml for Triton's Python back end."""

from pathlib import Path

from dali_run.plugin.triton import ServedModel


class TritonPythonModel(ServedModel):
    spec = Path(__file__).with_name("spec.yaml")
'''
CONFIG, MODEL_FILE, SPEC_FILE = "config.pbtxt", "model.py", "spec.yaml"


@dataclass(frozen=True, slots=True)
class Model:
    """The files of a model for Triton, not written yet."""

    name: str
    spec: str
    config: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


def make_model(
    path: str,
    name: str,
    overrides: Mapping[str, Any] | None = None,
    *,
    outputs: Sequence[str] = (),
    strings: Sequence[str] = (),
    instances: int = 1,
) -> Model:
    """Return a model for Triton that serves the spec at ``path``, which may be a Python file with an autoserialize'd
    definition.

    Readers are replaced by inputs with the names of their batches. ``outputs`` are the outputs to serve, by default
    all; ``strings`` names inputs that accept encoded files as byte strings (TYPE_STRING). Raises SpecError, SpecErrors.
    """
    if not _NAME.fullmatch(name):
        raise SpecError(f"the name of a model has letters, digits, '_', '.' and '-', got {name!r}")
    problems = Problems()
    spec = parse_spec(marked(path) if path.endswith(".py") else path, overrides or {}, problems)
    if spec is None:
        problems.raise_any()
        raise AssertionError("a spec that cannot be read has a problem")
    if spec.plugins:
        raise SpecError("a spec with `plugins:` cannot be served: they are files; install them as a package whose "
                        "entry points name its operators")  # fmt: skip
    graph = build(replace(spec, write=None), problems).graph
    unknown = [o for o in outputs if o not in graph.outputs]
    if unknown:
        raise SpecError(f"there is no output {unknown[0]!r}; available: {', '.join(graph.outputs)}")
    chosen = {k: e for k, e in graph.outputs.items() if not outputs or k in outputs}
    served = with_inputs(prune(replace(graph, outputs=chosen)), _batch_names(spec))
    inputs, served_outputs = inputs_of(served), outputs_of(served)
    _check(inputs, served_outputs, strings)
    text = to_yaml(served, name=name, sections={"pipeline": _section(spec.pipeline)})
    return Model(
        name, text, _config(name, spec.pipeline, inputs, served_outputs, strings, instances), inputs, served_outputs
    )


def write_model(model: Model, repository: Path, force: bool = False) -> list[Path]:
    """Write the model below the folder ``repository``, Triton's model repository, and return the written files. Raises
    SpecError if a file already exists, unless ``force``."""
    folder = repository / model.name
    files = {folder / CONFIG: model.config, folder / "1" / MODEL_FILE: MODEL, folder / "1" / SPEC_FILE: model.spec}
    existing = [f for f in files if f.exists() or f.is_symlink()]
    if existing and not force:
        raise SpecError(f"{existing[0]} already exists; use --force to overwrite it")
    (folder / "1").mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        file.write_text(text, encoding="utf-8")
    return list(files)


# -- the graph --------------------------------------------------------------------------------------------------------


def _batch_names(spec: Spec) -> dict[tuple[str, int, int], tuple[str, ...]]:
    """Return the names that a spec gives to each step's output batches, by (file, line, column) of the step."""
    batch_names: dict[tuple[str, int, int], tuple[str, ...]] = {}

    def walk(steps: Sequence[Step | Condition]) -> None:
        for step in steps:
            if isinstance(step, Condition):
                walk(step.then)
                walk(step.otherwise)
            else:
                batch_names[step.mark.file, step.mark.line, step.mark.column] = tuple(r.name for r in step.outputs)

    walk(spec.graph)
    return batch_names


def with_inputs(graph: Graph, names: Mapping[tuple[str, int, int], Sequence[str]]) -> Graph:
    """Return ``graph`` with every used output of a reader replaced by an external_source. ``names`` are the names of
    the batches, by the position of their step.

    Raises SpecError if the result has no input, or if the type of an input is unknown.
    """
    used = {e for n in graph.nodes for e in n.reads} | set(graph.outputs.values())
    nodes: list[Node] = []
    new: dict[Edge, Edge] = {}
    for node in graph.nodes:
        if not isinstance(node.op, Reader):
            moved = replace(
                node,
                id=len(nodes),
                inputs=tuple(new[e] for e in node.inputs),
                args={k: new[e] for k, e in node.args.items()},
                scope=tuple((new[e], branch) for e, branch in node.scope),
                samples_of=None if node.samples_of is None else new[node.samples_of],
            )
            new |= {Edge(node.id, k): Edge(moved.id, k) for k in range(node.op.num_outputs)}
            nodes.append(moved)
            continue
        place = (node.mark.file, node.mark.line, node.mark.column) if node.mark else ("", 0, 0)
        called = names.get(place, ())
        for k in range(node.op.num_outputs):
            edge = Edge(node.id, k)
            if edge not in used:
                continue
            spec = graph.spec(edge)
            wish = called[k] if k < len(called) else f"{node.name}_{k}"
            if spec.dtype is None or spec.shape is None:
                raise SpecError(f"{node.where}: the type of {wish!r} is unknown before it is read; put an "
                                "external_source with dtype and ndim in place of the reader")  # fmt: skip
            op = ExternalSource(dtype=spec.dtype.name, ndim=len(spec.shape), layout=spec.layout or None)
            new[edge] = Edge(len(nodes))
            nodes.append(Node(len(nodes), op, (), {}, wish, specs=op.infer()))
    result = renumber(nodes, {k: new[e] for k, e in graph.outputs.items()})
    if not any(isinstance(n.op, ExternalSource) for n in result.nodes):
        raise SpecError("this pipeline has no inputs: it has no reader and no external_source that an output "
                        "needs")  # fmt: skip
    return result


def _check(inputs: Sequence[Port], outputs: Sequence[Port], strings: Sequence[str]) -> None:
    for port in (*inputs, *outputs):
        if port.dtype not in _TYPES:
            raise SpecError(f"{port.name}: Triton has no type for {port.dtype.name}")
    twice = {p.name for p in inputs} & {p.name for p in outputs}
    if twice:
        raise SpecError(f"{sorted(twice)[0]!r} is both an input and an output: Triton needs two different names")
    for name in strings:
        matching = next((p for p in inputs if p.name == name), None)
        if matching is None:
            raise SpecError(f"there is no input {name!r}; available: {', '.join(p.name for p in inputs)}")
        if matching.dtype != DALIDataType.UINT8 or len(matching.shape) != 1:
            raise SpecError(f"input {name!r} is not a 1-D array of bytes, and cannot be sent as strings")


def _section(settings: Settings) -> dict[str, Any]:
    section: dict[str, Any] = {"batch_size": settings.batch_size, "seed": settings.seed, **settings.to_dict()}
    if settings.num_threads != "auto":
        section["num_threads"] = settings.num_threads
    return section if settings.device == "auto" else {**section, "device": settings.device}


# -- config.pbtxt -----------------------------------------------------------------------------------------------------


def _config(
    name: str, settings: Settings, inputs: Sequence[Port], outputs: Sequence[Port], strings: Sequence[str], count: int
) -> str:  # fmt: skip
    kind = {"cpu": "KIND_CPU", "auto": "KIND_AUTO"}.get(settings.device, "KIND_GPU")
    group = f"count: {count}, kind: {kind}"
    if kind == "KIND_GPU" and settings.device not in ("gpu", "gpu:all", "null"):
        group += f", gpus: [ {settings.device.removeprefix('gpu:').replace(',', ', ')} ]"
    if settings.device == "null":
        group = f"count: {count}, kind: KIND_CPU"
    lines = [f"name: {json.dumps(name)}", 'backend: "python"', f"max_batch_size: {settings.batch_size}"]
    lines += [_port("input", p, p.name in strings) for p in inputs]
    lines += [_port("output", p) for p in outputs]
    return "\n".join([*lines, "dynamic_batching { }", f"instance_group [ {{ {group} }} ]", ""])


def _port(kind: str, port: Port, string: bool = False) -> str:
    dims = [1] if string else [-1 if d is None else d for d in port.shape] or [1]
    dtype = "TYPE_STRING" if string else _TYPES[port.dtype]
    ragged = ", allow_ragged_batch: true" if kind == "input" and None in port.shape and not string else ""
    scalar = "" if port.shape or string else ", reshape: { shape: [ ] }"
    return (f"{kind} [ {{ name: {json.dumps(port.name)}, data_type: {dtype}, dims: [ "
            f"{', '.join(map(str, dims))} ]{scalar}{ragged} }} ]")  # fmt: skip
