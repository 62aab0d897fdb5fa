"""Write a graph and the arguments of its pipeline as JSON, and read them back. Nothing in the text is ever executed."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ...ops.base import Operator, parameters
from ...ops.errors import SpecError
from ...ops.storage.json_text import parse_json
from ...ops.types import DALIDataType
from ...readers.external_source import ExternalSource
from ..plugins import find_operator
from .arguments import check_arguments
from .builder import GraphBuilder
from .conditionals import Condition, Merge, Split
from .nodes import Edge, Graph, Node

VERSION = 1
_KIND = "dali-run pipeline"
_MAX_SHOWN = 200
"""Maximum number of characters of an argument's value for it to be shown in full."""


def dump_pipeline(graph: Graph, arguments: Mapping[str, Any]) -> bytes:
    """Return ``graph`` as it was built, before any compiler pass, and the pipeline's arguments as JSON. Raises
    SpecError for values that are not plain data."""
    nodes = [_node(n) for n in graph.nodes]
    outputs = {k: [e.node, e.output] for k, e in graph.outputs.items()}
    plain = {k: _plain(v, f"argument {k} of the pipeline") for k, v in arguments.items()}
    document = {"kind": _KIND, "version": VERSION, "pipeline": plain, "nodes": nodes, "outputs": outputs}
    return json.dumps(document).encode()


def _node(node: Node) -> dict[str, Any]:
    row: dict[str, Any] = {"op": node.op.name, "name": node.name, "device": node.device}
    row["inputs"] = [[e.node, e.output] for e in node.inputs]
    row["args"] = {k: [e.node, e.output] for k, e in node.args.items()}
    row["values"] = {
        p.name: _plain(getattr(node.op, p.name), f"{node.name}: argument {p.name}")
        for p in parameters(type(node.op)).values()
        if p.name not in node.op.per_sample and getattr(node.op, p.name) != p.default and not _left_out(node, p.name)
    }
    if node.seed is not None:
        row["seed"] = node.seed
    if node.scope:
        row["scope"] = [[e.node, e.output, branch] for e, branch in node.scope]
    if node.samples_of is not None:
        row["samples_of"] = [node.samples_of.node, node.samples_of.output]
    return row


def _left_out(node: Node, name: str) -> bool:
    """Return whether an argument is not written to JSON because it is a function that provides data. A program that
    loads the JSON feeds the pipeline itself."""
    return isinstance(node.op, ExternalSource) and name in ("source", "cycle", "parallel", "cuda_stream")


def _plain(value: Any, what: str) -> Any:
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (list, tuple)):
        return [_plain(v, what) for v in value]
    if isinstance(value, Mapping):
        return {str(k): _plain(v, what) for k, v in value.items()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise SpecError(f"{what} cannot be serialised: {value!r} is not plain data")


def parse_pipeline(data: bytes | str) -> tuple[GraphBuilder, dict[str, Edge], dict[str, Any]]:
    """Parse the JSON of `dump_pipeline`. Return a builder that contains the graph, its outputs by name, and the
    arguments of the pipeline. Raises SpecError."""
    try:
        document = parse_json(data)
    except ValueError:
        document = None
    if not isinstance(document, dict) or document.get("kind") != _KIND:
        raise SpecError("this is not a serialised dali-run pipeline")
    if document.get("version") != VERSION:
        raise SpecError(f"the pipeline was serialised by version {document.get('version')}, this is version {VERSION}")
    try:
        nodes = [_restored(i, row) for i, row in enumerate(document["nodes"])]
        outputs = {k: _edge(e, len(nodes)) for k, e in document["outputs"].items()}
        arguments = dict(document["pipeline"])
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise SpecError(f"the serialised pipeline is damaged: {type(e).__name__}: {e}") from None
    types = arguments.get("output_dtype")
    if types is not None:
        arguments["output_dtype"] = [None if t is None else DALIDataType[t] for t in types] \
            if isinstance(types, list) else DALIDataType[types]  # fmt: skip
    return GraphBuilder.of(nodes), outputs, arguments


def _restored(number: int, row: Mapping[str, Any]) -> Node:
    cls = {c.name: c for c in (Split, Merge, Condition)}.get(row["op"]) or find_operator(row["op"])
    args = {k: _edge(e, number) for k, e in row["args"].items()}
    constants, edges, problems = check_arguments(cls, {**row["values"], **args})
    if problems:
        raise SpecError(f"{row['name']}: {'; '.join(problems)}")
    operator: Operator = cls(per_sample=frozenset(edges), num_inputs=len(row["inputs"]), **constants)
    operator.check()
    samples_of = row.get("samples_of")
    return Node(
        id=number,
        op=operator,
        inputs=tuple(_edge(e, number) for e in row["inputs"]),
        args=edges,
        name=row["name"],
        device=row["device"],
        seed=row.get("seed"),
        scope=tuple((_edge(e, number), bool(branch)) for *e, branch in row.get("scope", ())),
        samples_of=None if samples_of is None else _edge(samples_of, number),
    )


def _edge(pair: Any, before: int) -> Edge:
    node, output = pair
    if not 0 <= node < before or output < 0:
        raise ValueError(f"{pair} is not an output of an earlier operator")
    return Edge(int(node), int(output))


def _name_or_value(value: Any) -> str:
    """Return plain data as text, and other objects by their name, which is the same in another process."""
    if callable(value):
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    if isinstance(value, (bool, int, float, str, tuple, list, dict, frozenset, enum.Enum, type(None))):
        return repr(value)
    return type(value).__qualname__


def digest(graph: Graph) -> str:
    """Return a hash of the operators, arguments and connections of a graph. It is the same for a graph from YAML and
    from Python."""
    rows: list[Any] = []
    for node in graph.nodes:
        fields = {f.name: _name_or_value(getattr(node.op, f.name)) for f in dataclasses.fields(node.op)}
        fields["per_sample"] = ",".join(sorted(node.op.per_sample))
        rows.append([node.op.name, fields, [repr(e) for e in node.inputs],
                     {k: repr(e) for k, e in sorted(node.args.items())}, node.seed])  # fmt: skip
    rows.append(["outputs", {k: repr(e) for k, e in graph.outputs.items()}])
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()


def described(graph: Graph, left_out: Callable[[Operator], Collection[str]]) -> dict[str, dict[str, str]]:
    """Return readable texts of everything that `digest` hashes, so that differences can be shown: for each operator the
    arguments that are not defaults, and the outputs. ``left_out`` returns the names of an operator's arguments that do
    not count."""
    names = {node.id: f"{k} {node.op.name}" for k, node in enumerate(graph.nodes, 1)}

    def place(edge: Edge) -> str:
        return f"{names[edge.node]}[{edge.output}]"

    rows: dict[str, dict[str, str]] = {}
    for node in graph.nodes:
        without = {*left_out(node.op), *node.op.per_sample}
        row = {
            f.name: _shortened(repr(getattr(node.op, f.name)))
            for f in dataclasses.fields(node.op)
            if f.name not in without and repr(getattr(node.op, f.name)) != repr(f.default)
        }
        row |= {"in": ", ".join(map(place, node.inputs))} if node.inputs else {}
        row |= {k: f"${place(e)}" for k, e in sorted(node.args.items())}
        row |= {"seed": str(node.seed)} if node.seed is not None else {}
        rows[names[node.id]] = row
    return {**rows, "outputs": {k: place(e) for k, e in graph.outputs.items()}}


def _shortened(text: str) -> str:
    """Return ``text``, or its beginning and its hash if it is long."""
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}... ({hashlib.sha256(text.encode()).hexdigest()})"
