"""Display of pipelines and DataNodes, as text for Python's prompt and as HTML with a drawing for notebooks."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ops.base import parameters
from ..graph.conditionals import Merge, Split
from ..graph.nodes import Edge, Node
from ..show.notebook import Box, graph_svg, outline

if TYPE_CHECKING:
    from .data_node import DataNode


def boxes_of(outputs: Mapping[str, DataNode]) -> list[Box]:
    """Return the boxes for a drawing of the graph: one per node that ``outputs`` need, in an order in which the nodes
    can run. Conditionals have no box: boxes after them are connected to those before."""
    boxes: list[Box] = []
    places: dict[tuple[int, int], int] = {}
    ends: list[Box] = []
    for name, output in outputs.items():
        for node in _before(output):
            if not isinstance(node.op, (Split, Merge)) and (id(output.builder), node.id) not in places:
                ends_of = _ends(output, node.inputs, places)
                inputs = tuple(place for place, _ in ends_of)
                named = {k: end for k, e in node.args.items() for end in _ends(output, [e], places)}
                places[id(output.builder), node.id] = len(boxes)
                boxes.append(
                    Box(node.name, node.op.name, _stage(node, boxes, inputs), inputs,
                        {k: place for k, (place, _) in named.items()}, tuple(number for _, number in ends_of),
                        {k: number for k, (_, number) in named.items()}, _settings(node))
                )  # fmt: skip
        last = _ends(output, [output.edge], places)
        ends.append(Box(name, "", "", tuple(place for place, _ in last), {}, tuple(number for _, number in last)))
    return [*boxes, *ends]


_LONGEST = 60
"""Largest number of characters of an argument's value to display."""


def _settings(node: Node) -> dict[str, str]:
    """Return the constant arguments of a node that differ from their defaults, as text by name: ``size`` -> ``[224,
    224]``."""
    texts = {}
    for p in parameters(type(node.op)).values():
        value = getattr(node.op, p.name, p.default)
        if p.name not in node.args and (p.required or not _same(value, p.default)):
            text = " ".join(_text(value).split())
            texts[p.name] = text if len(text) <= _LONGEST else text[: _LONGEST - 4] + " ..."
    return texts


def _text(value: Any) -> str:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, enum.Enum):
        return value.name
    return f"{value:g}" if isinstance(value, float) else repr(value)


def _same(value: Any, default: Any) -> bool:
    try:
        return bool(value is default or np.array_equal(value, default))
    except (TypeError, ValueError):
        return False


def _before(output: DataNode) -> list[Node]:
    """Return the nodes that ``output`` needs, in the order in which they were added."""
    nodes = output.builder.nodes
    pending, needed = [output.edge.node], set()
    while pending:
        i = pending.pop()
        if i not in needed:
            needed.add(i)
            pending += [e.node for e in nodes[i].reads]
    return [nodes[i] for i in sorted(needed)]


def _ends(
    output: DataNode, edges: Iterable[Edge], places: Mapping[tuple[int, int], int]
) -> tuple[tuple[int, int | None], ...]:
    """Return where each of ``edges`` begins in the drawing: (index of the box, index of the box's output or None if it
    has only one). Conditionals have no box: an edge from one begins at the boxes before it."""
    nodes = output.builder.nodes
    ends: dict[tuple[int, int | None], None] = {}
    pending = list(edges)[::-1]
    while pending:
        edge = pending.pop()
        node = nodes[edge.node]
        if isinstance(node.op, (Split, Merge)):
            pending += list(node.inputs)[::-1]
        else:
            number = edge.output if node.op.num_outputs > 1 else None
            ends[places[id(output.builder), node.id], number] = None
    return tuple(ends)


def _stage(node: Node, boxes: list[Box], inputs: tuple[int, ...]) -> str:
    if node.device != "auto":
        return node.device
    on_gpu = any(boxes[i].stage in ("mixed", "gpu") for i in inputs)
    return "gpu" if on_gpu and "gpu" in node.op.stages else "cpu"


def settings_line(settings: Mapping[str, Any]) -> str:
    """Return settings as one line of text: ``batch_size=64, num_threads=4``."""
    return ", ".join(f"{name}={value!r}" for name, value in settings.items())


def as_text(kind: str, settings: Mapping[str, Any], outputs: Mapping[str, DataNode] | None) -> str:
    """Return a pipeline as text: settings, then one line per operator and output."""
    head = f"{kind}({settings_line(settings)})"
    if outputs is None:
        return f"{head}: not defined yet"
    return f"{head}:\n" + "\n".join(f"    {line}" for line in outline(boxes_of(outputs)).splitlines())


def as_html(kind: str, settings: Mapping[str, Any], outputs: Mapping[str, DataNode] | None) -> str:
    """Return a pipeline as HTML: its settings, and its graph as a drawing."""
    from html import escape

    head = f"<p><b>{escape(kind)}</b> {escape(settings_line(settings))}</p>"
    return head + (graph_svg(boxes_of(outputs)) if outputs is not None else "<p>not defined yet</p>")
