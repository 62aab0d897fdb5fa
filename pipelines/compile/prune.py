"""Remove nodes that neither an output nor a condition for samples needs, and renumber the others. Called by
`compile_graph`."""

from __future__ import annotations

from ..graph.nodes import Graph
from ..graph.renumber import renumber


def prune(graph: Graph) -> Graph:
    """Return the graph with only those nodes on which an output, or an operator that leaves samples out, depends. As in
    DALI, removed operators use no seed."""
    needed: set[int] = set()
    pending = [e.node for e in graph.outputs.values()] + [n.id for n in graph.nodes if n.op.leaves_out]
    while pending:
        number = pending.pop()
        if number not in needed:
            needed.add(number)
            pending += [e.node for e in graph.nodes[number].reads]
    remaining = [n for n in graph.nodes if n.id in needed]
    return renumber(remaining, graph.outputs)
