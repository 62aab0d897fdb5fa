"""Share equal nodes: they are computed once, as in DALI. Called by `compile_graph`."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import replace

from ..graph.conditionals import Merge, Split
from ..graph.nodes import Edge, Graph, Node, Scope
from .prune import prune

__all__ = ["share"]


def share(graph: Graph, seeds: Mapping[int, int]) -> tuple[Graph, dict[int, int]]:
    """Merge nodes that compute the same. Return the graph without nodes that equal an earlier one in operator,
    arguments, inputs, device and branch; and the ``seeds`` of the remaining nodes, by their new ids. Random operators
    are equal if the program gave them equal seeds. Operators that call the program are not merged, nor are operators
    that the program named, because it refers to them by name."""
    instead: dict[int, int] = {}
    by_key: dict[Hashable, list[Node]] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        node = _redirected(node, instead)
        key = _key(node)
        if key is not None:
            candidates = by_key.setdefault(key, [])
            twin = next(
                (n for n in candidates if repr(n.op) == repr(node.op)), None
            )  # 0.0 == -0.0, but they are different arguments
            if twin is not None:
                instead[node.id] = twin.id
            else:
                candidates.append(node)
        nodes.append(node)
    if not instead:
        return graph, dict(seeds)
    remaining = [n for n in nodes if n.id not in instead]
    new = {n.id: i for i, n in enumerate(remaining)}
    outputs = {k: _edge(e, instead) for k, e in graph.outputs.items()}
    return prune(Graph(tuple(nodes), outputs)), {new[old]: seed for old, seed in seeds.items() if old in new}


def _key(node: Node) -> Hashable:
    """Return a key that is the same for nodes that compute the same; None for a node that must not be merged."""
    op = node.op
    if not op.shared or isinstance(op, (Split, Merge)) or not _unnamed(node):
        return None
    if op.random and (node.seed is None or node.seed < 0):
        return None
    try:
        hash(op)
    except TypeError:  # the operator holds lists or arrays
        return None
    args = tuple(sorted(node.args.items()))
    return type(op), op, node.inputs, args, node.device, node.stage, node.seed, node.scope, node.samples_of


def _unnamed(node: Node) -> bool:
    """Return whether the node's name was generated from the operator's name, and not set by the user."""
    return re.fullmatch(re.escape(node.op.name) + r"(_\d+)?", node.name) is not None


def _edge(edge: Edge, instead: Mapping[int, int]) -> Edge:
    return Edge(instead.get(edge.node, edge.node), edge.output)


def _redirected(node: Node, instead: Mapping[int, int]) -> Node:
    """Return ``node`` with its edges to removed nodes replaced. ``instead``: by the id of each removed node, the id of
    the equal node that remains."""
    if not instead:
        return node
    scope: Scope = tuple((_edge(e, instead), branch) for e, branch in node.scope)
    return replace(
        node,
        inputs=tuple(_edge(e, instead) for e in node.inputs),
        args={k: _edge(e, instead) for k, e in node.args.items()},
        scope=scope,
        samples_of=None if node.samples_of is None else _edge(node.samples_of, instead),
    )
