"""Infer: the outputs of every node (shape, dtype, layout), as far as it is known before data is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...ops.base import Spec
from ...ops.errors import ArgumentValueError, SpecError
from ...ops.types import DALIDataType
from ..graph.nodes import Graph, Node


def infer(graph: Graph) -> Graph:
    """The graph with ``specs`` filled in; nodes that have them (a spec's, inferred while it was read) keep them.

    Raises SpecError, with the place, where an operator cannot take its input.
    """
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.specs:
            nodes.append(node)
            continue
        given = [nodes[e.node].specs[e.output] for e in node.inputs]
        try:
            nodes.append(replace(node, specs=infer_node(node, given)))
        except SpecError as e:
            raise e.at(node.where) from None
    return replace(graph, nodes=tuple(nodes))


_ENCODED = "; if these are encoded files, decode them first, with decoders.image"


def _may_be_encoded(given: Sequence[Spec]) -> bool:
    return bool(given) and given[0].dtype == DALIDataType.UINT8 and given[0].ndim == 1 and not given[0].layout


def infer_node(node: Node, given: Sequence[Spec]) -> tuple[Spec, ...]:
    """The outputs of one node. Raises SpecError, without a place."""
    layouts = node.op.layouts
    if layouts and given and given[0].layout and given[0].layout not in layouts:
        raise ArgumentValueError(f"takes layouts {', '.join(layouts)}, got {given[0].layout}")
    try:
        result = node.op.infer(*given)
    except SpecError as e:
        raise type(e)(f"{e}{_ENCODED if _may_be_encoded(given) else ''}") from None
    specs = (result,) if isinstance(result, Spec) else tuple(result)
    if len(specs) != node.op.num_outputs:
        raise AssertionError(f"{node.op.name}.infer gave {len(specs)} specs for {node.op.num_outputs} outputs")
    return specs
