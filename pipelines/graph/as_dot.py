"""Write a graph as a Graphviz file. Called by `Pipeline.save_graph_to_dot_file`."""

from __future__ import annotations

import json

from .nodes import Edge, Graph

_COLORS = {"cpu": "lightblue", "mixed": "cyan", "gpu": "lightgreen"}


def to_dot(graph: Graph, *, show_tensors: bool = False, use_colors: bool = False) -> str:
    """Return the graph as Graphviz text, with operators as boxes. ``show_tensors``: also show their outputs.
    ``use_colors``: colour each operator by the stage (cpu, mixed, gpu) in which it runs."""
    lines = ["digraph pipeline {"]
    for node in graph.nodes:
        color = f", style=filled, fillcolor={_COLORS[node.stage]}" if use_colors else ""
        lines.append(f"  {_id(node.name)} [shape=box{color}];")
        if show_tensors:
            lines += [f"  {_tensor(graph, Edge(node.id, k))};" for k in range(node.op.num_outputs)]
            lines += [f"  {_id(node.name)} -> {_tensor(graph, Edge(node.id, k))};" for k in range(node.op.num_outputs)]
    for node in graph.nodes:
        for edge in node.inputs:
            lines.append(f"  {_from(graph, edge, show_tensors)} -> {_id(node.name)};")
        for name, edge in node.args.items():
            lines.append(f"  {_from(graph, edge, show_tensors)} -> {_id(node.name)} [style=dashed, label={_id(name)}];")
    for name, edge in graph.outputs.items():
        lines.append(f"  {_id('output ' + name)} [shape=ellipse];")
        lines.append(f"  {_from(graph, edge, show_tensors)} -> {_id('output ' + name)};")
    return "\n".join([*lines, "}", ""])


def _id(text: str) -> str:
    return json.dumps(text)


def _tensor(graph: Graph, edge: Edge) -> str:
    return _id(f"{graph.node(edge).name}[{edge.output}]")


def _from(graph: Graph, edge: Edge, show_tensors: bool) -> str:
    return _tensor(graph, edge) if show_tensors else _id(graph.node(edge).name)
