"""Promote: run CPU operators on the GPU if only the GPU reads their results, and these are equal to the bit.

A program written for DALI decodes audio, and often images, on the CPU, and passes the result to the GPU by ``.gpu()``.
The GPU decodes both faster than the CPU decodes and uploads them. `compile_graph` calls this pass after `place`, for
graphs of the Python API; a spec leaves the device of an operator open, or insists on it. `fuse` joins none of
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...ops.base import Operator, Stage
from ..graph.nodes import Edge, Graph, Node
from ..graph.renumber import renumber

COPY = "copy"


def promote(graph: Graph) -> tuple[Graph, tuple[str, ...], dict[int, int]]:
    """Move CPU operators to the GPU where only the GPU reads their results. Return the new graph, without uploads that
    are no longer needed; the names of the nodes that moved; and the former id of each node."""
    moved = _movable(graph)
    if not moved:
        return graph, (), {n.id: n.id for n in graph.nodes}
    nodes = [replace(n, op=moved[n.id][0], stage=moved[n.id][1]) if n.id in moved else n for n in graph.nodes]
    # an upload of a batch that is on the GPU already
    uploads = {n.id: n.inputs[0] for n in nodes if n.op.name == COPY and n.stage == "gpu" and n.inputs[0].node in moved}

    def source(edge: Edge) -> Edge:
        return uploads.get(edge.node, edge)

    remaining = [replace(n, inputs=tuple(map(source, n.inputs))) for n in nodes if n.id not in uploads]
    outputs = {name: source(edge) for name, edge in graph.outputs.items()}
    names = tuple(graph.nodes[i].name for i in sorted(moved))
    return renumber(remaining, outputs), names, {new: n.id for new, n in enumerate(remaining)}


def _movable(graph: Graph) -> Mapping[int, tuple[Operator, Stage]]:
    """Return the nodes that can move to the GPU, by id, each with the operator and stage that replace its own. Decoders
    can, since they take host data to the GPU anyway. Any other operator moves only together with all its inputs, so
    that nothing new is uploaded. Candidates are dropped until this holds for all of them."""
    readers = _readers(graph)
    moved = {n.id: to for n in graph.nodes if readers[n.id] and (to := _on_gpu(n)) is not None}
    while True:
        wrong = {
            i
            for i, (_, stage) in moved.items()
            if (stage == "gpu" and not all(e.node in moved for e in graph.nodes[i].inputs))
            or not all(_reads_on_gpu(n, e, moved) for n, e in readers[i])
            or any(e.node == i for e in graph.outputs.values())
        }
        if not wrong:
            return moved
        moved = {i: to for i, to in moved.items() if i not in wrong}


def _readers(graph: Graph) -> list[list[tuple[Node, Edge]]]:
    """Return, for each node, the nodes that read its outputs, each with the edge that it reads."""
    readers: list[list[tuple[Node, Edge]]] = [[] for _ in graph.nodes]
    for node in graph.nodes:
        for edge in node.reads:
            readers[edge.node].append((node, edge))
    return readers


def _on_gpu(node: Node) -> tuple[Operator, Stage] | None:
    """Return the GPU operator that gives the same results as the CPU ``node``, and its stage; None if there is none."""
    if node.stage != "cpu" or node.scope or not node.inputs:
        return None
    op = node.op.same_on_gpu()
    stages = () if op is None else op.runs_in()
    stage: Stage | None = "mixed" if "mixed" in stages else "gpu" if "gpu" in stages else None
    return None if op is None or stage is None else (op, stage)


def _reads_on_gpu(node: Node, edge: Edge, moved: Mapping[int, object]) -> bool:
    """Return whether ``node`` reads ``edge`` from GPU memory, once the nodes in ``moved`` run on the GPU."""
    if node.scope or edge not in node.inputs or edge in node.args.values() or edge == node.samples_of:
        return False
    if node.op.host_arguments and edge in node.inputs[1:]:
        return False
    return node.stage == "gpu" or node.id in moved
