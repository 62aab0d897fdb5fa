"""Prune: leave out what no output needs, and number the rest anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..graph.nodes import Edge, Graph, Node, Scope


def prune(graph: Graph) -> Graph:
    """The graph without nodes that no output depends on. Pruned operators consume no seed, as in DALI."""
    needed: set[int] = set()
    todo = [e.node for e in graph.outputs.values()]
    while todo:
        at = todo.pop()
        if at not in needed:
            needed.add(at)
            todo += [e.node for e in graph.nodes[at].reads]
    kept = [n for n in graph.nodes if n.id in needed]
    return renumber(kept, graph.outputs)


def renumber(nodes: list[Node], outputs: Mapping[str, Edge]) -> Graph:
    """A graph of ``nodes``, whose ids may have holes, with ids equal to places."""
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
