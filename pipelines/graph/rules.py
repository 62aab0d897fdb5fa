"""Rules that graphs must satisfy between passes. A broken rule is a bug of the compiler, not an error of a spec."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .conditionals import Merge, Split
from .nodes import KEPT, Edge, Graph, Scope

Rule = Callable[[Graph], Iterator[str]]


def _ids(graph: Graph) -> Iterator[str]:
    yield from (f"node at place {i} has id {n.id}" for i, n in enumerate(graph.nodes) if n.id != i)


def _topology(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        for edge in node.reads:
            if not 0 <= edge.node < node.id:
                yield f"{node.name} reads node {edge.node}, which does not come before it"
            elif not 0 <= edge.output < graph.nodes[edge.node].op.num_outputs:
                yield f"{node.name} reads output {edge.output} of {graph.nodes[edge.node].name}, which has fewer"


def _outputs(graph: Graph) -> Iterator[str]:
    for name, edge in graph.outputs.items():
        if not 0 <= edge.node < len(graph.nodes):
            yield f"output {name} belongs to no node"
        elif graph.nodes[edge.node].scope and not name.startswith(KEPT):
            yield f"output {name} is computed inside a branch"


def _names(graph: Graph) -> Iterator[str]:
    seen: set[str] = set()
    for node in graph.nodes:
        if node.name in seen:
            yield f"two nodes are called {node.name}"
        seen.add(node.name)


def _scope_of(graph: Graph, edge: Edge) -> Scope:
    source = graph.node(edge)
    if isinstance(source.op, Split):
        return (*source.scope, (source.args["predicate"], edge.output == 0))
    return source.scope


def _scopes(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        if isinstance(node.op, Merge):
            then, otherwise = (_scope_of(graph, e) for e in node.inputs)
            if then[:-1] != node.scope or otherwise[:-1] != node.scope or not then or not otherwise:
                yield f"{node.name} does not join branches of its own scope"
            elif then[-1][0] != otherwise[-1][0] or (then[-1][1], otherwise[-1][1]) != (True, False):
                yield f"{node.name} does not join the two branches of one conditional"
            continue
        for edge in node.inputs:
            source = graph.nodes[edge.node]
            if _scope_of(graph, edge) != node.scope:
                yield f"{node.name} reads {source.name} across the border of a branch"


def _specs(graph: Graph) -> Iterator[str]:
    if any(n.specs for n in graph.nodes):
        yield from (f"{n.name} has no specs" for n in graph.nodes if len(n.specs) != n.op.num_outputs)


RULES: tuple[Rule, ...] = (_ids, _topology, _outputs, _names, _scopes, _specs)


def verify(graph: Graph, after: str) -> Graph:
    """Check that ``graph`` follows all rules of this module, and return it. Raises AssertionError if it does not, with
    the name of the compiler pass ``after`` which it was checked."""
    broken = [problem for rule in RULES for problem in rule(graph)]
    if broken:
        raise AssertionError(f"[internal] the graph is wrong after {after}: " + "; ".join(broken))
    return graph
