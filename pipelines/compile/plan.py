"""Compile a graph to a plan: prune -> infer -> place -> promote -> fuse -> schedule, verified between passes.

Called by jobs, by the Python API, by `plan` and by benchmarks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...ops.base import Operator
from ...ops.streams import seed_sequence
from ..graph.nodes import Graph, Node
from ..graph.rules import verify
from .fuse import fuse
from .infer import infer
from .join_arithmetic import join_arithmetic
from .place import Target, place
from .promote import promote
from .prune import prune
from .schedule import Step, schedule
from .share import share


@dataclass(frozen=True, slots=True)
class Plan:
    """A compiled graph, with everything that the engine needs to know to run it. Created by `compile_graph`; never
    changed."""

    graph: Graph
    target: Target
    steps: tuple[Step, ...]
    seeds: Mapping[int, int]
    """Seed of each random node, by the node's id."""
    seed: int
    fused: tuple[str, ...] = ()
    """Descriptions of the groups of nodes that the pass `fuse` joined, made of the nodes' names."""
    promoted: tuple[str, ...] = ()
    """Names of the CPU operators that the pass `promote` moved to the GPU."""

    @property
    def readers(self) -> tuple[Node, ...]:
        """The nodes that open a data set. The keys of samples come from the first of them."""
        from ...readers.base import Reader

        return tuple(n for n in self.graph.nodes if isinstance(n.op, Reader))

    def describe(self) -> dict[str, Any]:
        """Return the plan as plain data for JSON, as ``dali-run plan --json`` prints it."""
        stage_of = {n.id: i for i, s in enumerate(self.steps) for n in s.nodes}
        return {
            "device": self.target.device,
            "seed": self.seed,
            "stages": [
                {"id": f"{i:02d}:{s.name}", "kind": s.kind, "operators": [n.name for n in s.nodes]}
                for i, s in enumerate(self.steps)
            ],
            "operators": [
                {
                    "name": n.name,
                    "op": n.op.name,
                    "runs_on": n.stage,
                    "stage": stage_of[n.id],
                    "inputs": [_edge_name(self.graph, e) for e in n.inputs],
                    "arguments": {k: _edge_name(self.graph, e) for k, e in n.args.items()},
                    "outputs": [str(s) for s in n.specs],
                    "parity": parity_of(n.op),
                    "selects": n.op.selects(),
                    "decoders": getattr(n.op, "who_decodes", None) if n.stage == "mixed" else None,
                }
                for n in self.graph.nodes
            ],
            "outputs": {
                k: {"from": _edge_name(self.graph, e), "spec": str(self.graph.spec(e))}
                for k, e in self.graph.outputs.items()
            },
            "fused": list(self.fused),
            "promoted": list(self.promoted),
        }


def parity_of(op: Operator) -> str | None:
    """Return the name of the library that an operator (or an operator that is joined in it) imitates instead of DALI;
    None for DALI."""
    values = [getattr(op, f.name) for f in dataclasses.fields(op)]
    libraries = [getattr(op, "parity", None), *(parity_of(v) for v in values if isinstance(v, Operator))]
    return next((p for p in libraries if p not in (None, "dali")), None)


def _edge_name(graph: Graph, edge: Any) -> str:
    node = graph.node(edge)
    return node.name if node.op.num_outputs == 1 else f"{node.name}[{edge.output}]"


def compile_graph(
    graph: Graph,
    target: Target,
    seed: int = 0,
    *,
    fusing: bool = True,
    sharing: bool = True,
    promoting: bool = False,
) -> Plan:
    """Return the plan of ``graph`` on ``target``. ``promoting``: also run the pass `promote`, which moves CPU operators
    to the GPU. Raises SpecError if the graph cannot be compiled."""
    graph = verify(prune(verify(graph, "building")), "prune")
    graph = verify(infer(graph), "infer")
    graph = verify(place(graph, target), "place")
    if fusing:
        graph = verify(join_arithmetic(graph), "join_arithmetic")
    seeds = assign_seeds(graph, seed)
    if sharing:
        graph, seeds = share(graph, seeds)
        verify(graph, "share")
    promoted: tuple[str, ...] = ()
    if promoting and target.device != "cpu":
        graph, promoted, kept = promote(graph)
        verify(graph, "promote")
        seeds = {new: seeds[old] for new, old in kept.items() if old in seeds}
    fused: tuple[str, ...] = ()
    if fusing:
        graph, fused, kept = fuse(graph, target, promoted)
        verify(graph, "fuse")
        seeds = {new: seeds[old] for new, old in kept.items() if old in seeds}
    return Plan(graph, target, schedule(graph), seeds, seed, fused, promoted)


def assign_seeds(graph: Graph, seed: int) -> dict[int, int]:
    """Return a seed for every random node, by node id: the node's own seed if it is set, otherwise, by DALI's rule, the
    next number of the sequence that follows from the pipeline's ``seed``.

    Nodes get their seeds depth first from the outputs, inputs before the operator (semantics 2.2)."""
    seeds: dict[int, int] = {}
    pool = seed_sequence(seed, 1024)
    assigned = 0
    for node in _depth_first(graph):
        if node.op.random:
            if node.seed is not None and node.seed >= 0:
                seeds[node.id] = node.seed
            else:
                seeds[node.id] = int(pool[assigned % len(pool)]) + assigned // len(pool)
                assigned += 1
    return seeds


def _depth_first(graph: Graph) -> Iterator[Node]:
    """Yield all nodes depth first, each after the nodes that it reads: first the nodes that outputs need, from left to
    right, then operators that leave samples out.

    Arguments come in the order of their names. There is no recursion, because graphs may be long chains. DALI computes
    a node that reads nothing for whole batches, even in a branch of a conditional, and splits its output by the
    predicates of the branch in which it is read: the predicates come after it."""

    def reads(node: Node) -> Iterator[int]:
        for edge in (*node.inputs, *(node.args[k] for k in sorted(node.args))):
            yield edge.node
            source = graph.node(edge)
            if not source.inputs and not source.args:
                yield from (predicate.node for predicate, _ in source.scope)

    seen: set[int] = set()
    ends = [*(e.node for e in graph.outputs.values()), *(n.id for n in graph.nodes if n.op.leaves_out)]
    stack = [(node, False) for node in reversed(ends)]
    while stack:
        at, complete = stack.pop()
        node = graph.nodes[at]
        if complete:
            yield node
        elif at not in seen:
            seen.add(at)
            stack.append((at, True))
            stack += [(k, False) for k in reversed(list(reads(node)))]
