"""Infer the outputs of every node (shape, dtype, layout), as far as they are known before data are read. Called by
`compile_graph` and by the spec's reader."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...ops.base import Operator, Spec, parameters
from ...ops.errors import ArgumentValueError, SpecError
from ...ops.types import DALIDataType
from ..graph.nodes import Graph, Node


def infer(graph: Graph) -> Graph:
    """Return the graph with the ``specs`` (dtype, shape, layout) of all nodes filled in. Nodes that have specs already,
    from reading a spec, keep them.

    Raises SpecError with the node's place if an operator does not accept its input."""
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.specs:
            nodes.append(node)
            continue
        input_specs = [nodes[e.node].specs[e.output] for e in node.inputs]
        try:
            check_numbers(node.op, {name: nodes[e.node].specs[e.output] for name, e in node.args.items()})
            nodes.append(replace(node, specs=infer_node(node, input_specs)))
        except SpecError as e:
            raise e.at(node.where) from None
    return replace(graph, nodes=tuple(nodes))


def check_numbers(op: Operator, argument_specs: Mapping[str, Spec]) -> None:
    """Raise SpecError if an argument that must be one number per sample gets arrays of another shape. Otherwise the
    operator would reject every sample."""
    for name, spec in argument_specs.items():
        shape = spec.shape if spec.shape is None or spec.layout[:1] != "F" else spec.shape[1:]  # one for each frame
        wrong = shape is not None and None not in shape and math.prod(n or 0 for n in shape) != 1
        parameter = parameters(type(op))[name]
        if not (parameter.is_vector or parameter.arg.tensor) and (wrong or {*"HW"} <= {*spec.layout}):
            raise SpecError(f"argument {name!r} takes one number for each sample, got {spec}")


_ENCODED = "; if these are encoded files, decode them first, with decoders.image"


def _may_be_encoded(input_specs: Sequence[Spec]) -> bool:
    return (
        bool(input_specs)
        and input_specs[0].dtype == DALIDataType.UINT8
        and input_specs[0].ndim == 1
        and not input_specs[0].layout
    )


def infer_node(node: Node, input_specs: Sequence[Spec]) -> tuple[Spec, ...]:
    """Return the specs of the outputs of one node. Raises SpecError, without the place of the node in the user's
    spec."""
    layouts = node.op.layouts
    if layouts and input_specs and input_specs[0].layout and input_specs[0].layout not in layouts:
        raise ArgumentValueError(f"takes layouts {', '.join(layouts)}, got {input_specs[0].layout}")
    try:
        result = node.op.infer(*input_specs)
    except SpecError as e:
        raise type(e)(f"{e}{_ENCODED if _may_be_encoded(input_specs) else ''}") from None
    specs = (result,) if isinstance(result, Spec) else tuple(result)
    if len(specs) != node.op.num_outputs:
        raise AssertionError(f"{node.op.name}.infer gave {len(specs)} specs for {node.op.num_outputs} outputs")
    return specs
