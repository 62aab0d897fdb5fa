"""Infer: what comes out of every node (shape, dtype, layout), as far as it is known before data is read."""

from __future__ import annotations

from dataclasses import replace

from ..ops.base import Spec
from ..ops.errors import SpecError
from .graph import Graph, Node


def infer(graph: Graph) -> Graph:
    """The graph with ``specs`` filled in. Raises SpecError, with the place, where an operator cannot take its input."""
    nodes: list[Node] = []
    for node in graph.nodes:
        given = [nodes[e.node].specs[e.output] for e in node.inputs]
        nodes.append(replace(node, specs=_infer(node, given)))
    return replace(graph, nodes=tuple(nodes))


def _infer(node: Node, given: list[Spec]) -> tuple[Spec, ...]:
    layouts = node.op.layouts
    if layouts and given and given[0].layout and given[0].layout not in layouts:
        raise SpecError(f"{node.where}: takes layouts {', '.join(layouts)}, got {given[0].layout}")
    try:
        result = node.op.infer(*given)
    except SpecError as e:
        raise SpecError(f"{node.where}: {e}") from None
    specs = (result,) if isinstance(result, Spec) else tuple(result)
    if len(specs) != node.op.num_outputs:
        raise AssertionError(f"{node.op.name}.infer gave {len(specs)} specs for {node.op.num_outputs} outputs")
    return specs
