"""Build a graph from some of the nodes of another graph. Used by the passes of `compile`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .nodes import Edge, Graph, Node, Scope


def renumber(nodes: list[Node], outputs: Mapping[str, Edge]) -> Graph:
    """Return a graph of ``nodes`` in which every node's id is its index again. The ids in ``nodes`` may have gaps."""
    new = {n.id: i for i, n in enumerate(nodes)}

    def edge(e: Edge) -> Edge:
        return Edge(new[e.node], e.output)

    def scope(s: Scope) -> Scope:
        return tuple((edge(e), branch) for e, branch in s if e.node in new)

    moved = [
        replace(
            n,
            id=new[n.id],
            inputs=tuple(edge(e) for e in n.inputs),
            args={k: edge(e) for k, e in n.args.items()},
            scope=scope(n.scope),
            samples_of=edge(n.samples_of) if n.samples_of is not None and n.samples_of.node in new else None,
        )
        for n in nodes
    ]
    return Graph(tuple(moved), {k: edge(e) for k, e in outputs.items()})
