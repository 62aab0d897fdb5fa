"""Prune: remove nodes that neither an output nor a condition for samples needs, and number the rest anew."""

from __future__ import annotations

from ..graph.nodes import Graph
from ..graph.renumber import renumber


def prune(graph: Graph) -> Graph:
    """Return the graph without nodes that no output depends on, nor an operator that leaves samples out. Pruned
    operators consume no seed, as in DALI."""
    needed: set[int] = set()
    todo = [e.node for e in graph.outputs.values()] + [n.id for n in graph.nodes if n.op.leaves_out]
    while todo:
        at = todo.pop()
        if at not in needed:
            needed.add(at)
            todo += [e.node for e in graph.nodes[at].reads]
    kept = [n for n in graph.nodes if n.id in needed]
    return renumber(kept, graph.outputs)
