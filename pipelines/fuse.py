"""Fuse: join chains of nodes into one kernel where the result is the same within the operators' stated bounds."""

from __future__ import annotations

from .graph import Graph


def fuse(graph: Graph) -> tuple[Graph, tuple[str, ...], dict[int, int]]:
    """The graph with chains joined, what was joined (for people), and the old id of every new node."""
    return graph, (), {n.id: n.id for n in graph.nodes}
