"""Infer: the outputs of every node (shape, dtype, layout), as far as it is known before data is read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...ops.base import Operator, Spec, parameters
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
            check_numbers(node.op, {name: nodes[e.node].specs[e.output] for name, e in node.args.items()})
            nodes.append(replace(node, specs=infer_node(node, given)))
        except SpecError as e:
            raise e.at(node.where) from None
    return replace(graph, nodes=tuple(nodes))


def check_numbers(op: Operator, given: Mapping[str, Spec]) -> None:
    """Raises SpecError where an argument that is one number gets what cannot be one: every sample would be rejected."""
    for name, spec in given.items():
        shape = spec.shape if spec.shape is None or spec.layout[:1] != "F" else spec.shape[1:]  # one for each frame
        wrong = shape is not None and None not in shape and math.prod(n or 0 for n in shape) != 1
        known = parameters(type(op))[name]
        if not (known.is_vector or known.arg.tensor) and (wrong or {*"HW"} <= {*spec.layout}):
            raise SpecError(f"argument {name!r} takes one number for each sample, got {spec}")


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
